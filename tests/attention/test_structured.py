"""Structured self-attention against the paper's loops, and its r = 1 against additive attention with an empty query."""

from __future__ import annotations

import math

import pytest
import torch

from regard import ops
from regard.attention import AdditiveScore, StructuredAttention
from regard.errors import ShapeError
from tests.reference import hard as reference

B, S, D, A, R = 3, 7, 5, 11, 2
LENGTHS = torch.tensor([S, 4, 0])
MASK = ops.length_mask(LENGTHS, S)


def build(dtype=torch.float64, bias=False):
    torch.default_generator.manual_seed(19)
    return StructuredAttention(D, A, R, bias).to(dtype)


def states(dtype=torch.float64):
    return torch.randn(B, S, D, generator=torch.Generator().manual_seed(23), dtype=torch.float64).to(dtype)


def test_context_and_weights_equal_the_loops():
    attention = build()
    context, weights = attention(states(), key_mask=MASK, need_weights=True)
    first, second = attention.first.weight.detach().numpy(), attention.second.weight.detach().numpy()
    for b in range(B):
        expected = reference.structured(states()[b].numpy(), int(LENGTHS[b]), first, second)
        torch.testing.assert_close(context[b], torch.tensor(expected[0]))
        torch.testing.assert_close(weights[b], torch.tensor(expected[1]))


def test_weights_come_only_on_request():
    assert build()(states()).weights is None
    assert torch.equal(build()(states()).context, build()(states(), need_weights=True).context)


def test_one_hop_is_self_attention_pooling():
    attention = StructuredAttention(D, A, 1).double()
    score = AdditiveScore(3, D, A).double()
    with torch.no_grad():
        score.key.weight.copy_(attention.first.weight)
        score.key.bias.zero_()
        score.vector.copy_(attention.second.weight[0])
    expected = ops.masked_softmax(score(torch.zeros(B, 1, 3, dtype=torch.float64), score.project(states())), MASK.unsqueeze(1))
    found = attention(states(), key_mask=MASK, need_weights=True)
    torch.testing.assert_close(found.weights, expected)
    torch.testing.assert_close(found.context, expected @ states())


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
def test_what_is_masked_changes_nothing_and_gets_no_gradient(poison):
    attention = build()
    clean = attention(states(), key_mask=MASK, need_weights=True)
    spoiled = states().masked_fill(~MASK.unsqueeze(-1), poison).requires_grad_()
    found = attention(spoiled, key_mask=MASK, need_weights=True)
    assert torch.equal(found.context, clean.context)
    assert torch.equal(found.weights, clean.weights)
    assert (found.weights[1, :, 4:] == 0).all()
    gradients = torch.autograd.grad(found.context.square().sum() + found.weights.square().sum(), [spoiled, *attention.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][~MASK] == 0).all()
    assert (gradients[0][MASK] != 0).any()


def test_a_broken_state_that_may_be_attended_is_not_hidden():
    spoiled = states()
    spoiled[0, 3, 1] = math.nan
    context, weights = build()(spoiled, key_mask=MASK, need_weights=True)
    assert context[0].isnan().all()
    assert weights[0].isnan().all()
    assert context[1:].isfinite().all()


def test_a_sentence_without_words_is_zeros():
    context, weights = build()(states(), key_mask=MASK, need_weights=True)
    assert (context[2] == 0).all()
    assert (weights[2] == 0).all()


def test_padding_a_sentence_changes_nothing():
    padded, alone = build()(states(), key_mask=MASK, need_weights=True), build()(states()[1:2, :4], need_weights=True)
    torch.testing.assert_close(padded.context[1], alone.context[0])
    torch.testing.assert_close(padded.weights[1, :, :4], alone.weights[0])


def test_reordering_the_words_reorders_the_weights():
    order = torch.randperm(S)
    plain, moved = build()(states(), need_weights=True), build()(states()[:, order], need_weights=True)
    torch.testing.assert_close(moved.context, plain.context)
    torch.testing.assert_close(moved.weights, plain.weights[..., order])


@pytest.mark.parametrize("shape", [(0, S, D), (B, 0, D), (B, 1, D)])
@pytest.mark.parametrize("masked", [True, False])
def test_empty_and_single_axes(shape, masked):
    mask = torch.ones(shape[:2], dtype=torch.bool) if masked else None
    context, weights = build()(torch.randn(shape, dtype=torch.float64), key_mask=mask, need_weights=True)
    assert context.shape == (shape[0], R, D)
    assert weights.shape == (shape[0], R, shape[1])
    assert (weights == 1).all()
    assert context.isfinite().all()


def test_gradients_equal_finite_differences_twice():
    attention = build()
    assert torch.autograd.gradcheck(lambda x: attention(x, key_mask=MASK).context, (states().requires_grad_(),))
    assert torch.autograd.gradgradcheck(lambda x: attention(x, key_mask=MASK).context, (states().requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_stays_close_to_float64(dtype):
    found = build(dtype)(states(dtype), key_mask=MASK)
    assert found.context.dtype == dtype
    expected = build()(states(), key_mask=MASK).context
    torch.testing.assert_close(found.context.double(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.03)


def test_autocast_stays_close_to_float32():
    attention = build(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = attention(states(torch.float32), key_mask=MASK, need_weights=True)
    expected = attention(states(torch.float32), key_mask=MASK, need_weights=True)
    torch.testing.assert_close(found.context.float(), expected.context, rtol=0, atol=0.03)
    torch.testing.assert_close(found.weights.float().sum(-1)[:2], torch.ones(2, R), rtol=0, atol=0.01)


def test_strided_and_expanded_states_are_attended_like_plain_ones():
    strided = states().transpose(0, 1).contiguous().transpose(0, 1)
    expanded = states()[:1].expand(B, S, D)
    for given in (strided, expanded):
        torch.testing.assert_close(build()(given, key_mask=MASK), build()(given.contiguous(), key_mask=MASK))


def test_parameter_names_are_part_of_the_file_format():
    assert {name: tuple(p.shape) for name, p in build().state_dict().items()} == {"first.weight": (A, D), "second.weight": (R, A)}
    assert {name: tuple(p.shape) for name, p in build(bias=True).state_dict().items()} == {
        "first.weight": (A, D),
        "first.bias": (A,),
        "second.weight": (R, A),
        "second.bias": (R,),
    }


def test_the_bias_of_a_hop_changes_nothing_but_that_of_the_hidden_layer_does():
    attention = build(bias=True)
    before = attention(states()).context
    with torch.no_grad():
        attention.second.bias.add_(3)
    torch.testing.assert_close(attention(states()).context, before)
    with torch.no_grad():
        attention.first.bias.add_(3)
    assert not torch.allclose(attention(states()).context, before)


def test_wrong_shapes_name_both():
    with pytest.raises(ShapeError, match=r"states must be \(B, S, 5\), found \(3, 7, 11\)"):
        build()(torch.ones(B, S, A, dtype=torch.float64))
    with pytest.raises(ShapeError, match=r"\(3, 7\).*\(3, 5\)"):
        build()(states(), key_mask=torch.ones(B, D, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"boolean .*float32"):
        build()(states(), key_mask=torch.ones(B, S))


def test_it_compiles_in_one_graph_and_exports():
    attention = build()
    expected = attention(states(), key_mask=MASK, need_weights=True)

    def both(x, mask):
        return attention(x, key_mask=mask, need_weights=True)

    torch.testing.assert_close(torch.compile(both, fullgraph=True, backend="eager")(states(), MASK), expected)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    shapes = {"states": {0: batch, 1: length}, "key_mask": {0: batch, 1: length}, "need_weights": None}
    exported = torch.export.export(attention, (states(),), {"key_mask": MASK, "need_weights": True}, dynamic_shapes=shapes).module()
    torch.testing.assert_close(exported(states(), key_mask=MASK, need_weights=True), expected)
    longer, longer_mask = torch.randn(B + 2, S + 4, D, dtype=torch.float64), torch.ones(B + 2, S + 4, dtype=torch.bool)
    torch.testing.assert_close(exported(longer, key_mask=longer_mask, need_weights=True), attention(longer, need_weights=True))
