"""How far the confidence of a run is from the chrF of its translations, and how well it ranks them, on a test set.

    python benchmarks/confidence.py RUN --source test.en --target test.de [--valid-source val.en --valid-target val.de]
    python benchmarks/fill_tables.py

With validation files the calibration is fitted anew, in memory; without, it is the stored one. Writes confidence.json.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from harness import RESULTS, Table, machine, options

from regard.data.parallel import read_pairs
from regard.tasks import Translator
from regard.tasks.confidence_training import calibrate_on, observed

COLUMNS = ["run", "pairs", "calibration error, chrF / 100", "rank correlation", "rank correlation of the mean log-probability"]
BINS = 10


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value; equal ones share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Spearman's rank correlation."""
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def calibration_error(expected: np.ndarray, scores: np.ndarray) -> float:
    """Return the mean distance of expected and real score over tenths of the translations by what is expected, 0 to 1."""
    parts = np.array_split(np.argsort(expected, kind="stable"), BINS)
    return sum(len(part) * abs(expected[part].mean() - scores[part].mean()) for part in parts) / len(scores) / 100


def main() -> None:
    """Translate, compare, and write the row of a run."""
    parser = options(__doc__, out=RESULTS / "confidence.json")
    parser.add_argument("run", type=Path)
    for name in ("source", "target"):
        parser.add_argument(f"--{name}", type=Path, required=True)
        parser.add_argument(f"--valid-{name}", type=Path)
    given = parser.parse_args()
    translator = Translator.open(given.run)
    calibration = translator.calibration
    if given.valid_source:
        calibration = calibrate_on(translator, read_pairs(given.valid_source, given.valid_target))
    if calibration is None:
        parser.error(f"{given.run}: no calibration is stored; give --valid-source and --valid-target")
    rows, scores = observed(translator, read_pairs(given.source, given.target))
    expected = calibration.expect_all(rows)
    note = (
        "`python benchmarks/confidence.py`: chrF of sentences against their confidence; the error is the mean distance over tenths "
        f"of the translations by confidence; {machine()}."
    )
    found = (calibration_error(expected, scores), rank_correlation(expected, scores), rank_correlation(rows[:, 0], scores))
    Table(given.out, COLUMNS, note).add([given.run.name, len(rows), *(round(value, 3) for value in found)])


if __name__ == "__main__":
    main()
