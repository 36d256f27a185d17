"""Attention through cache indices, so that hypotheses of a beam share cached states without copies."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.area_attention import area_attention
from regard.ops.area_windows import check_areas
from regard.ops.call_checks import takes_tensors
from regard.ops.kernels import indexed_cpu
from regard.ops.masks import length_mask
from regard.ops.sparsemax import Normalizer, normalize
from regard.ops.tensor_checks import Argument, Signature, with_learned_scale

_ARGUMENTS = Signature(
    "cached_attention",
    Argument("query", "G K H D"),
    Argument("keys", "N H D", dtype="query"),
    Argument("values", "N H D", dtype="query"),
    Argument("places", "G L", dtype="int64"),
    Argument("lengths", "G", dtype="int64", optional=True),
)


@takes_tensors
def cached_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
    *,
    lengths: Tensor | None = None,
    scale: float | Tensor | None = None,
    max_area: int = 1,
    normalizer: Normalizer = "softmax",
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend with groups of queries to the cache slots that each group's index table lists.

        weights[g, k, h, i] = softmax over i of scale * query[g, k, h] . keys[places[g, i], h]
        context[g, k, h] = sum over i of weights[g, k, h, i] * values[places[g, i], h]

    With areas (Li et al. 2018, Eq. 3 and 4) the softmax covers all runs of up to A adjacent items of a table; the score of a run is the
    mean of its items' scores, and an item's weight sums the weights of the runs that contain it.

    Beam search keeps each hypothesis' cache as such a table: states stay in place and only tables are reordered. The hypotheses of one
    source are a group of queries to its encoder states.

    Args:
        query: (G, K, H, D).
        keys: (N, H, D).
        values: (N, H, D).
        places: (G, L) long, each 0 to N - 1.
        lengths: (G,) long, the number of valid slots per group; None: all L. A length of 0 gives zeros.
        scale: of the scores; None: 1 / sqrt(D). A tensor that broadcasts to (G, K, H, 1) may be learned.
        max_area: A, maximum items per area; 1: single items.
        normalizer: "softmax", "sparsemax" or "entmax15"; the native library computes the softmax only.
        need_weights: also return the weights.

    Returns:
        context (G, K, H, D), and weights (G, K, H, L) or None.

    Raises:
        ShapeError: shapes or dtypes do not agree.
        RangeError: an index outside 0 to N - 1, or a length outside 0 to L (not checked on a GPU).
        ConfigError: `max_area` is below 1.

    Example:
        >>> import torch
        >>> items = torch.tensor([[[1.0]], [[2.0]], [[4.0]]])
        >>> cached_attention(torch.zeros(1, 1, 1, 1), items, items, torch.tensor([[2, 0]]))[0].item()
        2.5
    """
    _ARGUMENTS.check(query, keys, values, places, lengths)
    check_areas(max_area)
    max_area = int(max_area)
    query, scale = with_learned_scale("cached_attention", query, 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale)
    table = indexed_cpu.SlotTable(places, lengths)
    if normalizer == "softmax" and indexed_cpu.supports(query, keys, values, table):
        return indexed_cpu.attend(query, keys, values, table, scale=scale, max_area=max_area, need_weights=need_weights)
    indexed_cpu.check_slots(table, keys.shape[0])
    key, value = (part[places].transpose(1, 2) for part in (keys, values))  # (G, H, L, D)
    mask = None if lengths is None else length_mask(lengths, places.shape[1])[:, None, None]
    if mask is not None:  # 0 * NaN is NaN: a weight of 0 cannot hide NaN in an unused slot
        key, value = (part.masked_fill(~mask.mT, 0.0) for part in (key, value))
    if max_area > 1:
        found = area_attention(
            query.transpose(1, 2),
            key,
            value,
            max_area=max_area,
            mask=mask,
            scale=scale,
            need_weights=need_weights,
            normalizer=normalizer,
        )
        context, weights = found if isinstance(found, tuple) else (found, None)
        return context.transpose(1, 2), None if weights is None else weights.transpose(1, 2)
    if mask is None and normalizer == "softmax" and not need_weights and _fuses(query, key, value):
        return F.scaled_dot_product_attention(query.transpose(1, 2), key, value, scale=scale).transpose(1, 2), None
    scores = (query * scale).transpose(1, 2) @ key.mT  # in this order: in float16 the products may be too large
    weights = normalize(scores, mask, normalizer=normalizer)
    context = (weights @ value.to(weights.dtype)).transpose(1, 2)
    return context, weights.transpose(1, 2) if need_weights else None


def _fuses(query: Tensor, key: Tensor, value: Tensor) -> bool:
    # PyTorch's own kernel: one call instead of five. It has no second derivative, and in float16 on a CPU it hides keys that are all NaN.
    parts = (query, key, value)
    if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
        return False
    return all(part.numel() for part in parts) and not (query.dtype == torch.float16 and query.is_cpu)
