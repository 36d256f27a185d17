"""One recorded call of an attention."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AttentionCall(NamedTuple):
    """One call of one attention layer of a model, of whatever library.

    Attributes:
        layer: the name of the module that attends ("encoder.layers.0.self_attn"); the class name for the model itself.
        kind: "self", or "cross" for attention to another sequence.
        weights: (B, H, T, S) float32 on the CPU, before dropout; H = 1 without heads. A query that may attend to nothing has zeros.
            Where the layer attends to areas, those of its items: see `regard.ops.item_weights`.
        areas: (B, H, T, N) float32 on the CPU, the weights of areas; None where they were not asked for or the layer has none.
        heads: which heads H are, from 0; None: all of them.
    """

    layer: str
    kind: str
    weights: Tensor
    areas: Tensor | None = None
    heads: tuple[int, ...] | None = None


class Unseen(NamedTuple):
    """A module that attends, and whose weights could not be recorded.

    Attributes:
        layer: the module's name.
        reason: what was found instead, and what to do.
    """

    layer: str
    reason: str
