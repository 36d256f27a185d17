"""Do areas of characters begin and end at the borders of words? Translations by characters, beside chance.

    regard compare studies/li2018_small.yaml --data FOLDER --out runs/li2018_small --only "characters-tiny_area*"
    python benchmarks/area_borders.py --source test.en --runs runs/li2018_small/runs/characters-tiny_area-*

Takes, for each character that a model writes and each head of each attention to the source, the area of two or more characters with the
largest weight. Counts how often it begins where a word begins, ends where a word ends, and does both. Chance is the share of all areas of
the same length in the same sentence. Writes area_borders.json, tested over seeds (the runs) and sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from harness import COMPARED, RESULTS, comparison_cells, options, versions, write

from regard.data.lines import read_lines
from regard.metrics.seeds import SeedComparison, compare_seeds, run_score
from regard.tasks.attention_records import attention_records
from regard.viewer.items import Tokens

BORDERS = ("begins a word", "ends a word", "both")


def borders(text: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return which characters begin a word and which end one, (S,) bool each; a space does neither.

    Example:
        >>> [part.tolist() for part in borders("a dog")]
        [[True, False, True, False, False], [True, False, False, False, True]]
    """
    letter = np.array([each != " " for each in text])
    around = np.concatenate([[False], letter, [False]])
    return letter & ~around[:-2], letter & ~around[2:]


def rates(extents: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return for each area (N, 2) of start and length whether it begins a word, ends one, and both: (N, 3) bool."""
    first = begins[extents[:, 0]]
    last = ends[extents[:, 0] + extents[:, 1] - 1]
    return np.stack([first, last, first & last], 1)


def sentence_counts(extents: np.ndarray, heaviest: np.ndarray, text: Sequence[str]) -> np.ndarray | None:
    """Return sums over the heaviest areas: (3, 3) of observed, expected and their number, by border; None for no area of two or more.

    Args:
        extents: (N, 2) start and length of every area of the sentence.
        heaviest: (M,) indices of the heaviest areas, of two or more characters each.
        text: the characters.
    """
    inside = extents.sum(1) <= len(text)  # the end of the sentence is no character
    heaviest = heaviest[inside[heaviest]]
    if not len(heaviest):
        return None
    found = np.zeros((len(extents), len(BORDERS)))
    found[inside] = rates(extents[inside], *borders(text))
    expected = {length: found[inside & (extents[:, 1] == length)].mean(0) for length in np.unique(extents[heaviest, 1])}
    chance = np.stack([expected[length] for length in extents[heaviest, 1]])
    return np.stack([found[heaviest].sum(0), chance.sum(0), np.full(len(BORDERS), float(len(heaviest)))])


def measure(run: Path, lines: Sequence[str]) -> np.ndarray:
    """Return the counts of a run: (sentences, 3, 3), zeros for a sentence without areas."""
    counts = np.zeros((len(lines), 3, len(BORDERS)))
    for number, record in enumerate(attention_records(run, lines)):
        text = [token for token in cast(Tokens, record.items["source"]).tokens if len(token) == 1]  # the last may be the end of the text
        for each in record.maps:
            if each.areas is None or each.key != "source" or each.query == "source":
                continue
            extents, weights = np.asarray(each.areas.extents), np.asarray(each.areas.weights)
            longer = np.flatnonzero(extents[:, 1] > 1)
            found = sentence_counts(extents, longer[weights[..., longer].argmax(-1).ravel()], text)
            if found is not None:
                counts[number] += found
    return counts


def main() -> None:
    parser = options(__doc__, out=RESULTS / "area_borders.json")
    parser.add_argument("--source", type=Path, required=True, help="sentences, one per line")
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="translation runs by characters with areas, one per seed")
    parser.add_argument("--lines", type=int, default=200, help="of the first sentences")
    arguments = parser.parse_args()
    lines = [line for line in read_lines(arguments.source) if line.strip()][: arguments.lines]
    runs = [measure(run, lines) for run in arguments.runs]
    figures: dict[str, list[float]] = {}
    tests: dict[str, SeedComparison] = {}
    for place, name in enumerate(BORDERS):
        observed, expected = ([run_score("mean", counts[:, [side, 2], place]) for counts in runs] for side in (0, 1))
        tests[name] = compare_seeds(observed, expected, paired=True)  # of the same run
        figures[name] = [round(100 * float(np.mean([run.score for run in side])), 1) for side in (observed, expected)]
    compared = comparison_cells(tests, 1, 100)
    rows = [[name, *figures[name], *compared[name], len(runs)] for name in tests]
    note = (
        f"`python benchmarks/area_borders.py`: {len(lines)} sentences; areas of two or more characters with the largest weight of each "
        f"query and head, and of areas of the same length in the same sentence. {versions()}."
    )
    write(arguments.out, ["border", "heaviest areas, %", "chance, %", *COMPARED, "seeds"], rows, note)


if __name__ == "__main__":
    main()
