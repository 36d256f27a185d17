"""What every attention gives and takes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AttentionOutput(NamedTuple):
    """What an attention returns.

    Attributes:
        context: (B, T, Dv) the weighted sums of the values.
        weights: (B, T, S) the weights that were used.
    """

    context: Tensor
    weights: Tensor


class Memory(NamedTuple):
    """A source made ready to be attended to, once for all steps. Passed around as a value; no module keeps one.

    Attributes:
        key: (B, S, A) keys after the score's own projection; zeros where masked.
        value: (B, S, Dv) values; zeros where masked, so that nothing a masked place holds (NaN included) reaches a context.
        mask: (B, S) bool, True = may be attended.
        lengths: (B,) how many positions each source has.
    """

    key: Tensor
    value: Tensor
    mask: Tensor
    lengths: Tensor

    def rows(self, index: Tensor) -> Memory:
        """Keep only the sentences `index` (B',), in that order."""
        return Memory(*(part.index_select(0, index) for part in self))
