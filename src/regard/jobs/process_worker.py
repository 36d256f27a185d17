"""A worker process on this machine: one line of JSON per job in, one per answer out."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from regard.errors import RegardError, TrainingError
from regard.jobs.pool import Answer, Job, WorkerLost
from regard.strict_json import parse_json

PREFIX = "regard: "
LAST_BYTES = 2000


def child_command(words: Sequence[str]) -> list[str]:
    """Return the command that runs a module in a process that ends with its parent; its standard input must be a pipe from the parent.

    Args:
        words: the module and its arguments.

    Example:
        >>> child_command(["regard", "list"])[1:]
        ['-m', 'regard.jobs.child', 'regard', 'list']
    """
    return [sys.executable, "-m", "regard.jobs.child", *words]


class ProcessWorker:
    """A Python process that calls `answer_jobs`.

    It has its own session, so that Ctrl-C on the terminal does not reach it, and so that its child processes end with it. It ends with this
    process, also while it still imports.

    Args:
        words: module and arguments of its command, without the interpreter and `-m`.
        environment: variables to set.
        folder: working directory; None: this process's.

    Example:
        >>> worker = ProcessWorker(["regard", "no-such-command"])
        >>> worker.call({})
        Traceback (most recent call last):
            ...
        regard.errors.TrainingError: No such command 'no-such-command'.
        >>> worker.close()
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._told, self._killed, self._ending = 0, False, threading.Lock()
        self._process = subprocess.Popen(
            child_command(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            start_new_session=True,
        )

    def ready(self, seconds: float) -> bool:
        """Return True: the process is started at once."""
        return True

    def call(self, job: Job) -> Answer:
        """Do a job; the answer holds the process' standard error under "said".

        Raises:
            WorkerLost: the process was killed.
            TrainingError: it exited; the message holds its last output and exit code.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        with suppress(OSError, ValueError):  # it has ended, or been closed
            self._process.stdin.write(json.dumps(dict(job)).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._why()
        answer = parse_json(line)
        if said := self._new_words():
            answer["said"] = said
        return answer

    def stop(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Kill the process and its children."""
        with self._ending:
            self._kill()
            for stream in (self._process.stdin, self._process.stdout, self._said):
                assert stream is not None
                with suppress(OSError):  # unread input of a dead process
                    stream.close()

    def _kill(self) -> None:
        if not self._killed:  # only once: the number may be reused
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._killed = True
        self._process.wait()

    def _why(self) -> WorkerLost | TrainingError:
        with suppress(subprocess.TimeoutExpired):  # its output is closed, but it may still be ending
            self._process.wait(timeout=10)
        with self._ending:
            if self._said.closed:
                return WorkerLost("closed")
            code = self._process.poll()
            self._kill()
            said = self._new_words()
        if code is None or code < 0:
            return WorkerLost("killed" if code is None else f"signal {-code}")
        error = TrainingError(said[-1].removeprefix("error: ") if said else f"a worker ended with {code}")
        error.exit_code = code or 1
        return error

    def _new_words(self) -> list[str]:
        size = os.fstat(self._said.fileno()).st_size
        start = max(self._told, size - LAST_BYTES)
        found = os.pread(self._said.fileno(), size - start, start)
        if start > self._told:
            found = b"earlier messages are left out\n" + found.partition(b"\n")[2]
        self._told = size
        return [line.removeprefix(PREFIX) for line in found.decode("utf-8", errors="replace").splitlines() if line.strip()]


def answer_jobs(work: Callable[[Job], Answer]) -> NoReturn:
    """Do the jobs of the parent process until it has no more, then exit.

    Args:
        work: does a job, in the main thread. A `RegardError` becomes the answer {"error": message}; any other exception ends the process.
    """
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # printed text is not an answer
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        with suppress(OSError), os.fdopen(os.dup(0), "rb") as lines:
            for line in lines:
                jobs.put(line)
        jobs.put(b"")

    threading.Thread(target=read, name="regard-jobs", daemon=True).start()
    while line := jobs.get():
        try:
            answer = work(parse_json(line))
        except RegardError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer).encode() + b"\n")
    sys.exit()
