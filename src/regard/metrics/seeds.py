"""Is one variant better than another by more than chance, where other seeds and other test items would give other scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from regard.errors import DataError
from regard.metrics.significance import score_of_counts

LEVEL = 0.05
"""A difference is more than chance where its p-value is below; intervals hold 1 - `LEVEL`."""
MAX_SEEDS = 1000
"""More seeds than that are not looked for."""
DRAWS_TO_PLAN = 20_000


class RunScore(NamedTuple):
    """The score of one training on the test set.

    Attributes:
        score: of the whole set.
        influence: (N,) how each test item moves it, of mean 0: the score's variance over test sets is `sum(influence^2) / (N (N - 1))`.
            None: the scores of the items are not known.
    """

    score: float
    influence: np.ndarray | None


def run_score(metric: str, counts: np.ndarray) -> RunScore:
    """Score one training, and tell what each test item does to the score (the jackknife, Efron and Stein 1981).

        influence_i = (N - 1) (mean of all score(-j) - score(-i)), with score(-i) that of the set without item i

    A corpus score such as BLEU is not a mean of items: score(-i) is made of the summed counts of all other items.

    Args:
        metric: see `regard.metrics.significance.score_of_counts`.
        counts: (N, D) what each item adds.

    Raises:
        DataError: fewer than two items, or an unknown metric.

    Example:
        >>> run_score("mean", np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]])).score
        0.5
    """
    if len(counts) < 2:
        raise DataError(f"{len(counts)} test items: a comparison needs at least 2")
    total = counts.sum(0)
    without = total - counts
    if metric == "mean":
        left_out = without[:, 0] / without[:, 1]
    elif metric == "perplexity":
        left_out = np.exp(without[:, 0] / without[:, 1])
    else:
        left_out = np.array([score_of_counts(metric, row) for row in without])
    return RunScore(score_of_counts(metric, total), (len(counts) - 1) * (left_out.mean() - left_out))


@dataclass(frozen=True)
class SeedComparison:
    """Two variants, each trained with one or several seeds, on the same test items.

    Attributes:
        difference: mean score of the system's runs minus that of the baseline's.
        interval: its 95 % interval, low and high.
        p_value: chance of so large a difference between variants that are equally good, above 0 and up to 1.
        runs: of the system and of the baseline.
        spreads: standard deviation of a score over seeds, on this test set, of the system and of the baseline; None where one of them has a
            single run. Then interval and p-value are about test items alone: another training may differ by more.
        item_error: standard error of the difference that comes from the test items; None where their scores are not known. Then interval
            and p-value are about seeds alone: another test set may differ by more.
    """

    difference: float
    interval: tuple[float, float]
    p_value: float
    runs: tuple[int, int]
    spreads: tuple[float, float] | None
    item_error: float | None

    @property
    def over(self) -> Literal["seeds and items", "items", "seeds"]:
        """What interval and p-value are about."""
        if self.spreads is None:
            return "items"
        return "seeds" if self.item_error is None else "seeds and items"

    @property
    def tolerated(self) -> float | None:
        """How much scores may spread over seeds (standard deviation) before so large a difference is chance; None: it is chance already.

        For variants of one run each, whose spread is not known.
        """
        room = (self.difference / _normal(1 - LEVEL / 2)) ** 2 - (self.item_error or 0.0) ** 2
        return math.sqrt(room / sum(1 / runs for runs in self.runs)) if room > 0 else None

    def seeds_needed(self, power: float = 0.8, *, level: float = LEVEL) -> int | None:
        """Return how many seeds of each variant would show a difference of this size, if the seeds spread as these do.

        The power of a planned study is taken to be that of a normal difference against the test's critical value at the expected variances.

        Args:
            power: chance to find it, between 0 and 1.
            level: below which the p-value has to be; less than 0.05 where it will be corrected for several comparisons.

        Returns:
            At least 2; None: the spread or what the items do is not known, or `MAX_SEEDS` seeds are too few, as for a test set that is too
            small.

        Raises:
            DataError: a power or a level that is no chance between 0 and 1.

        Example:
            >>> runs = [RunScore(score, np.array([1.0, -1.0, 1.0, -1.0])) for score in (3.0, 4.0, 5.0)]
            >>> compare_seeds(runs, [RunScore(run.score - 2, run.influence) for run in runs]).seeds_needed()
            5
        """
        for name, value in (("power", power), ("level", level)):
            if not 0 < value < 1:
                raise DataError(f"{name} {value}: expected a chance between 0 and 1")
        spreads, item_error = self.spreads, self.item_error
        if spreads is None or item_error is None:
            return None

        def enough(seeds: int) -> bool:
            parts = [spread**2 / seeds for spread in spreads]
            critical = float(np.quantile(_chance(parts, (seeds, seeds), item_error, DRAWS_TO_PLAN, 0), 1 - level))
            return abs(self.difference) - critical >= _normal(power) * math.sqrt(sum(parts) + item_error**2)

        if not enough(MAX_SEEDS):
            return None
        low, high = 1, MAX_SEEDS  # too few, enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high


def compare_seeds(
    systems: Sequence[RunScore], baselines: Sequence[RunScore], *, samples: int = 100_000, seed: int = 12345
) -> SeedComparison:
    """Compare two variants over seeds and test items (a mixed model).

    A score is the variant's, plus what its seed does, plus what the test items do to all runs of both variants, plus what they do to this
    run. Seeds and items are random: the model of Obuchowski and Rockette (1995) for readers (here seeds) of tests (here variants), with the
    parts of the items estimated by the jackknife. With A and B runs of the two, s_A and s_B the standard deviations of their scores, and
    e the standard error of the difference that comes from what the items do to all runs alike,

        p = P(|sqrt(s_A^2 / A + s_B^2 / B) T_v + e Z| >= |difference|)

    with Student's T, of Welch's (1947) degrees of freedom v between the smaller of A - 1 and B - 1 and A + B - 2, and a normal Z
    independent of it: seeds are few and their spread is hardly known, items are many. It is drawn `samples` times. From two seeds on the
    test finds no more false differences than it says, at any spread of the seeds. A hierarchical bootstrap of few seeds does where they
    spread much (`benchmarks/seed_test.py`), since it never draws a seed that it has not seen.

    With a single run of one of them there is no s: then e is that of these very runs, and the p-value is about test items alone. Without
    scores of items there is no e, and it is about seeds alone.

    Differs from the paper: each variant has a variance of its own; s is at least what the items alone do to a run's score; the degrees of
    freedom are those of the seeds, as the paper's F test has for a study of readers alone.

    Args:
        systems: the runs of the system, see `run_score`.
        baselines: those of the baseline, on the same N items.
        samples: draws, at least 1.
        seed: of NumPy's default generator, 0 or more.

    Raises:
        DataError: no run, unequal numbers of items, or a single run without the scores of its items.

    Example:
        >>> good, bad = ([run_score("mean", np.array([[value, 1.0]] * 5)) for value in values] for values in ((7, 8, 9), (1, 2, 3)))
        >>> found = compare_seeds(good, bad)
        >>> found.difference, found.p_value < 0.05, found.spreads
        (6.0, True, (1.0, 1.0))
    """
    if not systems or not baselines:
        raise DataError(f"{len(systems)} runs of the system, {len(baselines)} of the baseline: at least one of each is expected")
    scores = [np.array([run.score for run in runs]) for runs in (systems, baselines)]
    runs = len(systems), len(baselines)
    difference = float(scores[0].mean() - scores[1].mean())
    parts, spreads = [0.0, 0.0], None
    of_items, alone = _item_variances(systems, baselines)
    if min(runs) > 1:
        variances = [max(float(of.var(ddof=1)), own) for of, own in zip(scores, alone, strict=True)]
        spreads = math.sqrt(variances[0]), math.sqrt(variances[1])
        parts = [variance / count for variance, count in zip(variances, runs, strict=True)]
    elif of_items is None:
        raise DataError("a single run can be compared only by the scores of its test items, which are missing")
    drawn = _chance(parts, runs, math.sqrt(of_items or 0.0), samples, seed)
    # Sums in another order differ in their last bits: no difference is as large as none.
    p_value = (1 + int(np.sum(drawn >= abs(difference) * (1 - 1e-9)))) / (1 + samples)
    reach = float(np.quantile(drawn, 1 - LEVEL))
    error = None if of_items is None else math.sqrt(of_items)
    return SeedComparison(difference, (difference - reach, difference + reach), p_value, runs, spreads, error)


def _item_variances(systems: Sequence[RunScore], baselines: Sequence[RunScore]) -> tuple[float | None, list[float]]:
    # The variance of the difference of the means that comes from what items do to all runs alike, and for each variant that of a run's
    # score which comes from what they do to it alone.
    sides = [[run.influence for run in runs if run.influence is not None] for runs in (systems, baselines)]
    if sum(map(len, sides)) < len(systems) + len(baselines):
        return None, [0.0, 0.0]
    sizes = {len(influence) for side in sides for influence in side}
    if len(sizes) != 1:
        raise DataError(f"runs on different items cannot be compared: {', '.join(map(str, sorted(sizes)))} items")
    one, other = map(np.array, sides)
    [items] = sizes
    degrees = items * (items - 1)
    gap = one.mean(0) - other.mean(0)
    whole = float(gap @ gap) / degrees
    if min(len(one), len(other)) == 1:
        return whole, [0.0, 0.0]
    # What the items do to each run alone is in the spread of the scores, too: it counts once.
    alone = [float(((side - side.mean(0)) ** 2).sum()) / ((len(side) - 1) * degrees) for side in (one, other)]
    return max(0.0, whole - alone[0] / len(one) - alone[1] / len(other)), alone


def _chance(parts: Sequence[float], runs: tuple[int, int], item_error: float, samples: int, seed: int) -> np.ndarray:
    # Sizes of differences between equal variants, from the two variances of a mean over seeds.
    drawn = item_error * _draws(None, samples, seed)
    if whole := sum(parts):
        shares = (part / whole for part in parts)
        freedom = 1 / sum(share**2 / (count - 1) for share, count in zip(shares, runs, strict=True))
        drawn = drawn + math.sqrt(whole) * _draws(int(freedom * 10) / 10, samples, seed)  # downward, to draw each but once
    return np.abs(drawn)


@lru_cache(maxsize=64)
def _draws(freedom: float | None, samples: int, seed: int) -> np.ndarray:
    # Student's t, or normal.
    if freedom is None:
        return np.random.default_rng((seed, 0)).standard_normal(samples)
    return np.random.default_rng((seed, 1)).standard_t(freedom, samples)


def _normal(share: float) -> float:
    return NormalDist().inv_cdf(share)
