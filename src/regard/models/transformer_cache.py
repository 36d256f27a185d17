"""What a Transformer's decoder remembers between steps: keys and values, each projected once."""

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

# Steps that a new store has room for; a full one doubles.
FIRST_STEPS = 8


class KeyValueCache:
    """The keys and values of all tokens that one layer has read, of all hypotheses, in the order in which they came.

    An item stays where it was written. Which of them are the past of a hypothesis is said by `TransformerState.places`.

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
        """Return a store of the first `count` items and those given.

        It is this one where nobody has yet written behind these; a state that is continued twice gets a copy the second time.
        """
        if torch.is_grad_enabled() and key.requires_grad:
            return KeyValueCache(torch.cat([self._key[:count], key]), torch.cat([self._value[:count], value]))
        store = KeyValueCache.with_room(self, count, key)
        store._key[count : store._count], store._value[count : store._count] = key, value
        return store

    @classmethod
    def with_room(cls, store: KeyValueCache | None, count: int, like: Tensor) -> KeyValueCache:
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


class AreaCache(NamedTuple):
    """What a layer remembers whose areas are to be made. One stays as it was made: it ends at one token, and others are never added to it.

    Attributes:
        items: all tokens.
        areas: for each token A areas, those that end at it, the shortest first; one longer than the past of its token is in no
            table.
    """

    items: KeyValueCache
    areas: KeyValueCache


LayerCache = KeyValueCache | AreaCache
"""What one layer's self-attention remembers: items, and items with the areas that were made of them."""


class CurrentStep(NamedTuple):
    """Where the tokens of a step stand in the stores, and what each hypothesis may attend to there.

    Attributes:
        before: how many items were there before.
        places: (B K, T) long, the whole past of each hypothesis with its newest token last.
    """

    before: int
    places: Tensor


def append_step(
    past: LayerCache | None, token: Tensor, current: CurrentStep, attention: MultiHeadAttention
) -> tuple[LayerCache, IndexedMemory]:
    """Add the newest token of each hypothesis, and of areas that are to be made all that end at it, to what a layer remembers.

    Args:
        past: what was read before; None at the first token.
        token: (B K, 1, E), what the attention is given.
        current: where the tokens will stand.
        attention: of the layer to its past, its areas along a sequence.

    Returns:
        What the layer remembers now, and what each hypothesis may attend to there.

    Raises:
        ConfigError: the areas are those of a grid, to which no token can be added.
    """
    latest = attention.items(token)
    items = _extended(past.items if isinstance(past, AreaCache) else past, current.before, latest.key, latest.value)
    areas = attention.areas
    if areas is None or scored_area_length(areas):
        return items, IndexedMemory(items.key, items.value, current.places)
    if not isinstance(areas.max_area, int):
        raise ConfigError(f"grow: a past is a sequence, to which tokens are added; found areas of the grid {areas.grid}")
    # Read backwards, for what ends at the newest item starts there then.
    key, value, _ = IndexedMemory(items.key, items.value, current.places[:, -areas.max_area :].flip(1)).gathered()
    made = (F.pad(part, (0, 0, 0, areas.max_area - part.shape[2])) for part in (areas.keys(key, starts=1), areas.values(value, starts=1)))
    key, value = (part.transpose(1, 2).flatten(0, 1) for part in made)
    store = _extended(past.areas if isinstance(past, AreaCache) else None, current.before * areas.max_area, key, value)
    places = area_slots(current.places, areas.max_area)
    return AreaCache(items, store), IndexedMemory(store.key, store.value, places, of_areas=True)


def _extended(store: KeyValueCache | None, count: int, key: Tensor, value: Tensor) -> KeyValueCache:
    return KeyValueCache(key, value) if store is None else store.extended(count, key, value)


def area_slots(places: Tensor, max_area: int) -> Tensor:
    """Tell where the areas of each hypothesis stand in an `AreaCache`, (B K, N), from where its tokens stand, (B K, T).

    Example:
        >>> area_slots(torch.tensor([[0, 3, 4]]), 2).tolist()  # the first token has one area
        [[0, 6, 7, 8, 9]]
    """
    ends, lengths = torch.ones(places.shape[1], max_area, dtype=torch.bool, device=places.device).tril().nonzero(as_tuple=True)
    return places.index_select(1, ends) * max_area + lengths


@dataclass(frozen=True)
class TransformerState:
    """Where the hypotheses of a batch stand. The source side has no beam axis: hypotheses are queries on it.

    Attributes:
        caches: for each layer what its self-attention has seen; None at the start.
        memories: for each layer the sources as it attends to them, one for each encoder branch.
        places: (B K, T) long, where the tokens of each hypothesis stand in the stores, K hypotheses of B sentences one below the other.
        count: how many items a store holds.
        beams: K.
        position: T, how many target tokens have been read.
        input_lengths: (B, 2) of the two sources of a model that reads two inputs; None for all others.
    """

    caches: tuple[LayerCache | None, ...]
    memories: tuple[tuple[HeadMemory | IndexedMemory, ...], ...]
    places: Tensor
    count: int = 0
    beams: int = 1
    position: int = 0
    input_lengths: Tensor | None = None

    def current(self) -> CurrentStep:
        """Return where the next token of each hypothesis will stand."""
        rows = self.places.shape[0]
        places = torch.arange(self.count, self.count + rows, device=self.places.device).unsqueeze(1)
        return CurrentStep(self.count, torch.cat([self.places, places], 1))

    def advanced(self, current: CurrentStep, caches: Sequence[LayerCache]) -> TransformerState:
        """Return the state after a step."""
        count = current.before + current.places.shape[0]
        return replace(self, caches=tuple(caches), places=current.places, count=count, position=self.position + 1)

    def select(self, rows: Tensor, beams: Tensor) -> TransformerState:
        """Keep sentences `rows` (B',) and, of each, continue hypotheses `beams` (B', K')."""
        index = (rows.unsqueeze(1) * self.beams + beams).flatten()
        same = rows.shape[0] == self.memories[0][0].batch
        return replace(
            self,
            memories=self.memories if same else tuple(tuple(one.rows(rows) for one in layer) for layer in self.memories),
            places=self.places.index_select(0, index),
            beams=beams.shape[1],
            input_lengths=None if self.input_lengths is None else self.input_lengths.index_select(0, rows),
        )
