"""Cells of the tables in docs/results, and what a statement may say of them: for `which_attention.py` and `what_we_found.py`.

A row or a column that is no longer there is an error, and so is a statement that its table no longer supports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from harness import RESULTS, read

from regard.metrics.seeds import LEVEL

COUNTS = ("no", "one", "two", "three", "four", "five")
# Verdicts that a recommendation may rest on.
SHOWN, REFUTED, NOT_SHOWN = ("suggests", "holds"), ("suggests the opposite", "the opposite holds"), ("not shown",)
SUGGESTED = ("suggests", "suggests the opposite")
STAR = "\\*"
LOOKED = (
    "bahdanau2015_long",
    "daniluk2017",
    "entailment",
    "generated",
    "li2018_characters",
    "li2018_small",
    "li2018_small_rate",
    "li2018_tagged",
    "li2019_plateau",
    "li2019_plateau_long",
    "lin2017",
    "lin2017_entailment",
    "luong2015_scores",
    "luong2015_scores_rate",
    "two_inputs",
)
"""Studies whose last seeds, or some hypotheses, came after first results on the same data had been read; the pages mark them."""


def number_of_seeds(count: int) -> str:
    """Return a number of seeds in words."""
    return f"{COUNTS[count]} seed{'s' if count > 1 else ''}"


def value(table: str, row: str | Sequence[str], column: str) -> Any:
    """Return a cell: of the row that begins with these cells, in the column of this name.

    Raises:
        SystemExit: there is no such table, row or column; names it.
    """
    found = read(RESULTS / f"{table}.json")
    wanted = [row] if isinstance(row, str) else list(row)
    rows = [cells for cells in found.get("rows", []) if [str(cell) for cell in cells[: len(wanted)]] == wanted]
    columns = found.get("columns", [])
    if not rows or column not in columns:
        raise SystemExit(f"{table}.json: no row {wanted} with a column {column!r}")
    return rows[0][columns.index(column)]


def number(table: str, row: str | Sequence[str], column: str) -> float:
    """Return the number a cell begins with: the mean or median, without its spread."""
    return float(str(value(table, row, column)).split()[0])


def lead(table: str, row: str | Sequence[str], others: Sequence[str | Sequence[str]], column: str, *, lower: bool = False) -> float:
    """Return by how much a recommended row leads the first of the others.

    Raises:
        SystemExit: one of the others is ahead; names it.
    """
    own = number(table, row, column)
    leads = [(number(table, other, column) - own) * (1 if lower else -1) for other in others]
    for other, found in zip(others, leads, strict=True):
        if found < 0:
            raise SystemExit(f"{table}.json: {row} is recommended, but {other} is ahead by {-found:.3g} in {column!r}")
    return leads[0]


def within_spread(table: str, row: str | Sequence[str], other: str | Sequence[str], column: str) -> float:
    """Return by how much a row is ahead of another one, of cells such as 81.2 (80.4-81.3), or with a column for each seed.

    Raises:
        SystemExit: no seed of one is as good as one of the other: the difference is not within their spread.
    """
    own = [name for name in read(RESULTS / f"{table}.json")["columns"] if ", seed " in name]
    cells = [
        [value(table, each, name) for name in own] if own else re.findall(r"[\d.]+", str(value(table, each, column)))[1:]
        for each in (row, other)
    ]
    ranges = [sorted(map(float, each)) for each in cells]
    if max(ranges[0][0], ranges[1][0]) > min(ranges[0][-1], ranges[1][-1]):
        raise SystemExit(f"{table}.json: {row} and {other} are further apart in {column!r} than their seeds")
    return number(table, row, column) - number(table, other, column)


def evidence(study: str, hypothesis: str, data: str, verdicts: Sequence[str]) -> str:
    """Return what a verdict says, and of how many seeds; a star where results had been read before.

    Raises:
        SystemExit: it is none of the verdicts that the recommendation rests on; names it.
    """
    row = (study, hypothesis, data)
    found, count = value("study_findings", row, "verdict"), int(value("study_findings", row, "seeds"))
    if found not in verdicts:
        raise SystemExit(f"study_findings.json: {', '.join(row)}: {found!r}, but the page rests on {list(verdicts)}")
    words = "suggested by" if found in SUGGESTED else "holds with" if found in SHOWN + REFUTED else "not shown by"
    told = f"{words} {number_of_seeds(count)}{STAR * (study in LOOKED)}"
    alone = words.startswith("holds") and float(str(value("study_findings", row, "q")).removeprefix("< ")) >= LEVEL
    return f"{told}, not over all studies" if alone else told


def unshown(study: str, hypothesis: str, data: str) -> tuple[str, str]:
    """Return the interval of a gain that is not shown, and of how many seeds that is.

    Raises:
        SystemExit: see `evidence`.
    """
    told = evidence(study, hypothesis, data, NOT_SHOWN)
    return str(value("study_findings", (study, hypothesis, data), "95 % interval")), told


def seeds(table: str, *rows: str | Sequence[str]) -> str:
    """Return how many seeds each of these rows has at least: "three seeds"; a star where results had been read before.

    Raises:
        SystemExit: see `value`.
    """
    columns = read(RESULTS / f"{table}.json")["columns"]
    alone = [column for column in columns if ", seed " in column]  # a column for each seed
    column = "seeds" if "seeds" in columns else "runs"
    counts = [sum(value(table, row, one) is not None for one in alone) if alone else int(value(table, row, column)) for row in rows]
    return f"{number_of_seeds(min(counts))}{STAR * (table.removeprefix('study_') in LOOKED)}"
