"""The loss of guided alignment against a loop over links in float64, and its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.errors import RangeError, ShapeError

LINKS = torch.tensor([[0, 1, 0], [0, 1, 4], [0, 2, 3], [1, 0, 2], [1, 2, 0], [1, 2, 1], [1, 2, 4]])


def loop(weights: Tensor, links: Tensor) -> float:
    """Return the loss, link by link: each row of weights divided by its sum, each linked position counts one."""
    total = 0.0
    for batch, target, source in links.tolist():
        own = sum(1 for other in links.tolist() if other[:2] == [batch, target])
        total -= math.log(weights[batch, target, source].item() / weights[batch, target].sum().item()) / own
    return total


@pytest.mark.parametrize("rows_sum_to_one", [True, False])
def test_the_loss_is_a_loop_over_links(rows_sum_to_one: bool) -> None:
    weights = torch.rand(2, 3, 5, dtype=torch.float64) + 0.01
    weights = weights / weights.sum(-1, keepdim=True) if rows_sum_to_one else weights
    assert ops.link_loss(weights, LINKS).item() == pytest.approx(loop(weights, LINKS), abs=1e-12)


def test_the_gradient_is_that_of_differences_of_the_loop() -> None:
    scores = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    ops.link_loss(scores.softmax(-1), LINKS).backward()
    assert scores.grad is not None
    step = 1e-6
    for place in [(0, 1, 0), (0, 1, 2), (1, 2, 4), (1, 1, 1)]:
        sides = []
        for sign in (1, -1):
            moved = scores.detach().clone()
            moved[place] += sign * step
            sides.append(loop(moved.softmax(-1), LINKS))
        assert scores.grad[place].item() == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-7)  # of differences


def test_positions_without_links_have_no_gradient_and_no_links_no_loss() -> None:
    scores = torch.randn(2, 3, 5, requires_grad=True)
    ops.link_loss(scores.softmax(-1), LINKS).backward()
    assert scores.grad is not None
    assert not scores.grad[0, 0].any()
    assert scores.grad[0, 1].any()
    assert ops.link_loss(torch.rand(2, 3, 5), torch.zeros(0, 3, dtype=torch.long)).item() == 0


def test_a_weight_of_zero_gives_a_large_loss_but_a_finite_one() -> None:
    found = ops.link_loss(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[0, 0, 1]]))
    assert 80 < found.item() < 100


def test_half_precision_is_computed_in_float32() -> None:
    assert ops.link_loss(torch.rand(2, 3, 5).bfloat16(), LINKS).dtype == torch.float32


def test_links_outside_the_weights_and_other_shapes_are_refused() -> None:
    with pytest.raises(RangeError, match="links of s"):
        ops.link_loss(torch.rand(2, 3, 4), LINKS)
    with pytest.raises(ShapeError, match="links"):
        ops.link_loss(torch.rand(2, 3, 5), LINKS[:, :2])
