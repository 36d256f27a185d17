"""What the folder of a finished run says of its training."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from safetensors import safe_open

from regard.errors import TrainingError
from regard.strict_json import parse_json
from regard.training.atomic_folder import read_state

# Entries of a weight file that are not parameters.
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
SIZES = ("training_examples", "validation_examples")
"""Names of the numbers of examples in logs and results."""


def was_done(run: Path) -> bool:
    """Return whether the log of a run says that it is done."""
    # Training drops a line that was cut off, as by a full disk.
    try:
        lines = (run / "log.jsonl").read_bytes().splitlines()
    except OSError:
        return False
    return any(line.startswith(b'{"event": "done"') for line in lines)


def read_events(run: Path) -> list[dict[str, Any]]:
    """Return the events in the log of a run, each with its name and its number of updates.

    Raises:
        TrainingError: the log is damaged.
    """
    path = run / "log.jsonl"
    try:
        events = [parse_json(line) for line in path.read_bytes().splitlines()]
        return [{**event, "event": str(event["event"]), "step": int(event["step"])} for event in events]
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise TrainingError(f"{path}: damaged log; remove {run} to train it again") from error


def training_figures(run: Path) -> dict[str, Any]:
    """Return what the log and the weights of a finished run say of its training, for its result.

    Returns:
        `updates`; `curve`, its evaluations; `trained_on`; medians `tokens_per_second` and `seconds_per_update`; `seconds`, with those
        of evaluations; `epochs`, with a fraction; `training_examples` and `validation_examples`; and `scored`, the weights that are
        scored: their `updates` (several: their mean), the validation `metric` and its `value`. Without what the run does not say.

    Raises:
        TrainingError: the log is damaged.
        CheckpointError: the weights are.
    """
    events = read_events(run)
    trained = [event for event in events if event["event"] == "train"]
    curve = [{key: event[key] for key in event if key not in ("event", "best")} for event in events if event["event"] == "evaluate"]
    updates = max((event["step"] for event in events), default=0)
    ended = next((event for event in reversed(events) if event["event"] == "done"), {})
    figures: dict[str, Any] = {"updates": updates, "curve": curve, "trained_on": ended.get("trained_on"), "scored": _scored(run)}
    for name in ("tokens_per_second", "seconds_per_update"):
        if found := [event[name] for event in trained if name in event]:
            figures[name] = statistics.median(found)
    return figures | {name: ended[name] for name in ("seconds", "epochs", *SIZES) if name in ended}


def _scored(run: Path) -> dict[str, Any]:
    state = read_state(run / "model")
    steps = state["steps"]
    return {"updates": steps, "metric": state["metric"], "value": state["mean_value" if len(steps) > 1 else "best_value"]}


def count_parameters(run: Path) -> int:
    """Return the number of parameters of a finished run."""
    with safe_open(run / "model" / "model.safetensors", framework="numpy") as file:
        names = [name for name in file.keys() if not name.endswith(BUFFERS)]  # noqa: SIM118 - no mapping
        return sum(math.prod(file.get_slice(name).get_shape()) for name in names)
