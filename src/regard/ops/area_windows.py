"""Enumerate the areas of a memory; compute sums, maxima and moments of each.

Li et al. 2018, "Area Attention" (arXiv:1810.10126), section 3. A memory of S items is a sequence, or a grid of `grid = (rows, columns)`
items in raster order. Areas are ordered height outer, width inner, raster within, as in Algorithm 1; for a sequence that is by length, then
by start. An area that does not fit in the memory does not exist.

Differs from the paper: sums grow size by size (a smaller area plus one item), not as differences of a summed area table. Differences of
large numbers lose small ones, and a table spreads the value of a masked item (NaN, 1e30) to every later area; here an area depends on its
own items only. `regard.ops.summed_areas` has the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.number_checks import LARGEST_SCALE, check_count, check_number
from regard.ops.sparsemax import Normalizer
from regard.ops.tensor_checks import check_floating

AreaSize = int | tuple[int, int]
Extent = tuple[tuple[int, int], tuple[int, int]]
WindowState = tuple[Tensor, ...]


class AreaSpec(NamedTuple):
    """Settings of a `regard.ops.area_attention` call, by the same names; `scale` includes the temperature."""

    max_area: AreaSize
    grid: tuple[int, int] | None = None
    causal: bool = False
    key_mode: str = "mean"
    value_mode: str = "sum"
    top_k: int | None = None
    scale: float = 1.0
    dropout: float = 0.0
    normalizer: Normalizer = "softmax"

    def extent(self, size: int) -> Extent:
        """Return ((rows, columns), (height, width)) for S items; see `area_extent`."""
        return area_extent(size, self.max_area, self.grid)


def check_areas(max_area: AreaSize, grid: tuple[int, int] | None = None) -> tuple[AreaSize, tuple[int, int] | None]:
    """Check area sizes: a whole number for a sequence, (height, width) for a grid, each at least 1.

    Args:
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence.

    Returns:
        Both, as Python's numbers.

    Raises:
        ConfigError: another type or a size below 1.

    Example:
        >>> check_areas((2, 3), grid=(5, 7))
        ((2, 3), (5, 7))
    """
    if _is_count(max_area) != (grid is None) or (grid is not None and not (_is_pair(max_area) and _is_pair(grid))):
        raise ConfigError(
            f"max_area: a whole number for a sequence, (height, width) together with a grid; found {max_area!r} with grid {grid!r}"
        )
    sides = tuple(max_area) if isinstance(max_area, tuple | list) else (max_area,)
    if min(sides) < 1:
        raise ConfigError(f"max_area: areas hold at least 1 item on each of their sides, found {max_area!r}")
    if grid is not None and min(grid) < 0:
        raise ConfigError(f"grid: (rows, columns) of at least 0 each, found {grid!r}")
    return (_plain(max_area), None) if grid is None else (_pair(max_area), _pair(grid))


def _is_count(value: object) -> bool:
    return isinstance(value, Integral | torch.SymInt) and not isinstance(value, bool)


def _plain(count: Any) -> Any:
    return int(count) if isinstance(count, Integral) else count


def _pair(pair: Any) -> tuple[int, int]:
    return _plain(pair[0]), _plain(pair[1])


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_count, value))


def area_extent(size: int, max_area: AreaSize, grid: tuple[int, int] | None = None) -> Extent:
    """Return the memory as rows and columns, and the maximum area that fits into it.

    Args:
        size: S, the number of items.
        max_area: maximum length, or maximum (height, width) with a grid; clipped to the memory.
        grid: (rows, columns) with rows * columns = S, or None for a sequence, which is one row.

    Returns:
        ((rows, columns), (height, width)).

    Raises:
        ConfigError: invalid sizes, see `check_areas`.
        ShapeError: the grid does not hold S items.

    Example:
        >>> area_extent(7, 3), area_extent(6, (5, 2), (2, 3))
        (((1, 7), (1, 3)), ((2, 3), (2, 2)))
    """
    max_area, grid = check_areas(max_area, grid)
    rows, columns = (1, size) if grid is None else grid
    if rows * columns != size:
        raise ShapeError(f"areas: the grid {(rows, columns)} holds {rows * columns} items, but the memory (axis S) has {size}")
    height, width = max_area if isinstance(max_area, tuple) else (1, max_area)
    return (rows, columns), (min(height, rows), min(width, columns))


@takes_tensors
def area_count(size: AreaSize, max_area: AreaSize) -> int:
    """Count the areas.

        sequence: sum over s = 1 .. A of max(0, S - s + 1)
        grid:     sum over h, w of max(0, rows - h + 1) max(0, columns - w + 1)

    Args:
        size: S, or (rows, columns).
        max_area: maximum length, or maximum (height, width).

    Returns:
        N; 0 for an empty memory.

    Raises:
        ConfigError: invalid sizes, see `check_areas`.

    Example:
        >>> area_count(4, 3), area_count((3, 3), (2, 2))
        (9, 25)
    """
    (rows, columns), (tallest, widest) = _extent_of(size, max_area)
    return (2 * rows - tallest + 1) * tallest // 2 * ((2 * columns - widest + 1) * widest // 2)


def _extent_of(size: AreaSize, max_area: AreaSize) -> Extent:
    if not isinstance(size, tuple | list):
        check_count("areas", "size", size)
    # In this order, because a traced size is not an int.
    return area_extent(math.prod(size), max_area, size) if isinstance(size, tuple | list) else area_extent(size, max_area)


def area_counts(extent: Extent, starts: int | None = None) -> list[int]:
    """Count the areas of each height and width, in order.

    Args:
        extent: see `area_extent`.
        starts: only areas that start in the first `starts` columns; None: all.

    Returns:
        one number for each (height, width), height outer.

    Example:
        >>> area_counts(area_extent(4, 3))
        [4, 3, 2]
    """
    (rows, columns), (tallest, widest) = extent
    most = columns if starts is None else starts
    return [(rows - h + 1) * min(columns - w + 1, most) for h in range(1, tallest + 1) for w in range(1, widest + 1)]


def sweep(
    states: WindowState,
    merge: Callable[[WindowState, WindowState, tuple[int, int]], WindowState],
    extent: Extent,
    starts: int | None = None,
) -> list[tuple[int, WindowState]]:
    """Grow areas item by item: columns downwards, then areas of each height to the right.

    Args:
        states: of every item, each (..., S, D).
        merge: merges the states of two adjacent areas, given the number of items in each.
        extent: see `area_extent`.
        starts: only areas that start in the first `starts` columns; None: all.

    Returns:
        For each height and width, in order: the number of items per area, and the states (..., count, D).

    Raises:
        ConfigError: `starts` is below 1.

    Example:
        >>> sizes = sweep((torch.tensor([[1.0], [2.0]]),), lambda a, b, counts: (a[0] * b[0],), area_extent(2, 2))
        >>> [(size, states[0].flatten().tolist()) for size, states in sizes]
        [(1, [1.0, 2.0]), (2, [2.0])]
    """
    if starts is not None:
        check_count("areas", "starts", starts, 1)
    grid, (tallest, widest) = extent
    items = tuple(state.unflatten(-2, grid) for state in states)
    sizes: list[tuple[int, WindowState]] = []
    column, columns = items, grid[1]
    most = columns if starts is None else starts
    for height in range(1, tallest + 1):
        if height > 1:
            above, below = (tuple(s[..., :-1, :, :] for s in column), tuple(s[..., height - 1 :, :, :] for s in items))
            column = merge(above, below, (height - 1, 1))
        area = column if starts is None else tuple(s[..., :most, :] for s in column)
        for width in range(1, widest + 1):
            if width > 1:
                count = min(columns - width + 1, most)
                left, right = tuple(s[..., :count, :] for s in area), tuple(s[..., width - 1 : width - 1 + count, :] for s in column)
                area = merge(left, right, (height * (width - 1), height))
            sizes.append((height * width, tuple(s.flatten(-3, -2) for s in area)))
    return sizes


def concatenate_areas(pieces: list[Tensor], like: Tensor) -> Tensor:
    """Concatenate the areas of all sizes, in the dtype of the items.

    Args:
        pieces: one (..., count, D) per size; an empty memory has none.
        like: the items, (..., S, D).

    Returns:
        (..., N, D).

    Example:
        >>> concatenate_areas([torch.ones(3, 1), torch.ones(2, 1)], torch.ones(3, 1)).shape
        torch.Size([5, 1])
    """
    return (torch.cat(pieces, dim=-2) if pieces else like[..., :0, :]).to(like.dtype)


def accumulation_dtype(x: Tensor) -> Tensor:
    """Cast half precision to float32 for sums; leave other floating dtypes unchanged.

    Returns:
        the same shape.

    Raises:
        ShapeError: no floating dtype, of which sums would wrap and means be cut.

    Example:
        >>> accumulation_dtype(torch.ones(1, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    check_floating("areas", items=x)
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@takes_tensors
def area_spans(size: AreaSize, max_area: AreaSize, device: torch.device | str | None = None) -> Tensor:
    """List start and size of every area.

    Args:
        size: S, or (rows, columns).
        max_area: maximum length, or maximum (height, width).
        device: device of the result.

    Returns:
        (N, 2) integers, start and length; for a grid (N, 4): y, x, height, width. N is 0 for an empty memory.

    Raises:
        ConfigError: invalid sizes, see `check_areas`.

    Example:
        >>> area_spans(3, 2).tolist()
        [[0, 1], [1, 1], [2, 1], [0, 2], [1, 2]]
        >>> area_spans((1, 2), (1, 2)).tolist()
        [[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 2]]
    """
    (rows, columns), (tallest, widest) = _extent_of(size, max_area)
    pieces = [torch.empty(0, 4, dtype=torch.long, device=device)]
    for height in range(1, tallest + 1):
        for width in range(1, widest + 1):
            y = torch.arange(rows - height + 1, device=device).repeat_interleave(columns - width + 1)
            x = torch.arange(columns - width + 1, device=device).repeat(rows - height + 1)
            pieces.append(torch.stack([y, x, torch.full_like(x, height), torch.full_like(x, width)], dim=-1))
    spans = torch.cat(pieces)
    return spans if isinstance(max_area, tuple | list) else spans[:, 1::2]


@takes_tensors
def window_sums(
    x: Tensor, max_area: AreaSize, grid: tuple[int, int] | None = None, *, mean: bool = False, starts: int | None = None
) -> Tensor:
    """Sum (or average) the items of every area, without a summed area table (the module docstring says why).

    Args:
        x: (..., S, D); half precision is accumulated in float32 and cast back.
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence.
        mean: divide by the number of items.
        starts: only areas that start in the first `starts` columns; None: all.

    Returns:
        (..., N, D).

    Raises:
        ConfigError, ShapeError: see `area_extent`.

    Example:
        >>> window_sums(torch.tensor([[1.0], [2.0], [4.0]]), 2).flatten().tolist()
        [1.0, 2.0, 4.0, 3.0, 6.0]
    """

    def add(first: WindowState, second: WindowState, _: tuple[int, int]) -> WindowState:
        return (first[0] + second[0],)

    sizes = sweep((accumulation_dtype(x),), add, area_extent(x.shape[-2], max_area, grid), starts)
    return concatenate_areas([total / size if mean else total for size, (total,) in sizes], x)


@takes_tensors
def window_maxima(x: Tensor, max_area: AreaSize, grid: tuple[int, int] | None = None, *, starts: int | None = None) -> Tensor:
    """Compute the maximum of every feature over every area.

    Args:
        x: (..., S, D).
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence.
        starts: only areas that start in the first `starts` columns; None: all.

    Returns:
        (..., N, D); tied items share the gradient.

    Raises:
        ConfigError, ShapeError: see `area_extent`.

    Example:
        >>> window_maxima(torch.tensor([[1.0], [4.0], [2.0]]), 2).flatten().tolist()
        [1.0, 4.0, 2.0, 4.0, 4.0]
    """

    def larger(first: WindowState, second: WindowState, _: tuple[int, int]) -> WindowState:
        return (torch.maximum(first[0], second[0]),)

    return concatenate_areas([largest for _, (largest,) in sweep((x,), larger, area_extent(x.shape[-2], max_area, grid), starts)], x)


@takes_tensors
def window_moments(
    x: Tensor, max_area: AreaSize, grid: tuple[int, int] | None = None, *, epsilon: float = 1e-6, starts: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the items of every area (Eq. 3 and 5), without a summed area table.

        std = sqrt(variance + epsilon)

    The variance is updated pairwise (Chan, Golub and LeVeque 1979): as a sum of squares it is never negative, unaffected by a large common
    offset, and depends on the area's own items only.

    Args:
        x: (..., S, D); half precision is accumulated in float32 and cast back.
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence.
        epsilon: added to the variance, as in the authors' code; it bounds the root's gradient for constant areas, such as those of one
            item. 0 gives the paper's formula, with gradient 0 where the variance is 0.
        starts: only areas that start in the first `starts` columns; None: all.

    Returns:
        mean (..., N, D) and std (..., N, D).

    Raises:
        ConfigError, ShapeError: see `area_extent`.

    Example:
        >>> mean, std = window_moments(torch.tensor([[1.0], [3.0]]), 2, epsilon=0.0)
        >>> mean.flatten().tolist(), std.flatten().tolist()
        ([1.0, 3.0, 2.0], [0.0, 0.0, 1.0])
    """

    def merge(first: WindowState, second: WindowState, counts: tuple[int, int]) -> WindowState:
        total = sum(counts)
        step = second[0] - first[0]
        return first[0] + step * (counts[1] / total), first[1] + second[1] + step * step * (counts[0] * counts[1] / total)

    check_number("window_moments", "epsilon", epsilon, 0, LARGEST_SCALE)
    wide = accumulation_dtype(x)
    sizes = sweep((wide, torch.zeros_like(wide)), merge, area_extent(x.shape[-2], max_area, grid), starts)
    means = [mean for _, (mean, _) in sizes]
    return concatenate_areas(means, x), concatenate_areas([guarded_root(squares / size, epsilon) for size, (_, squares) in sizes], x)


def safe_deviation(
    key: Tensor, max_area: AreaSize, grid: tuple[int, int] | None = None, starts: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return finite standard deviations of the keys of every area, and a mask of the invalid ones.

    The square of a large key overflows, and even in a fully masked area infinity would spoil gradients: 0 * inf is NaN.

    Args:
        key: (..., S, D).
        max_area: maximum length, or maximum (height, width).
        grid: (rows, columns), or None for a sequence.
        starts: only areas that start in the first `starts` columns; None: all.

    Returns:
        std (..., N, D), and (..., N, 1) bool: areas of several keys, one of them above sqrt(max of the dtype) / 16 (1e18 in float32).

    Example:
        >>> std, overflown = safe_deviation(torch.tensor([[1.0], [3.0], [1e20]]), 2)
        >>> std.round(decimals=2).flatten().tolist(), overflown.flatten().tolist()
        ([0.0, 0.0, 0.0, 1.0, 1.5], [False, False, False, False, True])
    """
    wide = torch.promote_types(key.dtype, torch.float32)
    large = (key.detach().abs() > math.sqrt(torch.finfo(wide).max) / 16).any(-1, keepdim=True)
    _, std = window_moments(key.masked_fill(large, 0.0), max_area, grid, starts=starts)
    overflown = window_maxima(large.to(key.dtype), max_area, grid, starts=starts) > 0
    alone = sum(area_counts(area_extent(key.shape[-2], max_area, grid), starts)[:1])
    overflown[..., :alone, :] = False  # the areas of single keys come first
    return std, overflown


def guarded_root(variance: Tensor, epsilon: float) -> Tensor:
    """Return sqrt(variance + epsilon), with zero instead of infinite gradient at 0.

    Args:
        variance: any shape, never negative.
        epsilon: at least 0.

    Returns:
        the same shape.

    Example:
        >>> guarded_root(torch.tensor([0.0, 4.0]), 0.0).tolist()
        [0.0, 2.0]
    """
    shifted = variance + epsilon
    if not (torch.is_grad_enabled() and shifted.requires_grad):
        return shifted.clamp_min(0).sqrt()
    flat = shifted <= 0
    return shifted.masked_fill(flat, 1.0).sqrt().masked_fill(flat, 0.0)
