"""Named attention maps of a model, the result of `EncoderDecoder.attention_maps`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import RecordedWeights
from regard.attention.areas import Areas
from regard.errors import ConfigError

AttentionKind = Literal["self", "cross", "co-attention", "alignment"]
AttentionSide = Literal["source", "target", "first", "second", "inputs"]
"""Sides of an attention: tokens of source or target; for two inputs the first, the second, both as one source, or the two inputs as two
items.
"""


class LayerAttention(NamedTuple):
    """Weights of one attention module of a model.

    Attributes:
        name: name of the module, such as "decoder.layers.0.cross_attention.attention".
        kind: "self"; "cross", of a Transformer's decoder to the source, or of a recurrent one to one of two; "co-attention", of one encoder
            branch to the other; "alignment", of a recurrent decoder to the source.
        query: side of the queries (axis T), "source" or "target"; for two inputs "first" or "second".
        key: side of the keys (axis S). "inputs": a decoder's attention over two inputs, or without one the share of each in the norm of
            what it adds; S = 2.
        layer: layer of encoder or decoder, from 0; None without layers.
        weights: (B, H, T, S) item weights, H = 1 without heads; zeros for padded queries. With summed values of areas, each item gets the
            area's whole weight, so rows may sum to more than 1.
        area_weights: (B, H, T, N) in the order of `regard.ops.area_spans`, or None without areas or if not requested.
        max_area: maximum area length, or (height, width) on a grid; None without areas.
    """

    name: str
    kind: AttentionKind
    query: AttentionSide
    key: AttentionSide
    layer: int | None
    weights: Tensor
    area_weights: Tensor | None
    max_area: int | tuple[int, int] | None


class AttentionSite(NamedTuple):
    """Location of an attention in a model; fields as in `LayerAttention`."""

    kind: AttentionKind
    query: AttentionSide
    key: AttentionSide
    layer: int | None


def attention_site(name: str, inputs: tuple[AttentionSide, AttentionSide] = ("source", "source")) -> AttentionSite:
    """Derive the role of an attention from its module name.

    Raises:
        ConfigError: an unknown name.

    Example:
        >>> attention_site("encoder.layers.3.attention.left")
        AttentionSite(kind='co-attention', query='source', key='source', layer=3)
    """
    match name.split("."):
        case ["decoder", "attention"]:
            return AttentionSite("alignment", "target", "source", None)
        case ["decoder", "attention", "left" | "right" as side]:
            return AttentionSite("cross", "target", inputs[side == "right"], None)
        case ["decoder", "attention", "share"]:
            return AttentionSite("cross", "target", "inputs", None)
        case ["decoder", "layers", number, "attention"]:
            return AttentionSite("self", "target", "target", int(number))
        case ["decoder", "layers", number, "cross_attention", "left" | "right" as side]:
            return AttentionSite("cross", "target", inputs[side == "right"], int(number))
        case ["decoder", "layers", number, "cross_attention"] | ["decoder", "layers", number, "cross_attention", "share"]:
            return AttentionSite("cross", "target", "inputs", int(number))
        case ["decoder", "layers", number, "cross_attention", _]:
            return AttentionSite("cross", "target", "source", int(number))
        case ["encoder", "layers", number, "attention"] | ["encoder", "encoder", "layers", number, "attention"]:
            return AttentionSite("self", "source", "source", int(number))
        case ["encoder", "first" | "second" as side, "layers", number, "attention"]:
            return AttentionSite("self", side, side, int(number))
        case ["encoder", "layers", number, "attention", "left" | "right" as side]:
            # The left branch attends from the second input to the first.
            asked, asking = inputs if side == "left" else inputs[::-1]
            return AttentionSite("co-attention", asking, asked, int(number))
    raise ConfigError(f"attention_maps: cannot determine the role of the attention {name}")


def collect_attention(model: nn.Module, recorded: Sequence[RecordedWeights], lengths: Mapping[str, Tensor]) -> list[LayerAttention]:
    """Order recorded weights, one entry per attention; consecutive calls are joined. Those of an image network are left out.

    Args:
        model: the recorded model.
        recorded: from `regard.attention.record_weights`.
        lengths: (B,) per input side: "source" and, for two inputs, "first" and "second".

    Returns:
        In the order of the model's modules.
    """
    found: list[LayerAttention] = []
    inputs: tuple[AttentionSide, AttentionSide] = ("first", "second") if "first" in lengths else ("source", "source")
    for name, module in model.named_modules():
        seen = [each for each in recorded if each.attention is module]
        if not seen or "image_encoder" in name.split("."):
            continue
        place = attention_site(name, inputs)
        parts = [_steps([each.weights for each in seen]), _steps([each.area_weights for each in seen])]
        # Each token of a whole target is a separate row: (B T, H, 1, 2).
        if place.key == "inputs" and parts[0] is not None and len(parts[0]) != len(lengths["source"]):
            parts = [None if part is None else part.squeeze(2).unflatten(0, (len(lengths["source"]), -1)).transpose(1, 2) for part in parts]
        if place.query in lengths and parts[0] is not None:
            size = parts[0].shape[2]  # the cells of an image may lack the EOS that the length counts
            real = ops.length_mask(lengths[place.query].clamp(max=size), size)[:, None, :, None]
            parts = [None if part is None else part.masked_fill(~real, 0.0) for part in parts]
        items, areas = parts
        assert items is not None
        found.append(LayerAttention(name, *place, items, areas, _max_area(module)))
    return found


def _steps(parts: list[Tensor | None]) -> Tensor | None:
    kept = [part for part in parts if part is not None]
    return torch.cat(kept, 2) if kept else None


def _max_area(attention: nn.Module) -> int | tuple[int, int] | None:
    areas = getattr(attention, "areas", None)
    return areas.max_area if isinstance(areas, Areas) else None
