"""Attention with a `score_mod` and a `mask_mod`, all scores in memory: supports tracing, transforms and higher derivatives.

The fallback of `regard.ops.attention` where tiles cannot be used.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.area_windows import window_sums
from regard.ops.materialized_areas import area_mask, area_softmax, item_weights
from regard.ops.mod_calls import Mod, index_tensors

EMPTY, PARTIAL, FULL = 0, 1, 2


class Blocks(NamedTuple):
    """Kinds of a mask's blocks of queries and keys.

    Attributes:
        kinds: (B or 1, H or 1, query blocks, key blocks) uint8: 0 masked, 1 the `mask_mod` decides, 2 full.
        size: queries and keys per block.
        binding: the kinds overrule the mask, as FlexAttention applies a `mask_mod` in partial blocks only; False: they follow from it.
    """

    kinds: Tensor
    size: tuple[int, int]
    binding: bool = False

    def overrule(self, allowed: Tensor, rows: range, columns: range) -> Tensor:
        """Combine a tile's `mask_mod` result with the kinds, where these are binding."""
        if not self.binding:
            return allowed
        kinds = self.kinds
        for axis, part, size in ((-2, rows, self.size[0]), (-1, columns, self.size[1])):
            first, last = part.start // size, -(-part.stop // size)
            kinds = kinds.narrow(axis, first, last - first).repeat_interleave(size, axis)
            kinds = kinds.narrow(axis, part.start - first * size, len(part))
        return (kinds == FULL) | ((kinds == PARTIAL) & allowed)


class FlexRequest(NamedTuple):
    """Settings of a call, see `regard.ops.attention`; the functions take whole tiles, see `regard.ops.mod_calls`."""

    scale: float
    score_mod: Mod | None = None
    mask_mod: Mod | None = None
    blocks: Blocks | None = None
    max_area: int | None = None


class MaterializedResult(NamedTuple):
    """Context (B, H, T, Dv), weights (B, H, T, S) and log-sum-exp (B, H, T), the last one None with areas."""

    context: Tensor
    weights: Tensor
    lse: Tensor | None


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of scores: float32 for half precision.

    Example:
        >>> compute_dtype(torch.bfloat16)
        torch.float32
    """
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def modify_scores(scores: Tensor, score_mod: Mod | None, *indices: Tensor) -> Tensor:
    """Apply a `score_mod` to a tile, keeping its shape and dtype.

    Example:
        >>> modify_scores(torch.zeros(1, 1, 2, 3), lambda score, *indices: torch.ones(()), *[torch.zeros(1)] * 4).shape
        torch.Size([1, 1, 2, 3])
    """
    return scores if score_mod is None else score_mod(scores, *indices).to(scores.dtype).expand(scores.shape)


def materialized_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    request: FlexRequest,
    bad: Tensor | None = None,
    rows: range | None = None,
    first_key: int = 0,
) -> MaterializedResult:
    """Attend to all keys, or to areas of them.

        weights = softmax over allowed s of score_mod(scale q_t k_s, b, h, t, s),   context = weights v

    Args:
        query: (B, H, T, D).
        key: (B, K, S, D), K a divisor of H.
        value: (B, K, S, Dv).
        request: the settings. An area's score is the mean of its modified scores, its value the sum of its values.
        bad: (B, K, S), keys and values that were not finite, now 0; a query that may attend one gives NaN.
        rows: positions of the queries, if only some are given; the block kinds are those of all.
        first_key: the position of the first key, likewise.

    Example:
        >>> x = torch.zeros(1, 1, 2, 1)
        >>> causal = FlexRequest(1.0, mask_mod=lambda b, h, q, kv: q >= kv)
        >>> materialized_attention(x, x, x, causal).weights.tolist()
        [[[[1.0, 0.0], [0.5, 0.5]]]]
    """
    kind, (batch, heads, target), source = compute_dtype(query.dtype), query.shape[:3], key.shape[2]
    group = heads // max(key.shape[1], 1)
    key, value = (x.repeat_interleave(group, 1) if group > 1 else x for x in (key.to(kind), value.to(kind)))
    rows, columns = rows or range(target), range(first_key, first_key + source)
    batches = torch.arange(batch, dtype=torch.int32, device=query.device)
    all_heads = torch.arange(heads, dtype=torch.int32, device=query.device).expand(batch, heads)
    indices = index_tensors(batches, all_heads, rows, columns)
    scores = modify_scores((query.to(kind) * request.scale) @ key.mT, request.score_mod, *indices)
    allowed = ~torch.isneginf(scores)
    if request.mask_mod is not None:
        masked = request.mask_mod(*indices)
        allowed = allowed & (masked if request.blocks is None else request.blocks.overrule(masked, rows, columns))
    if bad is not None:
        bad = bad.repeat_interleave(group, 1) if group > 1 else bad
        scores = torch.where(bad.unsqueeze(-2) & allowed, torch.nan, scores)
    if request.max_area is not None:
        seen = area_mask(allowed, request.max_area)
        scores = scores.masked_fill(~allowed, 0.0)
        areas = window_sums(scores.unsqueeze(-1), request.max_area, mean=True).squeeze(-1)
        weights, lse = item_weights(area_softmax(areas, seen), request.max_area), None
    else:
        # A fully masked row is all zeros, not -inf: it stays finite and is zeroed below.
        empty = ~allowed.any(-1, keepdim=True)
        scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(empty, 0.0)
        weights = torch.softmax(scores, -1).masked_fill(~allowed, 0.0)
        lse = torch.logsumexp(scores, -1).masked_fill(empty.squeeze(-1), -torch.inf)
    context = weights @ value
    return MaterializedResult(context.to(query.dtype), weights.to(query.dtype), lse)
