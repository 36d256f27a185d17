"""What every export of a run begins with: the opened run of any task, its files, and what a foreign engine has to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from regard.config import CaptioningConfig, DecodingConfig, RunConfig, TranslationConfig
from regard.data.vocabulary import BOS, EOS, IMPORTED, PAD, UNK
from regard.errors import ConfigError, DataError
from regard.integrations.graph import ModelGraphs, Port
from regard.strict_json import parse_json
from regard.tasks.run_folder import VOCABULARY
from regard.tasks.table import open_any
from regard.tasks.translation_run import vocabulary_files

FORMAT = "regard graphs 1"


class OpenedRun(NamedTuple):
    """A run of any task.

    Attributes:
        folder: where it is.
        config: how it was made.
        model: with the trained weights, in evaluation mode.
        vocabularies: the name of each vocabulary file, by what it is of.
        labels: of a run that labels.
    """

    folder: Path
    config: RunConfig
    model: nn.Module
    vocabularies: dict[str, str]
    labels: Sequence[str]


def open_run(folder: Path) -> OpenedRun:
    """Open a run of any task.

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
        source, target, *_ = vocabulary_files(run.config)
        files = {"source": source, "target": target}
    return OpenedRun(folder, run.config, run.model, files, getattr(run, "labels", ()))


def check_output(folder: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        ConfigError: names it.

    Example:
        >>> check_output(Path("no-such-folder"))
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists and is not empty; choose another --out")


def create_folder(folder: Path) -> None:
    """Create a folder, with those above it.

    Raises:
        ConfigError: it cannot be made; names it and why.

    Example:
        >>> create_folder(Path("."))
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror})") from error


def vocabulary_entries(path: str | Path) -> list[str]:
    """Return the tokens of one of our vocabulary files in the order of their ids, as the tokenizers library writes them.

    Raises:
        DataError: it is no vocabulary file; names it.

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
        # A unigram model stores a list of tokens and their scores, the others a number for each token.
        return (
            [token for token, _ in vocabulary] if isinstance(vocabulary, list) else sorted(vocabulary, key=lambda token: vocabulary[token])
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: missing, damaged or no vocabulary") from error


def describe(run: OpenedRun, graphs: ModelGraphs) -> dict[str, Any]:
    """Say what an engine has to know of a run besides its graphs, as JSON holds it.

    Args:
        run: of `open_run`.
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
    return found


def _ports(ports: Sequence[Port]) -> list[dict[str, Any]]:
    return [{"name": port.name, "type": port.kind, "axes": list(port.axes)} for port in ports]
