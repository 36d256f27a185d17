"""What a Transformer's decoder remembers between steps: keys and values, each projected once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import HeadMemory, MultiHeadAttention


class Cache(NamedTuple):
    """What self-attention has seen so far, for B * K hypotheses one below the other.

    Attributes:
        seen: the keys and values of all tokens; where areas have keys to be made, those of all areas, in the order in which they ended.
        recent: with such areas the last A - 1 tokens, in which the areas begin that end at the next one; else None.
    """

    seen: HeadMemory
    recent: HeadMemory | None

    def rows(self, index: Tensor) -> Cache:
        """Keep only the hypotheses `index`, in that order."""
        return Cache(self.seen.rows(index), None if self.recent is None else self.recent.rows(index))


def extend(cache: Cache | None, latest: HeadMemory, attention: MultiHeadAttention) -> Cache:
    """Add the newest token, and with areas all that end at it: none of them existed before, and all earlier ones stay as they are.

    Args:
        cache: what was seen before; None at the first token.
        latest: the newest token's key and value, one position.
        attention: which attends to the cache, its areas along a sequence.
    """
    areas = attention.areas
    if areas is None or areas.fused or not isinstance(areas.max_area, int):
        return Cache(latest if cache is None else cache.seen.append(latest), None)
    items = latest if cache is None or cache.recent is None else cache.recent.append(latest)
    size, device = items.key.shape[2], latest.key.device
    # Areas stand by length, then by start: the last of each length, of which there are size, size - 1, ... 1, ends at the newest item.
    newest = torch.tensor([count - 1 for count in accumulate(range(size, 0, -1))], device=device)
    made = attention.areas_of(items).positions(newest)
    recent = items.positions(torch.arange(max(0, size + 1 - areas.max_area), size, device=device))
    return Cache(made if cache is None else cache.seen.append(made), recent)


@dataclass(frozen=True)
class TransformerState:
    """Where the hypotheses of a batch stand. The source side has no beam axis: hypotheses are queries on it.

    Attributes:
        caches: for each layer what its self-attention has seen, K hypotheses of B sentences one below the other; None at the start.
        memories: for each layer the sources as it attends to them, one for each encoder branch.
        beams: K.
        position: how many target tokens have been read.
    """

    caches: tuple[Cache | None, ...]
    memories: tuple[tuple[HeadMemory, ...], ...]
    beams: int = 1
    position: int = 0

    def select(self, rows: Tensor, beams: Tensor) -> TransformerState:
        """Keep sentences `rows` (B',) and, of each, continue hypotheses `beams` (B', K')."""
        index = (rows.unsqueeze(1) * self.beams + beams).flatten()
        same = rows.shape[0] == self.memories[0][0].key.shape[0]
        return replace(
            self,
            caches=tuple(None if cache is None else cache.rows(index) for cache in self.caches),
            memories=self.memories if same else tuple(tuple(one.rows(rows) for one in layer) for layer in self.memories),
            beams=beams.shape[1],
        )
