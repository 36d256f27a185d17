"""benchmarks/area_gains.py, and what docs/studies.md says of its table."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

FINDINGS: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "study_findings.json").read_text(encoding="utf-8"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import area_gains

    return area_gains


def test_the_kept_table_is_that_of_the_findings(script: ModuleType) -> None:
    kept = json.loads((ROOT / "docs" / "results" / "area_gains.json").read_text(encoding="utf-8"))
    assert (kept["columns"], kept["rows"]) == script.rows(FINDINGS)


def test_findings_without_the_study_are_an_error(script: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no row of li2018_small"):
        script.rows({**FINDINGS, "rows": []})


def results_of(study: str) -> dict[str, dict[str, Any]]:
    """The kept results of a study by the names of their runs."""
    files = (ROOT / "docs" / "results" / "studies" / study / "results").glob("*.json")
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def test_the_studies_page_says_what_the_gains_are() -> None:
    page = " ".join((ROOT / "docs" / "studies.md").read_text(encoding="utf-8").split())
    found = [dict(zip(FINDINGS["columns"], row, strict=True)) for row in FINDINGS["rows"] if row[0] == "li2018_small"]
    assert "by tokens and by characters, each model with three seeds: 108 runs." in page
    results = results_of("li2018_small")
    assert len(results) == 108
    assert {row["seeds"] for row in found} == {3}
    assert len(results_of("li2018_tagged")) == 9
    assert "three gains hold, by characters: those of both kinds of areas in the LSTM of 128 cells with one head, and that of area" in page
    head = [row for row in found if row["data"] == "characters" and row["hypothesis"].endswith("LSTM 128, 1 head")]
    small = [row for row in found if row["data"] == "characters" and row["hypothesis"].endswith("Transformer Small")]
    larger = [row for row in found if row["data"] == "characters" and row["hypothesis"].endswith("LSTM 256, 1 head")]
    four = {
        size: [row for row in found if row["data"] == "characters" and row["hypothesis"].endswith(f"LSTM {size}, 4 heads")]
        for size in (128, 256)
    }
    assert (
        "By characters the LSTM of 256 cells gains less than that of 128, with one head about two fifths as much, by both kinds of" in page
    )
    assert "No gain of the larger one is shown." in page
    assert all(0.35 < one["measured gain"] / other["measured gain"] < 0.45 for one, other in zip(larger, head, strict=True))
    assert all(one["measured gain"] < other["measured gain"] for one, other in zip(four[256], four[128], strict=True))
    assert [row["verdict"] for row in (*larger, *four[256])] == ["not shown"] * 4
    assert [row for row in found if "holds" in row["verdict"]] == [*small[1:], *head]
    several = [row for row in found if "4 heads" in row["hypothesis"]]
    assert "LSTMs with four heads are ahead by less, and not shown to be: all eight gains are positive, and three of the intervals" in page
    assert [row["verdict"] for row in several] == ["not shown"] * 8
    assert all(row["measured gain"] > 0 for row in several)
    assert sum(row["95 % interval"].startswith("+") for row in several) == 3
    assert "That of mean areas in the LSTM of 256 cells by characters is as large as the paper's." in page
    assert (round(four[256][0]["measured gain"], 1), round(float(four[256][0]["published gain"]), 1)) == (1.1, 1.1)
    mean = {
        name: sum(results[f"characters-lstm_128_{name}-{seed}"]["scores"]["BLEU"] for seed in (1, 2, 3))
        for name in ("1", "1_area", "1_features", "4")
    }
    assert "By characters four heads alone score more than one, but less than one with areas of either kind." in page
    assert mean["1"] < mean["4"] < min(mean["1_area"], mean["1_features"])
    assert "The Small one is ahead by both; after the correction, only with area features." in page
    assert [(row["seeds"], row["measured gain"] > 0, row["verdict"]) for row in small] == [(3, True, "not shown"), (3, True, "holds")]
    names = ("small", "small_area", "small_features")
    scores = {name: [results[f"characters-{name}-{seed}"]["scores"]["BLEU"] for seed in (1, 2, 3)] for name in names}
    assert "at a rate of 0.001, where the study above has 0.003. It takes 9 runs, of which 4 are here" in page
    assert "two seeds of single positions and one of each kind of areas" in page
    control = {name: result["scores"]["BLEU"] for name, result in results_of("li2018_small_rate").items()}
    assert {*control} == {f"multi30k-{name}" for name in ("small-1", "small-2", "small_area-1", "small_features-1")}
    single, means, features = (
        [control["multi30k-small-1"], control["multi30k-small-2"]],
        control["multi30k-small_area-1"],
        control["multi30k-small_features-1"],
    )
    assert (
        "Single positions score more than with any seed at 0.003, mean areas less than single positions, and area features more than"
        in page
    )
    assert max(scores["small"]) < min(single)
    assert means < min(single) <= max(single) < features
    assert "but by less than with any seed at 0.003" in page
    assert features - min(single) < min(areas - items for areas, items in zip(scores["small_features"], scores["small"], strict=True))
    assert "Both kinds of areas score more at 0.003 than single positions at either rate" in page
    assert min(*scores["small_area"], *scores["small_features"]) > max(*scores["small"], *single)

    def gains(model: str, kind: str) -> list[float]:
        chosen = [row for row in found if row["data"] == "tokens" and model in row["hypothesis"] and row["hypothesis"].startswith(kind)]
        assert chosen
        return [row["measured gain"] for row in chosen]

    features = [row for row in found if row["data"] == "tokens" and "1 head" in row["hypothesis"] and "Eq. 9" in row["hypothesis"]]
    assert "By tokens the intervals of the features are far from 0" in page
    assert all(float(row["95 % interval"].split(" to ")[0]) > 2 for row in features)
    assert "corrected p-values above 0.05" in page
    assert all(float(row["p, corrected"]) > 0.05 for row in features)
    assert "LSTMs with one head are ahead most, and by more with area features than with mean areas." in page
    assert min(gains("1 head", "area features")) > max(gains("1 head", "areas are"))
    assert min(gains("1 head", "area")) > max(gains("4 heads", "area")) > 0
    assert "In Transformers by tokens, areas are behind, and the Small one by no less than the Tiny one." in page
    assert max(gains("Transformer", "area")) < 0
    for kind in ("areas are", "area features"):
        assert gains("Transformer Small", kind) <= gains("Transformer Tiny", kind)


def test_the_studies_page_says_how_large_the_areas_of_one_head_are() -> None:
    page = " ".join((ROOT / "docs" / "studies.md").read_text(encoding="utf-8").split())
    assert "area features put nearly all weight on areas of two tokens, and most on areas of two characters" in page
    table = json.loads((ROOT / "docs" / "results" / "study_li2018_small.json").read_text(encoding="utf-8"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"] if "1 head, areas, Eq. 9" in row[1]]
    twos = {"tokens": list[int](), "characters": list[int]()}
    for row in rows:
        twos[row["data"].rpartition(" ")[2]].append(int(row["mass on areas by size"].partition("2: ")[2].removesuffix("%")))
    assert len(twos["tokens"]) == 2
    assert min(twos["tokens"]) >= 95
    assert 50 < min(twos["characters"], default=0) <= max(twos["characters"]) < 95


def test_the_studies_page_says_where_areas_of_characters_begin_and_end() -> None:
    page = " ".join((ROOT / "docs" / "studies.md").read_text(encoding="utf-8").split())
    table = json.loads((ROOT / "docs" / "results" / "area_borders.json").read_text(encoding="utf-8"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert "Beside other areas of the same length, no difference is shown" in page
    assert "whole words are less frequent than by chance: the interval excludes 0" in page
    assert "corrected for the twelve comparisons, is not below 0.05" in page
    assert len(rows) == 12
    assert all(float(row["p, corrected"]) > 0.05 for row in rows)
    assert {row["seeds"] for row in rows} == {3}
    ends = [
        float(end)
        for row in rows
        if row["unit"] == "word" and row["border"] == "both" and "mean" in row["keys"]
        for end in row["95 % interval"].split(" to ")
    ]
    assert max(ends) < 0


def test_areas_are_behind_in_each_pair_of_runs_for_three_languages() -> None:
    page = " ".join((ROOT / "docs" / "studies.md").read_text(encoding="utf-8").split())
    assert "Areas are behind in each pair of runs" in page
    folder = ROOT / "docs" / "results" / "studies" / "li2018_tagged" / "results"
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    scores = {(run["cell"]["variant"], run["cell"]["seed"]): run["scores"]["BLEU"] for run in runs}
    pairs = [(score, scores["regular", seed]) for (variant, seed), score in scores.items() if variant != "regular"]
    assert len(pairs) == 6
    assert all(areas < regular for areas, regular in pairs)
    gained = {row[1].split(" are ")[0]: row[4] for row in FINDINGS["rows"] if row[0] == "li2018_tagged"}
    assert "Area features (Eq. 9) lose 0.6 BLEU" in page
    assert round(gained["area features (Eq. 9)"], 1) == -0.6
    assert "Mean areas are 0.8 behind, which is not shown" in page
    assert round(gained["areas"], 1) == -0.8
