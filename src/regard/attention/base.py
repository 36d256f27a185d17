"""What every attention gives and takes."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

NeedWeights = bool | Literal["areas"]
"""Whether to return weights: False (none), True (item weights), "areas" (area weights, where there are areas)."""


class AttentionOutput(NamedTuple):
    """What an attention returns.

    Attributes:
        context: (B, T, Dv) the weighted sums of the values.
        weights: (B, T, S), with heads (B, H, T, S), the weights before dropout; None unless they were asked for (`need_weights`). For
            `need_weights="areas"` the last axis counts areas, N.
    """

    context: Tensor
    weights: Tensor | None


class HardOutput(NamedTuple):
    """What an attention that chooses one place returns.

    Attributes:
        context: (B, T, Dv) the chosen values, or the expected ones where nothing was sampled.
        weights: (B, T, S) the weights that were used, one-hot where a place was chosen; None unless they were asked for.
        log_prob: (B, T) log-probability of what was chosen, in nats.
        entropy: (B, T) entropy of the distribution that was chosen from, in nats.
        sampled: (B, T) bool, whether the place was sampled, so that a score-function estimator counts it.
    """

    context: Tensor
    weights: Tensor | None
    log_prob: Tensor
    entropy: Tensor
    sampled: Tensor


class Memory(NamedTuple):
    """A source made ready to be attended to, once for all steps. Passed around as a value; no module keeps one.

    Attributes:
        key: (B, S, A) keys after the score's own projection, of zeros where masked; with areas (B, N, A).
        value: (B, S, Dv) values; zeros where masked, so that nothing a masked place holds (NaN included) reaches a context; with areas
            (B, N, Dv).
        mask: (B, S) bool, True = may attend.
        lengths: (B,) how far each source reaches: the index of its last allowed position plus one.
    """

    key: Tensor
    value: Tensor
    mask: Tensor
    lengths: Tensor

    def rows(self, index: Tensor) -> Memory:
        """Keep only the sentences `index` (B',), in that order."""
        return Memory(*(part.index_select(0, index) for part in self))
