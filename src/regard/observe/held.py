"""What is known of a tensor that was computed from attention weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.observe.labels import Entries
from regard.observe.parts import Parts
from regard.observe.scopes import Scope


@dataclass(slots=True, eq=False)
class Held:
    """A tensor derived from a softmax.

    Attributes:
        tensor: the tensor, kept alive so that its identity stays unique.
        weights: its value without dropout.
        keys: the key index of each entry; None: unknown.
        scope: where the softmax was computed.
        depth: number of active modules there.
        chain: an id shared by all tensors derived from one softmax.
        parts: which of its keys have multiplied values, likewise.
        lead: (B, H), which a tensor (B * H, T, S) folds into its first axis; None: unknown.
        guessed: whether `lead` is only confirmed by a later tensor with more axes.
        lost: the operation after which these are weights only if they sum to 1; empty: none.
        raw: whether it derives from exponents that are not normalized yet.
        summed: whether it is such exponents times values; `weights` are the exponents.
        whole: the softmax's result; None: changed since.
    """

    tensor: Tensor
    weights: Tensor
    keys: Tensor | None
    scope: Scope
    depth: int
    chain: int
    parts: Parts
    lead: tuple[int, int] | None
    guessed: bool
    lost: str = ""
    raw: bool = False
    summed: bool = False
    whole: Held | None = None


@dataclass(slots=True, eq=False)
class Weighted:
    """Weights times values, before the sum over the keys.

    Attributes:
        tensor: the product.
        entries: the origin of its entries; None: other values were added.
        held: the weights.
        values: where the values lie in memory.
        lone: whether there is one value per key, without features.
        lost: the operation that changed the values.
    """

    tensor: Tensor
    entries: Entries | None
    held: Held
    values: int
    lone: bool
    lost: str = ""

    def sums(self, axis: int | None) -> bool:
        """Return whether a sum over an axis (counted from the end) is over the keys."""
        if self.entries is None or axis is None:
            return False
        return self.entries.arranged(self.held.weights, self.held.keys, [axis % self.tensor.dim()]) is not None
