"""Weights (B * H, T, S) with batch and heads folded: the shape of later products shows in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from regard.observe.labels import JOINED, PARTS, RESHAPED, TURNED

SHAPED = {"unsqueeze", "squeeze", "contiguous", "__getitem__", "select", "narrow", *RESHAPED, *TURNED}


class _Weights(Protocol):
    weights: Tensor
    lead: tuple[int, int] | None


Held = TypeVar("Held", bound=_Weights)


@dataclass(slots=True, eq=False)
class Context(Generic[Held]):
    """A tensor derived from a product of such weights.

    Attributes:
        tensor: the tensor.
        labels: same shape, the index b * H + h that each entry comes from.
        held: the weights, with (B, H) as `lead`.
    """

    tensor: Tensor
    labels: Tensor
    held: Held

    @classmethod
    def of(cls, product: Tensor, held: Held) -> Context[Held]:
        """Label a product (B * H, T, D) or (B, H, T, D)."""
        first = product.shape[:-2]
        labels = torch.arange(first.numel(), device=product.device).view(*first, 1, 1).repeat(*(1,) * len(first), *product.shape[-2:])
        return cls(product, labels, held)

    def behind(
        self, known: Mapping[int, Context[Held]], func: Callable[..., Any], name: str, call: tuple[Any, Any, Any]
    ) -> tuple[Tensor | None, list[Context[Held]]]:
        """Return the weights (B, H, T, S) once the order is known, else the tensor that a function derived from the product.

        Args:
            known: contexts by the identity of their tensors.
            func: the function.
            name: its name.
            call: its result, and its positional and keyword arguments.
        """
        (out, args, kwargs), labels = call, self.labels
        if name in JOINED:
            found = [known.get(id(arg)) for arg in args[0]]
            if any(each is None or each.held is not self.held for each in found):
                return None, []
            labels = func([each.labels for each in found if each is not None], *args[1:], **kwargs)
        elif name in SHAPED or name in PARTS:
            labels = func(*(labels if arg is self.tensor else arg for arg in args), **kwargs)
        elif not isinstance(out, Tensor) or out.shape != labels.shape:
            return None, []
        parts, outs = [labels] if isinstance(labels, Tensor) else list(labels), out if isinstance(out, tuple) else [out]
        batch, heads = self.held.lead or (1, 1)
        orders = [_are_examples([part // heads for part in parts]), _are_examples([part % batch for part in parts])]
        if orders[0] != orders[1]:
            weights = self.held.weights
            return weights.unflatten(0, (batch, heads)) if orders[0] else weights.unflatten(0, (heads, batch)).transpose(0, 1), []
        return None, [Context(each, part, self.held) for each, part in zip(outs, parts, strict=True)]


def _are_examples(parts: Sequence[Tensor]) -> bool:
    """Return whether indices can be those of examples: they change along one axis, not the feature axis, equally everywhere."""
    apart = all(bool((part == part.flatten()[0]).all()) for part in parts)
    if len(parts) > 1 and not apart and any(not torch.equal(part, parts[0]) for part in parts):
        return False
    return all(any(_changes_along(part, axis) for axis in range(part.dim() - 1)) for part in parts)


def _changes_along(numbers: Tensor, axis: int) -> bool:
    rows = numbers.movedim(axis, 0).flatten(1)
    return bool((rows == rows[:, :1]).all())
