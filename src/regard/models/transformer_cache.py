"""Key-value cache of a Transformer's decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention import HeadMemory, IndexedMemory, MultiHeadAttention
from regard.attention.areas import scored_area_length
from regard.errors import ConfigError
from regard.models.state_rows import keeps_all

# Initial capacity in steps; a full cache doubles.
FIRST_STEPS = 8


class KeyValueCache:
    """Keys and values of all tokens of all hypotheses in one layer, in order of arrival.

    Slots never move; `TransformerState.places` lists the slots of each hypothesis.

    Args:
        key: (N, H, D) of the first tokens.
        value: (N, H, D).

    Example:
        >>> first = KeyValueCache(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1))
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

    def extended(self, count: int, key: Tensor, value: Tensor) -> KeyValueCache:
        """Return a cache of the first `count` items and the given ones.

        Extends this one in place if the next slots are free; continuing a state a second time copies it.
        """
        if torch.is_grad_enabled() and key.requires_grad:
            return KeyValueCache(torch.cat([self._key[:count], key]), torch.cat([self._value[:count], value]))
        store = KeyValueCache.with_room(self, count, key)
        store._key[count : store._count], store._value[count : store._count] = key, value
        return store

    @classmethod
    def with_room(cls, store: KeyValueCache | None, count: int, like: Tensor) -> KeyValueCache:
        """Return a cache with the first `count` items of another, and free slots for `like` (N, H, D).

        Reuses the other one if its next slots are free.
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


class AreaCache(NamedTuple):
    """Cache of a layer with materialized areas. Areas end at one token and never change.

    Attributes:
        items: all tokens.
        areas: A areas per token, ending at it, shortest first; areas longer than the token's past are in no table.
    """

    items: KeyValueCache
    areas: KeyValueCache


LayerCache = KeyValueCache | AreaCache
"""Cache of a layer's self-attention: items, or items with materialized areas."""


class CurrentStep(NamedTuple):
    """Cache slots of a step's tokens, and of each hypothesis.

    Attributes:
        before: number of items before the step.
        places: (B K, T) long, the slots of each hypothesis, current token last.
    """

    before: int
    places: Tensor


def append_step(
    past: LayerCache | None, token: Tensor, current: CurrentStep, attention: MultiHeadAttention
) -> tuple[LayerCache, IndexedMemory]:
    """Append the current token of each hypothesis, and materialized areas that end at it, to a layer's cache.

    Args:
        past: the cache; None at the first token.
        token: (B K, 1, E), input of the attention.
        current: slots of the tokens.
        attention: self-attention of the layer, with areas of a sequence.

    Returns:
        The new cache, and the memory of each hypothesis.

    Raises:
        ConfigError: areas of a grid.
    """
    key, value = (part.flatten(0, 1) for part in attention.project_items(token))
    items = _extended(past.items if isinstance(past, AreaCache) else past, current.before, key, value)
    areas = attention.areas
    if areas is None or scored_area_length(areas):
        return items, IndexedMemory(items.key, items.value, current.places)
    if not isinstance(areas.max_area, int):
        raise ConfigError(f"grow: a past is a sequence, to which tokens are added; found areas of the grid {areas.grid}")
    # Reversed, so that areas ending at the current item start there.
    key, value, _ = IndexedMemory(items.key, items.value, current.places[:, -areas.max_area :].flip(1)).gathered()
    made = (F.pad(part, (0, 0, 0, areas.max_area - part.shape[2])) for part in (areas.keys(key, starts=1), areas.values(value, starts=1)))
    key, value = (part.transpose(1, 2).flatten(0, 1) for part in made)
    store = _extended(past.areas if isinstance(past, AreaCache) else None, current.before * areas.max_area, key, value)
    places = area_slots(current.places, areas.max_area)
    return AreaCache(items, store), IndexedMemory(store.key, store.value, places, of_areas=True)


def _extended(store: KeyValueCache | None, count: int, key: Tensor, value: Tensor) -> KeyValueCache:
    return KeyValueCache(key, value) if store is None else store.extended(count, key, value)


def area_slots(places: Tensor, max_area: int) -> Tensor:
    """Convert token slots (B K, T) to area slots (B K, N) in an `AreaCache`.

    Example:
        >>> area_slots(torch.tensor([[0, 3, 4]]), 2).tolist()  # the first token has one area
        [[0, 6, 7, 8, 9]]
    """
    ends, lengths = torch.ones(places.shape[1], max_area, dtype=torch.bool, device=places.device).tril().nonzero(as_tuple=True)
    return places.index_select(1, ends) * max_area + lengths


@dataclass(frozen=True)
class TransformerState:
    """Decoding state of a batch. The source has no beam axis: hypotheses are queries on it.

    Attributes:
        caches: self-attention cache per layer; None initially.
        memories: per layer the projected sources, one per encoder branch.
        places: (B K, T) long, token slots of the K hypotheses of B sentences.
        count: number of items in a cache.
        beams: K.
        position: T, number of target tokens so far.
        input_lengths: (B, 2) of a model of two inputs, otherwise None.
    """

    caches: tuple[LayerCache | None, ...]
    memories: tuple[tuple[HeadMemory | IndexedMemory, ...], ...]
    places: Tensor
    count: int = 0
    beams: int = 1
    position: int = 0
    input_lengths: Tensor | None = None

    def current(self) -> CurrentStep:
        """Return the slots of the next token of each hypothesis."""
        rows = self.places.shape[0]
        places = torch.arange(self.count, self.count + rows, device=self.places.device).unsqueeze(1)
        return CurrentStep(self.count, torch.cat([self.places, places], 1))

    def advanced(self, current: CurrentStep, caches: Sequence[LayerCache]) -> TransformerState:
        """Return the state after a step."""
        count = current.before + current.places.shape[0]
        return replace(self, caches=tuple(caches), places=current.places, count=count, position=self.position + 1)

    def select(self, rows: Tensor, beams: Tensor) -> TransformerState:
        """Keep sentences `rows` (B',) and their hypotheses `beams` (B', K')."""
        index = (rows.unsqueeze(1) * self.beams + beams).flatten()
        same = keeps_all(rows, self.memories[0][0].batch)
        return replace(
            self,
            memories=self.memories if same else tuple(tuple(one.rows(rows) for one in layer) for layer in self.memories),
            places=self.places.index_select(0, index),
            beams=beams.shape[1],
            input_lengths=None if self.input_lengths is None else self.input_lengths.index_select(0, rows),
        )
