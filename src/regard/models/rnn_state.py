"""Decoding state of a recurrent decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from regard.attention import Memory
from regard.models.cross_attention import SourceMemory
from regard.models.rnn_cells import Layers
from regard.models.state_rows import keeps_all


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
        coverage: (B, K, S) sum of the attention of all steps so far, for a score that reads it; else None.
    """

    layers: Layers
    memory: DecoderMemory | None
    context: Tensor | None
    feed: Tensor | None
    position: int
    coverage: Tensor | None = None

    @property
    def top(self) -> Tensor:
        """The output of the last layer, (B, K, H)."""
        return self.layers[-1][0]

    def cover(self, weights: Tensor | None) -> DecoderState:
        """Add the attention (B, K, S) of a step to the coverage, if it is kept."""
        return self if self.coverage is None or weights is None else replace(self, coverage=self.coverage + weights)

    def repeat(self, hypotheses: int) -> DecoderState:
        """Repeat the only hypothesis of each sentence."""

        def spread(part: Tensor) -> Tensor:
            return part.expand(-1, hypotheses, -1)

        layers = tuple(tuple(spread(part) for part in layer) for layer in self.layers)
        feed, coverage = (None if part is None else spread(part) for part in (self.feed, self.coverage))
        return replace(self, layers=layers, feed=feed, coverage=coverage)

    def select(self, rows: Tensor, beams: Tensor) -> DecoderState:
        """Keep sentences `rows` (B',) and their hypotheses `beams` (B', K')."""
        same = keeps_all(rows, self.layers[0][0].shape[0])

        def pick(part: Tensor) -> Tensor:
            return part[rows.unsqueeze(1), beams]

        return replace(
            self,
            layers=tuple(tuple(pick(part) for part in layer) for layer in self.layers),
            memory=self.memory if same or self.memory is None else self.memory.rows(rows),
            context=self.context if same or self.context is None else self.context.index_select(0, rows),
            feed=None if self.feed is None else pick(self.feed),
            coverage=None if self.coverage is None else pick(self.coverage),
        )
