"""`regard.open`: one call for a run of any task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.config import load
from regard.errors import CheckpointError
from regard.tasks import Captioner, Classifier, Entailer, LanguageModel, Translator
from regard.tasks.table import TASKS


def test_a_run_is_opened_by_its_task_and_used(run_folder: Path) -> None:
    translator = regard.open(run_folder)
    assert isinstance(translator, Translator)
    assert [found.text for found in translator.translate(["ab"])] == [found.text for found in Translator.open(run_folder).translate(["ab"])]
    assert isinstance(regard.open(str(run_folder)), Translator)


def test_every_task_can_be_opened() -> None:
    assert set(TASKS) == set(load.TASKS)
    kinds = {"translation": Translator, "captioning": Captioner, "classification": Classifier, "entailment": Entailer, "lm": LanguageModel}
    assert {name: task.open.__self__ for name, task in TASKS.items()} == kinds


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such run folder"):
        regard.open(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"not a run folder, it has no config\.yaml"):
        regard.open(tmp_path)


USED = """
import sys
import subprocess
import sys
from pathlib import Path
from regard.tasks import open_any
for run in sorted(Path(sys.argv[1]).glob("*/run")):
    open_any(run)
sys.exit("torch._dynamo" in sys.modules)
"""


def test_opening_a_run_does_not_import_the_compiler_of_torch() -> None:
    # That would take longer than torch itself. Random draws on the meta device once did.
    golden = Path(__file__).parents[1] / "trust" / "golden" / "0.1.0"
    assert len(list(golden.glob("*/run"))) >= 4
    assert subprocess.run([sys.executable, "-c", USED, str(golden)], check=False).returncode == 0
