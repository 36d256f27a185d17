"""What a report shows of titles that Markdown, HTML or matplotlib would read as commands, and of a study that is not finished."""

from __future__ import annotations

import html
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest

from regard.config import validate
from regard.config.study import StudyCell, StudyConfig
from regard.study import build_report
from regard.study.findings import corrected_for
from regard.study.report import Report
from regard.study.report_files import curves, markdown, page, table
from regard.study.results import result_file
from tests.study.test_report import put, right, study_of


def titled(folder: Path, *, title: str = "a study", data: str = "a set", variants: Mapping[str, str]) -> Report:
    """Return the report of a study of two variants with these titles."""
    tree = study_of("classification", {"says": "it helps", "better": "good", "than": "plain", "data": ["a"]}).model_dump(mode="json")
    tree["title"] = title
    tree["data"]["a"]["title"] = data
    for name, own in variants.items():
        tree["variants"][name]["title"] = own
    for variant, number in (("plain", 20), ("good", 45)):
        put(folder, "classification", "a", variant, 1, right(number))
    return build_report(validate(tree, "here", kind=StudyConfig), folder, samples=50)


@pytest.mark.parametrize("title", ["costs $5 \\foo$ b", "_hidden", "$", "\u6ce8\u610f \U0001f389", "a_b^c & <i>"])
def test_learning_curves_show_every_title_as_it_is(tmp_path: Path, title: str) -> None:
    report = titled(tmp_path, data=f"of {title}", variants={"plain": title, "good": "other"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that no font has
        drawn = curves(report)
    texts = [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", drawn)]
    assert {title, f"of {title}", "other"} <= set(texts)


def test_titles_are_no_html_and_break_no_table(tmp_path: Path) -> None:
    data, plain, good = "set <!-- x", "<script>alert(1)</script> a\\|b", "</table> &lt;b&gt; p < 0.5"
    report = titled(tmp_path, title="<b>all & more", data=data, variants={"plain": plain, "good": good})
    text = markdown(report)
    assert not re.search(r"<[A-Za-z/!?]", text)
    assert text.startswith("# &lt;b>all & more\n")
    assert "&lt;/table> &amp;lt;b&amp;gt; p < 0.5 |" in text
    assert "&lt;script>alert(1)&lt;/script> a\\\\\\|b |" in text  # an escaped backslash, then an escaped bar
    head, line, *rows = [line for line in text.splitlines() if line.startswith("|")][:4]
    assert {len(re.sub(r"\\.", "", row).split("|")) for row in (head, *rows)} == {len(line.split("|"))}
    assert html.escape(plain) in page(report)


def test_what_is_not_tested_yet_counts_in_the_correction(tmp_path: Path) -> None:
    says = [{"says": f"{name} helps", "better": name, "than": "plain", "data": ["a"]} for name in ("good", "same", "absent")]
    study, seen = study_of("classification", *says), []
    for variants in ({"plain": 20, "good": 27}, {"same": 45}, {"absent": 46}):
        for variant, number in variants.items():
            put(tmp_path, "classification", "a", variant, 1, right(number))
        report = build_report(study, tmp_path, samples=1000)
        first = report.findings[0]
        assert first.p_value is not None
        tested = sum(row.gain is not None for row in report.findings)
        seen.append((first.p_value, first.corrected))
        for text in (markdown(report), page(report)):
            assert (f"{tested} of 3 hypotheses tested so far" in text) == (tested < 3)
            assert f"all 6 comparisons that the study plans (Holm), {tested} of them tested so far" in text  # the set b has no run
    assert len({p_value for p_value, _ in seen}) == 1
    p_value = seen[0][0]
    assert [corrected for _, corrected in seen] == pytest.approx([3 * p_value, 2 * p_value, p_value])


def test_comparisons_with_the_baseline_are_corrected_for_all_that_are_planned(tmp_path: Path) -> None:
    report = titled(tmp_path, variants={})
    [row] = [row for row in report.rows if row.variant == "good"]
    assert row.p_value is not None
    assert row.corrected == pytest.approx(6 * row.p_value)  # three variants on two data sets
    whole = build_report(study_of("classification").model_copy(update={"data": {"a": report.study.data["a"]}}), tmp_path, samples=50)
    assert "for all 3 comparisons that the study plans (Holm), 1 of them" in markdown(whole)
    for variant in ("same", "absent"):
        put(tmp_path, "classification", "a", variant, 1, right(21))
    whole = build_report(whole.study, tmp_path, samples=50)
    assert "Corrected: for all comparisons of the table (Holm)." in markdown(whole)
    assert len(table(whole)[1]) == 4


@pytest.mark.parametrize(("p_values", "expected"), [([], []), ([0.01], [0.04]), ([0.5, 0.01], [1.0, 0.04]), ([0.01] * 4, [0.04] * 4)])
def test_the_correction_is_for_four_planned_comparisons(p_values: list[float], expected: list[float]) -> None:
    assert corrected_for(p_values, planned=4) == pytest.approx(expected)


def test_runs_of_equal_settings_have_one_signature(tmp_path: Path) -> None:
    signatures = {"plain": "n:60|ci95:wilson 70.08-89.44", "good": "n:60|ci95:wilson 60.00-80.00|more:1"}
    for seed in (1, 2):
        for variant, signature in signatures.items():
            put(tmp_path, "classification", "a", variant, seed, right(20 + seed))
            path = result_file(tmp_path, StudyCell(data="a", variant=variant, seed=seed))
            own = {"signatures": {"accuracy": signature.replace("wilson ", f"wilson {seed}")}}
            config = path.parents[1] / "configs" / f"{path.stem}.yaml"
            config.parent.mkdir(exist_ok=True)
            config.write_text("training: {optimizer: adam}\n")
            path.write_text(json.dumps(json.loads(path.read_text()) | own))
    text = markdown(build_report(study_of("classification", seeds=(1, 2)), tmp_path, samples=10))
    assert "accuracy: n:60|ci95:wilson or n:60|ci95:wilson|more:1." in text
