"""What the tests in this folder run under: one thread, a fixed seed; the environment is set by the conftest above."""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import settings

from regard import cli, progress

torch.set_num_threads(1)
# Until all tests are collected: what collecting allocates stays, and looking through it again and again takes seconds.
gc.disable()

# The same examples on every machine, and no time limit on one of them: a shared machine may pause at any time.
settings.register_profile("regard", deadline=None, derandomize=True)
settings.load_profile("regard")


def pytest_collection_finish() -> None:
    gc.freeze()  # nor is it looked through later, whenever all objects are
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else libraries tell of leaks when the process ends


@pytest.fixture(autouse=True)
def _seeded() -> None:
    # torch.manual_seed would also note, with a stack trace, the seed of each device that is absent.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Refuse a test that leaves torch with several threads: later ones would compute other sums, and their forks wait for ever."""
    yield
    left = torch.get_num_threads()
    torch.set_num_threads(1)
    assert left == 1, f"torch has {left} threads after the test"


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """Return the messages told while the test runs."""
    found: list[str] = []
    with progress.listening(lambda event: found.append(event.text) if event.kind == "message" else None):
        yield found


class Answer(NamedTuple):
    """What the command line gave back: exit code, standard output and standard error."""

    code: int
    out: bytes
    err: str


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Return the command line in this process."""

    def run(*words: object, stdin: bytes = b"") -> Answer:
        out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
        monkeypatch.setattr("sys.argv", ["regard", *map(str, words)])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        with pytest.raises(SystemExit) as left:
            cli.main()
        out.flush()
        return Answer(int(left.value.code or 0), out.buffer.getvalue(), err.getvalue())  # type: ignore[attr-defined]

    return run


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of real data sets; asking for it without REGARD_DATA is a failure, never a silent skip."""
    folder = Path(os.environ.get("REGARD_DATA", ""))
    if not os.environ.get("REGARD_DATA") or not folder.is_dir():
        pytest.fail(f"tests marked `data` need REGARD_DATA to name the folder of data sets; it is {str(folder)!r}")
    return folder
