"""Counting scores, worked by hand."""

from __future__ import annotations

import math

import pytest

from regard.errors import DataError
from regard.metrics import Score, exact_match, perplexity, token_accuracy


def test_token_accuracy_is_the_part_in_percent():
    score = token_accuracy(3, 7)
    assert (score.name, score.unit) == ("token accuracy", "%")
    assert score.value == pytest.approx(300 / 7)
    assert [token_accuracy(0, 5).value, token_accuracy(5, 5).value] == [0.0, 100.0]


@pytest.mark.parametrize(
    ("correct", "tokens", "message"),
    [
        (0, 0, "tokens must be at least 1, found 0"),
        (0, -3, "tokens must be at least 1, found -3"),
        (8, 7, "correct must be from 0 to tokens, found 8 of 7"),
        (-1, 7, "correct must be from 0 to tokens, found -1 of 7"),
    ],
)
def test_impossible_counts_are_data_errors(correct, tokens, message):
    with pytest.raises(DataError, match=f"^token_accuracy: {message}$"):
        token_accuracy(correct, tokens)


@pytest.mark.parametrize(
    ("hypotheses", "references", "expected"),
    [
        (["a", "b", "c"], ["a", "x", "c"], 200 / 3),
        ([""], [""], 100.0),
        (["A"], ["a"], 0.0),
        (["a "], ["a"], 0.0),
        (["e\u0301"], ["\u00e9"], 0.0),  # equal to look at, but other characters
    ],
)
def test_exact_match_counts_lines_equal_in_every_character(hypotheses, references, expected):
    assert exact_match(hypotheses, references).value == pytest.approx(expected)


def test_exact_match_refuses_lists_it_cannot_pair():
    with pytest.raises(DataError, match="exact_match: hypotheses and references must have the same length, found 2 and 1"):
        exact_match(["a", "b"], ["a"])
    with pytest.raises(DataError, match="exact_match: hypotheses and references must not be empty"):
        exact_match([], [])


def test_perplexity_of_a_uniform_guess_is_the_vocabulary_size():
    assert perplexity(13 * math.log(31), 13).value == pytest.approx(31)
    assert perplexity(0.0, 5).value == 1.0


@pytest.mark.parametrize("nll", [1e6, math.inf])
def test_perplexity_overflows_to_infinity(nll):
    assert perplexity(nll, 3).value == math.inf


def test_perplexity_of_nan_is_nan_and_of_no_tokens_an_error():
    assert math.isnan(perplexity(math.nan, 3).value)
    with pytest.raises(DataError, match="perplexity: tokens must be at least 1, found 0"):
        perplexity(1.0, 0)
    with pytest.raises(DataError, match=r"perplexity: nll_sum must be at least 0, found -1\.5"):
        perplexity(-1.5, 2)


def test_a_score_shows_its_signature_and_cannot_be_changed():
    score = Score("exact match", 97.125, "%", "nlines:8")
    assert str(score) == "exact match 97.12 % [nlines:8]"
    assert float(score) == 97.125
    with pytest.raises(AttributeError):
        score.value = 100.0
