"""Two inputs of a model as graph values: read apart, and joined row by row without padding in between."""

from __future__ import annotations

from typing import NamedTuple

from regard.integrations.graph import Graph, Value
from regard.integrations.graph_generator import Generator, Source
from regard.integrations.graph_parts import length_mask


class Rows(NamedTuple):
    """How rows of two inputs are laid out one after the other, see `regard.models.input_rows.join_rows`.

    Attributes:
        places: (B, S) int64, the position of each element in the two padded inputs side by side.
        mask: (B, S), real positions.
        lengths: (B,).
        without_end: the second input has no state for its EOS, whose weight is 0.
    """

    places: Value
    mask: Value
    lengths: Value
    without_end: bool = False

    def states(self, first: Value, second: Value) -> Value:
        """Join states (B, T1, D) and (B, T2, D): (B, S, D), padding arbitrary."""
        whole = first.graph.concat([first, second], 1)
        return _taken(whole, self.places.unsqueeze(2), 1)

    def weights(self, first: Value, second: Value) -> Value:
        """Join weights (B, K, T1) and (B, K, T2): (B, K, S), zero for padding."""
        parts = [first, second, *([first.graph.zeros(first.size(0), first.size(1), 1)] if self.without_end else [])]
        whole = first.graph.concat(parts, 2)
        return _taken(whole, self.places.unsqueeze(1), 2).where(self.mask.unsqueeze(1), 0.0)

    def source(self, states: Value, dim: int) -> Source:
        """Return joined states as a source of a decoder."""
        return Source(states, dim, self.mask, self.lengths)

    def for_steps(self, generator: Generator) -> Rows:
        """Pass the layout to every step."""
        places = generator.source("row.places", self.places, "int64", "B", "S")
        mask = generator.source("row.mask", self.mask, "bool", "B", "S")
        return self._replace(places=places, mask=mask)


def _taken(whole: Value, places: Value, axis: int) -> Value:
    graph = whole.graph
    shape = [whole.size(number) for number in range(3)]
    shape[axis] = places.size(axis)
    return graph.add("GatherElements", whole, graph.add("Expand", places, graph.concat(shape, 0)), axis=axis)


def join_rows(first_lengths: Value, second_lengths: Value, first_size: Value, second_size: Value, *, without_end: bool = False) -> Rows:
    """Lay out rows of two inputs of lengths (B,), which are padded to sizes (1,); `without_end` as in `Rows`."""
    second_size = second_size + second_lengths.graph.integer(1) if without_end else second_size
    graph: Graph = first_lengths.graph
    lengths = first_lengths + second_lengths
    places = graph.count(graph.add("ReduceMax", lengths, axes=[0], keepdims=1))  # (S,)
    own, one = first_lengths.unsqueeze(1), graph.integer(1)
    beyond = one - graph.add("Less", places.unsqueeze(0), own).cast("int64")  # (B, S): 1 in the second input
    # Padding may lie anywhere, but within the inputs.
    found = graph.add("Min", places + beyond * (first_size - own), first_size + second_size - one)
    return Rows(found, length_mask(lengths, places.size(0)), lengths, without_end)
