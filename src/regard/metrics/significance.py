"""Significance of differences: paired bootstrap over test items, Holm correction. For tests over seeds see `seeds`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sacrebleu.metrics.base import Metric

from regard import progress
from regard.arguments import takes_arguments
from regard.errors import DataError, shown
from regard.metrics.caption import COUNTS, bleu_of_caption_counts
from regard.metrics.checks import check_least, check_lengths, read_counts, refuse_where
from regard.metrics.classification import macro_f1_of_counts
from regard.metrics.score import Score
from regard.metrics.translation import make_bleu, make_chrf

# Resampled line numbers in memory at once: 2**22 of 8 bytes are 32 MiB, for any test set.
CHUNK = 2**22
COLUMNS = {"bleu": 10, "chrf": 18, "caption-bleu": COUNTS, "macro-f1": None, "mean": 2, "perplexity": 2}
"""Counts per item of each metric of `score_of_counts`; None: two for each label."""


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same test set.

    Attributes:
        system: score of the system on the whole set.
        baseline: score of the baseline on the whole set.
        difference: system minus baseline.
        mean: mean score of the system over the resampled sets.
        interval: the system's 95 % interval, low and high, over the resampled sets.
        baseline_mean: mean score of the baseline.
        baseline_interval: the baseline's 95 % interval.
        difference_interval: 95 % interval of the difference; it excludes 0 where the p-value is below 0.05, about.
        p_value: probability of a difference this large between equal systems, above 0 and up to 1.
        samples: number of resampled sets.
        seed: seed of the resampling.
    """

    system: Score
    baseline: Score
    difference: float
    mean: float
    interval: tuple[float, float]
    baseline_mean: float
    baseline_interval: tuple[float, float]
    difference_interval: tuple[float, float]
    p_value: float
    samples: int
    seed: int


@takes_arguments
def paired_bootstrap(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    *,
    metric: Literal["bleu", "chrf"] = "bleu",
    tokenize: str = "13a",
    samples: int = 1000,
    seed: int = 12345,
) -> Comparison:
    """Compare two outputs by paired bootstrap resampling (Koehn, 2004).

    Test sets of the same size are drawn with replacement, the same lines for both systems. With d the difference on the whole set and
    d_i on set i,

        p = (1 + #{i: |d_i - mean d_i| >= |d|}) / (1 + samples)

    Scores and intervals equal `sacrebleu --paired-bs` with the same seed. Its p does not: it takes |d_i| - mean |d_i| for the deviations,
    which are too small between systems that are nearly equal, so it is below 0.05 for far more than 5 % of equal systems.

    Args:
        hypotheses: output lines of the system.
        baseline: output lines of the baseline.
        references: reference lines.
        metric: "bleu" (mixed case) or "chrf".
        tokenize: how BLEU divides text, see `bleu`.
        samples: sets drawn, at least 1.
        seed: of NumPy's default generator, 0 or more.

    Returns:
        A `Comparison`; the signatures of its scores hold samples and seed.

    Raises:
        DataError: empty lists, unequal lengths, an unknown metric or tokenizer, samples below 1, or a seed below 0.

    Example:
        >>> same = paired_bootstrap(["a b c d"] * 3, ["a b c d"] * 3, ["a b c d"] * 3, samples=20)
        >>> same.difference, same.p_value
        (0.0, 1.0)
    """
    check_lengths("paired_bootstrap", hypotheses=hypotheses, baseline=baseline, references=references)
    check_least("paired_bootstrap", "samples", samples, 1)
    check_least("paired_bootstrap", "seed", seed, 0)
    scorer = _scorer("paired_bootstrap", metric, tokenize)
    with progress.stage("Significance test"):
        return _bootstrap(scorer, (hypotheses, baseline, references), metric, samples, seed)


def _bootstrap(
    scorer: Metric, texts: tuple[Sequence[str], Sequence[str], Sequence[str]], metric: str, samples: int, seed: int
) -> Comparison:
    hypotheses, baseline, references = texts
    statistics = [_statistics(scorer, lines, references) for lines in (hypotheses, baseline)]
    system_score, baseline_score = (_score(scorer, table.sum(axis=0)) for table in statistics)
    sums = _resample(np.concatenate(statistics, axis=1), samples, seed)
    width = statistics[0].shape[1]
    drawn = np.array([_score(scorer, row) for row in sums[:, :width]])
    drawn_baseline = np.array([_score(scorer, row) for row in sums[:, width:]])
    differences = drawn - drawn_baseline
    difference = system_score - baseline_score
    signature = scorer.get_signature()
    signature.update("bs", samples)
    signature.update("seed", seed)
    name = "BLEU" if metric == "bleu" else "chrF2"
    return Comparison(
        system=Score(name, system_score, "0-100", str(signature)),
        baseline=Score(name, baseline_score, "0-100", str(signature)),
        difference=difference,
        mean=float(drawn.mean()),
        interval=_interval(drawn),
        baseline_mean=float(drawn_baseline.mean()),
        baseline_interval=_interval(drawn_baseline),
        difference_interval=_interval(differences),
        p_value=_p_value(differences, difference),
        samples=samples,
        seed=seed,
    )


@takes_arguments
def item_counts(metric: Literal["bleu", "chrf"], hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return the counts per line of a corpus score: (N, D), see `score_of_counts`.

    Raises:
        DataError: empty lists, unequal lengths, an unknown metric.

    Example:
        >>> counts = item_counts("bleu", ["a b c d e"], ["a b c d e"])
        >>> round(score_of_counts("bleu", counts.sum(0)), 6)
        100.0
    """
    check_lengths("item_counts", hypotheses=hypotheses, references=references)
    return _statistics(_scorer("item_counts", metric), hypotheses, references)


@takes_arguments
def score_of_counts(metric: str, counts: np.ndarray) -> float:
    """Compute a score from counts (D,) summed over items.

    Args:
        metric: "bleu" or "chrf", whose counts are those of `item_counts`; "caption-bleu", BLEU-4 from the counts of
            `regard.metrics.caption.caption_bleu_counts`; "macro-f1" from those of `regard.metrics.classification.macro_f1_counts`; "mean",
            whose counts are a value and 1; or "perplexity", whose counts are a negative log-likelihood in nats and a number of tokens.
        counts: their sums.

    Raises:
        DataError: an unknown metric, or counts that are no array (D,) of its numbers.

    Example:
        >>> score_of_counts("mean", np.array([3.0, 4.0])), score_of_counts("perplexity", np.array([0.0, 5.0]))
        (0.75, 1.0)
    """
    counts = read_metric_counts("score_of_counts", metric, counts, axes=1)
    return _score_of_counts(metric, counts)


def read_metric_counts(operation: str, metric: str, counts: np.ndarray, *, axes: int) -> np.ndarray:
    """Check that a metric is one of `score_of_counts`, and return its counts as float64.

    Args:
        operation: name that begins the message.
        metric: name of the metric.
        counts: (D,) or (N, D).
        axes: 1 or 2.

    Raises:
        DataError: an unknown metric, or another array.

    Example:
        >>> read_metric_counts("run_score", "mean", np.ones((3, 2)), axes=2).shape
        (3, 2)
    """
    if metric not in COLUMNS:
        raise DataError(f"{operation}: metric must be one of {', '.join(COLUMNS)}, found {shown(metric)}")
    return read_counts(operation, counts, axes=axes, columns=COLUMNS[metric])


def _score_of_counts(metric: str, counts: np.ndarray) -> float:
    if metric == "mean":
        return float(counts[0] / counts[1])
    if metric == "perplexity":
        return float(np.exp(counts[0] / counts[1]))
    if metric == "caption-bleu":
        return bleu_of_caption_counts(counts)[-1]
    if metric == "macro-f1":
        return macro_f1_of_counts(counts)
    return _score(_scorer("score_of_counts", metric), counts)


@takes_arguments
def bootstrap_interval(metric: str, counts: np.ndarray, *, samples: int = 1000, seed: int = 12345) -> tuple[float, float]:
    """Return the 95 % interval of a score over resampled test sets: as many items, drawn with replacement.

    Args:
        metric: see `score_of_counts`.
        counts: (N, D) counts per item; of "mean", no 0 in the second column.
        samples: sets drawn, at least 1.
        seed: of NumPy's default generator, 0 or more.

    Raises:
        DataError: no items, an unknown metric, counts that are no array (N, D) of its numbers, samples below 1, or a seed below 0.

    Example:
        >>> bootstrap_interval("mean", np.array([[2.0, 1.0]] * 3), samples=20)
        (2.0, 2.0)
    """
    counts = read_metric_counts("bootstrap_interval", metric, counts, axes=2)
    if not len(counts):
        raise DataError("bootstrap_interval: counts must be of at least one item, found none")
    check_least("bootstrap_interval", "samples", samples, 1)
    check_least("bootstrap_interval", "seed", seed, 0)
    return _interval(np.array([_score_of_counts(metric, row) for row in _resample(counts, samples, seed)]))


@takes_arguments
def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons (Holm, 1979).

    Args:
        p_values: of all comparisons, from 0 to 1.

    Returns:
        The corrected p-values, in the same order.

    Raises:
        DataError: one is not from 0 to 1.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    given = np.asarray(p_values, dtype=np.float64)
    refuse_where(~((given >= 0) & (given <= 1)), given, "holm: p_values must be from 0 to 1")
    corrected, worst = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = worst
    return corrected


def _scorer(operation: str, metric: str, tokenize: str = "13a") -> Metric:
    if metric == "bleu":
        return make_bleu(operation, tokenize=tokenize)
    if metric == "chrf":
        return make_chrf(operation)
    raise DataError(f"{operation}: metric must be bleu or chrf, found {shown(metric)}")


def _statistics(scorer: Metric, lines: Sequence[str], references: Sequence[str]) -> np.ndarray:
    # sacrebleu's significance test uses these two private methods for the counts per line.
    counts = scorer._extract_corpus_statistics(list(lines), [list(references)])  # pyright: ignore[reportPrivateUsage]
    return np.array(counts, dtype=np.float64)


def _score(scorer: Metric, counts: np.ndarray) -> float:
    return min(float(scorer._compute_score_from_stats(counts.tolist()).score), 100.0)  # pyright: ignore[reportPrivateUsage]


def _resample(statistics: np.ndarray, samples: int, seed: int) -> np.ndarray:
    lines = len(statistics)
    generator = np.random.default_rng(seed)
    rows = max(1, CHUNK // lines)
    sums = np.empty((samples, statistics.shape[1]))
    for start in range(0, samples, rows):
        stop = min(start + rows, samples)
        drawn = generator.choice(lines, size=(stop - start, lines), replace=True)
        for row, chosen in enumerate(drawn, start):
            sums[row] = np.bincount(chosen, minlength=lines) @ statistics
    return sums


def _interval(values: np.ndarray) -> tuple[float, float]:
    ordered = np.sort(values)
    outside = len(ordered) // 40  # 2.5 % on each side
    return float(ordered[outside]), float(ordered[len(ordered) - outside - 1])


def _p_value(differences: np.ndarray, difference: float) -> float:
    if difference == 0.0 and not differences.any():
        return 1.0
    beyond = int(np.sum(np.abs(differences - differences.mean()) >= abs(difference)))
    return (beyond + 1) / (len(differences) + 1)
