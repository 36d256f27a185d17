"""Slow, simple reference implementations: the oracle of every kernel, in any dtype, differentiable."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.area_windows import AreaSize
from regard.ops.masks import causal_mask, check_mask
from regard.ops.materialized_areas import AreaWeights, area_keys, area_mask, area_softmax, area_values, item_weights
from regard.ops.nonfinite import mask_nonfinite
from regard.ops.scores import dot_scores, scaled_dot_scores
from regard.ops.sparsemax import Normalizer


class AreaResult(NamedTuple):
    """Result of area attention.

    Attributes:
        context: (B, H, T, Dv).
        item_weights: (B, H, T, S), see `regard.ops.item_weights`; before dropout.
        area_weights: (B, H, T, N), rows sum to 1 (to 0 with nothing to attend to); before dropout.
    """

    context: Tensor
    item_weights: Tensor
    area_weights: Tensor


def area_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    max_area: AreaSize,
    grid: tuple[int, int] | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    key_mode: str = "mean",
    value_mode: str = "sum",
    top_k: int | None = None,
    temperature: float = 1.0,
    scale: float | None = None,
    dropout: float = 0.0,
    normalizer: Normalizer = "softmax",
    key_weights: AreaWeights | None = None,
    training: bool = False,
) -> AreaResult:
    """Attend to areas of the memory with materialized keys and values.

        context = sum over areas r of softmax(query . k_r / sqrt(D))_r v_r

    Li et al. 2018 (arXiv:1810.10126), Eq. 1 to 4, and 9 with `key_mode="features"`. An area may be attended iff every item in it may. Areas
    of one item give standard attention, bitwise.

    Differs from the paper: no summed area table, see `regard.ops.area_windows`.

    Args:
        query: (B, H, T, D).
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        max_area: maximum area length, or with a grid the maximum (height, width); clipped to the memory.
        grid: (rows, columns) of a memory in raster order, rows * columns = S; None for a sequence.
        mask: bool, (S,) or (B, H, T, S), any axis 1 for all; True = may attend.
        causal: also hide later positions, aligned bottom-right; for a grid, in raster order.
        key_mode: see `regard.ops.area_keys`.
        value_mode: see `regard.ops.area_values`.
        top_k: attend to the k best areas of each query only, see `regard.ops.area_softmax`.
        temperature: divides the scores.
        scale: multiplies the dot products; None: 1 / sqrt(D).
        dropout: probability of dropping an area, applied whenever > 0.
        normalizer: see `regard.ops.normalize`.
        key_weights: the weights of the learned key modes.
        training: whether the sampling key modes add noise.

    Returns:
        `AreaResult`; an empty memory, or a query with nothing to attend to, gives zeros. With a mask, a query that may attend a non-finite
        item gives NaN.

    Raises:
        ConfigError: an unknown mode, invalid area sizes, or missing weights.
        ShapeError: incompatible shapes.

    Example:
        >>> memory = torch.tensor([[[[1.0], [2.0], [4.0]]]])
        >>> area_attention(torch.zeros(1, 1, 1, 1), memory, memory, max_area=2).context.item()
        3.200000047683716
    """
    allowed = allowed_items(query, key, mask, causal)
    key, value, tainted = mask_nonfinite(key, value, allowed)
    keys = area_keys(key, max_area, grid, mode=key_mode, weights=key_weights, training=training)
    values = area_values(value, max_area, grid, mode=value_mode)
    areas = None if allowed is None else area_mask(allowed, max_area, grid)
    # Again: finite items may sum to an infinite area, which must not reach queries it is hidden from.
    keys, values, overflown = mask_nonfinite(keys, values, areas)
    scores = scaled_dot_scores(query, keys) if scale is None else dot_scores(query * scale, keys)
    weights = area_softmax(scores, areas, top_k=top_k, temperature=temperature, normalizer=normalizer)
    context = (F.dropout(weights, dropout) if dropout else weights) @ values
    if tainted is not None and overflown is not None:
        bad = (tainted | overflown).unsqueeze(-1)
        context, weights = context.masked_fill(bad, torch.nan), weights.masked_fill(bad, torch.nan)
    return AreaResult(context, item_weights(weights, max_area, grid, value_mode=value_mode), weights)


def allowed_items(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """Combine the two masks of a call; the last axis of the result is S even where the mask's own was 1.

    Args:
        query: (B, H, T, D).
        key: (B, H, S, D).
        mask: as `area_attention` takes it.
        causal: likewise.

    Returns:
        bool, broadcastable to (B, H, T, S), or None: all are allowed.

    Raises:
        ShapeError: the axes B and H differ, or the mask does not fit.

    Example:
        >>> allowed_items(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 3, 1), None, True).int().tolist()
        [[[[1, 1, 0], [1, 1, 1]]]]
    """
    target, source = query.shape[-2], key.shape[-2]
    if query.shape[:-2] != key.shape[:-2]:
        raise ShapeError(f"area_attention: the leading axes (B, H) of query {tuple(query.shape)} and key {tuple(key.shape)} must agree")
    if mask is not None:
        check_mask(mask, (*query.shape[:-1], source), "area_attention")
        mask = mask[(None,) * (query.dim() - mask.dim())]
        mask = mask.expand(*mask.shape[:-1], source)
    past = causal_mask(target, source, query.device)[(None,) * (query.dim() - 2)] if causal else None
    if mask is None or past is None:
        return mask if past is None else past
    return mask & past
