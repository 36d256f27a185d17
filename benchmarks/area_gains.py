"""What areas bring models of different sizes (studies/li2018_small.yaml): a table of docs/studies.md.

    python benchmarks/area_gains.py
    python benchmarks/fill_tables.py

Writes area_gains.json from study_findings.json: a row for each model, a column for each kind of area and each unit of text. Writes
area_perplexity.json beside it: the perplexities of models by characters, of the control at a lower rate, too.
"""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

from harness import RESULTS, options, read, write
from kept_tables import number_of_seeds

STUDY, CONTROL = "li2018_small", "li2018_small_rate"
KINDS = {"": "single positions", "_area": "areas", "_features": "area features (Eq. 9)"}
MODELS = {
    "tiny": "Transformer Tiny",
    "small": "Transformer Small",
    **{f"lstm_{size}_{heads}": f"LSTM {size}, {heads} head{'s' * (heads > 1)}" for size in (128, 256) for heads in (1, 4)},
}


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


def perplexities(study: str, data: str) -> dict[str, list[float]]:
    """Return the perplexities on the test set of each variant of a study, by seed."""
    found: dict[str, list[float]] = {}
    for path in sorted((RESULTS / "studies" / study / "results").glob(f"{data}-*.json")):
        run = read(path)
        found.setdefault(run["cell"]["variant"], []).append(run["scores"]["perplexity"])
    return found


def perplexity_rows() -> list[list[str | None]]:
    """Return the rows of the table of perplexities: mean and standard deviation over the seeds, of models that have runs."""
    found = perplexities(STUDY, "characters")
    table = [[title, *(spread(found.get(f"{name}{kind}")) for kind in KINDS)] for name, title in MODELS.items() if name in found]
    lower = perplexities(CONTROL, "multi30k")
    return [*table, [f"{MODELS['small']}, rate 0.001", *(spread(lower.get(f"small{kind}")) for kind in KINDS)]]


def spread(values: list[float] | None) -> str | None:
    """Return mean and standard deviation; one value as it is."""
    if not values:
        return None
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f} (one seed)"


def main() -> None:
    """Write the tables."""
    given = options(__doc__, out=RESULTS / "area_gains.json").parse_args()
    columns, table = rows(read(RESULTS / "study_findings.json"))
    note = "`python benchmarks/area_gains.py`: gains over single positions in BLEU, [95 % intervals]; only p is corrected, in the study."
    write(given.out, columns, table, note)
    note = "`python benchmarks/area_gains.py`: perplexity per character on the test set, mean over the seeds; lower is better."
    write(given.out.with_name("area_perplexity.json"), ["model", *KINDS.values()], perplexity_rows(), note)


if __name__ == "__main__":
    main()
