"""Sums over thousands of positions: rounding errors must not add up to more than those of the plain computation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard import ops

Operation = Callable[..., Tensor]


def ratios(fast: Operation, plain: Operation, tensors: Callable[[], list[Tensor]], mean: float) -> list[float]:
    """Return the error of the result and of each gradient over that of the plain computation, the mean over three draws."""
    found: list[list[float]] = []
    for seed in range(3):
        torch.manual_seed(seed)
        drawn, results = tensors(), []
        for function, dtype in ((fast, torch.float32), (plain, torch.float32), (plain, torch.float64)):
            leaves = [x.to(dtype).requires_grad_() for x in drawn]
            out = function(*leaves)
            weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)) + mean
            results.append([out, *torch.autograd.grad(out, leaves, weights.to(dtype))])
        errors = [[(one - exact).norm().item() for one in (a.double(), b.double())] for a, b, exact in zip(*results, strict=True)]
        found.append([ours / plains for ours, plains in errors])
    return [sum(column) / len(column) for column in zip(*found, strict=True)]


def additive(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ vector


def softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT / 4, -1) @ value


def areas(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    pairs = torch.cat([key, (key[..., 1:, :] + key[..., :-1, :]) / 2], -2), torch.cat([value, value[..., 1:, :] + value[..., :-1, :]], -2)
    return softmax(query, *pairs)


@pytest.mark.parametrize("mean", [0.0, 1.0])
@pytest.mark.parametrize(("targets", "sources"), [(2, 300), (2, 10_000), (300, 4), (10_000, 2)])
def test_additive_scores_of_long_sequences(targets: int, sources: int, mean: float) -> None:
    found = ratios(ops.additive_scores, additive, lambda: [torch.randn(1, targets, 16), torch.randn(1, sources, 16), torch.randn(16)], mean)
    assert found[0] < 2
    assert max(found) < 3  # the error rule of gradients


@pytest.mark.parametrize("mean", [0.0, 1.0])
@pytest.mark.parametrize("length", [2000, 50_000])
@pytest.mark.parametrize("most", [1, 2])
def test_area_attention_over_long_sequences(most: int, length: int, mean: float) -> None:
    found = ratios(
        lambda *x: ops.area_attention(*x, max_area=most),
        softmax if most == 1 else areas,
        lambda: [torch.randn(1, 1, 8, 16), torch.randn(1, 1, length, 16), torch.randn(1, 1, length, 16) * 0.1 + mean],
        mean,
    )
    assert max(found) < 2
