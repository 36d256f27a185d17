"""Area attention on CUDA by Triton kernels: nothing of the size of the scores or of the areas is ever stored.

    e = scale q k^T;  the area [i, i+s) scores the mean of e there;  p = softmax over all areas;  out = w v
    w_j = sum of p over the areas that hold j
    dW = dO V^T;  dP_s = window sum of dW;  dA_s = P_s (dP_s - delta);  delta = rowsum(P dP) = rowsum(dO O)
    dS_j = sum of dA_s / s over the areas that hold j;  dQ = scale dS K;  dK = scale dS^T Q;  dV = W^T dO

Li et al. 2018 (arXiv:1810.10126), Eq. 3 and 4, moved from keys and values to scores and weights. Only the rows' log-sum-exp is kept.

Neighbours in a window: shifting a tile along its key axis is slow on a GPU, because the axis lies across the lanes of a warp, and a trip
through shared memory takes about as long as the exponentials of the tile. Alternatives, estimated for a tile of 128 x 64 scores at head
size 64 in bfloat16 on a Hopper processor, where one product takes about 256 cycles, one exponential per score about 512:

- a product with shifted keys per size, and one with shifted values: 2 A products, the cost of materialized areas without their memory;
- a product with a constant banded matrix per size: products of float32 scores, each slower than the score product itself;
- `tl.gather`: 2 (A - 1) trips through shared memory forward, twice that backward.

Instead, items are distributed over small tiles when they are read: tile l holds the items l, l + L, l + 2 L, ... The items of a window are
then at the same position of A different tiles, in the same registers, and their sum is an addition of tiles. L tiles need A - 1 more at the
end (a halo), so the products grow by (L + A - 1) / L, 1.5 at A = 5 and L = 8; those for the gradients of keys and values by (L + 2 A - 2) /
L. The rest is A exponentials per score. In a grid, tiles are distributed over rows and columns.

Most of a loop's instructions would be masks and addresses, so tiles where nothing is hidden have a loop without them. The gradients of keys
and values need, for every tile of queries, all keys and values around a tile: these stay in shared memory if there is room.

Tile sizes follow the assembler's register counts and a trial on an H200 (docs/log.md, "Area attention on a GPU"): at A = 5 in half
precision almost nothing spills up to head size 64; float32 and grids spill much.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.kernels.area_triton_backward import memory_kernel, query_kernel
from regard.ops.kernels.area_triton_forward import Plan, encode, forward_kernel
from regard.ops.kernels.area_triton_rows import clean_kernel, delta_kernel

MAX_ITEMS = 16  # items of the largest area: each size is unrolled in the kernel
MAX_HEAD = 128  # beyond it a tile of queries exceeds registers and shared memory
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
INTERPRETED = (torch.float16, torch.float32)  # Triton's interpreter treats bfloat16 as integers in products
LOG2_E = 1.4426950408889634
SHARED_BYTES = 88 * 1024  # what a program may keep: processors of capability 8.6 and 8.9 have 99 KiB
FUSED = {"enable_fp_fusion": True}  # fused multiply-adds; explicit, because Triton will change its default


class Tiles(NamedTuple):
    """Tile sizes of a kernel: see `Plan` for the first four; warps and pipeline stages of a program."""

    rows: int
    blocks: int
    high: int
    wide: int
    warps: int
    stages: int


def supports(
    query: Tensor, key: Tensor, value: Tensor, *, max_area: int | tuple[int, int], grid: tuple[int, int] | None
) -> tuple[bool, str]:
    """Return whether the kernels support a call, and if not the reason.

    Args:
        query: (B, H, T, D); only device, dtype and head size matter, also for the next two.
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        max_area: max length of an area, or with a grid its max (height, width).
        grid: (rows, columns) of the memory; None for a sequence.

    Returns:
        (True, "") or (False, a reason for users).

    Example:
        >>> x = torch.ones(1, 1, 2, 4, dtype=torch.float64)
        >>> supports(x, x, x, max_area=2, grid=None)[0]
        False
    """
    if importlib.util.find_spec("triton") is None:
        return False, "the package triton is not installed"
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not interpreted and (query.device.type != "cuda" or torch.version.cuda is None):
        return False, f"the Triton kernels are for CUDA, the tensors are on {query.device.type}"
    if not interpreted and torch.cuda.get_device_capability(query.device) < (8, 0):
        return False, "the Triton kernels want compute capability 8.0 or more"
    if {key.device, value.device} != {query.device}:
        return False, f"the tensors are on different devices: {query.device}, {key.device}, {value.device}"
    if {key.dtype, value.dtype} != {query.dtype} or query.dtype not in DTYPES:
        return False, f"the Triton kernels take one of float16, bfloat16 and float32, found {query.dtype}, {key.dtype}, {value.dtype}"
    if interpreted and query.dtype not in INTERPRETED:
        return False, "Triton's interpreter has no bfloat16 products"
    items = max_area if isinstance(max_area, int) else math.prod(max_area)
    if items > MAX_ITEMS:
        return False, f"the Triton kernels take areas of up to {MAX_ITEMS} items, found {items}"
    widest = max(query.shape[-1], value.shape[-1])
    if not 1 <= min(query.shape[-1], value.shape[-1]) <= widest <= MAX_HEAD:
        return False, f"the Triton kernels take head sizes from 1 to {MAX_HEAD}, found {query.shape[-1]} and {value.shape[-1]}"
    return True, ""


def tiles(kernel: Literal["forward", "query", "memory"], targets: int, area: tuple[int, int], row_bytes: int) -> Tiles:
    """Choose the tile sizes of a kernel.

    Args:
        kernel: the forward pass, or the half of the backward pass for the gradient of the query, or of key and value.
        targets: T.
        area: max (height, width); (1, A) for a sequence.
        row_bytes: bytes per row of keys or values, the larger one; float32 counts double, because its products take twice the registers.

    Returns:
        `Tiles`. `rows` is 16 per warp, in "memory" 8 unless it keeps its keys and values (then it has 2 stages), so that no two warps do
        the same work; `high` and `wide` are as large as the registers allow.

    Example:
        >>> tiles("forward", 1024, (1, 5), 128).wide
        4
    """
    rows = 16 if targets <= 16 else 32 if targets <= 32 or row_bytes > 512 else 64
    memory = kernel == "memory"
    around = 16 * (4 + 2 * area[1] - 2) + 2 * rows  # of a sequence: rows of shared memory for keys, of two tiles of queries
    if memory and area[0] == 1 and 2 * row_bytes * around <= SHARED_BYTES:
        return Tiles(rows, 16, 1, 4, rows // 16, 2)
    if area[0] > 1:
        high, wide = (2, 1) if kernel == "query" else (2, 2)
    else:
        high, wide = 1, 8 if memory else 4
        wide = wide if row_bytes <= 128 else wide // 2 if row_bytes <= 512 else wide // 4
        wide = wide if area[1] <= 8 else min(wide, 4 if memory else 2)
    return Tiles(rows, 16, high, wide, rows // (8 if memory else 16), 1 if memory or row_bytes > 256 else 2)


def area_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    max_area: int | tuple[int, int],
    grid: tuple[int, int] | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attend to areas with mean keys and sum values; without gradients, see `area_attention_triton_backward`.

    Args:
        query: (B, H, T, D), float16, bfloat16 or float32, on a CUDA device; see `supports`.
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        max_area: max length of an area, or with a grid its max (height, width).
        grid: (rows, columns) of a memory in raster order, rows * columns = S; None for a sequence.
        mask: bool, broadcastable to (B, H, T, S), True = may attend. An area may be attended if all its items may.
        causal: also mask items after the query, aligned bottom-right; for a grid, in raster order.
        scale: factor of the dot products.

    Returns:
        Context (B, H, T, Dv), zeros for a query with nothing to attend to, and log-sum-exp of the area scores (B, H, T), float32, -inf for
        such a query. Masked items have no influence; a query that may attend a non-finite item gets NaN.

    Raises:
        ShapeError: unsupported, with the reason of `supports`, or the grid does not hold S items.

    Example:
        >>> query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 3, 4)
        >>> if query.is_cuda:
        ...     context, lse = area_attention_triton(query, key, key, max_area=2, scale=1.0)  # lse: log(5), of five areas
    """
    _check(query, key, value, max_area, grid)
    if min(query.shape[:3].numel() * value.shape[-1], key.shape[2]) == 0:
        out, lse = value.new_zeros(*query.shape[:3], value.shape[-1]), query.new_full(query.shape[:3], -torch.inf, dtype=torch.float32)
        return out, lse
    out = value.new_empty(*query.shape[:3], value.shape[-1])
    lse = taint = query.new_empty(query.shape[:3], dtype=torch.float32)
    query, key, value = (_rows(x) for x in (query, key, value))
    if mask is not None or causal:
        value, taint = _clean(value)
    area, room = _areas(key, max_area, grid)
    cut = tiles("forward", query.shape[2], area, _row_bytes(key, value))
    plan = _plan(cut, area, query, value, masked=mask is not None, causal=causal)
    mask = _mask(mask, query, key)
    tensors = (query, key, value, mask, taint, out, lse)
    strides = tuple(x.stride()[:3] for x in (query, key, value))
    programs = query.shape[0] * query.shape[1] * -(-query.shape[2] // plan.rows)
    with _on(query):
        forward_kernel[(programs,)](  # pyright: ignore[reportIndexIssue]
            tensors, strides, _sizes(query, key, room, mask), scale * LOG2_E, P=plan, num_warps=cut.warps, num_stages=cut.stages, **FUSED
        )
    return out, lse


def area_attention_triton_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    max_area: int | tuple[int, int],
    grid: tuple[int, int] | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of `area_attention_triton`; deterministic.

    Args:
        grad: (B, H, T, Dv), the gradient of the context, same dtype.
        query: as in the forward pass, like all others.
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        out: (B, H, T, Dv), the context.
        lse: (B, H, T), the log-sum-exp.
        max_area: max length of an area, or with a grid its max (height, width).
        grid: (rows, columns) of the memory; None for a sequence.
        mask: bool, broadcastable to (B, H, T, S).
        causal: also mask items after the query.
        scale: factor of the dot products.

    Returns:
        Gradients of query, key and value in their shapes and dtype. Exactly 0 for an item masked for every query and for a query with
        nothing to attend to; NaN for everything that a query with NaN context or non-finite gradient may attend.

    Raises:
        ShapeError: see the forward pass.

    Example:
        >>> query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 3, 4)
        >>> if query.is_cuda:
        ...     context, lse = area_attention_triton(query, key, key, max_area=2, scale=1.0)
        ...     dq, dk, dv = area_attention_triton_backward(context, query, key, key, context, lse, max_area=2, scale=1.0)
    """
    _check(query, key, value, max_area, grid)
    if min(out.numel(), key.shape[2]) == 0:
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))
    grad, query, key, value = (_rows(x) for x in (grad, query, key, value))
    grad, lse, delta = _deltas(grad, out, lse, hides=mask is not None or causal)
    if mask is not None or causal:
        query, key = _clean(query)[0], _clean(key)[0]
    area, room = _areas(key, max_area, grid)
    cuts = [tiles(kernel, query.shape[2], area, _row_bytes(key, value)) for kernel in ("query", "memory")]
    plans = [_plan(cut, area, query, value, masked=mask is not None, causal=causal) for cut in cuts]
    mask = _mask(mask, query, key)
    tensors = (query, key, value, mask, grad, lse, delta)
    strides = tuple(x.stride()[:3] for x in (query, key, value, grad))
    sizes = _sizes(query, key, room, mask)
    heads = query.shape[0] * query.shape[1]
    blocks = -(-room[0] // plans[1].high) * -(-room[1] // plans[1].wide)
    programs = heads * -(-query.shape[2] // plans[0].rows), heads * -(-blocks // plans[1].blocks)
    options = [{"P": plan, "num_warps": cut.warps, "num_stages": cut.stages, **FUSED} for plan, cut in zip(plans, cuts, strict=True)]
    scales = (scale, scale * LOG2_E)
    with _on(query):
        query_kernel[(programs[0],)]((*tensors, dq), strides, sizes, scales, **options[0])
        memory_kernel[(programs[1],)]((*tensors, dk, dv), strides, sizes, scales, **options[1])
    return dq, dk, dv


def _check(query: Tensor, key: Tensor, value: Tensor, max_area: int | tuple[int, int], grid: tuple[int, int] | None) -> None:
    able, reason = supports(query, key, value, max_area=max_area, grid=grid)
    if not able:
        raise ShapeError(f"area_attention: {reason}")
    if isinstance(max_area, int) != (grid is None) or (grid is not None and math.prod(grid) != key.shape[2]):
        raise ShapeError(f"area_attention: grid {grid} and max_area {max_area} do not fit each other or the key axis S = {key.shape[2]}")


def _areas(key: Tensor, max_area: int | tuple[int, int], grid: tuple[int, int] | None) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the largest area and the memory as (rows, columns); a sequence is one row."""
    room = (1, key.shape[2]) if grid is None else (int(grid[0]), int(grid[1]))
    high, wide = (1, max_area) if isinstance(max_area, int) else max_area
    return (min(high, room[0]), min(wide, room[1])), room


def _plan(cut: Tiles, area: tuple[int, int], query: Tensor, value: Tensor, *, masked: bool, causal: bool) -> Plan:
    head, width = query.shape[-1], value.shape[-1]
    # Three tf32 products are about as exact as one in float32, which would not use the tensor cores. One, if torch's setting allows it.
    exact = torch.backends.cuda.matmul.fp32_precision in ("none", "ieee")
    precision = "tf32x3" if exact else "tf32"
    return Plan(*cut[:4], *area, head, _padded(head), width, _padded(width), masked, causal, precision, cut.stages > 1)


def _row_bytes(key: Tensor, value: Tensor) -> int:
    return max(key.shape[-1], value.shape[-1]) * (8 if key.dtype == torch.float32 else 2)


def _sizes(query: Tensor, key: Tensor, room: tuple[int, int], mask: Tensor) -> tuple[int, ...]:
    return tuple(encode(number) for number in (query.shape[1], query.shape[2], key.shape[2], *room, *mask.stride()))


def _mask(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """Return the mask as bytes (B, H, T, S) without copying; without a mask any tensor with four strides, never read."""
    if mask is None:
        return query
    return mask.expand(*query.shape[:3], key.shape[2]).view(torch.uint8)


def _rows(x: Tensor) -> Tensor:
    """Return x with contiguous rows, copied only if necessary."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _clean(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a copy (B, H, N, D) without gaps, rows that are not finite as zeros, and (B, H, N), 0, or NaN for such a row."""
    clean, taint = torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.shape[:3], dtype=torch.float32)
    if taint.numel():
        _by_rows(clean_kernel, (x, clean, taint))
    return clean, taint


def _deltas(grad: Tensor, out: Tensor, lse: Tensor, *, hides: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradient and log-sum-exp, clean and with NaN if something is hidden, see `delta_kernel`, and delta (B, H, T)."""
    delta, clean, told = torch.empty_like(lse), grad, lse
    if hides:
        clean, told = torch.empty_like(out), torch.empty_like(lse)
    _by_rows(delta_kernel, (grad, out, lse, delta, clean, told), HIDES=hides)
    return clean, told, delta


def _by_rows(kernel: Any, tensors: tuple[Tensor, ...], **more: bool) -> None:
    """Launch a kernel over the rows of the first tensor, (B, H, N, D)."""
    x = tensors[0]
    count, padded = x.shape[:3].numel(), _padded(x.shape[-1])
    coded = tuple(encode(number) for number in (x.shape[1], x.shape[2], count))
    rows = 4096 // padded
    with _on(x):
        kernel[(-(-count // rows),)](tensors, x.stride()[:3], coded, SIZE=x.shape[-1], PADDED=padded, ROWS=rows, **more)


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def _on(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Launch on the tensor's device."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
