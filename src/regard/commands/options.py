"""Options shared by several commands, and their allowed values."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.errors import ConfigError, os_reason
from regard.input_files import check_run_exists

DecodingPrecision = Literal["float32", "bfloat16", "int8"]
LinkUnit = Literal["word", "character"]
BleuTokens = Literal["13a", "intl", "zh", "char", "none"]
RUN_FILES = (
    "alignment.json",
    "attention.jsonl",
    "confidence.json",
    "config.yaml",
    "data.json",
    "labels.json",
    "log.jsonl",
    "shortlist.json",
    "*vocabulary.json",
)
"""Files of a run folder, beside its subfolders."""
HardMode = Literal["sample", "argmax", "expected"]
ListedTable = Literal["mechanisms", "tasks", "settings"]
Device = Literal["cpu", "cuda"]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder made by `regard train`", callback=check_run_exists)]
Files = Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="text files; default: standard input")]
SecondSource = Annotated[
    Path | None, typer.Option(help="second inputs, line by line with the first, for a model that reads two; - is standard input")
]
ImageFolder = Annotated[
    Path | None,
    typer.Option("--images", help="folder of the images that captions or second inputs name; default: that of this file"),
]
Beam = Annotated[int | None, typer.Option(min=1, help="beam width; 1 is greedy decoding")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="sentences per batch")]
MaxLength = Annotated[int | None, typer.Option(min=1, help="max number of generated tokens")]
EnsembleRuns = Annotated[
    list[Path] | None,
    typer.Option("--ensemble", metavar="RUN", help="average the probabilities with those of another run; may be repeated"),
]
Languages = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="A B", help="translation: columns, keys or TMX languages of source and target; default: those of the run"),
]
Precision = Annotated[DecodingPrecision | None, typer.Option(help="precision of matrix products; bfloat16 and int8 change some outputs")]
LengthPenalty = Annotated[float | None, typer.Option(min=0.0, help="alpha: scores are divided by ((5 + length) / 6) ** alpha")]

JsonInput = Annotated[
    bool, typer.Option("--json-input", help='read JSON objects, {"id": ..., "text": "..."}; answer with JSON objects of the same id')
]

On = Annotated[
    str | None,
    typer.Option(metavar="ray|ADDRESS", help="run the workers on a Ray cluster (extra ray): this machine's, or HOST:PORT, ray://HOST:PORT"),
]
Workers = Annotated[int | None, typer.Option(min=1, help="processes that share the work; default: 1, with --on all there is room for")]
Cpus = Annotated[int | None, typer.Option(min=1, help="threads of each worker; default: the cores divided among them, with --on 1")]
Gpus = Annotated[int | None, typer.Option(min=0, help="with --on: GPUs of each worker; without it all share those of this machine")]

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key.sub=value]...", help="settings: `regard list settings --task TASK`")]
Out = Annotated[Path | None, typer.Option(help="run folder; an interrupted run in it is resumed")]
From = Annotated[
    Path | None, typer.Option("--from", metavar="RUN", help="start from the settings, weights and vocabulary of a trained or imported run")
]
Config = Annotated[Path | None, typer.Option(help="settings in a YAML file")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="print the resolved settings and exit")]


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Refuse options that conflict with the rest of a command line; None means not given.

    Raises:
        ConfigError: the message names the given ones and the reason.
    """
    if given := [name for name, value in options.items() if value is not None]:
        raise ConfigError(f"{', '.join(given)}: {reason}")


def refuse_languages(languages: tuple[str, str] | None, source: object, target: object) -> None:
    """Refuse `--languages` where no table is read.

    Raises:
        ConfigError: without `--source`, or with `--target` beside it.
    """
    if languages is not None and (source is None or target is not None):
        raise ConfigError("--languages: goes with --source FILE alone, a table of pairs")


def refuse_model_folder(run: Path, verb: str) -> None:
    """Refuse the folder of a Hugging Face model in place of a run.

    Raises:
        ConfigError: the message names the option that takes it.
    """
    if (run / "config.json").is_file() and not (run / "config.yaml").is_file():
        raise ConfigError(f"{run}: not a run folder, it has no config.yaml; to {verb} a Hugging Face model, say --hf {run}")


def refuse_overwriting(
    outputs: Mapping[str, Path | None],
    inputs: Iterable[str | Path | None],
    *,
    named: Iterable[Path] = (),
    pictures: bool = False,
) -> None:
    """Refuse output files that are inputs of the command, which would be lost, that cannot be written, and two of one name.

    Redirected standard input is an input.

    Args:
        outputs: files to write, by option.
        inputs: files to read, run folders, and folders of which every file is an input; None, patterns and names of nothing do not count.
        named: what lines of the inputs name, perhaps files; see `named_files`.
        pictures: whether the outputs may be pictures; else a file with the ending of an image is refused.

    Raises:
        ConfigError: the message names the option and the file.
    """
    places: dict[Path, str] = {}
    for option, path in outputs.items():
        place = None if path is None else Path(os.path.realpath(path))
        if place is not None and place.is_symlink():
            raise ConfigError(f"{option} {path}: a link that leads back to itself")
        if path is not None and place is not None and str(path) != "-" and (reason := _unwritable(place)):
            raise ConfigError(f"{option} {path}: cannot be written ({reason})")
        if place is not None and (other := places.setdefault(place, option)) != option:
            raise ConfigError(f"{other} and {option}: both name {path}")
    given = [Path(path) for path in inputs if path is not None]
    read = [path.stat() for path in given if path.is_file()]
    with suppress(OSError):  # a closed standard input
        read.append(os.fstat(0))
    named = list(named) if any(path is not None and path.is_file() for path in outputs.values()) else []
    for option, path in outputs.items():
        if path is None:
            continue
        if str(path) == "-":
            raise ConfigError(f"{option} -: expected a file, not standard output")
        if path.is_file() and any(stat.S_ISREG(found.st_mode) and os.path.samestat(found, path.stat()) for found in read):
            raise ConfigError(f"{option} {path}: is an input of this command, which it would replace")
        if path.is_file() and any(_same(path, other) for other in named):
            raise ConfigError(f"{option} {path}: is named in an input of this command, which it would replace")
        if path.is_file() and not pictures and path.suffix.lower() in _image_endings():
            raise ConfigError(f"{option} {path}: is an image, which this command would replace by text")
        if any(_belongs(path, folder) for folder in given if folder.is_dir()):
            raise ConfigError(f"{option} {path}: is a file of an input folder of this command, which it would replace")


def named_files(names: str | Path | None, folder: str | Path | None) -> Iterator[Path]:
    """Yield what the lines of a file of second inputs may name: images in `folder`, or beside it if None. A pipe is not read."""
    from regard.data.lines import stream_lines

    if names is not None and Path(names).is_file():
        base = Path(names).parent if folder is None else Path(folder)
        yield from (base / line for line in stream_lines(names))


def _unwritable(place: Path) -> str:
    """Return why a file cannot be written, as the system will say after the work; "" if nothing is known to hinder it."""
    if os.path.isdir(place):
        return "it is a folder"
    if os.path.exists(place) and not os.path.isfile(place):  # a pipe or a device
        return ""
    there = next(parent for parent in place.parents if os.path.exists(parent))  # folders below it are made
    if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK):
        return ""
    code = errno.EACCES if os.path.isdir(there) else errno.ENOTDIR
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        code = errno.EROFS
    return os_reason(place, OSError(code, os.strerror(code)))


def _same(path: Path, other: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), other.stat())
    except (OSError, ValueError):  # no file, or no name of one
        return False


def _image_endings() -> tuple[str, ...]:
    from regard.data.images import ENDINGS

    return ENDINGS


def _belongs(path: Path, folder: Path) -> bool:
    path, folder = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if not path.is_file() or folder not in path.parents:
        return False
    run, below = (folder / "config.yaml").is_file(), path.parent != folder
    return below or not run or any(path.match(name) for name in RUN_FILES)
