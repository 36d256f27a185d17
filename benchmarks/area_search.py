"""A search (beam 5) with ordinary attention, with areas, and with areas of learned keys (Eq. 9), by trained models.

    regard compare studies/li2018_translation.yaml --data FOLDER --out runs/li2018_translation
    python benchmarks/area_search.py --runs runs/li2018_translation/runs --source test.en --out docs/results/area_search.json
    python benchmarks/fill_tables.py

The three models of the study to German translate the same lines in turns (A B C A B C ...), in one process; a round is all lines. Medians
of the rounds and of the ratios round by round; the first model stands against itself once more, which shows what a difference must exceed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from area_step import describe
from multi30k import write

from regard import __version__
from regard.data.lines import read_lines
from regard.tasks.translation_prediction import Translator

WARM_UP = 64  # lines
ORDINARY = "standard attention"
MODELS = {
    ORDINARY: "multi30k-regular-1",
    "standard attention, repeated": "multi30k-regular-1",
    "areas, Eq. 3 and 4": "multi30k-area-1",
    "areas, Eq. 9": "multi30k-area_features-1",
}


def measure(runs: Path, lines: list[str], rounds: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of each round, and the words of an output on average, by model."""
    translators = {name: Translator.open(runs / folder) for name, folder in MODELS.items()}
    times: dict[str, list[float]] = {name: [] for name in MODELS}
    words: dict[str, float] = {}
    for translator in translators.values():
        list(translator.translate(lines[:WARM_UP]))
    for number in range(rounds):
        for name, translator in translators.items():
            start = time.perf_counter()
            found = [item.text for item in translator.translate(lines)]
            times[name].append(time.perf_counter() - start)
            words[name] = statistics.mean(len(text.split()) for text in found)
        print(number, {name: round(values[-1], 2) for name, values in times.items()}, flush=True)
    return times, words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True, help="one line a sentence, plain or .gz")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = list(read_lines(arguments.source))
    times, words = measure(arguments.runs, lines, arguments.rounds)
    rows = []
    for name, values in times.items():
        ratios = [value / other for value, other in zip(values, times[ORDINARY], strict=True)]
        rows.append(
            [
                name,
                round(statistics.median(values), 2),
                *(round(f(ratios), 2) for f in (statistics.median, min, max)),
                round(words[name], 1),
            ]
        )
    machine = f"{describe(torch.device('cpu'))}, torch {torch.__version__}, regard {__version__}"
    note = (
        f"`python benchmarks/area_search.py --runs RUNS --source test_2016_flickr.en`: beam 5, {len(lines):,} lines, models of "
        f"`li2018_translation`; medians of {arguments.rounds} interleaved rounds, ratios round by round to the first row; {machine}."
    )
    columns = ["model", "seconds", "ratio", "min", "max", "words per output"]
    if arguments.out:
        write(arguments.out, columns, rows, note)
    for row in [columns, *rows]:
        print(*row, sep="\t")


if __name__ == "__main__":
    main()
