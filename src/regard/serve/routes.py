"""What can be asked for: one table of tasks, from which requests are checked, answered and described."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.config.captioning import FeaturesConfig
from regard.errors import ConfigError
from regard.serve.limits import Limits
from regard.serve.operation import Job, Model
from regard.serve.routes_captioning import Caption, CaptionAttention
from regard.serve.routes_language import LanguageAttention, Score
from regard.serve.routes_sentences import Classify, LabelAttention
from regard.serve.routes_translation import Translate, TranslationAttention
from regard.tasks import Translator
from regard.tasks.caption import Captioner
from regard.tasks.classification import Classifier
from regard.tasks.entailment import Entailer
from regard.tasks.language_use import LanguageModel
from regard.tasks.run_folder import run_task


class Served(NamedTuple):
    """How runs of a task are opened, and the operations on them."""

    open: Callable[[Path], Any]
    jobs: tuple[Callable[[Sequence[Model[Any]], Limits], Job], ...]


# A new operation is a class as in the modules above and its name here.
TASKS = {
    "translation": Served(Translator.open, (Translate, TranslationAttention)),
    "classification": Served(Classifier.open, (Classify, LabelAttention)),
    "entailment": Served(Entailer.open, (Classify, LabelAttention)),
    "captioning": Served(Captioner.open, (Caption, CaptionAttention)),
    "lm": Served(LanguageModel.open, (Score, LanguageAttention)),
}


def task_of(models: Sequence[Model[Any]]) -> str:
    """Return the task of the runs that are served: they are of one."""
    return models[0].worker.run.config.task


def jobs(models: Sequence[Model[Any]], limits: Limits) -> list[Job]:
    """Return every operation on these runs."""
    return [make(models, limits) for make in TASKS[task_of(models)].jobs]


def open_models(folders: Sequence[Path]) -> list[Model[Any]]:
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
    return [Model(name, worker) for name, worker in zip(names, workers, strict=True)]
