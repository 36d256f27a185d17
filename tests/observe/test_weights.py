"""The weights that are computed on the side are those that the kernel multiplies with the values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.errors import ConfigError
from regard.observe import attention_weights, weights

B, H, G, T, S, D, E = 2, 6, 3, 5, 7, 11, 4


class Kernel(nn.Module):
    """Calls the kernel as it is told."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, **self.options)


def tensors(heads: int = H, groups: int = H, *, targets: int = T, sources: int = S, batch: tuple[int, ...] = (B,)) -> tuple[Tensor, ...]:
    return torch.randn(*batch, heads, targets, D), torch.randn(*batch, groups, sources, D), torch.randn(*batch, groups, sources, E)


def some(*shape: int) -> Tensor:
    """A mask with an open key in every row."""
    mask = torch.rand(*shape) < 0.6
    mask[..., 0] = True
    return mask


CASES: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "plain": ((H, H), {}),
    "causal": ((H, H), {"is_causal": True}),
    "scale": ((H, H), {"scale": 0.7}),
    "pairs": ((H, H), {"attn_mask": some(T, S)}),
    "padding": ((H, H), {"attn_mask": some(B, 1, 1, S)}),
    "heads": ((H, H), {"attn_mask": some(B, H, T, S)}),
    "bias": ((H, H), {"attn_mask": torch.randn(1, H, T, S)}),
    "infinite": ((H, H), {"attn_mask": torch.zeros(T, S).masked_fill(~some(T, S), -torch.inf)}),
    "lowest": ((H, H), {"attn_mask": torch.zeros(T, S).masked_fill(~some(T, S), torch.finfo(torch.float32).min)}),
    "groups": ((H, G), {"enable_gqa": True}),
    "one group": ((H, 1), {"enable_gqa": True, "is_causal": True}),
    "groups, mask": ((H, G), {"enable_gqa": True, "attn_mask": some(B, H, T, S)}),
}


@pytest.mark.parametrize("block", [1, 97, 1 << 20])
@pytest.mark.parametrize("case", CASES)
def test_weights_times_values_are_the_kernels_output(case: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "BLOCK", block)
    (heads, groups), options = CASES[case]
    model, (query, key, value) = Kernel(**options), tensors(heads, groups)
    with regard.watch(model) as seen:
        output = model(query, key, value)
    found = seen[0].weights
    assert found.shape == (B, H, T, S)
    torch.testing.assert_close(found @ value.repeat_interleave(heads // groups, 1), output, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found.sum(-1), torch.ones(B, H, T), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_axes_in_front_are_batch_and_heads(batch: tuple[int, ...]) -> None:
    query, key, value = tensors(batch=batch)
    found = attention_weights(query, key, causal=True)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert found.shape == {(): (H, 1, T, S), (3,): (3, H, T, S), (2, 3): (6, H, T, S)}[batch]
    whole = value.reshape(-1, H, S, E) if batch else value.unsqueeze(1)  # (B, T, D) has no axis of heads
    torch.testing.assert_close((found @ whole).reshape(expected.shape), expected, atol=1e-6, rtol=1e-6)


def test_a_batch_of_one_is_spread_over_that_of_the_other() -> None:
    (query, _, _), (_, key, value) = tensors(batch=(1,)), tensors(batch=(3,))
    found = attention_weights(query, key, mask=some(3, 1, 1, S))
    assert found.shape == (3, H, T, S)
    torch.testing.assert_close(
        attention_weights(query, key) @ value, F.scaled_dot_product_attention(query, key, value), atol=1e-6, rtol=1e-6
    )


def test_a_query_that_may_attend_to_nothing_has_zeros() -> None:
    query, key, value = tensors()
    mask = some(T, S)
    mask[2] = False
    found = attention_weights(query, key, mask=mask)
    assert found[:, :, 2].eq(0).all()
    torch.testing.assert_close(found @ value, F.scaled_dot_product_attention(query, key, value, attn_mask=mask), atol=1e-6, rtol=1e-6)
    assert attention_weights(query, key[:, :, :0]).shape == (B, H, T, 0)
    assert attention_weights(query[:, :, :0], key).shape == (B, H, 0, S)


@pytest.mark.parametrize("groups", [H, G, 1])
def test_chosen_heads_are_those_of_the_whole(groups: int) -> None:
    query, key, _ = tensors(groups=groups)
    mask = some(B, H, T, S)
    whole = attention_weights(query, key, mask=mask)
    torch.testing.assert_close(attention_weights(query, key, mask=mask, heads=[4, 0]), whole[:, [4, 0]], atol=1e-6, rtol=1e-6)
    with pytest.raises(ConfigError, match="heads: 6: a layer has 6 heads, counted from 0"):
        attention_weights(query, key, heads=[6])


def test_half_precision_is_computed_in_single_and_double_in_double() -> None:
    query, key, _ = tensors()
    exact = attention_weights(query.double(), key.double())
    assert exact.dtype == torch.float32
    torch.testing.assert_close(exact, (query.double() @ key.double().mT / D**0.5).softmax(-1).float(), atol=1e-7, rtol=0)
    rounded = attention_weights(query.bfloat16(), key.bfloat16())
    torch.testing.assert_close(rounded, attention_weights(query.bfloat16().float(), key.bfloat16().float()), atol=0, rtol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = attention_weights(query, key)
        assert (query @ key.mT).dtype == torch.bfloat16  # the model's own products are rounded here
    assert torch.equal(under, attention_weights(query, key))


def test_only_a_block_of_scores_is_held_at_a_time() -> None:
    query = torch.randn(1, 2, 4096, 8)
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and "bmm" in str(func):
                largest = max(largest, out.numel())
            return out

    with Sizes():
        found = attention_weights(query, query, causal=True)
    assert found.shape == (1, 2, 4096, 4096)
    assert 0 < largest <= weights.BLOCK
