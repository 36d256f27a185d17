"""The final weights of a run, made of its checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from regard.config import TrainingConfig
from regard.errors import CheckpointError
from regard.training.checkpoint import EMA, MODEL, checkpoint_path
from regard.training.folder import file_sha256, read_state, verify_folder, write_folder
from regard.training.job import Progress
from regard.training.weights import average_files

log = logging.getLogger("regard")


def write_final(folder: Path, *, progress: Progress, config: TrainingConfig, run_files: Sequence[str]) -> int:
    """Write `folder/model`: the mean over the last `average` evaluations if there is more than one, else the best by `metric`.

    With `ema`, of the moving averages at those steps. `state.json` says which. What is there already is left alone if it is the same.

    Returns:
        0 (see `World.on_main`).

    Raises:
        CheckpointError: no checkpoint it could be made of is intact.
        TrainingError: the weights cannot be written.
    """
    best = progress.step if progress.best_step is None else progress.best_step
    name = MODEL if config.ema is None else EMA
    sources = []
    for step in progress.recent if config.average > 1 else [best]:
        path = checkpoint_path(folder, step)
        try:
            verify_folder(path, only=[name])
            sources.append(path / name)
        except CheckpointError as error:
            log.warning("%s; the final weights are made without it", error)
    if not sources:
        raise CheckpointError(f"{folder / 'model'}: cannot be made, no checkpoint to take it from is intact")
    state = {
        "weights": ("mean of " if config.average > 1 else "best by " + config.metric + ", ")
        + ("moving averages" if config.ema else "weights"),
        "metric": config.metric,
        "best_value": progress.best_value,
        "sources": {path.parent.name: file_sha256(path) for path in sources},
    }
    if _is_written(folder / "model", state):
        return 0
    sums = {file: file_sha256(folder / file) for file in run_files}
    write_folder(folder / "model", {MODEL: dict(average_files(sources))}, state=state, run_files=sums, on_event=lambda _: None)
    return 0


def _is_written(path: Path, state: dict[str, object]) -> bool:
    try:
        verify_folder(path)
        return read_state(path) == state
    except CheckpointError:
        return False
