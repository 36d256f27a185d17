"""Crossed co-attention: its wiring, against the loops, and the identity with self-attention."""

from __future__ import annotations

import pytest
import torch

from regard.attention import AdditiveScore, Attention, CrossedAttention, MultiHeadAttention
from regard.errors import ShapeError
from tests.reference import crossed as reference

B, T1, T2, D, H = 2, 5, 7, 6, 2


def build(dtype=torch.float64):
    torch.default_generator.manual_seed(67)
    return CrossedAttention(MultiHeadAttention(D, H), MultiHeadAttention(D, H)).to(dtype).eval()


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(71)
    first, second = (torch.randn(B, n, D, generator=generator, dtype=torch.float64).to(dtype) for n in (T1, T2))
    first_key_mask, second_key_mask = torch.ones(B, T1, dtype=torch.bool), torch.ones(B, T2, dtype=torch.bool)
    first_key_mask[1, 3:] = False
    second_key_mask[0, 2] = False
    return first, second, {"first_key_mask": first_key_mask, "second_key_mask": second_key_mask}


def weights_of(module):
    return {name: value.detach().double().numpy() for name, value in module.named_parameters()}


def test_each_branch_equals_the_loops_over_its_own_keys_and_values():
    crossed = build()
    first, second, masks = inputs()
    left, right = crossed(first, second, **masks)
    for b in range(B):
        allowed = [masks[name][b].tolist() for name in ("first_key_mask", "second_key_mask")]
        x1 = first[b].masked_fill(~masks["first_key_mask"][b, :, None], 0.0).numpy()
        x2 = second[b].masked_fill(~masks["second_key_mask"][b, :, None], 0.0).numpy()
        expected = reference.crossed(x1, x2, *allowed, weights_of(crossed.left), weights_of(crossed.right), H)
        torch.testing.assert_close(left.context[b], torch.tensor(expected[0]), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(right.context[b], torch.tensor(expected[1]), rtol=1e-10, atol=1e-10)


def test_the_left_branch_asks_with_the_second_input_and_answers_with_the_first():
    crossed = build()
    first, second, _ = inputs()
    left, right = crossed(first, second, need_weights=True)
    assert left.context.shape == (B, T2, D)
    assert right.context.shape == (B, T1, D)
    assert left.weights.shape == (B, H, T2, T1)
    assert right.weights.shape == (B, H, T1, T2)
    assert torch.equal(left.context, crossed.left(second, first, first, need_weights=True).context)
    assert torch.equal(right.context, crossed.right(first, second, second, need_weights=True).context)
    assert crossed(first, second).left.weights is None


def test_exchanging_inputs_and_mechanisms_exchanges_the_branches():
    crossed = build()
    first, second, masks = inputs()
    there = crossed(first, second, **masks)
    mirror = CrossedAttention(crossed.right, crossed.left)
    back = mirror(second, first, first_key_mask=masks["second_key_mask"], second_key_mask=masks["first_key_mask"])
    assert torch.equal(there.left.context, back.right.context)
    assert torch.equal(there.right.context, back.left.context)


@pytest.mark.parametrize("masked", [True, False])
def test_with_equal_inputs_and_weights_each_branch_is_self_attention_to_the_last_bit(masked):
    crossed = build()
    crossed.right.load_state_dict(crossed.left.state_dict())
    first, _, masks = inputs()
    mask = masks["first_key_mask"] if masked else None
    left, right = crossed(first, first, first_key_mask=mask, second_key_mask=mask)
    alone = crossed.left(first, first, first, key_mask=mask).context
    real = torch.ones(B, T1, dtype=torch.bool) if mask is None else mask
    assert torch.equal(left.context[real], alone[real])
    assert torch.equal(right.context[real], alone[real])


def test_the_answer_lies_in_the_row_space_of_the_branch_that_gives_it():
    bare = CrossedAttention(*(Attention(AdditiveScore(D, D, 3)).double() for _ in range(2)))
    first, second, _ = inputs()
    first = first[:, :3]  # three rows of six numbers span less than everything
    left, right = bare(first, second)
    for b in range(B):
        rank = torch.linalg.matrix_rank(first[b])
        assert torch.linalg.matrix_rank(torch.cat([first[b], left.context[b]])) == rank
        assert torch.linalg.matrix_rank(torch.cat([first[b], right.context[b]])) > rank


def test_inputs_of_different_sizes_meet_through_a_score_that_takes_them():
    crossed = CrossedAttention(Attention(AdditiveScore(11, D, 3)), Attention(AdditiveScore(D, 11, 3)))
    left, right = crossed(torch.randn(B, T1, D), torch.randn(B, T2, 11), need_weights=True)
    assert left.context.shape == (B, T2, D)
    assert right.context.shape == (B, T1, 11)
    assert left.weights.shape == (B, T2, T1)


def test_what_is_masked_changes_nothing_and_gets_no_gradient():
    crossed = build()
    first, second, masks = inputs()
    clean = crossed(first, second, **masks, need_weights=True)
    for poison in (float("nan"), float("inf"), 1e300):
        spoiled = [
            x.masked_fill(~mask.unsqueeze(-1), poison).requires_grad_() for x, mask in zip((first, second), masks.values(), strict=True)
        ]
        found = crossed(*spoiled, **masks, need_weights=True)
        for mine, theirs in zip(found, clean, strict=True):
            assert torch.equal(mine.context, theirs.context)
            assert torch.equal(mine.weights, theirs.weights)
        crossed.zero_grad()
        (found.left.context.sum() + found.right.context.sum()).backward()
        for x, mask in zip(spoiled, masks.values(), strict=True):
            assert (x.grad[~mask] == 0).all()
        assert all(p.grad.isfinite().all() for p in crossed.parameters())


def test_an_input_masked_whole_gives_its_branch_nothing_to_say():
    crossed = CrossedAttention(*(Attention(AdditiveScore(D, D, 3)).double() for _ in range(2)))
    first, second, masks = inputs()
    masks["first_key_mask"][0] = False
    left, right = crossed(first.requires_grad_(), second, **masks, need_weights=True)
    assert (left.context[0] == 0).all()
    assert (left.weights[0] == 0).all()
    assert right.context.isfinite().all()
    (gradient,) = torch.autograd.grad(left.context.sum() + right.context.sum(), first)
    assert gradient.isfinite().all()
    assert (gradient[0] == 0).all()


def test_gradients_equal_finite_differences():
    crossed = build()
    first, second, masks = inputs()

    def run(first, second):
        left, right = crossed(first, second, **masks)
        return left.context, right.context

    assert torch.autograd.gradcheck(run, (first[:, :T1].requires_grad_(), second.requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_stays_close_to_float64(dtype):
    first, second, masks = inputs()
    rough = build(dtype)(first.to(dtype), second.to(dtype), **masks)
    exact = build()(first, second, **masks)
    for mine, theirs in zip(rough, exact, strict=True):
        assert mine.context.dtype == dtype
        torch.testing.assert_close(mine.context.double(), theirs.context, atol={torch.float32: 1e-5}.get(dtype, 2e-2), rtol=0)


@pytest.mark.parametrize(("batch", "one", "two"), [(0, T1, T2), (B, 0, T2), (B, T1, 0), (1, 1, 1)])
def test_empty_and_single_axes_are_fine(batch, one, two):
    left, right = build()(torch.ones(batch, one, D).double(), torch.ones(batch, two, D).double(), need_weights=True)
    assert left.context.shape == (batch, two, D)
    assert right.context.shape == (batch, one, D)
    assert left.context.isfinite().all()
    assert right.context.isfinite().all()


@pytest.mark.parametrize("asked", [True, False])
def test_compiled_and_exported_it_computes_the_same(asked):
    crossed = build(torch.float32)
    first, second, masks = inputs(torch.float32)
    expected = crossed(first, second, **masks)
    torch.compiler.reset()
    compiled = torch.compile(crossed, fullgraph=True, backend="eager")(first, second, **masks, need_weights=asked)
    program = torch.export.export(crossed, (first, second), {**masks, "need_weights": asked})
    exported = program.module()(first, second, **masks, need_weights=asked)
    for found in (compiled, exported):
        torch.testing.assert_close(found.left.context, expected.left.context)
        torch.testing.assert_close(found.right.context, expected.right.context)


def test_wrong_shapes_are_refused_with_what_was_found():
    first, second, _ = inputs()
    with pytest.raises(ShapeError, match=r"\(2, 5, 6\), \(1, 7, 6\)"):
        build()(first, second[:1])
    with pytest.raises(ShapeError, match=r"second_key_mask must be \(B, S\) = \(2, 7\), found \(2, 5\)"):
        build()(first, second, second_key_mask=torch.ones(B, T1, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"first_key_mask must be boolean .*torch.float32"):
        build()(first, second, first_key_mask=torch.ones(B, T1))


def test_parameter_names_are_those_of_the_two_mechanisms():
    crossed = build()
    expected = [f"{side}.{name}" for side in ("left", "right") for name in crossed.left.state_dict()]
    assert list(crossed.state_dict()) == expected
