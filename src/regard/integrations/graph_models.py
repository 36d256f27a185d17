"""Trained models as graphs: encoder and step for generators, one graph for classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from regard.attention import Attention, KeyValueAttention, MultiHeadAttention
from regard.errors import ConfigError
from regard.integrations.graph import Axes, Graph, Kind, ModelGraphs, Value, Weights
from regard.integrations.graph_attention import (
    Heads,
    Items,
    attend_heads,
    attend_items,
    encode,
    encode_crossed,
    head_memory,
    item_memory,
    of_areas,
    weigh,
)
from regard.integrations.graph_labels import label_graphs
from regard.integrations.graph_parts import (
    after,
    before,
    cell_step,
    embed,
    encode_recurrent,
    feed_forward,
    linear,
    masked_softmax,
    norm,
    positions,
    sums_to_one,
    text_input,
)
from regard.models import Encoder, RecurrentEncoderDecoder, SentenceClassifier, Transformer
from regard.models.captioning import CaptionTransformer, ShowAttendTell, grid_positions
from regard.models.crossed import CrossedEncoder, CrossedSourceAttention
from regard.models.image_encoder import GivenFeatures, ImageEncoder, SmallCNN
from regard.models.language_model import RecurrentLanguageModel
from regard.models.readout import DeepReadout, Readout
from regard.models.rnn_cells import RecurrentCell, RecurrentStack
from regard.models.rnn_decoder import Bridge
from regard.models.rnn_two_inputs import TwoInputRecurrent
from regard.models.transformer_decoder import Decoder
from regard.models.transformer_layers import CrossAttention, DecoderLayer, SourceAttention
from regard.models.two_inputs import TwoInputTransformer

PAST = "T"  # the axis of generated tokens


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


def model_graphs(model: nn.Module, *, maps: bool = False) -> ModelGraphs:
    """Write a model as graphs.

    Args:
        model: in evaluation mode.
        maps: see `Graph`.

    Raises:
        ConfigError: a part of the model cannot be exported; the message names it.

    Example:
        >>> from regard.config import RNNConfig
        >>> from regard.models import build
        >>> graphs = model_graphs(build(RNNConfig(), source_size=11, target_size=13))
        >>> [port.name for port in graphs.graphs["step"].outputs]
        ['next.layer.0.0', 'logits', 'weights']
    """
    match model:
        case TwoInputRecurrent() | TwoInputTransformer():
            raise ConfigError("model.second: set, but the export supports one input")
        case RecurrentEncoderDecoder():
            return _recurrent(model, maps)
        case Transformer():
            return _transformer(model, maps)
        case ShowAttendTell():
            return _show(model, maps)
        case CaptionTransformer():
            return _caption_transformer(model, maps)
        case RecurrentLanguageModel():
            return _language(model, maps)
        case SentenceClassifier():
            return label_graphs(model, maps=maps)
        case _:
            raise ConfigError(f"{type(model).__name__}: this model cannot be exported")


def _stack(stack: RecurrentStack, embedded: Value, layers: Sequence[Sequence[Value]], extra: Value | None) -> list[tuple[Value, ...]]:
    gates = linear(cast(nn.Linear, stack.inputs[0]), embedded)
    if stack.extra is not None and extra is not None:
        gates = gates + linear(stack.extra, extra)
    new = list[tuple[Value, ...]]()
    for index, cell in enumerate(stack.cells):
        projected = gates if index == 0 else linear(cast(nn.Linear, stack.inputs[index]), new[-1][0])
        new.append(cell_step(cast(RecurrentCell, cell), projected, layers[index]))
    return new


def _layers(generator: Generator, first: Sequence[Sequence[Value]], size: int) -> list[tuple[Value, ...]]:
    return [
        tuple(generator.state(f"layer.{number}.{part}", value, size) for part, value in enumerate(layer))
        for number, layer in enumerate(first)
    ]


def _carry_layers(generator: Generator, layers: Sequence[Sequence[Value]], size: int) -> None:
    for number, layer in enumerate(layers):
        for part, value in enumerate(layer):
            generator.carry(f"layer.{number}.{part}", value, size)


def _recurrent(model: RecurrentEncoderDecoder, maps: bool) -> ModelGraphs:
    generator, decoder = Generator(model, maps=maps), model.decoder
    tokens, lengths, mask = text_input(generator.encoder)
    states, final = encode_recurrent(model.encoder, embed(model.source_embedding, tokens), lengths)
    layers = _layers(generator, _bridge(model.bridge, final), decoder.stack.hidden_size)
    feed = None
    if decoder.input_feeding:
        zeros = generator.encoder.zeros(tokens.size(0), 1, decoder.readout.output_dim)
        feed = generator.state("feed", zeros, decoder.readout.output_dim)
    dim, memory = model.encoder.output_dim, None
    match decoder.attention:
        case Attention() as attention:
            memory = _items(generator, attention, states, dim, mask, lengths)
        case MultiHeadAttention() as attention:
            memory = _heads(generator, "attention", head_memory(attention, states, mask))
        case _:
            last = generator.encoder.concat([parts[0] for parts in final[-model.encoder.directions :]], 2)
            fixed = generator.source("context", last, "float32", "B", 1, dim)

    def look(query: Value) -> tuple[Value, Value | None]:
        if isinstance(memory, Items):
            return attend_items(cast(Attention, decoder.attention), query, memory, generator.position)
        if isinstance(memory, Heads):
            found = attend_heads(cast(MultiHeadAttention, decoder.attention), query, memory)
            return found.context, sums_to_one(found.weights.mean(1, keep=False))
        return fixed, None

    embedded = embed(decoder.embedding, generator.tokens)
    weights = None
    if decoder.attend_first:
        context, weights = look(layers[-1][0])
        layers = _stack(decoder.stack, embedded, layers, context)
    else:
        given = feed if decoder.input_feeding else None if memory is not None else look(layers[-1][0])[0]
        layers = _stack(decoder.stack, embedded, layers, given)
        context, weights = look(layers[-1][0])
    _carry_layers(generator, layers, decoder.stack.hidden_size)
    readout = _readout(decoder.readout, layers[-1][0], embedded, context)
    if feed is not None:
        generator.carry("feed", readout, decoder.readout.output_dim)
    return generator.finish(model.output, readout, weights)


def _bridge(bridge: Bridge, final: Sequence[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    layers = list[tuple[Value, ...]]()
    for index, source in enumerate(bridge.sources):
        parts = final[source]
        if len(bridge.hidden):
            cells = (linear(cast(nn.Linear, bridge.cell[index]), part) for part in parts[1:])
            parts = (linear(cast(nn.Linear, bridge.hidden[index]), parts[0]).tanh(), *cells)
        layers.append(parts)
    return layers


def _items(
    generator: Generator, attention: Attention, states: Value, dim: int, mask: Value | None = None, lengths: Value | None = None
) -> Items:
    key, value = item_memory(attention, states, dim)
    keys = generator.source("key", key, "float32", "B", "N", "A")
    values = generator.source("value", value, "float32", "B", "N", dim)
    size = generator.source("size", states.size(1), "int64", 1)
    seen = None if mask is None else generator.source("mask", mask, "bool", "B", "S")
    counts = None if lengths is None else generator.source("lengths", lengths, "int64", "B")
    return Items(keys, values, seen, counts, size)


def _heads(generator: Generator, name: str, memory: Heads) -> Heads:
    mask = memory.mask
    # Without padding the mask of areas is the same for every sentence.
    fixed = None if mask is None else generator.source(f"{name}.mask", mask, "bool", "B", 1, 1, "N")
    key = generator.source(f"{name}.key", memory.key, "float32", "B", "H", "N", "D")
    return Heads(key, generator.source(f"{name}.value", memory.value, "float32", "B", "H", "N", "D"), fixed)


def _readout(readout: Readout, state: Value, embedded: Value, context: Value) -> Value:
    graph = state.graph
    shape = graph.concat([state.size(0), state.size(1), context.size(2)], 0)
    context = graph.add("Expand", context, shape)
    if isinstance(readout, DeepReadout):
        pairs = linear(readout.linear, graph.concat([state, embedded, context], 2)).reshape(0, 0, readout.output_dim, 2)
        return graph.add("ReduceMax", pairs, axes=[3], keepdims=0)
    return linear(readout.linear, graph.concat([context, state], 2)).tanh()


def _transformer(model: Transformer, maps: bool) -> ModelGraphs:
    generator, dim = Generator(model, maps=maps), model.source_embedding.embedding_dim
    tokens, _, mask = text_input(generator.encoder)
    places = generator.encoder.count(tokens.size(1))
    x = embed(model.source_embedding, tokens) + positions(generator.encoder, places, dim, model.positions)
    if isinstance(model.encoder, CrossedEncoder):
        sources = encode_crossed(model.encoder, (x, x), (mask, mask))
    else:
        sources = (encode(cast(Encoder, model.encoder), x, mask),)
    place = positions(generator.step, generator.position.unsqueeze(0), dim, model.positions)
    word = embed(model.target_embedding, generator.tokens) + place
    return _decode(generator, model.decoder, word, sources, mask, model.output)


def _decode(
    generator: Generator, decoder: Decoder, x: Value, sources: Sequence[Value], mask: Value | None, output: nn.Linear
) -> ModelGraphs:
    weights, batch = None, sources[0].size(0)
    for number, layer in enumerate(cast(Sequence[DecoderLayer], decoder.layers)):
        x = after(layer.attention_norm, x, _self_attention(generator, layer.attention, before(layer.attention_norm, x), number, batch))
        given = before(layer.cross_attention_norm, x)
        context, shown = _cross_attention(generator, layer.cross_attention, given, sources, mask, number)
        weights = shown if number == decoder.alignment_layer else weights
        x = after(layer.cross_attention_norm, x, context)
        x = after(layer.feed_forward_norm, x, feed_forward(layer.feed_forward, before(layer.feed_forward_norm, x)))
    return generator.finish(output, x if decoder.norm is None else norm(decoder.norm, x), weights)


def _self_attention(generator: Generator, attention: MultiHeadAttention, x: Value, number: int, batch: Value) -> Value:
    heads, dim = attention.num_heads, attention.head_dim
    empty = generator.encoder.zeros(batch, 1, heads, 0, dim)

    def split(layer: nn.Linear) -> Value:
        return linear(layer, x).reshape(0, 0, heads, 1, dim)  # (B, K, H, 1, D)

    whole = list[Value]()
    for name, layer in (("key", attention.key), ("value", attention.value)):
        past = generator.state(f"self.{number}.{name}", empty, heads, PAST, dim)
        whole.append(generator.step.concat([past, split(layer)], 3))
        generator.carry(f"self.{number}.{name}", whole[-1], heads, PAST, dim)
    memory = Heads(whole[0], whole[1], None)
    memory = memory if attention.areas is None else of_areas(attention, memory, 5)
    return linear(attention.output, weigh(attention, split(attention.query), memory, 5).context.reshape(0, 0, heads * dim))


def _cross_attention(
    generator: Generator, attention: CrossAttention, query: Value, sources: Sequence[Value], mask: Value | None, number: int
) -> tuple[Value, Value]:
    if isinstance(attention, SourceAttention):
        memory = _heads(generator, f"cross.{number}", head_memory(attention.attention, sources[0], mask))
        found = attend_heads(attention.attention, query, memory)
        return found.context, sums_to_one(found.weights.mean(1, keep=False))
    if not isinstance(attention, CrossedSourceAttention):
        raise ConfigError(f"{type(attention).__name__}: this attention cannot be exported")
    both = list[tuple[Value, Value]]()
    for side, source, own, part in zip(
        ("left", "right"),
        sources,
        (attention.left, attention.right),
        (attention.left_feed_forward, attention.right_feed_forward),
        strict=True,
    ):
        memory = _heads(generator, f"cross.{number}.{side}", head_memory(own, source, mask))
        found = attend_heads(own, query, memory)
        both.append((feed_forward(part, found.context), found.weights.mean(1, keep=False)))
    joined = linear(attention.join, query.graph.concat([context for context, _ in both], 2))
    return joined, sums_to_one((both[0][1] + both[1][1]) * 0.5)


def _image(encoder: ImageEncoder, graph: Graph) -> Value:
    # Image features (B, L, D).
    cells = encoder.grid[0] * encoder.grid[1]
    if isinstance(encoder, GivenFeatures):
        return graph.input("features", "float32", "B", cells, encoder.output_dim)
    if not isinstance(encoder, SmallCNN):
        raise ConfigError("model.encoder.type: timm, whose networks are not exported; use precomputed features")
    x = graph.input("images", "float32", "B", 3, encoder.image_size, encoder.image_size)
    for number, step in enumerate(step for stage in encoder.stages for step in cast(Sequence[nn.ModuleDict], stage)):
        convolution, batch_norm = cast(nn.Conv2d, step["convolution"]), cast(nn.BatchNorm2d, step["norm"])
        kernel, bias = _folded(convolution, batch_norm)
        weights = graph.weight(kernel, f"convolution.{number}.weight"), graph.weight(bias, f"convolution.{number}.bias")
        x = graph.add("Conv", x, *weights, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[convolution.stride[0]] * 2).apply("Relu")
    x = x.transpose(0, 2, 3, 1).reshape(0, cells, -1)
    if encoder.coordinates:
        end = encoder.coordinates
        places = torch.cartesian_prod(*(torch.linspace(-end, end, length) for length in encoder.grid)).unsqueeze(0)
        shape = graph.concat([x.size(0), graph.integers([cells, 2])], 0)
        x = graph.concat([x, graph.add("Expand", graph.weight(places, "coordinates"), shape)], 2)
    return linear(encoder.cell, x).apply("Relu")


@torch.no_grad()
def _folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    # In evaluation a batch norm is affine per channel: merge it into the convolution.
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return convolution.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


def _show(model: ShowAttendTell, maps: bool) -> ModelGraphs:
    generator, decoder = Generator(model, maps=maps), model.decoder
    features = linear(model.project, _image(model.image_encoder, generator.encoder))
    dim, size = model.project.out_features, decoder.stack.hidden_size
    mean = features.mean(1)
    first = linear(decoder.first_hidden, mean).tanh(), linear(decoder.first_cell, mean).tanh()
    layers = _layers(generator, [first], size)
    feed = generator.state("feed", generator.encoder.zeros(features.size(0), 1, dim), dim) if decoder.look_last else None
    memory = _items(generator, decoder.attention, features, dim)
    embedded = embed(decoder.embedding, generator.tokens)
    if feed is not None:
        layers = _stack(decoder.stack, embedded, layers, feed)
    query = layers[-1][0]
    found = attend_items(decoder.attention, query, memory, generator.position)
    context = linear(decoder.gate, query).sigmoid() * found.context
    if feed is None:
        layers = _stack(decoder.stack, embedded, layers, context)
    else:
        generator.carry("feed", context, dim)
    _carry_layers(generator, layers, size)
    readout = (embedded + linear(decoder.state, layers[-1][0]) + linear(decoder.context, context)).tanh()
    return generator.finish(model.output, readout, found.weights)


def _caption_transformer(model: CaptionTransformer, maps: bool) -> ModelGraphs:
    generator, dim = Generator(model, maps=maps), model.embedding.embedding_dim
    cells = linear(model.project, _image(model.image_encoder, generator.encoder))
    places = generator.encoder.weight(grid_positions(model.grid, dim), "positions.grid")
    states = encode(model.encoder, cells + places, None)
    place = positions(generator.step, generator.position.unsqueeze(0), dim, "paper")
    word = embed(model.embedding, generator.tokens) + place
    return _decode(generator, model.decoder, word, [states], None, model.output)


def _language(model: RecurrentLanguageModel, maps: bool) -> ModelGraphs:
    generator, size = Generator(model, maps=maps), model.stack.hidden_size
    batch = generator.encoder.input("batch", "int64", 1)
    zero = generator.encoder.zeros(batch, 1, size)
    layers = _layers(generator, [(zero, zero) for _ in model.stack.cells], size)
    layers = _stack(model.stack, embed(model.embedding, generator.tokens), layers, None)
    _carry_layers(generator, layers, size)
    top, weights = layers[-1][0], None
    if model.attention is not None:
        top, weights = _recent(generator, model.attention, top, batch)
    readout = top if model.project is None else linear(model.project, top)
    return generator.finish(model.output, readout, weights, 0 if model.attention is None else model.attention.window)


def _recent(generator: Generator, attention: KeyValueAttention, state: Value, batch: Value) -> tuple[Value, Value]:
    encoder, step, parts, window = generator.encoder, generator.step, attention.parts, attention.window
    dim = attention.input_dim // parts
    empty = encoder.zeros(batch, 1, window, dim)
    key, value, predict = (state.cut(-1, n * dim, (n + 1) * dim) for n in (0, min(1, parts - 1), parts - 1))
    keys, values = generator.state("keys", empty, window, dim), generator.state("values", empty, window, dim)
    seen = generator.state("seen", encoder.zeros(batch, 1, window), window)
    column = step.weight(attention.vector.unsqueeze(1), f"{step.weights.name_of(attention.vector)}.column")
    found = ((linear(attention.query, key).unsqueeze(2) + keys).tanh() @ column).squeeze(3)  # (B, K, L)
    weights = masked_softmax(found, step.add("Greater", seen, step.number(0.5)))
    step.attends(attention, weights)
    read = (weights.unsqueeze(2) @ values).squeeze(2)
    for name, past, new in (("keys", keys, linear(attention.key, key)), ("values", values, value)):
        generator.carry(name, step.concat([past, new.unsqueeze(2)], 2).cut(2, 1, window + 1), window, dim)
    one = (key.cut(-1, 0, 1) * 0.0) + 1.0
    generator.carry("seen", step.concat([seen, one], 2).cut(2, 1, window + 1), window)
    return (linear(attention.read, read) + linear(attention.predict, predict)).tanh(), weights
