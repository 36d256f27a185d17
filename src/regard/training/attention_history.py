"""The attention of a run on a few examples, from its first update to its last: one JSON line per example and evaluation."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from regard.errors import TrainingError
from regard.strict_json import parse_json
from regard.training.log import keep_lines
from regard.training.training_job import Progress

FILE = "attention.jsonl"


class AttentionHistory:
    """Append what a run attended to at each evaluation; nothing in it depends on the clock, so a resumed run writes the same bytes.

    Args:
        folder: the run folder, or None to write nothing: on a process other than the first, or where no example is watched.
        progress: where the run resumes. On entering, later lines of an earlier try are dropped: the run writes them again.

    Raises:
        TrainingError: the file cannot be written; names it and the cause.
    """

    def __init__(self, folder: Path | None, progress: Progress) -> None:
        self._path = None if folder is None else folder / FILE
        self._progress = progress
        self._file: BinaryIO | None = None

    def __enter__(self) -> AttentionHistory:
        if self._path is not None:
            try:
                keep_lines(self._path, lambda line: _holds(line, self._progress))
                self._file = self._path.open("ab")
            except OSError as error:
                raise TrainingError(f"{self._path}: cannot be written ({error.strerror})") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            with suppress(OSError):  # what could not be written has been told; closing would try once more
                self._file.close()

    def write(self, update: int, loss: float | None, records: Sequence[Mapping[str, Any]]) -> None:
        """Append the records of one evaluation, each with the point of the training it belongs to.

        Args:
            update: updates done.
            loss: of the validation data; None before training.
            records: JSON values, one per example.

        Raises:
            TrainingError: a line cannot be written; names the file and the cause.
        """
        if self._file is None:
            return
        point = {"update": update, "loss": loss if loss is not None and math.isfinite(loss) else None}
        try:
            for record in records:
                self._file.write(json.dumps({**record, "point": point}, allow_nan=False).encode("ascii") + b"\n")
            self._file.flush()
        except OSError as error:
            raise TrainingError(f"{self._path}: cannot be written ({error.strerror})") from error

    def to_disk(self) -> None:
        """Bring what was written to disk, so that the file never knows less than a checkpoint."""
        if self._file is None:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise TrainingError(f"{self._path}: cannot be written ({error.strerror})") from error


def _holds(line: bytes, progress: Progress) -> bool:
    try:
        update = int(parse_json(line)["point"]["update"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False
    # What was recorded before training is kept once there is a checkpoint; a new run records it again.
    return 0 <= update < progress.step or (0 < update == progress.step == progress.evaluated_step)
