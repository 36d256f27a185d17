"""Distribute jobs to workers: each job once, and again if its worker was lost."""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any, Protocol

from regard.errors import TrainingError
from regard.progress import message

Job = Mapping[str, Any]
Answer = dict[str, Any]
MAX_LOSSES = 5
"""Workers that one job may lose: then it fails. The work ends if as many are lost before they have a job, or as many jobs fail in a row."""
POLL = 0.2


class WorkerLost(Exception):
    """A worker's process or machine has died; another may take its job."""


class Worker(Protocol):
    """Interface of workers, which do one job at a time."""

    def ready(self, seconds: float) -> bool:
        """Wait up to `seconds` for the worker; return whether it is ready."""
        ...

    def call(self, job: Job) -> Answer:
        """Do a job; raise `WorkerLost` if the worker ends before answering."""
        ...

    def stop(self) -> None:
        """Ask the worker to stop its job in a resumable state. Another thread waits in `call`."""

    def close(self) -> None:
        """End the worker at once. Another thread may wait in `call`."""


class Pool:
    """Workers that share jobs.

    Args:
        start: returns the worker of a number, from 0; called again if one was lost.
        count: maximum number of workers.

    Attributes:
        running: the jobs of the workers.

    Example:
        >>> class Doubling:
        ...     def ready(self, seconds): return True
        ...     def call(self, job): return {"twice": 2 * job["number"]}
        ...     def stop(self): pass
        ...     def close(self): pass
        >>> answers = {}
        >>> Pool(lambda number: Doubling(), 2).run({"a": {"number": 3}, "b": {"number": 4}}, answers.__setitem__)
        >>> sorted(answers.items())
        [('a', {'twice': 6}), ('b', {'twice': 8})]
    """

    def __init__(self, start: Callable[[int], Worker], count: int) -> None:
        self._start, self.count = start, count
        self.running: dict[int, str] = {}
        self._workers: dict[int, Worker] = {}
        self._waiting: deque[str] = deque()
        self._changed = threading.Condition()
        self._ended = self._stopping = False

    def run(self, jobs: Mapping[str, Job], done: Callable[[str, Answer], None], tick: Callable[[], None] = lambda: None) -> None:
        """Do jobs, until `stop` is called.

        Args:
            jobs: jobs by name, started in this order.
            done: called in this thread with name and answer of each job, in order of completion. A job that lost `MAX_LOSSES` workers has
                the answer {"error": reason}.
            tick: called periodically in this thread.

        Raises:
            TrainingError: `MAX_LOSSES` jobs in a row lost all their workers, or as many workers were lost before they had a job.
            RegardError: a worker refuses to start.
        """
        self._waiting, losses, left, given_up = deque(jobs), Counter[str](), len(jobs), 0
        self._ended = self._stopping = False
        results: queue.Queue[tuple[str, Answer | BaseException]] = queue.Queue()
        threads = [
            threading.Thread(target=copy_context().run, args=(self._serve, number, jobs, results), daemon=True)
            for number in range(min(self.count, len(jobs)))
        ]
        for thread in threads:
            thread.start()
        try:
            while left and not (self._stopping and not self.running and results.empty()):
                tick()
                try:
                    name, result = results.get(timeout=POLL)
                except queue.Empty:
                    continue
                if isinstance(result, WorkerLost):
                    losses[name] += 1
                    if losses[name] >= MAX_LOSSES:
                        why, given_up = f"{MAX_LOSSES} workers were lost, the last one: {result}", given_up + 1
                        if not name or given_up == MAX_LOSSES:
                            raise TrainingError(f"{name or 'no worker begins'}: {why}")
                        left -= 1
                        done(name, {"error": why})
                    elif name and not self._stopping:
                        message(f"{name}: its worker was lost ({result}); another worker takes it", warning=True)
                        self._hand_out(name)
                elif isinstance(result, BaseException):
                    raise result
                else:
                    left -= 1
                    losses[""] = given_up = 0
                    for line in result.pop("said", []):
                        message(f"{name}: {line}", warning=True)
                    done(name, result)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            for worker in list(self._workers.values()):
                worker.close()
            for thread in threads:
                thread.join(timeout=30)

    def stop(self) -> None:
        """Start no more jobs, and ask the workers to stop theirs."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for worker in list(self._workers.values()):
            worker.stop()

    def _hand_out(self, name: str) -> None:
        with self._changed:
            self._waiting.appendleft(name)
            self._changed.notify()

    def _next(self, number: int) -> str | None:
        """Wait for a job; None at the end."""
        with self._changed:
            while not (self._waiting or self._ended or self._stopping):
                self._changed.wait()
            if self._ended or self._stopping:
                return None
            self.running[number] = self._waiting.popleft()
            return self.running[number]

    def _serve(self, number: int, jobs: Mapping[str, Job], results: queue.Queue[tuple[str, Answer | BaseException]]) -> None:
        try:
            while not self._ended and not self._stopping:
                name = ""
                try:
                    worker = self._workers[number] = self._workers.get(number) or self._start(number)
                    while not worker.ready(1.0):
                        if self._ended or self._stopping:
                            return
                    if not (name := self._next(number) or ""):
                        return
                    result: Answer | BaseException = worker.call(jobs[name])
                except WorkerLost as lost:
                    result = lost
                    if (gone := self._workers.pop(number, None)) is not None:
                        gone.close()
                # In this order, so that no job ever appears as neither running nor ended.
                results.put((name, result))
                self.running.pop(number, None)
        except BaseException as error:  # reported by the waiting thread
            results.put(("", error))
            self.running.pop(number, None)
        finally:
            if (worker := self._workers.pop(number, None)) is not None:
                worker.close()
