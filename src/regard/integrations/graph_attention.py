"""Attention as graph operators: one head or several, over items or areas, over a sequence or step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import nn

from regard.attention import Attention, MultiHeadAttention
from regard.errors import ConfigError
from regard.integrations.graph import Value
from regard.integrations.graph_parts import (
    AreaBlocks,
    after,
    before,
    feed_forward,
    linear,
    norm,
    normalize,
    project_keys,
    scores,
    sums_to_one,
    window,
)
from regard.models import Encoder
from regard.models.crossed import CrossedEncoder, CrossedEncoderLayer
from regard.models.transformer_layers import EncoderLayer


class Heads(NamedTuple):
    """Memory of several heads: keys and values (B, ..., H, N, D), and the mask (B, 1, 1, N), or None."""

    key: Value
    value: Value
    mask: Value | None


class Attended(NamedTuple):
    """Context, and the weights of the items."""

    context: Value
    weights: Value


def split_heads(attention: MultiHeadAttention, x: Value) -> Value:
    """Map (B, S, H D) to (B, H, S, D)."""
    return x.reshape(0, 0, attention.num_heads, attention.head_dim).transpose(0, 2, 1, 3)


def head_memory(attention: MultiHeadAttention, states: Value, mask: Value | None) -> Heads:
    """Project states (B, S, E); the mask (B, S) marks real positions."""
    if attention.score is not None:
        raise ConfigError("attention.score: with several heads the export supports the scaled dot product only")
    key, value = split_heads(attention, linear(attention.key, states)), split_heads(attention, linear(attention.value, states))
    if attention.areas is None:
        return Heads(key, value, None if mask is None else mask.unsqueeze(1, 2))
    return of_areas(attention, Heads(key, value, mask), 4)


def of_areas(attention: MultiHeadAttention, items: Heads, rank: int) -> Heads:
    """Build the areas of keys and values of `rank` axes; the mask is (B, S)."""
    assert attention.areas is not None
    blocks = AreaBlocks(attention.areas)
    key = blocks.keys(items.key, rank, attention.head_dim)
    value = blocks.values(items.value, rank, attention.head_dim)
    mask = blocks.mask(None, items.key, rank) if items.mask is None else blocks.mask(items.mask, items.key, 2).unsqueeze(1, 2)
    return Heads(key, value, mask)


def weigh(attention: MultiHeadAttention, query: Value, memory: Heads, rank: int = 4) -> Attended:
    """Attend with queries (B, ..., H, T, D); return the context, and the weights (B, ..., H, T, S) of the items."""
    scale = 1 / math.sqrt(attention.head_dim)
    scale = scale if attention.areas is None else scale / attention.areas.temperature
    order = (*range(rank - 2), rank - 1, rank - 2)
    weights = normalize(query * scale @ memory.key.transpose(*order), memory.mask, attention.normalizer)
    items = weights if attention.areas is None else AreaBlocks(attention.areas).item_weights(weights, rank)
    query.graph.attends(attention, items, None if attention.areas is None else weights)
    return Attended(weights @ memory.value, items)


def attend_heads(attention: MultiHeadAttention, query: Value, memory: Heads) -> Attended:
    """Attend with queries (B, T, E); return context (B, T, E) and weights (B, H, T, S)."""
    found = weigh(attention, split_heads(attention, linear(attention.query, query)), memory)
    joined = found.context.transpose(0, 2, 1, 3).reshape(0, 0, attention.num_heads * attention.head_dim)
    return Attended(linear(attention.output, joined), found.weights)


def encode(encoder: Encoder, x: Value, mask: Value | None) -> Value:
    """Encode states (B, S, E)."""
    for layer in cast(Sequence[EncoderLayer], encoder.layers):
        given = before(layer.attention_norm, x)
        x = after(layer.attention_norm, x, attend_heads(layer.attention, given, head_memory(layer.attention, given, mask)).context)
        x = after(layer.feed_forward_norm, x, feed_forward(layer.feed_forward, before(layer.feed_forward_norm, x)))
    return x if encoder.norm is None else norm(encoder.norm, x)


def encode_crossed(encoder: CrossedEncoder, streams: tuple[Value, Value], masks: tuple[Value, Value]) -> tuple[Value, Value]:
    """Encode two streams that attend to each other."""
    for layer in cast(Sequence[CrossedEncoderLayer], encoder.layers):
        streams = _crossed_layer(layer, streams, masks)
    if encoder.norms is None:
        return streams
    return norm(cast(nn.LayerNorm, encoder.norms[0]), streams[0]), norm(cast(nn.LayerNorm, encoder.norms[1]), streams[1])


def _crossed_layer(layer: CrossedEncoderLayer, streams: tuple[Value, Value], masks: tuple[Value, Value]) -> tuple[Value, Value]:
    own = layer.residual == "own"
    kept, other = streams if own else streams[::-1]
    kept_given, other_given = before(layer.left_norm, kept), before(layer.right_norm, other)
    asked = (kept_given, other_given) if own else (other_given, kept_given)
    # Padded queries are zeros: with two lengths, their result is added to positions of the longer stream.
    first, second = (stream.where(mask.unsqueeze(2), 0.0) for stream, mask in zip(asked, masks, strict=True))
    left, right = cast(MultiHeadAttention, layer.attention.left), cast(MultiHeadAttention, layer.attention.right)
    found = attend_heads(left, second, head_memory(left, first, masks[0])), attend_heads(right, first, head_memory(right, second, masks[1]))
    kept, other = after(layer.left_norm, kept, found[0].context), after(layer.right_norm, other, found[1].context)
    kept = after(layer.left_last_norm, kept, feed_forward(layer.left, before(layer.left_last_norm, kept)))
    other = after(layer.right_last_norm, other, feed_forward(layer.right, before(layer.right_last_norm, other)))
    return (kept, other) if own else (other, kept)


class Items(NamedTuple):
    """Memory of one head.

    Attributes:
        key: (B, N, A) projected.
        value: (B, N, C).
        mask: (B, S) of the items, or None.
        lengths: (B,) of the source.
        size: (1,) S.
    """

    key: Value
    value: Value
    mask: Value | None
    lengths: Value | None
    size: Value


def item_memory(attention: Attention, states: Value, dim: int) -> tuple[Value, Value]:
    """Project states (B, S, D): keys (B, N, A) and values (B, N, D) of the items, or of areas."""
    if attention.choice is not None and attention.choice.mode == "sample":
        raise ConfigError("model.hard.mode: sample draws a cell at random; the export computes argmax and expected")
    if attention.areas is None:
        return project_keys(attention.score, states), states
    blocks = AreaBlocks(attention.areas)
    return project_keys(attention.score, blocks.keys(states, 3, dim)), blocks.values(states, 3, dim)


def attend_items(attention: Attention, query: Value, memory: Items, position: Value) -> Attended:
    """Attend with queries (B, K, Dq); return context (B, K, C) and weights (B, K, S) that sum to 1."""
    blocks = None if attention.areas is None else AreaBlocks(attention.areas)
    allowed, factor = None if memory.mask is None else memory.mask.unsqueeze(1), None
    if attention.window is not None:
        assert memory.lengths is not None
        places = blocks.centers(memory.size) if blocks else query.graph.count(memory.size).cast("float32")
        near, factor = window(attention.window, query, memory.lengths, memory.size, position, places)
        allowed = near if allowed is None else allowed & near
    if blocks is not None:
        allowed = blocks.mask(allowed, _sized(memory), 3)
    found = scores(attention.score, query, memory.key)
    if attention.areas is not None:
        found = found / attention.areas.temperature
    weights = normalize(found, allowed, attention.normalizer)
    weights = weights if factor is None else weights * factor
    if attention.choice is not None and attention.choice.mode == "argmax":
        best = query.graph.add("ArgMax", weights, axis=2, keepdims=0).unsqueeze(2)  # (B, K, 1)
        weights = query.graph.add("Equal", best, query.graph.count(weights.size(2))).cast("float32")
    items = weights if blocks is None else blocks.item_weights(weights, 3)
    query.graph.attends(attention, items, None if blocks is None else weights)
    return Attended(weights @ memory.value, items if blocks is None else sums_to_one(items))


def _sized(memory: Items) -> Value:
    # S on every axis but the last.
    return memory.size.graph.zeros(memory.size, 1)
