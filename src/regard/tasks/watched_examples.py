"""Record the attention on a few validation examples during training (`training.watch`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from regard.config import TrainingConfig
from regard.cores import torch_threads
from regard.errors import ConfigError
from regard.viewer import AttentionRecord, Grid

Recorder = Callable[[nn.Module, int], list[dict[str, Any]]]
"""(model, updates done) -> records as JSON values: the `record_attention` of a `TrainingJob`."""

# Preferred number of tokens: long enough to show something, short enough to draw.
LENGTHS = (5, 24)
MAX_WEIGHTS = 32_768
"""Max number of weights per record, which is written at every evaluation. Further maps are omitted and counted in `meta`."""


def check_watch(training: TrainingConfig, attends: bool, why: str) -> None:
    """Check that the model has attention to record.

    Args:
        training: the settings of the run.
        attends: whether its model has an attention that can be recorded.
        why: the setting that disables attention.

    Raises:
        ConfigError: the model has no attention.

    Example:
        >>> check_watch(TrainingConfig(watch=3), False, "model.attention null")
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: training.watch: this model has no attention to record (model.attention null); leave it at 0
    """
    if training.watch and not attends:
        raise ConfigError(f"training.watch: this model has no attention to record ({why}); leave it at 0")


def choose_examples(lengths: Sequence[int], count: int) -> list[int]:
    """Return the indices of the examples to watch: the first of 5 to 24 tokens, else of the closest lengths; none is empty.

    Args:
        lengths: tokens of each validation example; of its longer side.
        count: max number.

    Example:
        >>> choose_examples([100, 7, 0, 30, 9], 3)
        [1, 3, 4]
    """
    least, most = LENGTHS
    usable = [number for number, length in enumerate(lengths) if length > 0]
    usable.sort(key=lambda number: max(least - lengths[number], lengths[number] - most, 0))  # stable: of equal ones the first
    return sorted(usable[:count])


def recorder(what: str, numbers: Sequence[int], record: Callable[[nn.Module, int], AttentionRecord | None]) -> Recorder | None:
    """Return a function that records the attention of a model on these examples, or None without examples.

    Its result depends on the weights only: it computes in one thread, and contains neither the run's folder nor the time. Images are in the
    records of update 0 only.

    Args:
        what: kind of example, for the title: "validation sentence".
        numbers: indices of the examples.
        record: (model, index) -> attention record.
    """

    def record_all(model: nn.Module, updates: int) -> list[dict[str, Any]]:
        found = []
        # The number of threads affects rounding, and a resumed run may have another.
        with torch_threads(1), torch.inference_mode():
            for number in numbers:
                own = record(model, number)
                if own is not None:
                    own = replace(own if updates == 0 else _without_images(own), title=f"{what} {number + 1}", model="")
                    found.append(own.to_json())
        return found

    return record_all if numbers else None


def _without_images(record: AttentionRecord) -> AttentionRecord:
    items = {name: replace(own, image=None) if isinstance(own, Grid) else own for name, own in record.items.items()}
    return replace(record, items=items)
