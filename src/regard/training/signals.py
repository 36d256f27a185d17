"""Stop on signals: a flag makes the loop save and exit."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from regard.training.distributed import gather


class Stopped(Exception):
    """Raised by `StopSignal.poll` to leave an evaluation; the loop catches it."""


class StopSignal:
    """Record SIGTERM, SIGINT or SIGUSR1 (a batch system's warning) while active; a second SIGINT ends the process at once.

    The context installs handlers (main thread only) and restores the earlier ones on exit. A signal to one of several processes counts for
    all.

    Attributes:
        received: number of the signal this process received, 0 for none.
        agreed: number of the signal known to all processes; the only one that control flow uses.

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
        """Leave the evaluation if a stop was requested.

        Call it once per batch inside `evaluate`. It is collective: every process must call it equally often, as when all evaluate the same
        examples.

        Raises:
            Stopped: some process received a signal.
        """
        self.agreed = max(row[0] for row in gather([self.received]))
        if self.agreed:
            raise Stopped

    def poll_alone(self) -> None:
        """Leave a computation of this process only; not collective.

        Raises:
            Stopped: this process received a signal.
        """
        if self.received:
            self.agreed = self.received
            raise Stopped

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if number == signal.SIGINT:
            # The default action ends the process even inside a C++ call, where Python handlers do not run.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
