"""Inputs and outputs shared by all attentions."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

NeedWeights = bool | Literal["areas"]
"""Whether to return weights: False (none), True (item weights), "areas" (area weights, where there are areas)."""


class AttentionOutput(NamedTuple):
    """Output of an attention.

    Attributes:
        context: (B, T, Dv) the weighted sums of the values.
        weights: (B, T, S), with heads (B, H, T, S), the weights before dropout; None unless `need_weights`. For `need_weights="areas"` the
            last axis counts areas, N.
    """

    context: Tensor
    weights: Tensor | None


class HardOutput(NamedTuple):
    """Output of hard attention, which selects one position.

    Attributes:
        context: (B, T, Dv) the chosen values, or the expected ones where nothing was sampled.
        weights: (B, T, S) the weights used, one-hot where a position was selected; None unless requested.
        log_prob: (B, T) log-probability of the selected position, in nats.
        entropy: (B, T) entropy of the distribution, in nats.
        sampled: (B, T) bool, whether the position was sampled and a score-function estimator counts it.
    """

    context: Tensor
    weights: Tensor | None
    log_prob: Tensor
    entropy: Tensor
    sampled: Tensor


class Memory(NamedTuple):
    """A source prepared once for all steps. Passed as a value; no module stores it.

    Attributes:
        key: (B, S, A) projected keys, zeros where masked; with areas (B, N, A).
        value: (B, S, Dv) values, zeros where masked, so that no masked NaN reaches a context; with areas (B, N, Dv).
        mask: (B, S) bool, True = may attend.
        lengths: (B,) index of each source's last allowed position plus one.
    """

    key: Tensor
    value: Tensor
    mask: Tensor
    lengths: Tensor

    def rows(self, index: Tensor) -> Memory:
        """Keep only the sentences `index` (B',), in that order."""
        return Memory(*(part.index_select(0, index) for part in self))
