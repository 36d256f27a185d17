"""A computation as a list of ONNX operators, independent of the onnx package: the basis of both exports, ONNX files and the page.

Uses only operators of opset 17 that the page's engine (`engine.js`) implements, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

OPSET = 17
# Masked scores: low enough that their weight is exactly 0, finite so that a fully masked row gives no NaN.
HIDDEN = -1e30

Attribute = int | float | str | list[int] | list[str]
Kind = Literal["float32", "int64", "int32", "bool"]
Axes = tuple[int | str, ...]


class Node(NamedTuple):
    """One operator; an omitted input has the name ""."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]


class Port(NamedTuple):
    """An input or output of a graph; dynamic axes have names."""

    name: str
    kind: Kind
    axes: Axes


class AttentionOutputs(NamedTuple):
    """Names of an attention's weights: of its items and, with areas, of its areas in the order of `AreaBlocks`."""

    module: nn.Module
    items: str
    areas: str | None


@dataclass
class Weights:
    """Tensors of one model by name, shared by its graphs.

    Attributes:
        model: its parameters keep their names.
        tensors: the tensors used by the graphs.
    """

    model: nn.Module
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def __post_init__(self) -> None:
        own = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        self._names = {id(tensor): name for name, tensor in own.items()}

    def name_of(self, tensor: Tensor) -> str:
        """Return the name of a tensor of the model."""
        return self._names[id(tensor)]

    def keep(self, tensor: Tensor, name: str | None) -> str:
        """Store a tensor under a name; parameters keep their own."""
        found = name or self.name_of(tensor)
        self.tensors.setdefault(found, tensor.detach().cpu())
        return found


class Value:
    """Result of an operator; arithmetic adds operators to the graph, numbers become float32 constants.

    Args:
        graph: the graph.
        name: its name in the graph.

    Example:
        >>> graph = Graph(Weights(nn.Linear(3, 2)))
        >>> x = graph.input("x", "float32", "B", 3)
        >>> (x * 2.0 + 1.0).tanh().name, [node.operator for node in graph.nodes]
        ('v2', ['Mul', 'Add', 'Tanh'])
    """

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def __add__(self, other: Value | float) -> Value:
        return self._with("Add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._with("Sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._with("Mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._with("Div", other)

    def __matmul__(self, other: Value) -> Value:
        return self._with("MatMul", other)

    def __and__(self, other: Value) -> Value:
        return self._with("And", other)

    def _with(self, operator: str, other: Value | float) -> Value:
        return self.graph.add(operator, self, other if isinstance(other, Value) else self.graph.number(other))

    def apply(self, operator: str) -> Value:
        """Apply an operator with one input and no attributes."""
        return self.graph.add(operator, self)

    def tanh(self) -> Value:
        """Return tanh x."""
        return self.apply("Tanh")

    def sigmoid(self) -> Value:
        """Return 1 / (1 + e^-x)."""
        return self.apply("Sigmoid")

    def softmax(self) -> Value:
        """Normalize the last axis."""
        return self.graph.add("Softmax", self, axis=-1)

    def cast(self, kind: Kind) -> Value:
        """Convert to another dtype."""
        return self.graph.add("Cast", self, to=kind)

    def reshape(self, *sizes: int) -> Value:
        """Reshape; 0 keeps the size of that axis, -1 infers it."""
        return self.graph.add("Reshape", self, self.graph.integers(sizes))

    def transpose(self, *order: int) -> Value:
        """Permute the axes."""
        return self.graph.add("Transpose", self, perm=list(order))

    def unsqueeze(self, *axes: int) -> Value:
        """Insert axes of size 1."""
        return self.graph.add("Unsqueeze", self, self.graph.integers(axes))

    def squeeze(self, *axes: int) -> Value:
        """Remove axes of size 1."""
        return self.graph.add("Squeeze", self, self.graph.integers(axes))

    def size(self, axis: int) -> Value:
        """Return the size of an axis, (1,) int64."""
        return self.graph.add("Gather", self.apply("Shape"), self.graph.integers([axis]), axis=0)

    def cut(self, axis: int, start: int | Value, end: int | Value) -> Value:
        """Slice an axis from start to end; a bound that is a value has the shape (1,)."""
        first, last = (bound if isinstance(bound, Value) else self.graph.integers([bound]) for bound in (start, end))
        return self.graph.add("Slice", self, first, last, self.graph.integers([axis]))

    def pad(self, axis: int, rank: int, before: int, after: int) -> Value:
        """Zero-pad an axis of `rank` axes."""
        amounts = [0] * (2 * rank)
        amounts[axis], amounts[rank + axis] = before, after
        return self.graph.add("Pad", self, self.graph.integers(amounts)) if before or after else self

    def sum(self, axis: int) -> Value:
        """Sum over an axis, keeping it with size 1."""
        return self.graph.add("ReduceSum", self, self.graph.integers([axis]), keepdims=1)

    def mean(self, axis: int, *, keep: bool = True) -> Value:
        """Average over an axis."""
        return self.graph.add("ReduceMean", self, axes=[axis], keepdims=int(keep))

    def where(self, mask: Value, other: float) -> Value:
        """Keep the values where the mask is True; the rest becomes `other`."""
        return self.graph.add("Where", mask, self, self.graph.number(other))

    def gather(self, index: Value, axis: int = 0) -> Value:
        """Gather rows of an axis."""
        return self.graph.add("Gather", self, index, axis=axis)


class Graph:
    """Operators in execution order, with inputs and outputs.

    Args:
        weights: the model's tensors, shared by its graphs.
        maps: also output the weights of every attention, for the page.

    Attributes:
        nodes: the operators.
        inputs: its inputs.
        outputs: its outputs.
        attended: the weights of each attention, only with `maps`.
    """

    def __init__(self, weights: Weights, *, maps: bool = False) -> None:
        self.weights, self.maps = weights, maps
        self.nodes: list[Node] = []
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        self.attended: list[AttentionOutputs] = []
        self.used: dict[str, Tensor] = {}
        self._values = 0

    def add(self, operator: str, *inputs: Value | None, count: int = 1, **attributes: Attribute) -> Value:
        """Add an operator and return its first output; see `outputs_of` for further ones."""
        names = tuple(f"v{self._values + number}" for number in range(count))
        self._values += count
        self.nodes.append(Node(operator, tuple("" if one is None else one.name for one in inputs), names, attributes))
        return Value(self, names[0])

    def outputs_of(self, first: Value) -> list[Value]:
        """Return all outputs of the operator with this first output."""
        return next([Value(self, name) for name in node.outputs] for node in reversed(self.nodes) if node.outputs[0] == first.name)

    def input(self, name: str, kind: Kind, *axes: int | str) -> Value:
        """Declare an input."""
        self.inputs.append(Port(name, kind, axes))
        return Value(self, name)

    def output(self, name: str, value: Value, kind: Kind, *axes: int | str) -> None:
        """Declare an output: a value under its own name."""
        self.nodes.append(Node("Identity", (value.name,), (name,), {}))
        self.outputs.append(Port(name, kind, axes))

    def weight(self, tensor: Tensor, name: str | None = None) -> Value:
        """Use a tensor of the model, or a derived one under a name."""
        found = self.weights.keep(tensor, name)
        self.used[found] = self.weights.tensors[found]
        return Value(self, found)

    def number(self, value: float) -> Value:
        """Return a float32 constant."""
        return self.weight(torch.tensor(value, dtype=torch.float32), f"number.{value!r}")

    def integers(self, values: Sequence[int]) -> Value:
        """Return a constant list of int64, such as sizes and axes."""
        return self.weight(torch.tensor(list(values), dtype=torch.int64), "integers." + ".".join(map(str, values)))

    def integer(self, value: int) -> Value:
        """Return an int64 scalar."""
        return self.weight(torch.tensor(value, dtype=torch.int64), f"integer.{value}")

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """Concatenate values."""
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=axis)

    def zeros(self, *sizes: int | Value) -> Value:
        """Return zeros; a size that is a value has the shape (1,)."""
        parts = [size if isinstance(size, Value) else self.integers([size]) for size in sizes]
        return self.add("ConstantOfShape", self.concat(parts, 0))

    def count(self, size: Value) -> Value:
        """Return 0, 1, ... below a size (1,), int64."""
        return self.add("Range", self.integer(0), size.squeeze(0), self.integer(1))

    def attends(self, module: nn.Module, items: Value, areas: Value | None = None) -> None:
        """Output the weights of an attention, items and areas, if requested."""
        if not self.maps:
            return
        names = [f"attention.{len(self.attended)}.{kind}" for kind in ("items", "areas")]
        for name, value in zip(names, (items, areas), strict=True):
            if value is not None:
                self.nodes.append(Node("Identity", (value.name,), (name,), {}))
        self.attended.append(AttentionOutputs(module, names[0], None if areas is None else names[1]))


@dataclass
class ModelGraphs:
    """A model as graphs.

    Attributes:
        weights: of all graphs.
        graphs: "encoder" and "step", or "model".
        sources: encoder outputs that are inputs of every step, one per sentence.
        states: encoder outputs that are inputs of the first step, one per hypothesis; a step returns `next.NAME`.
    """

    weights: Weights
    graphs: dict[str, Graph]
    sources: list[str] = field(default_factory=list[str])
    states: list[str] = field(default_factory=list[str])
