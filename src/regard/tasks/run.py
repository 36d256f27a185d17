"""A run folder of a sequence-to-sequence task: what is in it, how it is started, resumed and opened.

config.yaml               the resolved configuration
data.json                 which files were read, with their sha256
vocabulary.json           or source.vocabulary.json and target.vocabulary.json
checkpoints/  model/      written by `regard.training`
log.jsonl                 one line an event
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.config import RunConfig, differences, dump_config, load_config
from regard.data.lines import write_files
from regard.data.vocabulary import Vocabulary
from regard.errors import CheckpointError, ConfigError
from regard.models import EncoderDecoder, Ensemble, build
from regard.training import load_weights
from regard.training.checkpoint import check_run_files, weights_file
from regard.training.folder import verify_folder

CONFIG, DATA = "config.yaml", "data.json"
SHARED, SOURCE, TARGET = "vocabulary.json", "source.vocabulary.json", "target.vocabulary.json"


class Vocabularies(NamedTuple):
    """The source and target vocabulary; the same object twice when they are shared."""

    source: Vocabulary
    target: Vocabulary


class Run(NamedTuple):
    """A trained run, opened for use.

    Attributes:
        folder: where it is.
        config: how it was made.
        vocabularies: of both sides.
        model: with the trained weights, in evaluation mode.
        weights: the file these came from.
    """

    folder: Path
    config: RunConfig
    vocabularies: Vocabularies
    model: EncoderDecoder[Any]
    weights: Path


def run_files(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the files, besides weights, that make up a run."""
    return (CONFIG, DATA, SHARED) if config.vocabulary.shared else (CONFIG, DATA, SOURCE, TARGET)


def open_run(folder: str | Path) -> Run:
    """Open a trained run: configuration, vocabularies, verified weights.

    Args:
        folder: a run folder as `regard train` leaves it, finished or not.

    Returns:
        The `Run`; its model is in evaluation mode.

    Raises:
        CheckpointError: the folder is not a run, or a file in it is missing, damaged or does not fit; names the file.

    Example:
        >>> open_run("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    folder = Path(folder)
    config = read_config(folder)
    vocabularies = load_vocabularies(folder, config)
    # A vocabulary or a configuration with one letter changed may still be read, and would quietly give other translations.
    weights = weights_file(folder)
    manifest = verify_folder(weights.parent, only=())
    check_run_files(manifest, folder, [name for name in run_files(config) if name != DATA])
    model = build(config.model, source_size=len(vocabularies.source), target_size=len(vocabularies.target))
    load_weights(weights.parent, model)
    return Run(folder, config, vocabularies, model.eval(), weights)


def open_ensemble(folders: Sequence[str | Path]) -> Run:
    """Open runs that decode together, by the mean of their probabilities.

    Args:
        folders: one or more run folders whose vocabularies hold the same; what is not a matter of the model is taken from the first, but
            for `data.max_length`, the smallest of all.

    Returns:
        The first `Run` with an `Ensemble` for its model; one folder alone is opened as it is.

    Raises:
        ConfigError: the vocabularies of two runs differ; names both.
        CheckpointError: see `open_run`.

    Example:
        >>> open_ensemble(["no-such-run", "another"])
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    first, *others = [open_run(folder) for folder in folders]
    if not others:
        return first
    for other in others:
        for side, own in _vocabulary_files(first).items():
            found = _vocabulary_files(other)[side]
            # Read, not compared by the byte: another release of the library may write the same in another order.
            if json.loads(own.read_bytes()) != json.loads(found.read_bytes()):
                raise ConfigError(f"{other.folder}: its {side} vocabulary is another than that of {first.folder}; their outputs do not mix")
    data = first.config.data.model_copy(update={"max_length": min(run.config.data.max_length for run in (first, *others))})
    return first._replace(
        config=first.config.model_copy(update={"data": data}), model=Ensemble([run.model for run in (first, *others)]).eval()
    )


def _vocabulary_files(run: Run) -> dict[str, Path]:
    names = (SHARED, SHARED) if run.config.vocabulary.shared else (SOURCE, TARGET)
    return {side: run.folder / name for side, name in zip(Vocabularies._fields, names, strict=True)}


def read_config(folder: Path) -> RunConfig:
    """Read a run's configuration.

    Raises:
        CheckpointError: the folder does not exist or is not a run, or its configuration is damaged.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such run folder")
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder}: not a run folder, it has no {CONFIG}")
    try:
        return load_config(folder / CONFIG)
    except ConfigError as error:
        raise CheckpointError(f"damaged run folder: {error}") from error


def load_vocabularies(folder: Path, config: RunConfig) -> Vocabularies:
    """Read the vocabularies of a run folder.

    Raises:
        DataError: one is missing or damaged; names the file.
    """
    if config.vocabulary.shared:
        shared = Vocabulary.load(folder / SHARED)
        return Vocabularies(shared, shared)
    return Vocabularies(Vocabulary.load(folder / SOURCE), Vocabulary.load(folder / TARGET))


def prepare_run(folder: Path, config: RunConfig, digests: dict[str, str], pairs: Sequence[tuple[str, str]]) -> bool:
    """Start a run folder, or check that an existing one is of the same configuration and data.

    Args:
        folder: made if it is not there.
        config: what is asked for.
        digests: sha256 of each data file, by what it is used for.
        pairs: training pairs, for the vocabularies.

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
    _begin(folder, config, digests, pairs)
    return True


def discard_run(folder: Path, config: RunConfig) -> None:
    """Remove a run that was started and cannot be trained."""
    for name in run_files(config):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _begin(folder: Path, config: RunConfig, digests: dict[str, str], pairs: Sequence[tuple[str, str]]) -> None:
    settings = config.vocabulary
    sides = {"source": [pair[0] for pair in pairs], "target": [pair[1] for pair in pairs]}
    texts = {SHARED: sides["source"] + sides["target"]} if settings.shared else {SOURCE: sides["source"], TARGET: sides["target"]}
    made = {
        name: Vocabulary.train(lines, kind=settings.kind, size=settings.size, min_count=settings.min_count) for name, lines in texts.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror})") from error
    for name, vocabulary in made.items():
        vocabulary.save(folder / name)
    # The configuration goes last: its presence says that the folder is complete.
    write_files({folder / DATA: (json.dumps(digests, indent=1) + "\n").encode()})
    write_files({folder / CONFIG: dump_config(config).encode()})


def _check_same(folder: Path, config: RunConfig, digests: dict[str, str]) -> None:
    old = read_config(folder)
    changed = [item for item in differences(old, config) if not item.startswith(("decoding.", *_DATA_PATHS))]
    try:
        known = dict(json.loads((folder / DATA).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder / DATA}: missing or damaged") from error
    changed += [f"the {name} file has other content" for name in {**known, **digests} if known.get(name) != digests.get(name)]
    if changed:
        raise ConfigError(f"{folder} holds a run with other settings ({'; '.join(changed)}); choose another --out, or remove it")


# The same data may lie elsewhere; its content is compared by digest.
_DATA_PATHS = tuple(f"data.{key}:" for key in ("source", "target", "valid_source", "valid_target"))


def device_of(model: torch.nn.Module) -> torch.device:
    """Return the device a model's parameters are on."""
    return next(model.parameters()).device
