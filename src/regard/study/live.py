"""Live progress of a study's runs, from their logs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import NamedTuple, Self

from regard.jobs import Pool
from regard.progress import Stage, message, stage
from regard.strict_json import parse_json

INTERVAL = 1.0
TAIL = 4096


class LiveTable:
    """Show a stage for the study and one per active run.

    Args:
        runs: folder of the runs.
        pool: the workers.
        total: runs in all.
        done: finished runs.
    """

    def __init__(self, runs: Path, pool: Pool, *, total: int, done: int) -> None:
        self._runs, self._pool, self._due = runs, pool, 0.0
        self._study = stage("Training runs", total=total, unit="runs", done=done)
        self._rows: dict[str, tuple[Stage, Callable[[], object]]] = {}

    def __enter__(self) -> Self:
        self._study.__enter__()
        self._within = copy_context()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for _, leave in self._rows.values():
            leave()
        self._study.__exit__(kind, error, trace)

    def advance(self, name: str) -> None:
        """Count a finished run."""
        self._study.advance()
        message(f"{name}: done, {self._study.done} of {self._study.total}")

    def look(self) -> None:
        """Update the active runs; read the logs at most once a second."""
        running = dict.fromkeys(self._pool.running.copy().values())
        if monotonic() < self._due and running.keys() == self._rows.keys():
            return
        self._due = monotonic() + INTERVAL
        for name in [name for name in self._rows if name not in running]:
            self._rows.pop(name)[1]()
        for name in running:
            newest = _newest(self._runs / name / "log.jsonl")
            title = f"Run {name}{', trained: measuring it' if newest.trained else ''}"
            if name in self._rows and self._rows[name][0].name != title:
                row, leave = self._rows.pop(name)
                row.update(done=newest.step)
                leave()
            if name not in self._rows:
                # In a separate context: each is part of the study, not of the previous run.
                row = stage(title) if newest.trained else stage(title, unit="updates", total=newest.total, done=newest.step or 0)
                context = self._within.copy()
                context.run(row.__enter__)
                self._rows[name] = row, lambda row=row, context=context: context.run(row.__exit__, None, None, None)
            if not newest.trained:
                self._rows[name][0].update(done=newest.step, total=newest.total, figures=newest.figures)
        self._study.at_least = max((row.remaining or 0.0 for row, _ in self._rows.values()), default=0.0)


class _Newest(NamedTuple):
    # The last update in a training's log, the number of all, the loss, and whether it has ended.
    step: int | None = None
    total: int | None = None
    figures: str | None = None
    trained: bool = False


def _newest(log: Path) -> _Newest:
    with suppress(OSError), open(log, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
        for line in reversed(stream.read().splitlines()):
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                event = parse_json(line)
                loss, total = event.get("loss"), event.get("total")
                shown = f"loss {loss:.3f}" if isinstance(loss, float) else None
                return _Newest(int(event["step"]), total if isinstance(total, int) and total > 0 else None, shown, event["event"] == "done")
    return _Newest()
