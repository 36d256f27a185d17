"""Decoding state of a recurrent decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from regard.attention import Memory
from regard.models.cross_attention import SourceMemory
from regard.models.rnn_cells import Layers


class PairMemory(NamedTuple):
    """Memories of two sources for the decoder's two attentions, and the lengths (B, 2) of both."""

    first: Memory | SourceMemory
    second: Memory | SourceMemory
    lengths: Tensor

    def rows(self, rows: Tensor) -> PairMemory:
        """Keep these sentences only."""
        return PairMemory(self.first.rows(rows), self.second.rows(rows), self.lengths.index_select(0, rows))


DecoderMemory = Memory | SourceMemory | PairMemory


@dataclass(frozen=True)
class DecoderState:
    """Decoding state of a batch. The source has no beam axis: hypotheses are queries on it.

    Attributes:
        layers: parts per layer (hidden, and cell for an LSTM), each (B, K, H).
        memory: the sources, or None without attention.
        context: (B, K, C) or (B, 1, C): the fixed context without attention, else None.
        feed: (B, K, R) the last attentional state when it is fed back, else None.
        position: number of target tokens so far.
    """

    layers: Layers
    memory: DecoderMemory | None
    context: Tensor | None
    feed: Tensor | None
    position: int

    @property
    def top(self) -> Tensor:
        """The output of the last layer, (B, K, H)."""
        return self.layers[-1][0]

    def repeat(self, hypotheses: int) -> DecoderState:
        """Repeat the only hypothesis of each sentence."""

        def spread(part: Tensor) -> Tensor:
            return part.expand(-1, hypotheses, -1)

        layers = tuple(tuple(spread(part) for part in layer) for layer in self.layers)
        return replace(self, layers=layers, feed=None if self.feed is None else spread(self.feed))

    def select(self, rows: Tensor, beams: Tensor) -> DecoderState:
        """Keep sentences `rows` (B',) and their hypotheses `beams` (B', K')."""
        same = rows.shape[0] == self.layers[0][0].shape[0]

        def pick(part: Tensor) -> Tensor:
            return part[rows.unsqueeze(1), beams]

        return replace(
            self,
            layers=tuple(tuple(pick(part) for part in layer) for layer in self.layers),
            memory=self.memory if same or self.memory is None else self.memory.rows(rows),
            context=self.context if same or self.context is None else self.context.index_select(0, rows),
            feed=None if self.feed is None else pick(self.feed),
        )
