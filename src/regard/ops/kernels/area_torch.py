"""Area attention in score space with PyTorch: any device, any mask, grids, dropout, weights on request.

    e = scale q k^T;   score of an area = mean of e over it;   p = softmax;   w_j = sum of p over the areas that hold j;   context = w v

Li et al. 2018 (arXiv:1810.10126), Eq. 3 and 4, moved from keys and values to scores and weights: no tensor of S A keys, but one of T S A
weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.area_windows import AreaSize, AreaSpec, area_counts, safe_deviation, window_sums
from regard.ops.materialized_areas import AreaWeights, area_mask, area_softmax, item_weights
from regard.ops.nonfinite import mask_nonfinite
from regard.ops.reference import AreaResult, allowed_items

# C libraries return tensors of 32 MiB and more to the system at once, and new pages are zeroed again.
PIECE = 24 * 2**20


class KeyParts(NamedTuple):
    """Weights of the keys by Eq. 9, W_d relu(W_mu mu + W_sigma sigma + W_e e).

    Attributes:
        mean: (D, D), W_mu.
        deviation: (D, D), W_sigma.
        output: (D, D), W_d.
        shape: (A, D), W_e e and the bias of the sum, for areas of 1 to A items; on a grid (A_height A_width, D), by height, then by width.
    """

    mean: Tensor
    deviation: Tensor
    output: Tensor
    shape: Tensor


def key_parts(weights: AreaWeights, max_area: AreaSize) -> KeyParts:
    """Split the key weights of Eq. 9.

    Args:
        weights: see `regard.ops.AreaWeights`. The output's bias is ignored: it adds the same to the scores of all areas.
        max_area: A, or (A_height, A_width).

    Raises:
        ShapeError: the tables hold fewer sizes; the message holds both numbers.

    Example:
        >>> weights = AreaWeights(torch.zeros(1, 1), torch.ones(2, 1), torch.ones(2, 6), torch.ones(2, 2))
        >>> key_parts(weights, 2).shape.tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    tallest, widest = (1, max_area) if isinstance(max_area, int) else max_area
    found = (weights.height.shape[0], weights.width.shape[0])
    if found[0] < tallest or found[1] < widest:
        raise ShapeError(f"area keys: embeddings for areas up to {found} (height, width), but areas reach {(tallest, widest)}")
    widths, heights = weights.width[:widest].repeat(tallest, 1), weights.height[:tallest].repeat_interleave(widest, 0)
    mean, deviation, embedding = weights.hidden.split(weights.output.shape[0], dim=-1)
    return KeyParts(mean, deviation, weights.output, F.linear(torch.cat([widths, heights], -1), embedding, weights.hidden_bias))


def hidden_features(key: Tensor, spec: AreaSpec, parts: KeyParts) -> Tensor:
    """Compute relu(W_mu mu + W_sigma sigma + W_e e) for every area, Eq. 9, with W_mu applied to items: it commutes with the mean.

    Args:
        key: (B, H, S, D).
        spec: `max_area` and `grid` are used.
        parts: for areas of the maximum size.

    Returns:
        (B, H, N, D), NaN for areas whose deviation exceeds the dtype's range, see `regard.ops.area_windows.safe_deviation`.

    Example:
        >>> parts = KeyParts(torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2))
        >>> hidden_features(torch.zeros(1, 1, 3, 2), AreaSpec(2), parts).shape
        torch.Size([1, 1, 5, 2])
    """
    max_area, grid = spec.max_area, spec.grid
    extent = spec.extent(key.shape[-2])
    widest = max_area if isinstance(max_area, int) else max_area[1]
    sizes = parts.shape.unflatten(0, (-1, widest))[: extent[1][0], : extent[1][1]].flatten(0, 1)
    rows = [size.expand(count, -1) for size, count in zip(sizes, area_counts(extent), strict=True)]
    shape = torch.cat(rows).to(key.dtype) if rows else sizes.to(key.dtype)
    average = window_sums(F.linear(key, parts.mean), max_area, grid, mean=True)
    sigma, overflown = safe_deviation(key, max_area, grid)
    hidden = torch.relu(average + F.linear(sigma, parts.deviation) + shape)
    return hidden.masked_fill(overflown, torch.nan)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: AreaSpec,
    key_parts: KeyParts | None = None,
) -> AreaResult:
    """Attend to areas with mean keys or Eq. 9, and sum or mean values; differentiable any number of times.

    Args:
        query: (B, H, T, D).
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        mask: bool, broadcastable to (B, H, T, S), or None.
        spec: the settings.
        key_parts: key weights of Eq. 9.

    Returns:
        `AreaResult`; the weights before dropout.

    Example:
        >>> memory = torch.tensor([[[[1.0], [2.0], [4.0]]]])
        >>> attend(torch.zeros(1, 1, 1, 1), memory, memory, None, AreaSpec(2)).context.item()
        3.200000047683716
    """
    allowed = allowed_items(query, key, mask, spec.causal)
    key, value, tainted = mask_nonfinite(key, value, allowed)
    max_area, grid = spec.max_area, spec.grid
    seen = None if allowed is None else area_mask(allowed, max_area, grid)
    if key_parts is None:
        scores = _scores(query * spec.scale, key)
        if key.shape[-2]:  # no weight depends on it; sums near 0, where it matters, round little, and none overflows
            largest = (scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)).detach().amax(-1, keepdim=True)
            scores = scores - largest.masked_fill(largest.isinf(), 0.0)
        areas = window_sums(scores.unsqueeze(-1), max_area, grid, mean=True).squeeze(-1)
    else:
        keys = hidden_features(key, spec, key_parts)
        # Again: finite items may have an infinite deviation.
        keys, _, overflown = mask_nonfinite(keys, keys, seen)
        if tainted is not None and overflown is not None:
            tainted = tainted | overflown
        areas = _scores((query * spec.scale) @ key_parts.output, keys)
    weights = area_softmax(areas, seen, top_k=spec.top_k, normalizer=spec.normalizer)
    used = F.dropout(weights, spec.dropout) if spec.dropout else weights
    items = item_weights(used, max_area, grid, value_mode=spec.value_mode)
    context = items.to(value.dtype) @ value
    if tainted is not None:
        bad = tainted.unsqueeze(-1)
        context, weights = context.masked_fill(bad, torch.nan), weights.masked_fill(bad, torch.nan)
        items = items.masked_fill(bad, torch.nan)
    if spec.dropout:
        items = item_weights(weights, max_area, grid, value_mode=spec.value_mode)
    return AreaResult(context, items.to(value.dtype), weights.to(value.dtype))


def attend_in_chunks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: AreaSpec,
    key_parts: KeyParts | None = None,
) -> Tensor:
    """Return the context of `attend`, computed for chunks of the batch where this is faster on a CPU.

    Args:
        query: (B, H, T, D).
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        mask: bool, broadcastable to (B, H, T, S), or None.
        spec: the settings.
        key_parts: key weights of Eq. 9.

    Returns:
        (B, H, T, Dv).

    Example:
        >>> memory = torch.tensor([[[[1.0], [2.0], [4.0]]]])
        >>> attend_in_chunks(torch.zeros(1, 1, 1, 1), memory, memory, None, AreaSpec(2)).item()
        3.200000047683716
    """
    batch = rows = query.shape[0]
    if query.device.type == "cpu" and not torch.compiler.is_compiling() and query.numel() and key.numel():
        areas = sum(area_counts(spec.extent(key.shape[-2])))
        wide = max(query.shape[-2], key.shape[-1] if key_parts is not None else 0)
        rows = max(1, PIECE // (4 * query.shape[1] * areas * wide))
    if rows >= batch:
        return attend(query, key, value, mask, spec, key_parts).context
    per_row = mask is not None and mask.dim() == 4 and mask.shape[0] == batch
    masks = mask.split(rows) if mask is not None and per_row else [mask] * -(-batch // rows)
    parts = zip(query.split(rows), key.split(rows), value.split(rows), masks, strict=True)
    return torch.cat([attend(*part, spec, key_parts).context for part in parts])


def _scores(query: Tensor, key: Tensor) -> Tensor:
    scores = query @ key.mT
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
