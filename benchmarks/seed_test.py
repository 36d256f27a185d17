"""How often tests of two variants find a difference where there is none: studies drawn with equal variants.

    python benchmarks/seed_test.py
    python benchmarks/fill_tables.py

In a drawn study two variants of the same expected score are trained with some seeds and measured on the same items. Each variant's scores
spread over the seeds by a standard deviation drawn from those of docs/results/studies, or not at all, or by 5 points. Writes
seed_test.json: of each kind of study, how many of a hundred the tests call a difference (p < 0.05). The last rows are against what the test
assumes: trainings of one variant that fail now and then, items that come in threes, and seeds that are added until there is a difference.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from harness import RESULTS, Table, machine, options, read

from regard.metrics.seeds import LEVEL, RunScore, compare_seeds, run_score

KEPT = RESULTS / "studies"
# Standard deviations over items, in points: of how hard an item is, for one variant, for one run. Near those of the kept studies.
HARD, VARIANT, RUN = 35.0, 10.0, 20.0
RESAMPLED = 500
FAILING, LOST, OTHERWISE = 0.2, 20.0, 0.3
"""Share of one variant's trainings that fail, the points they lose, and the standard deviation of all others."""
GROUP = 3
"""Items that share what is hard about them."""
Kind = Literal["mean of items", "mean of items in threes", "accuracy", "BLEU"]
Spread = Literal["as observed", "none", "5 points", "one in five fails"]


class Setting(NamedTuple):
    """A kind of study."""

    kind: Kind
    items: int
    spread: Spread
    seeds: int


KINDS: list[tuple[Kind, int, Spread]] = [
    ("mean of items", 1000, "as observed"),
    ("mean of items", 200, "as observed"),
    ("mean of items", 1000, "none"),
    ("mean of items", 1000, "5 points"),
    ("accuracy", 1000, "as observed"),
    ("BLEU", 200, "as observed"),
]
SETTINGS = [Setting(*kind, seeds) for kind in KINDS for seeds in (1, 2, 3, 5)]
AGAINST: list[tuple[Kind, int, Spread]] = [("mean of items", 1000, "one in five fails"), ("mean of items in threes", 999, "as observed")]
UNFIT = [Setting(*kind, seeds) for kind in AGAINST for seeds in (3, 5)]
"""Studies that are not as the test assumes."""


def observed_spreads(kept: Path = KEPT) -> list[float]:
    """Return the standard deviations over seeds of all kept variants with two or more, in points of BLEU, accuracy or exact match."""
    scores = defaultdict[tuple[str, ...], list[float]](list)
    for path in sorted(kept.glob("*/results/*.json")):
        run = read(path)
        if run["main"] in ("BLEU", "accuracy", "exact match"):
            scores[path.parts[-3], run["cell"]["data"], run["cell"]["variant"]].append(run["scores"][run["main"]])
    return [statistics.stdev(found) for found in scores.values() if len(found) > 1]


def out_of_date(results: Path = RESULTS) -> bool:
    """Whether the kept studies have grown so much since the studies of the table were drawn that it should be made again."""
    table = results / "seed_test.json"
    drawn = re.search(r"from the (\d+) of .*at most ([\d.]+)\. ", read(table)["note"])
    if drawn is None:
        raise ValueError(f"{table}: expected the number of spreads and the largest in its note")
    spreads = observed_spreads(results / "studies")
    return int(drawn[1]) < 0.8 * len(spreads) or float(drawn[2]) < 0.8 * max(spreads)


Study = tuple[list[RunScore], list[RunScore]]


def null_studies(setting: Setting, count: int, *, seed: int, spreads: list[float]) -> Iterator[Study]:
    """Draw studies whose two variants have the same expected score."""
    generator = np.random.default_rng(seed)
    draw = {"mean of items": _means, "mean of items in threes": _means, "accuracy": _accuracies, "BLEU": _bleus}[setting.kind]
    drawn = {"as observed": spreads, "none": [0.0], "5 points": [5.0], "one in five fails": [OTHERWISE]}
    for _ in range(count):
        chosen = generator.choice(drawn[setting.spread], 2)
        yield draw(generator, setting, chosen)


def _values(generator: np.random.Generator, setting: Setting, chosen: np.ndarray) -> np.ndarray:
    # (2, seeds, items), in points.
    alike = GROUP if setting.kind == "mean of items in threes" else 1
    hard = HARD * generator.standard_normal(setting.items // alike)
    variant = VARIANT * generator.standard_normal((2, 1, setting.items // alike))
    run = RUN * generator.standard_normal((2, setting.seeds, setting.items))
    of_seeds = chosen[:, None, None] * generator.standard_normal((2, setting.seeds, 1))
    if setting.spread == "one in five fails":
        of_seeds[0] += LOST * (FAILING - (generator.random((setting.seeds, 1)) < FAILING))  # 0 on average
    return np.repeat(hard + variant, alike, -1) + run + of_seeds


def _means(generator: np.random.Generator, setting: Setting, chosen: np.ndarray) -> Study:
    values = _values(generator, setting, chosen)
    one, other = ([RunScore(float(run.mean()), run - run.mean()) for run in variant] for variant in values)
    return one, other


def _accuracies(generator: np.random.Generator, setting: Setting, chosen: np.ndarray) -> Study:
    # Right where the value is above the level that four in five pass; a point of accuracy takes more than a point of the value there.
    level = NormalDist(sigma=sqrt(HARD**2 + VARIANT**2 + RUN**2))
    passed = level.inv_cdf(0.2)
    right = 100.0 * (_values(generator, setting, chosen / (100 * level.pdf(passed))) > passed)
    one, other = ([RunScore(float(run.mean()), run - run.mean()) for run in variant] for variant in right)
    return one, other


def _bleus(generator: np.random.Generator, setting: Setting, chosen: np.ndarray) -> Study:
    # Sentences of 6 to 20 words, some of which are right; runs of n right words are the n-grams that count. About 36 BLEU, of which a point
    # takes 0.75 points of right words.
    lengths = generator.integers(6, 21, setting.items)
    share = (75.0 + _values(generator, setting, 0.75 * chosen) * 0.5).clip(5, 95) / 100
    there = np.arange(20) < lengths[:, None]
    words = (generator.random((*share.shape, 20)) < share[..., None]) & there
    matched, found = [words], words
    for order in range(1, 4):
        found = found[..., :-1] & words[..., order:]
        matched.append(found)
    totals = [lengths, lengths, *(lengths - order for order in range(4))]
    fixed = np.stack([np.broadcast_to(total, share.shape) for total in totals], -1)
    counts = np.concatenate([fixed[..., :2], np.stack([each.sum(-1) for each in matched], -1), fixed[..., 2:]], -1).astype(float)
    one, other = ([run_score("bleu", run) for run in variant] for variant in counts)
    return one, other


def _influences(runs: list[RunScore]) -> np.ndarray:
    return np.array([run.influence for run in runs])


def items_alone(study: Study) -> float:
    """Return the p-value of the difference of the means over the runs if the runs are all there are: over test items alone."""
    gap = _influences(study[0]).mean(0) - _influences(study[1]).mean(0)
    difference = statistics.mean(run.score for run in study[0]) - statistics.mean(run.score for run in study[1])
    return 2 * NormalDist().cdf(-abs(difference) / (sqrt(float(gap @ gap)) / len(gap)))


@lru_cache(maxsize=2)
def _items_drawn(items: int) -> np.ndarray:
    return np.random.default_rng(0).multinomial(items, np.full(items, 1 / items), RESAMPLED) / items


def hierarchical_bootstrap(study: Study, generator: np.random.Generator) -> float:
    """Return the p-value of a bootstrap that draws seeds, then items, with replacement (Davison and Hinkley 1997, section 3.8)."""
    drawn = []
    for runs in study:
        # A run's score on drawn items, to first order.
        moved = _influences(runs)
        scores = np.array([run.score for run in runs]) + _items_drawn(moved.shape[1]) @ moved.T
        seeds = generator.integers(0, len(runs), (RESAMPLED, len(runs)))
        drawn.append(np.take_along_axis(scores, seeds, 1).mean(1))
    difference = drawn[0] - drawn[1]
    return 2 * (1 + min(int((difference <= 0).sum()), int((difference >= 0).sum()))) / (1 + RESAMPLED)


def row(setting: Setting, count: int, spreads: list[float]) -> list[Any]:
    """Return a row of the table: what each test finds in a hundred studies of a kind."""
    generator, found = np.random.default_rng(1), np.zeros(3)
    for study in null_studies(setting, count, seed=setting.seeds * 10_000 + setting.items, spreads=spreads):
        p_values = items_alone(study), hierarchical_bootstrap(study, generator), compare_seeds(*study, samples=10_000).p_value
        found += np.array(p_values) < LEVEL
    shares: list[float | None] = [round(100 * float(value) / count, 1) for value in found]
    if setting.seeds == 1:  # one run has no spread: the test of seeds and items is that of items alone
        shares = [shares[0], None, None]
    return [setting.kind, setting.items, setting.spread, setting.seeds, *shares]


def looked_at(setting: Setting, first: int, count: int, spreads: list[float]) -> list[Any]:
    """Return a row of studies that are tested after each seed, from the first number of seeds on, until a difference is found."""
    found = 0
    for one, other in null_studies(setting, count, seed=1, spreads=spreads):
        counts = range(first, setting.seeds + 1)
        found += any(compare_seeds(one[:seeds], other[:seeds], samples=10_000).p_value < LEVEL for seeds in counts)
    seeds = f"{first} to {setting.seeds}, tested after each"
    return [setting.kind, setting.items, setting.spread, seeds, None, None, round(100 * found / count, 1)]


def main() -> None:
    arguments = options(__doc__, out=RESULTS / "seed_test.json", studies=1000).parse_args()
    spreads = observed_spreads()
    middle, most = statistics.median(spreads), max(spreads)
    note = (
        f"`python benchmarks/seed_test.py`: of {arguments.studies:,} drawn studies of two equal variants, those with p < {LEVEL}, in %. "
        f"Spread as observed: standard deviations over seeds drawn from the {len(spreads)} of the kept studies, median {middle:.2f} "
        f"points, at most {most:.2f}. {machine()}."
    )
    columns = ["score", "test items", "spread of the seeds", "seeds", "items alone", "hierarchical bootstrap", "seeds and items"]
    table = Table(arguments.out, columns, note, key=4)
    for setting in (*SETTINGS, *UNFIT):
        table.add(row(setting, arguments.studies, spreads))
    table.add(looked_at(Setting("mean of items", 1000, "as observed", 8), 3, arguments.studies, spreads))


if __name__ == "__main__":
    main()
