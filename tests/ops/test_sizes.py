"""Axes of no item and of one: every operation gives what its reference gives in float64, forward and backward, in any type."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import ops

SIZES = {"B": 2, "T": 3, "S": 5, "D": 16, "V": 7}
# One or two axes of 0 or 1, in every combination.
ODD = [{}] + [{a: n} for a in SIZES for n in (0, 1)] + [{a: n, b: m} for a, b in combinations(SIZES, 2) for n in (0, 1) for m in (0, 1)]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 6e-2}
Axes = dict[str, int]


def mask(axes: Axes, *more: int) -> Tensor:
    return torch.ones(*more, axes["T"], axes["S"], dtype=torch.bool)


def three(axes: Axes) -> list[tuple[int, ...]]:
    lengths = (axes["T"], axes["D"]), (axes["S"], axes["D"]), (axes["S"], axes["V"])
    return [(axes["B"], 1, *one) for one in lengths]


def learned(axes: Axes) -> list[tuple[int, ...]]:
    size = axes["D"]
    return [*three(axes), (1, size // 2), (2, size - size // 2), (size, 3 * size), (size, size)]


def features(axes: Axes) -> Callable[..., Any]:
    def attend(query: Tensor, key: Tensor, value: Tensor, *weights: Tensor) -> Any:
        given = {"key_mode": "features", "key_weights": ops.AreaWeights(*weights)}
        return ops.area_attention(query, key, value, max_area=2, mask=mask(axes, 1, 1), **given)

    return attend


# For the sizes of axes: the operation and the shapes of its arguments.
CASES: dict[str, tuple[Callable[[Axes], Callable[..., Any]], Callable[[Axes], list[tuple[int, ...]]]]] = {
    "additive_scores": (lambda _: ops.additive_scores, lambda a: [(a["B"], a["T"], a["D"]), (a["B"], a["S"], a["D"]), (a["D"],)]),
    "area_attention": (lambda _: lambda q, k, v: ops.area_attention(q, k, v, max_area=2), three),
    "area_attention, features": (features, learned),
    "area_attention, masked": (
        lambda a: lambda q, k, v: ops.area_attention(q, k, v, max_area=3, causal=True, mask=mask(a, 1, 1)),
        three,
    ),
    "area_attention, weights": (
        lambda a: lambda q, k, v: ops.area_attention(q, k, v, max_area=2, mask=mask(a, 1, 1), need_weights=True),
        three,
    ),
    "gru_gates": (lambda _: ops.gru_gates, lambda a: [(a["B"], 3 * a["V"]), (a["B"], 3 * a["V"]), (a["V"],), (a["B"], a["V"])]),
    "gru_gates, of one row": (lambda _: ops.gru_gates, lambda a: [(3 * a["V"],), (3 * a["V"],), (a["V"],), (a["V"],)]),
    "linear": (lambda _: ops.linear, lambda a: [(a["B"], a["T"], a["D"]), (a["V"], a["D"]), (a["V"],)]),
    "lstm_gates": (lambda _: ops.lstm_gates, lambda a: [(a["B"], 4 * a["V"]), (a["B"], a["V"])]),
    "masked_softmax": (lambda a: lambda x: ops.masked_softmax(x, mask(a, 1)), lambda a: [(a["B"], a["T"], a["S"])]),
    "sparsemax": (lambda a: lambda x: ops.sparsemax(x, mask(a, 1)), lambda a: [(a["B"], a["T"], a["S"])]),
    "entmax15": (lambda a: lambda x: ops.entmax15(x, mask(a, 1)), lambda a: [(a["B"], a["T"], a["S"])]),
    "nonlocal_attention": (lambda a: lambda q, k, v: ops.nonlocal_attention(q, k, v, mask=mask(a, 1, 1))[0], three),
    "nonlocal_attention, dot": (
        lambda a: lambda q, k, v: ops.nonlocal_attention(q, k, v, form="dot", mask=mask(a, 1, 1), need_weights=True),
        three,
    ),
    "mask_nonfinite": (lambda a: lambda k, v: ops.mask_nonfinite(k, v, mask(a, 1, 1))[:2], lambda a: three(a)[1:]),
    "window_moments": (lambda _: lambda x: ops.window_moments(x, 2), lambda a: [(a["B"], a["S"], a["D"])]),
}


def results(function: Callable[..., Any], leaves: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in leaves]
    found = function(*leaves)
    outputs = [found] if isinstance(found, Tensor) else list(found)
    moving = [x for x in outputs if x.requires_grad]
    grads = torch.autograd.grad(moving, leaves, [torch.ones_like(x) for x in moving], materialize_grads=True) if moving else ()
    return [*(x.detach() for x in outputs), *grads]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_axes_of_no_item_and_of_one_are_the_reference_s(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shapes = CASES[name]
    for odd in ODD:
        axes = SIZES | odd
        generator = torch.Generator().manual_seed(7)
        leaves = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes(axes)]
        with monkeypatch.context() as patch:
            patch.setenv("REGARD_KERNELS", "reference")
            exact = results(make(axes), [x.double() for x in leaves])
        # The gradient jumps where the rectifier of Eq. 9 opens, and half precision opens it elsewhere.
        compared = 1 if name == "area_attention, features" and dtype == torch.bfloat16 else len(exact)
        for mine, right in list(zip(results(make(axes), leaves), exact, strict=True))[:compared]:
            assert mine.shape == right.shape, odd
            assert mine.dtype == dtype, odd
            size = max(1.0, float(right.abs().max())) if right.numel() else 1.0
            torch.testing.assert_close(mine.double(), right, rtol=0, atol=TOLERANCE[dtype] * size, msg=lambda m, o=odd: f"{o}: {m}")


def test_autocast_leaves_float64_as_it_is() -> None:
    hidden, weight = torch.randn(5, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    target = torch.tensor([0, 6, 1, 2, 2])
    exact = ops.linear_cross_entropy(hidden, weight, None, target).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(ops.linear_cross_entropy(hidden, weight, None, target).loss, exact)
        with ops.recurrent_steps():
            assert torch.equal(ops.linear(hidden, weight.requires_grad_()), hidden @ weight.mT)
