"""Native attention to indexed items."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.structures import IndexedCall
from regard.ops.tensor_checks import Argument, check_range

_INDEXED = Kernel(
    "indexed",
    IndexedCall,
    Argument("query", "groups share heads size", "float32"),
    Argument("keys", "items heads size", "float32"),
    Argument("values", "items heads size", "float32"),
    Argument("places", "groups length", "int64", below="items"),
    Argument("lengths", "groups", "int64", optional=True, most="length"),
    results=[Argument("context", "groups share heads size", "float32"), Argument("weights", "groups share heads length", "float32")],
    loose=["keys", "values"],
    operation="cached_attention",
)


class SlotTable(NamedTuple):
    """Slots attended to by the queries of each group: (G, L) long, of which the first `lengths` (G,) are valid; None: all."""

    places: Tensor
    lengths: Tensor | None


def check_slots(table: SlotTable, items: int) -> None:
    """Refuse slots and lengths that are out of range.

    Raises:
        RangeError: the message holds the first invalid one.

    Example:
        >>> check_slots(SlotTable(torch.tensor([[0, 2]]), torch.tensor([1])), 3)
    """
    check_range("cached_attention", "places", table.places, 0, items - 1)
    if table.lengths is not None:
        check_range("cached_attention", "lengths", table.lengths, 0, table.places.shape[1])


def takes_items(items: Tensor) -> bool:
    """Return whether the native library attends to slots of such items, or of linear maps of them: part of `supports`.

    Example:
        >>> takes_items(torch.ones(3, 1, 2).double())
        False
    """
    return items.dtype == torch.float32 and not (torch.is_grad_enabled() and items.requires_grad) and native.takes(items)


def supports(query: Tensor, keys: Tensor, values: Tensor, table: SlotTable) -> bool:
    """Return whether the native library supports this call: plain float32 CPU tensors without gradient, with contiguous items.

    Args:
        query: (G, K, H, D).
        keys: (N, H, D).
        values: (N, H, D).
        table: the attended slots.

    Example:
        >>> items, table = torch.ones(3, 1, 2), SlotTable(torch.zeros(1, 1, dtype=torch.long), None)
        >>> supports(torch.ones(1, 1, 1, 2).double(), items, items, table)
        False
    """
    if not all(takes_items(part) for part in (query, keys, values)) or not native.takes(table.places, table.lengths):
        return False
    return all(x.is_contiguous() or x[:1].is_contiguous() for x in (keys, values))


def attend(
    query: Tensor, keys: Tensor, values: Tensor, table: SlotTable, *, scale: float, max_area: int, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Return context (G, K, H, D) and, if requested, weights (G, K, H, L); see `regard.ops.cached_attention`.

    Only for calls that `supports` accepts.

    Raises:
        RangeError: see `check_slots`.

    Example:
        >>> query, items, table = torch.ones(1, 1, 1, 2), torch.ones(3, 1, 2), SlotTable(torch.tensor([[2, 0]]), None)
        >>> ready = supports(query, items, items, table)
        >>> attend(query, items, items, table, scale=1.0, max_area=1, need_weights=False)[0].shape if ready else query.shape
        torch.Size([1, 1, 1, 2])
    """
    places, lengths = table.places.contiguous(), None if table.lengths is None else table.lengths.contiguous()
    given = {"scale": scale, "areas": min(max_area, max(1, places.shape[1])), "key_row": keys.stride(0), "value_row": values.stride(0)}
    context, weights = _INDEXED(query.contiguous(), keys, values, places, lengths, without=() if need_weights else ("weights",), **given)
    return context, weights
