"""Dynamic batching: lines that arrive while the model is busy form the next batch.

Everything but the model runs in the event loop's thread, so no locks are needed.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from regard.serve.http_errors import HTTPError, ModelFailed
from regard.serve.limits import Limits
from regard.serve.metrics import Metrics
from regard.serve.request_log import describe_error

MAX_RETRY_SECONDS = 60
# Weight of the latest batch in the estimated time per line.
NEWS = 0.2
# Rounds of the event loop before a refusal: more than it takes to drop the lines of clients that have left.
ROUNDS = 16


class BatchWork(Protocol):
    """Work of a model on independent lines (or images)."""

    def width(self, settings: Any, item: Any) -> int:
        """Return the width of a line in characters."""
        ...

    def compute(self, settings: Any, items: Sequence[Any]) -> list[str | HTTPError]:
        """Return one JSON text or refusal per line; called in the model's thread with lines of equal settings."""
        ...


class BatchKey(NamedTuple):
    """Key of lines that may share a batch."""

    work: BatchWork
    settings: Hashable


class _Line(NamedTuple):
    task: BatchKey
    item: Any
    answer: asyncio.Future[str]


class Batcher:
    """Batch the lines of all requests in one thread, in order of arrival.

    Args:
        limits: limits of batch and queue.
        metrics: batch counters.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.stopping = False
        self._limits = limits
        self._metrics = metrics
        self._numbers = itertools.count()
        self._waiting: dict[int, _Line] = {}
        self._answers: set[asyncio.Future[str]] = set()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="regard-model")
        self._latest: Future[list[str | HTTPError | ModelFailed]] | None = None
        self._seconds_a_line = 0.0

    @property
    def waiting(self) -> int:
        """Number of lines that wait for the model."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether the model is busy."""
        return self._latest is not None and not self._latest.done()

    async def submit(self, task: BatchKey, lines: Sequence[Any]) -> list[str]:
        """Return the model's result for each line; cancelling drops waiting lines.

        Raises:
            HTTPError: the model's own reason; 429, the queue is full; 503, the server is stopping.
            ModelFailed: the model failed.
        """
        for _ in range(ROUNDS):
            if self.stopping or self._has_room(lines):
                break
            await asyncio.sleep(0)
        else:
            raise HTTPError(429, "too many lines are waiting; try again later", {"Retry-After": str(self._retry_after())})
        if self.stopping:
            raise HTTPError(503, "the server is stopping", {"Retry-After": "5"})
        loop = asyncio.get_running_loop()
        own = {next(self._numbers): _Line(task, item, loop.create_future()) for item in lines}
        answers = [line.answer for line in own.values()]
        self._waiting.update(own)
        self._answers.update(answers)
        self._wake.set()
        try:
            return await asyncio.gather(*answers)
        finally:
            self._answers.difference_update(answers)
            for number in own:
                self._waiting.pop(number, None)

    async def run(self) -> None:
        """Process the queue until cancelled."""
        while True:
            batch = self._take()
            if not batch:
                self._wake.clear()
                await self._wake.wait()
                continue
            started = time.monotonic()
            self._latest = self._thread.submit(compute, batch[0].task, [line.item for line in batch])
            for line, result in zip(batch, await asyncio.wrap_future(self._latest), strict=True):
                if line.answer.done():  # the request has given up
                    continue
                if isinstance(result, Exception):
                    line.answer.set_exception(result)
                else:
                    line.answer.set_result(result)
            self._count(len(batch), time.monotonic() - started)

    def abandon(self) -> None:
        """Refuse all waiting and running lines: the shutdown time is over."""
        self.stopping = True
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(HTTPError(503, "the server has stopped", {"Retry-After": "5"}))

    def close(self) -> None:
        """Accept no more work; the current batch continues."""
        self._thread.shutdown(wait=False)

    def _has_room(self, lines: Sequence[Any]) -> bool:
        return len(self._waiting) + len(lines) <= self._limits.queue

    def _take(self) -> list[_Line]:
        batch: list[_Line] = []
        numbers, longest = [], 0
        for number, line in self._waiting.items():
            if batch and line.task != batch[0].task:
                continue
            wider = max(longest, line.task.work.width(line.task.settings, line.item), 1)
            if batch and wider * (len(batch) + 1) > self._limits.batch_characters:
                continue
            longest = wider
            batch.append(line)
            numbers.append(number)
            if len(batch) == self._limits.batch_size:
                break
        for number in numbers:
            del self._waiting[number]
        return batch

    def _count(self, lines: int, seconds: float) -> None:
        self._metrics.lines.add(amount=lines)
        self._metrics.batches.observe(lines)
        self._metrics.busy.add(amount=seconds)
        latest = seconds / lines
        self._seconds_a_line += (latest - self._seconds_a_line) * (NEWS if self._seconds_a_line else 1)

    def _retry_after(self) -> int:
        return min(MAX_RETRY_SECONDS, max(1, math.ceil(len(self._waiting) * self._seconds_a_line)))


def compute(task: BatchKey, lines: Sequence[Any]) -> list[str | HTTPError | ModelFailed]:
    """Return the task's result, refusal or failure for each line."""
    try:
        found = task.work.compute(task.settings, lines)
        if len(found) != len(lines):
            raise ValueError(f"{len(found)} answers for {len(lines)} lines")
        return [*found]
    except BaseException as error:  # also a panic of a compiled library: it must not end the thread
        if len(lines) == 1:
            # Keep the message only: the traceback would keep tensors alive.
            return [ModelFailed(describe_error(error))]
    # Retry line by line: one line must not fail the others, and the batch may have been too large for memory.
    return [result for line in lines for result in compute(task, [line])]
