"""Attention of a run on a few examples over training: one JSON line per example and evaluation."""

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
    """Append a run's attention at each evaluation; independent of the clock, so a resumed run writes the same bytes.

    Args:
        folder: the run folder, or None to write nothing: on processes other than the first, or without examples.
        progress: where the run resumes. Entering drops later lines of an earlier try.

    Raises:
        WriteError: the file cannot be written.
    """

    def __init__(self, folder: Path | None, progress: Progress) -> None:
        super().__init__(None if folder is None else folder / FILE, lambda line: _holds(line, progress))

    def write(self, update: int, loss: float | None, records: Sequence[Mapping[str, Any]]) -> None:
        """Append the records of one evaluation with update and loss.

        Args:
            update: updates done.
            loss: of the validation data; None before training.
            records: JSON values, one per example.

        Raises:
            WriteError: a line cannot be written.
        """
        point = {"update": update, "loss": loss if loss is not None and math.isfinite(loss) else None}
        self.append(json.dumps({**record, "point": point}, allow_nan=False) for record in records)


def _holds(line: bytes, progress: Progress) -> bool:
    try:
        update = int(parse_json(line)["point"]["update"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False
    # Keep the record from before training if there is a checkpoint; a new run records it again.
    return 0 <= update < progress.step or (0 < update == progress.step == progress.evaluated_step)
