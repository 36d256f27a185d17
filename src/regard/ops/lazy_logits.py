"""Logits computed on demand: decoding that needs only the best few never computes all."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.panels import Affine
from regard.ops.kernels.vocabulary_cpu import OutputPlan, RunningTotals
from regard.ops.linear import Linear, cached_by_owner


class LazyLogits(NamedTuple):
    """Logits (..., V) = `output(hidden)`, not computed.

    Attributes:
        hidden: (..., R).
        output: the output layer.
        plan: its weights in the native library's layout.
    """

    hidden: Tensor
    output: Linear
    plan: OutputPlan

    @property
    def shape(self) -> torch.Size:
        """The shape that the logits would have."""
        return torch.Size([*self.hidden.shape[:-1], self.plan.size])

    def read(self) -> Tensor:
        """Compute them."""
        return self.output(self.hidden)

    def rows(self, chosen: Tensor) -> Tensor:
        """Compute the rows (n, V) where `chosen` (...) is True."""
        return self.output(self.hidden[chosen])

    def at(self, places: Tensor) -> Tensor:
        """Compute the logits of some outputs (..., E)."""
        found = (self.output.weight[places] @ self.hidden[..., None]).squeeze(-1)
        return found if self.output.bias is None else found + self.output.bias[places]

    def best(
        self, count: int, forbidden: Tensor, *, instead: int, least: float, sums: RunningTotals | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and tokens (..., C) of the best outputs outside `forbidden` (n,), at most V; ties go to the lower token.

        Where none is left or possible, `instead` comes first, with log-probability >= `least`, followed by -inf. For `sums` see there.
        """
        return self.plan.best(self.hidden, min(count, self.plan.size), forbidden, instead=instead, least=least, sums=sums)


def lazy_logits(hidden: Tensor, output: Linear) -> LazyLogits | None:
    """Return lazy logits; None outside `packed_weights` in float32 or int8, and where the native library is not faster.

    Args:
        hidden: (..., R).
        output: R to V.

    Example:
        >>> lazy_logits(torch.ones(2, 3), Linear(3, 5)) is None
        True
    """
    if hidden.dtype != torch.float32 or hidden.device.type != "cpu":
        return None
    plan = output_plan(output)
    return None if plan is None else LazyLogits(hidden, output, plan)


def output_plan(output: Linear) -> OutputPlan | None:
    """Return an output layer's weights as the native library wants them; None where `lazy_logits` returns none.

    Example:
        >>> output_plan(Linear(3, 5)) is None
        True
    """
    library = native.library()
    if library is None or not library.regard_target() or output.weight.dtype != torch.float32 or output.weight.device.type != "cpu":
        return None
    return cached_by_owner(output, lambda dtype: OutputPlan(Affine(output.weight, output.bias), dtype))
