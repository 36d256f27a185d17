"""What can be asked for: one table of tasks, from which requests are checked, answered and described."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.config.captioning import FeaturesConfig
from regard.errors import ConfigError
from regard.serve.endpoints import Endpoint, ServedModel
from regard.serve.endpoints_captioning import CaptionAttentionEndpoint, CaptionEndpoint
from regard.serve.endpoints_classification import ClassifyEndpoint, LabelAttentionEndpoint
from regard.serve.endpoints_language import LanguageAttentionEndpoint, ScoreEndpoint
from regard.serve.endpoints_translation import TranslateEndpoint, TranslationAttentionEndpoint
from regard.serve.limits import Limits
from regard.tasks import Translator
from regard.tasks.captioning_prediction import Captioner
from regard.tasks.classification import Classifier
from regard.tasks.entailment import Entailer
from regard.tasks.language_prediction import LanguageModel
from regard.tasks.run_folder import run_task


class ServedTask(NamedTuple):
    """How runs of a task are opened, and the operations on them."""

    open: Callable[[Path], Any]
    jobs: tuple[Callable[[Sequence[ServedModel[Any]], Limits], Endpoint], ...]


# A new operation is a class as in the modules above and its name here.
TASKS = {
    "translation": ServedTask(Translator.open, (TranslateEndpoint, TranslationAttentionEndpoint)),
    "classification": ServedTask(Classifier.open, (ClassifyEndpoint, LabelAttentionEndpoint)),
    "entailment": ServedTask(Entailer.open, (ClassifyEndpoint, LabelAttentionEndpoint)),
    "captioning": ServedTask(Captioner.open, (CaptionEndpoint, CaptionAttentionEndpoint)),
    "lm": ServedTask(LanguageModel.open, (ScoreEndpoint, LanguageAttentionEndpoint)),
}


def served_task(models: Sequence[ServedModel[Any]]) -> str:
    """Return the task of the runs that are served: they are of one."""
    return models[0].worker.run.config.task


def endpoints(models: Sequence[ServedModel[Any]], limits: Limits) -> list[Endpoint]:
    """Return every operation on these runs."""
    return [make(models, limits) for make in TASKS[served_task(models)].jobs]


def open_models(folders: Sequence[Path]) -> list[ServedModel[Any]]:
    """Open run folders of one task, named after the folders, or by their paths where these names are the same.

    Raises:
        ConfigError: the runs are of different tasks, of one that cannot be served, or a captioner reads features instead of images.
        CheckpointError: a folder is no run, or is damaged; names it.

    Example:
        >>> open_models([Path("no-such-run")])
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    tasks = [run_task(folder) for folder in folders]
    if len(set(tasks)) > 1:
        found = ", ".join(f"{folder} of {task}" for folder, task in zip(folders, tasks, strict=True))
        raise ConfigError(f"{found}: only runs of one task are served side by side")
    if tasks[0] not in TASKS:
        raise ConfigError(f"{folders[0]}: a run of the task {tasks[0]}; expected one of {', '.join(TASKS)}")
    workers = [TASKS[tasks[0]].open(folder) for folder in folders]
    for folder, worker in zip(folders, workers, strict=True):
        if isinstance(worker, Captioner) and isinstance(worker.run.config.model.encoder, FeaturesConfig):
            raise ConfigError(f"{folder}: reads features computed beforehand; an image that is sent has none")
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [ServedModel(name, worker) for name, worker in zip(names, workers, strict=True)]
