"""The runs of a study while they are trained: a row each, by what their logs say."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from regard.jobs import Pool
from regard.progress import Stage, message, stage
from regard.strict_json import parse_json

INTERVAL = 1.0
TAIL = 4096


class LiveTable:
    """Show a stage for the study, and one for each run at work.

    Args:
        runs: folder of the runs.
        pool: who trains them.
        total: runs in all.
        done: those that are done.
    """

    def __init__(self, runs: Path, pool: Pool, *, total: int, done: int) -> None:
        self._runs, self._pool, self._due = runs, pool, 0.0
        self._study = stage("Training runs", total=total, unit="runs", done=done)
        self._rows: dict[str, tuple[Stage, ExitStack]] = {}

    def __enter__(self) -> Self:
        self._study.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for _, leaving in self._rows.values():
            leaving.close()
        self._study.__exit__(kind, error, trace)

    def advance(self, name: str) -> None:
        """Count a run that has been done."""
        self._study.advance()
        message(f"{name}: done, {self._study.done} of {self._study.total}")

    def look(self) -> None:
        """Look at what is trained now; into the logs at most once a second."""
        running = dict.fromkeys(self._pool.running.copy().values())
        if monotonic() < self._due and running.keys() == self._rows.keys():
            return
        self._due = monotonic() + INTERVAL
        for name in [name for name in self._rows if name not in running]:
            self._rows.pop(name)[1].close()
        for name in running:
            if name not in self._rows:
                leaving = ExitStack()
                self._rows[name] = leaving.enter_context(stage(f"Run {name}", unit="updates")), leaving
            done, figures = _newest(self._runs / name / "log.jsonl")
            self._rows[name][0].update(done=done, figures=figures)


def _newest(log: Path) -> tuple[int | None, str | None]:
    """Return the update that a training's log has come to, and its loss."""
    with suppress(OSError), open(log, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
        for line in reversed(stream.read().splitlines()):
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                event = parse_json(line)
                loss = event.get("loss")
                return int(event["step"]), f"loss {loss:.3f}" if isinstance(loss, float) else None
    return None, None
