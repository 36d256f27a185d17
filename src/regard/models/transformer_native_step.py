"""Transformer decoder steps by the native library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from regard.attention import Areas, IndexedMemory, MultiHeadAttention
from regard.attention.areas import scored_area_length
from regard.models.cross_attention import source_weights
from regard.models.transformer_cache import AreaCache, CurrentStep, KeyValueCache, LayerCache, TransformerState
from regard.models.transformer_layers import DecoderLayer, SourceAttention
from regard.ops.area_windows import area_extent
from regard.ops.kernels import native
from regard.ops.kernels.decoder_cpu import AreaKeyWeights, DecoderLayerWeights, DecoderMemory, DecoderPlan
from regard.ops.kernels.greedy_cpu import GreedyRules, GreedyTokens, Words, search
from regard.ops.kernels.panels import Affine
from regard.ops.kernels.vocabulary_cpu import OutputPlan
from regard.ops.materialized_areas import shape_features


def plan_of(
    layers: Sequence[DecoderLayer], norm: nn.LayerNorm | None, shown: int, dtype: torch.dtype = torch.float32
) -> DecoderPlan | None:
    """Pack a decoder's weights for the native library; None if it does not support the layers.

    Supports attention by a softmax to items, to areas that need not be materialized (`scored_area_length`), to areas with Eq. 9 keys and
    to precomputed source areas; one source, relu, float32 on a CPU, in evaluation mode.

    Args:
        layers: from the bottom up.
        norm: final norm, or None.
        shown: the layer whose source weights are returned.
        dtype: dtype of the products, torch.float32 or torch.int8.

    Example:
        >>> plan_of([], None, 0) is None
        True
    """
    if native.library() is None or not layers or not all(_is_known(layer) for layer in layers):
        return None
    norms = [each for layer in layers for each in (layer.attention_norm, layer.cross_attention_norm, layer.feed_forward_norm)]
    heads = {(each.num_heads, each.head_dim) for layer in layers for each in _attentions(layer)}
    (count, size), *others = heads
    eps = {each.eps for each in (*norms, *([] if norm is None else [norm]))}
    if others or len(eps) > 1 or count * size != norms[0].weight.shape[0]:
        return None
    last = None if norm is None else Affine(norm.weight, norm.bias)
    found = [_weights(layer) for layer in layers]
    return DecoderPlan(found, last, heads=count, pre=norms[0].pre, eps=eps.pop(), shown=shown, dtype=dtype)


def native_step(
    plan: DecoderPlan, layers: Sequence[DecoderLayer], x: Tensor, state: TransformerState, current: CurrentStep
) -> tuple[Tensor, Tensor, list[LayerCache]]:
    """Run a step of the plan.

    Args:
        plan: from `plan_of`.
        layers: layers of the plan.
        x: (B, K, E), one embedded token per hypothesis.
        state: state before the step.
        current: slots of the tokens.

    Returns:
        (B, K, E); the shown layer's weights (B, H, K, S); the updated cache of each layer.
    """
    rows, (heads, size) = x.shape[0] * x.shape[1], plan.heads_and_size
    like = x.new_empty(1, heads, size).expand(rows, -1, -1)
    caches = [_with_room(past, current.before, like, areas) for past, areas in zip(state.caches, plan.learned, strict=True)]
    sources = [cast(IndexedMemory, memory) for (memory,) in state.memories]
    memories = [DecoderMemory(*_parts(past), *source[:4]) for past, source in zip(caches, sources, strict=True)]
    out, weights = plan.step(x.flatten(0, 1), memories, current.places, current.before)
    shown = source_weights(_attentions(layers[plan.shown])[1].areas, sources[plan.shown], weights.transpose(1, 2))
    return out.view_as(x), shown, caches


def native_greedy(plan: DecoderPlan, output: OutputPlan, state: TransformerState, words: Words, rules: GreedyRules) -> GreedyTokens | None:
    """Run a greedy search.

    Args:
        plan: from `plan_of`.
        output: weights of the output layer.
        state: state before the first token, one hypothesis per sentence.
        words: parameters of the token embedding.
        rules: constraints of the search.

    Returns:
        See `regard.ops.kernels.greedy_cpu.search`.
    """
    heads, size = plan.heads_and_size
    like = words.table.new_empty(1, heads, size).expand(int(rules.limits.sum()), -1, -1)  # memory is allocated where a step writes
    caches = [_with_room(None, 0, like, areas) for areas in plan.learned]
    sources = [cast(IndexedMemory, memory) for (memory,) in state.memories]
    own = [source.rows(torch.arange(source.batch)) for source in sources]  # tables that the search may modify
    memories = [DecoderMemory(*_parts(past), *each[:4]) for past, each in zip(caches, own, strict=True)]
    call, hidden = plan.prepared(len(rules.limits), memories)
    return search(call, hidden, output, rules, words=words, kept=torch.arange(len(rules.limits)))


def _with_room(past: LayerCache | None, count: int, like: Tensor, areas: int) -> LayerCache:
    # Free slots for the current items, like (N, H, D), and for `areas` of each where areas are materialized.
    if not areas:
        return KeyValueCache.with_room(past if isinstance(past, KeyValueCache) else None, count, like)
    items, made = past if isinstance(past, AreaCache) else (None, None)
    many = like[:1].expand(areas * like.shape[0], -1, -1)
    return AreaCache(KeyValueCache.with_room(items, count, like), KeyValueCache.with_room(made, areas * count, many))


def _parts(past: LayerCache) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    if isinstance(past, AreaCache):
        return past.items.key, past.items.value, past.areas.key, past.areas.value
    return past.key, past.value, None, None


def _is_known(layer: DecoderLayer) -> bool:
    if layer.training or not isinstance(layer.cross_attention, SourceAttention) or layer.feed_forward.activation != "relu":
        return False
    own, source = _attentions(layer)
    if own.normalizer != "softmax" or source.normalizer != "softmax":
        return False
    if own.score is not None or source.score is not None or not (_is_simple(own.areas) or _is_learned(own.areas)):
        return False
    if source.areas is not None and (source.areas.temperature != 1 or source.areas.top_k is not None):
        return False
    return all(part.dtype == torch.float32 and part.device.type == "cpu" for part in layer.parameters())


def _is_simple(areas: Areas | None) -> bool:
    return scored_area_length(areas) is not None and (areas is None or areas.temperature == 1)


def _is_learned(areas: Areas | None) -> bool:
    if areas is None or areas.key_mode != "features" or areas.value_mode != "sum" or not isinstance(areas.max_area, int):
        return False
    return areas.temperature == 1 and areas.top_k is None


def _attentions(layer: DecoderLayer) -> tuple[MultiHeadAttention, MultiHeadAttention]:
    return layer.attention, cast(SourceAttention, layer.cross_attention).attention


def _weights(layer: DecoderLayer) -> DecoderLayerWeights:
    own, source = _attentions(layer)
    learned = _area_keys(own.areas)
    return DecoderLayerWeights(
        project=(_affine(own.query), _affine(own.key), _affine(own.value)),
        join=_affine(own.output),
        ask=_affine(source.query),
        answer=_affine(source.output),
        hidden=_affine(layer.feed_forward.hidden),
        output=_affine(layer.feed_forward.output),
        norms=(_affine(layer.attention_norm), _affine(layer.cross_attention_norm), _affine(layer.feed_forward_norm)),
        areas=(scored_area_length(own.areas) or 1, scored_area_length(source.areas) or 1),
        learned=learned,
    )


def _area_keys(areas: Areas | None) -> AreaKeyWeights | None:
    weights = None if areas is None else areas.key_weights
    if areas is None or weights is None or not isinstance(areas.max_area, int):
        return None
    size = weights.output.shape[0]
    # One area of each size starts at the first of these items.
    shape = shape_features(weights, area_extent(areas.max_area, areas.max_area), starts=1)
    added = shape @ weights.hidden[:, 2 * size :].T
    return AreaKeyWeights(Affine(weights.hidden[:, : 2 * size], None), Affine(weights.output, None), added)


def _affine(part: nn.Linear | nn.LayerNorm) -> Affine:
    return Affine(part.weight, part.bias)
