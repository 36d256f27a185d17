"""Masks of the modules: padding has a parameter of its own, what can be read in two ways is refused, numbers are refused."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import regard.attention
from regard import ops
from regard.attention import (
    Areas,
    Attention,
    CrossedAttention,
    DotScore,
    HardChoice,
    KeyValueAttention,
    MonotonicWindow,
    MultiHeadAttention,
    NonLocal,
    StructuredAttention,
    index_sources,
)
from regard.errors import ShapeError
from regard.models import Encoder, EncoderLayer, FeedForward
from regard.models.pooling import StatePooling
from tests.attention.mechanisms import MECHANISMS, build, inputs

N, E = 6, 4  # B, T and S alike: whatever a mask of two axes means, it broadcasts
LENGTHS = torch.tensor([6, 1, 4, 0, 3, 5])
PADDING = ops.length_mask(LENGTHS, N)
STATES = torch.randn(N, N, E, generator=torch.Generator().manual_seed(3))

# Every attention of queries over keys, whose forward takes `mask` and `key_mask`.
QUERIED = {
    "attention": Attention(DotScore()),
    "windowed": Attention(DotScore(), window=MonotonicWindow(2)),
    "areas": Attention(DotScore(), areas=Areas(2)),
    "hard": Attention(DotScore(), choice=HardChoice()).eval(),
    "multi-head": MultiHeadAttention(E, 2),
    "multi-head, additive keys": MultiHeadAttention(E, 2, score=DotScore()),
    "multi-head areas": MultiHeadAttention(E, 2, areas=Areas(2)),
    "multi-head area features": MultiHeadAttention(E, 2, areas=Areas(2, key_mode="features", dim=E // 2)),
}
# Every way in which a key_mask comes in: module -> call.
KEYED = {
    **{name: lambda mask, module=module: module(STATES, STATES, STATES, key_mask=mask) for name, module in QUERIED.items()},
    "attention memory": lambda mask: QUERIED["attention"].memory(STATES, key_mask=mask),
    "multi-head memory": lambda mask: QUERIED["multi-head"].memory(STATES, STATES, key_mask=mask),
    "multi-head memory, finite": lambda mask: QUERIED["multi-head"].memory(STATES, STATES, key_mask=mask, finite=True),
    "multi-head items": lambda mask: QUERIED["multi-head"].items(STATES, key_mask=mask),
    "items": lambda mask: index_sources(STATES.unsqueeze(2), STATES.unsqueeze(2), mask),
    "structured": lambda mask: StructuredAttention(E, 3, 2)(STATES, key_mask=mask),
    "non-local": lambda mask: NonLocal(E)(STATES, key_mask=mask),
    "co-attention": lambda mask: NonLocal(E)(STATES, STATES, key_mask=mask),
    "key-value": lambda mask: KeyValueAttention(E, 2)(STATES, key_mask=mask),
    "key-value memory": lambda mask: KeyValueAttention(E, 2).memory(STATES, key_mask=mask),
    "key-value step": lambda mask: KeyValueAttention(E, 2).step(STATES, KeyValueAttention(E, 2).memory(STATES), key_mask=mask),
    "crossed, first": lambda mask: crossed()(STATES, STATES, first_key_mask=mask),
    "crossed, second": lambda mask: crossed()(STATES, STATES, second_key_mask=mask),
    "encoder": lambda mask: Encoder([layer()], None)(STATES, mask),
    "encoder layer": lambda mask: layer()(STATES, mask),
    "pooling": lambda mask: StatePooling("mean")(STATES, mask),
}


def crossed() -> CrossedAttention:
    return CrossedAttention(MultiHeadAttention(E, 2), Attention(DotScore()))


def layer() -> EncoderLayer:
    return EncoderLayer(MultiHeadAttention(E, 2), FeedForward(E, 5), pre=False, dropout=0.0)


@pytest.mark.parametrize("name", QUERIED)
def test_a_length_mask_goes_straight_into_key_mask_and_hides_padding(name):
    module = QUERIED[name]
    found = module(STATES, STATES, STATES, key_mask=PADDING, need_weights=True)
    weights = found.weights if found.weights.dim() == 3 else found.weights.sum(1)
    assert weights.masked_select(~PADDING.unsqueeze(1)).count_nonzero() == 0
    for b, length in enumerate(LENGTHS.tolist()):
        cut = STATES[b : b + 1, :length]
        alone = module(STATES[b : b + 1], cut, cut, need_weights=True)
        torch.testing.assert_close(found.context[b], alone.context[0])
        torch.testing.assert_close(found.weights[b, ..., :length], alone.weights[0])


@pytest.mark.parametrize("name", QUERIED)
def test_as_a_mask_it_is_refused_with_both_ways_to_say_what_is_meant(name):
    module = QUERIED[name]
    memory = module.memory(STATES, STATES)
    for call in (module.attend, lambda query, memory, mask: module(query, STATES, STATES, mask=mask)):
        with pytest.raises(ShapeError, match=r"ambiguous .* one mask per query, write mask\[None\]; .* padding, give it as key_mask="):
            call(STATES, memory, mask=PADDING)
        call(STATES, memory, mask=PADDING[None])


@pytest.mark.parametrize("name", QUERIED)
def test_mask_and_key_mask_together_allow_what_both_allow(name):
    module = QUERIED[name]
    pairs = torch.rand(N, N, N, generator=torch.Generator().manual_seed(5)) < 0.7
    for mask in (pairs, pairs[:1], pairs[:, :1], pairs[0, 0]):
        found = module(STATES, STATES, STATES, key_mask=PADDING, mask=mask, need_weights=True)
        expected = module(STATES, STATES, STATES, mask=mask & PADDING.unsqueeze(1), need_weights=True)
        torch.testing.assert_close(tuple(found)[:2], tuple(expected)[:2])


@pytest.mark.parametrize("name", QUERIED)
def test_causal_hides_the_future_beside_both_masks(name):
    attention, earlier = QUERIED[name], ops.causal_mask(N, N)[None]
    pairs = torch.rand(N, N, N, generator=torch.Generator().manual_seed(5)) < 0.7
    for given in ({}, {"key_mask": PADDING}, {"mask": pairs[:1, :1]}, {"mask": pairs, "key_mask": PADDING}):
        for need_weights in (False, True):
            found = attention(STATES, STATES, STATES, causal=True, need_weights=need_weights, **given)
            both = {**given, "mask": given.get("mask", earlier) & earlier}
            expected = attention(STATES, STATES, STATES, need_weights=need_weights, **both)
            torch.testing.assert_close(tuple(found)[:2], tuple(expected)[:2])


@pytest.mark.parametrize("name", [name for name in QUERIED if name != "windowed"])
def test_causal_lets_the_last_of_fewer_queries_attend_to_all(name):
    found = QUERIED[name](STATES[:, :2], STATES, STATES, causal=True, need_weights=True).weights
    assert (found[..., 1, :] > 0).any(0).all() if name != "hard" else found.shape[-2] == 2
    assert (found[..., 0, -1] == 0).all()


@pytest.mark.parametrize("name", KEYED)
def test_a_key_mask_is_boolean_and_of_batch_and_keys(name):
    call = KEYED[name]
    call(PADDING)
    for wrong, message in [
        (PADDING.float(), r"must be boolean \(True = may be attended\), found torch.float32"),
        (PADDING.long(), r"must be boolean .* found torch.int64; if 1 is real, give mask.bool\(\)"),
        (PADDING.tolist(), r"must be a boolean tensor .* found list"),
        (PADDING.unsqueeze(1), r"must be \(B, S\) = \(6, 6\), found \(6, 1, 6\)"),
        (PADDING[0], r"must be \(B, S\) = \(6, 6\), found \(6,\)"),
        (PADDING[:, :4], r"must be \(B, S\) = \(6, 6\), found \(6, 4\)"),
    ]:
        with pytest.raises(ShapeError, match=message):
            call(wrong)


@pytest.mark.parametrize("name", QUERIED)
def test_a_mask_of_numbers_is_refused(name):
    module = QUERIED[name]
    for wrong in (torch.zeros(N, N, N), torch.ones(1, N, N, dtype=torch.long)):
        with pytest.raises(ShapeError, match="the mask must be boolean"):
            module(STATES, STATES, STATES, mask=wrong)
        with pytest.raises(ShapeError, match="the mask must be boolean"):
            module.attend(STATES, module.memory(STATES, STATES), mask=wrong)


def test_torchs_name_for_padding_is_not_swallowed():
    """True means the opposite there."""
    modules = [*QUERIED.values(), StructuredAttention(E, 3, 2), NonLocal(E), KeyValueAttention(E, 2), crossed()]
    for module in modules:
        states = [STATES] * (3 if module in QUERIED.values() else 2 if isinstance(module, CrossedAttention) else 1)
        with pytest.raises(TypeError, match="key_padding_mask"):
            module(*states, key_padding_mask=~PADDING)


def test_every_attention_module_that_takes_a_mask_takes_a_key_mask():
    """A score, a window, a choice or areas see positions, not a batch with padding."""
    for name in regard.attention.__all__:
        thing = getattr(regard.attention, name)
        if not (inspect.isclass(thing) and issubclass(thing, nn.Module)) or thing in (Areas, regard.attention.ScoreFunctionEstimator):
            continue
        for method in ("forward", "memory", "step", "items"):
            parameters = inspect.signature(getattr(thing, method)).parameters if hasattr(thing, method) else {}
            masks = {parameter for parameter in parameters if parameter.endswith("mask")}
            assert not masks or any(mask.endswith("key_mask") for mask in masks), f"{name}.{method}"


@pytest.mark.parametrize("name", [name for name, row in MECHANISMS.items() if not row.padding_only])
def test_every_mechanism_of_the_table_refuses_a_mask_of_two_axes(name):
    mechanism = MECHANISMS[name]
    module, tensors = build(mechanism), inputs(mechanism)
    target, source = tensors[0].shape[1], tensors[1].shape[1]
    with pytest.raises(ShapeError, match="ambiguous"):
        module(*tensors, torch.ones(target, source, dtype=torch.bool))


@pytest.mark.parametrize("key_mode", ["mean", "max"])
def test_one_column_of_a_mask_is_that_of_all_keys_with_areas_of_a_grid(key_mode):
    attention, x = MultiHeadAttention(4, 1, areas=Areas((2, 2), (2, 3), key_mode=key_mode)), torch.randn(2, 6, 4)
    column = torch.tensor([True, False, True, True, False, True]).view(1, 6, 1).expand(2, 6, 1)
    found, expected = (attention(x, x, x, mask=mask, need_weights=True) for mask in (column, column.expand(2, 6, 6)))
    torch.testing.assert_close(found.context, expected.context)
    torch.testing.assert_close(found.weights, expected.weights)
