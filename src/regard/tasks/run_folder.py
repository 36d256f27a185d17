"""Run folders of all tasks: start, resume and read.

config.yaml               the resolved configuration
data.json                 which files were read, with their sha256
checkpoints/  model/      written by `regard.training`
log.jsonl                 one line an event
tokens/                   the encoded training text; may be removed, the next start makes it again

and the files of the task, such as vocabularies.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from regard import progress
from regard.config import RunConfig, describe_changes, dump_config, load_config, task_of
from regard.data.lines import write_files
from regard.data.vocabulary import Vocabulary
from regard.errors import CheckpointError, ConfigError, DataError, os_reason, shown
from regard.input_files import check_run_exists, folder_names
from regard.strict_json import parse_json
from regard.training.atomic_folder import MANIFEST, STATE, seal_run_files, to_disk, verify_folder
from regard.training.checkpoint import check_run_files, list_checkpoints, weights_file
from regard.training.lock import LOCK
from regard.training.precision import fastest_precision, is_emulated
from regard.training.weights import check_fit, read_weights

if TYPE_CHECKING:
    from regard.training import ProcessGroup

CONFIG, DATA, VOCABULARY = "config.yaml", "data.json", "vocabulary.json"
STAGING, MOVED = ".new", "moved.json"
"""Folder of a run that is being created, and the list in it of what is moved from there into the run."""
VERBS = {"translation": "translate", "captioning": "caption", "classification": "classify", "entailment": "entail"}
"""Tasks, and the commands that answer lines with a run of them."""
AnyConfig = TypeVar("AnyConfig", bound=RunConfig)
AnyModel = TypeVar("AnyModel", bound=nn.Module)


class Run(NamedTuple, Generic[AnyConfig, AnyModel]):
    """A trained run of one vocabulary, opened for use.

    Attributes:
        folder: the run folder.
        config: the run's configuration.
        vocabulary: of its text.
        model: the trained model, in evaluation mode.
        weights: the weight file.
    """

    folder: Path
    config: AnyConfig
    vocabulary: Vocabulary
    model: AnyModel
    weights: Path


def run_path(folder: str | Path) -> Path:
    """Return the path of a run folder that is to be opened.

    Raises:
        CheckpointError: it is no path.

    Example:
        >>> run_path(None)
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: open: folder: expected the path of a run folder, found None
    """
    if not isinstance(folder, str | os.PathLike):
        raise CheckpointError(f"open: folder: expected the path of a run folder, found {shown(folder)}")
    return Path(folder)


def run_task(folder: Path) -> str:
    """Return the task of a run.

    Raises:
        CheckpointError: the folder is not a run, or its configuration is damaged.

    Example:
        >>> run_task(Path("no-such-run"))
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    if not (check_run_exists(folder) / CONFIG).is_file():
        raise CheckpointError(f"{folder}: not a run folder, it has no {CONFIG}")
    check_inside(folder)
    try:
        return task_of(folder / CONFIG)
    except ConfigError as error:
        raise CheckpointError(f"damaged run folder: {error}") from error


def read_config(folder: Path, kind: type[AnyConfig]) -> AnyConfig:
    """Read a run's configuration.

    Raises:
        CheckpointError: the folder is not a run, is one of another task, or its configuration is damaged.
    """
    task, wanted = run_task(folder), kind.model_fields["task"].default
    if task != wanted:
        verb = f"; regard {VERBS[task]} takes it" if task in VERBS else ""
        raise CheckpointError(f"{folder}: a run of the task {task}; expected a run of the task {wanted}{verb}")
    try:
        return load_config(folder / CONFIG, kind=kind)
    except ConfigError as error:
        raise CheckpointError(f"damaged run folder: {error}") from error


def resolve_precision(config: AnyConfig, folder: Path, device: torch.device) -> AnyConfig:
    """Resolve `training.precision: auto` for this device, so that a run's `config.yaml` states its precision.

    Args:
        config: the requested configuration.
        folder: the run folder. A resumed run keeps its precision on any processor.
        device: the training device.

    Raises:
        CheckpointError: the run's configuration is damaged, or of another task.
    """
    precision = config.training.precision
    if is_emulated(precision, device):
        progress.message(
            f"training.precision={precision}: this {device.type} has no such instructions and converts each product from and to float32, "
            "which is slower than training.precision=fp32; auto selects the fastest here",
            warning=True,
        )
    if precision != "auto":
        return config
    begun_in = read_config(folder, type(config)).training.precision if (folder / CONFIG).exists() else fastest_precision(device)
    return config.model_copy(update={"training": config.training.model_copy(update={"precision": begun_in})})


def prepare_run(folder: Path, config: RunConfig, digests: Mapping[str, str], make: Callable[[], Mapping[str, bytes]]) -> bool:
    """Start a run folder, or check that an existing one is of the same configuration and data.

    Args:
        folder: created if needed.
        config: the requested configuration.
        digests: sha256 of each data file, by the key of `data` that names it.
        make: returns the contents of the task's files by name; called only to start a run, before writing.

    Returns:
        Whether the run is new.

    Raises:
        ConfigError: the folder holds something else, or a run with other settings or data.
    """
    if (folder / CONFIG).exists():
        shutil.rmtree(folder / STAGING, ignore_errors=True)
        _check_same(folder, config, digests)
        return False
    create_run(
        folder, lambda: {**make(), DATA: (json.dumps(dict(digests), indent=1) + "\n").encode(), CONFIG: dump_config(config).encode()}
    )
    return True


def create_run(
    folder: Path,
    make: Callable[[], Mapping[str, bytes]],
    *,
    complete: Callable[[Path], object] = lambda staging: None,
    wanted: str = "a run",
) -> None:
    """Create a run folder atomically: written under a temporary name, then moved into place, its configuration last.

    If killed, it leaves either a run or temporary files that the next call removes.

    Args:
        folder: created if needed; may hold what a killed call has left, and nothing else.
        make: gives the contents of the files by name, the configuration among them; called once the folder is known to be fit.
        complete: called with the temporary folder before it is moved; may add files.
        wanted: expected content of the folder, for errors.

    Raises:
        ConfigError: the folder holds something else, or cannot be made.
        DataError: a file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: exists and is not {wanted}; choose another --out")
    staging = folder / STAGING
    if not (folder / CONFIG).exists():
        _undo(folder)
    if folder.exists() and folder_names(folder) - {LOCK}:
        raise ConfigError(f"{folder}: exists and is not {wanted}; choose another --out")
    files = make()
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({os_reason(staging, error)})") from error
    try:
        write_files({staging / name: content for name, content in files.items()})
        complete(staging)
        names = sorted((path.name for path in staging.iterdir()), key=lambda name: (name == CONFIG, name))
        to_disk(staging)
        write_files({staging / MOVED: json.dumps(names).encode()})
        for name in names:
            if name == CONFIG:  # its presence marks the folder as complete
                to_disk(folder)
            os.replace(staging / name, folder / name)
        to_disk(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({os_reason(staging, error)})") from error
    finally:
        if not (folder / CONFIG).exists():
            _undo(folder)
        shutil.rmtree(staging, ignore_errors=True)


def _undo(folder: Path) -> None:
    """Remove leftovers of interrupted `create_run` and `discard_run` calls only."""
    staging = folder / STAGING
    try:
        names = parse_json((staging / MOVED).read_bytes())
    except (OSError, ValueError, RecursionError):
        names = []
    for name in names if isinstance(names, list) else []:
        if isinstance(name, str) and Path(name).name == name:
            _remove(folder / name)
    shutil.rmtree(staging, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def discard_run(folder: Path, names: Sequence[str]) -> None:
    """Remove a new run that cannot be trained; `names` are its files and folders."""
    # Recorded first: if killed, the next start removes the rest.
    (folder / STAGING).mkdir(exist_ok=True)
    write_files({folder / STAGING / MOVED: json.dumps(list(names)).encode()})
    (folder / CONFIG).unlink(missing_ok=True)
    _undo(folder)
    with suppress(OSError):  # locked, it is removed with its lock
        folder.rmdir()


def on_first_process(world: ProcessGroup, action: Callable[[], int | None]) -> int:
    """Run an action in the first process that may exceed the timeout of collective calls; return its number in all processes.

    Args:
        world: the processes.
        action: called by the first process, in a thread if there are others.

    Raises:
        TrainingError: in the other processes, if the first one raises.

    Example:
        >>> from regard.training import ProcessGroup
        >>> on_first_process(ProcessGroup(), lambda: 3)
        3
    """
    if world.size == 1:
        return action() or 0
    done: Future[int] = Future()

    def act() -> None:
        try:
            done.set_result(action() or 0)
        except BaseException as error:
            done.set_exception(error)

    if world.main:
        Thread(target=copy_context().run, args=(act,), daemon=True).start()
    # In short intervals, so that no process exceeds the timeout of a collective call.
    while world.on_main(lambda: len(wait([done], timeout=20).not_done)):
        pass
    return world.on_main(done.result)


@contextmanager
def start_or_resume(
    world: ProcessGroup,
    folder: Path,
    config: RunConfig,
    digests: Mapping[str, str],
    make: Callable[[], Mapping[str, bytes]],
    names: Sequence[str],
) -> Iterator[None]:
    """Start or check a run in the first process; remove a new one if its data are unusable.

    Args:
        world: the processes.
        folder: see `prepare_run`; locked by the caller, see `regard.training.run_lock`.
        config: the requested configuration.
        digests: sha256 of each data file.
        make: gives the task's own files.
        names: all files of the run, and folders of such.

    Raises:
        ConfigError: see `prepare_run`.
    """
    if config.start is not None:
        from regard.tasks.fine_tuning import inherited_files  # which itself reads runs

        before = Path(config.start.run)
        started = world.on_main(lambda: int(prepare_run(folder, config, digests, lambda: inherited_files(before, names))))
    else:
        started = on_first_process(world, lambda: int(prepare_run(folder, config, digests, make)))
    try:
        yield
    except (DataError, ConfigError):
        if started and world.main:
            discard_run(folder, names)
        raise


def check_metric(config: RunConfig, offered: Sequence[str]) -> None:
    """Check `training.metric` and `training.eval_metrics` against the metrics of the task.

    Raises:
        ConfigError: an unknown metric.

    Example:
        >>> from regard.config import ClassificationConfig
        >>> check_metric(ClassificationConfig(), ["loss", "accuracy"])
    """
    for setting, names in (("metric", (config.training.metric,)), ("eval_metrics", config.training.eval_metrics)):
        for name in names:
            if name not in offered:
                raise ConfigError(f"training.{setting}: {name}; the task {config.task} has {', '.join(offered)}")


def load_model(folder: Path, build: Callable[[], AnyModel], names: Sequence[str], *, sizes_first: bool = True) -> tuple[AnyModel, Path]:
    """Build a run's model and load its weights, after verifying them and its files.

    Args:
        folder: a run folder as training leaves it, finished or not.
        build: makes the model of the run's configuration.
        names: files of the run.
        sizes_first: compare the configuration's sizes with the weights before allocating the model; False for modules of other libraries
            that need memory.

    Returns:
        The model, in evaluation mode, and the weight file.

    Raises:
        CheckpointError: a file is missing, damaged or does not fit.
    """
    with progress.stage(f"Loading {folder}"):
        while True:
            before = _saved(folder)
            try:
                model, weights = _load(folder, build, names, sizes_first)
                if weights.parent.name.startswith("step-"):
                    which = "the latest" if weights.parent in list_checkpoints(folder)[-1:] else "the best by validation"
                    why = "without final weights in model/ (not trained to its end, or they were removed)"
                    progress.message(f"{folder}: {why}; these are the weights of {weights.parent.name}, {which}")
                return model, weights
            except CheckpointError:
                if _saved(folder) == before:
                    raise  # otherwise a training has saved meanwhile, and removed the file


def _load(folder: Path, build: Callable[[], AnyModel], names: Sequence[str], sizes_first: bool) -> tuple[AnyModel, Path]:
    # A vocabulary or configuration with one changed letter may still load, and silently give other results.
    weights = weights_file(folder)
    manifest = verify_folder(weights.parent, only=(weights.name, STATE))
    check_run_files(manifest, folder, [name for name in names if name != DATA])
    if sizes_first:
        check_fit(weights, build)
    model = build()
    read_weights(weights, model)
    return model.eval(), weights


def _saved(folder: Path) -> list[object]:
    """Return a fingerprint of the last save of a run."""
    try:
        found = (folder / "model" / MANIFEST).stat()
    except OSError:
        return [*list_checkpoints(folder)]
    return [*list_checkpoints(folder), found.st_ino, found.st_mtime_ns]


def check_inside(folder: Path) -> None:
    """Refuse a run folder with links to the outside, pipes or devices.

    Raises:
        CheckpointError: the folder has one.

    Example:
        >>> check_inside(Path("no-such-run"))
    """
    home = folder.resolve()
    homes = [home]
    if home.parent.name == "snapshots":  # the Hub's cache keeps the files of a snapshot beside it
        homes.append(home.parents[1] / "blobs")
    for pattern in ("*", "model/*", "checkpoints/*", "checkpoints/step-*/*"):
        # Not Path.glob: it fails on a checkpoint that a training removes between two listings.
        for path in map(folder.joinpath, glob.iglob(pattern, root_dir=folder, include_hidden=True)):
            if path.is_symlink() and not any(Path(os.path.realpath(path)).is_relative_to(each) for each in homes):
                raise CheckpointError(f"{path}: leads out of the run folder; put a copy of what it leads to in its place")
            if not path.is_file() and not path.is_dir() and os.path.lexists(path):  # else a training has removed it meanwhile
                raise CheckpointError(f"{path}: expected a file or a folder, found {'a broken link' if path.is_symlink() else 'neither'}")


def change_decoding(folder: Path, config: RunConfig, *, made_by_decoding: Sequence[str] = ()) -> None:
    """Give a run folder the decoding settings of another configuration; checkpoints and weights accept the changed file.

    Args:
        folder: of a run that nothing else uses. If the process dies, the same call goes on.
        config: of the same task.
        made_by_decoding: files that depend on these settings; removed if they change.

    Raises:
        CheckpointError: not a run folder, or damaged.
    """
    decoding, own = getattr(config, "decoding", None), read_config(folder, type(config))
    if decoding is None or decoding == getattr(own, "decoding", None):
        return
    content = dump_config(own.model_copy(update={"decoding": decoding})).encode()
    try:
        for name in made_by_decoding:
            (folder / name).unlink(missing_ok=True)
        for sealed in filter(Path.is_dir, (folder / "model", *list_checkpoints(folder))):
            seal_run_files(sealed, {CONFIG: hashlib.sha256(content).hexdigest()})
    except OSError as error:
        raise CheckpointError(f"{folder}: its decoding settings cannot be changed ({os_reason(folder, error)})") from error
    write_files({folder / CONFIG: content})  # last: until then the settings differ


def _check_same(folder: Path, config: RunConfig, digests: Mapping[str, str]) -> None:
    old = read_config(folder, type(config))
    try:
        known = dict(parse_json((folder / DATA).read_text(encoding="utf-8")))
        if not all(isinstance(digest, str) for digest in known.values()):
            raise TypeError("a digest must be text")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder / DATA}: missing or damaged") from error
    files = {**known, **digests}
    # Data may have moved; contents are compared by digest.
    moved = tuple(f"data.{name}:" for name in files)
    # Decoding settings and the number of processes do not affect training.
    free = ("decoding.", "training.workers:", "start.run:", *moved)
    changed = [item for item in describe_changes(old, config) if not item.startswith(free)]
    contents = {name: "have" if name.endswith("images") else "file has" for name in files}
    both = [name for name in files if name in known and name in digests]
    changed += [f"the {name} {contents[name]} other content" for name in both if known[name] != digests[name]]
    changed += [f"it was trained with a {name} file" for name in files if name not in digests]
    changed += [f"it was trained without a {name} file" for name in files if name not in known]
    if changed:
        from regard.tasks.fine_tuning import resume_advice  # which itself reads runs

        learned = _saved(folder)
        command = resume_advice(old, config, folder) if learned else ""
        going_on = f"; to fine-tune it: {command}" if command else "" if learned else "; it has no weights yet, and may be removed"
        again = f"give those of its {CONFIG} again, or choose another --out"
        raise ConfigError(f"{folder} holds a run with other settings ({'; '.join(changed)}); {again}{going_on}")


def device_of(model: nn.Module) -> torch.device:
    """Return the device a model's parameters are on."""
    return next(model.parameters()).device
