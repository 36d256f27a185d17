"""The training loop.

Before every micro-batch torch is seeded from (seed, epoch, position of the batch in the plan, number of the micro-batch). So dropout is the
same in any process, on process 1 of 2 under `torchrun` or as the second of two accumulated batches; a resumed run needs no generator states
(nor the same number of processes); and random numbers of evaluation do not affect training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard import progress as reporting
from regard.config import TrainingConfig
from regard.config.base import LOWER_IS_BETTER
from regard.errors import CheckpointError, ConfigError, DataError, TrainingError, counted, out_of_memory
from regard.ops import SequenceLoss
from regard.training.attention_history import AttentionHistory
from regard.training.checkpoint import (
    FinalWeights,
    TrainingState,
    checkpoint_path,
    export_model,
    load_checkpoint,
    mean_applied,
    prepare_folder,
    prune_checkpoints,
    save_checkpoint,
    source_files,
)
from regard.training.distributed import (
    ProcessGroup,
    describe_device,
    full_parameters,
    full_tensor,
    processes,
    sync_gradients,
    wrap_distributed,
)
from regard.training.lock import run_lock
from regard.training.log import RunLog
from regard.training.micro_batch import backward, choose_workers, describe_workers, micro_batches_of, seed_torch
from regard.training.nan_guard import FigurePosition, NanGuard
from regard.training.optimizer import MovingAverage, build_optimizer, learning_rate, length_notes
from regard.training.precision import INITIAL_SCALE, LEAST_SCALE, fastest_precision, overflow
from regard.training.signals import Stopped
from regard.training.stream_state import check_stream_groups
from regard.training.training_job import BatchIndices, Progress, TrainingJob, TrainResult
from regard.training.weights import weights_sha256
from regard.training.workers import MicroBatchSums, UpdateRecord, WorkerLost, Workers


def train(model: nn.Module, job: TrainingJob, *, config: TrainingConfig, folder: str | Path, run_files: Sequence[str] = ()) -> TrainResult:
    """Train a model, resuming from the latest checkpoint in `folder`, and write the final weights to `folder/model`.

    An update uses the next `processes * accumulation` batches of the plan (fewer at an epoch's end) and divides their summed loss by their
    tokens. A run that is killed and restarted ends with the same weights as an uninterrupted one.

    Args:
        model: float32 weights; trained in place. Ends with the weights of the last update, not the final ones.
        job: data, loss and evaluation.
        config: all fields but batch_tokens and label_smoothing, which the task uses. `precision` "auto" means `fastest_precision`;
            `micro_batches` None: 1.
        folder: the run folder, on a file system shared by all processes.
        run_files: names of its files (configuration, vocabularies) that must not change between tries.

    Returns:
        The result; `interrupted` is set after SIGTERM, SIGINT or SIGUSR1: everything is saved, and the caller should exit with 128 +
        signal.

    Raises:
        ConfigError: the evaluation lacks a figure named by `metric` or `eval_metrics`, or REGARD_DEVICE is not available.
        CheckpointError: no checkpoint is intact, or they do not fit this model, data or configuration.
        TrainingError: a loss or gradient is not finite (the last checkpoint is good), memory ran out, a checkpoint cannot be saved,
            compilation failed, another process was lost, or another training uses the folder.
        DataError: an epoch has no batches.

    Example:
        >>> import tempfile, types
        >>> from regard.ops import SequenceLoss
        >>> def loss(model, batch):
        ...     error = (model(batch) - 2 * batch).square().sum()
        ...     return SequenceLoss(error, error.detach(), torch.tensor(4), torch.tensor(0))
        >>> batches = [types.SimpleNamespace(indices=[0, 1, 2, 3], tokens=4)]
        >>> data = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
        >>> def evaluate(model):
        ...     return {"loss": loss(model, data).nll.item() / 4}
        >>> job = TrainingJob(plan=lambda epoch: batches, collate=lambda planned: data[planned.indices], loss=loss, evaluate=evaluate)
        >>> config = TrainingConfig(epochs=100, learning_rate=0.1, evaluate_every=100)
        >>> result = train(nn.Linear(1, 1), job, config=config, folder=tempfile.mkdtemp())
        >>> result.step, result.reason, result.metrics["loss"] < 0.1
        (100, 'epochs', True)
    """
    with processes() as world, run_lock(folder, world), job.stop:
        if config.precision == "auto":
            config = config.model_copy(update={"precision": fastest_precision(world.device)})
        return _Loop(model, job, config, Path(folder), tuple(run_files), world).run()


class _Loop:
    """One call of `train`: `run` is the loop, followed by its steps in order."""

    def __init__(
        self, model: nn.Module, job: TrainingJob, config: TrainingConfig, folder: Path, run_files: tuple[str, ...], world: ProcessGroup
    ) -> None:
        self.job, self.config, self.folder, self.run_files, self.world = job, config, folder, run_files, world
        start = world.on_main(lambda: prepare_folder(folder))
        self.model = model.to(world.device)
        self.wrapped = wrap_distributed(model, world, config.distributed)
        # Only training is compiled: evaluation decodes through other methods, and would recompile for every length.
        self.trained: nn.Module = cast(nn.Module, torch.compile(self.wrapped)) if config.compile else self.wrapped
        self.optimizer = build_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(world.device.type, INITIAL_SCALE, enabled=config.precision == "fp16")
        self.average = MovingAverage(model, config.ema_decay) if config.ema_decay else None
        check_stream_groups(job.carried, world)
        self.state = TrainingState(model, self.optimizer, config.optimizer, self.scaler, Progress(), self.average, job.carried)
        if start:
            load_checkpoint(self.state, checkpoint_path(folder, start), run_files=run_files, verified=world.main)
        else:
            job.begin(self.state)
        self.progress = self.state.progress
        self.plan: Sequence[BatchIndices] = ()
        self.planned_epoch = -1
        self._check_plan_is_the_same()
        self.group_size = world.size * config.gradient_accumulation_steps
        self.total = min(config.max_updates or math.inf, config.epochs * math.ceil(len(self._plan(0)) / self.group_size))
        self.saved = (self.progress.step, self.progress.evaluated_step)
        # Saved only because of a signal; an uninterrupted run does not have it.
        self.passing = start if start and not self._save_asked() else None
        self.metrics: dict[str, float] = {}
        self.watch = NanGuard(world)
        # Sums of this process since the last log line: loss, nll, tokens, correct. Process 0 continues those of a checkpoint (summed over
        # processes).
        self.sums = torch.tensor(self.progress.window[:4], dtype=torch.float64).to(world.device) * int(world.main)
        self.window_seconds = self.progress.window[4]
        self.mark = time.perf_counter()
        self.micro_batches = micro_batches_of(job, config)
        count, why = choose_workers(config, self.micro_batches, world, tokens=job.batch_tokens)
        self.how = describe_workers(count, why)
        sizes = {"micro_batches": self.micro_batches, "batches": config.gradient_accumulation_steps, "count": count}
        self.workers = Workers(model, self._compute, carried=job.carried, **sizes) if count else None
        self.log = RunLog(folder if world.main else None, self.progress, total=int(self.total), tensorboard=config.tensorboard)
        self.history = AttentionHistory(folder if world.main and job.record_attention else None, self.progress)

    def run(self) -> TrainResult:
        """Evaluate if due, save if due, leave if done, update, in this order."""
        self.model.train()
        with self.workers or nullcontext(), self.log, self.history:
            epoch = math.ceil(len(self._plan(self.progress.epoch)) / self.group_size)
            reporting.message(f"{counted(epoch, 'update', form=',')} per epoch, {self.total:,} in all on {self.world.device}")
            reporting.message(self.how)
            for note in length_notes(self.config, int(self.total)):
                reporting.message(note)
            if self.progress.step:
                self.log.write("resume", self.progress.step, {"epoch": self.progress.epoch + 1, "batch": self.progress.batch})
            try:
                if not self.progress.step:
                    self._record_attention(loss=None)
                while True:
                    if self._evaluation_due():
                        self._evaluate()
                    if self._save_due():
                        self._save()
                    if reason := "interrupted" if self.job.stop.agreed else self._done():
                        return self._finish(reason)
                    self._update()
            except WorkerLost as error:
                raise self._ended_by(str(error), "start the same command again to resume") from error
            except Exception as error:
                if not out_of_memory(error):
                    raise
                advice = (
                    "a smaller training.batch_tokens with a larger training.gradient_accumulation_steps, or a smaller model, needs less"
                )
                raise self._ended_by("not enough memory", advice) from error

    def _done(self) -> str:
        config, progress = self.config, self.progress
        if config.patience is not None and progress.bad_evaluations >= config.patience:
            return "patience"
        if config.max_updates is not None and progress.step >= config.max_updates:
            return "max_updates"
        return "epochs" if progress.epoch >= config.epochs else ""

    def _evaluation_due(self) -> bool:
        progress, every = self.progress, self.config.evaluate_every
        if self.job.stop.agreed or progress.step == 0 or progress.evaluated_step == progress.step:
            return False
        return bool(self._done()) or (progress.batch == 0 if every is None else progress.step % every == 0)

    def _save_due(self) -> bool:
        progress = self.progress
        if progress.step == 0 or self.saved == (progress.step, progress.evaluated_step):
            return False
        return self._save_asked() or bool(self.job.stop.agreed)

    def _save_asked(self) -> bool:
        progress, every = self.progress, self.config.save_every
        evaluated = progress.evaluated_step == progress.step
        # The final weights come from the best checkpoint, or the last `average_checkpoints` evaluations.
        needed = evaluated and (progress.best_step == progress.step or self.config.average_checkpoints > 1)
        asked = evaluated if every is None else progress.step % every == 0
        return asked or needed or bool(self._done())

    def _evaluate(self) -> None:
        progress, config = self.progress, self.config
        self._agree()
        if self.job.stop.agreed:
            return
        self.job.on_event(f"evaluate {progress.step}")
        metrics = self._measure(self._averaged())
        if metrics is None:
            return
        self.metrics = metrics
        value = self.metrics[config.metric]
        if self._is_better(value, progress.best_value):
            progress.best_value, progress.best_step, progress.bad_evaluations = value, progress.step, 0
        else:
            progress.bad_evaluations += 1
        progress.evaluated_step = progress.step
        progress.recent = [*progress.recent, progress.step][-config.average_checkpoints :]
        self.log.write("evaluate", progress.step, {**self.metrics, "best": progress.best_step == progress.step})
        self._record_attention(self.metrics["loss"])
        self.log.skip(self._pause())
        self._agree()

    def _measure(self, weights: AbstractContextManager[None]) -> dict[str, float] | None:
        # None if the run was stopped meanwhile.
        config = self.config
        try:
            with self._evaluation_mode("evaluation", weights), reporting.stage("Evaluating"):
                metrics = self.job.evaluate(self.model)
        except Stopped:
            return None
        for setting, names in (("metric", {"loss", config.metric}), ("eval_metrics", set(config.eval_metrics))):
            if missing := sorted(names - metrics.keys()):
                raise ConfigError(f"training.{setting}: the evaluation gives {', '.join(sorted(metrics))}, but not {', '.join(missing)}")
        names = sorted(metrics)
        return dict(zip(names, self.world.share([float(metrics[name]) for name in names]), strict=True))

    def _is_better(self, value: float, best: float | None) -> bool:
        return math.isfinite(value) and (best is None or (value < best if self.config.metric in LOWER_IS_BETTER else value > best))

    def _choose_final(self) -> FinalWeights:
        # The mean at the end of a short training may be worse than its parts: evaluate it, too.
        progress, config = self.progress, self.config
        best = FinalWeights([progress.step if progress.best_step is None else progress.best_step], progress.best_value, None)
        if config.average_checkpoints == 1 or len(progress.recent) < 2:
            if progress.best_value is not None:
                reporting.message(f"final weights: those of step {best.steps[0]} ({config.metric} {progress.best_value:.4f}, the best)")
            return best
        found = self._measure(mean_applied(self.model, source_files(self.folder, progress.recent, config)))
        if found is None:
            return best
        value = found[config.metric]
        usable = value if math.isfinite(value) else None
        best, mean = best._replace(mean_value=usable), FinalWeights(list(progress.recent), progress.best_value, usable)
        self.log.write("average", progress.step, {**found, "of": progress.recent})
        chosen = best if progress.best_value is not None and self._is_better(progress.best_value, usable) else mean
        count, single = len(progress.recent), "none" if progress.best_value is None else f"{progress.best_value:.4f}"
        what = "that mean" if chosen is mean else f"those of step {best.steps[0]}"
        reporting.message(
            f"final weights: {what} ({config.metric} of the mean over {counted(count, 'evaluation')} {value:.4f}, best single {single})"
        )
        return chosen

    def _averaged(self) -> AbstractContextManager[None]:
        return self.average.applied(self.model) if self.average else nullcontext()

    @contextmanager
    def _evaluation_mode(self, purpose: str, weights: AbstractContextManager[None]) -> Iterator[None]:
        # Full precision, so that the figures agree with `evaluate`.
        seed_torch(self.world.device, self.config.seed, purpose, self.progress.step)
        self.model.eval()
        threads = self.workers.threads_for_evaluation() if self.workers else nullcontext()
        try:
            with torch.no_grad(), weights, full_parameters(self.model), threads:
                yield
        finally:
            self.model.train()

    def _record_attention(self, loss: float | None) -> None:
        if self.job.record_attention is None:
            return
        self.job.on_event(f"record {self.progress.step}")
        # In every process, because a sharded model communicates. Only the first one has a file.
        with self._evaluation_mode("attention", self._averaged()):
            records = self.job.record_attention(self.model, self.progress.step)
        self.history.write(self.progress.step, loss, records)

    def _save(self) -> None:
        progress = self.progress
        self._agree()
        self.job.on_event(f"save {progress.step}")
        progress.window = [*self.world.sum(self.sums).tolist(), self.window_seconds]
        # Log before saving: an extra log line is cut at resume, a missing one would stay missing.
        self.log.write("save", progress.step, {"folder": checkpoint_path(self.folder, progress.step).name})
        self.log.to_disk()
        self.history.to_disk()
        with self.log.telling(progress.step):
            save_checkpoint(self.state, self.folder, world=self.world, run_files=self.run_files, on_event=self.job.on_event)
        self.saved = (progress.step, progress.evaluated_step)
        if self.world.main:
            best = [] if progress.best_step is None else [progress.best_step]
            needed = best + (progress.recent if self.config.average_checkpoints > 1 else [])
            passing = self.passing if self.passing != progress.step else None
            prune_checkpoints(self.folder, keep=self.config.keep_checkpoints, needed=needed, passing=passing)
        self.passing = None
        self.job.on_event(f"saved {progress.step}")
        self.log.skip(self._pause())
        self._agree()

    def _update(self) -> None:
        progress, config = self.progress, self.config
        progress.step += 1
        self.job.on_event(f"update {progress.step}")
        plan, first, epoch = self._plan(progress.epoch), progress.batch, progress.epoch
        group = range(first, min(first + self.group_size, len(plan)))
        tokens = max(1, sum(plan[index].tokens for index in group))
        rate = learning_rate(progress.step, config, total=int(self.total))
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate * parameters["factor"]
        if self.workers is not None:
            self._with_workers(self.workers, UpdateRecord(progress.step, epoch, group.start, group.stop, tokens, self.scaler.get_scale()))
        else:
            for start in group[:: self.world.size]:
                self._alone(epoch, start, group, tokens)
        norm = self._clip(FigurePosition(progress.step, len(group), epoch, first))
        log_due = progress.step % config.log_every == 0
        # Reading a figure synchronises with an accelerator: do it once per log line, and before each save.
        self._agree(check=log_due or self.world.device.type == "cpu")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if unusable := overflow(self.scaler, least=LEAST_SCALE):
            raise self._ended_by(unusable, "train with training.precision=bf16 or fp32")
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.model, progress.step)
        progress.batch, progress.batches = group.stop, len(plan)
        if progress.batch == len(plan):
            progress.epoch, progress.batch = epoch + 1, 0
        if log_due:
            self._log_training(epoch, rate, norm)
        self.window_seconds += self._pause()
        self.log.advance(progress.step)

    def _with_workers(self, workers: Workers, update: UpdateRecord) -> None:
        """Set the gradients of an update, computed by worker processes."""
        self.scaler.scale(torch.zeros(()))  # the only sign that it is in use
        for place, *sums in workers.gradients(update):
            self.watch.add(FigurePosition(update.step, 0, update.epoch, place), torch.tensor(sums[0]))
            self.sums += torch.tensor(sums, dtype=torch.float64)

    def _compute(self, update: UpdateRecord, part: int) -> list[MicroBatchSums]:
        """Add the gradients of the micro-batches with this number, one per batch of an update; called in any worker."""
        found = []
        for place in range(update.start, update.stop):
            pieces = self._divided(update.epoch, place)
            if part < len(pieces):
                sums = self._backward(update.epoch, place, (pieces, part), lambda loss: loss * (update.scale / update.tokens))
                found.append(MicroBatchSums(place, *(value.item() for value in sums)))
        return found

    def _alone(self, epoch: int, start: int, group: range, tokens: int) -> None:
        """Add the gradient of this process' batch of those from `start` on.

        A process without a batch, or with fewer micro-batches, runs one with weight 0, to stay synchronous.
        """
        index = start + self.world.rank
        idle = index >= group.stop
        index = group.start if idle else index
        weight = 0.0 if idle else self.world.size / tokens  # gradients are averaged over the processes, not summed
        last = start + self.world.size >= group.stop
        pieces = self._divided(epoch, index)
        count = len(pieces)
        if self.config.distributed == "fsdp":  # which gathers weights in every pass: as many passes in each process
            count = max(len(self._divided(epoch, other)) for other in range(start, min(start + self.world.size, group.stop)))
        for part in range(count):
            spare = idle or part >= len(pieces)
            piece, share = min(part, len(pieces) - 1), 0.0 if spare else weight
            with sync_gradients(self.wrapped, last and part == count - 1):
                sums = self._backward(epoch, index, (pieces, piece), lambda loss, share=share: self.scaler.scale(loss * share))
            if not spare:
                self.watch.add(FigurePosition(self.progress.step, 0, epoch, index), sums.loss)
                self.sums += torch.stack([value.to(self.sums) for value in sums])

    def _backward(self, epoch: int, place: int, divided: tuple[Sequence[Any], int], scale: Callable[[Tensor], Tensor]) -> SequenceLoss:
        pieces, part = divided
        seed_torch(self.world.device, self.config.seed, epoch, place, *([part] if len(pieces) > 1 else []))
        batch = self.job.collate(pieces[part])
        return backward(self.trained, batch, self.job.loss, scale=scale, config=self.config, device=self.world.device)

    def _divided(self, epoch: int, place: int) -> Sequence[Any]:
        """Return the micro-batches of a batch."""
        planned = self._plan(epoch)[place]
        return [planned] if self.micro_batches == 1 or self.job.split is None else self.job.split(planned, self.micro_batches)

    def _clip(self, place: FigurePosition) -> Tensor:
        self.scaler.unscale_(self.optimizer)
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = full_tensor(nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None]))
        if self.config.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.config.clip_norm, norm)
        if not self.scaler.is_enabled():  # fp16 gradients may overflow; the scaler skips that update
            self.watch.add(place, norm)
        return norm

    def _agree(self, check: bool = True) -> None:
        """Exchange signals, and stop all processes if a figure is not finite."""
        self.job.stop.agreed, place = self.watch.agree(self.job.stop.received, check=check)
        if place is None:
            return
        batches = self.job.plan(place.epoch)[place.batch : place.batch + max(1, place.group)]
        examples = [index for batch in batches for index in batch.indices]
        self.log.write("error", place.step, {"epoch": place.epoch + 1, "batch": place.batch + 1, "examples": examples})
        shown = ", ".join(map(str, examples[:20])) + (f" and {len(examples) - 20} more" if len(examples) > 20 else "")
        what = f"the {'norm of the gradient' if place.group else 'loss'} is not finite (examples {shown})"
        raise TrainingError(f"step {place.step}, epoch {place.epoch + 1}, batch {place.batch + 1}: {what}; {self._last_saved()}")

    def _ended_by(self, what: str, advice: str) -> TrainingError:
        """Log what ended the run, and return the error with position and advice."""
        progress = self.progress
        place = {"epoch": progress.epoch + 1, "batch": progress.batch + 1}
        self.log.write("error", progress.step, {**place, "what": what})
        where = f"step {progress.step}, epoch {place['epoch']}, batch {place['batch']}"
        return TrainingError(f"{where}: {what}; {advice}; {self._last_saved()}")

    def _last_saved(self) -> str:
        return f"step-{self.saved[0]:08d} is the last checkpoint" if self.saved[0] else "nothing is saved yet"

    def _log_training(self, epoch: int, rate: float, norm: Tensor) -> None:
        loss, nll, tokens, correct = self.world.sum(self.sums).tolist()
        self.sums.zero_()
        self.window_seconds += self._pause()
        figures = {
            "epoch": epoch + 1,
            "loss": loss / max(1.0, tokens),
            "nll": nll / max(1.0, tokens),
            "accuracy": correct / max(1.0, tokens),
            "learning_rate": rate,
            "gradient_norm": norm.item(),
            "tokens_per_second": tokens * self.job.tokens_per_unit / max(1e-9, self.window_seconds),
            "seconds_per_update": (each := self.window_seconds / self.config.log_every),
            "seconds": self.progress.seconds,
            "total": self.total,
            "remaining": (self.total - self.progress.step) * each,
        }
        self.window_seconds = 0.0
        self.log.write("train", self.progress.step, figures)

    def _pause(self) -> float:
        """Add the time since the last call to the run's, and return it."""
        now = time.perf_counter()
        passed, self.mark = now - self.mark, now
        self.progress.seconds += passed
        return passed

    def _plan(self, epoch: int) -> Sequence[BatchIndices]:
        if epoch != self.planned_epoch:
            self.plan, self.planned_epoch = self.job.plan(epoch), epoch
        if not self.plan:
            raise DataError(f"epoch {epoch + 1} has no batches: there is nothing to train on")
        return self.plan

    def _check_plan_is_the_same(self) -> None:
        progress = self.progress
        if progress.step == 0:
            return
        epoch = progress.epoch if progress.batch else progress.epoch - 1
        if len(self._plan(epoch)) != progress.batches:
            raise CheckpointError(
                f"{checkpoint_path(self.folder, progress.step)}: epoch {epoch + 1} had {progress.batches} batches when this was saved, "
                f"now it has {len(self.plan)}: the training data or training.batch_tokens have changed"
            )

    def _finish(self, reason: str) -> TrainResult:
        progress = self.progress
        unusable = overflow(self.scaler, least=INITIAL_SCALE * 2.0 ** (1 - max(1, progress.step)))
        if unusable and not self.job.stop.agreed:
            raise self._ended_by(f"no update was made: {unusable}", "train longer, or with training.precision=bf16 or fp32")
        digest = weights_sha256(self.model)
        final = None if self.job.stop.agreed else self._choose_final()
        self._agree()
        interrupted = self.job.stop.agreed or None
        if final is not None and interrupted is None:
            self.world.on_main(lambda: export_model(self.folder, final, step=progress.step, config=self.config, run_files=self.run_files))
        ended = {"reason": reason, "weights_sha256": digest, "trained_on": f"{describe_device(self.world.device)}, {self.config.precision}"}
        ended |= {"seconds": progress.seconds, "epochs": progress.epoch + progress.batch / max(1, len(self.plan))}
        self.log.write("stop" if interrupted else "done", progress.step, {**ended, **self.job.sizes})
        model = None if interrupted else self.folder / "model"
        return TrainResult(progress.step, reason, interrupted, self.metrics, progress.best_step, progress.best_value, digest, model)
