"""Native top-k of an output layer, without storing the logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import RangeError, ShapeError
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.panels import Affine, PackedWeights
from regard.ops.kernels.structures import VocabularyCall
from regard.ops.tensor_checks import Argument, Signature

_BEST = Kernel(
    "vocabulary",
    VocabularyCall,
    Argument("x", "...rows width", "float32"),
    Argument("forbidden", "forbidden_count", "int64"),
    Argument("totals", "sentences share", "float32", optional=True),
    results=[Argument("log_probs", "...rows count", "float32"), Argument("places", "...rows count", "int64")],
)
_OUTPUT = Signature("output layer", Argument("weight", "V R", "float32"), Argument("bias", "V", "float32", optional=True))


class RunningTotals(NamedTuple):
    """Totals (B, K), descending, to which log-probabilities are added; only the `need` largest sums per sentence matter.

    Entries of the `instead` output do not count towards `need`.
    """

    totals: Tensor
    need: int


class OutputPlan:
    """Weights of an output layer in the native library's layout, copied once for many steps.

    Args:
        output: float32 on the CPU, (V, R) and (V,) or None.
        dtype: of the packed product; see `PackedWeights`.
        names: (C,) long, ascending: the tokens of the outputs where `output` has some rows of a vocabulary only; None: all, in order.
        vocabulary: number of tokens; None: as many as outputs.

    Example:
        >>> output = Affine(torch.eye(3), None)
        >>> hidden, forbidden = torch.ones(2, 3), torch.tensor([0])
        >>> from regard.ops.kernels import native
        >>> native.library() is None or OutputPlan(output).best(hidden, 1, forbidden, instead=2, least=-9.0)[1].tolist() == [[1], [1]]
        True
    """

    def __init__(
        self, output: Affine, dtype: torch.dtype = torch.float32, *, names: Tensor | None = None, vocabulary: int | None = None
    ) -> None:
        _OUTPUT.check(*output)
        self._shelf, self._width = PackedWeights(dtype), output.weight.shape[1]
        if dtype == torch.float32 and output.bias is not None:
            # The bias is the weight of a constant input 1: saves a pass over the logits.
            output = Affine(torch.cat([output.weight, output.bias.unsqueeze(1)], 1), None)
        self._output = self._shelf.linear(output)
        self.names, self.vocabulary = names, self.size if vocabulary is None else vocabulary

    def places(self, tokens: Tensor) -> Tensor:
        """Return the outputs (m,) of those of the tokens (n,) that have one, in order."""
        if self.names is None:
            return tokens
        found = torch.searchsorted(self.names, tokens).clamp(max=len(self.names) - 1)
        return found[self.names[found] == tokens]

    @property
    def size(self) -> int:
        """Number of outputs."""
        return self._output.outputs

    def best(
        self, hidden: Tensor, count: int, forbidden: Tensor, *, instead: int, least: float, sums: RunningTotals | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the largest log-probabilities of the outputs, and their tokens.

        Args:
            hidden: (..., R) float32.
            count: C, 1 to the number of outputs.
            forbidden: (n,) long, tokens excluded from the result, but not from the normalization.
            instead: the token that is returned first if no other is left or possible.
            least: min log-probability of `instead`.
            sums: for hidden (B, K, R), running totals; hypotheses that cannot matter get `least` throughout.

        Returns:
            Log-probabilities (..., C), descending, and tokens (..., C), ties ascending; -inf after the last one.

        Raises:
            ShapeError: hidden, forbidden or sums do not have these shapes and dtypes.
            RangeError: a count or `instead` is out of range.
        """
        inputs = self._width
        if hidden.shape[-1] != inputs:
            raise ShapeError(f"the output layer takes hidden (..., {inputs}), found {tuple(hidden.shape)}")
        if self.names is not None:
            forbidden, instead = self.places(forbidden), int(next(iter(self.places(torch.tensor([instead])).tolist()), -1))
        if not (1 <= count <= self.size and 0 <= instead < self.size):
            raise RangeError(f"the output layer has {self.size} outputs; the best {count} were requested, or {instead} instead of none")
        if sums is not None and (sums.totals.shape != hidden.shape[:-1] or hidden.dim() != 3 or sums.need < 1):
            found = f"{tuple(sums.totals.shape)} and {tuple(hidden.shape)}, of which {sums.need} matter"
            raise ShapeError(f"the output layer: expected totals (B, K) for hidden (B, K, R), at least 1 of them matters; found {found}")
        totals, need = (None, 0) if sums is None else (sums.totals.contiguous(), sums.need)
        given: dict[str, Any] = {"output": self._output, "count": count, "instead": instead, "least": least, "share": 1, "need": need}
        log_probs, places = _BEST(hidden.contiguous(), forbidden.contiguous(), totals, **given)
        return log_probs, places if self.names is None else self.names[places]

    def prepared(self, hidden: Tensor, forbidden: Tensor, *, instead: int, least: float) -> VocabularyCall:
        """Return a prepared call for the best output of each row of the buffer `hidden` (N, R), contiguous; see `best`."""
        given: dict[str, Any] = {"output": self._output, "count": 1, "instead": instead, "least": least, "share": 1}
        call, call.results = _BEST.make(hidden, forbidden.contiguous(), None, **given)
        return call
