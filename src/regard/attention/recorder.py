"""Looking on: the weights of every attention of a model, recorded while it runs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.areas import Areas
from regard.attention.base import NeedWeights


class RecordedWeights(NamedTuple):
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
    record: Callable[[RecordedWeights], None]
    areas: bool
    wanted: Callable[[nn.Module], bool] | None


_watches: ContextVar[tuple[_Watch, ...]] = ContextVar("_watches", default=())


@contextmanager
def record_weights(*, areas: bool = False) -> Generator[list[RecordedWeights], None, None]:
    """Record what every attention module of this package weighs that is called in this block; `regard.record_weights` does it for any
    model.

    The weights are computed on the side, once more and without a gradient: neither what the attentions return is changed by it, nor the
    random numbers that they draw. They are those before dropout. Compiled code is not watched, nor is attention to a store of areas that
    were made (`MultiHeadAttention.attend_items`), as in the steps of a search with learned keys.

    Args:
        areas: the weights of areas, too.

    Returns:
        The list that the calls are appended to, in their order; it is empty at first.

    Example:
        >>> from regard.attention import MultiHeadAttention
        >>> attention, source = MultiHeadAttention(6, 2), torch.ones(3, 5, 6)
        >>> with record_weights() as recorded:
        ...     context = attention(source, source, source).context
        >>> recorded[0].weights.shape
        torch.Size([3, 2, 5, 5])
    """
    recorded: list[RecordedWeights] = []
    with recording(recorded.append, areas=areas):
        yield recorded


@contextmanager
def recording(
    record: Callable[[RecordedWeights], None], *, areas: bool = False, wanted: Callable[[nn.Module], bool] | None = None
) -> Generator[None, None, None]:
    """Pass on what every attention weighs that is called in this block.

    Args:
        record: called with each `RecordedWeights`.
        areas: the weights of areas, too.
        wanted: the attentions whose weights are computed; None: all.

    Example:
        >>> with recording(print, wanted=lambda attention: False):
        ...     is_recording()
        True
    """
    token = _watches.set((*_watches.get(), _Watch(record, areas, wanted)))
    try:
        yield
    finally:
        _watches.reset(token)


def is_recording() -> bool:
    """Say whether anybody looks on: an attention that is called then has to `record_call` what it weighs.

    Example:
        >>> is_recording()
        False
    """
    return not torch.compiler.is_compiling() and bool(_watches.get())  # the compiler traces no context variable


def record_call(attention: nn.Module, areas: Areas | None, weigh: Callable[[NeedWeights], Tensor | None]) -> None:
    """Record a call.

    Args:
        attention: the module that was called.
        areas: what it attends to instead of single items, if so.
        weigh: the same call once more: the weights that it returns, (B, T, S) or (B, H, T, S), for a `need_weights`.
    """

    def both(need_areas: bool) -> tuple[Tensor, Tensor | None]:
        if areas is None or not need_areas:
            return _with_heads(weigh(True)), None
        of_areas = _with_heads(weigh("areas"))
        return areas.project(of_areas), of_areas

    note_weights(attention, both)


def note_weights(attention: nn.Module, weigh: Callable[[bool], tuple[Tensor, Tensor | None]]) -> None:
    """Record a call whose weights of items and of areas come from one function.

    Args:
        attention: the module that was called.
        weigh: says whether areas are asked for, and returns the weights of items (B, H, T, S) and those of areas (B, H, T, N) or None.
    """
    watches = [each for each in _watches.get() if each.wanted is None or each.wanted(attention)]
    if not watches:
        return
    token = _watches.set(())  # the call that is made once more is not recorded
    try:
        with torch.no_grad(), _undrawn(attention):
            items, of_areas = weigh(any(each.areas for each in watches))
    finally:
        _watches.reset(token)
    for each in watches:
        each.record(RecordedWeights(attention, items, of_areas if each.areas else None))


@contextmanager
def _undrawn(attention: nn.Module) -> Generator[None, None, None]:
    """Leave random numbers and buffers as they are: in training a call draws some and counts in others."""
    if not attention.training:
        yield
        return
    buffers = [(buffer, buffer.clone()) for buffer in attention.buffers()]
    devices = {parameter.device for parameter in attention.parameters() if parameter.device.type not in ("cpu", "meta")}
    cpu = torch.get_rng_state()
    others = [(torch.get_device_module(device), device, torch.get_device_module(device).get_rng_state(device)) for device in devices]
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        for module, device, state in others:
            module.set_rng_state(state, device)
        for buffer, before in buffers:
            buffer.copy_(before)


def _with_heads(weights: Tensor | None) -> Tensor:
    assert weights is not None
    return weights.unsqueeze(1) if weights.dim() == 3 else weights
