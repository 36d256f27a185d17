"""Materialized areas: keys, values, masks and weights of every run of a sequence or rectangle of a grid.

Li et al. 2018, "Area Attention" (arXiv:1810.10126), section 3. For the order of areas see `regard.ops.area_windows`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.ops.area_windows import (
    AreaSize,
    Extent,
    WindowState,
    accumulation_dtype,
    area_counts,
    area_extent,
    check_areas,
    concatenate_areas,
    safe_deviation,
    sweep,
    window_maxima,
    window_sums,
)
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_boolean, check_mask
from regard.ops.number_checks import check_count, check_temperature
from regard.ops.sparsemax import Normalizer, normalize
from regard.ops.tensor_checks import Argument, Signature, check_scores

VALUE_MODES = ("sum", "mean", "max")
KEY_MODES = ("mean", "max", "sample", "features", "concat", "max_concat", "sum", "sample_concat", "sample_sum")
LEARNED_KEY_MODES = KEY_MODES[3:]


class AreaWeights(NamedTuple):
    """The learned weights of area keys: `output relu(hidden [features] + hidden_bias) + output_bias`.

    Attributes:
        height: (A_h, D // 2) height embeddings, Eq. 6; for a sequence one row, added to every area.
        width: (A_w, D - D // 2) width embeddings, Eq. 7.
        hidden: (D, F). For Eq. 9 F is 3 D and the columns are [W_mu, W_sigma, W_e].
        output: (D, D), W_d.
        hidden_bias: (D,), or None as in Eq. 9.
        output_bias: (D,), or None as in Eq. 9.
    """

    height: Tensor
    width: Tensor
    hidden: Tensor
    output: Tensor
    hidden_bias: Tensor | None = None
    output_bias: Tensor | None = None


def hidden_parts(mode: str) -> int:
    """Count the features of size D that a learned key mode concatenates.

    Args:
        mode: one of `LEARNED_KEY_MODES`.

    Returns:
        F / D: 3 for "features" and "concat", 2 for "max_concat" and "sample_concat", 1 for "sum" and "sample_sum".

    Example:
        >>> hidden_parts("features"), hidden_parts("max_concat")
        (3, 2)
    """
    return {"features": 3, "concat": 3, "max_concat": 2, "sample_concat": 2}.get(mode, 1)


_WEIGHTS = Signature(
    "area keys",
    Argument("key", "* D"),
    Argument("height", "Ah Dh"),
    Argument("width", "Aw Dw"),
    Argument("hidden", "D F"),
    Argument("output", "D D"),
    Argument("hidden_bias", "D", optional=True),
    Argument("output_bias", "D", optional=True),
)


def check_area_weights(weights: AreaWeights, key: Tensor, mode: str) -> None:
    """Check the weights of a learned key mode against its sizes and the keys.

    Args:
        weights: see `AreaWeights`.
        key: (..., D).
        mode: one of `LEARNED_KEY_MODES`.

    Raises:
        ShapeError: weights of other sizes.

    Example:
        >>> weights = AreaWeights(torch.zeros(1, 1), torch.zeros(2, 1), torch.ones(2, 6), torch.ones(2, 2))
        >>> check_area_weights(weights, torch.ones(3, 2), "concat")
    """
    sizes = _WEIGHTS.check(key, *weights)
    if sizes["F"] != hidden_parts(mode) * sizes["D"] or sizes["Dh"] + sizes["Dw"] != sizes["D"]:
        raise ShapeError(
            f"area keys: mode {mode!r} takes hidden (D, {hidden_parts(mode)} D) and tables of height and width with D features together, "
            f"D = {sizes['D']}; found hidden {tuple(weights.hidden.shape)}, height {tuple(weights.height.shape)}, "
            f"width {tuple(weights.width.shape)}"
        )


def check_mode(name: str, mode: object, modes: Sequence[str]) -> None:
    """Check that a mode exists.

    Args:
        name: of the argument, which begins the message.
        mode: what was given.
        modes: `KEY_MODES` or `VALUE_MODES`.

    Raises:
        ConfigError: an unknown mode; the message lists all.

    Example:
        >>> check_mode("key_mode", "mean", KEY_MODES)
    """
    if not isinstance(mode, str) or mode not in modes:
        raise ConfigError(f"{name}: {mode!r} is none of {', '.join(modes)}")


@takes_tensors
def area_keys(
    key: Tensor,
    max_area: AreaSize,
    grid: tuple[int, int] | None = None,
    *,
    mode: str = "mean",
    weights: AreaWeights | None = None,
    training: bool = False,
    generator: torch.Generator | None = None,
    starts: int | None = None,
) -> Tensor:
    """Compute the key of every area from the keys of its items.

        mean            mu, Eq. 3
        max             maximum of each feature
        sample          mu + sigma * noise while training, mu otherwise
        features        W_d relu(W_mu mu + W_sigma sigma + W_e e),  e = [e^w; e^h], Eq. 9
        concat          dense(relu(dense([mu; sigma; s])))           s = [e^h; e^w]
        max_concat      dense(relu(dense([max; s])))
        sum             dense(relu(dense(mu + sigma + s)))
        sample_concat   dense(relu(dense([sample; s])))
        sample_sum      dense(relu(dense(sample + s)))

    "mean" and "features" follow the paper; the others the authors' code (tensor2tensor), with its names, dense layers with biases, and
    order of embeddings.

    Args:
        key: (..., S, D).
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence.
        mode: one of the above.
        weights: for the learned modes, see `AreaWeights`; uses only the first rows of longer embedding tables.
        training: whether the sampling modes add standard normal noise, per feature and area.
        generator: generator of the noise; None: torch's global generator.
        starts: only areas that start in the first `starts` columns; None: all.

    Returns:
        (..., N, D).

    Raises:
        ConfigError: an unknown mode, or a learned mode without weights. Also see `area_extent`.
        ShapeError: the sizes of keys and weights differ. Also see `area_extent`.

    Example:
        >>> area_keys(torch.tensor([[1.0], [3.0]]), 2).flatten().tolist()
        [1.0, 3.0, 2.0]
    """
    check_mode("area_keys: mode", mode, KEY_MODES)
    overflown = None
    if mode == "mean" or (mode == "sample" and not training):
        return window_sums(key, max_area, grid, mean=True, starts=starts)
    if mode == "max":
        return window_maxima(key, max_area, grid, starts=starts)
    if mode == "max_concat":
        features = [window_maxima(key, max_area, grid, starts=starts)]
    else:
        std, overflown = safe_deviation(key, max_area, grid, starts)
        mean = window_sums(key, max_area, grid, mean=True, starts=starts).masked_fill(overflown, 0.0)
        if mode.startswith("sample"):
            features = [mean + std * _noise(std, generator) if training else mean]
        else:
            features = [mean + std] if mode == "sum" else [mean, std]
    if mode == "sample":
        return features[0] if overflown is None else features[0].masked_fill(overflown, torch.nan)
    if weights is None:
        raise ConfigError(f"key_mode: {mode!r} has learned weights (AreaWeights); regard.attention.Areas holds them")
    check_area_weights(weights, key, mode)
    extent = area_extent(key.shape[-2], max_area, grid)
    shape = shape_features(weights, extent, width_first=mode == "features", starts=starts).to(key.dtype)
    features = [features[0] + shape] if mode in ("sum", "sample_sum") else [*features, shape]
    # One product per feature, not one of the concatenation: area shapes are the same in every batch and head.
    columns = weights.hidden.split(key.shape[-1], dim=-1)
    hidden = F.linear(features[0], columns[0], weights.hidden_bias)
    for feature, column in zip(features[1:], columns[1:], strict=True):
        hidden = hidden + F.linear(feature, column)
    keys = F.linear(torch.relu(hidden), weights.output, weights.output_bias)
    return keys if overflown is None else keys.masked_fill(overflown, torch.nan)


def _noise(like: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return torch.randn_like(like)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def shape_features(weights: AreaWeights, extent: Extent, *, width_first: bool = True, starts: int | None = None) -> Tensor:
    """Concatenate width and height embeddings of every area, Eq. 6 to 8.

    Args:
        weights: see `AreaWeights`; `height` and `width` are used.
        extent: see `area_extent`.
        width_first: e = [e^w; e^h] as in Eq. 8; False: [e^h; e^w] as in the authors' code.
        starts: only areas that start in the first `starts` columns; None: all.

    Returns:
        (N, D).

    Raises:
        ShapeError: the tables have too few sizes.

    Example:
        >>> tables = AreaWeights(torch.zeros(1, 1), torch.tensor([[5.0], [7.0]]), torch.ones(2, 6), torch.ones(2, 2))
        >>> shape_features(tables, area_extent(2, 2)).tolist()
        [[5.0, 0.0], [5.0, 0.0], [7.0, 0.0]]
    """
    _, (tallest, widest) = extent
    if weights.height.shape[0] < tallest or weights.width.shape[0] < widest:
        found = (weights.height.shape[0], weights.width.shape[0])
        raise ShapeError(f"area keys: embeddings for areas up to {found} (height, width), but areas reach {(tallest, widest)}")
    heights = [weights.height[h] for h in range(tallest) for _ in range(widest)]
    widths = [weights.width[w] for _ in range(tallest) for w in range(widest)]
    pairs = zip(widths, heights, strict=True) if width_first else zip(heights, widths, strict=True)
    rows = [torch.cat(pair).expand(count, -1) for pair, count in zip(pairs, area_counts(extent, starts), strict=True)]
    return torch.cat(rows) if rows else torch.cat([weights.width, weights.height[:1].expand(weights.width.shape[0], -1)], dim=-1)[:0]


@takes_tensors
def area_values(
    value: Tensor, max_area: AreaSize, grid: tuple[int, int] | None = None, *, mode: str = "sum", starts: int | None = None
) -> Tensor:
    """Compute the value of every area: sum (Eq. 4), mean or maximum of its items' values.

    Args:
        value: (..., S, Dv).
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence.
        mode: "sum", "mean" or "max".
        starts: only areas that start in the first `starts` columns; None: all.

    Returns:
        (..., N, Dv).

    Raises:
        ConfigError: an unknown mode. Also see `area_extent`.
        ShapeError: see `area_extent`.

    Example:
        >>> area_values(torch.tensor([[1.0], [3.0]]), 2, mode="mean").flatten().tolist()
        [1.0, 3.0, 2.0]
    """
    check_mode("area_values: mode", mode, VALUE_MODES)
    if mode == "max":
        return window_maxima(value, max_area, grid, starts=starts)
    return window_sums(value, max_area, grid, mean=mode == "mean", starts=starts)


@takes_tensors
def area_mask(mask: Tensor, max_area: AreaSize, grid: tuple[int, int] | None = None) -> Tensor:
    """Allow an area where all its items are allowed.

    With a causal mask: areas that end at or before the query.

    Args:
        mask: (..., S) bool, True = may attend; usually (..., T, S).
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence.

    Returns:
        (..., N) bool.

    Raises:
        ConfigError: see `area_extent`.
        ShapeError: the mask is not boolean; also see `area_extent`.

    Example:
        >>> area_mask(torch.tensor([True, True, False]), 2).tolist()
        [True, True, False, True, False]
    """
    check_boolean(mask, "area_mask: the mask")

    def both(first: WindowState, second: WindowState, _: tuple[int, int]) -> WindowState:
        return (first[0] & second[0],)

    items = mask.unsqueeze(-1)
    pieces = [allowed for _, (allowed,) in sweep((items,), both, area_extent(mask.shape[-1], max_area, grid))]
    return concatenate_areas(pieces, items).squeeze(-1)


@takes_tensors
def area_softmax(
    scores: Tensor,
    mask: Tensor | None = None,
    *,
    top_k: int | None = None,
    temperature: float = 1.0,
    normalizer: Normalizer = "softmax",
) -> Tensor:
    """Normalize area scores: `normalize` of scores / temperature, optionally over the `top_k` areas only.

    Args:
        scores: (..., T, N).
        mask: bool, (N,) or with every axis of the scores, each of its true size or 1; True = may attend; see `area_mask`.
        top_k: keep the areas of each query that score at least its k-th best (ties keep them all, as in the authors' code); None keeps
            every area.
        temperature: divides the scores; above 1 flattens.
        normalizer: "softmax", "sparsemax" or "entmax15".

    Returns:
        (..., T, N); a row with nothing allowed is all zeros.

    Raises:
        ShapeError: the scores have no axis or no floating dtype; the mask is not boolean, does not broadcast, or lacks axes.
        ConfigError: a temperature that is not above 0 and finite, or a top_k below 1.

    Example:
        >>> area_softmax(torch.tensor([[1.0, 3.0, 3.0]]), top_k=2).tolist()
        [[0.0, 0.5, 0.5]]
    """
    check_scores("area_softmax", scores)
    if mask is not None:
        check_mask(mask, scores.shape, "area_softmax")
    check_temperature("area_softmax", temperature)
    if top_k is not None:
        check_count("area_softmax", "top_k", top_k, 1)
    if top_k is not None and top_k < scores.shape[-1]:  # before the division, by which small scores of half precision would tie
        blocked = torch.zeros_like(scores, dtype=torch.bool) if mask is None else (~mask).expand_as(scores)
        allowed = scores.detach().masked_fill(blocked, float("-inf"))
        # Not `>=`: NaN must stay visible in the row.
        kept = ~(allowed < allowed.topk(top_k, dim=-1).values[..., -1:])
        mask = kept & ~blocked
    if temperature < 1 and scores.shape[-1]:  # so that no quotient of an allowed score becomes infinite; no row changes by it
        allowed = scores.detach() if mask is None else scores.detach().masked_fill(~mask, float("-inf"))
        top = allowed.amax(-1, keepdim=True)
        scores = scores - top.masked_fill(~top.isfinite(), 0.0)
    return normalize(scores / temperature, mask, normalizer=normalizer)


@takes_tensors
def item_weights(area_weights: Tensor, max_area: AreaSize, grid: tuple[int, int] | None = None, *, value_mode: str = "sum") -> Tensor:
    """Distribute area weights to items, so that `item_weights @ value` is the context.

        sum    w_j = sum of the weights of the areas that hold j
        mean   the same, each weight divided by the number of items of its area

    For "max" no item weights give the context; it uses those of "mean".

    Args:
        area_weights: (..., N), usually (..., T, N).
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence, whose length follows from N.
        value_mode: "sum", "mean" or "max".

    Returns:
        (..., S). Rows sum to 1; for "sum" to at most the items of the maximum area.

    Raises:
        ConfigError: an unknown mode, or see `area_extent`.
        ShapeError: no memory has N areas.

    Example:
        >>> item_weights(torch.tensor([0.0, 0.25, 0.75]), 2).tolist()
        [0.75, 1.0]
        >>> item_weights(torch.tensor([0.0, 0.0, 1.0]), 2, value_mode="mean").tolist()
        [0.5, 0.5]
    """
    check_mode("item_weights: value_mode", value_mode, VALUE_MODES)
    extent = (rows, columns), (tallest, widest) = _extent_of(area_weights.shape[-1], max_area, grid)
    wide = accumulation_dtype(area_weights)
    pieces = list(wide.split(area_counts(extent), dim=-1))
    # The transpose of `sweep`, in reverse: an area passes its weight to the smaller area and the line of items it was merged from.
    items = wide.new_zeros((*wide.shape[:-1], rows, columns))
    column = items[..., tallest:, :]
    for height in range(tallest, 0, -1):
        column = F.pad(column, (0, 0, 0, 1))
        area = wide.new_zeros((*wide.shape[:-1], rows - height + 1, columns - widest))
        for width in range(widest, 0, -1):
            piece = pieces.pop().unflatten(-1, (rows - height + 1, columns - width + 1))
            area = F.pad(area, (0, 1)) + (piece if value_mode == "sum" else piece / (height * width))
            column = column + F.pad(area, (width - 1, 0))
        items = items + F.pad(column, (0, 0, height - 1, 0))
    return items.flatten(-2).to(area_weights.dtype)


def _extent_of(count: int, max_area: AreaSize, grid: tuple[int, int] | None) -> Extent:
    """Return the extent of the memory that has `count` areas."""
    max_area, grid = check_areas(max_area, grid)
    if isinstance(max_area, tuple):
        size = math.prod(grid or ())
    elif count >= max_area * (max_area + 1) // 2:
        size = (count + max_area * (max_area - 1) // 2) // max_area
    else:
        size = (math.isqrt(8 * count + 1) - 1) // 2
    extent = area_extent(size, max_area, grid)
    if sum(area_counts(extent)) != count:
        where = "no sequence" if grid is None else f"not the grid {grid}"
        raise ShapeError(f"item_weights: the last axis (N) is {count}, but with max_area {max_area} {where} has that many areas")
    return extent
