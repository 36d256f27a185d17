"""Stages of long operations, and their listeners."""

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
    """An event for a listener.

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
    """A stage of a long operation; created by `stage`.

    Attributes:
        name: name for users, such as "Reading train.en".
        total: number of units; None if unknown.
        unit: name of a unit, in the plural: "lines".
        done: units done so far.
        figures: other current values, such as a loss; often empty.
        parent: the enclosing stage, or None.
        failed: whether an exception ended the stage.
        at_least: seconds left at least, as its owner knows; usually 0.
        waiting: whether it waits for input, so that periodic lines would say nothing; set by the stage's owner.
        started: start time, `time.monotonic`.
        ended: end time; None before.
        told: time of the last written line, for listeners that write periodically; None before.

    Example:
        >>> with stage("Reading train.en", total=4, unit="lines") as reading:
        ...     reading.advance(3)
        ...     reading.name, reading.done, reading.total
        ('Reading train.en', 3, 4)
    """

    def __init__(self, name: str, *, total: int | None, unit: str, done: int) -> None:
        self.name, self.total, self.unit, self.done = name, total, unit, done
        self.figures, self.at_least = "", 0.0
        self.parent: Stage | None = None
        self.failed = self.waiting = False
        self.started = monotonic()
        self.ended: float | None = None
        self.told: float | None = None
        self._initial = done
        self._moved = self.started  # when `done` last changed
        self._gap = 0.0  # seconds between the last two changes
        self._lock = threading.Lock()
        self._due = self.started + INTERVAL

    def __enter__(self) -> Self:
        self.parent = _CURRENT.get()
        self.started = self._moved = monotonic()
        self._due = self.started + INTERVAL
        _CURRENT.set(self)
        try:
            _tell(Event("start", self))
        except BaseException:
            _CURRENT.set(self.parent)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.ended, self.failed = monotonic(), kind is not None
        # Not by a token: a generator with a stage may be closed in another context.
        if _CURRENT.get() is self:
            outer = self.parent
            while outer is not None and outer.ended is not None:  # a generator's, closed earlier
                outer = outer.parent
            _CURRENT.set(outer)
        _tell(Event("end", self))

    def advance(self, count: int = 1) -> None:
        """Count finished units; thread-safe.

        A call takes about 0.4 microseconds. Count units of less than 40 microseconds in blocks, or use `track`.
        """
        now = monotonic()
        with self._lock:
            if count:
                self.done += count
                self._gap, self._moved = now - self._moved, now
        if now >= self._due:
            self._due = now + INTERVAL
            _tell(Event("advance", self))

    def update(self, *, done: int | None = None, total: int | None = None, figures: str | None = None) -> None:
        """Set units done, total or other figures; None keeps a value, a negative total is refused."""
        _check_total(self.name, total)
        with self._lock:
            count = 0 if done is None else done - self.done
            self.total = self.total if total is None else total
            self.figures = self.figures if figures is None else figures
        self.advance(count)

    def track(self, items: Iterable[Item], *, block: int = 256) -> Iterator[Item]:
        """Iterate over items, counting each as one unit.

        Args:
            items: an iterable.
            block: items counted at a time; 1 for slow items.
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
        """Seconds since the start."""
        return (monotonic() if self.ended is None else self.ended) - self.started

    @property
    def rate(self) -> float | None:
        """Units per second since the start; None before the first.

        Until a stage ends, the time since its last unit counts only if it exceeds that of the unit before: the rate of slow units stays.
        """
        seconds, done = self.seconds, self.done - self._initial
        if self.ended is None:
            seconds -= min(self._idle, self._gap)
        return done / seconds if done > 0 and seconds > 0 else None

    @property
    def remaining(self) -> float | None:
        """Seconds left at the current rate; None if total or rate is unknown, or the last unit is late."""
        rate = self.rate
        if self.total is None or rate is None:
            return None
        if self.done >= self.total:
            return 0.0
        left = max((self.total - self.done) / rate - min(self._idle, self._gap), self.at_least)
        return left if left > 0 else None

    @property
    def _idle(self) -> float:
        return monotonic() - self._moved

    def __str__(self) -> str:
        parts = []
        if self.total is not None:
            share = f" ({self.done / self.total:.0%})" if self.total else ""
            parts.append(f"{self.done:,} of {self.total:,} {self.unit}{share}")
        elif self.done:
            parts.append(f"{self.done:,} {_one(self.unit) if self.done == 1 else self.unit}")
        # A narrow terminal cuts the end, so the time comes first and the figures last.
        if self.ended is not None:
            parts.append(f"took {clock(self.seconds)}")
        elif (remaining := self.remaining) is not None:
            parts.append(f"{clock(remaining)} left")
        elif self.seconds >= LOG_INTERVAL:
            parts.append(f"{clock(self.seconds)} so far")
        if (rate := self.rate) is not None:
            parts.append(speed(rate))
        if self.figures:
            parts.append(self.figures)
        return f"{self.name}: {', '.join(parts)}" if parts else self.name


def stage(name: str, *, total: int | None = None, unit: str = "items", done: int = 0) -> Stage:
    """Report progress of an operation.

    The listener receives start, end, and every `INTERVAL` seconds the progress. Stages may be nested. Worker processes (of
    `multiprocessing`, and all but the first of `torchrun`) report nothing: the waiting process counts their work.

    Args:
        name: name for users, such as "Reading train.en".
        total: number of units; None if unknown.
        unit: name of a unit, in the plural.
        done: units done in an earlier try.

    Returns:
        A context manager of a `Stage`.

    Raises:
        ValueError: the total is negative.

    Example:
        >>> def listener(event):
        ...     if event.kind == "end":
        ...         print(event.stage.name, event.stage.done, event.stage.unit)
        >>> with listening(listener), stage("Reading train.en", unit="lines") as reading:
        ...     reading.advance(2)
        Reading train.en 2 lines
    """
    _check_total(name, total)
    return Stage(name, total=total, unit=unit, done=done)


def track(items: Iterable[Item], name: str, *, total: int | None = None, unit: str = "items", block: int = 1) -> Iterator[Item]:
    """Iterate over items as a separate stage, counting each as one unit.

    Args:
        items: an iterable.
        name: as for `stage`.
        total: number of items; None: their length, if any.
        unit: as for `stage`.
        block: items counted at a time; more for items of less than 40 microseconds.

    Example:
        >>> [2 * number for number in track([1, 2, 3], "Doubling", unit="numbers")]
        [2, 4, 6]
    """
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # pyright: ignore[reportArgumentType] - it has been asked for
    with stage(name, total=total, unit=unit) as counted:
        yield from counted.track(items, block=block)


def message(text: str, *, warning: bool = False) -> None:
    """Send a message, such as what was read, or a warning.

    Example:
        >>> with listening(lambda event: print(event.text)):
        ...     message("2,000 training pairs")
        2,000 training pairs
    """
    _tell(Event("message", _CURRENT.get(), text, warning))


def set_listener(listener: Listener | None) -> Listener | None:
    """Set the listener; return the previous one.

    Args:
        listener: called with every `Event`, or None. The default is `log_events`.

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
    """Return the current listener.

    Example:
        >>> with listening(print):
        ...     current_listener() is print
        True
    """
    return _LISTENER


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Set the listener inside a `with` block; see `set_listener`.

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
    """Write events to the logger "regard": starts, ends and messages, and progress every `LOG_INTERVAL` seconds.

    The default listener. Level INFO is silent unless enabled (`logging.basicConfig(level=logging.INFO)`); warnings are shown.

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
        _LOGGER.info("%s", str(event.stage))  # format now: a handler may write it later, when the stage has advanced


def speed(rate: float) -> str:
    """Format units per second; slow ones as the seconds of one unit.

    Example:
        >>> speed(1234.5), speed(2.5), speed(0.05)
        ('1,234/s', '2.5/s', '20 s each')
    """
    if rate >= 1:
        return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
    return f"{1 / rate:,.0f} s each" if rate <= 0.1 else f"{1 / rate:.2g} s each"


def clock(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds.

    Example:
        >>> clock(3725)
        '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _one(unit: str) -> str:
    return unit[:-2] if unit.endswith(("ches", "shes", "xes", "sses")) else unit.removesuffix("s")


_LISTENER: Listener | None = log_events
_TELLING = threading.RLock()


def _check_total(name: str, total: int | None) -> None:
    if total is not None and total < 0:
        raise ValueError(f"stage {name!r}: total must be 0 or more, found {total}")


def _tell(event: Event) -> None:
    if _LISTENER is None or is_worker():
        return
    with _TELLING:
        if _LISTENER is not None:
            _LISTENER(event)


def is_worker() -> bool:
    """Return whether another process of the same program tells what is going on: the first of torchrun, or the parent.

    Example:
        >>> is_worker()
        False
    """
    multiprocessing = sys.modules.get("multiprocessing")  # loaded in every worker; do not import it otherwise
    return is_later_rank() or (multiprocessing is not None and multiprocessing.parent_process() is not None)


def is_later_rank() -> bool:
    """Return whether this is a process of torchrun, and not the first.

    Example:
        >>> is_later_rank()
        False
    """
    return os.environ.get("RANK", "0") != "0"


def _forget_threads() -> None:
    # A forked child has neither the thread that held the lock nor the one that draws.
    global _TELLING, _LISTENER
    _TELLING, _LISTENER = threading.RLock(), None


if hasattr(os, "register_at_fork"):  # Windows forks no process
    os.register_at_fork(after_in_child=_forget_threads)
