"""Checkpoints of a run: save, load, prune, export; verified before use, with fallback to the previous one.

    RUN/checkpoints/step-00000120/  model.safetensors  optimizer.safetensors  [ema.safetensors]  [carried.safetensors]
                                    state.json  manifest.json
    RUN/model/                      model.safetensors  state.json  manifest.json                  the final weights

Checkpoints cannot run code: tensors are safetensors, the rest is JSON checked against a schema.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from regard.config import TrainingConfig
from regard.config.problems import problems
from regard.errors import CheckpointError, WriteError, os_reason
from regard.training.atomic_folder import MANIFEST, file_sha256, read_state, remove_leftovers, verify_folder, write_folder
from regard.training.distributed import ProcessGroup, assign_tensor, shard_like
from regard.training.optimizer import STATE_KEYS, MovingAverage
from regard.training.stream_state import gather_stream_state, read_stream_state
from regard.training.training_job import Progress, ignore_event
from regard.training.weights import average_files, check_tensor, named_tensors, open_tensors, read_weights, whole_tensors

log = logging.getLogger("regard")

MODEL, OPTIMIZER, EMA, CARRIED = "model.safetensors", "optimizer.safetensors", "ema.safetensors", "carried.safetensors"
STEP = re.compile(r"step-(\d{8,})")
DAMAGED = "damaged-"


@dataclass
class TrainingState:
    """Everything that changes during training.

    It has no random state: the loop seeds torch for every batch from the configured seed and the batch's position.

    Attributes:
        model: the module itself, not its DDP wrapper; its weights may be sharded.
        optimizer: built by `build_optimizer`.
        kind: name of the optimizer, which determines its state per parameter.
        scaler: gradient scaler, disabled unless training in fp16.
        progress: progress of the run.
        average: moving average of the weights, or None.
        carried: state carried across batches, see `TrainingJob`.

    Example:
        >>> from regard.config import TrainingConfig
        >>> from regard.training.optimizer import build_optimizer
        >>> model = nn.Linear(3, 2)
        >>> scaler = torch.amp.GradScaler("cpu", enabled=False)
        >>> TrainingState(model, build_optimizer(model, TrainingConfig()), "adamw", scaler, Progress()).progress.step
        0
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    kind: str
    scaler: torch.amp.GradScaler
    progress: Progress
    average: MovingAverage | None = None
    carried: Mapping[str, Tensor] = field(default_factory=dict)


class _Saved(BaseModel):
    """Schema of a checkpoint's `state.json`."""

    model_config = ConfigDict(extra="forbid")

    progress: Progress
    # int first: the oldest supported pydantic takes the first type that fits, and a count of updates is not a float.
    scaler: dict[str, int | float]


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of a step's checkpoint in a run folder.

    Example:
        >>> checkpoint_path(Path("run"), 120).as_posix()
        'run/checkpoints/step-00000120'
    """
    return folder / "checkpoints" / f"step-{step:08d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run folder, oldest first, unverified; none if the folder does not exist."""
    parent = folder / "checkpoints"
    found = [path for path in parent.iterdir() if STEP.fullmatch(path.name)] if parent.is_dir() else []
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the latest checkpoint whose files match their manifest, or None without checkpoints.

    Skips a damaged later one with a warning.

    Args:
        folder: the run folder.

    Raises:
        CheckpointError: all checkpoints are damaged.

    Example:
        >>> latest_checkpoint("no-such-run") is None
        True
    """
    reasons = []
    for path in reversed(list_checkpoints(Path(folder))):
        try:
            verify_folder(path)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            log.warning("%s; falling back to %s", reason, path.name)
        return path
    if reasons:
        raise CheckpointError(f"{folder}: every checkpoint is damaged: {'; '.join(reasons)}")
    return None


def save_checkpoint(
    state: TrainingState,
    folder: Path,
    *,
    world: ProcessGroup,
    run_files: Sequence[str] = (),
    on_event: Callable[[str], None] = ignore_event,
) -> Path:
    """Save a training state as `folder/checkpoints/step-...` (collective; process 0 writes).

    Args:
        state: the training state.
        folder: the run folder.
        world: the processes of the run.
        run_files: names of files in `folder` whose sha256 goes into the manifest.
        on_event: see `TrainingJob`; receives "save 7 rename" and similar.

    Returns:
        The folder of the checkpoint.

    Raises:
        WriteError: the disk is full, read-only or similar. Older checkpoints are unchanged.

    Example:
        >>> import tempfile
        >>> from regard.config import TrainingConfig
        >>> from regard.training.optimizer import build_optimizer
        >>> model = nn.Linear(3, 2)
        >>> optimizer, scaler = build_optimizer(model, TrainingConfig()), torch.amp.GradScaler("cpu", enabled=False)
        >>> state = TrainingState(model, optimizer, "adamw", scaler, Progress(step=7))
        >>> folder = Path(tempfile.mkdtemp())
        >>> save_checkpoint(state, folder, world=ProcessGroup()).name
        'step-00000007'
        >>> load_checkpoint(state, latest_checkpoint(folder))
    """
    step = state.progress.step
    target = checkpoint_path(folder, step)
    files = {
        MODEL: whole_tensors(named_tensors(state.model), keep=world.main),
        OPTIMIZER: whole_tensors(_optimizer_tensors(state), keep=world.main),
    }
    if state.average is not None:
        files[EMA] = whole_tensors({**named_tensors(state.model), **state.average.tensors}, keep=world.main)
    if state.carried:
        files[CARRIED] = whole_tensors(gather_stream_state(state.carried, world), keep=world.main)

    def write() -> int:
        tree = _Saved(progress=state.progress, scaler=state.scaler.state_dict()).model_dump(mode="json")
        sums = {name: file_sha256(folder / name) for name in run_files}
        write_folder(target, files, state=tree, run_files=sums, on_event=lambda name: on_event(f"save {step} {name}"))
        return 0

    world.on_main(write)
    return target


def load_checkpoint(state: TrainingState, path: str | Path, *, run_files: Sequence[str] = (), verified: bool = False) -> None:
    """Load a checkpoint into a training state, to resume training exactly.

    Every process reads it: first the manifest, then names, shapes and dtypes, then tensors.

    Args:
        state: freshly built for the same configuration.
        path: the checkpoint's folder, in `RUN/checkpoints`.
        run_files: names of files in `RUN` that must not have changed since the checkpoint was saved.
        verified: this process has just verified the checkpoint.

    Raises:
        CheckpointError: a file is missing, damaged or does not fit the model, or a run file has changed.

    Example:
        See `save_checkpoint`:

        >>> from regard.config import TrainingConfig
        >>> from regard.training.optimizer import build_optimizer
        >>> model = nn.Linear(3, 2)
        >>> state = TrainingState(model, build_optimizer(model, TrainingConfig()), "adamw", torch.amp.GradScaler("cpu"), Progress())
        >>> load_checkpoint(state, "no-such-run/checkpoints/step-00000007")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run/checkpoints/step-00000007/manifest.json: cannot be read (No such file or directory)
    """
    path = Path(path)
    manifest = verify_folder(path, only=() if verified else None)
    check_run_files(manifest, path.parent.parent, run_files)
    try:
        saved = _Saved.model_validate(read_state(path))
    except ValidationError as error:
        found = problems(error, _Saved)[0]
        raise CheckpointError(f"{path / 'state.json'}: {found.path}: {found.message}") from error
    if state.scaler.is_enabled() != bool(saved.scaler):
        raise CheckpointError(
            f"{path}: was saved {'with' if saved.scaler else 'without'} a gradient scaler; training.precision has changed"
        )
    if state.average is not None and EMA not in manifest["files"]:
        raise CheckpointError(f"{path}: holds no moving average; training.ema_decay has changed")
    if state.carried and CARRIED not in manifest["files"]:
        raise CheckpointError(f"{path}: lacks {CARRIED}, what was read of the text so far")
    if state.average is not None:
        read_weights(path / EMA, state.model)
        for name, parameter in state.model.named_parameters():
            state.average.tensors[name].copy_(parameter.detach())
    read_weights(path / MODEL, state.model)
    read_optimizer(path / OPTIMIZER, state)
    if state.carried:
        read_stream_state(path / CARRIED, state.carried)
    if saved.scaler:
        state.scaler.load_state_dict(saved.scaler)
    state.progress = saved.progress


def check_run_files(manifest: dict[str, Any], folder: Path, names: Iterable[str]) -> None:
    """Check that files of a run have not changed since a checkpoint was saved.

    Raises:
        CheckpointError: a file changed or is missing.
    """
    for name in names:
        try:
            found = file_sha256(folder / name)
        except OSError as error:
            raise CheckpointError(f"{folder / name}: cannot be read ({error.strerror})") from error
        if found != manifest["run_files"].get(name):
            raise CheckpointError(
                f"{folder / name}: has changed since the checkpoints of this run were saved; put it back, or start a new run folder"
            )


def prune_checkpoints(folder: Path, *, keep: int, needed: Iterable[int], passing: int | None = None) -> None:
    """Remove the checkpoint of step `passing`, then all but the latest `keep` and those of steps in `needed`."""
    if passing is not None:
        shutil.rmtree(checkpoint_path(folder, passing), ignore_errors=True)
    kept = {checkpoint_path(folder, step).name for step in needed}
    for path in list_checkpoints(folder)[:-keep]:
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def prepare_folder(folder: Path) -> int:
    """Prepare a run folder for training, and return the step of the checkpoint to resume from, 0 for none.

    Removes leftovers of interrupted saves, and renames later, damaged checkpoints to `damaged-step-...`, because training will reach their
    step again.

    Raises:
        CheckpointError: see `latest_checkpoint`.
        WriteError: the folder cannot be created or written to.
    """
    checkpoints = folder / "checkpoints"
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        remove_leftovers(checkpoints)
        latest = latest_checkpoint(folder)
        _move_damaged(folder, latest)
    except OSError as error:
        raise WriteError(f"{folder}: cannot be written ({os_reason(checkpoints, error)})") from error
    return 0 if latest is None else int(latest.name.removeprefix("step-"))


def _move_damaged(folder: Path, latest: Path | None) -> None:
    if latest is None:
        return
    paths = list_checkpoints(folder)
    for path in paths[paths.index(latest) + 1 :]:
        aside = path.with_name(DAMAGED + path.name)
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)


def load_weights(folder: str | Path, model: nn.Module) -> Path:
    """Load trained weights only into a model and return their file.

    Args:
        folder: a run folder, one of its checkpoints, or its `model` folder. Without final weights, uses the best checkpoint so far. Prefers
            a moving average to the weights it averages.
        model: built from the run's configuration.

    Raises:
        CheckpointError: there are no weights, or they are damaged or do not fit the model.

    Example:
        >>> load_weights("no-such-run", nn.Linear(3, 2))
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no trained weights here, neither model/ nor checkpoints/
    """
    path = weights_file(Path(folder))
    verify_folder(path.parent, only=[path.name])
    read_weights(path, model)
    return path


def weights_file(folder: Path) -> Path:
    """Return the file `load_weights` reads.

    Raises:
        CheckpointError: see `load_weights`.
    """
    if (folder / MANIFEST).is_file():
        found = folder
    elif (folder / "model" / MANIFEST).is_file():
        found = folder / "model"
    else:
        found = latest_checkpoint(folder)
        if found is None:
            raise CheckpointError(f"{folder}: no trained weights here, neither model/ nor checkpoints/")
        best = (read_state(found).get("progress") or {}).get("best_step")
        if isinstance(best, int) and (checkpoint_path(folder, best) / MANIFEST).is_file():
            found = checkpoint_path(folder, best)
    return found / (EMA if (found / EMA).is_file() else MODEL)


def _optimizer_tensors(state: TrainingState) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in state.model.named_parameters():
        for key in STATE_KEYS[state.kind]:
            if parameter in state.optimizer.state:
                tensors[f"{name}.{key}"] = state.optimizer.state[parameter][key]
    return tensors


def read_optimizer(path: Path, state: TrainingState) -> None:
    """Load an optimizer's state into a training state.

    Raises:
        CheckpointError: a tensor does not fit the optimizer or the model.
    """
    keys = STATE_KEYS[state.kind]
    with open_tensors(path) as file:
        names = set(file.keys())
        parameters = {name: p for name, p in state.model.named_parameters() if any(f"{name}.{key}" in names for key in keys)}
        expected = {f"{name}.{key}" for name in parameters for key in keys}
        if names != expected:
            odd = sorted(names ^ expected)[0]
            raise CheckpointError(
                f"{path}: tensor {odd} does not fit optimizer {state.kind} and this model; training.optimizer has changed"
            )
        for name, parameter in parameters.items():
            for key in keys:
                shape, dtype = ((), torch.float32) if key == "step" else (parameter.shape, parameter.dtype)
                check_tensor(path, file, f"{name}.{key}", shape=shape, dtype=dtype)
        for name, parameter in parameters.items():
            values = {key: file.get_tensor(f"{name}.{key}") for key in keys}
            step = values.pop("step").to(parameter.device)
            state.optimizer.state[parameter] = {"step": step, **{key: shard_like(value, parameter) for key, value in values.items()}}


class FinalWeights(NamedTuple):
    """Sources of the final weights.

    Attributes:
        steps: the checkpoints, averaged if several.
        best_value: the best `metric` of a single evaluation, or None.
        mean_value: the `metric` of the mean; None if a single checkpoint was configured.
    """

    steps: list[int]
    best_value: float | None
    mean_value: float | None


def source_files(folder: Path, steps: Sequence[int], config: TrainingConfig) -> list[Path]:
    """Return the intact weight files of checkpoints, with `ema_decay` their moving averages; warn of damaged ones.

    Raises:
        CheckpointError: none is intact.
    """
    name = MODEL if config.ema_decay is None else EMA
    sources = []
    for step in steps:
        path = checkpoint_path(folder, step)
        try:
            verify_folder(path, only=[name])
            sources.append(path / name)
        except CheckpointError as error:
            log.warning("%s; the final weights are made without it", error)
    if not sources:
        raise CheckpointError(f"{folder / 'model'}: cannot be made, no checkpoint to take it from is intact")
    return sources


@contextmanager
def mean_applied(model: nn.Module, sources: Sequence[Path]) -> Iterator[None]:
    """Load the mean of weight files into a model; restore its own weights on exit."""
    tensors = named_tensors(model)
    own = {name: tensor.clone() for name, tensor in tensors.items()}
    mean = dict(average_files(sources))
    try:
        for name, tensor in tensors.items():
            if name in mean:  # a moving average has no buffers
                assign_tensor(tensor, mean[name])
        yield
    finally:
        for name, tensor in tensors.items():
            tensor.copy_(own[name])


def export_model(folder: Path, final: FinalWeights, *, step: int, config: TrainingConfig, run_files: Sequence[str]) -> int:
    """Write `folder/model`: the weights of a checkpoint or the mean of several, described in `state.json`.

    With `ema_decay`, uses the moving averages at those steps. An equal export is kept.

    Returns:
        0 (see `ProcessGroup.on_main`).

    Raises:
        CheckpointError: no source checkpoint is intact.
        WriteError: the weights cannot be written.
    """
    sources = source_files(folder, final.steps, config)
    state = {
        "weights": ("mean of " if len(final.steps) > 1 else "best by " + config.metric + ", ")
        + ("moving averages" if config.ema_decay else "weights"),
        "metric": config.metric,
        "step": step,
        **final._asdict(),
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
