"""Training of any task: start or resume a run, encode its data, build its model, and run the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from regard import progress
from regard.config import RunConfig
from regard.cores import limit_products
from regard.data.batching import split_batch
from regard.data.vocabulary import Vocabulary
from regard.errors import ConfigError
from regard.ops import SequenceLoss, matmul_path
from regard.ops.kernels import native
from regard.tasks.fine_tuning import initial_state, resolve_start
from regard.tasks.predict import check_precision
from regard.tasks.run_folder import CONFIG, read_config, resolve_precision, start_or_resume
from regard.tasks.watched_examples import choose_examples, recorder
from regard.training import ProcessGroup, TrainingJob, TrainResult, automatic_micro_batches, processes, run_lock, train
from regard.training.memory_check import build_with_memory_check
from regard.training.micro_batch import resolve_micro_batches
from regard.training.signals import Stopped, StopSignal
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
        files: names of the run's files besides weights.
        folders: names of its folders that can be recreated.
        digests: sha256 of each data file, by its key in `data`.
        stop: polled by `evaluate`.
        corpus: the training examples: `plan`, `batch`.
        carried: see `regard.training.TrainingJob`.
        watched: description of the examples of `training.watch`.
        resolve: completes settings from a file or another library.
        check: refuses incompatible settings, before anything is read or written.
        model: the model, if `encode` has already built it.
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
        """Read or count the data; set `files` and `digests`."""

    def make(self) -> Mapping[str, bytes]:
        """Return the contents of a new run's own files, by name."""
        ...

    def encode(self) -> None:
        """Encode the data with the run's files; set `corpus`. A DataError or ConfigError removes a new run."""

    def network(self) -> nn.Module:
        """Build the model."""
        ...

    def build(self) -> nn.Module:
        """Return the built model."""
        torch.manual_seed(self.config.training.seed)
        return build_with_memory_check(self.network, self.config.training, self.world.device)

    def report(self, model: Any) -> None:
        """Report data and settings; the model size is reported later."""

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
    def sizes(self) -> tuple[int, int]:
        """Numbers of examples to train and to validate on: pairs, images, labelled examples, or lines."""
        ...

    @property
    def divisible(self) -> bool:
        """Whether the losses of a batch's parts add up to that of the batch."""
        return True

    @property
    def tokens_per_unit(self) -> float:
        """See `regard.training.TrainingJob`."""
        return 1.0

    @property
    def batch_tokens(self) -> int:
        """Approximate number of tokens per batch."""
        return self.config.training.batch_tokens

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return the validation metrics."""
        ...

    def lengths(self) -> Sequence[int]:
        """Return the number of tokens of each validation example, to choose the watched ones."""
        ...

    def record(self, model: Any, number: int) -> AttentionRecord | None:
        """Return the attention record of a validation example."""

    def finish(self, result: TrainResult) -> None:
        """Finish the run folder."""


def train_task(
    task: type[TaskTraining[Config]], config: Config, folder: str | Path, *, on_event: Callable[[str], None] | None = None
) -> TrainResult:
    """Train a model of a task, or resume the run in `folder`.

    Args:
        task: the task-specific part.
        config: the configuration.
        folder: the run folder.
        on_event: called before each event; see `regard.training.TrainingJob`.

    Returns:
        How training ended (`regard.training.TrainResult`).

    Raises:
        RegardError: bad data, settings that do not fit, a damaged run; see `regard.tasks.run_folder.prepare_run` and
            `regard.training.train`.
    """
    folder, config = Path(folder), task.resolve(config)
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{folder}: expected a name in UTF-8; safetensors opens no others") from None
    task.check(config)
    native.forced_path()
    matmul_path()  # wrong variables are told before anything is written
    with processes() as world, run_lock(folder, world):
        if (decoding := getattr(config, "decoding", None)) is not None and {*config.training.measured} - {"loss"}:
            check_precision(decoding.precision, world.device)  # validation decodes
        own = task(resolve_start(config, folder), folder, world)
        own.read()
        own.config = resolve_precision(own.config, folder, world.device)  # after reading, which may choose a recipe
        own.config = _with_micro_batches(own)
        if not _model(own).sequential:
            limit_products("64")
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
            split=own.split if own.divisible else None,
            tokens_per_unit=own.tokens_per_unit,
            batch_tokens=own.batch_tokens,
            sizes=dict(zip(("training_examples", "validation_examples"), own.sizes, strict=True)),
            record_attention=recorder(own.watched, choose_examples(own.lengths(), own.config.training.watch), own.record),
        )
        result = train(model, job, config=own.config.training, folder=folder, run_files=own.files)
        try:
            with own.stop:
                own.finish(result)
        except Stopped:
            return result._replace(reason="interrupted", interrupted=own.stop.agreed)
        return result


def _model(own: TaskTraining[Config]) -> Any:
    return own.config.model  # of one of the tasks' own types


def _with_micro_batches(own: TaskTraining[Config]) -> Config:
    config = own.config
    begun = read_config(own.folder, type(config)).training.micro_batches if (own.folder / CONFIG).exists() else None
    asked = config.training.model_copy(update={"micro_batches": config.training.micro_batches or begun})
    model = _model(own)

    def automatic(workers: int) -> int:
        if not own.divisible:
            return 1
        return automatic_micro_batches(own.batch_tokens, width=model.embed_dim, sequential=model.sequential, workers=workers)

    training = resolve_micro_batches(asked, own.world, automatic)
    return config.model_copy(update={"training": training})


def make_vocabulary(settings: Any, texts: Any, total: int, *, file: str) -> bytes:
    """Train a vocabulary with the settings of a run, from about `total` texts of a file; return its file content."""
    kind, size, least = settings.kind, settings.size, settings.min_count
    return Vocabulary.train(texts, kind=kind, size=size, min_count=least, total=total, files=[file]).to_bytes()


def report_left_out(counts: Mapping[str, int], what: str) -> None:
    """Report the number of skipped examples per reason, if any."""
    if left := ", ".join(f"{count} {reason}" for reason, count in counts.items() if count):
        progress.message(f"{what} left out: {left}")
