"""The attention of a run on a few examples, from its first update to its last: one JSON line per example and evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.strict_json import parse_json
from regard.training.log import EventFile
from regard.training.training_job import Progress

FILE = "attention.jsonl"


class AttentionHistory(EventFile):
    """Append what a run attended to at each evaluation; nothing in it depends on the clock, so a resumed run writes the same bytes.

    Args:
        folder: the run folder, or None to write nothing: on a process other than the first, or where no example is watched.
        progress: where the run resumes. On entering, later lines of an earlier try are dropped: the run writes them again.

    Raises:
        TrainingError: the file cannot be written; names it and the cause.
    """

    def __init__(self, folder: Path | None, progress: Progress) -> None:
        super().__init__(None if folder is None else folder / FILE, lambda line: _holds(line, progress))

    def write(self, update: int, loss: float | None, records: Sequence[Mapping[str, Any]]) -> None:
        """Append the records of one evaluation, each with the point of the training it belongs to.

        Args:
            update: updates done.
            loss: of the validation data; None before training.
            records: JSON values, one per example.

        Raises:
            TrainingError: a line cannot be written; names the file and the cause.
        """
        point = {"update": update, "loss": loss if loss is not None and math.isfinite(loss) else None}
        self.append(json.dumps({**record, "point": point}, allow_nan=False) for record in records)


def _holds(line: bytes, progress: Progress) -> bool:
    try:
        update = int(parse_json(line)["point"]["update"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False
    # What was recorded before training is kept once there is a checkpoint; a new run records it again.
    return 0 <= update < progress.step or (0 < update == progress.step == progress.evaluated_step)
