"""Whether the native library can do a decoder's step, and the step by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from regard.attention import Areas, ItemMemory, MultiHeadAttention
from regard.attention.area import longest_run
from regard.models.transformer_layers import DecoderLayer, SourceReader
from regard.models.transformer_state import Newest, Store, TransformerState
from regard.ops.kernels import native
from regard.ops.kernels.decoder_cpu import DecoderPlan, LayerWeights, Source, Tables
from regard.ops.kernels.panels import Affine


def plan_of(layers: Sequence[DecoderLayer], norm: nn.LayerNorm | None, shown: int) -> DecoderPlan | None:
    """Copy the weights of a decoder for the native library; None where it cannot do what the layers do.

    It does layers of attention to items or to areas that need not be made (`longest_run`), to one source, with relu between, in float32
    on a CPU, in evaluation.

    Args:
        layers: from the bottom up.
        norm: of what comes out, or None.
        shown: the layer whose weights on the source are wanted.

    Example:
        >>> plan_of([], None, 0) is None
        True
    """
    if native.library() is None or not layers or not all(_is_known(layer) for layer in layers):
        return None
    norms = [each for layer in layers for each in (layer.attention_norm, layer.reader_norm, layer.feed_forward_norm)]
    heads = {(each.num_heads, each.head_dim) for layer in layers for each in _attentions(layer)}
    (count, size), *others = heads
    eps = {each.eps for each in (*norms, *([] if norm is None else [norm]))}
    if others or len(eps) > 1 or count * size != norms[0].weight.shape[0]:
        return None
    last = None if norm is None else Affine(norm.weight, norm.bias)
    found = [_weights(layer) for layer in layers]
    return DecoderPlan(found, last, heads=count, pre=norms[0].pre, eps=eps.pop(), shown=shown)


def native_step(plan: DecoderPlan, x: Tensor, state: TransformerState, newest: Newest) -> tuple[Tensor, Tensor, list[Store]]:
    """Do a step by the plan of the decoder.

    Args:
        plan: of `plan_of`.
        x: (B, K, E), one embedded token of each hypothesis.
        state: before it.
        newest: where the tokens will stand.

    Returns:
        (B, K, E); the shown layer's weights (B, H, K, S); for each layer its store with the newest items.
    """
    rows, (heads, size) = x.shape[0] * x.shape[1], plan.heads_and_size
    like = x.new_empty(rows, heads, size)
    stores = [Store.with_room(past if isinstance(past, Store) else None, newest.count, like) for past in state.pasts]
    memories = [cast(ItemMemory, memory) for (memory,) in state.memories]
    tables = Tables(newest.places, newest.count, memories[0].places, memories[0].lengths)
    sources = [Source(memory.key, memory.value) for memory in memories]
    out, weights = plan.step(x.flatten(0, 1), [Source(store.key, store.value) for store in stores], sources, tables)
    return out.view_as(x), weights.transpose(1, 2), stores


def _is_known(layer: DecoderLayer) -> bool:
    if layer.training or not isinstance(layer.reader, SourceReader) or layer.feed_forward.activation != "relu":
        return False
    if any(each.score is not None or not _is_simple(each.areas) for each in _attentions(layer)):
        return False
    return all(part.dtype == torch.float32 and part.device.type == "cpu" for part in layer.parameters())


def _is_simple(areas: Areas | None) -> bool:
    return longest_run(areas) is not None and (areas is None or areas.temperature == 1)


def _attentions(layer: DecoderLayer) -> tuple[MultiHeadAttention, MultiHeadAttention]:
    return layer.attention, cast(SourceReader, layer.reader).attention


def _weights(layer: DecoderLayer) -> LayerWeights:
    own, source = _attentions(layer)
    return LayerWeights(
        project=(_affine(own.query), _affine(own.key), _affine(own.value)),
        join=_affine(own.output),
        ask=_affine(source.query),
        answer=_affine(source.output),
        hidden=_affine(layer.feed_forward.hidden),
        output=_affine(layer.feed_forward.output),
        norms=(_affine(layer.attention_norm), _affine(layer.reader_norm), _affine(layer.feed_forward_norm)),
        areas=(longest_run(own.areas) or 1, longest_run(source.areas) or 1),
    )


def _affine(part: nn.Linear | nn.LayerNorm) -> Affine:
    return Affine(part.weight, part.bias)
