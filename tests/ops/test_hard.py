"""Drawing positions, their log-probability, the entropy, and the loss made of them."""

from __future__ import annotations

import math

import pytest
import torch

from regard import ops
from regard.errors import RangeError, ShapeError
from tests.reference import hard as reference

B, T, N = 2, 3, 7
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def rows(*shape, dtype=torch.float64):
    return torch.softmax(torch.randn(*shape, dtype=torch.float64), -1).to(dtype)


def draws(weights, number=20000):
    position = ops.sample_positions(weights.expand(number, *weights.shape), torch.Generator().manual_seed(5))
    return torch.bincount(position, minlength=weights.shape[-1]).double() / number


@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_are_drawn_in_proportion_to_the_weights(dtype):
    weights = torch.tensor([0.1, 0.0, 0.4, 0.05, 0.45, 0.0, 0.0], dtype=dtype)
    # five standard deviations of a share estimated from 20,000 draws: at most 5 * 0.5 / sqrt(20000)
    torch.testing.assert_close(draws(weights), weights.double(), rtol=0, atol=0.018)


@pytest.mark.parametrize("scale", [1e-42, 1e-6, 3.0, 6e37])
def test_rows_need_not_be_normalized_to_be_drawn_from(scale):
    weights = torch.tensor([1.0, 2.0, 0.0, 5.0]) * scale
    torch.testing.assert_close(draws(weights), torch.tensor([1.0, 2.0, 0.0, 5.0]).double() / 8, rtol=0, atol=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_position_without_weight_is_never_drawn(dtype):
    weights = torch.zeros(1009, 101, dtype=dtype)
    weights[:, 17] = torch.finfo(dtype).tiny
    assert (ops.sample_positions(weights) == 17).all()
    weights[:, ::2] = 1
    assert (ops.sample_positions(weights) % 2 == 0).sum() > 1000


def test_rows_are_drawn_independently():
    position = ops.sample_positions(torch.full((5003, 2), 0.5))
    agree = (position[1:] == position[:-1]).double().mean()
    assert abs(agree - 0.5) < 0.04


@pytest.mark.parametrize("empty", [(0.0, 0.0), (0.0, math.nan), (math.nan, 1.0)])
def test_an_empty_or_broken_row_has_no_position(empty):
    weights = torch.tensor([[0.0, 1.0], empty])
    assert ops.sample_positions(weights).tolist() == [1, -1]
    assert ops.greedy_positions(weights).tolist() == [1, -1]


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0), (2, 3, 1)])
def test_positions_of_empty_and_single_axes(shape):
    for choose in (ops.sample_positions, ops.greedy_positions):
        position = choose(torch.ones(shape))
        assert position.shape == shape[:-1]
        assert (position == (0 if shape[-1] else -1)).all()


def test_the_same_seed_draws_the_same_positions():
    weights = rows(B, T, N)
    first, second = (ops.sample_positions(weights, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    state = torch.get_rng_state()
    ops.sample_positions(weights, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state)  # a generator of one's own leaves the global state alone
    torch.default_generator.manual_seed(3)
    first = ops.sample_positions(weights)
    torch.default_generator.manual_seed(3)
    assert torch.equal(ops.sample_positions(weights), first)
    assert not torch.equal(torch.get_rng_state(), state)


def test_strided_and_expanded_rows_are_drawn_like_plain_ones():
    strided, expanded = rows(N, T).t(), rows(1, N).expand(T, N)
    for weights in (strided, expanded):
        found = ops.sample_positions(weights, torch.Generator().manual_seed(3))
        assert torch.equal(found, ops.sample_positions(weights.contiguous(), torch.Generator().manual_seed(3)))
    assert ops.sample_positions(torch.full((1, 101), 0.01).expand(211, 101)).unique().numel() > 50


def test_the_greedy_position_is_the_first_of_the_largest():
    assert ops.greedy_positions(torch.tensor([[0.2, 0.4, 0.4], [0.5, 0.2, 0.3]])).tolist() == [1, 0]


def test_log_probability_and_entropy_equal_the_loops():
    weights = rows(B, T, N) * torch.tensor([0.3, 1.0, 7.0]).view(1, T, 1)
    position = torch.randint(N, (B, T))
    log_prob, entropy = ops.position_log_prob(weights, position), ops.weights_entropy(weights)
    for b in range(B):
        for t in range(T):
            row = (weights[b, t] / weights[b, t].sum()).numpy()
            assert log_prob[b, t].item() == pytest.approx(math.log(row[position[b, t]]))
            assert entropy[b, t].item() == pytest.approx(reference.entropy(row))


def test_gradients_equal_finite_differences_twice():
    weights = (rows(B, T, N) + 0.1).requires_grad_()
    position = torch.randint(N, (B, T))
    position[0, 1] = -1
    for function in (ops.normalized_weights, ops.weights_entropy, lambda w: ops.position_log_prob(w, position)):
        assert torch.autograd.gradcheck(function, (weights,))
        assert torch.autograd.gradgradcheck(function, (weights,))


def test_the_loss_is_checked_by_finite_differences_twice():
    log_prob, entropy, advantage = torch.randn(3, B, T, dtype=torch.float64)
    sampled, mask = torch.rand(B, T) < 0.7, torch.tensor([[True] * T, [True, True, False]])

    def loss(p, h):
        return ops.score_function_loss(advantage, p, h, sampled, mask, reward_weight=1.3, entropy_weight=0.7)

    inputs = (log_prob.requires_grad_(), entropy.requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


def test_the_loss_equals_the_sum_over_what_was_drawn():
    log_prob, entropy, advantage = torch.randn(3, B, T, dtype=torch.float64)
    sampled, mask = torch.rand(B, T) < 0.5, torch.tensor([[True] * T, [True, False, False]])
    expected = 0.0
    for b in range(B):
        for t in range(T):
            if mask[b, t]:
                expected -= 0.7 * entropy[b, t].item() / B
                if sampled[b, t]:
                    expected -= 1.3 * advantage[b, t].item() * log_prob[b, t].item() / B
    found = ops.score_function_loss(advantage, log_prob, entropy, sampled, mask, reward_weight=1.3, entropy_weight=0.7)
    assert found.item() == pytest.approx(expected)
    # None means all, and one advantage a sentence is that of all its steps
    every = torch.ones(B, T, dtype=torch.bool)
    one = ops.score_function_loss(advantage[:, :1], log_prob, entropy)
    assert one.item() == pytest.approx(ops.score_function_loss(advantage[:, :1].expand(B, T), log_prob, entropy, every, every).item())


def test_padded_steps_may_hold_anything():
    mask = torch.tensor([[True] * T, [True, False, False]])
    clean = [torch.randn(B, T) for _ in range(3)]
    spoiled = [part.masked_fill(~mask, math.nan).requires_grad_() for part in clean]
    expected = ops.score_function_loss(clean[0], clean[1], clean[2], None, mask, entropy_weight=0.7)
    found = ops.score_function_loss(spoiled[0], spoiled[1], spoiled[2], None, mask, entropy_weight=0.7)
    assert torch.equal(found, expected)
    for gradient in torch.autograd.grad(found, spoiled[1:]):
        assert (gradient[~mask] == 0).all()
        assert (gradient[mask] != 0).all()


def test_where_nothing_was_drawn_the_log_probability_may_hold_anything():
    sampled = torch.tensor([[True] * T, [False, True, False]])
    log_prob, entropy = torch.randn(B, T), torch.randn(B, T)
    expected = ops.score_function_loss(torch.ones(B, T), log_prob, entropy, sampled, entropy_weight=0.7)
    spoiled = log_prob.masked_fill(~sampled, -math.inf).requires_grad_()
    found = ops.score_function_loss(torch.ones(B, T), spoiled, entropy, sampled, entropy_weight=0.7)
    assert torch.equal(found, expected)
    (gradient,) = torch.autograd.grad(found, spoiled)
    assert (gradient[~sampled] == 0).all()


def test_the_advantage_gets_no_gradient():
    advantage, log_prob = torch.randn(B, T, requires_grad=True), torch.randn(B, T, requires_grad=True)
    ops.score_function_loss(advantage, log_prob, torch.zeros(B, T)).backward()
    assert advantage.grad is None


def test_masked_positions_get_gradient_zero_from_log_probability_and_entropy():
    weights = torch.tensor([[0.25, 0.0, 0.75], [0.0, 0.0, 0.0]], requires_grad=True)
    total = ops.weights_entropy(weights).sum() + ops.position_log_prob(weights, torch.tensor([2, -1])).sum()
    (gradient,) = torch.autograd.grad(total, weights)
    assert gradient.isfinite().all()
    assert (gradient[1] == 0).all()
    logits = torch.randn(2, 3, requires_grad=True)
    weights = ops.masked_softmax(logits, torch.tensor([[True, False, True], [False, False, False]]))
    total = ops.weights_entropy(weights).sum() + ops.position_log_prob(weights, torch.tensor([2, -1])).sum()
    (gradient,) = torch.autograd.grad(total, logits)
    assert gradient.isfinite().all()
    assert (gradient[0, 1] == 0).all()
    assert (gradient[1] == 0).all()
    assert (gradient[0, ::2] != 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_very_improbable_position_has_finite_gradients_in_half_precision(dtype):
    logits = torch.tensor([[11.5, 0.0, -20.0]], dtype=dtype, requires_grad=True)  # exp(-11.5) = 1e-5: its inverse is past float16
    log_prob = ops.position_log_prob(torch.softmax(logits, -1), torch.tensor([1]))
    assert log_prob.dtype == torch.float32
    assert log_prob.item() == pytest.approx(-11.5, abs=0.05)
    (gradient,) = torch.autograd.grad(log_prob.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[0, 1] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_summed_in_float32(dtype):
    weights = rows(B, T, 1009, dtype=dtype)
    exact = weights.double()
    position = torch.randint(1009, (B, T))
    assert ops.weights_entropy(weights).dtype == torch.float32
    torch.testing.assert_close(ops.weights_entropy(weights).double(), ops.weights_entropy(exact), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        ops.position_log_prob(weights, position).double(), ops.position_log_prob(exact, position), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
def test_empty_axes_give_zeros(shape):
    weights = torch.ones(shape, requires_grad=True)
    entropy, log_prob = ops.weights_entropy(weights), ops.position_log_prob(weights, ops.greedy_positions(weights))
    assert entropy.shape == log_prob.shape == shape[:-1]
    assert ops.normalized_weights(weights).shape == shape
    loss = ops.score_function_loss(torch.ones(shape[:-1]), log_prob, entropy)
    assert loss.item() == 0
    loss.backward()


def test_wrong_shapes_name_both():
    with pytest.raises(ShapeError, match=r"\(2, 3, 7\).*\(2, 5\)"):
        ops.position_log_prob(torch.ones(2, 3, 7), torch.zeros(2, 5, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"\(2, 5\).*\(2, 3\)"):
        ops.score_function_loss(torch.ones(2, 5), torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(ShapeError, match=r"\(3, 2\)"):
        ops.score_function_loss(torch.ones(2, 1), torch.ones(2, 3), torch.ones(2, 3), None, torch.ones(3, 2, dtype=torch.bool))


@pytest.mark.parametrize("operation", [ops.greedy_positions, ops.sample_positions, ops.normalized_weights, ops.weights_entropy])
def test_negative_weights_are_refused_and_nan_is_not(operation):
    with pytest.raises(RangeError, match=rf"{operation.__name__}: weights must be at least 0, found -0\.5"):
        operation(torch.tensor([[0.25, math.nan], [-0.5, 0.5]]))
    operation(torch.tensor([[0.25, math.nan], [-0.0, 0.5]]))


def test_everything_compiles_in_one_graph():
    def all_of_it(logits, mask):
        weights = ops.masked_softmax(logits, mask)
        position = ops.sample_positions(weights)
        log_prob, entropy = ops.position_log_prob(weights, position), ops.weights_entropy(weights)
        return position, ops.score_function_loss(torch.ones(B, 1), log_prob, entropy, position >= 0, entropy_weight=0.5)

    logits, mask = torch.randn(B, T, N), torch.rand(B, T, N) < 0.6
    torch.default_generator.manual_seed(11)
    expected = all_of_it(logits, mask)
    torch.default_generator.manual_seed(11)
    found = torch.compile(all_of_it, fullgraph=True, backend="eager")(logits, mask)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])
