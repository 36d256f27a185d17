"""Server metrics in the text format of Prometheus."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LINES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Counter:
    r"""Count events by their labels.

    Example:
        >>> counter = Counter("regard_requests_total", "Requests.", ("status",))
        >>> counter.add("200")
        >>> print("\n".join(counter.render()))
        # HELP regard_requests_total Requests.
        # TYPE regard_requests_total counter
        regard_requests_total{status="200"} 1
    """

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, *labels: str, amount: float = 1) -> None:
        """Add to the count of these labels, given in the order of their names."""
        self._values[labels] = self._values.get(labels, 0) + amount

    def render(self) -> list[str]:
        """Return the lines of its values."""
        rows = [f"{self._name}{_labels(self._labels, labels)} {_number(value)}" for labels, value in sorted(self._values.items())]
        return [f"# HELP {self._name} {self._text}", f"# TYPE {self._name} counter", *rows]


class Histogram:
    r"""Count measurements by size.

    Example:
        >>> histogram = Histogram("seconds", "Time.", (0.1, 1.0))
        >>> histogram.observe(0.5)
        >>> print("\n".join(histogram.render()[2:]))
        seconds_bucket{le="0.1"} 0
        seconds_bucket{le="1"} 1
        seconds_bucket{le="+Inf"} 1
        seconds_sum 0.5
        seconds_count 1
    """

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], labels: tuple[str, ...] = ()) -> None:
        self._name, self._text, self._bounds, self._labels = name, text, bounds, labels
        self._counts: dict[tuple[str, ...], list[int]] = {} if labels else {(): [0] * (len(bounds) + 1)}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Count a measurement under these labels."""
        self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))[bisect_left(self._bounds, value)] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + value

    def render(self) -> list[str]:
        """Return the lines of its values."""
        lines = [f"# HELP {self._name} {self._text}", f"# TYPE {self._name} histogram"]
        for labels, counts in sorted(self._counts.items()):
            total = 0
            for bound, count in zip((*self._bounds, None), counts, strict=True):
                total += count
                edge = "+Inf" if bound is None else _number(bound)
                lines.append(f"{self._name}_bucket{_labels((*self._labels, 'le'), (*labels, edge))} {total}")
            own = _labels(self._labels, labels)
            lines += [f"{self._name}_sum{own} {_number(self._sums.get(labels, 0.0))}", f"{self._name}_count{own} {total}"]
        return lines


class Metrics:
    """All server metrics.

    Example:
        >>> "regard_lines_total 0" in Metrics().render({"regard_queue_lines": ("Waiting.", lambda: 3)})
        True
    """

    def __init__(self) -> None:
        self.requests = Counter("regard_requests_total", "Requests by path, method and status.", ("path", "method", "status"))
        self.seconds = Histogram("regard_request_seconds", "Time from a request to its answer, by path.", SECONDS, ("path",))
        self.lines = Counter("regard_lines_total", "Lines the model has worked on.")
        self.batches = Histogram("regard_batch_lines", "Lines per batch.", LINES)
        self.busy = Counter("regard_model_seconds_total", "Time the model has worked.")
        self._started = time.time()

    def render(self, gauges: dict[str, tuple[str, Callable[[], float]]]) -> str:
        """Return everything as text.

        Args:
            gauges: description and function of the current value, by name.
        """
        lines = []
        for family in (self.requests, self.seconds, self.lines, self.batches, self.busy):
            lines += family.render()
        own = {
            **gauges,
            "process_start_time_seconds": ("Start of the server, in seconds since 1970.", lambda: self._started),
            "process_resident_memory_bytes": ("Memory in use.", _resident),
            "process_open_fds": ("Open files and sockets.", _descriptors),
        }
        for name, (text, read) in own.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {_number(read())}"]
        return "\n".join(lines) + "\n"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _resident() -> float:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0


def _descriptors() -> float:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
