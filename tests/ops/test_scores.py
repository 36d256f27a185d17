"""Scores, masks and the softmax against float64 loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard import ops
from regard.errors import ShapeError
from tests.reference import attention as reference

T, S, D, A = 3, 7, 5, 11


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(13)


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_parameter_free_scores_equal_the_loops(generator):
    query, key = draw(generator, 2, T, D), draw(generator, 2, S, D)
    for kind, found in {
        "dot": ops.dot_scores(query, key),
        "scaled_dot": ops.scaled_dot_scores(query, key),
        "cosine": ops.cosine_scores(query, key, 1.7),
    }.items():
        for batch in range(2):
            expected = reference.scores(kind, query[batch].numpy(), key[batch].numpy(), beta=1.7)
            torch.testing.assert_close(found[batch], torch.tensor(expected))


def test_additive_scores_equal_the_loops(generator):
    W, U, b, v = draw(generator, A, D), draw(generator, A, D + 1), draw(generator, A), draw(generator, A)
    query, key = draw(generator, T, D), draw(generator, S, D + 1)
    found = ops.additive_scores(query @ W.T, key @ U.T + b, v)
    expected = reference.scores("additive", query.numpy(), key.numpy(), W=W.numpy(), U=U.numpy(), b=b.numpy(), v=v.numpy())
    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize("reach", [3, 7, 11])
def test_location_scores_use_the_leading_entries_and_stop_at_the_maximum(generator, reach):
    W, query = draw(generator, reach, D), draw(generator, T, D)
    expected = reference.scores("location", query.numpy(), np.zeros((S, 1)), W=W.numpy())
    torch.testing.assert_close(ops.location_scores(query @ W.T, S), torch.tensor(expected))


def test_the_softmax_equals_the_loops_under_any_mask(generator):
    for _ in range(20):
        scores = draw(generator, T, S) * 10
        mask = torch.rand(T, S, generator=generator) < 0.5
        mask[0] = False
        expected = reference.softmax(scores.numpy(), mask.tolist())
        torch.testing.assert_close(ops.masked_softmax(scores, mask), torch.tensor(expected))


def test_a_masked_score_of_any_value_has_weight_and_gradient_exactly_zero(generator):
    for poison in (float("nan"), float("inf"), float("-inf"), 1e30):
        scores = torch.randn(T, S, generator=generator)
        mask = torch.ones(T, S, dtype=torch.bool)
        mask[:, 2] = False
        clean = ops.masked_softmax(scores, mask)
        scores[:, 2] = poison
        scores.requires_grad_()
        weights = ops.masked_softmax(scores, mask)
        assert torch.equal(weights, clean)
        (gradient,) = torch.autograd.grad((weights * torch.arange(S)).sum(), scores)
        assert (gradient[:, 2] == 0).all()
        assert gradient.isfinite().all()


def test_an_empty_row_has_zero_weights_and_zero_gradients():
    scores = torch.randn(T, S, requires_grad=True)
    weights = ops.masked_softmax(scores, torch.zeros(T, S, dtype=torch.bool))
    assert (weights == 0).all()
    (gradient,) = torch.autograd.grad(weights.sum(), scores)
    assert (gradient == 0).all()


def test_extreme_scores_stay_finite():
    weights = ops.masked_softmax(torch.tensor([[1e4, -1e4, 0.0]]))
    assert weights.tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 1e4), (torch.float16, 6e-8), (torch.bfloat16, 1e20), (torch.float32, 3e38), (torch.float32, 1e-42)]
)
def test_cosines_do_not_depend_on_lengths(dtype: torch.dtype, size: float):
    query = torch.full((1, 64), size, dtype=dtype)
    assert ops.cosine_scores(query, torch.cat([query, -query, 0 * query])).tolist() == [[1.0, -1.0, 0.0]]


@pytest.mark.parametrize("function", [ops.dot_scores, ops.scaled_dot_scores, ops.cosine_scores])
def test_a_wrong_last_axis_is_named_with_both_shapes(function):
    with pytest.raises(ShapeError, match=r"\(3, 5\).*\(7, 2\).*5 and 2"):
        function(torch.zeros(3, 5), torch.zeros(7, 2))


def test_a_mask_that_is_not_boolean_or_does_not_broadcast_is_refused():
    with pytest.raises(ShapeError, match="boolean"):
        ops.masked_softmax(torch.zeros(3, 5), torch.ones(3, 5))
    with pytest.raises(ShapeError, match=r"\(2, 7\).*\(3, 5\)"):
        ops.masked_softmax(torch.zeros(3, 5), torch.ones(2, 7, dtype=torch.bool))


@pytest.mark.parametrize("function", [ops.dot_scores, ops.scaled_dot_scores, ops.cosine_scores])
def test_gradients_of_scores_equal_finite_differences(function, generator):
    query, key = draw(generator, T, D).requires_grad_(), draw(generator, S, D).requires_grad_()
    assert torch.autograd.gradcheck(function, (query, key))
    assert torch.autograd.gradgradcheck(function, (query, key))


def test_gradients_of_softmax_additive_and_gaussian_equal_finite_differences(generator):
    mask = torch.rand(T, S, generator=generator) < 0.6
    assert torch.autograd.gradcheck(lambda s: ops.masked_softmax(s, mask), draw(generator, T, S).requires_grad_())
    assert torch.autograd.gradgradcheck(lambda s: ops.masked_softmax(s, mask), draw(generator, T, S).requires_grad_())
    inputs = (draw(generator, T, A).requires_grad_(), draw(generator, S, A).requires_grad_(), draw(generator, A).requires_grad_())
    assert torch.autograd.gradcheck(ops.additive_scores, inputs)
    assert torch.autograd.gradcheck(lambda c: ops.gaussian_window(c, S, 3), draw(generator, T).requires_grad_())


def test_a_window_covers_the_radius_on_both_sides():
    mask = ops.window_mask(torch.tensor([0.0, 3.4, 9.0]), 7, 2)
    assert [row.nonzero().flatten().tolist() for row in mask] == [[0, 1, 2], [2, 3, 4, 5], []]


@pytest.mark.parametrize(("dtype", "center"), [(torch.bfloat16, 300), (torch.bfloat16, 1000), (torch.float16, 5000), (torch.int64, 300)])
def test_windows_of_half_precision_are_those_of_whole_positions(dtype: torch.dtype, center: int) -> None:
    size = center + 200
    given, exact = torch.tensor([center], dtype=dtype), torch.tensor([float(center)])
    assert torch.equal(ops.window_mask(given, size, 3), ops.window_mask(exact, size, 3))
    assert ops.window_mask(given, size, 3).nonzero()[:, 1].tolist() == list(range(center - 3, center + 4))
    weights = ops.gaussian_window(given, size, 2)
    assert weights.dtype == (dtype if dtype.is_floating_point else torch.float32)
    assert torch.equal(weights, ops.gaussian_window(exact, size, 2).to(weights.dtype))
    assert (weights == 1).nonzero()[:, 1].tolist() == [center]
