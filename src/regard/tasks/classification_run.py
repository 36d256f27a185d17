"""Runs of classification and entailment: vocabulary, labels and model beside what every run folder has."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from regard.config import ClassificationConfig, EntailmentConfig
from regard.data.vocabulary import UNK, Vocabulary
from regard.errors import CheckpointError
from regard.models.classifier import SentenceClassifier, build_classifier
from regard.strict_json import parse_json
from regard.tasks.run_folder import CONFIG, DATA, VOCABULARY, load_model, read_config, run_path, run_task

LABELS = "labels.json"
# Maximum file size: enough for the names of a hundred thousand labels.
MAX_LABEL_BYTES = 2**22
RUN_FILES = (CONFIG, DATA, VOCABULARY, LABELS)
SentenceConfig = ClassificationConfig | EntailmentConfig


class SentenceRun(NamedTuple):
    """A loaded run.

    Attributes:
        folder: the run folder.
        config: the run's configuration.
        vocabulary: of its texts.
        labels: C names, in class order.
        model: the trained model, in evaluation mode.
        weights: the weight file.
    """

    folder: Path
    config: SentenceConfig
    vocabulary: Vocabulary
    labels: tuple[str, ...]
    model: SentenceClassifier
    weights: Path


def open_sentence_run(folder: str | Path, kind: type[ClassificationConfig] | type[EntailmentConfig] | None = None) -> SentenceRun:
    """Open a trained run: configuration, vocabulary, labels, verified weights.

    Args:
        folder: a run folder as training leaves it, finished or not.
        kind: configuration class of the task; None: either.

    Raises:
        CheckpointError: the folder is not a run of this task, or a file in it is missing, damaged or does not fit.

    Example:
        >>> open_sentence_run("no-such-run", EntailmentConfig)
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    folder = run_path(folder)
    if kind is None:
        pairs = run_task(folder) == EntailmentConfig.model_fields["task"].default
        kind = EntailmentConfig if pairs else ClassificationConfig
    config = read_config(folder, kind)
    vocabulary, labels = Vocabulary.load(folder / VOCABULARY), load_labels(folder / LABELS)
    sizes = {"vocab_size": len(vocabulary), "classes": len(labels), "unknown": UNK}
    model, weights = load_model(folder, lambda: build_classifier(config.model, **sizes), RUN_FILES)
    return SentenceRun(folder, config, vocabulary, labels, model, weights)


def load_labels(path: Path) -> tuple[str, ...]:
    """Read the names of a run's labels, in class order.

    Raises:
        CheckpointError: the file is missing, damaged or too large.
    """
    try:
        if path.stat().st_size > MAX_LABEL_BYTES:
            raise CheckpointError(f"{path}: more than {MAX_LABEL_BYTES:,} bytes, expected a list of labels")
        labels = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: missing or damaged") from error
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels) or len(set(labels)) < max(2, len(labels)):
        raise CheckpointError(f"{path}: damaged, expected a list of at least two labels, none twice")
    return tuple(labels)
