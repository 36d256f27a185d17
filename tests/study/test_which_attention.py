"""The table of docs/which-attention.md: no recommendation may be behind in the table it links."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, over a copy of the results."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import kept_tables
    import which_attention

    for path in (ROOT / "docs" / "results").glob("*.json"):
        shutil.copy(path, tmp_path)
    for module in (kept_tables, which_attention):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return which_attention


def test_the_kept_table_is_what_the_results_say(script: ModuleType) -> None:
    kept = json.loads((ROOT / "docs" / "results" / "which_attention.json").read_text(encoding="utf-8"))
    assert kept["rows"] == script.rows()


def swap(first: list[str], second: list[str], column: str) -> Change:
    """Exchange the cells of two rows in a column."""

    def change(table: dict[str, Any]) -> None:
        place = table["columns"].index(column)
        one, other = (next(row for row in table["rows"] if [str(cell) for cell in row[: len(key)]] == key) for key in (first, second))
        one[place], other[place] = other[place], one[place]

    return change


def verdict(hypothesis: list[str], word: str) -> Change:
    """Give a hypothesis another verdict."""

    def change(table: dict[str, Any]) -> None:
        next(row for row in table["rows"] if row[:3] == hypothesis)[table["columns"].index("verdict")] = word

    return change


def cell(row: list[str], column: str, other: str) -> Change:
    """Give a row the figure of another column."""

    def change(table: dict[str, Any]) -> None:
        found = next(found for found in table["rows"] if [str(each) for each in found[: len(row)]] == row)
        found[table["columns"].index(column)] = found[table["columns"].index(other)]

    return change


FUSION = ["lin2017_entailment", "gated fusion is better than features", "sick"]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("sentences", swap(["SICK", "max-pooling"], ["SICK", "mean-pooling"], "accuracy"), "is ahead by 0.7 in 'accuracy'"),
        (
            "sentences",
            swap(["SST-2", "mean-pooling"], ["TREC", "mean-pooling"], "accuracy"),
            "further apart in 'accuracy' than their seeds",
        ),
        ("language", swap(["Multi30k, English", "none"], ["Multi30k, English", "plain"], "perplexity, continuous"), "is ahead by 0.54"),
        (
            "study_generated",
            swap(["dates", "general, input feeding"], ["dates", "local-m (general), input feeding"], "AER"),
            "lowest mean AER",
        ),
        (
            "explain",
            cell(["SST-2", "structured self-attention", "comprehensiveness"], "weights", "greedy leave-one-out"),
            "on SST-2 weights have a comprehensiveness of 0.63",
        ),
        ("study_findings", verdict(FUSION, "not shown"), "'not shown', but the page rests on"),
        (
            "study_findings",
            verdict(["li2019_plateau", "crossed co-attention is better than the Transformer", "multi30k"], "suggests"),
            "rests on",
        ),
    ],
)
def test_a_recommendation_that_its_table_contradicts_is_refused(
    script: ModuleType, tmp_path: Path, name: str, change: Change, message: str
) -> None:
    path = tmp_path / f"{name}.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    change(table)
    path.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        script.rows()
