"""Attention flow: maximum flow from each output to each input, with attention as capacities."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from regard.explanations.batches import ModelBatch
from regard.explanations.method_arguments import takes_batch
from regard.explanations.rollout import LayerGraph, attention_graph

# Smaller capacities count as 0: below this, sums of float32 weights are noise.
NARROWEST = 1e-6


@takes_batch
def attention_flow(batch: ModelBatch) -> Tensor:
    """Return the maximum flow from each output to each input through all layers.

    Abnar and Zuidema 2020 (arXiv:2005.00928), section 3: a position of a layer is a node, and the capacity of an edge is its share in
    `attention_rollout`: half the attention, and half for the residual connection. Steps of a decoder are those of rollout.

    The slowest method by far: one maximum flow per output and input.

    Args:
        batch: B examples of a Transformer.

    Returns:
        (B, T, S), 0 to 1; 0 where `batch.inputs` is False. Rows do not sum to 1.

    Raises:
        ConfigError: the model is not a Transformer.

    Example:
        >>> from regard.config import TransformerConfig
        >>> from regard.explanations import TranslationBatch
        >>> from regard.models import build
        >>> model = build(TransformerConfig(encoder_layers=1, decoder_layers=1), source_size=11, target_size=11).eval()
        >>> pair = torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[2, 6]]), torch.tensor([[6, 3]]), torch.tensor([2])
        >>> attention_flow(TranslationBatch(model, *pair)).shape
        torch.Size([1, 2, 3])
    """
    return maximum_flows(attention_graph(batch, "flow"), batch.inputs, batch.outputs)


def maximum_flows(graph: LayerGraph, inputs: Tensor, outputs: Tensor) -> Tensor:
    """Return the maximum flow (B, T, S) from each output (B, T) bool to each input (B, S) bool of a graph.

    Example:
        >>> half = torch.full((1, 2, 2), 0.5)
        >>> there = torch.ones(1, 2, dtype=torch.bool)
        >>> maximum_flows(LayerGraph({"source": torch.eye(2)[None]}, [{"source": {"source": half}}], "source"), there, there)[0].tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    found = torch.zeros(*outputs.shape, inputs.shape[1])
    for number, (own, rows) in enumerate(zip(inputs, outputs, strict=True)):
        network = _network(graph, number)
        for output in rows.nonzero().flatten().tolist():
            for place in own.nonzero().flatten().tolist():
                found[number, output, place] = network.maximum(network.ends[output], network.inputs[place])
    return found.to(inputs.device)


class FlowNetwork:
    """A graph with capacities, and its maximum flow by Dinic's algorithm (1970).

    Attributes:
        ends: the nodes of the outputs.
        inputs: the nodes of the inputs.

    Example:
        >>> network = FlowNetwork(4)
        >>> for edge in ((0, 1, 0.5), (0, 2, 0.25), (1, 3, 0.25), (2, 3, 1.0)):
        ...     network.add(*edge)
        >>> network.maximum(0, 3), network.maximum(0, 3)
        (0.5, 0.5)
    """

    def __init__(self, nodes: int) -> None:
        self.ends: list[int] = []
        self.inputs: list[int] = []
        self._edges: list[list[int]] = [[] for _ in range(nodes)]  # edge indices of each node
        self._to: list[int] = []
        self._room: list[float] = []

    def add(self, start: int, end: int, capacity: float) -> None:
        """Add an edge; edge n ^ 1 is the reverse of edge n."""
        self._edges[start].append(len(self._to))
        self._edges[end].append(len(self._to) + 1)
        self._to += [end, start]
        self._room += [capacity, 0.0]

    def maximum(self, start: int, end: int) -> float:
        """Return the maximum flow between two nodes."""
        room, total = self._room.copy(), 0.0
        while (levels := self._levels(room, start, end)) is not None:
            at = [0] * len(self._edges)
            while pushed := self._push(room, levels, at, start, end):
                total += pushed
        return total

    def _levels(self, room: list[float], start: int, end: int) -> list[int] | None:
        # Distance of each node from the source over edges with residual capacity; None: the sink is unreachable.
        levels = [-1] * len(self._edges)
        levels[start] = 0
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            for edge in self._edges[node]:
                if room[edge] > NARROWEST and levels[self._to[edge]] < 0:
                    levels[self._to[edge]] = levels[node] + 1
                    waiting.append(self._to[edge])
        return levels if levels[end] >= 0 else None

    def _push(self, room: list[float], levels: list[int], at: list[int], start: int, end: int) -> float:
        # One augmenting path and its capacity; `at` skips edges known to lead nowhere.
        path: list[int] = []
        node = start
        while node != end:
            edges = self._edges[node]
            while at[node] < len(edges):
                edge = edges[at[node]]
                if room[edge] > NARROWEST and levels[self._to[edge]] == levels[node] + 1:
                    break
                at[node] += 1
            else:
                if not path:
                    return 0.0
                node = self._to[path.pop() ^ 1]
                at[node] += 1
                continue
            path.append(edges[at[node]])
            node = self._to[path[-1]]
        narrowest = min(room[edge] for edge in path)
        for edge in path:
            room[edge] -= narrowest
            room[edge ^ 1] += narrowest
        return narrowest


def _network(graph: LayerGraph, number: int) -> FlowNetwork:
    # Nodes: the inputs, then the positions of each stream, again after each step that changes it.
    columns = next(iter(graph.start.values())).shape[2]
    edges: list[tuple[int, int, float]] = []
    count = columns
    first: dict[str, int] = {}

    def connect(upper: int, lower: int, shares: Tensor) -> None:
        for row, column in (shares > NARROWEST).nonzero().tolist():
            edges.append((upper + row, lower + column, shares[row, column].item()))

    for name, start in graph.start.items():
        first[name] = count
        connect(count, 0, start[number])
        count += start.shape[1]
    for step in graph.steps:
        new = {}
        for into, parts in step.items():
            new[into] = count
            for name, shares in parts.items():
                connect(count, first[name], shares[number])
            count += next(iter(parts.values())).shape[1]
        first |= new
    network = FlowNetwork(count)
    for edge in edges:
        network.add(*edge)
    rows = next(iter(graph.steps[-1][graph.end].values())).shape[1]
    network.ends, network.inputs = list(range(first[graph.end], first[graph.end] + rows)), list(range(columns))
    return network
