"""Area features (Eq. 9) on CUDA: attention to the keys of all areas, with nothing of the size of the scores stored.

    one attention per size of areas:  context_n, lse_n;   lse = log sum_n exp(lse_n);   context = sum_n exp(lse_n - lse) context_n

Li et al. 2018 (arXiv:1810.10126), Eq. 9. The key of an area is no mean of keys, so the kernels' sums of scores do not help: keys and values
of all N areas exist, the scores do not. The areas of one size are in order of their ends, so that causality is a triangle for each size,
and the kernels for areas of one item do the rest. Backward they take the context and the log-sum-exp of all sizes, by which the
weights of each size are parts of one softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.ops.area_windows import AreaSpec, area_counts, window_sums
from regard.ops.kernels.area_torch import KeyParts, hidden_features
from regard.ops.kernels.operator import Forms, Operator
from regard.ops.masks import causal_mask
from regard.ops.materialized_areas import area_mask, area_softmax
from regard.ops.nonfinite import finite_rows, mask_nonfinite


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: AreaSpec, parts: KeyParts) -> Tensor:
    """Attend to areas with the keys of Eq. 9 and sum or mean values.

    Args:
        query: (B, H, T, D), of what `regard.ops.kernels.area_triton.supports` takes, like the next two.
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        mask: bool, broadcastable to (B, H, T, S), or None.
        spec: the settings.
        parts: key weights of Eq. 9.

    Returns:
        (B, H, T, Dv). Masked items have no influence; a query that may attend a non-finite item gets NaN.

    Example:
        >>> x, parts = torch.zeros(1, 1, 3, 16), KeyParts(*[torch.ones(16, 16)] * 3, torch.ones(2, 16))
        >>> if x.is_cuda:
        ...     context = attend(x, x, x, None, AreaSpec(2), parts)
    """
    parts = KeyParts(*(part.to(key.dtype) for part in parts))
    causal = spec.causal and spec.grid is None
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
        mask = mask.expand(*mask.shape[:-1], key.shape[-2])
    if spec.causal and not causal:  # an area of a grid begins before other items that come before its last
        past = causal_mask(query.shape[-2], key.shape[-2], query.device)[None, None]
        mask = past if mask is None else mask & past
    if mask is not None or causal:
        # The gradient of a hidden NaN is 0 times NaN in a product. As a value it tells who may see it, and reaches no product.
        bad = ~(finite_rows(key) & finite_rows(value)).unsqueeze(-1)
        key, value = key.masked_fill(bad, 0.0), value.masked_fill(bad, torch.nan)
        mask = None if mask is None else area_mask(mask, spec.max_area, spec.grid)
    keys = hidden_features(key, spec, parts)
    values = window_sums(value, spec.max_area, spec.grid, mean=spec.value_mode == "mean")
    return _SIZES(query @ parts.output, keys, values, mask, area_counts(spec.extent(key.shape[-2])), causal, spec.scale)


def _split(counts: Sequence[int], *tensors: Tensor | None) -> list[tuple[Any, ...]]:
    """Divide keys, values (.., N, D) and a mask (.., N) by the sizes of areas."""
    axes = [-2, -2, -1]
    return [
        tuple(None if x is None else x.narrow(axis, sum(counts[:i]), counts[i]) for x, axis in zip(tensors, axes, strict=True))
        for i in range(len(counts))
    ]


def _forward(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, counts: list[int], causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    from regard.ops.kernels.area_triton import area_attention_triton  # here, because it imports triton

    found = [
        area_attention_triton(query, key, value, max_area=1, mask=seen, causal=causal, scale=scale)
        for key, value, seen in _split(counts, keys, values, mask)
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        return values.new_zeros(*query.shape[:3], values.shape[-1]), query.new_full(query.shape[:3], -torch.inf, dtype=torch.float32)
    lse = torch.stack([part for _, part in found]).logsumexp(0)
    base = lse.masked_fill(lse == -torch.inf, 0.0)  # of a query that sees nothing: its parts have a weight of 0
    out = torch.zeros_like(found[0][0], dtype=torch.float32)
    for context, part in found:
        out.addcmul_(context.float(), (part - base).exp().unsqueeze(-1))
    return out.to(query.dtype), lse


def _backward(grad: Tensor, out: Tensor | None, others: list[Tensor], *inputs: Any) -> list[Tensor]:
    from regard.ops.kernels.area_triton import area_attention_triton_backward

    query, keys, values, mask, counts, causal, scale = inputs
    assert out is not None
    sums = torch.zeros_like(query, dtype=torch.float32, memory_format=torch.contiguous_format)
    of_keys, of_values = room(keys), room(values)
    for (key, value, seen), (to_key, to_value, _) in zip(
        _split(counts, keys, values, mask), _split(counts, of_keys, of_values, None), strict=True
    ):
        of_query, of_key, of_value = area_attention_triton_backward(
            grad, query, key, value, out, others[0], max_area=1, mask=seen, causal=causal, scale=scale
        )
        sums += of_query
        to_key.copy_(of_key)
        to_value.copy_(of_value)
    return [sums.to(query.dtype), of_keys, of_values]


def _plain(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, counts: list[int], causal: bool, scale: float) -> Tensor:
    if causal:
        past = torch.cat([causal_mask(query.shape[-2], count, query.device) for count in counts], -1)[None, None]
        mask = past if mask is None else mask & past
    keys, values, tainted = mask_nonfinite(keys, values, mask)
    scores = (query * scale) @ keys.mT
    weights = area_softmax(scores.float(), mask).to(values.dtype)
    context = weights @ values
    return context if tainted is None else context.masked_fill(tainted.unsqueeze(-1), torch.nan)


def empty_output(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate a context and its log-sum-exp, as the Triton kernels write them.

    Example:
        >>> [part.shape for part in empty_output(torch.ones(2, 3, 5, 7), torch.ones(2, 3, 11, 13))]
        [torch.Size([2, 3, 5, 13]), torch.Size([2, 3, 5])]
    """
    return value.new_empty(*query.shape[:3], value.shape[-1]), query.new_empty(query.shape[:3], dtype=torch.float32)


def room(x: Tensor) -> Tensor:
    """Allocate a gradient, likewise.

    Example:
        >>> room(torch.ones(2, 3).t()).stride()
        (2, 1)
    """
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_SIZES = Operator(
    "attention_to_sizes",
    "Tensor query, Tensor keys, Tensor values, Tensor? mask, SymInt[] counts, bool causal, float scale",
    Forms(_forward, _backward, _plain, lambda query, keys, values, *_: empty_output(query, values), room, keeps_result=lambda _: True),
    results=2,
    gradients=3,
)
"""One softmax over several sequences of keys, each causal by itself."""
