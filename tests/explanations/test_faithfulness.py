"""Faithfulness: curves against a loop, correlations of ranks, shuffled weights."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch

from regard.errors import ConfigError
from regard.explanations import TranslationBatch, explain, greedy_order
from regard.explanations.faithfulness import erasure_curves, randomized, rank_correlation, with_model
from tests.explanations.models import SOURCES, TARGETS, batch_of, pairs, sorter, translator
from tests.tasks.tiny import FAMILIES


def test_curves_are_a_loop_over_shortened_sources() -> None:
    batch = cast(TranslationBatch, batch_of("transformer"))
    outputs, shares = torch.tensor([2, 0, 3]), (0.2, 0.5)
    scores = torch.rand(batch.inputs.shape)
    found = erasure_curves(batch, outputs, scores, shares=shares)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        order = sorted(range(len(source)), key=lambda place: -scores[row, place].item())
        for column, share in enumerate(shares):
            first = set(order[: math.ceil(share * len(source))])
            for kept, curve in ((set(order) - first, found.comprehensiveness), (first, found.sufficiency)):
                whole, rest = (
                    pairs(batch.model, [part], [target]).log_probs()[0, outputs[row]].exp()
                    for part in (source, [token for place, token in enumerate(source) if place in kept])
                )
                torch.testing.assert_close(curve[row, column], (whole - rest).detach())


def test_inputs_with_equal_scores_are_ranked_at_random() -> None:
    batch = pairs(sorter(), [[6, 4, 8, 5, 7]] * 40, [[4, 5, 6, 7, 8]] * 40)
    equal = torch.ones(40, batch.inputs.shape[1])
    # The copied token stands at each place but is removed first in a fifth of the orders, not in all or none.
    for output in range(5):
        lost = erasure_curves(batch, torch.full((40,), output), equal, shares=[0.2]).comprehensiveness[:, 0]
        assert 0 < (lost > 0.5).sum() < 20
    outputs = torch.zeros(40, dtype=torch.long)
    first, again, other = (erasure_curves(batch, outputs, equal, seed=seed).comprehensiveness for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("share", "count", "first"), [(0.3, 50, 15), (0.1, 70, 7), (0.3, 51, 16)])
def test_a_share_of_many_inputs_is_not_rounded_up_past_a_whole_number(share: float, count: int, first: int) -> None:
    batch = pairs(translator(FAMILIES["gru"]).double(), [[4 + place % 13 for place in range(count)]], [[5, 6]])
    found = erasure_curves(batch, torch.tensor([1]), torch.arange(count + 1.0, 0.0, -1.0).unsqueeze(0), shares=[share])
    kept = torch.ones_like(batch.inputs)
    kept[:, :first] = False
    expected = batch.log_probs()[:, 1].exp() - batch.keep(kept).log_probs()[:, 1].exp()
    torch.testing.assert_close(found.comprehensiveness[:, 0], expected.detach())


def test_of_a_line_only_what_stands_before_a_token_is_taken_away() -> None:
    batch = batch_of("language")
    outputs = torch.tensor([1, 1, 1])  # one word stands before each
    found = erasure_curves(batch, outputs, torch.rand(batch.inputs.shape), shares=[1.0])
    assert found.sufficiency.abs().max() == 0
    kept = ~batch.inputs
    expected = batch.log_probs()[:, 1].exp() - batch.keep(kept).log_probs()[:, 1].exp()
    torch.testing.assert_close(found.comprehensiveness[:, 0], expected.detach())
    assert greedy_order(batch, outputs, 3).count_nonzero(1).tolist() == [1, 1, 1]


def test_on_a_model_that_copies_the_right_order_is_faithful_and_its_reverse_is_not() -> None:
    batch = pairs(sorter(), [[6, 4, 8, 5, 7], [8, 7, 6, 5, 4]], [[4, 5, 6, 7, 8]] * 2)
    outputs = torch.tensor([3, 0])
    scores = explain(batch, "weights")[torch.arange(2), outputs]
    good, bad = (erasure_curves(batch, outputs, sign * scores).areas for sign in (1, -1))
    assert good[0].min() > 0.5
    assert good[1].max() < 0.1
    assert bad[0].max() < 0.1
    assert bad[1].min() > 0.5


def test_correlation_of_ranks_shares_ties_and_leaves_padding_out() -> None:
    one = torch.tensor([[1.0, 2.0, 2.0, 4.0, 9.0], [1.0, 1.0, 1.0, 0.0, 0.0]])
    other = torch.tensor([[10.0, 30.0, 20.0, 40.0, -9.0], [1.0, 2.0, 3.0, 0.0, 0.0]])
    ranked = torch.tensor([[True, True, True, True, False], [True, True, True, False, False]])
    found = rank_correlation(one, other, ranked)
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: 4.5 / sqrt(4.5 * 5).
    assert found[0].item() == pytest.approx(4.5 / math.sqrt(22.5))
    assert found[1].isnan()


def test_shuffled_weights_are_those_of_the_model_in_another_order() -> None:
    batch = cast(Any, batch_of("transformer"))
    before = {name: parameter.clone() for name, parameter in batch.model.named_parameters()}
    other = randomized(batch.model, seed=3)
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter.flatten().sort().values, before[name].flatten().sort().values)
        assert torch.equal(parameter, before[name]) == (parameter.dim() == 1)
    assert all(torch.equal(parameter, before[name]) for name, parameter in batch.model.named_parameters())
    assert not torch.allclose(with_model(batch, other).log_probs(), batch.log_probs())


@pytest.mark.parametrize("shares", [[], [0.0], [0.5, 1.5]])
def test_shares_out_of_range_are_refused(shares: list[float]) -> None:
    batch = batch_of("gru")
    with pytest.raises(ConfigError, match="expected numbers above 0 and up to 1"):
        erasure_curves(batch, torch.tensor([0, 0, 0]), torch.rand(batch.inputs.shape), shares=shares)
