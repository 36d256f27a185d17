"""Mask check of a run of any task."""

from __future__ import annotations

from pathlib import Path

from regard.mask_check import Report, check
from regard.mask_check.own import own_adapter, own_batch
from regard.tasks.captioning_prediction import Captioner
from regard.tasks.table import open_any


def check_run(folder: str | Path) -> Report:
    """Check the model of a run on random tokens: `regard.check`.

    Args:
        folder: a run of any task, finished or not.

    Raises:
        CheckpointError: the folder is not a run, or a file in it is missing, damaged or does not fit.

    Example:
        >>> check_run("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    opened = open_any(folder)
    model = opened.run.model
    adapter = own_adapter(model)
    if not isinstance(opened, Captioner) or adapter is None:
        return check(model)
    return check(model, own_batch(model, adapter, image_size=opened.run.config.image.size))
