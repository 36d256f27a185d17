"""Weights of one softmax that multiply values in parts, such as those of a learned memory key beside those of the others."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.observe.call import AttentionCall
from regard.observe.labels import narrowed, tells_keys


@dataclass(slots=True, eq=False)
class Parts:
    """The keys of one softmax and what their weights have multiplied.

    Attributes:
        size: number of weights of the softmax.
        count: its number of keys.
        given: the recorded weights (..., T, number of keys), by their keys.
        beside: keys whose weights multiplied values in another way than a sum over keys.
        recorded: the call that holds `given`; None: none yet.

    Example:
        >>> parts = Parts(6, 3)
        >>> parts.join((1, 2), torch.tensor([[0.5, 0.3], [0.1, 0.1]])).tolist() == [[0.5, 0.30000001192092896], [0.10000000149011612] * 2]
        True
        >>> parts.join((0,), torch.tensor([[0.25], [0.75]]))[:, 0].tolist()
        [0.25, 0.75]
    """

    size: int
    count: int
    given: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    beside: set[int] = field(default_factory=set)
    recorded: AttentionCall | None = None

    def columns(self, keys: Tensor | None, weights: Tensor) -> tuple[int, ...] | None:
        """Return the key of each column of weights that are a part of the softmax; None: of the whole, or unknown."""
        count = weights.shape[-1]
        if keys is None or count >= self.count:
            return None
        axis = next((axis for axis in range(-1, -keys.dim() - 1, -1) if keys.shape[axis] == count and tells_keys(keys, axis)), None)
        return None if axis is None else tuple(narrowed(keys).movedim(axis, -1).reshape(-1, count)[0].tolist())

    def are_new(self, keys: Tensor | None) -> bool:
        """Return whether these are some of the keys, but not all, and not all of them recorded."""
        own = own_keys(keys)
        return 0 < len(own) < self.count and not own <= self.known

    def are_given(self, keys: Tensor | None) -> bool:
        """Return whether all of these keys are recorded, or unknown."""
        return own_keys(keys) <= self.known

    @property
    def known(self) -> set[int]:
        """The recorded keys."""
        return {key for keys in self.given for key in keys}

    def join(self, keys: tuple[int, ...], weights: Tensor) -> Tensor | None:
        """Add a part and return the weights of all parts in the order of their keys; None: they cannot be joined."""
        self.given[keys] = weights
        order = torch.tensor([key for part in self.given for key in part], device=weights.device)
        alike = len({part.shape[:-1] for part in self.given.values()}) == 1
        if not alike or len(order.unique()) < len(order) or self.beside - self.known:
            return None
        return torch.cat(list(self.given.values()), -1).index_select(-1, order.argsort())


def own_keys(keys: Tensor | None) -> set[int]:
    """Return the distinct keys of labels, none where they are unknown.

    Example:
        >>> own_keys(torch.tensor([2, 3]).expand(4, 2))
        {2, 3}
    """
    return set() if keys is None else set(narrowed(keys).unique().tolist())
