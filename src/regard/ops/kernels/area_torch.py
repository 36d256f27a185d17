"""Area attention in the space of scores, by PyTorch alone: any device, any mask, grids, dropout, weights on request.

    e = scale q k^T;   score of an area = mean of e over it;   p = softmax;   w_j = sum of p over the areas that hold j;   context = w v

Li et al. 2018 (arXiv:1810.10126), Eq. 3 and 4, moved from keys and values to scores and weights: no tensor of S A keys, but one of T S A
weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.area import area_mask, area_softmax, item_weights
from regard.ops.area_windows import Size, window_sums
from regard.ops.masks import causal_mask
from regard.ops.reference import AreaResult
from regard.ops.shield import shield


class Request(NamedTuple):
    """The settings of a call, see `regard.ops.area_attention`; `scale` holds the temperature, too."""

    max_area: Size
    grid: tuple[int, int] | None = None
    causal: bool = False
    value_mode: str = "sum"
    top_k: int | None = None
    scale: float = 1.0
    dropout: float = 0.0


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, request: Request) -> AreaResult:
    """Attend to areas with mean keys and sum or mean values; differentiable as often as wanted.

    Args:
        query: (B, H, T, D).
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        mask: bool, broadcastable to (B, H, T, S), or None.
        request: the settings.

    Returns:
        `AreaResult`; the weights before dropout.

    Example:
        >>> memory = torch.tensor([[[[1.0], [2.0], [4.0]]]])
        >>> attend(torch.zeros(1, 1, 1, 1), memory, memory, None, Request(2)).context.item()
        3.200000047683716
    """
    allowed = _allowed(query, key, mask, request.causal)
    key, value, tainted = shield(key, value, allowed)
    scores = (query * request.scale) @ key.mT
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if allowed is not None:
        wide = wide.masked_fill(~allowed, 0.0)  # finite keys may still have met a query that is not
    max_area, grid = request.max_area, request.grid
    areas = window_sums(wide.unsqueeze(-1), max_area, grid, mean=True).squeeze(-1)
    weights = area_softmax(areas, None if allowed is None else area_mask(allowed, max_area, grid), top_k=request.top_k)
    used = F.dropout(weights, request.dropout) if request.dropout else weights
    items = item_weights(used, max_area, grid, value_mode=request.value_mode)
    context = items.to(value.dtype) @ value
    if tainted is not None:
        bad = tainted.unsqueeze(-1)
        context, weights = context.masked_fill(bad, torch.nan), weights.masked_fill(bad, torch.nan)
        items = items.masked_fill(bad, torch.nan)
    if request.dropout:
        items = item_weights(weights, max_area, grid, value_mode=request.value_mode)
    return AreaResult(context, items.to(value.dtype), weights.to(value.dtype))


def _allowed(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    target, source = query.shape[-2], key.shape[-2]
    if mask is not None:
        mask = torch.atleast_2d(mask)
        mask = mask.expand(*mask.shape[:-1], source)
    if not causal:
        return mask
    past = causal_mask(target, source, query.device)
    return past if mask is None else mask & past
