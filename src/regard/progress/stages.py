"""Stages of long work, and who is told about them."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeVar

Item = TypeVar("Item")

INTERVAL = 0.25
"""Seconds between two reports of how far a stage has come."""
LOG_INTERVAL = 10.0
"""Seconds between two such lines in a log."""
_LOGGER = logging.getLogger("regard")
_CURRENT: ContextVar[Stage | None] = ContextVar("regard_stage", default=None)


class Event(NamedTuple):
    """What a listener is told.

    Attributes:
        kind: "start", "advance" (at most every `INTERVAL` seconds per stage) or "end" of a stage, or "message".
        stage: the stage; None with a message outside all stages.
        text: the message; empty otherwise.
        warning: whether the message is a warning.

    Example:
        >>> Event("message", None, "2,000 training pairs").warning
        False
    """

    kind: Literal["start", "advance", "end", "message"]
    stage: Stage | None
    text: str = ""
    warning: bool = False


Listener = Callable[[Event], None]
"""Called with every event: by the thread that does the work, by one thread at a time. An exception it raises stops the work."""


class Stage:
    """A piece of work that takes time; made by `stage`.

    Attributes:
        name: what is done, as a user would say it: "Reading train.en".
        total: how many units there are; None where nobody knows.
        unit: what is counted, in the plural: "lines".
        done: units done so far.
        figures: what else there is to say at the moment, for example a loss; often empty.
        parent: the stage this one is a part of, or None.
        failed: whether the stage was left by an exception.
        started: when it began, by the clock `time.monotonic`.
        ended: when it ended; None before.
        told: when a listener last wrote a line of it; None before. For listeners that write now and then.

    Example:
        >>> with stage("Reading train.en", total=4, unit="lines") as reading:
        ...     reading.advance(3)
        ...     reading.name, reading.done, reading.total
        ('Reading train.en', 3, 4)
    """

    def __init__(self, name: str, *, total: int | None, unit: str, done: int) -> None:
        self.name, self.total, self.unit, self.done = name, total, unit, done
        self.figures = ""
        self.parent: Stage | None = None
        self.failed = False
        self.started = monotonic()
        self.ended: float | None = None
        self.told: float | None = None
        self._initial = done
        self._lock = threading.Lock()
        self._due = self.started + INTERVAL

    def __enter__(self) -> Self:
        self.parent = _CURRENT.get()
        self.started = monotonic()
        self._due = self.started + INTERVAL
        _CURRENT.set(self)
        _tell(Event("start", self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.ended, self.failed = monotonic(), kind is not None
        # Not by a token: a generator that holds a stage may be closed in another context.
        if _CURRENT.get() is self:
            _CURRENT.set(self.parent)
        _tell(Event("end", self))

    def advance(self, count: int = 1) -> None:
        """Count units that were done; may be called from several threads.

        A call takes some 0.4 microseconds. Where a unit takes less than 40, count a block of them at a time, or use `track`.
        """
        with self._lock:
            self.done += count
        if (now := monotonic()) >= self._due:
            self._due = now + INTERVAL
            _tell(Event("advance", self))

    def update(self, *, done: int | None = None, total: int | None = None, figures: str | None = None) -> None:
        """Set what has changed: units done, the total, other figures; None leaves as it is."""
        with self._lock:
            self.done = self.done if done is None else done
            self.total = self.total if total is None else total
            self.figures = self.figures if figures is None else figures
        self.advance(0)

    def track(self, items: Iterable[Item], *, block: int = 256) -> Iterator[Item]:
        """Return the same items, each counted as one unit.

        Args:
            items: anything that can be iterated over.
            block: items counted at a time; 1 where an item takes long.
        """
        count = 0
        try:
            for item in items:
                yield item
                count += 1
                if count == block:
                    self.advance(block)
                    count = 0
        finally:
            self.advance(count)

    @property
    def seconds(self) -> float:
        """How long the stage has lasted."""
        return (monotonic() if self.ended is None else self.ended) - self.started

    @property
    def rate(self) -> float | None:
        """Units per second since the start; None while none is done."""
        seconds, done = self.seconds, self.done - self._initial
        return done / seconds if done > 0 and seconds > 0 else None

    @property
    def remaining(self) -> float | None:
        """Seconds left at the rate so far; None where the total or the rate is not known."""
        rate = self.rate
        return None if self.total is None or rate is None else max(0, self.total - self.done) / rate

    def __str__(self) -> str:
        parts = []
        if self.total is not None:
            share = f" ({self.done / self.total:.0%})" if self.total else ""
            parts.append(f"{self.done:,} of {self.total:,} {self.unit}{share}")
        elif self.done:
            parts.append(f"{self.done:,} {self.unit}")
        if (rate := self.rate) is not None:
            parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
        if self.figures:
            parts.append(self.figures)
        if self.ended is not None:
            parts.append(f"took {clock(self.seconds)}")
        elif (remaining := self.remaining) is not None:
            parts.append(f"{clock(remaining)} left")
        elif not parts and self.seconds >= LOG_INTERVAL:
            parts.append(f"{clock(self.seconds)} so far")
        return f"{self.name}: {', '.join(parts)}" if parts else self.name


def stage(name: str, *, total: int | None = None, unit: str = "items", done: int = 0) -> Stage:
    """Say what is being done, and how far it has come.

    The listener is told of the start, the end, and every `INTERVAL` seconds of how far it is. Stages may be nested. Worker processes (of
    `multiprocessing`, and all but the first of `torchrun`) tell nothing: what they do is counted by the process that waits for them.

    Args:
        name: what is done, as a user would say it: "Reading train.en".
        total: how many units there are; None where nobody knows.
        unit: what is counted, in the plural.
        done: units that were done before, in an earlier try.

    Returns:
        A context manager that gives a `Stage`.

    Example:
        >>> def listener(event):
        ...     if event.kind == "end":
        ...         print(event.stage.name, event.stage.done, event.stage.unit)
        >>> with listening(listener), stage("Reading train.en", unit="lines") as reading:
        ...     reading.advance(2)
        Reading train.en 2 lines
    """
    return Stage(name, total=total, unit=unit, done=done)


def track(items: Iterable[Item], name: str, *, total: int | None = None, unit: str = "items", block: int = 1) -> Iterator[Item]:
    """Return the same items, as a stage of its own in which each counts as one unit.

    Args:
        items: anything that can be iterated over.
        name: see `stage`, and so for total and unit; without a total, the length of the items where they have one.
        total: how many there are.
        unit: what is counted.
        block: items counted at a time; more where an item takes less than 40 microseconds.

    Example:
        >>> [2 * number for number in track([1, 2, 3], "Doubling", unit="numbers")]
        [2, 4, 6]
    """
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # pyright: ignore[reportArgumentType] - it has been asked for
    with stage(name, total=total, unit=unit) as counted:
        yield from counted.track(items, block=block)


def message(text: str, *, warning: bool = False) -> None:
    """Tell something worth knowing, for example what was read; or a warning.

    Example:
        >>> with listening(lambda event: print(event.text)):
        ...     message("2,000 training pairs")
        2,000 training pairs
    """
    _tell(Event("message", _CURRENT.get(), text, warning))


def set_listener(listener: Listener | None) -> Listener | None:
    """Choose who is told from now on; returns who was before.

    Args:
        listener: called with every `Event`; None for nobody. At the start it is `log_events`.

    Example:
        >>> before = set_listener(None)
        >>> message("nobody hears this")
        >>> set_listener(before) is None
        True
    """
    global _LISTENER
    with _TELLING:
        before, _LISTENER = _LISTENER, listener
    return before


def current_listener() -> Listener | None:
    """Return who is told at the moment.

    Example:
        >>> with listening(print):
        ...     current_listener() is print
        True
    """
    return _LISTENER


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Choose who is told inside a `with` block; see `set_listener`.

    Example:
        >>> with listening(print):
        ...     message("a message")
        Event(kind='message', stage=None, text='a message', warning=False)
    """
    before = set_listener(listener)
    try:
        yield
    finally:
        set_listener(before)


def log_events(event: Event) -> None:
    """Write events to the logger "regard": starts, ends and messages, and every `LOG_INTERVAL` seconds how far a stage is.

    This is the listener from the start. As everywhere in Python, level INFO is silent until the program asks for it
    (`logging.basicConfig(level=logging.INFO)`); warnings are shown.

    Example:
        >>> log_events(Event("message", None, "not shown, unless the level is INFO"))
    """
    if event.kind == "message":
        _LOGGER.log(logging.WARNING if event.warning else logging.INFO, "%s", event.text)
    elif event.stage is not None and _LOGGER.isEnabledFor(logging.INFO):
        now = monotonic()
        if event.kind == "advance" and event.stage.told is not None and now - event.stage.told < LOG_INTERVAL:
            return
        event.stage.told = now
        _LOGGER.info("%s", str(event.stage))  # now: a handler may write it later, when the stage has gone on


def clock(seconds: float) -> str:
    """Return a length of time as hours, minutes and seconds.

    Example:
        >>> clock(3725)
        '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


_LISTENER: Listener | None = log_events
_TELLING = threading.RLock()


def _tell(event: Event) -> None:
    if _LISTENER is None or _is_worker():
        return
    with _TELLING:
        if _LISTENER is not None:
            _LISTENER(event)


def _is_worker() -> bool:
    multiprocessing = sys.modules.get("multiprocessing")  # a worker has it; who has not need not load it to know
    return os.environ.get("RANK", "0") != "0" or (multiprocessing is not None and multiprocessing.parent_process() is not None)


def _forget_threads() -> None:
    # In a forked child the thread that held the lock, and the one that draws, are gone.
    global _TELLING, _LISTENER
    _TELLING, _LISTENER = threading.RLock(), None


os.register_at_fork(after_in_child=_forget_threads)
