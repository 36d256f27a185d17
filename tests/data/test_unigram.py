"""Unigram training: a probability distribution over pieces that segments better than characters do."""

from __future__ import annotations

import math
import time
from itertools import pairwise, product

import numpy as np
import pytest

from regard.data.unigram import _Lattice, train_unigram

WORDS = ["walk", "walked", "walking", "talk", "talked", "talking", "jump", "jumped", "jumping"]
TEXTS = [f"{WORDS[number % 9]} {WORDS[number * 5 % 9]}" for number in range(97)]


def test_pieces_are_a_distribution_with_specials_in_front() -> None:
    pieces = train_unigram(TEXTS, size=31, specials=["?", "!"])
    assert pieces[:2] == [("?", 0.0), ("!", 0.0)]
    assert len(pieces) <= 31
    assert sum(math.exp(score) for _, score in pieces[2:]) == pytest.approx(1.0, abs=1e-4)
    assert [score for _, score in pieces[2:]] == sorted((score for _, score in pieces[2:]), reverse=True)
    assert set("".join(TEXTS).replace(" ", "▁")) <= {piece for piece, _ in pieces}


def test_frequent_stems_and_endings_are_found() -> None:
    pieces = {piece for piece, _ in train_unigram(TEXTS, size=28, specials=["?"])}
    assert {"▁walk", "▁talk", "▁jump", "ing", "ed"} <= pieces


def test_more_characters_than_room_keeps_the_frequent_ones() -> None:
    pieces = train_unigram(["aaab aab c"], size=4, specials=["?"])
    assert {piece for piece, _ in pieces} == {"?", "a", "b", "▁"}
    assert train_unigram([""], size=4, specials=["?"]) == [("?", 0.0)]


def test_expected_counts_are_those_of_all_segmentations() -> None:
    numbers = {"a": 0, "b": 1, "ab": 2, "aba": 3, "ba": 4}
    probabilities = np.array([0.3, 0.1, 0.25, 0.15, 0.2])
    word, weight = "ababa", 3
    totals, expected = 0.0, np.zeros(5)
    for cuts in product([False, True], repeat=len(word) - 1):
        bounds = [0, *[place + 1 for place, cut in enumerate(cuts) if cut], len(word)]
        parts = [word[start:stop] for start, stop in pairwise(bounds)]
        if all(part in numbers for part in parts):
            chance = math.prod(probabilities[numbers[part]] for part in parts)
            totals += chance
            for part in parts:
                expected[numbers[part]] += chance
    lattice = _Lattice([word], numbers, [weight])
    np.testing.assert_allclose(lattice.expected_counts(probabilities), weight * expected / totals, rtol=1e-12)
    # aba ba = ab aba = 0.15 * 0.2 against 0.25 * 0.15: the second.
    np.testing.assert_allclose(lattice.best_without_itself(probabilities), [0.25 * 0.15], rtol=1e-12)
    np.testing.assert_allclose(_Lattice(["aba"], numbers, [1]).best_without_itself(probabilities), [0.25 * 0.3], rtol=1e-12)


def test_piece_with_a_near_equal_replacement_goes_before_a_rarer_one_without() -> None:
    # "ab" inside "abab" is the commoner one, but "a" "b" says nearly the same; for "xyz" three letters are poor.
    texts = ["abab"] * 41 + ["ab"] * 401 + ["xyz"] * 23
    pieces = {piece for piece, _ in train_unigram(texts, size=9, specials=["?"])}
    assert pieces == {"?", "▁", *"abxyz", "▁ab", "▁xyz"}


def test_texts_of_many_kinds_train_in_seconds() -> None:
    begin = time.process_time()
    train_unigram(["x" * 1_000_000, "日本語" * 3001, *TEXTS], size=97, specials=["?"])
    assert time.process_time() - begin < 10
