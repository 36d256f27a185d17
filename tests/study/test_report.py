"""What a report says of the hypotheses of its study: made from results whose differences are known."""

from __future__ import annotations

import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.config import validate
from regard.config.study import StudyCell, StudyConfig, load_study
from regard.errors import ConfigError, DataError
from regard.metrics.classification import macro_f1, macro_f1_counts
from regard.metrics.significance import score_of_counts
from regard.study import build_report, write_report
from regard.study.report_files import by_length, conclusions, curves, findings, markdown, table, write_style
from regard.study.results import result_file

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


def put(
    folder: Path, task: str, data: str, variant: str, seed: int, counts: Sequence[tuple[float, float]], weights: str | None = None
) -> None:
    """Keep a result as `regard compare` does, of the counts of its items; the same `weights` have the same losses."""
    main, kind = MAIN[task]
    path = result_file(folder, StudyCell(data=data, variant=variant, seed=seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    cell = {"data": data, "variant": variant, "seed": seed}
    result = {"cell": cell, "main": main, "metric": kind, "attention": {}, "command": "regard train"}
    result["scores"] = {main: score_of_counts(kind, np.array(counts).sum(0)) if counts else 1.0}
    own = zlib.crc32((weights or path.stem).encode()) / 2**60
    result["curve"] = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0 + own}]
    path.write_text(json.dumps({**result, "counts": list(map(list, counts))}))


def right(number: int, of: int = 60) -> list[tuple[float, float]]:
    return [(100.0 * (item < number), 1.0) for item in range(of)]


def test_an_evaluation_whose_loss_was_not_finite_is_left_out_of_the_curve(tmp_path: Path) -> None:
    study = study_of("classification", {"says": "it helps", "better": "good", "than": "plain"})
    for variant, number in (("plain", 20), ("good", 45)):
        put(tmp_path, "classification", "a", variant, 1, right(number))
    path = tmp_path / "results" / "a-good-1.json"
    result = json.loads(path.read_text())
    result["curve"].insert(1, {"step": 2, "loss": None, "accuracy": None})
    path.write_text(json.dumps(result))
    pages = write_report(build_report(study, tmp_path, samples=20), tmp_path)
    assert "validation loss, a line per seed" in next(page for page in pages if page.suffix == ".html").read_text(encoding="utf-8")


def test_titles_of_several_lines_or_with_bars_break_no_table(tmp_path: Path) -> None:
    study = study_of("classification", {"says": "it\nhelps\n", "better": "good", "than": "plain"})
    tree = study.model_dump(mode="json")
    tree["variants"]["plain"]["title"] = "a|b\nc"
    study = validate(tree, "here", kind=StudyConfig)
    for variant, number in (("plain", 20), ("good", 45)):
        put(tmp_path, "classification", "a", variant, 1, right(number))
    report = build_report(study, tmp_path, samples=200)
    assert conclusions(report)[0].startswith("it helps (a): ")
    head, line, *rows = [line for line in markdown(report).splitlines() if line.startswith("|")]
    assert "difference from a\\|b c" in head
    assert {row.replace("\\|", "").count("|") for row in (head, line, *rows[:2])} == {line.count("|")}


def test_a_hypothesis_holds_or_its_opposite_or_nothing_is_shown(tmp_path: Path) -> None:
    for data in ("a", "b"):
        for variant, number in (("plain", 20), ("good", 45), ("same", 21)):
            for seed in (1, 2, 3):
                put(tmp_path, "classification", data, variant, seed, right(number))
    study = study_of(
        "classification",
        {"says": "it helps", "better": "good", "than": "plain", "published": "+3.0"},
        {"says": "it harms", "better": "plain", "than": "good", "data": ["b"]},
        {"says": "a little", "better": "same", "than": "plain", "data": ["a"]},
        {"says": "nobody knows", "better": "absent", "than": "plain", "data": ["a"]},
        seeds=(1, 2, 3),
    )
    report = build_report(study, tmp_path, samples=200)
    assert [(row.says, row.data, row.runs, row.verdict) for row in report.findings] == [
        ("it helps", "a", 3, "holds"),
        ("it helps", "b", 3, "holds"),
        ("it harms", "b", 3, "the opposite holds"),
        ("a little", "a", 3, "not shown"),
        ("nobody knows", "a", 0, "not tested"),
    ]
    helps, _, harms, little, nobody = report.findings
    assert (helps.gain, harms.gain, little.gain, nobody.gain) == pytest.approx((25 / 0.6, -25 / 0.6, 1 / 0.6, None))
    # Holm over all five, of which one is not tested yet: the least p-value of all is multiplied by five.
    assert helps.p_value == pytest.approx(1 / 201)
    assert helps.corrected == pytest.approx(5 / 201)
    columns, rows = findings(report) or ([], [])
    assert columns[:4] == ["hypothesis", "data", "published", "gain, accuracy"]
    assert columns[4:] == ["95 % interval", "p", "p, corrected", "seeds", "seeds needed", "verdict"]
    low, high = helps.interval or (0.0, 0.0)
    error = 100 * (25 / 60 * 35 / 60 / 59) ** 0.5  # of the items, which do the same to every run
    assert (low, high) == pytest.approx((25 / 0.6 - 1.96 * error, 25 / 0.6 + 1.96 * error), abs=2)  # 200 draws
    assert rows[1] == ["it helps", "the other", "+3.0", "+41.67", f"{low:+.2f} to {high:+.2f}", "0.005", "0.025", "3", "3", "holds"]
    assert rows[-1] == ["nobody knows", "a", "", "", "", "", "", "0", "", "not tested"]
    assert conclusions(report)[1] == (
        f"it helps (the other): holds (3 seeds): +41.67 accuracy [{low:+.2f}, {high:+.2f}], corrected p = 0.025 over seeds and items."
    )
    assert conclusions(report)[3].startswith("a little (a): not shown (3 seeds): +1.67 accuracy [-")
    needed = "over 1,000 seeds of each, or more test items, would show such a difference, if it is real."
    assert conclusions(report)[3].endswith(f" over seeds and items; {needed}")
    assert conclusions(report)[-1] == "nobody knows (a): not tested."
    paths = {path.name: path.read_text(encoding="utf-8") for path in write_report(report, tmp_path)}
    for text in (markdown(report), paths["report.md"], paths["report.html"]):
        assert "the opposite holds" in text
        assert all(html.unescape(line) in html.unescape(text) for line in conclusions(report))
        assert "+41.67" in text
    assert [row["verdict"] for row in json.loads(paths["report.json"])["findings"]][2:] == ["the opposite holds", "not shown", "not tested"]


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
@pytest.mark.parametrize(("better", "than", "sign"), [("good", "plain", 1), ("plain", "good", -1)])
def test_fewer_than_three_seeds_suggest_and_never_hold(tmp_path: Path, seeds: int, better: str, than: str, sign: int) -> None:
    for seed in range(1, seeds + 1):
        for variant, number in (("plain", 0), ("good", 60)):  # as clear as test items can be
            put(tmp_path, "classification", "a", variant, seed, right(number))
    says = {"says": "it helps", "better": better, "than": than, "data": ["a"]}
    report = build_report(study_of("classification", says, seeds=range(1, seeds + 1)), tmp_path, samples=1000)
    [row] = report.findings
    assert (row.runs, row.gain) == (seeds, pytest.approx(sign * 100))
    words = {(True, 1): "holds", (True, -1): "the opposite holds", (False, 1): "suggests", (False, -1): "suggests the opposite"}
    assert row.verdict == words[seeds >= 3, sign]
    assert row.over == ("items" if seeds == 1 else "seeds and items")
    cells = (findings(report) or ([], [[]]))[1][0]
    assert (cells[-3], cells[-1]) == (str(seeds), row.verdict)


def test_variants_of_the_same_trainings_are_compared_seed_by_seed(tmp_path: Path) -> None:
    # Seeds differ by much more than the variants do, and the same trainings are measured in both.
    study = study_of("classification", {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]}, seeds=(1, 2, 3))
    for equal in (False, True):
        for seed, number in enumerate((700, 1000, 1300), 1):
            put(tmp_path, "classification", "a", "plain", seed, right(number, 2000))
            put(tmp_path, "classification", "a", "good", seed, right(number + 100 + seed, 2000), f"a-plain-{seed}" if equal else None)
        report = build_report(study, tmp_path, samples=10_000)
        [row] = report.findings
        assert (row.paired, row.verdict, row.gain) == (equal, "holds" if equal else "not shown", pytest.approx(5.1))
        assert ("over seeds and items, paired by seed" in row.sentence("accuracy", data="a")) == equal
        assert ("Paired: with every seed" in markdown(report)) == equal
        marked = [any("(paired)" in cell for cell in line) for line in (table(report)[1][1], (findings(report) or ([], [[]]))[1][0])]
        assert marked == [equal, equal]
        [alone] = build_report(study.model_copy(update={"seeds": (1,)}), tmp_path).findings
        assert (alone.paired, alone.over) == (equal, "items")
        assert ("not shown if differences of paired seeds have a standard deviation above" in alone.sentence("accuracy", data="a")) == equal
    put(tmp_path, "classification", "a", "good", 3, right(1403, 2000))  # trained anew
    [row] = build_report(study, tmp_path, samples=1000).findings
    assert (row.paired, row.gain) == (False, pytest.approx(5.1))


def test_variants_without_a_difference_need_no_seeds(tmp_path: Path) -> None:
    for seed, number in enumerate((700, 1000, 1300), 1):
        for variant in ("plain", "good"):
            put(tmp_path, "classification", "a", variant, seed, right(number, 2000), f"a-plain-{seed}")
    study = study_of("classification", {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]}, seeds=(1, 2, 3))
    [row] = build_report(study, tmp_path, samples=1000).findings
    assert (row.gain, row.p_value, row.needed, row.verdict) == (0, 1, None, "not shown")
    assert row.sentence("accuracy", data="a").endswith("p = 1.000 over seeds and items, paired by seed.")


def test_what_test_items_make_certain_does_not_hold_where_seeds_differ(tmp_path: Path) -> None:
    # Over test items alone 9 % of difference are certain; the six trainings are a draw from one heap.
    for variant, numbers in (("plain", (1250, 1550, 1280)), ("good", (1610, 1330, 1580))):
        for seed, number in enumerate(numbers, 1):
            put(tmp_path, "classification", "a", variant, seed, right(number, 2000))
    study = study_of("classification", {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]}, seeds=(1, 2, 3))
    [row] = build_report(study, tmp_path).findings
    assert row.gain == pytest.approx(22 / 3)
    assert row.verdict == "not shown"
    assert row.needed is not None
    assert row.needed > 3
    low, high = row.interval or (0.0, 0.0)
    assert low < 0 < high
    assert row.sentence("accuracy", data="a").endswith(
        f" over seeds and items; about {row.needed} seeds of each would show such a difference, if it is real."
    )
    [alone] = build_report(study.model_copy(update={"seeds": (1,)}), tmp_path).findings
    assert (alone.runs, alone.over, alone.verdict) == (1, "items", "suggests")
    assert alone.p_value is not None
    assert alone.p_value < 0.001
    assert alone.needed is None
    tolerated = f"{alone.tolerated:.2f}"
    assert alone.sentence("accuracy", data="a").endswith(
        f"corrected p < 0.001 over test items alone; not shown if seeds have a standard deviation above {tolerated} accuracy."
    )


@pytest.mark.parametrize(("seeds", "interval"), [((1,), None), ((1, 2, 3), "over seeds alone")])
def test_without_scores_of_test_items_there_is_no_verdict(tmp_path: Path, seeds: tuple[int, ...], interval: str | None) -> None:
    for seed in seeds:
        for variant, score in (("plain", 50.0), ("good", 80.0)):
            put(tmp_path, "classification", "a", variant, seed, right(0))
            path = result_file(tmp_path, StudyCell(data="a", variant=variant, seed=seed))
            kept = json.loads(path.read_text())
            path.write_text(json.dumps({**kept, "counts": None, "scores": {"accuracy": score + seed * (variant == "good")}}))
    says = {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]}
    report = build_report(study_of("classification", says, seeds=seeds), tmp_path)
    [row] = report.findings
    assert (row.verdict, row.p_value, row.corrected, row.runs) == ("no verdict", None, None, len(seeds))
    assert row.gain == pytest.approx(30 + sum(seeds) / len(seeds))
    [line] = conclusions(report)
    assert line.endswith("; it needs the scores of at least two test items.")
    assert (interval or "[") in line if interval else "[" not in line
    assert report.rows[1].p_value is None
    assert (findings(report) or ([], [[]]))[1][0][-3:] == [str(len(seeds)), "", "no verdict"]


def test_seeds_count_only_where_both_variants_have_them(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        put(tmp_path, "classification", "a", "good", seed, right(60))
    for seed in (1, 2):
        put(tmp_path, "classification", "a", "plain", seed, right(0))
    study = study_of("classification", {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]}, seeds=(1, 2, 3))
    [row] = build_report(study, tmp_path, samples=1000).findings
    assert (row.runs, row.verdict) == (2, "suggests")


def test_no_kept_table_says_that_fewer_than_three_seeds_show_that_something_holds() -> None:
    results = Path(__file__).parents[2] / "docs" / "results"
    kept = [row for path in results.glob("study_*.json") for row in json.loads(path.read_text(encoding="utf-8")).get("findings", [])]
    assert kept
    assert [row for row in kept if (row["runs"] < 3 or row["over"] != "seeds and items") and "holds" in row["verdict"]] == []
    table_ = json.loads((results / "study_findings.json").read_text(encoding="utf-8"))
    seeds, verdict = map(table_["columns"].index, ("seeds", "verdict"))
    assert [row for row in table_["rows"] if row[seeds] < 3 and "holds" in row[verdict]] == []


@pytest.mark.parametrize("name", ["lin2017_entailment", "li2018_lstm"])
def test_kept_verdicts_are_those_of_the_kept_results(name: str) -> None:
    root = Path(__file__).parents[2]
    kept = json.loads((root / "docs" / "results" / f"study_{name}.json").read_text(encoding="utf-8"))["findings"]
    study = load_study(root / "studies" / f"{name}.yaml", data="data")
    found = build_report(study, root / "docs" / "results" / "studies" / name).findings
    assert [(row["says"], row["verdict"], row["over"]) for row in kept] == [(row.says, row.verdict, row.over) for row in found]
    for row, again in zip(kept, found, strict=True):
        assert (row["gain"], row["corrected"]) == pytest.approx((again.gain, again.corrected), rel=1e-6)


def test_kept_pages_share_one_style_and_others_hold_their_own(tmp_path: Path) -> None:
    pages = Path(__file__).parents[2] / "docs" / "results" / "studies"
    write_style(tmp_path / "report.css")
    style = (tmp_path / "report.css").read_text(encoding="utf-8")
    assert (pages / "report.css").read_text(encoding="utf-8") == style
    for path in pages.glob("*/report.html"):
        text = path.read_text(encoding="utf-8")
        assert '<link rel="stylesheet" href="../report.css">' in text
        assert style.strip() not in text
    put(tmp_path, "classification", "a", "plain", 1, right(3))
    report = build_report(study_of("classification"), tmp_path, samples=1)
    own = write_report(report, tmp_path)[1].read_text(encoding="utf-8")
    assert f"<style>{style.strip()}</style>" in own
    assert "<link" not in own


def test_of_perplexity_the_lower_is_the_better(tmp_path: Path) -> None:
    for variant, nats in (("plain", 2.0), ("good", 1.0)):
        put(tmp_path, "lm", "a", variant, 1, [(nats, 1.0)] * 60)
    report = build_report(study_of("lm", {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]}), tmp_path, samples=100)
    [row] = report.findings
    assert row.gain == pytest.approx(2.718281828**2 - 2.718281828)
    assert row.verdict == "suggests"


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
    told: list[dict[str, Any]] = [
        {"says": "as they say", **says, "published": "+9 elsewhere"},
        {"says": "alone", **says, "published": 8.93},
    ]
    study = study_of("classification", {"says": "it helps", **says}, *told)
    figures = {"a": {"good": 28.17, "plain": 27.96}, "b": {"good": 3.0}}
    data = {name: each.model_copy(update={"published": figures[name]}) for name, each in study.data.items()}
    rows = build_report(study.model_copy(update={"data": data}), tmp_path, samples=1).findings
    assert [row.published for row in rows] == ["+0.21", None, "+9 elsewhere", "+9 elsewhere", "+8.93", "+8.93"]


def test_a_published_difference_is_positive_if_it_is_better_also_where_lower_is(tmp_path: Path) -> None:
    put(tmp_path, "lm", "a", "plain", 1, [(9.0, 3.0), (6.0, 3.0)])
    study = study_of("lm", {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]})
    data = {**study.data, "a": study.data["a"].model_copy(update={"published": {"good": 80.0, "plain": 100.0}})}
    [row] = build_report(study.model_copy(update={"data": data}), tmp_path, samples=1).findings
    assert row.published == "+20"


def test_a_study_without_hypotheses_says_nothing_of_them(tmp_path: Path) -> None:
    put(tmp_path, "classification", "a", "plain", 1, right(3))
    report = build_report(study_of("classification"), tmp_path, samples=1)
    assert findings(report) is None
    assert "Hypotheses" not in markdown(report)


def test_scores_of_captions_are_told_in_thousandths(tmp_path: Path) -> None:
    for variant, values in (("plain", (0.25, 0.25)), ("good", (0.5625, 0.4375))):
        put(tmp_path, "captioning", "a", variant, 1, [(value, 1.0) for value in values * 60])
    report = build_report(study_of("captioning", {"says": "it helps", "better": "good", "than": "plain"}), tmp_path, samples=200)
    columns, (plain, good) = table(report)
    assert columns[3:7] == ["CIDEr-D", "difference from plain", "95 % interval", "p"]
    assert [plain[3:6], good[3:6]] == [["0.250", "", ""], ["0.500", "+0.250", "+0.239 to +0.261"]]
    assert good[6].endswith(" (items)")
    shown = findings(report)
    assert shown is not None
    assert shown[1][0][2] == "+0.250"


def test_scores_that_one_item_alone_holds_are_refused(tmp_path: Path) -> None:
    for variant in ("plain", "good"):
        put(tmp_path, "classification", "a", variant, 1, [(100.0, 1.0), (0.0, 0.0)])
    with pytest.raises(DataError, match="a-good-1: run_score: mean without test item 1: nan, expected a finite number"):
        build_report(study_of("classification"), tmp_path)


def test_a_result_of_other_items_is_named(tmp_path: Path) -> None:
    for seed, items in ((1, 60), (2, 60), (3, 5)):
        put(tmp_path, "classification", "a", "plain", seed, right(3, items))
    with pytest.raises(ConfigError, match=r"a-plain-3\.json: counts of 5 items, others of a have 60; remove it to measure the run again"):
        build_report(study_of("classification", seeds=(1, 2, 3)), tmp_path)


def test_no_two_learning_curves_look_the_same(tmp_path: Path) -> None:
    study = study_of("lm")
    names = [f"v{number}" for number in range(13)]
    study = study.model_copy(update={"variants": dict.fromkeys(names, study.variants["plain"])})
    for name in names:
        put(tmp_path, "lm", "a", name, 1, [(2.0, 1.0)])
    drawn = curves(build_report(study, tmp_path, samples=10))
    lines = re.findall(r'<path d="M [^"]*" clip-path[^>]* style="([^"]+)"', drawn)
    assert len(lines) == len(set(lines)) == 13


def test_rows_by_length_that_not_all_runs_have_are_left_out(tmp_path: Path) -> None:
    for seed, rows in ((1, [["0-8", 4, 30.0], ["9-11", 4, 20.0], ["12+", 2, 10.0]]), (2, [["0-8", 4, 32.0], ["9-11", 6, 12.0]])):
        put(tmp_path, "classification", "a", "plain", seed, right(20))
        path = result_file(tmp_path, StudyCell(data="a", variant="plain", seed=seed))
        path.write_text(json.dumps({**json.loads(path.read_text()), "by_length": rows}))
    report = build_report(study_of("classification", seeds=(1, 2)), tmp_path, samples=1)
    assert [row.by_length for row in report.rows if row.variant == "plain"] == [{"0-8": (4, 31.0)}]
    assert by_length(report) == (["data", "variant", "0-8"], [["a", "number of sentences", "4"], ["a", "plain", "31.0"]])


@pytest.mark.parametrize(
    ("first", "second", "ways"),
    [
        ("possible:no", "possible:no|attention:layer 2, head 1", r"\(possible:no and possible:no\|attention\)"),
        ("tok:13a", "tok:zh", r"\(tok:13a and tok:zh\)"),
        ("pairs:3/5", "pairs:3/6", r"\(pairs:/5 and pairs:/6\)"),
        (None, "tok:13a", r"\(not known and tok:13a\)"),
    ],
)
def test_scores_measured_in_two_ways_are_not_averaged(tmp_path: Path, first: str | None, second: str, ways: str) -> None:
    for seed, signature in ((1, first), (2, second)):
        put(tmp_path, "classification", "a", "plain", seed, right(20))
        path = result_file(tmp_path, StudyCell(data="a", variant="plain", seed=seed))
        signatures = {} if signature is None else {"signatures": {"accuracy": signature}}
        path.write_text(json.dumps({**json.loads(path.read_text()), **signatures}))
    with pytest.raises(ConfigError, match=rf"results of a-plain-1 and a-plain-2 differ in how accuracy was measured {ways}; remove"):
        build_report(study_of("classification", seeds=(1, 2)), tmp_path, samples=1)


def test_values_that_each_run_has_for_itself_do_not_count(tmp_path: Path) -> None:
    own = ("pairs:57/60|ci95:wilson 10.00-20.00|attention:layer 1", "pairs:60/60|ci95:wilson 30.00-40.00|attention:layer 2")
    for seed, signature in enumerate(own, start=1):
        put(tmp_path, "classification", "a", "plain", seed, right(20))
        path = result_file(tmp_path, StudyCell(data="a", variant="plain", seed=seed))
        path.write_text(json.dumps({**json.loads(path.read_text()), "signatures": {"accuracy": signature}}))
    assert build_report(study_of("classification", seeds=(1, 2)), tmp_path, samples=1).rows[0].runs == 2


def test_variants_may_be_compared_by_macro_f1(tmp_path: Path) -> None:
    expected = [*"abc" * 30, *"d" * 10]
    scores = {}
    for variant, wrong in (("plain", 70), ("good", 10)):
        predicted = ["a"] * wrong + expected[wrong:]
        scores[variant] = macro_f1(predicted, expected).value
        for seed in (1, 2, 3):
            put(tmp_path, "classification", "a", variant, seed, right(0))
            path = result_file(tmp_path, StudyCell(data="a", variant=variant, seed=seed))
            counts = macro_f1_counts(predicted, expected).tolist()
            changes = {"main": "macro-F1", "metric": "macro-f1", "scores": {"macro-F1": scores[variant]}, "counts": counts}
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    study = study_of("classification", {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]}, seeds=(1, 2, 3))
    report = build_report(
        validate(study.model_dump(mode="json") | {"metric": "macro_f1"}, "here", kind=StudyConfig), tmp_path, samples=1000
    )
    [row] = report.findings
    assert (report.metric, row.verdict) == ("macro-F1", "holds")
    assert row.gain == pytest.approx(scores["good"] - scores["plain"])
    assert row.sentence("macro-F1", data="a").startswith("it helps (a): holds (3 seeds): +")
