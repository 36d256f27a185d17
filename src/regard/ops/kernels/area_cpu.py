"""Area attention by the native library, see `csrc/area.h`: shapes and strides in, nothing computed here."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.ops.area_windows import Extent
from regard.ops.kernels import native
from regard.ops.kernels.kernel import address, solid
from regard.ops.kernels.structures import AreaCall, AreaMask, AreaView
from regard.ops.masks import check_mask
from regard.ops.tensor_checks import Argument, Signature

STORAGE = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
TILE = 32  # AREA_TILE of csrc/calls.h
_TENSORS = Signature(
    "area_attention",
    Argument("query", "B H T D"),
    Argument("key", "B H S D", dtype="query"),
    Argument("value", "B H S Dv", dtype="query"),
)
LONGEST, TALLEST = 16, 4  # area of a sequence; height and width of an area of a grid: MAX_LENGTH and MAX_SIDE of csrc/area_sweep.h


def unsupported(query: Tensor, extent: Extent) -> str | None:
    """Say in words why the native kernel cannot compute this; None where it can.

    Args:
        query: of the call; its device and dtype count.
        extent: see `regard.ops.area_windows.area_extent`.

    Example:
        >>> unsupported(torch.ones(1, dtype=torch.float16), ((1, 7), (1, 3)))
        'the native kernel computes float32, float64 and bfloat16, not torch.float16'
    """
    (rows, columns), (height, width) = extent
    if query.device.type != "cpu":
        return f"the native kernel runs on CPUs, the tensors are on {query.device.type}"
    if query.dtype not in STORAGE:
        return f"the native kernel computes float32, float64 and bfloat16, not {query.dtype}"
    if min(rows, columns) <= 1 and max(height, width) > LONGEST:
        return f"the native kernel takes areas of up to {LONGEST} items, not {max(height, width)}"
    if min(rows, columns) > 1 and max(height, width) > TALLEST:
        return f"the native kernel takes rectangles of up to {TALLEST} x {TALLEST} items, not {height} x {width}"
    return None if native.library() is not None else native.status().reason


def forward(
    tensors: tuple[Tensor, ...], mask: Tensor | None, extent: Extent, *, causal: bool, mean_values: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend to areas with mean keys, see `regard.ops.area_attention`; without gradients.

    Args:
        tensors: query (B, H, T, D), key (B, H, S, D), value (B, H, S, Dv).
        mask: bool, broadcastable to (B, H, T, S), or None.
        extent: see `regard.ops.area_windows.area_extent`.
        causal: also hide what stands after the query.
        mean_values: the value of an area is the mean, not the sum, of those of its items.
        scale: what products of query and key are multiplied with.

    Returns:
        Context (B, H, T, Dv), laid out as (B, T, H, Dv); largest score and sum of each row (B, H, T, 2), for `backward`.

    Example:
        >>> x = torch.zeros(1, 1, 3, 2)
        >>> extent = (1, 3), (1, 2)
        >>> unsupported(x, extent) is not None or forward((x, x, x), None, extent, causal=False, mean_values=False, scale=1.0)[0].shape
        torch.Size([1, 1, 3, 2])
    """
    query, key, value = tensors = tuple(_rows(x) for x in tensors)
    out, sums = empty_output(query, value)
    if 0 in (out.numel(), key.shape[2], query.shape[3]):
        return out.zero_(), sums.zero_()
    call = _call(tensors, mask, extent)
    call.causal, call.mean_values, call.scale = causal, mean_values, scale
    call.output, call.sums = _view(out), sums.data_ptr()
    _run("regard_area_forward", call)
    return out, sums


def backward(
    tensors: tuple[Tensor, ...],
    mask: Tensor | None,
    extent: Extent,
    results: tuple[Tensor, Tensor],
    *,
    causal: bool,
    mean_values: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value; `results` are the context's gradient and the sums that `forward` returned.

    Example:
        >>> x = torch.zeros(1, 1, 3, 2)
        >>> options = dict(causal=False, mean_values=False, scale=1.0)
        >>> if unsupported(x, ((1, 3), (1, 2))) is None:
        ...     results = forward((x, x, x), None, ((1, 3), (1, 2)), **options)
        ...     grads = backward((x, x, x), None, ((1, 3), (1, 2)), (x, results[1]), **options)
    """
    query, key, value = tensors = tuple(_rows(x) for x in tensors)
    grad, sums = solid(results[0]), results[1].contiguous()
    grads = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))
    if 0 in (grad.numel(), key.shape[2], query.shape[3]):
        return grads[0].zero_(), grads[1].zero_(), grads[2].zero_()
    call = _call(tensors, mask, extent)
    call.causal, call.mean_values, call.scale = causal, mean_values, scale
    call.sums, call.grad_output = sums.data_ptr(), _view(grad)
    call.grad_query, call.grad_key, call.grad_value = (_view(x) for x in grads)
    _run("regard_area_backward", call)
    return grads[0], grads[1], grads[2]


def empty_output(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return room for a context and its rows' sums. The heads of a query lie side by side, as a projection after the attention wants them.

    Example:
        >>> empty_output(torch.ones(2, 3, 5, 7), torch.ones(2, 3, 11, 13))[0].stride()
        (195, 13, 39, 1)
    """
    batch, heads, queries, _ = query.shape
    out = query.new_empty(batch, queries, heads, value.shape[-1]).transpose(1, 2)
    return out, query.new_empty(batch, heads, queries, 2, dtype=torch.float64 if query.dtype == torch.float64 else torch.float32)


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _view(x: Tensor) -> AreaView:
    return AreaView(address(x, "area_attention", "a tensor"), *x.stride()[:3])


def _call(tensors: tuple[Tensor, ...], mask: Tensor | None, extent: Extent) -> AreaCall:
    query, key, value = tensors
    _TENSORS.check(query, key, value)
    if mask is not None:
        check_mask(mask, (*query.shape[:3], key.shape[2]), "area_attention")
    (rows, columns), (height, width) = extent
    if columns == 1:  # a column is a sequence, too
        rows, columns, height, width = columns, rows, width, height
    batch, heads, queries, key_size = query.shape
    call = AreaCall(query=_view(query), key=_view(key), value=_view(value))
    call.batch, call.heads, call.queries, call.keys = batch, heads, queries, value.shape[2]
    call.key_size, call.value_size = key_size, value.shape[3]
    call.grid_height, call.grid_width, call.area_height, call.area_width = rows, columns, height, width
    call.storage, call.threads = STORAGE[query.dtype], torch.get_num_threads()
    if mask is not None:
        call.kept = mask = _by_key(mask, queries)  # a reference, so that the memory stays
        strides = (stride if size > 1 else 0 for stride, size in zip(mask.stride(), mask.shape, strict=True))
        call.mask = AreaMask(mask.data_ptr(), *strides)
    return call


def _by_key(mask: Tensor, queries: int) -> Tensor:
    """Turn a mask to (B, H, S, T), broadcast axes of size 1, the queries side by side and padded to whole tiles."""
    mask = mask.view((1,) * (4 - mask.ndim) + mask.shape)
    for axis in range(4):  # what was expanded is the same everywhere
        if mask.stride(axis) == 0 and mask.shape[axis] > 1:
            mask = mask.narrow(axis, 0, 1)
    mask = mask.transpose(-1, -2)
    if mask.shape[-1] == 1:
        return mask
    padded = mask.new_zeros(*mask.shape[:-1], math.ceil(queries / TILE) * TILE)
    padded[..., :queries] = mask
    return padded


def _run(name: str, call: AreaCall) -> None:
    library = native.library()
    if library is None:
        raise ConfigError(f"area_attention: {native.status().reason}")
    if getattr(library, name)(ctypes.byref(call)):
        raise MemoryError("area_attention: no memory for the threads of the native kernel")
