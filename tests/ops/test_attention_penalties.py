"""The doubly stochastic penalty and the penalty on redundant hops, in all the scalings that go by their names."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regard import ops
from regard.errors import ConfigError, ShapeError
from tests.reference import hard as reference

B, T, S, R = 2, 3, 7, 5
STEPS = torch.tensor([[True] * T, [True, True, False]])
SOURCES = torch.tensor([[True] * S, [True] * 4 + [False] * 3])


def rows(*shape, dtype=torch.float64):
    return torch.softmax(torch.randn(*shape, dtype=torch.float64), -1).to(dtype)


@pytest.mark.parametrize("steps", [None, STEPS])
@pytest.mark.parametrize("sources", [None, SOURCES])
def test_the_doubly_stochastic_penalty_equals_the_loops(steps, sources):
    weights = rows(B, T, S)
    given = (
        (torch.ones_like(STEPS) if steps is None else steps).tolist(),
        (torch.ones_like(SOURCES) if sources is None else sources).tolist(),
    )
    sentences = reference.doubly_stochastic(weights.numpy(), *given)
    places = sum(map(sum, given[1]))
    paper = ops.doubly_stochastic_penalty(weights, query_mask=steps, key_mask=sources)
    mean = ops.doubly_stochastic_penalty(weights, query_mask=steps, key_mask=sources, reduction="mean")
    assert paper.item() == pytest.approx(sum(sentences) / B)
    assert mean.item() == pytest.approx(sum(sentences) / places)


def test_the_four_scalings_relate_as_documented():
    logits = torch.randn(B, T, S, dtype=torch.float64, requires_grad=True)
    weights = torch.softmax(logits, -1)
    paper, mean = ops.doubly_stochastic_penalty(weights), ops.doubly_stochastic_penalty(weights, reduction="mean")
    assert mean.item() == pytest.approx(paper.item() / S)
    authors = ((1 - weights.sum(1)) ** 2).sum(0).mean()  # alpha_c * ((1. - alphas.sum(0)) ** 2).sum(0).mean(), time first
    assert authors.item() == pytest.approx(B * mean.item())
    assert authors.item() == pytest.approx(B / S * paper.item())
    shifted = ((T / S - weights.sum(1)) ** 2).sum() / B
    one, other = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (paper, shifted))
    torch.testing.assert_close(one, other)
    assert abs(shifted.item() - paper.item()) > 0.1


def test_padding_a_batch_changes_no_doubly_stochastic_penalty():
    weights = rows(B, T, S)
    wide = torch.full((B, T + 2, S + 4), math.nan, dtype=torch.float64)
    wide[:, :T, :S] = weights
    wide[:, :T, S:] = 0  # a masked source position has weight 0 at real steps
    wide.requires_grad_()
    mask, source_mask = torch.arange(T + 2).expand(B, -1) < T, torch.arange(S + 4).expand(B, -1) < S
    for reduction in ("paper", "mean"):
        found = ops.doubly_stochastic_penalty(wide, query_mask=mask, key_mask=source_mask, reduction=reduction)
        torch.testing.assert_close(found, ops.doubly_stochastic_penalty(weights, reduction=reduction))
        (gradient,) = torch.autograd.grad(found, wide)
        assert (gradient[:, T:] == 0).all()
        assert (gradient[:, :, S:] == 0).all()
        assert (gradient[:, :T, :S] != 0).all()


def test_attending_everywhere_once_is_free():
    assert ops.doubly_stochastic_penalty(torch.eye(7).expand(B, 7, 7)).item() == 0


@pytest.mark.parametrize("reduction", ["paper", "mean"])
def test_doubly_stochastic_gradients_equal_finite_differences_twice(reduction):
    def function(weights):
        return ops.doubly_stochastic_penalty(weights, query_mask=STEPS, key_mask=SOURCES, reduction=reduction)

    weights = rows(B, T, S).requires_grad_()
    assert torch.autograd.gradcheck(function, (weights,))
    assert torch.autograd.gradgradcheck(function, (weights,))


def test_the_redundancy_penalty_equals_the_loops():
    weights = rows(B, R, S)
    sentences = reference.redundancy(weights.numpy())
    assert ops.redundancy_penalty(weights).item() == pytest.approx(sum(sentences) / B)
    assert ops.redundancy_penalty(weights, reduction="mean").item() == pytest.approx(sum(sentences) / (B * R * R))


def test_thirty_hops_that_look_evenly_at_twenty_words_cost_the_published_figures():
    weights = torch.full((2, 30, 20), 1 / 20, dtype=torch.float64)
    assert ops.redundancy_penalty(weights).item() == pytest.approx(29.25)
    assert ops.redundancy_penalty(weights, reduction="mean").item() == pytest.approx(0.0325)
    assert ops.redundancy_penalty(weights).sqrt().item() == pytest.approx(5.41, abs=0.005)  # what codes that do not square it have


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_redundancy_gradients_equal_finite_differences_twice(reduction):
    def function(weights):
        return ops.redundancy_penalty(weights, reduction=reduction)

    weights = rows(B, R, S).requires_grad_()
    assert torch.autograd.gradcheck(function, (weights,))
    assert torch.autograd.gradgradcheck(function, (weights,))


def test_hops_at_separate_places_cost_nothing_and_words_of_padding_neither():
    weights = torch.eye(S)[:R].expand(B, R, S)
    assert ops.redundancy_penalty(weights).item() == 0
    padded = torch.cat([rows(B, R, S), torch.zeros(B, R, 4, dtype=torch.float64)], -1)
    torch.testing.assert_close(ops.redundancy_penalty(padded), ops.redundancy_penalty(padded[..., :S]))
    assert ops.redundancy_penalty(torch.zeros(1, R, S)).item() == R


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_reduced_in_float32(dtype):
    weights = rows(B, R, 211, dtype=dtype)
    for penalty in (ops.doubly_stochastic_penalty, ops.redundancy_penalty):
        found = penalty(weights)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), penalty(weights.double()), rtol=1e-5, atol=1e-5)


def test_autocast_does_not_round_the_redundancy_penalty():
    weights = rows(B, R, S, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = ops.redundancy_penalty(weights)
    assert torch.equal(found, ops.redundancy_penalty(weights))


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0), (1, 1, 1)])
def test_empty_and_single_axes_give_finite_penalties(shape):
    weights = torch.ones(shape, requires_grad=True)
    expected = {
        ("doubly", "paper"): 5.0 if shape == (2, 0, 5) else 0.0,
        ("doubly", "mean"): 1.0 if shape == (2, 0, 5) else 0.0,
        ("redundancy", "sum"): 3.0 if shape == (2, 3, 0) else 0.0,
        ("redundancy", "mean"): 1 / 3 if shape == (2, 3, 0) else 0.0,
    }
    for (name, reduction), value in expected.items():
        penalty: Any = ops.doubly_stochastic_penalty if name == "doubly" else ops.redundancy_penalty
        found = penalty(weights, reduction=reduction)
        assert found.item() == pytest.approx(value)
        found.backward()


def test_a_batch_without_a_real_position_costs_nothing():
    nowhere = torch.zeros(B, S, dtype=torch.bool)
    for reduction in ("paper", "mean"):
        assert ops.doubly_stochastic_penalty(rows(B, T, S), key_mask=nowhere, reduction=reduction).item() == 0


def test_wrong_shapes_and_reductions_are_named():
    wrong: Any = "max"
    with pytest.raises(ShapeError, match=r"\(2, 3, 7\), \(2, 7\), None"):
        ops.doubly_stochastic_penalty(rows(B, T, S), query_mask=torch.ones(B, S, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        ops.doubly_stochastic_penalty(rows(B, T, S), query_mask=STEPS, key_mask=STEPS)
    with pytest.raises(ShapeError, match=r"\(5, 7\)"):
        ops.redundancy_penalty(rows(R, S))
    with pytest.raises(ConfigError, match="'paper' or 'mean', found 'max'"):
        ops.doubly_stochastic_penalty(rows(B, T, S), reduction=wrong)
    with pytest.raises(ConfigError, match="'sum' or 'mean', found 'max'"):
        ops.redundancy_penalty(rows(B, R, S), reduction=wrong)


def test_the_penalties_compile_in_one_graph():
    def both(weights, mask, source_mask):
        return ops.doubly_stochastic_penalty(weights, query_mask=mask, key_mask=source_mask, reduction="mean") + ops.redundancy_penalty(
            weights
        )

    inputs = (rows(B, T, S), STEPS, SOURCES)
    torch.testing.assert_close(torch.compile(both, fullgraph=True, backend="eager")(*inputs), both(*inputs))
