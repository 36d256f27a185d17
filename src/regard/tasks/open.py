"""Opening a run of any task, for use from Python."""

from __future__ import annotations

from pathlib import Path

from regard.tasks.captioning_prediction import Captioner
from regard.tasks.classification import Classifier
from regard.tasks.entailment import Entailer
from regard.tasks.language_prediction import LanguageModel
from regard.tasks.run_folder import run_task
from regard.tasks.translation_prediction import Translator

AnyModel = Captioner | Classifier | Entailer | LanguageModel | Translator

OPEN = {
    "translation": Translator.open,
    "captioning": Captioner.open,
    "classification": Classifier.open,
    "entailment": Entailer.open,
    "lm": LanguageModel.open,
}


def open_any(folder: str | Path) -> AnyModel:
    """Open a run of any task: `regard.open(RUN)`.

    Args:
        folder: a run as `regard train` or `regard import` leaves it, finished or not.

    Returns:
        `Translator`, `Captioner`, `Classifier`, `Entailer` or `LanguageModel`, after the task in the run's `config.yaml`; with the
        weights that its commands use.

    Raises:
        CheckpointError: the folder is not a run, or a file in it is missing, damaged or does not fit; names the file.

    Example:
        >>> open_any("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    folder = Path(folder)
    return OPEN[run_task(folder)](folder)
