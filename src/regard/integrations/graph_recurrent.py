"""Recurrent translation models as graphs, with one input or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import nn

from regard.attention import AdditiveScore, Attention, MultiHeadAttention
from regard.errors import ConfigError
from regard.integrations.graph import Graph, ModelGraphs, Value
from regard.integrations.graph_attention import Attended, Heads, Items, attend_heads, attend_items, encode
from regard.integrations.graph_generator import Generator, Source, carry_layers, layer_states, source_heads, source_items, step_stack
from regard.integrations.graph_images import image_states
from regard.integrations.graph_inputs import Rows, join_rows
from regard.integrations.graph_parts import Final, embed, encode_recurrent, linear, positions, sums_to_one, text_input
from regard.models import Encoder, RecurrentEncoderDecoder
from regard.models.image_embedding import ImageEmbedding
from regard.models.readout import DeepReadout, Readout
from regard.models.rnn_attention import TwoAttentions, covers
from regard.models.rnn_decoder import Bridge
from regard.models.rnn_encoder import RecurrentEncoder
from regard.models.rnn_two_inputs import TwoInputRecurrent
from regard.models.transformer_recurrent import TransformerRecurrent

Looked = tuple[Value, Value | None]


class Encoded(NamedTuple):
    """Encoder output: sources of the decoder, their layout as rows if there are two, and the final states of the layers."""

    sources: list[Source]
    rows: Rows | None
    final: Final


class Memory(NamedTuple):
    """An attention with the memory that it attends to."""

    attention: Attention | MultiHeadAttention
    held: Items | Heads

    @classmethod
    def of(cls, generator: Generator, attention: nn.Module, source: Source, name: str = "") -> Memory:
        """Project a source for an attention."""
        if isinstance(attention, Attention):
            return cls(attention, source_items(generator, attention, source, name=f"{name}." if name else ""))
        heads = cast(MultiHeadAttention, attention)
        return cls(heads, source_heads(generator, name or "attention", heads, source))

    def attend(self, query: Value, position: Value) -> Attended:
        """Attend with queries (B, K, H): contexts (B, K, C) and weights (B, K, S)."""
        if isinstance(self.held, Items):
            return attend_items(cast(Attention, self.attention), query, self.held, position)
        found = attend_heads(cast(MultiHeadAttention, self.attention), query, self.held)
        return Attended(found.context, sums_to_one(found.weights.mean(1, keep=False)))


def recurrent_graphs(model: RecurrentEncoderDecoder, *, maps: bool) -> ModelGraphs:
    """Write a recurrent translation model as graphs; see `regard.integrations.graph_models.model_graphs`."""
    generator, decoder = Generator(model, maps=maps), model.decoder
    if covers(decoder.attention):
        raise ConfigError("model.attention.coverage: true, but the export keeps no coverage")
    encoded = _encode(generator, model)
    layers = layer_states(generator, _bridge(model.bridge, encoded.final), decoder.stack.hidden_size)
    feed = None
    if decoder.input_feeding:
        zeros = generator.encoder.zeros(encoded.sources[0].states.size(0), 1, decoder.readout.output_dim)
        feed = generator.state("feed", zeros, decoder.readout.output_dim)
    look = _attention(generator, model, encoded)
    embedded = embed(decoder.embedding, generator.tokens)
    if decoder.attend_first:
        context, weights = look(layers[-1][0])
        layers = step_stack(decoder.stack, embedded, layers, context)
    else:
        given = feed if decoder.input_feeding else None if decoder.attention is not None else look(layers[-1][0])[0]
        layers = step_stack(decoder.stack, embedded, layers, given)
        context, weights = look(layers[-1][0])
    carry_layers(generator, layers, decoder.stack.hidden_size)
    readout = _readout(decoder.readout, layers[-1][0], embedded, context)
    if feed is not None:
        generator.carry("feed", readout, decoder.readout.output_dim)
    return generator.finish(model.output, readout, weights)


def _encode(generator: Generator, model: RecurrentEncoderDecoder) -> Encoded:
    graph = generator.encoder
    tokens, lengths, mask = text_input(graph)
    embedded = embed(model.source_embedding, tokens)
    if isinstance(model, TransformerRecurrent):
        states, final = _encode_mean(model, embedded, lengths, mask)
        return Encoded([Source(states, model.source_embedding.embedding_dim, mask, lengths)], None, final)
    encoder = cast(RecurrentEncoder, model.encoder)
    dim = encoder.output_dim
    if not isinstance(model, TwoInputRecurrent):
        states, final = encode_recurrent(encoder, embedded, lengths)
        return Encoded([Source(states, dim, mask, lengths)], None, final)
    embedded2, lengths2, mask2 = _second(graph, model)
    without_end = getattr(model.second_embedding, "cells_only", False)
    rows = join_rows(lengths, lengths2, tokens.size(1), embedded2.size(1), without_end=without_end)
    if model.joined:
        states, final = encode_recurrent(encoder, rows.states(embedded, embedded2), rows.lengths)
        return Encoded([rows.source(states, dim)], None, final)
    first = encode_recurrent(encoder, embedded, lengths)
    if model.second_encoder is None:  # the cells of an image
        second = embedded2.where(mask2.unsqueeze(2), 0.0), first[1]
    else:
        second = encode_recurrent(model.second_encoder, embedded2, lengths2)
    final = [tuple((one + two) * 0.5 for one, two in zip(*parts, strict=True)) for parts in zip(first[1], second[1], strict=True)]
    if isinstance(model.decoder.attention, TwoAttentions):
        return Encoded([Source(first[0], dim, mask, lengths), Source(second[0], dim, mask2, lengths2)], rows, final)
    states = rows.states(first[0], second[0]).where(rows.mask.unsqueeze(2), 0.0)
    return Encoded([rows.source(states, dim)], None, final)


def _second(graph: Graph, model: TwoInputRecurrent) -> tuple[Value, Value, Value]:
    if isinstance(model.second_embedding, ImageEmbedding):
        return image_states(graph, model.second_embedding)
    tokens, lengths, mask = text_input(graph, "second")
    return embed(model.second_embedding, tokens), lengths, mask


def _encode_mean(model: TransformerRecurrent, embedded: Value, lengths: Value, mask: Value) -> tuple[Value, list[tuple[Value, ...]]]:
    graph = embedded.graph
    places = positions(graph, graph.count(embedded.size(1)), model.source_embedding.embedding_dim, model.positions)
    states = encode(cast(Encoder, model.encoder), embedded + places, mask).where(mask.unsqueeze(2), 0.0)
    mean = states.sum(1) / lengths.cast("float32").unsqueeze(1, 2)
    return states, [(mean,) * (2 if len(model.bridge.cell) else 1)] * 2


class _Fixed(NamedTuple):
    """The context of a decoder without attention."""

    context: Value

    def __call__(self, query: Value) -> Looked:
        return self.context, None


class _One(NamedTuple):
    memory: Memory
    position: Value

    def __call__(self, query: Value) -> Looked:
        return self.memory.attend(query, self.position)


class _Two(NamedTuple):
    """Two attentions and how their contexts become one; see `regard.models.rnn_attention.TwoAttentions`."""

    attention: TwoAttentions
    memories: tuple[Memory, Memory]
    rows: Rows
    position: Value

    def __call__(self, query: Value) -> Looked:
        attention, graph = self.attention, query.graph
        left = self.memories[0].attend(query, self.position)
        asking = query if attention.found is None else query + linear(attention.found, left.context)
        right = self.memories[1].attend(asking, self.position)
        weights = [left.weights, right.weights]
        if attention.inputs is None or attention.share is None:
            return graph.concat([left.context, right.context], 2), sums_to_one(self.rows.weights(*weights))
        # The second attention has two items for each query: its keys have an axis of queries.
        share, projects = attention.share, cast(Sequence[nn.Linear], attention.inputs)
        each = [linear(project, one.context).unsqueeze(2) for project, one in zip(projects, (left, right), strict=True)]
        both, score = graph.concat(each, 2), cast(AdditiveScore, share.score)  # (B, K, 2, C)
        column = graph.weight(score.vector.unsqueeze(1), f"{graph.weights.name_of(score.vector)}.column")
        hidden = (linear(score.query, query).unsqueeze(2) + linear(score.key, both)).tanh()
        shares = (hidden @ column).squeeze(3).softmax()  # (B, K, 2)
        graph.attends(share, shares)
        weights = [one * shares.cut(2, side, side + 1) for side, one in enumerate(weights)]
        return (shares.unsqueeze(2) @ both).squeeze(2), sums_to_one(self.rows.weights(*weights))


def _attention(generator: Generator, model: RecurrentEncoderDecoder, encoded: Encoded) -> _Fixed | _One | _Two:
    attention, first = model.decoder.attention, encoded.sources[0]
    if attention is None:
        last = generator.encoder.concat([parts[0] for parts in encoded.final[-cast(RecurrentEncoder, model.encoder).directions :]], 2)
        return _Fixed(generator.source("context", last, "float32", "B", 1, first.dim))
    if not isinstance(attention, TwoAttentions):
        return _One(Memory.of(generator, attention, first), generator.position)
    assert encoded.rows is not None
    pairs = zip(("first", "second"), (attention.left, attention.right), encoded.sources, strict=True)
    left, right = (Memory.of(generator, own, source, name) for name, own, source in pairs)
    return _Two(attention, (left, right), encoded.rows.for_steps(generator), generator.position)


def _bridge(bridge: Bridge, final: Sequence[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    layers = list[tuple[Value, ...]]()
    for index, source in enumerate(bridge.sources):
        parts = final[source]
        if len(bridge.hidden):
            cells = (linear(cast(nn.Linear, bridge.cell[index]), part) for part in parts[1:])
            parts = (linear(cast(nn.Linear, bridge.hidden[index]), parts[0]).tanh(), *cells)
        layers.append(parts)
    return layers


def _readout(readout: Readout, state: Value, embedded: Value, context: Value) -> Value:
    graph = state.graph
    shape = graph.concat([state.size(0), state.size(1), context.size(2)], 0)
    context = graph.add("Expand", context, shape)
    if isinstance(readout, DeepReadout):
        pairs = linear(readout.linear, graph.concat([state, embedded, context], 2)).reshape(0, 0, readout.output_dim, 2)
        return graph.add("ReduceMax", pairs, axes=[3], keepdims=0)
    return linear(readout.linear, graph.concat([context, state], 2)).tanh()
