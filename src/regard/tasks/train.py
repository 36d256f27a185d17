"""Training of any task: start or resume a run, encode its data, build its model, and run the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from regard import progress
from regard.config import RunConfig
from regard.data.batching import split_batch
from regard.data.vocabulary import Vocabulary
from regard.ops import SequenceLoss
from regard.tasks.fine_tuning import initial_state, resolve_start
from regard.tasks.run_folder import resolve_precision, start_or_resume
from regard.tasks.watched_examples import choose_examples, recorder
from regard.training import ProcessGroup, TrainingJob, TrainResult, automatic_micro_batches, processes, run_lock, train
from regard.training.memory_check import build_with_memory_check
from regard.training.signals import StopSignal
from regard.training.training_job import ignore_event
from regard.viewer import AttentionRecord

Config = TypeVar("Config", bound=RunConfig)


class TaskTraining(Protocol[Config]):
    """The task-specific part of a training. Methods are called in this order.

    Args:
        config: the configuration; `read` may complete it.
        folder: the run folder.
        world: the processes.

    Attributes:
        files: the names of the files, besides weights, that make up a run.
        folders: those of folders in it that can be made again.
        digests: sha256 of each data file, by the key of `data` that names it.
        stop: to be polled by `evaluate`.
        corpus: the examples to train on: `plan`, `batch`.
        carried: see `regard.training.TrainingJob`.
        watched: what the examples are that `training.watch` records.
        resolve: completes settings by what a file or another library says.
        check: refuses settings that do not fit together, before anything is read or written.
        model: what is trained, where `encode` has built it already.
    """

    config: Config
    folder: Path
    world: ProcessGroup
    stop: StopSignal
    files: tuple[str, ...]
    folders: tuple[str, ...] = ()
    digests: Mapping[str, str]
    corpus: Any
    carried: Mapping[str, Tensor] = {}
    watched: ClassVar[str]
    check: ClassVar[Callable[[Any], None]]
    resolve: ClassVar[Callable[[Any], Any]] = staticmethod(lambda config: config)
    model: Any = None

    def __init__(self, config: Config, folder: Path, world: ProcessGroup) -> None:
        self.config, self.folder, self.world, self.stop = config, folder, world, StopSignal()

    def read(self) -> None:
        """Read the data, or count it; set `files` and `digests`."""

    def make(self) -> Mapping[str, bytes]:
        """Return the contents of a new run's own files, by name."""
        ...

    def encode(self) -> None:
        """Encode the data by the files of the run; set `corpus`. A DataError or ConfigError takes a new run back."""

    def network(self) -> nn.Module:
        """Build the model."""
        ...

    def build(self) -> nn.Module:
        """Build the model that is trained."""
        torch.manual_seed(self.config.training.seed)
        return build_with_memory_check(self.network, self.config.training, self.world.device)

    def report(self, model: Any) -> None:
        """Report what is trained on what; the size of the model is told afterwards."""

    def plan(self, epoch: int) -> Sequence[Any]:
        """Return the batches of an epoch."""
        return self.corpus.plan(batch_tokens=self.config.training.batch_tokens, seed=self.config.training.seed, epoch=epoch)

    def loss(self, model: nn.Module, batch: Any) -> SequenceLoss:
        """Return the sums over a batch."""
        return model(*batch[:5], label_smoothing=self.config.training.label_smoothing)

    def split(self, planned: Any, count: int) -> Sequence[Any]:
        """Divide a planned batch."""
        return split_batch(planned, count)

    @property
    def batch_tokens(self) -> int:
        """About how many tokens a batch has."""
        return self.config.training.batch_tokens

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return the figures on the validation data."""
        ...

    def lengths(self) -> Sequence[int]:
        """Return the tokens of each validation example, for the choice of those to watch."""
        ...

    def record(self, model: Any, number: int) -> AttentionRecord | None:
        """Return what a model attends to in a validation example."""

    def finish(self, result: TrainResult) -> None:
        """Finish the run folder."""


def train_task(
    task: type[TaskTraining[Config]], config: Config, folder: str | Path, *, on_event: Callable[[str], None] | None = None
) -> TrainResult:
    """Train a model of a task, or resume the run in `folder`.

    Args:
        task: what is the task's own.
        config: what to train on what.
        folder: the run folder.
        on_event: told what happens, before it does; see `regard.training.TrainingJob`.

    Returns:
        How training ended (`regard.training.TrainResult`).

    Raises:
        RegardError: bad data, settings that do not fit, a damaged run; see `regard.tasks.run_folder.prepare_run` and
            `regard.training.train`.
    """
    folder, config = Path(folder), task.resolve(config)
    task.check(config)
    with processes() as world, run_lock(folder, world):
        own = task(resolve_start(resolve_precision(config, folder, world.device), folder), folder, world)
        own.read()
        with start_or_resume(world, folder, own.config, own.digests, own.make, (*own.files, *own.folders)):
            own.encode()
        model = own.build() if own.model is None else own.model
        own.report(model)
        progress.message(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
        job = TrainingJob(
            plan=own.plan,
            collate=own.corpus.batch,
            loss=own.loss,
            evaluate=own.evaluate,
            stop=own.stop,
            on_event=on_event or ignore_event,
            carried=own.carried,
            begin=initial_state(own.config),
            split=own.split,
            micro_batches=automatic_micro_batches(own.batch_tokens),
            record_attention=recorder(own.watched, choose_examples(own.lengths(), own.config.training.watch), own.record),
        )
        result = train(model, job, config=own.config.training, folder=folder, run_files=own.files)
        own.finish(result)
        return result


def make_vocabulary(settings: Any, texts: Any) -> bytes:
    """Train a vocabulary by the settings of a run: the content of its file."""
    return Vocabulary.train(texts, kind=settings.kind, size=settings.size, min_count=settings.min_count).to_bytes()


def report_left_out(counts: Mapping[str, int], what: str) -> None:
    """Report how many examples cannot be trained on, and why; nothing where there are none."""
    if left := ", ".join(f"{count} {reason}" for reason, count in counts.items() if count):
        progress.message(f"{what} left out: {left}")
