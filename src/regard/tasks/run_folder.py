"""A run folder, whatever the task: how it is started, resumed and read.

config.yaml               the resolved configuration
data.json                 which files were read, with their sha256
checkpoints/  model/      written by `regard.training`
log.jsonl                 one line an event

and the files of the task, such as vocabularies.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from regard.config import RunConfig, differences, dump_config, load_config, task_of
from regard.data.lines import write_files
from regard.errors import CheckpointError, ConfigError, DataError
from regard.training import World
from regard.training.checkpoint import check_run_files, weights_file
from regard.training.folder import STATE, verify_folder
from regard.training.weights import check_fit, read_weights

CONFIG, DATA = "config.yaml", "data.json"
AnyConfig = TypeVar("AnyConfig", bound=RunConfig)
AnyModel = TypeVar("AnyModel", bound=nn.Module)


def run_task(folder: Path) -> str:
    """Return the task of a run.

    Raises:
        CheckpointError: the folder is not a run, or its configuration is damaged; names it.

    Example:
        >>> run_task(Path("no-such-run"))
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such run folder")
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder}: not a run folder, it has no {CONFIG}")
    check_inside(folder)
    try:
        return task_of(folder / CONFIG)
    except ConfigError as error:
        raise CheckpointError(f"damaged run folder: {error}") from error


def read_config(folder: Path, kind: type[AnyConfig]) -> AnyConfig:
    """Read a run's configuration.

    Args:
        folder: the run folder.
        kind: the configuration of the task it must be of.

    Raises:
        CheckpointError: the folder is not a run, is one of another task, or its configuration is damaged; names it.
    """
    task, wanted = run_task(folder), kind.model_fields["task"].default
    if task != wanted:
        raise CheckpointError(f"{folder}: a run of the task {task}; expected one of {wanted}")
    try:
        return load_config(folder / CONFIG, kind=kind)
    except ConfigError as error:
        raise CheckpointError(f"damaged run folder: {error}") from error


def prepare_run(folder: Path, config: RunConfig, digests: Mapping[str, str], make: Callable[[], Mapping[str, bytes]]) -> bool:
    """Start a run folder, or check that an existing one is of the same configuration and data.

    Args:
        folder: made if it is not there.
        config: what is asked for.
        digests: sha256 of each data file, by the key of `data` that names it.
        make: gives the contents of the task's own files, by name; called only to start a run, before anything is written.

    Returns:
        Whether the run was started now.

    Raises:
        ConfigError: the folder holds something else, or a run with other settings or data; names the differences.
    """
    if (folder / CONFIG).exists():
        _check_same(folder, config, digests)
        return False
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists and is not a run; choose another --out")
    own = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror})") from error
    write_files({folder / name: content for name, content in own.items()})
    # The configuration goes last: its presence says that the folder is complete.
    write_files({folder / DATA: (json.dumps(dict(digests), indent=1) + "\n").encode()})
    write_files({folder / CONFIG: dump_config(config).encode()})
    return True


def discard_run(folder: Path, names: Sequence[str]) -> None:
    """Remove a run that was started and cannot be trained; `names` are its files, and folders of such."""
    for name in names:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    folder.rmdir()


@contextmanager
def begun(
    world: World, folder: Path, config: RunConfig, digests: Mapping[str, str], make: Callable[[], Mapping[str, bytes]], names: Sequence[str]
) -> Iterator[None]:
    """Start a run, or check the one that is there, in the first process; where its data turns out unfit, take a new one back.

    Args:
        world: the processes.
        folder: see `prepare_run`, and so for the next three.
        config: what is asked for.
        digests: sha256 of each data file.
        make: gives the task's own files.
        names: all files of the run, and folders of such.

    Raises:
        ConfigError: see `prepare_run`.
    """
    started = world.on_main(lambda: int(prepare_run(folder, config, digests, make)))
    try:
        yield
    except (DataError, ConfigError):
        if started and world.main:
            discard_run(folder, names)
        raise


def check_metric(config: RunConfig, offered: Sequence[str]) -> None:
    """Refuse a `training.metric` that the task has not.

    Args:
        config: what is to be trained.
        offered: the metrics of its task.

    Raises:
        ConfigError: the metric is another; names those there are.

    Example:
        >>> from regard.config import ClassificationConfig
        >>> check_metric(ClassificationConfig(), ["loss", "accuracy"])
    """
    if config.training.metric not in offered:
        raise ConfigError(f"training.metric: {config.training.metric}; the task {config.task} has {', '.join(offered)}")


def silent(line: str) -> None:
    """Tell nobody: what processes but the first do with their news."""


def load_model(folder: Path, build: Callable[[], AnyModel], names: Sequence[str], *, sizes_first: bool = True) -> tuple[AnyModel, Path]:
    """Build a run's model and load its weights, after checking them and its files against what was noted when they were written.

    Args:
        folder: a run folder as training leaves it, finished or not.
        build: makes the model of the run's configuration.
        names: the files that make up the run.
        sizes_first: compare the sizes of the configuration with the weights before there is memory for the model; False for parts of
            other libraries, which cannot be built without.

    Returns:
        The model, in evaluation mode, and the file the weights came from.

    Raises:
        CheckpointError: a file is missing, damaged or does not fit; names it.
    """
    # A vocabulary or a configuration with one letter changed may still be read, and would quietly give other results.
    weights = weights_file(folder)
    manifest = verify_folder(weights.parent, only=(weights.name, STATE))
    check_run_files(manifest, folder, [name for name in names if name != DATA])
    if sizes_first:
        check_fit(weights, build)
    model = build()
    read_weights(weights, model)
    return model.eval(), weights


def check_inside(folder: Path) -> None:
    """Refuse a run folder with links to what is outside it, or with pipes and devices, which may never end.

    Raises:
        CheckpointError: names what it found.

    Example:
        >>> check_inside(Path("no-such-run"))
    """
    home = folder.resolve()
    homes = [home]
    if home.parent.name == "snapshots":  # the Hub's cache keeps the files of a snapshot beside it
        homes.append(home.parents[1] / "blobs")
    for pattern in ("*", "model/*", "checkpoints/*", "checkpoints/step-*/*"):
        for path in folder.glob(pattern):
            if path.is_symlink() and not any(Path(os.path.realpath(path)).is_relative_to(each) for each in homes):
                raise CheckpointError(f"{path}: leads out of the run folder; put a copy of what it leads to in its place")
            if not path.is_file() and not path.is_dir():
                raise CheckpointError(f"{path}: expected a file or a folder, found {'a broken link' if path.is_symlink() else 'neither'}")


def _check_same(folder: Path, config: RunConfig, digests: Mapping[str, str]) -> None:
    old = read_config(folder, type(config))
    try:
        known = dict(json.loads((folder / DATA).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder / DATA}: missing or damaged") from error
    files = {**known, **digests}
    # The same data may lie elsewhere; its content is compared by digest.
    moved = tuple(f"data.{name}:" for name in files)
    # How a search goes, and how many processes make tokens, changes nothing of the training.
    changed = [item for item in differences(old, config) if not item.startswith(("decoding.", "data.workers:", *moved))]
    changed += [f"the {name} file has other content" for name in files if known.get(name) != digests.get(name)]
    if changed:
        raise ConfigError(f"{folder} holds a run with other settings ({'; '.join(changed)}); choose another --out, or remove it")


def device_of(model: nn.Module) -> torch.device:
    """Return the device a model's parameters are on."""
    return next(model.parameters()).device
