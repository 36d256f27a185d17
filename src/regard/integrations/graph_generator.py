"""The encoder and the step graph of a generating model, and the parts that several models share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import nn

from regard.attention import Attention, MultiHeadAttention
from regard.integrations.graph import Axes, Graph, Kind, ModelGraphs, Value, Weights
from regard.integrations.graph_attention import Heads, Items, head_memory, item_memory
from regard.integrations.graph_parts import cell_step, linear
from regard.models.rnn_cells import RecurrentCell, RecurrentStack

PAST = "T"  # the axis of generated tokens


class Source(NamedTuple):
    """What a decoder attends to.

    Attributes:
        states: (B, S, D).
        dim: D.
        mask: (B, S) of real positions, or None for all.
        lengths: (B,), or None for all.
    """

    states: Value
    dim: int
    mask: Value | None = None
    lengths: Value | None = None


class Generator:
    """The two graphs of a generating model, under construction.

    Args:
        model: the model.
        maps: see `Graph`.
    """

    def __init__(self, model: nn.Module, *, maps: bool) -> None:
        weights = Weights(model)
        self.encoder, self.step = Graph(weights, maps=maps), Graph(weights, maps=maps)
        self.built = ModelGraphs(weights, {"encoder": self.encoder, "step": self.step})
        self.tokens = self.step.input("tokens", "int64", "B", "K")
        self.position = self.step.input("position", "int64")

    def source(self, name: str, value: Value, kind: Kind, *axes: int | str) -> Value:
        """Pass an encoder output to every step."""
        self.built.sources.append(f"source.{name}")
        self.encoder.output(f"source.{name}", value, kind, *axes)
        return self.step.input(f"source.{name}", kind, *axes)

    def state(self, name: str, first: Value, *axes: int | str, kind: Kind = "float32") -> Value:
        """Pass an encoder output (B, 1, ...) to the first step, and each step's (B, K, ...) to the next."""
        self.built.states.append(f"state.{name}")
        self.encoder.output(f"state.{name}", first, kind, "B", 1, *(0 if axis == PAST else axis for axis in axes))
        return self.step.input(f"state.{name}", kind, "B", "K", *axes)

    def carry(self, name: str, value: Value, *axes: int | str, kind: Kind = "float32") -> None:
        """Name the state after a step."""
        later: Axes = tuple("T + 1" if axis == PAST else axis for axis in axes)
        self.step.output(f"next.{name}", value, kind, "B", "K", *later)

    def finish(self, output: nn.Linear, readout: Value, weights: Value | None, size: int | str = "S") -> ModelGraphs:
        """Add the outputs of every step."""
        self.step.output("logits", linear(output, readout), "float32", "B", "K", output.out_features)
        if weights is not None:
            self.step.output("weights", weights, "float32", "B", "K", size)
        return self.built


def step_stack(stack: RecurrentStack, embedded: Value, layers: Sequence[Sequence[Value]], extra: Value | None) -> list[tuple[Value, ...]]:
    """Take one step of a stack of recurrent layers; return the new state of each layer."""
    gates = linear(cast(nn.Linear, stack.inputs[0]), embedded)
    if stack.extra is not None and extra is not None:
        gates = gates + linear(stack.extra, extra)
    new = list[tuple[Value, ...]]()
    for index, cell in enumerate(stack.cells):
        projected = gates if index == 0 else linear(cast(nn.Linear, stack.inputs[index]), new[-1][0])
        new.append(cell_step(cast(RecurrentCell, cell), projected, layers[index]))
    return new


def layer_states(generator: Generator, first: Sequence[Sequence[Value]], size: int) -> list[tuple[Value, ...]]:
    """Pass the first states of recurrent layers to the first step."""
    return [
        tuple(generator.state(f"layer.{number}.{part}", value, size) for part, value in enumerate(layer))
        for number, layer in enumerate(first)
    ]


def carry_layers(generator: Generator, layers: Sequence[Sequence[Value]], size: int) -> None:
    """Pass the states of recurrent layers to the next step."""
    for number, layer in enumerate(layers):
        for part, value in enumerate(layer):
            generator.carry(f"layer.{number}.{part}", value, size)


def source_items(generator: Generator, attention: Attention, states: Source, *, name: str = "") -> Items:
    """Pass the memory of an attention with one head to every step."""
    # One name of an axis is one size: engines share buffers by it.
    count = f"{name}N"
    key, value = item_memory(attention, states.states, states.dim)
    keys = generator.source(f"{name}key", key, "float32", "B", count, f"{name}A")
    values = generator.source(f"{name}value", value, "float32", "B", count, states.dim)
    size = generator.source(f"{name}size", states.states.size(1), "int64", 1)
    seen = None if states.mask is None else generator.source(f"{name}mask", states.mask, "bool", "B", f"{name}S")
    counts = None if states.lengths is None else generator.source(f"{name}lengths", states.lengths, "int64", "B")
    return Items(keys, values, seen, counts, size)


def source_heads(generator: Generator, name: str, attention: MultiHeadAttention, source: Source) -> Heads:
    """Pass the memory of an attention with several heads to every step."""
    key, value, mask = head_memory(attention, source.states, source.mask)
    count, heads, dim = f"{name}.N", attention.num_heads, attention.head_dim
    # Without padding the mask of areas is the same for every sentence.
    fixed = None if mask is None else generator.source(f"{name}.mask", mask, "bool", "B", 1, 1, count)
    keys = generator.source(f"{name}.key", key, "float32", "B", heads, count, dim)
    return Heads(keys, generator.source(f"{name}.value", value, "float32", "B", heads, count, dim), fixed)
