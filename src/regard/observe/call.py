"""A recorded attention call."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AttentionCall(NamedTuple):
    """One call of an attention layer of any model.

    Attributes:
        layer: module name ("encoder.layers.0.self_attn"); the class name for the model itself.
        kind: "self", or "cross" for attention to another sequence.
        weights: (B, H, T, S) float32 on the CPU, before dropout; H = 1 without heads. Zeros for a query with nothing to attend to. For
            attention to areas the weights of the items, see `regard.ops.item_weights`.
        areas: (B, H, T, N) float32 on the CPU, the weights of areas; None if not requested or without areas.
        heads: indices of the recorded heads; None: all.
    """

    layer: str
    kind: str
    weights: Tensor
    areas: Tensor | None = None
    heads: tuple[int, ...] | None = None


class Unseen(NamedTuple):
    """A module that attends but whose weights could not be recorded.

    Attributes:
        layer: the module's name.
        reason: what was found instead, and how to proceed.
    """

    layer: str
    reason: str
