"""Batches: every pair once, within the budget, a pure function of seed and epoch, little padding, even work."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import _sorted_by_length, collate, plan_batches
from regard.data.vocabulary import BOS, EOS, PAD
from regard.errors import ConfigError, DataError, ShapeError


def lengths(pairs: int, seed: int = 1) -> tuple[list[int], list[int]]:
    generator = np.random.default_rng(seed)
    source = generator.poisson(13, pairs)
    return source.tolist(), np.maximum(0, source + generator.integers(-5, 6, pairs)).tolist()


@pytest.mark.parametrize("budget", [1, 17, 101, 1009, 100_003])
def test_every_pair_is_in_one_batch_within_the_budget(budget: int) -> None:
    source, target = lengths(997)
    plan = plan_batches(source, target, batch_tokens=budget, seed=2, epoch=3)
    assert sorted(index for batch in plan for index in batch.indices) == list(range(997))
    for batch in plan:
        longest = max(max(source[index], target[index]) + 1 for index in batch.indices)
        assert len(batch.indices) * longest <= budget or len(batch.indices) == 1
        assert batch.tokens == sum(target[index] + 1 for index in batch.indices)


def test_plan_is_a_function_of_seed_and_epoch() -> None:
    source, target = lengths(499)
    plans = {key: plan_batches(source, target, batch_tokens=211, seed=key[0], epoch=key[1]) for key in [(1, 1), (1, 2), (2, 1)]}
    for (seed, epoch), plan in plans.items():
        assert plan_batches(np.array(source), np.array(target), batch_tokens=211, seed=seed, epoch=epoch) == plan
    members = [{frozenset(batch.indices) for batch in plan} for plan in plans.values()]
    for first, second in [(0, 1), (0, 2), (1, 2)]:
        assert len(members[first] & members[second]) < 0.2 * len(members[first])


@given(pairs=st.lists(st.tuples(st.sampled_from([1, 2, 5, 65535, 65536]), st.sampled_from([-0.5, -0.0, 0.0, 0.25, 7.0])), max_size=41))
def test_pairs_are_sorted_as_by_lexsort(pairs: list[tuple[int, float]]) -> None:
    longest, lean = np.array([pair[0] for pair in pairs], np.int64), np.array([pair[1] for pair in pairs], float)
    assert _sorted_by_length(lean, longest).tolist() == np.lexsort((lean, longest)).tolist()


def test_plan_of_these_lengths_never_changes() -> None:
    # A resumed run relies on it: whoever changes the plan changes what a stored position in an epoch means.
    plan = plan_batches([3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7], batch_tokens=23, seed=5, epoch=2)
    assert [batch.indices for batch in plan] == [(2, 3, 1), (4, 5), (0, 6)]


def test_batches_are_shuffled_and_their_padded_sizes_nearly_equal() -> None:
    source, target = lengths(5003)
    plan = plan_batches(source, target, batch_tokens=1009, seed=1, epoch=1)
    longest = [max(max(source[index], target[index]) + 1 for index in batch.indices) for batch in plan]
    assert abs(np.corrcoef(longest[:-1], longest[1:])[0, 1]) < 0.35
    filled = sorted(len(batch.indices) * top for batch, top in zip(plan, longest, strict=True))
    assert filled[1] > 1009 - 2 * max(longest)
    sides = [np.asarray(side) + 1 for side in (source, target)]  # with their end
    padded = sum(len(batch.indices) * int(side[list(batch.indices)].max()) for batch in plan for side in sides)
    assert 1 - sum(int(side.sum()) for side in sides) / padded < 0.06


def test_batch_takes_every_pair_that_fits() -> None:
    plan = plan_batches([4] * 12, [4] * 12, batch_tokens=20, seed=1, epoch=1)
    assert [len(batch.indices) for batch in plan] == [4, 4, 4]


def test_thirty_thousand_pairs_are_planned_at_once() -> None:
    source, target = lengths(29_009)
    begin = time.process_time()
    plan_batches(source, target, batch_tokens=4096, seed=1, epoch=1)
    assert time.process_time() - begin < 0.3


def test_plan_of_nothing_is_empty_and_wrong_arguments_are_named() -> None:
    assert plan_batches([], [], batch_tokens=5, seed=1, epoch=1) == []
    with pytest.raises(ShapeError, match=r"\(2,\) and target_lengths \(3,\)"):
        plan_batches([1, 2], [1, 2, 3], batch_tokens=5, seed=1, epoch=1)
    with pytest.raises(ConfigError, match="batch_tokens 0"):
        plan_batches([1], [1], batch_tokens=0, seed=1, epoch=1)
    with pytest.raises(ConfigError, match="epoch -1"):
        plan_batches([1], [1], batch_tokens=5, seed=1, epoch=-1)
    with pytest.raises(DataError, match="length of -1"):
        plan_batches([1], [-1], batch_tokens=5, seed=1, epoch=1)


def test_collate_adds_ends_and_pads_the_chosen_pairs() -> None:
    batch = collate([[5], [6, 7, 8], [9]], [[10, 11], [12], []], [2, 1])
    assert batch.source.tolist() == [[9, EOS, PAD, PAD], [6, 7, 8, EOS]]
    assert batch.source_lengths.tolist() == [2, 4]
    assert batch.target_input.tolist() == [[BOS, PAD], [BOS, 12]]
    assert batch.target_output.tolist() == [[EOS, PAD], [12, EOS]]
    assert batch.target_lengths.tolist() == [1, 2]
    assert batch.indices == (2, 1)
    assert {tensor.dtype for tensor in batch[:5]} == {torch.long}
    assert collate([], [], []).source.shape == (0, 0)


def test_batch_moves_as_a_whole() -> None:
    batch = collate([[5, 6]], [[7]], [0]).to("meta")
    assert {tensor.device.type for tensor in batch[:5]} == {"meta"}
    assert batch.indices == (0,)
