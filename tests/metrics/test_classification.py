"""Scores of labels against sums made by hand and against their definitions."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from regard.errors import DataError
from regard.metrics.classification import (
    accuracy,
    calibration_error,
    compare_accuracy,
    confusion_matrix,
    macro_f1,
    macro_f1_counts,
    macro_f1_of_counts,
    wilson_interval,
)

EXPECTED = ["a"] * 5 + ["b"] * 3 + ["c"] * 3
PREDICTED = ["a", "a", "a", "b", "c", "b", "b", "a", "a", "a", "b"]  # c is never right


def test_accuracy_counts_and_holds_its_interval() -> None:
    score = accuracy(PREDICTED, EXPECTED)
    assert score.value == pytest.approx(500 / 11)
    assert score.signature == "n:11|ci95:wilson 21.27-71.99"
    assert accuracy(["", "a"], ["a", "a"]).value == 50


def test_no_label_is_wrong_whatever_is_expected() -> None:
    assert accuracy(["", "a"], ["", "a"]).value == 50
    assert compare_accuracy(["", "a"], ["", ""], ["", "a"]).only_system == 1
    assert compare_accuracy(["", "a"], ["a", "a"], ["", "a"]).difference == 0
    assert compare_accuracy(["a", "b"], ["a", "a"], ["a", "b"]).interval[1] == 100


def test_counts_of_whole_numbers_hold_the_hits_beside_no_label() -> None:
    predicted, expected = [2, "", 7, 2], [2, 7, 7, 7]
    counts = macro_f1_counts(predicted, expected)  # type: ignore[arg-type]
    assert counts.tolist() == [[1, 0, 2, 0], [0, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 1]]
    assert macro_f1_of_counts(counts.sum(0)) == pytest.approx(macro_f1(predicted, expected).value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("correct", "total"), [(0, 7), (7, 7), (3, 7), (1500, 1821)])
def test_the_interval_holds_the_two_proportions_that_just_fit(correct: int, total: int) -> None:
    low, high = wilson_interval(correct, total)
    share = correct / total
    for bound in (low, high):
        if 0 < bound < 1:  # Wilson 1927: the observed share is 1.96 standard errors of the bound away from it
            assert abs(share - bound) == pytest.approx(1.959963984540054 * math.sqrt(bound * (1 - bound) / total))
    assert 0 <= low <= share <= high <= 1


def test_macro_f1_is_the_mean_over_labels_of_either_side() -> None:
    # a: 3 right, 6 predicted, 5 expected; b: 2, 4, 3; c: 0, 1, 3
    assert macro_f1(PREDICTED, EXPECTED).value == pytest.approx(100 / 3 * (6 / 11 + 4 / 7 + 0))
    assert macro_f1(["a", "x"], ["a", "a"]).value == pytest.approx(100 / 2 * (2 / 3 + 0))
    assert macro_f1(["", ""], ["a", "b"]).value == 0


def test_the_confusion_matrix_has_rows_of_expected_labels() -> None:
    found = confusion_matrix(PREDICTED, EXPECTED, ["a", "b", "c", "d"])
    assert found.counts.tolist() == [[3, 1, 1, 0], [1, 2, 0, 0], [2, 1, 0, 0], [0, 0, 0, 0]]
    rows = found.by_label()
    assert rows[0] == ("a", 0.5, 0.6, pytest.approx(6 / 11), 5)
    assert rows[3] == ("d", 0, 0, 0, 0)
    assert confusion_matrix(["", "b"], ["a", "b"], ["a", "b"]).counts.tolist() == [[0, 0], [0, 1]]


def test_calibration_is_zero_when_confidence_is_right_and_the_gap_when_not() -> None:
    assert calibration_error([0.75] * 4, [True, True, True, False]).value == pytest.approx(0)
    assert calibration_error([1.0] * 4, [True, False, False, False]).value == pytest.approx(75)
    # 0.2 and 0.4 share a bin of two, in which gaps of opposite sign cancel; with five bins they do not.
    assert calibration_error([0.2, 0.4], [False, True], bins=2).value == pytest.approx(20)
    assert calibration_error([0.2, 0.4], [False, True], bins=5).value == pytest.approx(40)
    # 0.14 * 50 is a little above 7: the seventh bin holds both values all the same.
    assert calibration_error([0.14, 0.13], [False, True], bins=50).value == pytest.approx(100 * abs(1 - 0.27) / 2)
    assert calibration_error([0.2, 0.4], [False, True], bins=np.int64(2)).value == pytest.approx(20)  # type: ignore[arg-type]
    assert calibration_error([0.0, 1.0], [False, True], bins=1).value == pytest.approx(0)


def test_calibration_agrees_with_a_loop_over_bins() -> None:
    generator = random.Random(7)
    confidence = [generator.random() for _ in range(307)]
    right = [generator.random() < 0.7 for _ in confidence]
    expected = 0.0
    for number in range(15):
        inside = [i for i, p in enumerate(confidence) if number / 15 < p <= (number + 1) / 15]
        if inside:
            gap = abs(sum(right[i] for i in inside) / len(inside) - sum(confidence[i] for i in inside) / len(inside))
            expected += gap * len(inside) / len(confidence)
    assert calibration_error(np.array(confidence), np.array(right)).value == pytest.approx(100 * expected)


def test_systems_are_compared_where_only_one_is_right() -> None:
    expected = ["a"] * 20
    system = ["a"] * 15 + ["b"] * 5
    baseline = ["b"] * 8 + ["a"] * 9 + ["b"] * 3
    found = compare_accuracy(system, baseline, expected)
    assert (found.only_system, found.only_baseline, found.difference) == (8, 2, pytest.approx(30))
    assert found.p_value == pytest.approx(2 * (1 + 10 + 45) / 2**10)
    # The mean of 20 numbers, of which 8 are 1, 2 are -1 and the others 0.
    half = 196 * math.sqrt((10 / 20 - 0.3**2) / 20)
    assert found.interval == (pytest.approx(30 - half, abs=0.01), pytest.approx(30 + half, abs=0.01))
    other = compare_accuracy(baseline, system, expected)
    assert (other.difference, other.p_value) == (pytest.approx(-30), pytest.approx(found.p_value))
    assert compare_accuracy(system, system, expected).p_value == 1


def test_a_test_of_thousands_of_examples_does_not_overflow() -> None:
    baseline = ["b"] * 1100 + ["a"] * 900 + ["b"] * 1000 + ["a"] * 1000
    found = compare_accuracy(["a"] * 4000, baseline, ["a"] * 2000 + ["b"] * 2000)
    assert (found.only_system, found.only_baseline) == (1100, 1000)
    # By the normal distribution that the binomial one comes close to, with the correction for whole numbers.
    assert found.p_value == pytest.approx(math.erfc((100 - 1) / math.sqrt(2100) / math.sqrt(2)), rel=0.01)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda: accuracy([], []), "accuracy: predicted and expected must not be empty"),
        (lambda: macro_f1(["a"], ["a", "b"]), "macro_f1: predicted and expected must have the same length, found 1 and 2"),
        (lambda: macro_f1_counts([], []), "macro_f1_counts: predicted and expected must not be empty"),
        (lambda: compare_accuracy(["a"], [], ["a"]), "compare_accuracy: predicted, baseline and expected must have the same length"),
        (lambda: confusion_matrix(["a", "z"], ["a", "a"], ["a", "b"]), "predicted must be among the labels a, b, item 2 is 'z'"),
        (lambda: confusion_matrix(["a"], [""], ["a", "b"]), "confusion_matrix: expected must be among the labels a, b, item 1 is ''"),
        (lambda: confusion_matrix(["a"], ["a"], []), "confusion_matrix: labels must be one or more, .* found none"),
        (lambda: confusion_matrix(["a"], ["a"], ["a", ""]), "confusion_matrix: labels must be .* none of them empty"),
        (lambda: calibration_error([], []), "calibration_error: probabilities and correct must not be empty"),
        (lambda: calibration_error([0.5], [True, False]), "probabilities and correct must have the same length, found 1 and 2"),
        (lambda: calibration_error([[0.5]], [True]), r"calibration_error: probabilities must be one list \(N,\), found shape \(1, 1\)"),
        (lambda: calibration_error([0.5, 1.5], [True] * 2), r"calibration_error: probabilities must be from 0 to 1, found 1\.5 at \[1\]"),
        (lambda: calibration_error([math.nan], [True]), "calibration_error: probabilities must be from 0 to 1, found nan"),
        (lambda: calibration_error(["0.5"], [True]), "calibration_error: probabilities must be numbers"),
        (lambda: calibration_error([0.5], [True], bins=0), "calibration_error: bins must be at least 1, found 0"),
        (lambda: calibration_error([0.5], [True], bins=2.5), "bins must be a whole number, found 2.5"),
        (lambda: calibration_error([0.5, 0.5], ["false", "true"]), "calibration_error: correct must be numbers"),
        (
            lambda: calibration_error([0.5, 0.5], [1, 0.3]),
            r"calibration_error: correct must be True or False \(1 or 0\), found 0\.3 at \[1\]",
        ),
        (lambda: accuracy("abc", "abd"), "predicted must be a list of labels"),
        (lambda: wilson_interval(3, 2), "wilson_interval: correct must be from 0 to total, found 3 of 2"),
        (lambda: macro_f1_of_counts("a"), "macro_f1_of_counts: counts must be an array of numbers"),
        (lambda: macro_f1_of_counts(np.ones(3)), r"macro_f1_of_counts: counts must be an array of numbers \(2 C,\), found float64 \(3,\)"),
    ],
)
def test_what_cannot_be_scored_is_told(score, message: str) -> None:
    with pytest.raises(DataError, match=message):
        score()
