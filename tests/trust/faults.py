"""Faults to do to a run: signals, full and read-only folders; and the processes they are done to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.training.test_distributed import ROOT


class Ended(NamedTuple):
    """How the processes of a trial ended, in the order of their ranks.

    Attributes:
        codes: their exit codes; the negative number of the signal that ended one.
        answers: what each told, see `tests.trust.worker.run`.
        errors: what each wrote to standard error.
        apart: seconds between the first end and the last.
        late: some had to be killed for they did not end.
    """

    codes: list[int]
    answers: list[list[dict[str, Any]]]
    errors: list[str]
    apart: float
    late: bool

    @property
    def answer(self) -> dict[str, Any]:
        """What the first process told; empty if it could not."""
        return self.answers[0][-1] if self.answers[0] else {}

    def __str__(self) -> str:
        return f"exit codes {self.codes}, {self.answers}, {' '.join(self.errors)[-300:]}"


def environment() -> dict[str, str]:
    """Return what a worker runs under: no GPU, for then torch's gradients survive a fork."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "REGARD_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


class Server:
    """A process that has imported torch and forks others, see `tests.trust.worker`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.trust.worker", "serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), cwd=ROOT, text=True)

    def run(self, folder: Path, **trial: Any) -> Ended:
        """Run a trial to its end."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"folder": str(folder), **trial}) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=100)


def mount(*words: object) -> None:
    """Call `mount`; raises PermissionError where it is not allowed."""
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(done.stderr.strip())


@contextmanager
def small_disk(folder: Path, pages: int) -> Iterator[None]:
    """Mount a file system of so many pages of 4 KiB on a folder. `grow` makes it larger."""
    folder.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", f"size={4 * pages}k", "tmpfs", folder)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def grow(folder: Path) -> None:
    """Give a small disk room enough."""
    mount("-o", "remount,size=64m", folder)


@contextmanager
def own_mount(folder: Path) -> Iterator[None]:
    """Mount a folder on itself, so that `writable` can change it."""
    folder.mkdir(parents=True, exist_ok=True)
    mount("--bind", folder, folder)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def writable(folder: Path, allowed: bool) -> None:
    """Make what `own_mount` mounted read-only, which holds for root too, or writable again."""
    mount("-o", f"remount,bind,{'rw' if allowed else 'ro'}", folder)
