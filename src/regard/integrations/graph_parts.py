"""Model parts as graph operators: each function computes in evaluation mode what its first argument, a module, does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import (
    AdditiveScore,
    Areas,
    ConcatScore,
    CosineScore,
    DotScore,
    GeneralScore,
    LocationScore,
    MonotonicWindow,
    PredictiveWindow,
)
from regard.attention.scores import ScoreModule
from regard.attention.windows import WindowModule
from regard.errors import ConfigError
from regard.integrations.graph import HIDDEN, Graph, Value
from regard.models import FeedForward
from regard.models.embedding import PositionKind, ScaledEmbedding
from regard.models.rnn_cells import RecurrentCell
from regard.models.rnn_encoder import RecurrentEncoder
from regard.models.transformer_layers import ResidualNorm

END = 2**62  # of an axis
Final = list[tuple[Value, ...]]
# The gates of torch's order (r z n; i f g o) in that of ONNX (z r n; i o f g).
GATES = {"gru": (1, 0, 2), "lstm": (0, 3, 1, 2), "tanh": (0,)}


def linear(layer: nn.Linear, x: Value) -> Value:
    """Map (..., in) to (..., out). A matrix shared with an embedding is stored once."""
    found = x @ matrix(x.graph, layer.weight)
    return found if layer.bias is None else found + x.graph.weight(layer.bias)


def matrix(graph: Graph, weight: Tensor) -> Value:
    """Return a weight (out, in) as a factor (in, out)."""
    name = graph.weights.name_of(weight)
    if name in graph.weights.tensors:
        return graph.weight(weight).transpose(1, 0)
    return graph.weight(weight.mT.contiguous(), f"{name}.T")


def embed(table: nn.Embedding, tokens: Value) -> Value:
    """Look up embeddings."""
    found = tokens.graph.weight(table.weight).gather(tokens)
    return found * table.scale if isinstance(table, ScaledEmbedding) else found


def positions(graph: Graph, places: Value, dim: int, kind: PositionKind) -> Value:
    """Return the position vectors (T, E) of positions (T,) int64."""
    first = 2.0 if kind == "fairseq" else 0.0
    span = dim - 2 if kind == "fairseq" else dim
    rates = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * (-math.log(10000) / span))
    angles = (places.cast("float32") + first).unsqueeze(1) * graph.weight(rates, f"rates.{kind}.{dim}")
    both = graph.concat([angles.apply("Sin").unsqueeze(2), angles.apply("Cos").unsqueeze(2)], 2)
    return both.reshape(0, 2 * len(rates)).cut(1, 0, dim)


def norm(layer: nn.LayerNorm, x: Value) -> Value:
    """Apply LayerNorm over the last axis."""
    graph = x.graph
    return graph.add("LayerNormalization", x, graph.weight(layer.weight), graph.weight(layer.bias), axis=-1, epsilon=layer.eps)


def before(layer: ResidualNorm, x: Value) -> Value:
    """Return the input of a sublayer."""
    return norm(layer, x) if layer.pre else x


def after(layer: ResidualNorm, x: Value, change: Value) -> Value:
    """Add the output of a sublayer."""
    return x + change if layer.pre else norm(layer, x + change)


def feed_forward(layer: FeedForward, x: Value) -> Value:
    """Apply the feed-forward layer to each position."""
    hidden = linear(layer.hidden, x)
    match layer.activation:
        case "relu":
            hidden = hidden.apply("Relu")
        case "swish":
            hidden = hidden * hidden.sigmoid()
        case "gelu":
            hidden = hidden * ((hidden * math.sqrt(0.5)).apply("Erf") + 1.0) * 0.5
    return linear(layer.output, hidden)


def length_mask(lengths: Value, size: Value) -> Value:
    """Mark real positions: (B,) and (1,) to (B, S)."""
    return lengths.graph.add("Less", lengths.graph.count(size).unsqueeze(0), lengths.unsqueeze(1))


def text_input(graph: Graph, name: str = "") -> tuple[Value, Value, Value]:
    """Declare a text as an input: tokens (B, S), lengths (B,) and the mask (B, S)."""
    first = f"{name}." if name else ""
    size = f"{name} S" if name else "S"
    tokens, lengths = graph.input(f"{first}tokens", "int64", "B", size), graph.input(f"{first}lengths", "int64", "B")
    return tokens, lengths, length_mask(lengths, tokens.size(1))


def normalize(scores: Value, mask: Value | None, normalizer: str) -> Value:
    """Softmax over the allowed part of the last axis; zeros if it is empty."""
    if normalizer != "softmax":
        raise ConfigError(f"normalizer: {normalizer}, but the export supports the softmax only")
    if mask is None:
        return scores.softmax()
    return scores.where(mask, HIDDEN).softmax().where(mask, 0.0)


def encode_recurrent(encoder: RecurrentEncoder, x: Value, lengths: Value) -> tuple[Value, Final]:
    """Encode (B, S, E) with lengths (B,): states (B, S, D), and the final state of each layer and direction, (B, 1, H)."""
    graph, counts, final = x.graph, lengths.cast("int32"), Final()
    states = x.transpose(1, 0, 2)  # ONNX has the time axis first
    for index in range(0, len(encoder.cells), encoder.directions):
        outputs = []
        for direction in range(encoder.directions):
            cell, gates = cast(RecurrentCell, encoder.cells[index + direction]), cast(nn.Linear, encoder.inputs[index + direction])
            backward = direction == 1 or encoder.reverse
            output, last = _layer(cell, gates, states, counts, f"encoder.layer.{id(encoder)}.{index + direction}", backward)
            outputs.append(output)
            final.append(last)
        states = graph.concat(outputs, 2)
    return states.transpose(1, 0, 2), final


def _layer(
    cell: RecurrentCell, gates: nn.Linear, x: Value, lengths: Value | None, name: str, backward: bool
) -> tuple[Value, tuple[Value, ...]]:
    graph, order, size = x.graph, GATES[cell.kind], cell.hidden_size
    own = graph.weights.name_of(cell.weight)

    def arranged(tensor: Tensor) -> Tensor:
        parts = tensor.split(size)
        return torch.cat([parts[gate] for gate in order]).unsqueeze(0).contiguous()

    recurrent_bias = torch.zeros(len(order) * size)
    if cell.bias is not None:
        recurrent_bias[2 * size :] = cell.bias.detach()
    parts = (arranged(gates.weight), arranged(cell.weight), torch.cat([arranged(gates.bias)[0], recurrent_bias]).unsqueeze(0))
    weights = [graph.weight(part, f"{own}.{kind}") for part, kind in zip(parts, ("input", "recurrent", "bias"), strict=True)]
    operator = {"gru": "GRU", "lstm": "LSTM", "tanh": "RNN"}[cell.kind]
    settings = {"linear_before_reset": 1} if cell.kind == "gru" else {}
    outputs = graph.outputs_of(
        graph.add(
            operator,
            *(x, *weights, lengths),
            count=3 if cell.kind == "lstm" else 2,
            direction="reverse" if backward else "forward",
            hidden_size=size,
            **settings,
        )
    )
    return outputs[0].squeeze(1), tuple(last.transpose(1, 0, 2) for last in outputs[1:])


def cell_step(cell: RecurrentCell, projected: Value, state: Sequence[Value]) -> tuple[Value, ...]:
    """Take one step from gate inputs (..., G H); return the new state."""
    size, recurrent = cell.hidden_size, state[0] @ matrix(projected.graph, cell.weight)

    def gate(values: Value, number: int) -> Value:
        return values.cut(-1, number * size, (number + 1) * size)

    if cell.kind == "gru":
        assert cell.bias is not None
        sums = (projected.cut(-1, 0, 2 * size) + recurrent.cut(-1, 0, 2 * size)).sigmoid()
        inner = gate(recurrent, 2) + projected.graph.weight(cell.bias)
        new = (gate(projected, 2) + gate(sums, 0) * inner).tanh()
        return (new + gate(sums, 1) * (state[0] - new),)
    sums = projected + recurrent
    if cell.kind == "tanh":
        return (sums.tanh(),)
    memory = gate(sums, 1).sigmoid() * state[1] + gate(sums, 0).sigmoid() * gate(sums, 2).tanh()
    return gate(sums, 3).sigmoid() * memory.tanh(), memory


def project_keys(score: ScoreModule, key: Value) -> Value:
    """Project keys (B, S, D) for the score function."""
    match score:
        case AdditiveScore() | GeneralScore():
            return linear(score.key, key)
        case ConcatScore():
            return key @ matrix_part(key.graph, score.weight, slice(score.query_dim, None), "key")
        case _:
            return key


def matrix_part(graph: Graph, weight: Tensor, columns: slice, name: str) -> Value:
    """Return some columns of a weight (out, in) as a factor."""
    return graph.weight(weight[:, columns].mT.contiguous(), f"{graph.weights.name_of(weight)}.{name}")


def scores(score: ScoreModule, query: Value, key: Value) -> Value:
    """Score (B, K, D) against projected keys (B, N, A): (B, K, N)."""
    graph = query.graph
    match score:
        case AdditiveScore():
            return _additive(linear(score.query, query), key, score.vector)
        case ConcatScore():
            return _additive(query @ matrix_part(graph, score.weight, slice(0, score.query_dim), "query"), key, score.vector)
        case DotScore() | GeneralScore():
            if isinstance(score, DotScore) and score.scaled:
                return query @ key.transpose(0, 2, 1) / graph.add("Cast", query.size(2), to="float32").apply("Sqrt")
            return query @ key.transpose(0, 2, 1)
        case CosineScore():
            sharpness = score.fixed if score.sharpness is None else float(F.softplus(score.sharpness.detach()))
            return _unit(query) @ _unit(key).transpose(0, 2, 1) * cast(float, sharpness)
        case LocationScore():
            found = linear(score.query, query)
            beyond = graph.zeros(query.size(0), query.size(1), key.size(1)) + HIDDEN
            return graph.concat([found, beyond], 2).cut(2, 0, key.size(1))


def _additive(query: Value, key: Value, vector: Tensor) -> Value:
    graph = query.graph
    column = graph.weight(vector.unsqueeze(1), f"{graph.weights.name_of(vector)}.column")
    return ((query.unsqueeze(2) + key.unsqueeze(1)).tanh() @ column).squeeze(3)


def _unit(x: Value) -> Value:
    return x / x.graph.add("Max", (x * x).sum(-1).apply("Sqrt"), x.graph.number(1e-12))


def window(module: WindowModule, query: Value, lengths: Value, size: Value, position: Value, places: Value) -> tuple[Value, Value | None]:
    """Return the mask (B or 1, K or 1, S) of a local window, and the factor at `places` (N,) or None."""
    graph, items = query.graph, query.graph.count(size).cast("float32")
    if isinstance(module, MonotonicWindow):
        center, factor = position.cast("float32").unsqueeze(0, 1, 2), None
    else:
        assert isinstance(module, PredictiveWindow)
        share = linear(module.position, linear(module.hidden, query).tanh()).sigmoid()  # (B, K, 1)
        center = lengths.cast("float32").unsqueeze(1, 2) * share
        distance = places.unsqueeze(0, 1) - center
        factor = (distance * distance * (-2.0 / module.radius**2)).apply("Exp")
    near = (items.unsqueeze(0, 1) - center).apply("Abs")
    return graph.add("LessOrEqual", near, graph.number(float(module.radius))), factor


class AreaBlocks:
    """Areas of an attention, one block per height and width; every item starts one, and areas that do not fit are masked.

    Args:
        areas: the areas of the attention.

    Attributes:
        sizes: (height, width) of each block.
    """

    def __init__(self, areas: Areas) -> None:
        if areas.top_k is not None:
            raise ConfigError("area.top_k: set, but the export supports all areas only")
        self.areas = areas
        self.grid = areas.grid
        height, width = (1, areas.max_area) if isinstance(areas.max_area, int) else areas.max_area
        rows, columns = self.grid or (1, width)
        self.height, self.width = min(height, rows), min(width, columns)
        self.sizes = [(h, w) for h in range(1, self.height + 1) for w in range(1, self.width + 1)]

    def sweep(self, x: Value, rank: int, merge: Callable[..., tuple[Value, ...]], *further: Value) -> list[tuple[Value, ...]]:
        """Extend areas of (..., S, D) item by item: for each size the result of `merge`, (..., rows, columns, D)."""
        items = tuple(self._padded(part, rank) for part in (x, *further))
        blocks, column = list[tuple[Value, ...]](), items
        for height in range(1, self.height + 1):
            lines = tuple(self._cut(part, rank - 2, height - 1, self.height) for part in items)
            column = lines if height == 1 else merge(column, lines, (height - 1, 1))
            area = tuple(self._cut(part, rank - 1, 0, self.width) for part in column)
            blocks.append(area)
            for width in range(2, self.width + 1):
                line = tuple(self._cut(part, rank - 1, width - 1, self.width) for part in column)
                area = merge(area, line, (height * (width - 1), height))
                blocks.append(area)
        return blocks

    def _padded(self, x: Value, rank: int) -> Value:
        # (..., S, D) -> (..., rows + height - 1, columns + width - 1, D)
        split = (
            x.unsqueeze(rank - 2) if self.grid is None else x.graph.add("Reshape", x, x.graph.integers([0] * (rank - 2) + [*self.grid, -1]))
        )
        return split.pad(rank - 2, rank + 1, 0, self.height - 1).pad(rank - 1, rank + 1, 0, self.width - 1)

    def _cut(self, x: Value, axis: int, start: int, most: int) -> Value:
        return x if most == 1 else x.cut(axis, start, start + 1 - most if start + 1 < most else END)

    def joined(self, blocks: Sequence[Value], rank: int, dim: int) -> Value:
        """Concatenate blocks (..., rows, columns, D): (..., N, D)."""
        return blocks[0].graph.concat([block.reshape(*[0] * (rank - 2), -1, dim) for block in blocks], rank - 2)

    def sums(self, x: Value, rank: int, dim: int, *, mean: bool = False) -> Value:
        """Sum or average the items (..., S, D) of every area: (..., N, D)."""

        def add(first: tuple[Value], second: tuple[Value], _: tuple[int, int]) -> tuple[Value, ...]:
            return (first[0] + second[0],)

        blocks = [total for (total,) in self.sweep(x, rank, add)]
        if mean:
            blocks = [block / float(h * w) if h * w > 1 else block for block, (h, w) in zip(blocks, self.sizes, strict=True)]
        return self.joined(blocks, rank, dim)

    def maxima(self, x: Value, rank: int, dim: int) -> Value:
        """Maximum of every feature over the items of an area: (..., N, D)."""

        def larger(first: tuple[Value], second: tuple[Value], _: tuple[int, int]) -> tuple[Value, ...]:
            return (x.graph.add("Max", first[0], second[0]),)

        return self.joined([block for (block,) in self.sweep(x, rank, larger)], rank, dim)

    def mask(self, mask: Value | None, like: Value, rank: int) -> Value:
        """Mask areas that exceed the memory or contain a masked item: (..., S) to (..., N) of `rank` axes.

        Without a mask all axes but the last are 1; `like` (..., S, D) is the memory.
        """
        if mask is None:
            size = like.size(-2)
            ones = like.graph.zeros(*[1] * (rank - 1), size) + 1.0
        else:
            ones = mask.cast("float32")
        product = self.sweep(ones.unsqueeze(rank), rank + 1, lambda a, b, _: (a[0] * b[0],))
        found = self.joined([block for (block,) in product], rank + 1, 1).squeeze(rank)
        return found.graph.add("Greater", found, found.graph.number(0.5))

    def keys(self, key: Value, rank: int, dim: int) -> Value:
        """Build the keys of the areas."""
        mode = self.areas.key_mode
        if mode in ("mean", "sample"):
            return self.sums(key, rank, dim, mean=True)
        if mode == "max":
            return self.maxima(key, rank, dim)
        learned = self.areas.key_weights
        assert learned is not None
        if mode == "max_concat":
            features = [self.maxima(key, rank, dim)]
        elif mode.startswith("sample"):
            features = [self.sums(key, rank, dim, mean=True)]
        else:
            mean, deviation = self._moments(key, rank, dim)
            features = [mean + deviation] if mode == "sum" else [mean, deviation]
        return self._learned(features, rank, dim, added=mode in ("sum", "sample_sum"))

    def _moments(self, key: Value, rank: int, dim: int) -> tuple[Value, Value]:
        def merge(first: tuple[Value, ...], second: tuple[Value, ...], counts: tuple[int, int]) -> tuple[Value, ...]:
            total, step = sum(counts), second[0] - first[0]
            squares = first[1] + second[1] + step * step * (counts[0] * counts[1] / total)
            return first[0] + step * (counts[1] / total), squares

        blocks = self.sweep(key, rank, merge, key * 0.0)
        deviations = [(squares / float(h * w) + 1e-6).apply("Sqrt") for (_, squares), (h, w) in zip(blocks, self.sizes, strict=True)]
        return self.joined([mean for mean, _ in blocks], rank, dim), self.joined(deviations, rank, dim)

    def _learned(self, features: list[Value], rank: int, dim: int, *, added: bool) -> Value:
        # The shape of an area does not depend on batch and head: the first layer's result is a constant per block.
        graph, weights = features[0].graph, self.areas.key_weights
        assert weights is not None
        name = graph.weights.name_of(weights.hidden)
        first = self.areas.key_mode == "features"
        pairs = [(weights.width[w - 1], weights.height[h - 1]) for h, w in self.sizes]
        shapes = torch.stack([torch.cat(pair if first else pair[::-1]) for pair in pairs]).detach()
        columns = weights.hidden.split(dim, dim=-1)
        shape = F.linear(shapes, columns[0 if added else len(features)], weights.hidden_bias).detach()
        hidden = None
        for number, feature in enumerate(features):
            own = feature @ graph.weight(columns[number].mT.contiguous(), f"{name}.{number}")
            hidden = own if hidden is None else hidden + own
        assert hidden is not None
        blocks = hidden.reshape(*[0] * (rank - 2), len(self.sizes), -1, dim) + graph.weight(shape.unsqueeze(1), f"{name}.shapes")
        found = blocks.apply("Relu").reshape(*[0] * (rank - 2), -1, dim) @ matrix(graph, weights.output)
        return found if weights.output_bias is None else found + graph.weight(weights.output_bias)

    def values(self, value: Value, rank: int, dim: int) -> Value:
        """Build the values of the areas."""
        if self.areas.value_mode == "max":
            return self.maxima(value, rank, dim)
        return self.sums(value, rank, dim, mean=self.areas.value_mode == "mean")

    def centers(self, size: Value) -> Value:
        """Return the centres (N,) of the areas of a sequence, in items."""
        first = size.graph.count(size).cast("float32")
        return size.graph.concat([first + (w - 1) / 2 for _, w in self.sizes], 0)

    def item_weights(self, weights: Value, rank: int) -> Value:
        """Distribute weights of areas (..., T, N) to the items: (..., T, S)."""
        graph, divided = weights.graph, self.areas.value_mode != "sum"
        split = weights.reshape(*[0] * (rank - 1), len(self.sizes), -1)
        blocks = dict[tuple[int, int], Value]()
        for number, (h, w) in enumerate(self.sizes):
            block = split.gather(graph.integer(number), rank - 1)
            block = block / float(h * w) if divided and h * w > 1 else block
            blocks[h, w] = block.unsqueeze(rank - 1) if self.grid is None else block.reshape(*[0] * (rank - 1), *self.grid)
        total = None
        for h, w in reversed(self.sizes):  # an item of row i and column j in its area is also in every larger area
            for larger in ((h + 1, w), (h, w + 1)):
                if larger in blocks:
                    blocks[h, w] = blocks[h, w] + blocks[larger]
            if (h + 1, w + 1) in blocks:
                blocks[h, w] = blocks[h, w] - blocks[h + 1, w + 1]
        for (h, w), block in blocks.items():
            moved = block.pad(rank - 1, rank + 1, h - 1, 0).pad(rank, rank + 1, w - 1, 0)
            if h > 1:
                moved = moved.cut(rank - 1, 0, 1 - h)
            if w > 1:
                moved = moved.cut(rank, 0, 1 - w)
            total = moved if total is None else total + moved
        assert total is not None
        return total.reshape(*[0] * (rank - 1), -1) if self.grid is not None else total.squeeze(rank - 1)


def sums_to_one(weights: Value) -> Value:
    """Normalize rows of weights whose sum is not 0."""
    total = weights.sum(-1)
    return weights / weights.graph.add("Max", total, weights.graph.number(torch.finfo(torch.float32).tiny))
