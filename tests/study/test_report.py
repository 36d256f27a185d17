"""What a report says of the hypotheses of its study: made from results whose differences are known."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from regard.config import validate
from regard.config.study import StudyCell, StudyConfig
from regard.study import build_report, write_report
from regard.study.report_files import curves, findings, markdown, table
from regard.study.run import result_file

TEST = {"classification": {"examples": "a.tsv"}, "lm": {"text": "a.txt"}, "captioning": {"captions": "a.txt", "images": "a.tar"}}
MAIN = {"classification": ("accuracy", "mean"), "lm": ("perplexity", "perplexity"), "captioning": ("CIDEr-D", "mean")}


def study_of(task: str, *hypotheses: Mapping[str, Any], seeds: Sequence[int] = (1,)) -> StudyConfig:
    tree = {
        "name": "known",
        "task": task,
        "data": {"a": {"test": TEST[task]}, "b": {"title": "the other", "test": TEST[task]}},
        "variants": {name: {} for name in ("plain", "good", "same", "absent")},
        "seeds": list(seeds),
        "hypotheses": list(hypotheses),
    }
    return validate(tree, "here", kind=StudyConfig)


def put(folder: Path, task: str, data: str, variant: str, seed: int, counts: Sequence[tuple[float, float]]) -> None:
    """Keep a result as `regard compare` does, of the counts of its items."""
    main, kind = MAIN[task]
    path = result_file(folder, StudyCell(data=data, variant=variant, seed=seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    cell = {"data": data, "variant": variant, "seed": seed}
    result = {"cell": cell, "main": main, "metric": kind, "scores": {main: 1.0}, "attention": {}, "command": "regard train"}
    result["curve"] = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    path.write_text(json.dumps({**result, "counts": list(map(list, counts))}))


def right(number: int, of: int = 60) -> list[tuple[float, float]]:
    return [(100.0 * (item < number), 1.0) for item in range(of)]


def test_a_hypothesis_holds_or_its_opposite_or_nothing_is_shown(tmp_path: Path) -> None:
    for data in ("a", "b"):
        for variant, number in (("plain", 20), ("good", 45), ("same", 21)):
            put(tmp_path, "classification", data, variant, 1, right(number))
    study = study_of(
        "classification",
        {"says": "it helps", "better": "good", "than": "plain", "published": "+3.0"},
        {"says": "it harms", "better": "plain", "than": "good", "data": ["b"]},
        {"says": "a little", "better": "same", "than": "plain", "data": ["a"]},
        {"says": "nobody knows", "better": "absent", "than": "plain", "data": ["a"]},
    )
    report = build_report(study, tmp_path, samples=200)
    assert [(row.says, row.data, row.runs, row.verdict) for row in report.findings] == [
        ("it helps", "a", 1, "holds"),
        ("it helps", "b", 1, "holds"),
        ("it harms", "b", 1, "the opposite holds"),
        ("a little", "a", 1, "not shown"),
        ("nobody knows", "a", 0, "not tested"),
    ]
    helps, _, harms, little, nobody = report.findings
    assert (helps.gain, harms.gain, little.gain, nobody.gain) == pytest.approx((25 / 0.6, -25 / 0.6, 1 / 0.6, None))
    # Holm over the four that were tested: the least p-value of all is multiplied by four.
    assert helps.p_value == pytest.approx(1 / 201)
    assert helps.corrected == pytest.approx(4 / 201)
    columns, rows = findings(report) or ([], [])
    assert columns == ["hypothesis", "data", "published", "here, accuracy", "p", "p, corrected", "seeds", "verdict"]
    assert rows[1] == ["it helps", "the other", "+3.0", "+41.67", "0.005", "0.020", "1", "holds"]
    assert rows[-1] == ["nobody knows", "a", "", "", "", "", "0", "not tested"]
    paths = {path.name: path.read_text(encoding="utf-8") for path in write_report(report, tmp_path)}
    for text in (markdown(report), paths["report.md"], paths["report.html"]):
        assert "the opposite holds" in text
        assert "+41.67" in text
    assert [row["verdict"] for row in json.loads(paths["report.json"])["findings"]][2:] == ["the opposite holds", "not shown", "not tested"]


def test_of_perplexity_the_lower_is_the_better(tmp_path: Path) -> None:
    for variant, nats in (("plain", 2.0), ("good", 1.0)):
        put(tmp_path, "lm", "a", variant, 1, [(nats, 1.0)] * 60)
    report = build_report(study_of("lm", {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]}), tmp_path, samples=100)
    [row] = report.findings
    assert row.gain == pytest.approx(2.718281828**2 - 2.718281828)
    assert row.verdict == "holds"


def test_only_seeds_that_both_have_are_compared(tmp_path: Path) -> None:
    for seed, number in ((1, 30), (2, 40), (3, 50)):
        put(tmp_path, "classification", "a", "good", seed, right(number))
    put(tmp_path, "classification", "a", "plain", 2, right(10))
    study = study_of("classification", {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]}, seeds=(1, 2, 3))
    [row] = build_report(study, tmp_path, samples=100).findings
    assert (row.runs, row.gain) == (1, pytest.approx(30 / 0.6))


def test_the_published_difference_is_that_of_the_figures_unless_said(tmp_path: Path) -> None:
    put(tmp_path, "classification", "a", "plain", 1, right(3))
    says = {"better": "good", "than": "plain"}
    study = study_of("classification", {"says": "it helps", **says}, {"says": "as they say", **says, "published": "+9 elsewhere"})
    figures = {"a": {"good": 28.17, "plain": 27.96}, "b": {"good": 3.0}}
    data = {name: each.model_copy(update={"published": figures[name]}) for name, each in study.data.items()}
    rows = build_report(study.model_copy(update={"data": data}), tmp_path, samples=1).findings
    assert [row.published for row in rows] == ["+0.21", None, "+9 elsewhere", "+9 elsewhere"]


def test_a_study_without_hypotheses_says_nothing_of_them(tmp_path: Path) -> None:
    put(tmp_path, "classification", "a", "plain", 1, right(3))
    report = build_report(study_of("classification"), tmp_path, samples=1)
    assert findings(report) is None
    assert "found out" not in markdown(report)


def test_scores_of_captions_are_told_in_thousandths(tmp_path: Path) -> None:
    for variant, value in (("plain", 0.25), ("good", 0.5)):
        put(tmp_path, "captioning", "a", variant, 1, [(value, 1.0)] * 8)
    report = build_report(study_of("captioning", {"says": "it helps", "better": "good", "than": "plain"}), tmp_path, samples=200)
    columns, (plain, good) = table(report)
    assert columns[3:5] == ["CIDEr-D", "against plain"]
    assert [plain[3:5], good[3:5]] == [["1.000", ""], ["1.000", "+0.250"]]
    shown = findings(report)
    assert shown is not None
    assert shown[1][0][2] == "+0.250"


def test_no_two_learning_curves_look_the_same(tmp_path: Path) -> None:
    study = study_of("lm")
    names = [f"v{number}" for number in range(13)]
    study = study.model_copy(update={"variants": dict.fromkeys(names, study.variants["plain"])})
    for name in names:
        put(tmp_path, "lm", "a", name, 1, [(2.0, 1.0)])
    drawn = curves(build_report(study, tmp_path, samples=10))
    lines = re.findall(r'<path d="M [^"]*" clip-path[^>]* style="([^"]+)"', drawn)
    assert len(lines) == len(set(lines)) == 13
