"""Runs of a study that have the same training: trained once, then copied."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from regard import progress
from regard.config import RunConfig, load_config
from regard.config.study import StudyCell, StudyConfig, cell_config, study_cells, training_settings
from regard.errors import CheckpointError
from regard.study.results import CONFIGS, RUNS, result_file
from regard.tasks.confidence import FILE as CONFIDENCE
from regard.tasks.run_folder import CONFIG, change_decoding


def rounds(study: StudyConfig, cells: Sequence[StudyCell], *, beside: Path) -> list[list[StudyCell]]:
    """Divide runs into two rounds: those that are trained, and those that can copy one of them.

    Example:
        >>> from regard.config import validate
        >>> variants = {"x": {}, "y": {"settings": {"decoding": {"beam_size": 1}}}}
        >>> study = validate({"name": "s", "data": {"a": {"test": {"source": "a"}}}, "variants": variants}, "here", kind=StudyConfig)
        >>> [[cell.name for cell in each] for each in rounds(study, study_cells(study), beside=Path())]
        [['a-x-1', 'a-x-2', 'a-x-3'], ['a-y-1', 'a-y-2', 'a-y-3']]
    """
    first: dict[str, StudyCell] = {}
    for cell in cells:
        first.setdefault(training_settings(cell_config(study, cell, folder=beside)), cell)
    trained = list(first.values())
    return [trained, [cell for cell in cells if cell not in trained]]


def reuse_training(study: StudyConfig, folder: Path, cell: StudyCell, config: RunConfig) -> None:
    """Copy a finished run of the same training, unless the cell has a run; either gets the decoding settings of the study.

    Args:
        study: the study.
        folder: its folder.
        cell: the run.
        config: its configuration.

    Raises:
        CheckpointError: the cell has a damaged run.
    """
    run = folder / RUNS / cell.name
    if (run / CONFIG).exists():
        change_decoding(run, config, made_by_decoding=(CONFIDENCE,))
    if run.exists():
        return
    _note(folder, cell.name).unlink(missing_ok=True)
    for other in study_cells(study):
        equal, made = folder / RUNS / other.name, folder / CONFIGS / f"{other.name}.yaml"
        if other == cell or not result_file(folder, other).exists() or not (equal / "model").exists() or not made.exists():
            continue
        if training_settings(load_config(made, kind=type(config))) != training_settings(config):
            continue
        draft = run.with_name(f".{run.name}.{uuid.uuid4().hex}")
        try:
            shutil.copytree(equal, draft)
            change_decoding(draft, config, made_by_decoding=(CONFIDENCE,))
            if (origin := copied_from(folder, other.name) or other.name) != cell.name:
                _note(folder, cell.name).write_text(origin, encoding="utf-8")
            draft.rename(run)
        except (OSError, CheckpointError) as error:  # trained instead
            progress.message(f"{cell.name}: the equal run {other.name} cannot be copied ({error})", warning=True)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return


def copied_from(folder: Path, name: str) -> str | None:
    """Return the run that a run of a study is a copy of; None if it was trained.

    Example:
        >>> copied_from(Path("no-such-study"), "a-x-1")
    """
    with suppress(OSError, UnicodeDecodeError):
        return _note(folder, name).read_text(encoding="utf-8")
    return None


def _note(folder: Path, name: str) -> Path:
    return folder / RUNS / f"{name}.copied"
