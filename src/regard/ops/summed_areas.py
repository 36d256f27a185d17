"""Algorithms 1 and 2 of "Area Attention" (Li et al. 2018, arXiv:1810.10126): sums and features of areas by summed area tables.

The cost per area is constant in its size. Attention uses `regard.ops.area_windows` instead: a table spreads the value of one item over all
later areas.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.area_windows import AreaSize, accumulation_dtype, area_extent, area_spans, check_areas, guarded_root
from regard.ops.call_checks import takes_tensors
from regard.ops.number_checks import LARGEST_SCALE, check_number


class AreaFeatures(NamedTuple):
    """Result of Algorithm 2, per area.

    Attributes:
        mean: (..., N, D), Eq. 3.
        std: (..., N, D), Eq. 5 and 12.
        sum: (..., N, D), Eq. 4.
        height: (N,) integers; all 1 for a sequence.
        width: (N,) integers.
    """

    mean: Tensor
    std: Tensor
    sum: Tensor
    height: Tensor
    width: Tensor


@takes_tensors
def summed_area_table(x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
    """Sum everything above and to the left of each corner (Eq. 10), with a line of zeros on top and to the left.

        table[y, x] = sum of the items in rows < y and columns < x

    Args:
        x: (..., S, D).
        grid: (rows, columns) of the items in raster order; None: one row.

    Returns:
        (..., rows + 1, columns + 1, D), for half precision in float32.

    Raises:
        ShapeError: the grid does not hold S items.

    Example:
        >>> summed_area_table(torch.tensor([[1.0], [2.0], [4.0]])).squeeze(-1).tolist()
        [[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 3.0, 7.0]]
    """
    shape, _ = area_extent(x.shape[-2], 1 if grid is None else (1, 1), grid)
    items = accumulation_dtype(x).unflatten(-2, shape)
    return F.pad(items.cumsum(-2).cumsum(-3), (0, 0, 1, 0, 1, 0))


@takes_tensors
def area_sums(x: Tensor, max_area: AreaSize, grid: tuple[int, int] | None = None) -> Tensor:
    """Sum the items of every area by differences of a summed area table: Algorithm 1, Eq. 11.

    `area_spans` and `area_features` return the heights and widths of Algorithm 1.

    Args:
        x: (..., S, D); half precision is accumulated in float32 and cast back.
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence.

    Returns:
        (..., N, D).

    Raises:
        ConfigError, ShapeError: see `area_extent`.

    Example:
        >>> area_sums(torch.tensor([[1.0], [2.0], [4.0]]), 2).flatten().tolist()
        [1.0, 2.0, 4.0, 3.0, 6.0]
    """
    return _table_sums(x, max_area, grid).to(x.dtype)


@takes_tensors
def area_features(x: Tensor, max_area: AreaSize, grid: tuple[int, int] | None = None, *, epsilon: float = 1e-6) -> AreaFeatures:
    """Compute mean, standard deviation, sum and shape of every area: Algorithm 2.

        std = sqrt(max(0, E[x^2] - mean^2) + epsilon)

    Differs from the paper: subtracts the mean of all items before summing squares, which keeps Eq. 12 from cancelling; clamps negative
    rounding errors to 0; and adds epsilon.

    Args:
        x: (..., S, D); half precision is accumulated in float32 and cast back.
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence.
        epsilon: added to the variance, as in the authors' code; it bounds the root's gradient for constant areas, such as those of one
            item. 0 gives the paper's formula, with gradient 0 where the variance is 0.

    Returns:
        `AreaFeatures`; empty for an empty memory.

    Raises:
        ConfigError, ShapeError: see `area_extent`.

    Example:
        >>> features = area_features(torch.tensor([[1.0], [3.0]]), 2, epsilon=0.0)
        >>> features.mean.flatten().tolist(), features.std.flatten().tolist(), features.width.tolist()
        ([1.0, 3.0, 2.0], [0.0, 0.0, 1.0], [1, 1, 2])
    """
    max_area, grid = check_areas(max_area, grid)
    check_number("area_features", "epsilon", epsilon, 0, LARGEST_SCALE)
    spans = area_spans(x.shape[-2] if grid is None else grid, max_area, device=x.device)
    width = spans[:, -1]
    height = torch.ones_like(width) if grid is None else spans[:, 2]
    wide = accumulation_dtype(x)
    size = (height * width).to(wide.dtype).unsqueeze(-1)
    offset = wide.sum(-2, keepdim=True) / max(1, x.shape[-2])
    centred = wide - offset
    total = _table_sums(wide, max_area, grid)
    step = _table_sums(centred, max_area, grid) / size
    variance = (_table_sums(centred * centred, max_area, grid) / size - step * step).clamp_min(0)
    std = guarded_root(variance, epsilon)
    return AreaFeatures((total / size).to(x.dtype), std.to(x.dtype), total.to(x.dtype), height, width)


def _table_sums(x: Tensor, max_area: AreaSize, grid: tuple[int, int] | None) -> Tensor:
    """Sum the items of every area, (..., N, D), in the table's precision."""
    table = summed_area_table(x, grid)
    (rows, columns), (tallest, widest) = area_extent(x.shape[-2], max_area, grid)
    pieces = []
    for height in range(1, tallest + 1):
        for width in range(1, widest + 1):
            top, bottom = slice(0, rows - height + 1), slice(height, rows + 1)
            left, right = slice(0, columns - width + 1), slice(width, columns + 1)
            # Eq. 11: I1 (dst) + I2 (above left) - I3 (above right) - I4 (below left)
            sums = table[..., bottom, right, :] + table[..., top, left, :] - table[..., top, right, :] - table[..., bottom, left, :]
            pieces.append(sums.flatten(-3, -2))
    return torch.cat(pieces, dim=-2) if pieces else table.flatten(-3, -2)[..., :0, :]
