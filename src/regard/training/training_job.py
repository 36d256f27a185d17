"""Interface between tasks and the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from regard.ops import SequenceLoss
from regard.training.signals import StopSignal


class BatchIndices(Protocol):
    """A planned batch: example indices, and the target tokens that divide their loss."""

    @property
    def indices(self) -> Sequence[int]: ...

    @property
    def tokens(self) -> int: ...


def ignore_event(name: str) -> None:
    """Do nothing."""


def keep_initial_weights(state: Any) -> None:
    """Keep the initial weights of a new model."""


@dataclass(frozen=True)
class TrainingJob:
    """Data, loss and evaluation of a training.

    Attributes:
        plan: epoch (from 0) -> its batches in order; a pure function, the same in every process.
        collate: planned batch -> input of `loss`; moved by `.to(device)` if it has that method.
        loss: (model, batch) -> sums over the batch. It must call `model(...)`, not a method, to run the hooks that reduce gradients and
            gather sharded weights.
        evaluate: model -> figures by name, `loss` at least, among them those named by `training.metric` and `training.eval_metrics`. Called
            without gradients, in evaluation mode, in full precision, on every process over the same examples, with torch seeded.
        stop: polled by `evaluate` once per batch, so that signals do not wait for its end.
        on_event: called before each event: "update 7" (weights not yet changed), "evaluate 7", "save 7", "save 7 model.safetensors" and
            other files (each is written), "save 7 rename"; and "saved 7" after. With `record_attention` also "record 7".
        carried: state carried across batches, on the run's device, each (stream groups, ...): `loss` updates item `i % stream_groups` in
            place for batch number i of an epoch. Saved with checkpoints. The length of every plan is a multiple of the stream groups.
        begin: called with the `TrainingState` of a new run, on every process, before the first update; may load weights and optimizer
            state.
        split: (planned batch, count) -> at most `count` planned batches that partition its examples; None if batches cannot be divided.
        record_attention: (model, updates done) -> JSON records of the same examples each time. Called like `evaluate`, before the first
            update and after each evaluation; `regard.training.attention_history` writes them. None records nothing.
        tokens_per_unit: mean tokens of what a batch's `tokens`, by which its loss is divided, count: of examples their length.
        batch_tokens: padded tokens of a batch, about; None: unknown.
        sizes: numbers for the last line of the log, such as that of the training examples.

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
    record_attention: Callable[[nn.Module, int], Sequence[Mapping[str, Any]]] | None = None
    tokens_per_unit: float = 1.0
    batch_tokens: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)


class TrainResult(NamedTuple):
    """Result of a run.

    Attributes:
        step: updates done.
        reason: "epochs", "max_updates", "patience" or "interrupted".
        interrupted: number of the signal that ended it, or None.
        metrics: figures of the last evaluation in this process; empty if there was none.
        best_step: the evaluated step that was best by `training.metric`, or None.
        best_value: its figure, or None.
        weights_sha256: hash of the model after the last update.
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
    """Progress of a run: everything needed to resume besides tensors and the gradient scaler.

    Attributes:
        epoch: epochs finished.
        batch: used batches of this epoch's plan, over all processes.
        batches: length of this epoch's plan.
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
