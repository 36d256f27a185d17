"""Stopping on request: a signal sets a flag, the loop saves and leaves."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from regard.training.distributed import gather


class Stopped(Exception):
    """Raised by `StopSignal.poll` so that an evaluation can be left; the loop catches it."""


class StopSignal:
    """Remember SIGTERM, SIGINT or SIGUSR1 (a batch system's warning) while active; a second SIGINT ends the process at once.

    Handlers are installed on entering the context (in the main thread only, where Python allows it) and the earlier
    ones come back on leaving it. With several processes a signal that reached one of them counts for all.

    Attributes:
        received: number of the signal this process received, 0 for none.
        agreed: number of the signal all processes know of; control flow depends on this one alone.

    Example:
        >>> with StopSignal() as stop:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     try:
        ...         stop.poll()
        ...     except Stopped:
        ...         print(stop.agreed)
        15
    """

    def __init__(self) -> None:
        self.received = 0
        self.agreed = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        self.received = self.agreed = 0
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def poll(self) -> None:
        """Leave the evaluation if a stop was asked for.

        Call it once a batch inside `evaluate`. With several processes it is a collective call: every process calls it
        equally often, which holds by itself because all evaluate the same examples.

        Raises:
            Stopped: some process was asked to stop.
        """
        self.agreed = max(row[0] for row in gather([self.received]))
        if self.agreed:
            raise Stopped

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if number == signal.SIGINT:
            # The default action ends the process even while it waits inside a C++ call, where no Python handler runs.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
