"""What areas bring models of different sizes (studies/li2018_small.yaml): a table of docs/studies.md.

    python benchmarks/area_gains.py
    python benchmarks/fill_tables.py

Writes area_gains.json from study_findings.json: a row for each model, a column for each kind of area and each unit of text.
"""

from __future__ import annotations

from typing import Any

from harness import RESULTS, options, read, write
from which_attention import number_of_seeds

STUDY = "li2018_small"


def gain(found: dict[str, Any]) -> str | None:
    """Return a measured gain with its interval, corrected p-value and number of seeds; None if there is none."""
    if found["measured gain"] is None:
        return None
    interval = found["95 % interval"].replace(" to ", ", ")
    return f"{found['measured gain']:+.1f} [{interval}], p {found['p, corrected']}, {number_of_seeds(found['seeds'])}"


def rows(findings: dict[str, Any]) -> tuple[list[str], list[list[str | None]]]:
    """Return the columns and the rows of the table.

    Raises:
        SystemExit: the findings have no hypothesis of the study.
    """
    gains: dict[str, dict[str, str | None]] = {}
    for row in findings["rows"]:
        found = dict(zip(findings["columns"], row, strict=True))
        if found["study"] == STUDY:
            kind, _, model = found["hypothesis"].partition(" are better than single positions, ")
            gains.setdefault(model, {})[f"{kind}, {found['data']}"] = gain(found)
    if not gains:
        raise SystemExit(f"study_findings.json: no row of {STUDY}")
    columns = sorted(next(iter(gains.values())), key=lambda column: column.endswith("characters"))
    return ["model", *columns], [[model, *(own[column] for column in columns)] for model, own in gains.items()]


def main() -> None:
    """Write the table."""
    given = options(__doc__, out=RESULTS / "area_gains.json").parse_args()
    columns, table = rows(read(RESULTS / "study_findings.json"))
    note = "`python benchmarks/area_gains.py`: gains over single positions in BLEU, [95 % intervals]; only p is corrected, in the study."
    write(given.out, columns, table, note)


if __name__ == "__main__":
    main()
