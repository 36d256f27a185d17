"""How a command ended, how long it took, and how much memory it had at most."""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Answer
from tests.trust.probe import waited

MEGABYTE = 2**20
# What a command may ask for beyond what the process has: a mistake must not take the machine's memory.
ROOM = 4 * 2**30


@dataclass
class Spent:
    """What a piece of work took.

    Attributes:
        seconds: by the clock, without those in which other processes had the processor.
        megabytes: by which the memory in use was larger at its peak than before.
    """

    seconds: float = 0.0
    megabytes: float = 0.0


def memory(field: str, process: int | str = "self") -> int:
    """Return a figure of a process in bytes: VmRSS now, VmHWM at its peak, VmSize the address space."""
    found = re.search(rf"{field}:\s+([0-9]+) kB", Path(f"/proc/{process}/status").read_text())
    assert found, field
    return int(found[1]) * 1024


@contextmanager
def spending() -> Iterator[Spent]:
    """Measure what happens inside, with little more address space than the process has."""
    spent = Spent()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + ROOM, limits[1]))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    before, start, others = memory("VmRSS"), time.perf_counter(), waited("self")
    try:
        yield spent
    finally:
        spent.seconds = time.perf_counter() - start - (waited("self") - others)
        spent.megabytes = (memory("VmHWM") - before) / MEGABYTE
        resource.setrlimit(resource.RLIMIT_AS, limits)


def attempt(call: Callable[..., Answer], *words: object, stdin: bytes = b"") -> Answer:
    """Call the command line; whatever leaves it other than by an exit code is code -1, and told."""
    try:
        return call(*words, stdin=stdin)
    except (Exception, pytest.fail.Exception) as error:
        return Answer(-1, b"", f"{type(error).__name__}: {error}")


def refused(answer: Answer, *, code: int = 2, about: str = "") -> str | None:
    """Return what is wrong with a refusal: it is one line of advice that names what it is about, an exit code, and no output."""
    if answer.code != code:
        return f"exit code {answer.code}, expected {code}: {answer.err[-300:]}"
    if answer.out:
        return f"wrote {answer.out[:80]!r} to standard output"
    if not answer.err.startswith("regard: error: ") or answer.err.count("\n") != 1 or not answer.err.endswith("\n"):
        return f"expected one line of advice, found {answer.err[:300]!r}"
    return None if about in answer.err else f"does not speak of {about!r}: {answer.err[:300]!r}"


def answered(answer: Answer, lines: int) -> str | None:
    """Return what is wrong with an answer to lines: exit code 0 and a line for each, however a reader tells lines apart."""
    if answer.code:
        return f"exit code {answer.code}: {answer.err[-300:]}"
    found = answer.out.count(b"\n"), len(answer.out.decode().splitlines())
    return None if found == (lines, lines) else f"{found} lines for {lines}"


def python(*words: object) -> list[str]:
    """Return the words that start the command line as a process."""
    return [sys.executable, "-m", "regard", *map(str, words)]


def environment() -> dict[str, str]:
    """Return what such a process runs under."""
    return {**os.environ, "REGARD_DEVICE": "cpu", "PYTHONUNBUFFERED": "1"}
