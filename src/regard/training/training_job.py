"""What a task hands to the loop, what it gets back, and where a run stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from regard.ops import SequenceLoss
from regard.training.signals import StopSignal

LOWER_IS_BETTER = {"loss", "perplexity"}
"""Of the metrics a run can be steered by, those of which less is better."""


class BatchIndices(Protocol):
    """A batch before it is read: which examples, and how many target tokens their loss is divided by."""

    @property
    def indices(self) -> Sequence[int]: ...

    @property
    def tokens(self) -> int: ...


def ignore_event(name: str) -> None:
    """Do nothing."""


def keep_initial_weights(state: Any) -> None:
    """Leave a new model as it was built."""


@dataclass(frozen=True)
class TrainingJob:
    """What is trained on, and how it is measured.

    Attributes:
        plan: epoch (from 0) -> its batches in order; a pure function, the same in every process.
        collate: planned batch -> anything `loss` takes; moved by `.to(device)` where it has one.
        loss: (model, batch) -> sums over the batch. It calls `model(...)`, not a method of it: the hooks that reduce gradients
            and gather sharded weights hang on that call.
        evaluate: model -> figures by name, `loss` at least, among them those named by `training.metric` and `training.eval_metrics`. It
            is called without gradients, in evaluation mode, in full precision, on every process over the same examples, with torch's
            random generator seeded.
        stop: polled by `evaluate` once a batch, so that a signal need not wait for its end.
        on_event: told what happens, before it does: "update 7" (its weights are not yet changed), "evaluate 7", "save 7",
            "save 7 model.safetensors" and the other files (each is written), "save 7 rename"; and "saved 7" after. With
            `record_attention` also "record 7".
        carried: what goes on from one batch to the next, on the device of the run, each (stream groups, ...): `loss` reads and overwrites,
            in place, item `i % stream_groups` for batch number i of an epoch. Saved with checkpoints. The length of every plan is a
            multiple of stream groups.
        begin: called with the `TrainingState` of a new run, on every process, before the first update; may put weights and the state of
            an optimizer into it.
        split: (planned batch, count) -> at most so many planned batches of its examples, together all of them, for `collate`; None where
            batches cannot be divided.
        micro_batches: into how many each batch is divided on a CPU unless `training.micro_batches` says.
        record_attention: (model, updates done) -> records as JSON values, always of the same examples. Called before the first update and
            after each evaluation, as `evaluate` is; `regard.training.attention_history` writes them. None records nothing.

    Example:
        >>> from regard.ops import SequenceLoss
        >>> job = TrainingJob(plan=lambda epoch: [], collate=list, loss=lambda m, batch: m(batch), evaluate=lambda _: {"loss": 0.0})
        >>> job.evaluate(nn.Identity())
        {'loss': 0.0}
    """

    plan: Callable[[int], Sequence[BatchIndices]]
    collate: Callable[[Any], Any]
    loss: Callable[[nn.Module, Any], SequenceLoss]
    evaluate: Callable[[nn.Module], dict[str, float]]
    stop: StopSignal = field(default_factory=StopSignal)
    on_event: Callable[[str], None] = ignore_event
    carried: Mapping[str, Tensor] = field(default_factory=dict)
    begin: Callable[[Any], None] = keep_initial_weights
    split: Callable[[Any, int], Sequence[Any]] | None = None
    micro_batches: int = 1
    record_attention: Callable[[nn.Module, int], Sequence[Mapping[str, Any]]] | None = None


class TrainResult(NamedTuple):
    """How a run ended.

    Attributes:
        step: updates done.
        reason: "epochs", "max_updates", "patience" or "interrupted".
        interrupted: number of the signal that ended it, or None.
        metrics: figures of the last evaluation in this process; empty if there was none.
        best_step: the evaluated step that was best by `training.metric`, or None.
        best_value: its figure, or None.
        weights_sha256: hash of the model as it stands after the last update.
        model: folder of the final weights; None if interrupted.
    """

    step: int
    reason: str
    interrupted: int | None
    metrics: dict[str, float]
    best_step: int | None
    best_value: float | None
    weights_sha256: str
    model: Path | None


class Progress(BaseModel):
    """Where a run stands: all there is to resume, beside tensors and the gradient scaler.

    Attributes:
        epoch: epochs finished.
        batch: batches of this epoch's plan that are used up, over all processes.
        batches: length of the plan this counts in.
        step: updates done.
        evaluated_step: step of the last evaluation, -1 before the first.
        best_step: evaluated step that was best so far.
        best_value: its metric.
        bad_evaluations: evaluations since the best.
        recent: the evaluated steps whose weights are averaged at the end.
        window: sums since the last training line of the log: loss, nll, tokens, correct, seconds.
        seconds: time spent so far, over all tries.

    Example:
        >>> Progress(step=7).epoch
        0
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    epoch: int = Field(default=0, ge=0)
    batch: int = Field(default=0, ge=0)
    batches: int = Field(default=0, ge=0)
    step: int = Field(default=0, ge=0)
    evaluated_step: int = -1
    best_step: int | None = None
    best_value: float | None = None
    bad_evaluations: int = Field(default=0, ge=0)
    recent: list[int] = []
    window: list[float] = Field(default=[0.0] * 5, min_length=5, max_length=5)
    seconds: float = 0.0
