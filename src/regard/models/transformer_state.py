"""What a Transformer's decoder remembers between steps: keys and values, each projected once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import HeadMemory, ItemMemory, MultiHeadAttention

# Steps that a new store has room for; a full one doubles.
FIRST_STEPS = 8


class Store:
    """The keys and values of all tokens that one layer has read, of all hypotheses, in the order in which they came.

    An item stays where it was written. Which of them are the past of a hypothesis is said by `TransformerState.places`.

    Args:
        key: (N, H, D) of the first tokens.
        value: (N, H, D).

    Example:
        >>> first = Store(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1))
        >>> second = first.extended(2, torch.ones(3, 1, 1), torch.ones(3, 1, 1))
        >>> second.key.shape, second.key[2:].unique().tolist()
        (torch.Size([5, 1, 1]), [1.0])
    """

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self._key, self._value, self._count = key, value, key.shape[0]

    @property
    def key(self) -> Tensor:
        """(N, H, D)."""
        return self._key[: self._count]

    @property
    def value(self) -> Tensor:
        """(N, H, D)."""
        return self._value[: self._count]

    def extended(self, count: int, key: Tensor, value: Tensor) -> Store:
        """Return a store of the first `count` items and those given.

        It is this one where nobody has yet written behind these; a state that is continued twice gets a copy the second time.
        """
        if torch.is_grad_enabled() and key.requires_grad:
            return Store(torch.cat([self._key[:count], key]), torch.cat([self._value[:count], value]))
        store = Store.with_room(self, count, key)
        store._key[count : store._count], store._value[count : store._count] = key, value
        return store

    @classmethod
    def with_room(cls, store: Store | None, count: int, like: Tensor) -> Store:
        """Return a store of the first `count` items of another and as many behind them, not yet written, as `like` (N, H, D) has.

        It is the other one where nobody has yet written behind these and there is room.
        """
        end = count + like.shape[0]
        found = store
        if found is None or count != found._count or end > found._key.shape[0]:
            room = max(2 * end, FIRST_STEPS * like.shape[0])
            found = cls(*(like.new_empty(room, *like.shape[1:]) for _ in range(2)))
            if store is not None:
                found._key[:count], found._value[:count] = store._key[:count], store._value[:count]
        found._count = end
        return found


class Cache(NamedTuple):
    """What self-attention with areas has seen so far, for B * K hypotheses one below the other.

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
    """Add the newest token, and all areas that end at it: none of them existed before, and all earlier ones stay as they are.

    Args:
        cache: what was seen before; None at the first token.
        latest: the newest token's key and value, one position.
        attention: which attends to the cache, its areas along a sequence.
    """
    areas = attention.areas
    assert areas is not None
    if areas.fused or not isinstance(areas.max_area, int):
        return Cache(latest if cache is None else cache.seen.append(latest), None)
    items = latest if cache is None or cache.recent is None else cache.recent.append(latest)
    size, device = items.key.shape[2], latest.key.device
    # Areas stand by length, then by start: the last of each length, of which there are size, size - 1, ... 1, ends at the newest item.
    newest = torch.tensor([count - 1 for count in accumulate(range(size, 0, -1))], device=device)
    made = attention.areas_of(items).positions(newest)
    recent = items.positions(torch.arange(max(0, size + 1 - areas.max_area), size, device=device))
    return Cache(made if cache is None else cache.seen.append(made), recent)


Past = Store | Cache
"""What one layer's self-attention remembers: without areas, and with them."""


class Newest(NamedTuple):
    """Where the tokens of a step stand in the stores, and what each hypothesis may attend to there.

    Attributes:
        count: how many items were there before.
        places: (B K, T) long, the whole past of each hypothesis with its newest token last.
    """

    count: int
    places: Tensor


@dataclass(frozen=True)
class TransformerState:
    """Where the hypotheses of a batch stand. The source side has no beam axis: hypotheses are queries on it.

    Attributes:
        pasts: for each layer what its self-attention has seen; None at the start.
        memories: for each layer the sources as it attends to them, one for each encoder branch.
        places: (B K, T) long, where the tokens of each hypothesis stand in the stores, K hypotheses of B sentences one below the other.
        count: how many items a store holds.
        beams: K.
        position: T, how many target tokens have been read.
    """

    pasts: tuple[Past | None, ...]
    memories: tuple[tuple[HeadMemory | ItemMemory, ...], ...]
    places: Tensor
    count: int = 0
    beams: int = 1
    position: int = 0

    def newest(self) -> Newest:
        """Return where the next token of each hypothesis will stand."""
        rows = self.places.shape[0]
        places = torch.arange(self.count, self.count + rows, device=self.places.device).unsqueeze(1)
        return Newest(self.count, torch.cat([self.places, places], 1))

    def advanced(self, newest: Newest, pasts: Sequence[Past]) -> TransformerState:
        """Return the state after a step."""
        count = newest.count + newest.places.shape[0]
        return replace(self, pasts=tuple(pasts), places=newest.places, count=count, position=self.position + 1)

    def select(self, rows: Tensor, beams: Tensor) -> TransformerState:
        """Keep sentences `rows` (B',) and, of each, continue hypotheses `beams` (B', K')."""
        index = (rows.unsqueeze(1) * self.beams + beams).flatten()
        same = rows.shape[0] == self.memories[0][0].batch
        return replace(
            self,
            pasts=tuple(past.rows(index) if isinstance(past, Cache) else past for past in self.pasts),
            memories=self.memories if same else tuple(tuple(one.rows(rows) for one in layer) for layer in self.memories),
            places=self.places.index_select(0, index),
            beams=beams.shape[1],
        )
