"""Do areas of characters begin and end at the borders of words and morphemes? Translations by characters, beside chance.

    pip install morfessor
    regard compare studies/li2018_small.yaml --data FOLDER --out runs/li2018_small --only "characters-tiny_*"
    python benchmarks/area_borders.py --text train.en --source test.en --runs runs/li2018_small/runs/characters-tiny_*-?

Takes, for each character that a model writes and each head of each attention to the source, the area of two or more characters with the
largest weight. Counts how often it begins where a word begins, ends where a word ends, and does both. Chance is the share of all areas of
the same length in the same sentence. The same with morphemes, into which Morfessor divides the words, after it has read TEXT. Writes
area_borders.json, tested over seeds (the runs) and sentences.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from harness import COMPARED, RESULTS, comparison_cells, options, versions, write

from regard.data.lines import read_lines
from regard.metrics.seeds import SeedComparison, compare_seeds, run_score
from regard.tasks.attention_records import attention_records
from regard.tasks.translation_run import open_translation_run
from regard.viewer.items import Tokens

BORDERS = ("begins", "ends", "both")
KEYS = {"mean": "mean keys (Eq. 3)", "features": "area features (Eq. 9)"}
Divide = Callable[[str], Sequence[str]]
"""Divides a text without spaces into the units whose borders count."""


def whole(word: str) -> list[str]:
    """Return the word as the only unit."""
    return [word]


def morphemes(lines: Sequence[str]) -> Divide:
    """Train Morfessor Baseline (Virpioja et al. 2013) on the words of a text, each once; return what divides a word."""
    import morfessor  # pyright: ignore[reportMissingImports] - of this part alone

    model: Any = morfessor.BaselineModel()
    model.load_data([(1, word) for word in sorted(set(re.findall(r"\w+", " ".join(lines).lower())))])
    random.seed(1)  # of the order in which it looks at the words
    model.train_batch()

    def divide(word: str) -> list[str]:
        found = []
        for part in re.findall(r"\w+|[^\w\s]", word):
            ends = np.cumsum([len(each) for each in model.viterbi_segment(part.lower())[0]])
            found += [part[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        return found

    return divide


def borders(text: Sequence[str], divide: Divide = whole) -> tuple[np.ndarray, np.ndarray]:
    """Return which characters begin a unit and which end one, (S,) bool each; a space does neither.

    Example:
        >>> [part.tolist() for part in borders("a dog")]
        [[True, False, True, False, False], [True, False, False, False, True]]
    """
    begins, ends = np.zeros((2, len(text)), dtype=bool)
    for word in re.finditer(r"[^ ]+", "".join(text)):
        start = word.start()
        for part in divide(word[0]):
            begins[start] = ends[start + len(part) - 1] = True
            start += len(part)
    return begins, ends


def rates(extents: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return for each area (N, 2) of start and length whether it begins a unit, ends one, and both: (N, 3) bool."""
    first = begins[extents[:, 0]]
    last = ends[extents[:, 0] + extents[:, 1] - 1]
    return np.stack([first, last, first & last], 1)


def sentence_counts(extents: np.ndarray, heaviest: np.ndarray, text: Sequence[str], divide: Divide = whole) -> np.ndarray | None:
    """Return sums over the heaviest areas: (3, 3) of observed, expected and their number, by border; None for no area of two or more.

    Args:
        extents: (N, 2) start and length of every area of the sentence.
        heaviest: (M,) indices of the heaviest areas, of two or more characters each.
        text: the characters.
        divide: a word into units.
    """
    inside = extents.sum(1) <= len(text)  # the end of the sentence is no character
    heaviest = heaviest[inside[heaviest]]
    if not len(heaviest):
        return None
    found = np.zeros((len(extents), len(BORDERS)))
    found[inside] = rates(extents[inside], *borders(text, divide))
    expected = {length: found[inside & (extents[:, 1] == length)].mean(0) for length in np.unique(extents[heaviest, 1])}
    chance = np.stack([expected[length] for length in extents[heaviest, 1]])
    return np.stack([found[heaviest].sum(0), chance.sum(0), np.full(len(BORDERS), float(len(heaviest)))])


def measure(run: Path, lines: Sequence[str], units: dict[str, Divide]) -> np.ndarray:
    """Return the counts of a run: (units, sentences, 3, 3), zeros for a sentence without areas."""
    counts = np.zeros((len(units), len(lines), 3, len(BORDERS)))
    for number, record in enumerate(attention_records(run, lines)):
        text = [token for token in cast(Tokens, record.items["source"]).tokens if len(token) == 1]  # the last may be the end of the text
        for each in record.maps:
            if each.areas is None or each.key != "source" or each.query == "source":
                continue
            extents, weights = np.asarray(each.areas.extents), np.asarray(each.areas.weights)
            longer = np.flatnonzero(extents[:, 1] > 1)
            heaviest = longer[weights[..., longer].argmax(-1).ravel()]
            for own, divide in zip(counts, units.values(), strict=True):
                found = sentence_counts(extents, heaviest, text, divide)
                if found is not None:
                    own[number] += found
    return counts


def keys_of(run: Path) -> str:
    """Return how a run makes the keys of areas.

    Raises:
        SystemExit: it has no areas.
    """
    area = getattr(open_translation_run(run).config.model, "area", None)
    if area is None or area.key_mode not in KEYS:
        raise SystemExit(f"{run}: not a Transformer with areas of {' or of '.join(KEYS.values())}")
    return KEYS[area.key_mode]


def main() -> None:
    parser = options(__doc__, out=RESULTS / "area_borders.json")
    parser.add_argument("--text", type=Path, required=True, help="sentences, one per line, whose words are divided into morphemes")
    parser.add_argument("--source", type=Path, required=True, help="sentences, one per line")
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="translation runs by characters with areas, one per seed")
    parser.add_argument("--lines", type=int, default=200, help="of the first sentences")
    arguments = parser.parse_args()
    lines = [line for line in read_lines(arguments.source) if line.strip()][: arguments.lines]
    units = {"word": whole, "morpheme": morphemes(read_lines(arguments.text))}
    runs: dict[str, list[np.ndarray]] = {}
    for run in arguments.runs:
        runs.setdefault(keys_of(run), []).append(measure(run, lines, units))
    figures: dict[tuple[str, str, str], list[float]] = {}
    tests: dict[tuple[str, str, str], SeedComparison] = {}
    for keys, found in runs.items():
        for unit, by_run in zip(units, zip(*found, strict=True), strict=True):
            for place, name in enumerate(BORDERS):
                observed, expected = ([run_score("mean", counts[:, [side, 2], place]) for counts in by_run] for side in (0, 1))
                tests[keys, unit, name] = compare_seeds(observed, expected, paired=True)  # of the same run
                figures[keys, unit, name] = [round(100 * float(np.mean([run.score for run in side])), 1) for side in (observed, expected)]
    compared = comparison_cells(tests, 1, 100)
    rows = [[*cell, *figures[cell], *compared[cell], len(runs[cell[0]])] for cell in tests]
    note = (
        f"`python benchmarks/area_borders.py --text FILE --source FILE --runs RUN ...`: {len(lines)} sentences; "
        "areas of two or more characters with the largest weight of each "
        f"query and head, and of areas of the same length in the same sentence. Morphemes: Morfessor Baseline. {versions('morfessor')}."
    )
    write(arguments.out, ["keys", "unit", "border", "heaviest areas, %", "chance, %", *COMPARED, "seeds"], rows, note)


if __name__ == "__main__":
    main()
