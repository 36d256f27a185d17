"""What every test runs under: one thread, a fixed seed, no display, a terminal of known width."""

from __future__ import annotations

import gc
import io
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

# Before torch and matplotlib are imported, and inherited by the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["NO_COLOR"] = "1"
os.environ["COLUMNS"] = "200"
# How long something takes decides whether there is a word of it on standard error; tests of progress ask for it.
os.environ["REGARD_QUIET"] = "1"
# As the command line does when it starts; see `regard.cli.main`.
os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = os.environ["LRU_CACHE_CAPACITY"] = "512"

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
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    # torch.manual_seed would also note, with a stack trace, the seed of each device that is absent.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


# What decides how code under test behaves; libraries keep caches of their own in other variables.
OURS = ("REGARD_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMP_", "COLUMNS", "NO_COLOR", "LANG", "LC_", "PATH", "PYTHON")


@pytest.fixture(autouse=True)
def _leaves_the_process_as_it_was() -> Iterator[None]:
    environment, listener = dict(os.environ), progress.current_listener()
    yield
    changed = {name for name in {*environment, *os.environ} if environment.get(name) != os.environ.get(name)}
    changed = {name for name in changed if name.startswith(OURS)}
    assert not changed, f"the test has changed the environment of the tests after it: {sorted(changed)}"
    assert progress.current_listener() is listener, "the test has changed who is told of progress in the tests after it"
    logger = logging.getLogger("regard")
    assert (logger.level, logger.disabled, logger.propagate, logging.root.manager.disable) == (0, False, True, 0), (
        "the test has changed who hears warnings"
    )


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
