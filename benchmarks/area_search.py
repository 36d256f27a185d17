"""Beam search (beam 5) with standard attention, with areas, and with area features (Eq. 9), by trained models.

    regard compare studies/li2018_translation.yaml --data FOLDER --out runs/li2018_translation
    python benchmarks/area_search.py --runs runs/li2018_translation/runs --source test.en --out docs/results/area_search.json
    python benchmarks/fill_tables.py

The three models of the study to German translate the same lines interleaved (A B C A B ...), in one process; a round is all lines. Medians
of the rounds and of the ratios round by round; the first model stands against itself once more, which shows what a difference must exceed.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from harness import Table, interleaved, machine, median, options, ratio, seconds

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
    words: dict[str, float] = {}
    for translator in translators.values():
        list(translator.translate(lines[:WARM_UP]))

    def decode(name: str) -> None:
        words[name] = statistics.mean(len(item.text.split()) for item in translators[name].translate(lines))

    times = interleaved({name: lambda _, name=name: seconds(lambda: decode(name)) for name in translators}, rounds, title="seconds")
    return times, words


def main() -> None:
    parser = options(__doc__, rounds=7)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True, help="one line a sentence, plain or .gz")
    arguments = parser.parse_args()
    lines = list(read_lines(arguments.source))
    times, words = measure(arguments.runs, lines, arguments.rounds)
    note = (
        f"`python benchmarks/area_search.py --runs RUNS --source test_2016_flickr.en`: beam 5, {len(lines):,} lines, models of "
        f"`li2018_translation`; medians of {arguments.rounds} interleaved rounds, ratios round by round to the first row; {machine()}."
    )
    table = Table(arguments.out, ["model", "seconds", "ratio", "min", "max", "words per output"], note)
    for name, values in times.items():
        table.add([name, median(values, 2), *ratio(values, times[ORDINARY]), round(words[name], 1)])


if __name__ == "__main__":
    main()
