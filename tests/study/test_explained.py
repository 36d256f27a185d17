"""Explanation methods as variants of a study: the report's figures are those of `regard explain`, and may be asked for later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config.study import load_study
from regard.errors import ConfigError
from regard.study import build_report, run_study
from regard.study.explained import method_table
from regard.study.grid import check_study
from regard.study.report_files import markdown, page
from regard.tasks import generate
from regard.tasks.explained_examples import ExplainedBatch, batches_of_run
from regard.tasks.method_faithfulness import measure_methods
from regard.tasks.translation_evaluation import read_links
from tests.study.test_grid import train_here, written

METHODS = ["weights", "leave-one-out"]
COUNT = 7


def first(item: ExplainedBatch) -> ExplainedBatch:
    """Return the first examples of a batch."""
    parts = {name: getattr(item, name)[:COUNT] for name in ("inputs", "outputs", "pairs", "numbers")}
    return item._replace(batch=item.batch.select(torch.arange(COUNT)), given=COUNT, **parts)


def test_methods_are_measured_on_every_run_and_can_be_added_to_a_finished_study(tmp_path: Path) -> None:
    generate("reverse", tmp_path, train=80, test=9, seed=2)
    study = load_study(written(tmp_path, tmp_path))
    assert run_study(study, tmp_path / "out", beside=tmp_path, train=train_here) == 0
    assert method_table(study, build_report(study, tmp_path / "out", samples=20).runs) is None

    study = load_study(written(tmp_path, tmp_path, methods=METHODS, method_examples=COUNT))
    trained: list[str] = []

    def train(command: Any, log: Path) -> float | None:
        trained.append(command[-1])
        return train_here(command, log)

    for _ in range(2):  # the second time nothing is left to do
        assert run_study(study, tmp_path / "out", beside=tmp_path, train=train) == 0
        assert len(trained) == 2  # commands that find a finished run
    report = build_report(study, tmp_path / "out", samples=20)
    assert method_table(study.model_copy(update={"method_examples": 2}), report.runs) is None  # asked for before
    found = method_table(study, report.runs)
    assert found is not None
    columns, rows = found
    assert columns[2:] == ["method", "runs", "alignment error, %", "comprehensiveness", "sufficiency", "with shuffled weights"]
    methods = [*METHODS, "random order", "greedy leave-one-out"]
    expected = [("none", method) for method in methods if method != "weights"] + [("additive", method) for method in methods]
    assert [(row[1], row[2]) for row in rows] == expected
    assert "Explanation methods:" in markdown(report)
    assert "<h2>Explanation methods</h2>" in page(report)

    run = tmp_path / "out" / "runs" / "letters-additive-1"
    batches = batches_of_run(run, tmp_path / "test.source", target=tmp_path / "test.target")
    links = read_links(tmp_path / "test.links", "character")
    links = links._replace(sure=links.sure[:COUNT], possible=links.possible[:COUNT])
    weights = measure_methods([first(batches[0])], ["weights"], links=links, outputs=2, seed=1).methods[0].to_json()
    own = next(each for each in report.runs if each["cell"]["variant"] == "additive")["methods"]["figures"][0]
    for name in ("alignment_error", "comprehensiveness", "sufficiency"):
        assert own[name]["value"] == pytest.approx(weights[name]["value"])


def test_methods_that_do_not_exist_are_refused_before_training(tmp_path: Path) -> None:
    generate("reverse", tmp_path, train=80, test=9, seed=2)
    study = load_study(written(tmp_path, tmp_path, methods=["weights", "guessing"]))
    with pytest.raises(ConfigError, match=r"reversing: methods: .*guessing.*, expected all, or some of weights, rollout"):
        check_study(study, tmp_path / "out", beside=tmp_path)
