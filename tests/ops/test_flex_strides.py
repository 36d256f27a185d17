"""`ops.attention` on views of any strides: equal to a softmax in float64, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.ops import flex_tiles

B, H, T, S, D = 2, 3, 11, 13, 5

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second feature": lambda x: torch.stack([x, x + 1], -1).flatten(-2)[..., ::2],
    "expanded features": lambda x: x[..., :1].expand(x.shape),
    "expanded rows": lambda x: x[..., :1, :].expand(x.shape),
    "overlapping rows": lambda x: x.flatten(-2)[..., : x.shape[-2] + D - 1].unfold(-1, D, 1),
    "heads last": lambda x: x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
}


def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def turned(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (kv.transpose(-1, 0) <= q.transpose(-1, 0)).transpose(-1, 0)  # keys are far apart in memory


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "mask": {"mask_mod": causal},
    "turned mask": {"mask_mod": turned},
    "block mask": {"block_mask": ops.attention_blocks(causal, B, H, T, S)},
}


def by_softmax(query: Tensor, key: Tensor, value: Tensor, *, masked: bool) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT / D**0.5
    if masked:
        scores = scores.masked_fill(~torch.ones(T, S).tril().bool(), -torch.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_any_strides_has_the_results_of_its_numbers(
    view: str, mask: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, fused = [], flex_tiles._fused
    monkeypatch.setattr(flex_tiles, "_fused", lambda *given: calls.append(given) or fused(*given))
    generator = torch.Generator().manual_seed(5)
    exact = [torch.randn(B, H, n, D, dtype=torch.float64, generator=generator).requires_grad_() for n in (T, S, S)]
    near = {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-11}
    for which in ((0,), (1,), (2,), (0, 1, 2)):
        leaves = [x.detach().to(dtype).requires_grad_() for x in exact]
        given = [VIEWS[view](x) if n in which else x for n, x in enumerate(leaves)]
        assert all(x.stride(-1) != 1 or x.stride(-2) < D for n, x in enumerate(given) if n in which)
        context, lse = ops.attention(*given, return_lse=True, **MASKS[mask])
        expected = by_softmax(*(VIEWS[view](x) if n in which else x for n, x in enumerate(exact)), masked=mask != "none")
        for found, right in zip((context, lse), expected, strict=True):
            torch.testing.assert_close(found.double(), right, **near)
        grads = torch.autograd.grad(context.sum() + (lse.mT.contiguous().mT * 0.3).sum(), leaves)  # a sum has an expanded gradient
        wanted = torch.autograd.grad(expected[0].sum() + (expected[1] * 0.3).sum(), exact)
        for found, right in zip(grads, wanted, strict=True):
            torch.testing.assert_close(found.double(), right, **near)
    assert len(calls) == 4


@pytest.mark.parametrize("view", ["transposed", "every second feature", "expanded features"])
def test_a_gradient_of_any_strides_is_taken(view: str) -> None:
    leaves = [torch.randn(B, H, n, D, dtype=torch.float64).requires_grad_() for n in (T, S, S)]
    grad = VIEWS[view](torch.randn(B, H, T, D, dtype=torch.float64))
    found = torch.autograd.grad(ops.attention(*leaves, mask_mod=causal), leaves, grad)
    wanted = torch.autograd.grad(by_softmax(*leaves, masked=True)[0], leaves, grad)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
