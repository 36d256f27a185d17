"""Attention to scattered items by the native library."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native


class Table(NamedTuple):
    """Which items the queries of each group attend to: places (G, L) long, of which the first `lengths` (G,) count, None for all."""

    places: Tensor
    lengths: Tensor | None


class _Call(ctypes.Structure):
    # Mirrors IndexedCall of csrc/indexed.h.
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values", "places", "lengths", "context", "weights")),
        ("scale", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("groups", "share", "heads", "size", "length", "areas", "key_row", "value_row", "threads")),
    ]


def supports(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Tell whether the native library can do it: float32 on a CPU, no gradient asked, an item's numbers side by side, the library there.

    Args:
        query: (G, K, H, D).
        keys: (N, H, D).
        values: (N, H, D).

    Example:
        >>> supports(torch.ones(1, 1, 1, 2).double(), torch.ones(3, 1, 2), torch.ones(3, 1, 2))
        False
    """
    parts = (query, keys, values)
    if any(part.dtype != torch.float32 or part.device.type != "cpu" for part in parts) or torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
        return False
    return all(part.stride()[1:] == (part.shape[2], 1) for part in (keys, values)) and native.library() is not None


def attend(
    query: Tensor, keys: Tensor, values: Tensor, table: Table, *, scale: float, max_area: int, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Return context (G, K, H, D) and, if asked for, weights (G, K, H, L); see `regard.ops.indexed_attention`.

    Only for what `supports` accepts; the places must be among the items.

    Example:
        >>> query, items, places = torch.ones(1, 1, 1, 2), torch.ones(3, 1, 2), torch.tensor([[2, 0]])
        >>> ready = supports(query, items, items)
        >>> attend(query, items, items, Table(places, None), scale=1.0, max_area=1, need_weights=False)[0].shape if ready else query.shape
        torch.Size([1, 1, 1, 2])
    """
    library = native.library()
    assert library is not None
    query, places = query.contiguous(), table.places.contiguous()
    lengths = None if table.lengths is None else table.lengths.contiguous()
    groups, share, heads, size = query.shape
    length = places.shape[1]
    context = torch.empty_like(query)
    weights = query.new_empty(groups, share, heads, length) if need_weights else None
    parts = (query, keys, values, places, lengths, context, weights)
    sizes = (groups, share, heads, size, length, max_area, keys.stride(0), values.stride(0), torch.get_num_threads())
    call = _Call(*(None if part is None else part.data_ptr() for part in parts), scale, *sizes)
    if library.regard_indexed(ctypes.byref(call)):
        raise MemoryError("regard_indexed: no memory for the threads")
    return context, weights
