"""Every attention of a model as a map with a name: what `EncoderDecoder.look` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import Sight
from regard.attention.area import Areas
from regard.errors import ConfigError

Kind = Literal["self", "cross", "co-attention", "alignment"]
Side = Literal["source", "target"]


class LayerWeights(NamedTuple):
    """What one attention of a model weighed.

    Attributes:
        name: of the module in the model, such as "decoder.layers.0.reader.attention".
        kind: "self"; "cross", a Transformer's decoder on the source; "co-attention", of one branch of an encoder on the other;
            "alignment", a recurrent decoder on the source.
        query: whose tokens ask, "source" or "target"; the tokens of T.
        key: whose tokens are asked; the tokens of S.
        layer: of encoder or decoder, from 0; None without layers.
        weights: (B, H, T, S) of the items, H = 1 without heads; zeros where padding asks. With areas of several items whose values are
            summed, each item gets the area's whole weight: a row then adds up to more than 1.
        area_weights: (B, H, T, N) of the areas in the order of `regard.ops.area_spans`, or None: without areas, or not asked for.
        max_area: the largest length of an area, or None without areas.
    """

    name: str
    kind: Kind
    query: Side
    key: Side
    layer: int | None
    weights: Tensor
    area_weights: Tensor | None
    max_area: int | None


class Place(NamedTuple):
    """Where in a model an attention stands; the fields are those of `LayerWeights`."""

    kind: Kind
    query: Side
    key: Side
    layer: int | None


def place_of(name: str) -> Place:
    """Tell from the name of an attention what it is to its model.

    Raises:
        ConfigError: no model of ours has an attention there; holds the name.

    Example:
        >>> place_of("encoder.layers.3.attention.left")
        Place(kind='co-attention', query='source', key='source', layer=3)
    """
    match name.split("."):
        case ["decoder", "attention"]:
            return Place("alignment", "target", "source", None)
        case ["decoder", "layers", number, "attention"]:
            return Place("self", "target", "target", int(number))
        case ["decoder", "layers", number, "reader", _]:
            return Place("cross", "target", "source", int(number))
        case ["encoder", "layers", number, "attention"]:
            return Place("self", "source", "source", int(number))
        case ["encoder", "layers", number, "attention", "left" | "right"]:
            return Place("co-attention", "source", "source", int(number))
    raise ConfigError(f"look: cannot say what the attention {name} is between")


def layer_weights(model: nn.Module, sights: Sequence[Sight], source_lengths: Tensor) -> list[LayerWeights]:
    """Put what was seen in order, one entry an attention: calls of one after the other become one map.

    Args:
        model: that was watched.
        sights: what `regard.attention.watch` recorded.
        source_lengths: (B,).

    Returns:
        In the order of the model's modules.
    """
    found = []
    for name, module in model.named_modules():
        seen = [sight for sight in sights if sight.attention is module]
        if not seen:
            continue
        place = place_of(name)
        parts = [_steps([sight.weights for sight in seen]), _steps([sight.area_weights for sight in seen])]
        if place.query == "source" and parts[0] is not None:
            real = ops.length_mask(source_lengths, parts[0].shape[2])[:, None, :, None]
            parts = [None if part is None else part.masked_fill(~real, 0.0) for part in parts]
        items, areas = parts
        assert items is not None
        found.append(LayerWeights(name, *place, items, areas, _max_area(module)))
    return found


def _steps(parts: list[Tensor | None]) -> Tensor | None:
    kept = [part for part in parts if part is not None]
    return torch.cat(kept, 2) if kept else None


def _max_area(attention: nn.Module) -> int | None:
    areas = getattr(attention, "areas", None)
    return areas.max_area if isinstance(areas, Areas) and isinstance(areas.max_area, int) else None
