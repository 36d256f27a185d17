"""Looking on: the weights of every attention of a model, recorded while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.area import Areas
from regard.attention.protocol import NeedWeights


class Sight(NamedTuple):
    """What one call of an attention weighed.

    Attributes:
        attention: the module that was called.
        weights: (B, H, T, S) of the items, H = 1 for an attention without heads.
        area_weights: (B, H, T, N) of the areas, or None: there are none, or nobody asked.
    """

    attention: nn.Module
    weights: Tensor
    area_weights: Tensor | None


class _Watch(NamedTuple):
    sights: list[Sight]
    areas: bool


_watch: ContextVar[_Watch | None] = ContextVar("_watch", default=None)


@contextmanager
def watch(*, areas: bool = False) -> Iterator[list[Sight]]:
    """Record what every `Attention` and `MultiHeadAttention` weighs that is called in this block.

    The weights are computed on the side, once more and without a gradient: what the attentions return is not changed by it. They are
    those before dropout; in training, what is chosen or sampled by chance is drawn anew. Compiled code is not watched, nor is attention to
    a store of areas that were made (`MultiHeadAttention.attend_items`), as in the steps of a search with learned keys.

    Args:
        areas: the weights of areas, too.

    Returns:
        The list that the calls are appended to, in their order; it is empty at first.

    Example:
        >>> from regard.attention import MultiHeadAttention
        >>> attention, source = MultiHeadAttention(6, 2), torch.ones(3, 5, 6)
        >>> with watch() as sights:
        ...     context = attention(source, source, source).context
        >>> sights[0].weights.shape
        torch.Size([3, 2, 5, 5])
    """
    sights: list[Sight] = []
    token = _watch.set(_Watch(sights, areas))
    try:
        yield sights
    finally:
        _watch.reset(token)


def watching() -> bool:
    """Say whether anybody looks on: an attention that is called then has to `note` what it weighs.

    Example:
        >>> watching()
        False
    """
    return not torch.compiler.is_compiling() and _watch.get() is not None  # the compiler traces no context variable


def note(attention: nn.Module, areas: Areas | None, weigh: Callable[[NeedWeights], Tensor | None]) -> None:
    """Record a call.

    Args:
        attention: the module that was called.
        areas: what it attends to instead of single items, if so.
        weigh: the same call once more: the weights that it returns, (B, T, S) or (B, H, T, S), for a `need_weights`.
    """
    asked = _watch.get()
    if asked is None:
        return
    token = _watch.set(None)
    try:
        with torch.no_grad():
            of_areas = _with_heads(weigh("areas")) if areas is not None and asked.areas else None
            items = _with_heads(weigh(True)) if areas is None or of_areas is None else areas.project(of_areas)
    finally:
        _watch.reset(token)
    asked.sights.append(Sight(attention, items, of_areas))


def _with_heads(weights: Tensor | None) -> Tensor:
    assert weights is not None
    return weights.unsqueeze(1) if weights.dim() == 3 else weights
