"""The page *What we found*: at most 600 words, and no finding against the table that it links."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from regard.metrics.seeds import LEVEL

ROOT = Path(__file__).parents[2]
HOPS = ("lin2017_entailment", "several hops are better than one", "sick")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, over a copy of the results."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import kept_tables
    import what_we_found

    for path in (ROOT / "docs" / "results").glob("*.json"):
        shutil.copy(path, tmp_path)
    for module in (what_we_found, kept_tables):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return what_we_found


def test_the_kept_table_is_what_the_results_say(script: ModuleType) -> None:
    kept = json.loads((ROOT / "docs" / "results" / "what_we_found.json").read_text(encoding="utf-8"))
    assert kept["rows"] == script.rows()


def test_gains_of_about_half_a_point_would_take_over_twenty_seeds() -> None:
    page = " ".join((ROOT / "docs" / "what-we-found.md").read_text(encoding="utf-8").split())
    assert "Gains of 0.4 to 0.6 BLEU on 1,000 sentences would take over twenty seeds" in page
    table = json.loads((ROOT / "docs" / "results" / "study_findings.json").read_text(encoding="utf-8"))
    found = []
    for row in (dict(zip(table["columns"], cells, strict=True)) for cells in table["rows"]):
        of = json.loads((ROOT / "docs" / "results" / f"study_{row['study']}.json").read_text(encoding="utf-8"))
        alike = "BLEU" in of["columns"] and "Test items: 1,000" in of["note"]
        if alike and row["seeds needed"] and 0.4 <= abs(row["measured gain"]) <= 0.6:
            found.append(int(str(row["seeds needed"]).removeprefix("over ").replace(",", "")))
    assert len(found) >= 5
    assert min(found) > 20


def test_the_page_is_short() -> None:
    assert len((ROOT / "docs" / "what-we-found.md").read_text(encoding="utf-8").split()) <= 600


@pytest.mark.parametrize(
    ("name", "key", "column", "cell", "message"),
    [
        ("study_findings", HOPS, "verdict", "not shown", "'not shown', but the page rests on"),
        ("pointing", ("reverse", "Transformer, areas of 3", "known"), "alignment error, %", "7.1 (7.0 to 7.2)", "is not above 7.1"),
        ("explain_best", ("reverse", "Luong"), "most comprehensive method", "weights", "one model, beside"),
        ("language", ("Flickr8k captions", "plain"), "perplexity, continuous", "31.7 [31.1, 32.3]", "groups of captions: 0.0 is not above"),
    ],
)
def test_a_finding_that_its_table_contradicts_is_refused(
    script: ModuleType, tmp_path: Path, name: str, key: tuple[str, ...], column: str, cell: str, message: str
) -> None:
    path = tmp_path / f"{name}.json"
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    next(row for row in table["rows"] if tuple(row[: len(key)]) == key)[table["columns"].index(column)] = cell
    path.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        script.rows()


def test_the_studies_page_counts_the_verdicts_that_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from kept_tables import LOOKED

    table = json.loads((ROOT / "docs" / "results" / "study_findings.json").read_text(encoding="utf-8"))
    verdicts = [row[table["columns"].index("verdict")] for row in table["rows"]]
    seeds = {row[table["columns"].index("seeds")] for row, verdict in zip(table["rows"], verdicts, strict=True) if "holds" in verdict}
    holding = sum("holds" in verdict for verdict in verdicts)
    count = {20: "Twenty", 21: "Twenty-one", 22: "Twenty-two"}[holding]
    assert seeds == {3}
    columns = [table["columns"].index(name) for name in ("study", "q")]
    page = " ".join((ROOT / "docs" / "studies.md").read_text(encoding="utf-8").split())
    held = [[row[place] for place in columns] for row, verdict in zip(table["rows"], verdicts, strict=True) if "holds" in verdict]
    assert sum(float(q.removeprefix("< ")) >= LEVEL for _, q in held) == 5
    assert "which is less strict), five of the twenty-two no longer hold: 16 hops, the crossed network" in page
    assert sum(study in LOOKED for study, _ in held) == 18
    assert "Of the twenty-two verdicts eighteen are from these studies." in page
    assert f"{count} verdicts hold, all with three seeds." in page


@pytest.mark.parametrize(
    ("study", "sentence"),
    [
        ("bahdanau2015", r"chance only if seeds spread by more than ([\d.]+) and ([\d.]+) BLEU"),
        ("luong2015", r"chance if seeds spread by more than ([\d.]+) BLEU \(feeding: ([\d.]+), location: ([\d.]+)\)"),
        ("xu2015", r"chance if seeds spread by more than ([\d.]+) BLEU-4"),
        ("li2018_lstm_characters", r"It is chance if seeds spread by more than ([\d.]+) BLEU"),
    ],
)
def test_the_studies_page_says_which_spread_of_seeds_one_seed_tolerates(study: str, sentence: str) -> None:
    page = " ".join((ROOT / "docs" / "studies.md").read_text(encoding="utf-8").split())
    report = (ROOT / "docs" / "results" / "studies" / study / "report.md").read_text(encoding="utf-8")
    tolerated = [float(found) for found in re.findall(r"standard deviation above ([\d.]+) ", report)]
    said = re.search(sentence, page)
    assert said is not None
    for number in said.groups():
        assert any(f"{value:.{len(number.partition('.')[2])}f}" == number for value in tolerated), (number, tolerated)
