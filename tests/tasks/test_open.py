"""`regard.open`: one call for a run of any task."""

from __future__ import annotations

from pathlib import Path

import pytest

import regard
from regard.config.load import TASKS
from regard.errors import CheckpointError
from regard.tasks import Captioner, Classifier, Entailer, LanguageModel, Translator
from regard.tasks.open import OPEN


def test_a_run_is_opened_by_its_task_and_used(run_folder: Path) -> None:
    translator = regard.open(run_folder)
    assert isinstance(translator, Translator)
    assert [found.text for found in translator.translate(["ab"])] == [found.text for found in Translator.open(run_folder).translate(["ab"])]
    assert isinstance(regard.open(str(run_folder)), Translator)


def test_every_task_can_be_opened() -> None:
    assert set(OPEN) == set(TASKS)
    kinds = {"translation": Translator, "captioning": Captioner, "classification": Classifier, "entailment": Entailer, "lm": LanguageModel}
    assert {task: call.__self__ for task, call in OPEN.items()} == kinds


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such run folder"):
        regard.open(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"not a run folder, it has no config\.yaml"):
        regard.open(tmp_path)
