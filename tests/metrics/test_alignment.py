"""Alignment error rate, worked by hand from the definition of Och and Ney."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.errors import DataError
from regard.metrics import alignment_error_rate, links_from_weights

WEIGHTS = [[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.4, 0.4, 0.2], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
LINKS = {(0, 2), (1, 0), (2, 0), (4, 1)}


@pytest.mark.parametrize(
    "weights",
    [
        WEIGHTS,
        np.array(WEIGHTS, dtype=np.float32),
        torch.tensor(WEIGHTS, requires_grad=True),
        torch.tensor(WEIGHTS, dtype=torch.bfloat16),
    ],
    ids=["lists", "float32 array", "tensor with gradient", "bfloat16 tensor"],
)
def test_each_target_links_to_its_largest_weight_and_a_row_of_zeros_to_nothing(weights):
    assert links_from_weights(weights) == LINKS


@pytest.mark.parametrize("weights", [[], [[], []], np.zeros((0, 5)), np.zeros((5, 0))])
def test_weights_without_cells_link_nothing(weights):
    assert links_from_weights(weights) == set()


@pytest.mark.parametrize("weights", [[1.0, 2.0], [[1.0], [1.0, 2.0]], [[float("nan")]], [[float("inf")]], [["a"]], np.ones((2, 3, 5))])
def test_what_is_not_a_matrix_of_numbers_is_a_data_error(weights):
    with pytest.raises(DataError, match=r"^links_from_weights: weights must be "):
        links_from_weights(weights)


@pytest.mark.parametrize(
    "weights", [[["1", "0"]], np.array([[1j, 0]]), torch.ones(1, 2, dtype=torch.complex64)], ids=["text", "complex", "tensor"]
)
def test_text_and_complex_numbers_are_no_weights(weights):
    with pytest.raises(DataError, match="links_from_weights: weights must be numbers"):
        links_from_weights(weights)


CASES = [
    # found, sure, possible, AER: 1 - (|A & S| + |A & P|) / (|A| + |S|)
    ({(0, 0), (1, 1)}, {(0, 0), (1, 1)}, None, 0.0),
    ({(0, 1)}, {(0, 0)}, None, 1.0),
    ({(0, 0), (1, 1), (2, 2)}, {(0, 0)}, {(0, 0), (1, 1)}, 1 - (1 + 2) / (3 + 1)),
    ({(0, 0), (1, 1), (2, 2)}, {(0, 0)}, {(1, 1)}, 1 - (1 + 2) / (3 + 1)),  # sure links are possible ones
    ({(0, 0)}, {(0, 0), (1, 1), (2, 2)}, None, 1 - 2 / 4),
    ({(1, 1)}, set(), {(1, 1)}, 0.0),
    (set(), {(0, 0)}, None, 1.0),
    (set(), set(), None, 0.0),
]


@pytest.mark.parametrize(("found", "sure", "possible", "expected"), CASES)
def test_the_error_rate_of_one_sentence_is_the_one_worked_by_hand(found, sure, possible, expected):
    assert alignment_error_rate(found, sure, possible).value == pytest.approx(100 * expected)
    assert alignment_error_rate([found], [sure], None if possible is None else [possible]).value == pytest.approx(100 * expected)


def test_counts_are_summed_over_sentences_before_they_are_divided():
    found = [{(0, 0)}, {(0, 1), (1, 0), (2, 0)}]
    sure = [{(0, 0)}, {(0, 0), (1, 0), (2, 2)}]
    # hits 1 + 1, twice; 4 found and 4 sure links. The mean of the two rates would be 1/3.
    assert alignment_error_rate(found, sure).value == pytest.approx(100 * (1 - 4 / 8))


def test_weights_are_taken_in_the_place_of_links():
    assert alignment_error_rate(WEIGHTS, LINKS).value == 0.0
    assert alignment_error_rate([np.array(WEIGHTS), {(0, 0)}], [LINKS, {(0, 0)}]).value == 0.0


def test_a_link_is_target_then_source():
    weights = [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    assert alignment_error_rate(weights, {(0, 2), (1, 2)}).value == 0.0
    assert alignment_error_rate(weights, {(2, 0), (2, 1)}).value == 100.0


def test_lists_of_unequal_length_and_no_sentences_are_data_errors():
    with pytest.raises(DataError, match="found, sure and possible must have the same length, found 1, 2 and 2"):
        alignment_error_rate([{(0, 0)}], [{(0, 0)}] * 2)
    with pytest.raises(DataError, match="alignment_error_rate: found, sure and possible must not be empty"):
        alignment_error_rate([], [])


SURE = [set(), {(0, 0), (1, 2)}]
NO_LINK = r"sentence 2, must hold links \(target, source\), two whole numbers of at least 0, found "


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor], ids=["list", "tuple", "array", "tensor"])
def test_two_columns_of_whole_numbers_are_neither_links_nor_weights(kind):
    with pytest.raises(DataError, match=r"^alignment_error_rate: found, sentence 2, may be links or weights, whole numbers in two columns"):
        alignment_error_rate([set(), kind([(0, 0), (1, 2)])], SURE)
    # Floats are weights, and so are whole numbers in other columns.
    assert alignment_error_rate([[[1.0, 0.0], [0.0, 1.0]]], [{(0, 0), (1, 1)}]).value == 0.0
    assert alignment_error_rate([[[1, 0, 0], [0, 0, 1]]], [{(0, 0), (1, 2)}]).value == 0.0


REFUSED = {
    "text": ([set(), {"0-0"}], SURE, None, f"found, {NO_LINK}'0-0'"),
    "numbers in words": ([set(), {("0", "0")}], SURE, None, f"found, {NO_LINK}" + r"\('0', '0'\)"),
    "three numbers": ([set(), {(0, 0, 1)}], SURE, None, f"found, {NO_LINK}"),
    "half a position": (SURE, [set(), {(0, 0.5)}], None, f"sure, {NO_LINK}"),
    "true": (SURE, [set(), {(0, True)}], None, f"sure, {NO_LINK}"),
    "below 0": (SURE, SURE, [set(), {(-1, 0)}], f"possible, {NO_LINK}"),
    "sure links in a list": (
        SURE,
        [set(), [(0, 0)]],
        None,
        r"sure, sentence 2, must be a set of links \(target, source\), found \[\(0, 0\)\]",
    ),
    "one set of found links": ({(0, 0), (1, 2)}, SURE, None, "found must be a list with a set for each sentence, as sure is"),
    "one set of possible links": (SURE, SURE, {(0, 0), (1, 2)}, "possible must be a list with a set for each sentence, as sure is"),
    "one set of sure links": (SURE[1:], SURE[1], None, "found, sentence 1, must be numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_are_no_links_is_named_with_its_sentence(name):
    found, sure, possible, message = REFUSED[name]
    with pytest.raises(DataError, match=f"^alignment_error_rate: {message}"):
        alignment_error_rate(found, sure, possible)
