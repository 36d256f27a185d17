"""Table of tasks, and opening a run of any task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from regard.tasks.captioning_prediction import Captioner
from regard.tasks.captioning_training import CaptioningTraining
from regard.tasks.classification_prediction import Classifier, Entailer
from regard.tasks.classification_training import SentenceTraining
from regard.tasks.language_prediction import LanguageModel
from regard.tasks.language_training import LanguageTraining
from regard.tasks.run_folder import run_path, run_task
from regard.tasks.train import TaskTraining
from regard.tasks.translation_prediction import Translator
from regard.tasks.translation_training import TranslationTraining

AnyModel = Captioner | Classifier | Entailer | LanguageModel | Translator


class Task(NamedTuple):
    """Description of a task.

    Attributes:
        training: which settings fit, and how a run is trained.
        open: opens a run folder.
    """

    training: type[TaskTraining[Any]]
    open: Callable[[Path], AnyModel]


TASKS = {
    "translation": Task(TranslationTraining, Translator.open),
    "captioning": Task(CaptioningTraining, Captioner.open),
    "classification": Task(SentenceTraining, Classifier.open),
    "entailment": Task(SentenceTraining, Entailer.open),
    "lm": Task(LanguageTraining, LanguageModel.open),
}
"""By the name in a configuration's `task`."""


def open_any(folder: str | Path) -> AnyModel:
    """Open a run of any task: `regard.open(RUN)`.

    Args:
        folder: a run as `regard train` or `regard import` leaves it, finished or not.

    Returns:
        `Translator`, `Captioner`, `Classifier`, `Entailer` or `LanguageModel`, after the task in the run's `config.yaml`; with the
        weights that its commands use.

    Raises:
        CheckpointError: the folder is not a run, or a file in it is missing, damaged or does not fit.

    Example:
        >>> open_any("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    folder = run_path(folder)
    return TASKS[run_task(folder)].open(folder)
