"""Common part of all exports: the loaded run of any task, its files, and a description for other engines."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from torch import nn

from regard.config import CaptioningConfig, DecodingConfig, RunConfig, TranslationConfig
from regard.data.shortlist import Shortlist
from regard.data.vocabulary import BOS, EOS, IMPORTED, PAD, UNK
from regard.errors import ConfigError, DataError, os_reason
from regard.input_files import folder_names
from regard.integrations.graph import ModelGraphs, Port
from regard.strict_json import parse_json
from regard.tasks.run_folder import VOCABULARY
from regard.tasks.shortlist import load_shortlist
from regard.tasks.table import open_any
from regard.tasks.translation_run import vocabulary_files

FORMAT = "regard graphs 1"
LARGEST_HALF = 65504
MOVING = ".moving.json"
"""File of the temporary folder: the names that are moved from there to their place."""


class OpenedRun(NamedTuple):
    """A loaded run of any task.

    Attributes:
        folder: its folder.
        config: its configuration.
        model: its trained model, in evaluation mode.
        vocabularies: file name of each vocabulary, by side.
        labels: labels of a classifier.
    """

    folder: Path
    config: RunConfig
    model: nn.Module
    vocabularies: dict[str, str]
    labels: Sequence[str]


def open_run(folder: Path) -> OpenedRun:
    """Load a run of any task.

    Raises:
        CheckpointError: see `regard.tasks.table.open_any`.

    Example:
        >>> open_run(Path("no-such-run"))
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    run: Any = open_any(folder).run
    files = {"text": VOCABULARY}
    if isinstance(run.config, TranslationConfig):
        sides: tuple[str, ...] = ("source", "target", "second")
        files = dict[str, str](zip(sides, vocabulary_files(run.config), strict=False))
    return OpenedRun(folder, run.config, run.model, files, getattr(run, "labels", ()))


def check_output(folder: Path) -> None:
    """Refuse a file, and a folder that is not empty, besides what a killed export has left.

    Raises:
        ConfigError: the message names the folder.

    Example:
        >>> check_output(Path("no-such-folder"))
    """
    place = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder, found a file; choose another --out")
    left = _leftovers(place, place)
    if folder.exists() and folder_names(folder) - {name for path in left for name in (path.name, *_moved(path))}:
        raise ConfigError(f"{folder}: exists and is not empty; choose another --out")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a block a folder to write to, which becomes `folder` when the block ends.

    If the block fails, or the process receives SIGTERM, nothing is left; the exit code is then 143. What a killed process left is removed.

    Args:
        folder: must not exist, or must be empty.

    Raises:
        ConfigError: it cannot be written; the message names it and the reason.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with new_folder(Path(place, "model")) as folder:
        ...         _ = (folder / "a.txt").write_text("a")
        ...     sorted(path.name for path in Path(place, "model").iterdir())
        ['a.txt']
    """
    place = folder.resolve()
    parent = place if place.is_dir() else place.parent  # a folder that is there may be a mount point, and no rename leads into it
    temporary = parent / f"{_prefix(place)}{os.getpid()}"
    try:
        for left in (*_leftovers(place, place), *_leftovers(place, place.parent)):
            _discard(left, place)
        temporary.mkdir(parents=True)
        with _unwinding():
            yield temporary
            if place.exists():  # perhaps the current folder, which keeps its identity
                names = sorted(path.name for path in temporary.iterdir())
                (temporary / MOVING).write_text(json.dumps(names), encoding="utf-8")
                for name in names:
                    (temporary / name).rename(place / name)
                (temporary / MOVING).unlink()
            else:
                temporary.rename(place)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({os_reason(folder, error)})") from error
    finally:
        _discard(temporary, place)


def _prefix(place: Path) -> str:
    # A name may be as long as names can be, so it is cut; the digest keeps two such names apart.
    return f".{place.name[:40]}.{hashlib.sha256(os.fsencode(place.name)).hexdigest()[:8]}.export-"


def _leftovers(place: Path, parent: Path) -> list[Path]:
    """Return temporary folders of exports to `place` whose process is gone."""
    found = parent.glob(glob.escape(_prefix(place)) + "*") if parent.is_dir() else ()
    numbers = {path: path.name.removeprefix(_prefix(place)) for path in found if path.is_dir()}
    return [path for path, number in numbers.items() if number.isdecimal() and not _runs(int(number))]


def _moved(left: Path) -> list[str]:
    """Return the names that a killed export had moved from its temporary folder to their place."""
    try:
        names = parse_json((left / MOVING).read_bytes())
    except (OSError, ValueError):
        return []
    return [name for name in names if Path(name).name == name and not os.path.lexists(left / name)]


def _discard(temporary: Path, place: Path) -> None:
    """Remove a temporary folder, and what was moved from it to its place by an export that did not end."""
    for name in _moved(temporary):
        path = place / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


@contextmanager
def _unwinding() -> Iterator[None]:
    """Let SIGTERM leave a block as an error does; by default it would end the process at once, and temporary files would stay."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_weights(graphs: ModelGraphs, weights: str) -> None:
    """Refuse weights that no engine can compute with, and those that float16 cannot hold.

    Args:
        graphs: of a model.
        weights: how matrices are to be stored.

    Raises:
        ConfigError: a tensor holds NaN or infinity, or matrices become float16 and one is too large; the message names it.

    Example:
        >>> from regard.integrations.graph import Weights
        >>> wide = nn.Linear(1, 1)
        >>> _ = wide.weight.data.fill_(1e6)
        >>> check_weights(ModelGraphs(Weights(wide, {"weight": wide.weight.detach()}), {}), "float16")
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: weights: float16, but weight holds 1e+06, and float16 ends at 65504; use float32
    """
    for name, tensor in graphs.weights.tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        largest = float(tensor.abs().max())
        if not math.isfinite(largest):
            raise ConfigError(f"{name}: its weights hold NaN or infinity, so the model cannot be exported")
        if weights == "float16" and tensor.dim() > 1 and largest > LARGEST_HALF:
            raise ConfigError(f"weights: float16, but {name} holds {largest:g}, and float16 ends at {LARGEST_HALF}; use float32")


def vocabulary_entries(path: str | Path) -> list[str]:
    """Return the tokens of a Regard vocabulary file (format of the tokenizers library) in the order of their ids.

    Raises:
        DataError: it is not a vocabulary file; the message names it.

    Example:
        >>> import tempfile
        >>> from regard.data import Vocabulary
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Vocabulary.train(["ein Hund"], kind="word", size=9).save(f"{folder}/vocabulary.json")
        ...     vocabulary_entries(f"{folder}/vocabulary.json")
        [' <pad>', ' <unk>', ' <s>', ' </s>', 'Hund', 'ein']
    """
    try:
        content = parse_json(Path(path).read_text(encoding="utf-8"))
        if content["kind"] == IMPORTED:
            return list(content["entries"])
        vocabulary = content["tokenizer"]["model"]["vocab"]
        # A unigram model stores a list of tokens and scores, the others an id per token.
        return (
            [token for token, _ in vocabulary] if isinstance(vocabulary, list) else sorted(vocabulary, key=lambda token: vocabulary[token])
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: missing, damaged or no vocabulary") from error


def shortlist_of(run: OpenedRun) -> Shortlist | None:
    """Return the shortlist of a run that decodes with one (`decoding.shortlist`); else None.

    Args:
        run: from `open_run`.

    Raises:
        ConfigError: it has none.
        CheckpointError: it is damaged, or was learned with other vocabularies.
    """
    if not isinstance(run.config, TranslationConfig) or not run.config.decoding.shortlist:
        return None
    source, target = (run.folder / run.vocabularies[side] for side in ("source", "target"))
    sizes = (len(vocabulary_entries(source)), len(vocabulary_entries(target)))
    return load_shortlist(run.folder, sizes=sizes, vocabularies=[source, target])


def describe(run: OpenedRun, graphs: ModelGraphs) -> dict[str, Any]:
    """Return a JSON description of a run for other engines, besides its graphs.

    Args:
        run: from `open_run`.
        graphs: of its model.
    """
    config = run.config
    found: dict[str, Any] = {
        "format": FORMAT,
        "task": config.task,
        "graphs": {name: {"inputs": _ports(graph.inputs), "outputs": _ports(graph.outputs)} for name, graph in graphs.graphs.items()},
        "sources": graphs.sources,
        "states": graphs.states,
        "special": {"pad": PAD, "unknown": UNK, "begin": BOS, "end": EOS},
        "vocabularies": run.vocabularies,
        "lowercase": bool(getattr(config.vocabulary, "lowercase", False) or getattr(config.data, "lowercase", False)),
        "max_source_length": getattr(config.data, "max_length", None),
    }
    if run.labels:
        found["labels"] = list(run.labels)
    elif isinstance(decoding := getattr(config, "decoding", None), DecodingConfig):
        found["decoding"] = decoding.model_dump(mode="json")
    if isinstance(config, CaptioningConfig):
        found["image"] = config.image.model_dump(mode="json")
    elif isinstance(config, TranslationConfig) and config.second is not None and config.second.image is not None:
        found["image"] = config.second.image.preprocessing
        found["image"]["cells"] = config.second.image.cells
    return found


def _ports(ports: Sequence[Port]) -> list[dict[str, Any]]:
    return [{"name": port.name, "type": port.kind, "axes": list(port.axes)} for port in ports]
