"""Native area attention with mean keys or area features (Eq. 9): passes shapes and strides to the library.

`csrc/area.h` computes attention with mean keys. For Eq. 9 `csrc/area_features.h` computes the remaining part of an area's key, and
`csrc/area_keyed.h` attends head by head, so that nothing of the size of all areas leaves the cache.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from regard.ops.area_windows import AreaSpec, Extent, area_extent
from regard.ops.kernels import native
from regard.ops.kernels.kernel import address, invoke, solid
from regard.ops.kernels.structures import AreaCall, AreaFeatures, AreaMask, AreaView
from regard.ops.masks import check_mask
from regard.ops.tensor_checks import Argument, Signature

STORAGE = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
TILE, STEP = 32, 16  # AREA_TILE and FEATURE_STEP of csrc/calls.h
LONGEST, TALLEST, LONGEST_LEARNED = 64, 4, 16  # MOST_LENGTH, MOST_SIDE and MOST_KEYED of csrc/calls.h
EPSILON = 1e-6  # added to the variance, as in `regard.ops.window_moments`
LONE = math.sqrt(EPSILON)  # standard deviation of a single item
_TENSORS = Signature(
    "area_attention",
    Argument("query", "B H T D"),
    Argument("key", "B H S D", dtype="query"),
    Argument("value", "B H S Dv", dtype="query"),
    *(Argument(name, "D D", dtype="query", optional=True) for name in ("W_mu", "W_sigma", "W_d")),
    Argument("sizes", "A D", dtype="query", optional=True),
)


def unsupported(query: Tensor, size: int, spec: AreaSpec) -> str | None:
    """Return why the native kernel does not support a call, or None.

    Args:
        query: (B, H, T, D); its device, dtype and D matter.
        size: S, read only for long areas: a comparison would bind a traced program to it.
        spec: settings of the call, with key mode mean or features.

    Example:
        >>> unsupported(torch.ones(1, 1, 1, 5, dtype=torch.float16), 7, AreaSpec(3))
        'the native kernel computes float32, float64 and bfloat16, not torch.float16'
        >>> unsupported(torch.ones(1, 1, 1, 5), 7, AreaSpec(3, key_mode="features"))
        'the native kernel of key mode features takes head sizes that are multiples of 16, not 5'
    """
    longest, learned = spec.max_area, spec.key_mode == "features"
    if query.device.type != "cpu":
        return f"the native kernel runs on CPUs, the tensors are on {query.device.type}"
    if learned and query.shape[-1] % STEP:
        return f"the native kernel of key mode features takes head sizes that are multiples of {STEP}, not {query.shape[-1]}"
    if not learned and query.dtype not in STORAGE:
        return f"the native kernel computes float32, float64 and bfloat16, not {query.dtype}"
    most = LONGEST_LEARNED if learned else LONGEST
    if learned and isinstance(longest, int) and longest > most:  # the table of sizes may be longer than the memory
        return f"the native kernel of key mode features takes areas of up to {most} items, not {longest}"
    if not isinstance(longest, int) or longest > most:
        (rows, columns), (height, width) = spec.extent(size)
        if min(rows, columns) <= 1 and max(height, width) > most:
            return f"the native kernel takes areas of up to {most} items, not {max(height, width)}"
        if min(rows, columns) > 1 and max(height, width) > TALLEST:
            return f"the native kernel takes rectangles of up to {TALLEST} x {TALLEST} items, not {height} x {width}"
    return None if native.library() is not None else native.status().reason


def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Attend, without gradients.

    Args:
        inputs: inputs of the operator in `area_op.py`.

    Returns:
        Context (B, H, T, Dv), stored as (B, T, H, Dv); maximum and sum of each row (B, H, T, 2), for `backward`.

    Example:
        >>> x = torch.zeros(1, 1, 3, 2)
        >>> ready = unsupported(x, 3, AreaSpec(2)) is None
        >>> forward(x, x, x, None, None, None, None, None, [2], [], False, False, 1.0)[0].shape if ready else x.shape
        torch.Size([1, 1, 3, 2])
    """
    query, key, value = inputs[:3]
    out, sums = empty_output(query, value)
    if 0 in (query.numel(), key.numel(), value.numel()):
        return out.zero_(), sums.zero_()
    call, _kept = _call(*inputs)
    call.output, call.sums = _view(out), sums.data_ptr()
    invoke("regard_area_forward", call, "area_attention")
    return out, sums


def backward(grad: Tensor, sums: Tensor, *inputs: Any) -> list[Tensor]:
    """Return the gradients of query, key and value, and for Eq. 9 of the key weights.

    Args:
        grad: (B, H, T, Dv), gradient of the context.
        sums: second result of `forward`.
        inputs: inputs of `forward`.

    Example:
        >>> x, none = torch.zeros(1, 1, 3, 2), [None] * 5
        >>> if unsupported(x, 3, AreaSpec(2)) is None:
        ...     _, sums = forward(x, x, x, *none, [2], [], False, False, 1.0)
        ...     grads = backward(x, sums, x, x, x, *none, [2], [], False, False, 1.0)
    """
    query, key, value, *weights = inputs[:7]
    grads = [room(x) for x in inputs[:7] if x is not None]
    if 0 in (query.numel(), key.numel(), value.numel()):
        return [each.zero_() for each in grads]
    grad, sums = solid(grad), sums.contiguous()
    call, _kept = _call(*inputs)
    call.sums, call.grad_output = sums.data_ptr(), _view(grad)
    call.grad_query, call.grad_key, call.grad_value = (_view(x) for x in grads[:3])
    if weights[0] is None:
        invoke("regard_area_backward", call, "area_attention")
        return grads
    deviation_grad, shape_grad = grads[4], grads[6].zero_()  # sizes beyond the memory have no areas
    present = _present(shape_grad, key.shape[-2], *inputs[8:10])
    found, features = torch.empty_like(present, memory_format=torch.contiguous_format), call.features.contents
    features.grad_mean, features.grad_deviation, features.grad_output, features.grad_shape = (x.data_ptr() for x in (*grads[3:6], found))
    invoke("regard_area_backward", call, "area_attention")
    present.copy_(found)
    deviation_grad += LONE * shape_grad[:1].t()
    return grads


def empty_output(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate a context and its row sums, with the heads of a query adjacent, as the following projection expects.

    Example:
        >>> empty_output(torch.ones(2, 3, 5, 7), torch.ones(2, 3, 11, 13))[0].stride()
        (195, 13, 39, 1)
    """
    batch, heads, queries, _ = query.shape
    out = query.new_empty(batch, queries, heads, value.shape[-1]).transpose(1, 2)
    return out, query.new_empty(batch, heads, queries, 2, dtype=torch.float64 if query.dtype == torch.float64 else torch.float32)


def room(x: Tensor) -> Tensor:
    """Allocate a gradient in the layout of its tensor, with the heads of a query adjacent.

    Example:
        >>> room(torch.ones(2, 5, 3, 7).transpose(1, 2)).stride(), room(torch.ones(2, 3).t()).stride()
        ((105, 7, 21, 1), (2, 1))
    """
    kept = x.dim() == 4 and x.stride(-1) == 1
    return torch.empty_like(x, memory_format=torch.preserve_format if kept else torch.contiguous_format)


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _view(x: Tensor) -> AreaView:
    return AreaView(address(x, "area_attention", "a tensor"), *x.stride()[:3])


def _call(*inputs: Any) -> tuple[AreaCall, list[Any]]:
    # Also returns the objects that must stay alive during the call.
    query, key, value, mean, deviation, output, shape, mask, sides, grid, causal, mean_values, scale = inputs
    query, key, value = kept = [_rows(x) for x in (query, key, value)]
    _TENSORS.check(query, key, value, mean, deviation, output, shape)
    (batch, heads, queries, key_size), (keys, value_size) = query.shape, value.shape[2:]
    (rows, columns), (height, width) = _extent(keys, sides, grid)
    call = AreaCall(
        *map(_view, kept),
        **{"batch": batch, "heads": heads, "queries": queries, "keys": keys, "key_size": key_size, "value_size": value_size},
        **{"grid_height": rows, "grid_width": columns, "area_height": height, "area_width": width},
        **{"scale": scale, "causal": causal, "mean_values": mean_values},
        **{"storage": STORAGE[query.dtype], "threads": torch.get_num_threads()},
    )
    if mask is not None:
        check_mask(mask, (batch, heads, queries, keys), "area_attention")
        kept.append(mask := _by_key(mask, queries))
        strides = (stride if size > 1 else 0 for stride, size in zip(mask.stride(), mask.shape, strict=True))
        call.mask = AreaMask(mask.data_ptr(), *strides)
    if mean is not None:
        # The deviation of a single item is constant; it is added to the size embedding.
        shape = _present(shape, keys, sides, grid).clone(memory_format=torch.contiguous_format)
        shape.view(-1, shape.shape[-1])[0] += LONE * deviation.sum(1)
        given = [x.contiguous() for x in (mean, mean.t(), deviation, deviation.t(), output, shape)]
        kept += given
        call.features = ctypes.pointer(AreaFeatures(*(x.data_ptr() for x in given), epsilon=EPSILON))
    return call, kept


def _present(shape: Tensor, size: int, sides: list[int], grid: list[int]) -> Tensor:
    # A view of the size embeddings (A, D) for the sizes (height, width) that fit into the memory.
    spec = AreaSpec((sides[0], sides[1]), (grid[0], grid[1])) if grid else AreaSpec(sides[0])
    height, width = spec.extent(size)[1]
    return shape.unflatten(0, (-1, sides[-1]))[:height, :width]


def _extent(size: int, sides: list[int], grid: list[int]) -> Extent:
    if not grid:
        return (1, size), (1, min(sides[0], size))
    (rows, columns), (height, width) = area_extent(size, (sides[0], sides[1]), (grid[0], grid[1]))
    # A column is also a sequence.
    return ((columns, rows), (width, height)) if columns == 1 else ((rows, columns), (height, width))


def _by_key(mask: Tensor, queries: int) -> Tensor:
    """Transpose a mask to (B, H, S, T), broadcast axes of size 1, with adjacent queries padded to whole tiles."""
    mask = mask.view((1,) * (4 - mask.ndim) + mask.shape)
    for axis in range(4):  # expanded axes are constant
        if mask.stride(axis) == 0 and mask.shape[axis] > 1:
            mask = mask.narrow(axis, 0, 1)
    mask = mask.transpose(-1, -2)
    if mask.shape[-1] == 1:
        return mask
    padded = mask.new_zeros(*mask.shape[:-1], math.ceil(queries / TILE) * TILE)
    padded[..., :queries] = mask
    return padded
