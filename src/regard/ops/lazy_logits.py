"""Logits computed on demand: decoding that needs only the best few never computes all."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.call_checks import takes_tensors
from regard.ops.kernels import native
from regard.ops.kernels.panels import Affine
from regard.ops.kernels.vocabulary_cpu import OutputPlan, RunningTotals
from regard.ops.linear import Linear, cached_by_owner, packed_dtype
from regard.ops.tensor_checks import check_range


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
        return torch.Size([*self.hidden.shape[:-1], self.plan.vocabulary])

    def read(self) -> Tensor:
        """Compute them; -inf outside a shortlist."""
        return self._logits(self.hidden)

    def rows(self, chosen: Tensor) -> Tensor:
        """Compute the rows (n, V) where `chosen` (...) is True; -inf outside a shortlist."""
        return self._logits(self.hidden[chosen])

    def _logits(self, hidden: Tensor) -> Tensor:
        found, names = self.output(hidden), self.plan.names
        return found if names is None else OutputShortlist(names, None).keep(found)

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


class OutputShortlist(NamedTuple):
    """The tokens that a batch may generate (Jean et al. 2015, section 3.2: arXiv:1412.2007). Probabilities are those among them.

    Attributes:
        tokens: (C,) long, ascending.
        plan: their rows of the output layer in the native library's layout; None where `output_plan` gives none.
    """

    tokens: Tensor
    plan: OutputPlan | None

    @classmethod
    @torch.no_grad()  # where gradients are required there is no plan, and the search would go step by step
    def of(cls, output: Linear, tokens: Tensor) -> OutputShortlist:
        """Take the rows of an output layer.

        Args:
            output: R to V.
            tokens: (C,) long, ascending, without duplicates.

        Example:
            >>> OutputShortlist.of(Linear(3, 5), torch.tensor([0, 3])).keep(torch.ones(5)).tolist()
            [1.0, -inf, -inf, 1.0, -inf]
        """
        check_range("shortlist", "tokens", tokens, 0, output.out_features - 1)
        dtype = packed_dtype()
        if not _supported(output) or dtype not in (torch.float32, torch.int8):
            return cls(tokens, None)
        bias = None if output.bias is None else output.bias[tokens]
        return cls(tokens, OutputPlan(Affine(output.weight[tokens], bias), dtype, names=tokens, vocabulary=output.out_features))

    def keep(self, logits: Tensor) -> Tensor:
        """Return logits (..., V) with -inf outside the shortlist."""
        return torch.full_like(logits, -torch.inf).index_copy(-1, self.tokens, logits.index_select(-1, self.tokens))


@takes_tensors
def lazy_logits(hidden: Tensor, output: Linear, shortlist: OutputShortlist | None = None) -> LazyLogits | None:
    """Return lazy logits; None outside `packed_weights` in float32 or int8, and where the native library is not faster.

    Args:
        hidden: (..., R).
        output: R to V.
        shortlist: the only possible tokens; None: all.

    Example:
        >>> lazy_logits(torch.ones(2, 3), Linear(3, 5)) is None
        True
    """
    if hidden.dtype != torch.float32 or hidden.device.type != "cpu":
        return None
    plan = output_plan(output) if shortlist is None else shortlist.plan
    return None if plan is None else LazyLogits(hidden, output, plan)


def output_plan(output: Linear) -> OutputPlan | None:
    """Return an output layer's weights as the native library wants them; None where `lazy_logits` returns none.

    Example:
        >>> output_plan(Linear(3, 5)) is None
        True
    """
    if not _supported(output):
        return None
    return cached_by_owner(output, lambda dtype: OutputPlan(Affine(output.weight, output.bias), dtype))


def _supported(output: Linear) -> bool:
    library = native.library()
    on_cpu = output.weight.dtype == torch.float32 and output.weight.device.type == "cpu"
    return library is not None and bool(library.regard_target()) and on_cpu
