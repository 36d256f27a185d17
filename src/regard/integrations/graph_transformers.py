"""Transformers as graphs, with one input or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import nn

from regard.attention import MultiHeadAttention
from regard.errors import ConfigError
from regard.integrations.graph import ModelGraphs, Value
from regard.integrations.graph_attention import Attended, Heads, attend_heads, encode, encode_crossed, of_areas, weigh
from regard.integrations.graph_generator import PAST, Generator, Source, source_heads
from regard.integrations.graph_images import image_states
from regard.integrations.graph_inputs import Rows, join_rows
from regard.integrations.graph_parts import (
    after,
    before,
    embed,
    feed_forward,
    linear,
    norm,
    positions,
    sums_to_one,
    text_input,
)
from regard.models import Encoder, Transformer
from regard.models.cross_attention import SourcePairAttention
from regard.models.crossed import CrossedEncoder, CrossedSourceAttention
from regard.models.embedding import PositionKind
from regard.models.image_embedding import ImageEmbedding
from regard.models.transformer_decoder import Decoder
from regard.models.transformer_layers import DecoderLayer, SourceAttention
from regard.models.two_inputs import JoinedEncoder, SerialDecoderLayer, TwoEncoders, TwoInputTransformer, TwoSourceAttention


class Sources(NamedTuple):
    """What a decoder attends to, and the layout of two inputs in the rows of the alignment."""

    each: Sequence[Source]
    rows: Rows | None = None


class _Text(NamedTuple):
    """An embedded input: states (B, S, E), lengths (B,), mask (B, S)."""

    states: Value
    lengths: Value
    mask: Value


def transformer_graphs(model: Transformer, *, maps: bool) -> ModelGraphs:
    """Write a Transformer for translation as graphs; see `regard.integrations.graph_models.model_graphs`."""
    generator, dim = Generator(model, maps=maps), model.source_embedding.embedding_dim
    first = _text(generator, model.source_embedding, model.positions)
    if isinstance(model, TwoInputTransformer):
        sources = _two_sources(generator, model, first)
    elif isinstance(model.encoder, CrossedEncoder):
        both = encode_crossed(model.encoder, (first.states, first.states), (first.mask, first.mask))
        sources = Sources([Source(states, dim, first.mask) for states in both])
    else:
        sources = Sources([Source(encode(cast(Encoder, model.encoder), first.states, first.mask), dim, first.mask)])
    place = positions(generator.step, generator.position.unsqueeze(0), dim, model.positions)
    word = embed(model.target_embedding, generator.tokens) + place
    return decoder_graphs(generator, model.decoder, word, sources, model.output)


def _text(generator: Generator, embedding: nn.Embedding, kind: PositionKind, name: str = "") -> _Text:
    tokens, lengths, mask = text_input(generator.encoder, name)
    places = generator.encoder.count(tokens.size(1))
    return _Text(embed(embedding, tokens) + positions(generator.encoder, places, embedding.embedding_dim, kind), lengths, mask)


def _two_sources(generator: Generator, model: TwoInputTransformer, first: _Text) -> Sources:
    dim = model.source_embedding.embedding_dim
    if isinstance(model.second_embedding, ImageEmbedding):
        second = _Text(*image_states(generator.encoder, model.second_embedding))
    else:
        second = _text(generator, model.second_embedding, model.positions, "second")
    sizes, without_end = (first.states.size(1), second.states.size(1)), getattr(model.second_embedding, "cells_only", False)
    rows = join_rows(first.lengths, second.lengths, *sizes, without_end=without_end)
    match model.encoder:
        case CrossedEncoder() as encoder:
            states = encode_crossed(encoder, (first.states, second.states), (first.mask, second.mask))
        case JoinedEncoder() as encoder:
            segments = [generator.encoder.weight(encoder.segments[side], f"encoder.segment.{side}") for side in range(2)]
            joined = rows.states(first.states + segments[0], second.states + segments[1])
            return Sources([rows.source(encode(encoder.encoder, joined, rows.mask), dim)])
        case TwoEncoders() as encoder:
            states = encode(encoder.first, first.states, first.mask), encode(encoder.second, second.states, second.mask)
            if encoder.flat:
                return Sources([rows.source(rows.states(*states), dim)])
        case _:
            raise ConfigError(f"{type(model.encoder).__name__}: this encoder cannot be exported")
    return Sources([Source(states[0], dim, first.mask), Source(states[1], dim, second.mask)], rows)


def decoder_graphs(generator: Generator, decoder: Decoder, x: Value, sources: Sources, output: nn.Linear) -> ModelGraphs:
    """Add the steps of a decoder: `x` (B, K, E) are the embedded tokens."""
    weights, batch = None, sources.each[0].states.size(0)
    rows = None if sources.rows is None else sources.rows.for_steps(generator)
    for number, layer in enumerate(cast(Sequence[DecoderLayer], decoder.layers)):
        x = after(layer.attention_norm, x, _self_attention(generator, layer.attention, before(layer.attention_norm, x), number, batch))
        x, shown = _read(generator, layer, x, sources.each, number)
        if number == decoder.alignment_layer:
            weights = _alignment(shown, rows)
        x = after(layer.feed_forward_norm, x, feed_forward(layer.feed_forward, before(layer.feed_forward_norm, x)))
    return generator.finish(output, x if decoder.norm is None else norm(decoder.norm, x), weights)


def _alignment(weights: Sequence[Value], rows: Rows | None) -> Value:
    # (B, K, S) from weights (B, H, K, S) of each source: two inputs lie side by side, two branches of one sentence are averaged.
    means = [one.mean(1, keep=False) for one in weights]
    if rows is not None:
        return sums_to_one(rows.weights(*means))
    return sums_to_one(means[0] if len(means) == 1 else (means[0] + means[1]) * 0.5)


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


def _read(generator: Generator, layer: DecoderLayer, x: Value, sources: Sequence[Source], number: int) -> tuple[Value, list[Value]]:
    """Attend to the sources, with residual connection and norm; return the weights (B, H, K, S) of each, too."""

    def attend(attention: MultiHeadAttention, query: Value, source: Source, side: str = "") -> Attended:
        found = attend_heads(attention, query, source_heads(generator, f"cross.{number}{side}", attention, source))
        return found._replace(weights=sums_to_one(found.weights)) if side and attention.areas is not None else found

    attention, given = layer.cross_attention, before(layer.cross_attention_norm, x)
    if isinstance(attention, SourceAttention):
        found = attend(attention.attention, given, sources[0])
        return after(layer.cross_attention_norm, x, found.context), [found.weights]
    assert isinstance(attention, SourcePairAttention)
    left = attend(attention.left, given, sources[0], ".left")
    if isinstance(layer, SerialDecoderLayer):
        x = after(layer.cross_attention_norm, x, left.context)
        right = attend(attention.right, before(layer.second_norm, x), sources[1], ".right")
        _note_contributions(attention, left.context, right.context)
        return after(layer.second_norm, x, right.context), [left.weights, right.weights]
    context, weights = _combined(attention, given, left, attend(attention.right, given, sources[1], ".right"))
    return after(layer.cross_attention_norm, x, context), weights


def _combined(attention: SourcePairAttention, query: Value, left: Attended, right: Attended) -> tuple[Value, list[Value]]:
    graph, weights = query.graph, [left.weights, right.weights]
    match attention:
        case CrossedSourceAttention():
            parts = [feed_forward(attention.left_feed_forward, left.context), feed_forward(attention.right_feed_forward, right.context)]
            if attention.two_inputs and graph.maps:
                name, halves = graph.weights.name_of(attention.join.weight), attention.join.weight.chunk(2, 1)
                own, other = (graph.weight(half.mT.contiguous(), f"{name}.{side}") for side, half in enumerate(halves))
                _note_contributions(attention, parts[0] @ own, parts[1] @ other)
            return linear(attention.join, graph.concat(parts, 2)), weights
        case TwoSourceAttention() if attention.share is None:
            _note_contributions(attention, left.context, right.context)
            return left.context + right.context, weights
        case TwoSourceAttention():
            share = cast(MultiHeadAttention, attention.share)
            both = graph.concat([one.context.unsqueeze(2) for one in (left, right)], 2)  # (B, K, 2, E)
            shape, order = (0, 0, 2, share.num_heads, share.head_dim), (0, 1, 3, 2, 4)
            key, value = (linear(layer, both).reshape(*shape).transpose(*order) for layer in (share.key, share.value))
            asking = linear(share.query, query).reshape(0, 0, share.num_heads, 1, share.head_dim)
            found = weigh(share, asking, Heads(key, value, None), 5)
            shares = found.weights.squeeze(3).transpose(0, 2, 1, 3)  # (B, H, K, 2)
            context = linear(share.output, found.context.reshape(0, 0, share.num_heads * share.head_dim))
            return context, [one * shares.cut(3, side, side + 1) for side, one in enumerate(weights)]
        case _:
            raise ConfigError(f"{type(attention).__name__}: this attention cannot be exported")


def _note_contributions(attention: SourcePairAttention, first: Value, second: Value) -> None:
    """Output the shares (B, K, 2) of two contributions (B, K, E), see `regard.models.cross_attention.norm_shares`."""
    graph = first.graph
    if graph.maps:
        norms = graph.concat([(one * one).sum(-1).apply("Sqrt") for one in (first, second)], 2)
        graph.attends(attention, sums_to_one(norms))
