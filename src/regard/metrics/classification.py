"""Classification metrics: accuracy with interval, macro-F1, confusion matrix, calibration, and comparison of two systems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.arguments import Labels, takes_arguments
from regard.errors import DataError, listed, shown
from regard.metrics.checks import check_correct, check_least, check_lengths, read_counts, read_flags, read_numbers, refuse_where
from regard.metrics.score import Score

# 97.5 % quantile of the normal distribution.
_Z = 1.959963984540054


@takes_arguments
def accuracy(predicted: Labels, expected: Labels) -> Score:
    """Compute the share of examples with the correct label.

    Args:
        predicted: N labels; "" for none, which is wrong whatever is expected.
        expected: N labels.

    Returns:
        A `Score` in percent; its signature holds N and the 95 % interval (Wilson 1927).

    Raises:
        DataError: empty lists or unequal lengths.

    Example:
        >>> print(accuracy(["a", "b", "b", "a"], ["a", "b", "a", "a"]))
        accuracy 75.00 % [n:4|ci95:wilson 30.06-95.44]
    """
    check_lengths("accuracy", predicted=predicted, expected=expected)
    correct = sum(_right(predicted, expected))
    low, high = wilson_interval(correct, len(expected))
    return Score("accuracy", 100.0 * correct / len(expected), "%", f"n:{len(expected)}|ci95:wilson {100 * low:.2f}-{100 * high:.2f}")


@takes_arguments
def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion, low and high in [0, 1] (Wilson 1927).

    Raises:
        DataError: no examples, or `correct` outside 0 up to `total`.

    Example:
        >>> [round(bound, 3) for bound in wilson_interval(80, 100)]
        [0.711, 0.867]
    """
    check_correct("wilson_interval", correct, total=total)
    share, square = correct / total, _Z * _Z
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total * total)) / (1 + square / total)
    # Rounding must not exclude the proportion itself where all or none are correct.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


@dataclass(frozen=True)
class ConfusionMatrix:
    """Confusion matrix of labels.

    Attributes:
        labels: C names, in the order of rows and columns.
        counts: (C, C) integers; rows: expected labels, columns: predicted labels.
    """

    labels: tuple[str, ...]
    counts: np.ndarray

    def by_label(self) -> list[tuple[str, float, float, float, int]]:
        """Return (name, precision, recall, F1, expected examples) per label, in [0, 1]; 0/0 counts as 0."""
        rows = []
        for place, label in enumerate(self.labels):
            hits = float(self.counts[place, place])
            predicted, expected = float(self.counts[:, place].sum()), float(self.counts[place].sum())
            precision, recall = _ratio(hits, predicted), _ratio(hits, expected)
            rows.append((label, precision, recall, _ratio(2 * hits, predicted + expected), int(expected)))
        return rows


@takes_arguments
def confusion_matrix(predicted: Labels, expected: Labels, labels: Labels) -> ConfusionMatrix:
    """Compute the confusion matrix.

    Args:
        predicted: N labels; "" (none) is not counted.
        expected: N labels.
        labels: all labels, without "".

    Raises:
        DataError: empty lists, unequal lengths, labels that repeat, or a label that is not among them.

    Example:
        >>> confusion_matrix(["a", "b", "b"], ["a", "b", "a"], ["a", "b"]).counts.tolist()
        [[1, 1], [0, 1]]
    """
    check_lengths("confusion_matrix", predicted=predicted, expected=expected)
    numbers = {label: number for number, label in enumerate(labels)}
    if not labels or "" in numbers or len(numbers) < len(labels):
        raise DataError(
            f"confusion_matrix: labels must be one or more, all different and none of them empty, found {listed(labels) or 'none'}"
        )
    for name, given, known in (("predicted", predicted, {*numbers, ""}), ("expected", expected, numbers)):
        for place, label in enumerate(given, 1):
            if label not in known:
                raise DataError(f"confusion_matrix: {name} must be among the labels {listed(labels)}, item {place} is {shown(label)}")
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for found, wanted in zip(predicted, expected, strict=True):
        if found != "":
            counts[numbers[wanted], numbers[found]] += 1
    return ConfusionMatrix(tuple(map(str, labels)), counts)


@takes_arguments
def macro_f1(predicted: Labels, expected: Labels) -> Score:
    """Compute the unweighted mean of F1 over labels.

    Args:
        predicted: N labels; "" for none.
        expected: N labels.

    Returns:
        A `Score` of 0 to 100 over the labels on either side; a label that is never both has F1 = 0.

    Raises:
        DataError: empty lists or unequal lengths.

    Example:
        >>> round(macro_f1(["a", "b", "b"], ["a", "b", "a"]).value, 2)
        66.67
    """
    check_lengths("macro_f1", predicted=predicted, expected=expected)
    labels = sorted({*predicted, *expected} - {""})
    hits, found, wanted = Counter(p for p, e in zip(predicted, expected, strict=True) if p == e), Counter(predicted), Counter(expected)
    scores = [_ratio(2 * hits[label], found[label] + wanted[label]) for label in labels]
    value = 100 * sum(scores) / len(scores) if scores else 0.0
    return Score("macro-F1", value, "0-100", f"n:{len(expected)}|labels:{len(labels)}|zero division:0")


@takes_arguments
def macro_f1_counts(predicted: Labels, expected: Labels) -> np.ndarray:
    """Return the counts of each example from whose sums `macro_f1_of_counts` computes macro-F1.

    Args:
        predicted: N labels; "" for none.
        expected: N labels.

    Returns:
        (N, 2 C) counts for the C labels on either side: 1 where a label is predicted and expected, then how often it is either, 0 to 2.

    Raises:
        DataError: empty lists or unequal lengths.

    Example:
        >>> macro_f1_counts(["a", "b"], ["a", "a"]).tolist()
        [[1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    """
    check_lengths("macro_f1_counts", predicted=predicted, expected=expected)
    columns = {label: column for column, label in enumerate(sorted({*predicted, *expected} - {""}))}
    found, wanted = (
        np.array([columns.get(label, -1) for label in side])[:, None] == np.arange(len(columns)) for side in (predicted, expected)
    )
    return np.concatenate([found & wanted, found.astype(int) + wanted], axis=1).astype(np.float64)


@takes_arguments
def macro_f1_of_counts(counts: np.ndarray) -> float:
    """Return macro-F1, 0 to 100, from summed counts (2 C,) of `macro_f1_counts`, over the labels that they have.

    Raises:
        DataError: the counts are no array (2 C,) of numbers.

    Example:
        >>> round(macro_f1_of_counts(macro_f1_counts(["a", "b", "b"], ["a", "b", "a"]).sum(0)), 2)
        66.67
    """
    counts = read_counts("macro_f1_of_counts", counts, axes=1, columns=None)
    hits, both = np.split(counts, 2)
    there = both > 0
    return 100.0 * float(np.mean(2 * hits[there] / both[there])) if there.any() else 0.0


@takes_arguments
def calibration_error(probabilities: Sequence[float] | np.ndarray, correct: Sequence[bool] | np.ndarray, *, bins: int = 15) -> Score:
    """Compute the expected calibration error: the gap between confidence and accuracy.

        ECE = sum over bins of (examples in it / N) * |share of them that is right - mean confidence of them|

    Guo et al. 2017 (arXiv:1706.04599), Eq. 3: bins of equal width over [0, 1], closed above.

    Args:
        probabilities: N probabilities of the predicted labels.
        correct: N booleans, whether the label is correct.
        bins: at least 1.

    Returns:
        A `Score` in percent.

    Raises:
        DataError: no examples, unequal lengths, a probability outside [0, 1], or no bin.

    Example:
        >>> round(calibration_error([0.75, 0.75, 0.95, 0.95], [True, False, True, True], bins=10).value, 6)
        15.0
    """
    confidence = read_numbers("calibration_error: probabilities", probabilities)
    hits = read_flags("calibration_error: correct", correct)
    for name, given in (("probabilities", confidence), ("correct", hits)):
        if given.ndim != 1:
            raise DataError(f"calibration_error: {name} must be one list (N,), found shape {given.shape}")
    check_lengths("calibration_error", probabilities=confidence, correct=hits)
    refuse_where(~((confidence >= 0) & (confidence <= 1)), confidence, "calibration_error: probabilities must be from 0 to 1")
    check_least("calibration_error", "bins", bins, 1)
    place = np.searchsorted(np.arange(1, bins) / bins, confidence)  # a value at the upper end of a bin is in it
    gaps = np.abs(np.bincount(place, hits, bins) - np.bincount(place, confidence, bins))
    return Score("calibration error", 100 * float(gaps.sum()) / len(confidence), "%", f"n:{len(confidence)}|bins:{bins}|width:equal")


@dataclass(frozen=True)
class AccuracyComparison:
    """Two systems on the same examples.

    Attributes:
        difference: accuracy of the system minus that of the baseline, in percentage points.
        interval: its 95 % interval, low and high.
        only_system: examples that only the system gets right.
        only_baseline: examples that only the baseline gets right.
        p_value: exact two-sided p of McNemar's test.
    """

    difference: float
    interval: tuple[float, float]
    only_system: int
    only_baseline: int
    p_value: float


@takes_arguments
def compare_accuracy(predicted: Labels, baseline: Labels, expected: Labels) -> AccuracyComparison:
    """Compare two systems' labels with McNemar's exact test.

    The interval of the difference is Wald's for paired proportions, cut at -100 and 100 points.

    Args:
        predicted: N labels of the system; "" for none, which is wrong.
        baseline: N labels of the baseline, likewise.
        expected: N labels.

    Raises:
        DataError: empty lists or unequal lengths.

    Example:
        >>> found = compare_accuracy(["a"] * 8, ["a", "b", "b", "b", "b", "b", "b", "a"], ["a"] * 8)
        >>> found.difference, found.only_system, round(found.p_value, 6)
        (75.0, 6, 0.03125)
    """
    check_lengths("compare_accuracy", predicted=predicted, baseline=baseline, expected=expected)
    pairs = list(zip(_right(predicted, expected), _right(baseline, expected), strict=True))
    gain, loss, total = sum(p and not b for p, b in pairs), sum(b and not p for p, b in pairs), len(pairs)
    apart = gain + loss
    # The tail in logarithms: 2^-n underflows from n = 1,075.
    tail = [math.lgamma(apart + 1) - math.lgamma(k + 1) - math.lgamma(apart - k + 1) for k in range(min(gain, loss) + 1)]
    p_value = min(1.0, 2 * sum(math.exp(part - apart * math.log(2)) for part in tail))
    share = (gain - loss) / total
    half = _Z * math.sqrt(max(0.0, apart / total - share * share) / total)
    interval = 100 * max(-1.0, share - half), 100 * min(1.0, share + half)
    return AccuracyComparison(100 * share, interval, gain, loss, p_value)


def _right(predicted: Labels, expected: Labels) -> list[bool]:
    return [p == e and p != "" for p, e in zip(predicted, expected, strict=True)]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
