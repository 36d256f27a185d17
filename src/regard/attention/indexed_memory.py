"""A key-value cache with index tables, whose slots never move."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_key_mask, length_mask


class IndexedMemory(NamedTuple):
    """Keys and values in one cache, and an index table per group of queries.

    The counterpart of `HeadMemory` for decoding: reordering or dropping hypotheses moves table rows, never states.

    Attributes:
        key: (N, H, D).
        value: (N, H, D).
        places: (G, L) long, 0 to N - 1.
        lengths: (G,) long, valid slots per group; None: all L.
        of_areas: the cache holds materialized areas.

    Example:
        >>> memory = IndexedMemory(torch.ones(5, 1, 2), torch.ones(5, 1, 2), torch.tensor([[0, 1], [3, 4]]))
        >>> memory.rows(torch.tensor([1, 1, 0])).places.tolist()
        [[3, 4], [3, 4], [0, 1]]
    """

    key: Tensor
    value: Tensor
    places: Tensor
    lengths: Tensor | None = None
    of_areas: bool = False

    @property
    def batch(self) -> int:
        """G, the number of query groups."""
        return self.places.shape[0]

    def rows(self, index: Tensor) -> IndexedMemory:
        """Keep only the groups `index` (G',), in that order."""
        lengths = None if self.lengths is None else self.lengths.index_select(0, index)
        return self._replace(places=self.places.index_select(0, index), lengths=lengths)

    def gathered(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Copy each group's keys and values (G, H, L, D), and the validity mask (G, L), None for all."""
        key, value = (part[self.places].transpose(1, 2) for part in (self.key, self.value))
        return key, value, None if self.lengths is None else length_mask(self.lengths, self.places.shape[1])


@takes_tensors
def index_sources(key: Tensor, value: Tensor, key_mask: Tensor | None) -> IndexedMemory:
    """Make a cache of whole sequences, one query group per sequence.

    Args:
        key: (B, S, H, D).
        value: (B, S, H, D).
        key_mask: (B, S) bool, True = may attend; None: everything.

    Raises:
        ShapeError: the key_mask is not boolean or not (B, S).

    Example:
        >>> memory = index_sources(torch.ones(2, 3, 1, 1), torch.ones(2, 3, 1, 1), torch.tensor([[True, True, True], [False, True, False]]))
        >>> memory.places.tolist(), memory.lengths.tolist()
        ([[0, 1, 2], [4, 3, 5]], [3, 1])
    """
    batch, size = key.shape[:2]
    places = torch.arange(batch * size, device=key.device).view(batch, size)
    lengths = None
    if key_mask is not None:
        check_key_mask(key_mask, (batch, size), "index_sources")
        # Allowed positions come first, in order; no change for padding at the end.
        places = places.gather(1, (~key_mask).to(torch.uint8).sort(dim=1, stable=True).indices)
        lengths = key_mask.sum(1)
    return IndexedMemory(key.flatten(0, 1), value.flatten(0, 1), places, lengths)


def has_gap(key_mask: Tensor) -> bool:
    """Return whether a mask (B, S) has a row whose allowed positions are not all neighbours: `index_sources` makes neighbours of them.

    Example:
        >>> has_gap(torch.tensor([[True, False, True]])), has_gap(torch.tensor([[False, True, True], [False, False, False]]))
        (True, False)
    """
    begins = torch.cat([key_mask[:, :1], key_mask[:, 1:] & ~key_mask[:, :-1]], 1)
    return bool((begins.sum(1) > 1).any())
