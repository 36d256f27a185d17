"""Significance tests of two variants over seeds and test items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple, cast

import numpy as np

from regard.arguments import takes_arguments
from regard.errors import DataError, shown
from regard.metrics.checks import check_lengths
from regard.metrics.significance import read_metric_counts, score_of_counts

LEVEL = 0.05
"""A difference is more than chance where its p-value is below; intervals hold 1 - `LEVEL`."""
MAX_SEEDS = 1000
"""More seeds than that are not looked for."""
LARGEST = 1e140
"""Of a score or an influence; the squares of larger ones are no finite numbers."""
MAX_SAMPLES = 100_000_000
DRAWS_TO_PLAN, STUDIES_TO_PLAN = 20_000, 1000
MANY_ITEMS = 100
"""From that many test items on, their mean counts as normal."""


class RunScore(NamedTuple):
    """The score of one training on the test set.

    Attributes:
        score: score of the whole set.
        influence: (N,) influence of each test item, with mean 0: the score's variance over test sets is `sum(influence^2) / (N (N - 1))`.
            None: item scores are unknown.
    """

    score: float
    influence: np.ndarray | None


@takes_arguments
def run_score(metric: str, counts: np.ndarray) -> RunScore:
    """Score one training and compute each test item's influence (jackknife, Efron and Stein 1981).

        influence_i = (N - 1) (mean of all score(-j) - score(-i)), with score(-i) that of the set without item i

    For scores of the whole set such as BLEU and macro-F1, score(-i) uses the summed counts of all other items.

    Args:
        metric: see `regard.metrics.significance.score_of_counts`.
        counts: (N, D) counts per item.

    Raises:
        DataError: fewer than two items, a score that is no finite number or above `LARGEST` (without some item, too), an unknown metric, or
            counts that are no array (N, D) of its numbers.

    Example:
        >>> run_score("mean", np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]])).score
        0.5
    """
    counts = read_metric_counts("run_score", metric, counts, axes=2)
    if len(counts) < 2:
        raise DataError(f"run_score: counts must be of at least 2 test items, found {len(counts)}")
    total = counts.sum(0)
    without = total - counts
    with np.errstate(all="ignore"):  # refused below
        if metric == "mean":
            left_out = without[:, 0] / without[:, 1]
        elif metric == "perplexity":
            left_out = np.exp(without[:, 0] / without[:, 1])
        else:
            left_out = np.array([score_of_counts(metric, row) for row in without])
    if not (fit := _fit(left_out)).all():
        item = int(np.argmin(fit))
        raise DataError(
            f"run_score: {metric} without test item {item + 1}: {left_out[item]:.4g}, expected a finite number up to {LARGEST:.0g}"
        )
    return RunScore(score_of_counts(metric, total), (len(counts) - 1) * (left_out.mean() - left_out))


@dataclass(frozen=True)
class SeedComparison:
    """Two variants, each trained with one or several seeds, on the same test items.

    Attributes:
        difference: mean score of the system's runs minus that of the baseline's.
        interval: its 95 % interval, low and high; None: no score varies over seeds or items, so that nothing bounds it.
        p_value: probability of a difference this large between equal variants, above 0 and up to 1.
        runs: number of runs of system and baseline; one number of pairs.
        spreads: standard deviation over seeds, on this test set, of system and baseline, or one of the differences of pairs; None if either
            has a single run. Interval and p-value then cover test items only: another training may differ by more.
        item_error: standard error of the difference due to test items; None if item scores are unknown. Interval and p-value then cover
            seeds only: another test set may differ by more.
        items: number of test items; None if item scores are unknown.
    """

    difference: float
    interval: tuple[float, float] | None
    p_value: float
    runs: tuple[int, ...]
    spreads: tuple[float, ...] | None
    item_error: float | None
    items: int | None

    @property
    def over(self) -> Literal["seeds and items", "items", "seeds"]:
        """The sources of variation that interval and p-value cover."""
        if self.spreads is None:
            return "items"
        return "seeds" if self.item_error is None else "seeds and items"

    @takes_arguments
    def tolerated(self, level: float = LEVEL) -> float | None:
        """Return the maximum standard deviation over seeds at which the difference stays significant; None: it is not significant.

        For variants of one run each, whose spread is unknown; for a pair, that of the differences of pairs.

        Args:
            level: significance level; below 0.05 when correcting for several comparisons.

        Raises:
            DataError: it is not between 0 and 1.
        """
        _check_chances("SeedComparison.tolerated", level=level)
        room = (self.difference / _normal(1 - level / 2)) ** 2 - (self.item_error or 0.0) ** 2
        return math.sqrt(room / sum(1 / runs for runs in self.runs)) if room > 0 and self.p_value < level else None

    @takes_arguments
    def seeds_needed(self, power: float = 0.8, *, level: float = LEVEL) -> int | None:
        """Return the seeds per variant needed to detect a difference of this size, at the observed spread.

        Assumes normal scores over seeds. Each study has a critical value of its own, from the spreads that its few seeds estimate.

        Args:
            power: probability of detection, between 0 and 1.
            level: significance level; below 0.05 when correcting for several comparisons.

        Returns:
            At least 2; None: spread or item influence is unknown, there is no difference, or `MAX_SEEDS` seeds are too few, as for a small
            test set.

        Raises:
            DataError: power or level is not between 0 and 1.

        Example:
            >>> runs = [RunScore(score, np.array([1.0, -1.0] * 60)) for score in (3.0, 4.0, 5.0)]
            >>> compare_seeds(runs, [RunScore(run.score - 2, run.influence) for run in runs]).seeds_needed()
            6
        """
        _check_chances("SeedComparison.seeds_needed", power=power, level=level)
        spreads, item_error = self.spreads, self.item_error
        if spreads is None or item_error is None or not self.difference or _least(self.items) >= level:
            return None

        def enough(seeds: int) -> bool:
            parts = np.square(spreads) / seeds
            critical = _critical(parts, seeds, (item_error, self.items), level)
            over = (abs(self.difference) - critical) / (math.sqrt(parts.sum() + item_error**2) or 1e-300)
            return float(np.mean(list(map(NormalDist().cdf, over)))) >= power

        if not enough(MAX_SEEDS):
            return None
        low, high = 1, MAX_SEEDS  # too few, enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high


@takes_arguments
def compare_seeds(
    systems: Sequence[RunScore], baselines: Sequence[RunScore], *, paired: bool = False, samples: int = 100_000, seed: int = 12345
) -> SeedComparison:
    """Compare two variants over seeds and test items (a mixed model).

    Score = variant + seed effect + item effects common to all runs + item effects of this run. Seeds and items are random: the model of
    Obuchowski and Rockette (1995) for readers (here seeds) of tests (here variants), with item effects estimated by the jackknife. For n
    runs of each, s_A and s_B are the standard deviations of their scores, and e the standard error of the difference from the common item
    effects:

        p = P(|sqrt((s_A^2 + s_B^2) / n) T_v + e Z| >= |difference|)

    with Student's T, of Welch's (1947) degrees of freedom v between n - 1 and 2 n - 2, rounded down to a tenth, for the few seeds, and an
    independent normal Z for the many items (below 100, Student's T of N - 1 degrees of freedom), drawn `samples` times. p is at least
    2^(1 - N), what a sign test says where all N items agree. A hierarchical bootstrap of few seeds finds too many differences if they
    spread much, since it resamples observed seeds only (`benchmarks/seed_test.py`). So does Welch's test of unequal numbers of runs, which
    are refused.

    Single runs have no s: e is then that of these runs, and the p-value covers test items only. Without item scores there is no e, and it
    covers seeds only.

    Runs that are paired, such as one training decoded in two ways, share the effect of their seed. The test is then of the differences d of
    n pairs alone, with n - 1 degrees of freedom and their standard deviation s:

        p = P(|sqrt(s^2 / n) T + e Z| >= |mean d|)

    Differs from the paper: each variant has its own variance; s is at least the item effect of a run; the degrees of freedom are those of
    the seeds, as in the paper's F test for readers only. Items count as independent of each other.

    Args:
        systems: the n runs of the system, see `run_score`.
        baselines: the n runs of the baseline, on the same N items.
        paired: the n-th runs of both belong together.
        samples: draws, 1 to 100,000,000.
        seed: seed of NumPy's default generator, 0 or more.

    Raises:
        DataError: no run, unequal numbers of runs or items, a score or influence that is no finite number or above `LARGEST`, or a single
            run without item scores; samples or a seed outside of these.
        ConfigError: `paired` is neither true nor false.

    Example:
        >>> good, bad = ([run_score("mean", np.array([[value, 1.0]] * 9)) for value in values] for values in ((7, 8, 9), (1, 2, 3)))
        >>> found = compare_seeds(good, bad)
        >>> found.difference, found.p_value < 0.05, found.spreads
        (6.0, True, (1.0, 1.0))
        >>> compare_seeds(good, bad, paired=True).spreads       # good is better by 6 with every seed
        (0.0,)
    """
    if not 1 <= samples <= MAX_SAMPLES or seed < 0:
        raise DataError(f"compare_seeds: expected samples of 1 to {MAX_SAMPLES:,} and a seed of 0 or more, found {samples} and {seed}")
    check_lengths("compare_seeds", systems=systems, baselines=baselines)
    for side, runs_of in (("systems", systems), ("baselines", baselines)):
        for number, run in enumerate(runs_of, start=1):
            if not _fit(np.array(run.score)) or not (run.influence is None or _fit(run.influence).all()):
                found = f"found {run.score:.4g} of the test set, and of the items"
                raise DataError(f"compare_seeds: {side} must have finite scores up to {LARGEST:.0g}, run {number}: {found}")
    sides = [_differences(systems, baselines)] if paired else [systems, baselines]
    scores, runs = [np.array([run.score for run in side]) for side in sides], tuple(map(len, sides))
    difference = float(scores[0].mean()) - sum(float(of.mean()) for of in scores[1:])
    parts, spreads = [0.0] * len(sides), None
    of_items, alone = _item_variances(sides)
    if min(runs) > 1:
        variances = [max(float(of.var(ddof=1)), own) for of, own in zip(scores, alone, strict=True)]
        spreads = tuple(map(math.sqrt, variances))
        parts = [variance / count for variance, count in zip(variances, runs, strict=True)]
    elif of_items is None:
        raise DataError("compare_seeds: a single run can be compared only by the scores of its test items, which are missing")
    items = None if of_items is None else len(cast(np.ndarray, systems[0].influence))
    drawn = _chance(parts, runs, (math.sqrt(of_items or 0.0), items), samples, seed)
    # Summation order changes the last bits: treat such a difference as none.
    p_value = (1 + int(np.sum(drawn >= abs(difference) * (1 - 1e-9)))) / (1 + samples)
    p_value, reach = max(p_value, _least(items)), float(np.quantile(drawn, 1 - LEVEL))
    if _least(items) >= LEVEL:
        reach = max(reach, abs(difference))  # so few items exclude nothing
    error = None if of_items is None else math.sqrt(of_items)
    interval = (difference - reach, difference + reach) if reach else None
    return SeedComparison(difference, interval, p_value, runs, spreads, error, items)


def _fit(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float64)
    return np.abs(values) < LARGEST  # false for NaN


def _differences(systems: Sequence[RunScore], baselines: Sequence[RunScore]) -> list[RunScore]:
    # The runs of pairs as the scores of one variant, to be compared with 0.
    _check_items([*systems, *baselines])
    return [
        RunScore(one.score - other.score, None if one.influence is None or other.influence is None else one.influence - other.influence)
        for one, other in zip(systems, baselines, strict=True)
    ]


def _check_items(runs: Sequence[RunScore]) -> None:
    sizes = {len(run.influence) for run in runs if run.influence is not None}
    if len(sizes) > 1:
        raise DataError(f"compare_seeds: all runs must be on the same items, found runs on {', '.join(map(str, sorted(sizes)))} items")


def _item_variances(sides: Sequence[Sequence[RunScore]]) -> tuple[float | None, list[float]]:
    # Variance of the difference of means from common item effects, and per side the variance of a run's score from its own item effects.
    if any(run.influence is None for side in sides for run in side):
        return None, [0.0] * len(sides)
    _check_items([run for side in sides for run in side])
    effects = [np.array([run.influence for run in side], dtype=np.float64) for side in sides]
    items = effects[0].shape[1]
    degrees = items * (items - 1)
    gap = effects[0].mean(0) - sum(side.mean(0) for side in effects[1:])
    whole = float(gap @ gap) / degrees
    if min(map(len, effects)) == 1:
        return whole, [0.0] * len(sides)
    # The spread of scores already includes each run's own item effects: count them once.
    alone = [float(((side - side.mean(0)) ** 2).sum()) / ((len(side) - 1) * degrees) for side in effects]
    return max(0.0, whole - sum(own / len(side) for own, side in zip(alone, effects, strict=True))), alone


def _least(items: int | None) -> float:
    # The smallest p-value that a number of test items allows.
    return 0.0 if items is None else 2.0 ** (1 - items)


def _chance(parts: Sequence[float], runs: Sequence[int], of_items: tuple[float, int | None], samples: int, seed: int) -> np.ndarray:
    # Absolute differences between equal variants, from the variances of a mean over seeds, and the error of some number of items.
    item_error, items = of_items
    drawn = item_error * _draws(None if items is None or items >= MANY_ITEMS else items - 1, samples, (seed, 0))
    if whole := sum(parts):
        shares = (part / whole for part in parts)
        freedom = 1 / sum(share**2 / (count - 1) for share, count in zip(shares, runs, strict=True))
        drawn = drawn + math.sqrt(whole) * _draws(int(freedom * 10) / 10, samples, (seed, 1))  # downward, to draw each only once
    return np.abs(drawn)


def _critical(parts: np.ndarray, seeds: int, of_items: tuple[float, int | None], level: float) -> np.ndarray:
    # Critical values of drawn studies: each estimates the variances of a mean over seeds by few. The squares of what seeds and items alone
    # would take are added up, and the quantiles of Student's t interpolated in 1 / freedom: to plan with, not to test.
    estimated = parts * np.random.default_rng(0).chisquare(seeds - 1, (STUDIES_TO_PLAN, len(parts))) / (seeds - 1)
    whole = estimated.sum(1)
    shares = estimated / np.where(whole > 0, whole, 1)[:, None]
    inverse = (shares**2).sum(1) / (seeds - 1)
    known = np.linspace(1 / (2 * (seeds - 1)), 1 / (seeds - 1), 5)
    of_seeds = [np.quantile(np.abs(_draws(1 / one, DRAWS_TO_PLAN, (0, 1))), 1 - level) for one in known]
    of_errors = np.quantile(_chance([], (), of_items, DRAWS_TO_PLAN, 0), 1 - level)
    return np.sqrt(whole * np.interp(inverse, known, of_seeds) ** 2 + of_errors**2)


@lru_cache(maxsize=64)
def _draws(freedom: float | None, samples: int, seed: tuple[int, int]) -> np.ndarray:
    # Student's t, or normal.
    generator = np.random.default_rng(seed)
    return generator.standard_normal(samples) if freedom is None else generator.standard_t(freedom, samples)


def _check_chances(operation: str, **chances: float) -> None:
    for name, value in chances.items():
        if not 0 < value < 1:
            raise DataError(f"{operation}: {name} must be between 0 and 1, found {shown(value)}")


def _normal(share: float) -> float:
    return NormalDist().inv_cdf(share)
