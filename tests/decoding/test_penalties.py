from __future__ import annotations

import math

import pytest
import torch

from regard.decoding.penalties import block_repeats_, coverage_penalty, length_penalty


@pytest.mark.parametrize(("length", "alpha", "expected"), [(7, 0.0, 1.0), (1, 0.7, 1.0), (7, 1.0, 2.0), (19, 0.5, 2.0), (0, 1.0, 5 / 6)])
def test_the_length_penalty_is_that_of_the_paper(length: int, alpha: float, expected: float) -> None:
    assert length_penalty(length, alpha) == pytest.approx(expected)


def test_the_coverage_penalty_is_that_of_the_paper() -> None:
    coverage = torch.rand(2, 3, 5) * 1.5
    lengths = [5, 2]
    result = coverage_penalty(coverage, torch.tensor(lengths), beta=0.3)
    for b, length in enumerate(lengths):
        for k in range(3):
            expected = 0.3 * sum(math.log(min(coverage[b, k, j].item(), 1.0)) for j in range(length))
            assert result[b, k].item() == pytest.approx(expected, rel=1e-5)


def test_padding_costs_nothing_and_an_unseen_word_a_finite_price() -> None:
    coverage = torch.tensor([[[1.0, 0.0, torch.nan]], [[torch.nan] * 3]])
    assert coverage_penalty(coverage, torch.tensor([2, 0]), beta=1.0).flatten().tolist() == pytest.approx([math.log(1e-6), 0.0])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, 1, 2, 11])
def test_exactly_the_tokens_that_repeat_an_ngram_are_blocked(size: int, length: int) -> None:
    history = torch.randint(0, 3, (5, 7, length))
    blocked = block_repeats_(torch.zeros(5, 7, 4), history, size=size) == -torch.inf
    for b in range(5):
        for k in range(7):
            tokens = history[b, k].tolist()
            seen = [tokens[i : i + size] for i in range(length - size + 1)]
            expected = [[*tokens[len(tokens) - size + 1 :], token] in seen for token in range(4)]
            assert blocked[b, k].tolist() == expected
