"""Record the attention weights of every attention module of a running model."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.areas import Areas
from regard.attention.base import NeedWeights
from regard.flags import takes_flags


class RecordedWeights(NamedTuple):
    """Attention weights of one call.

    Attributes:
        attention: the called module.
        weights: (B, H, T, S) item weights; H = 1 without heads.
        area_weights: (B, H, T, N), or None without areas or if not requested.
    """

    attention: nn.Module
    weights: Tensor
    area_weights: Tensor | None


class _Watch(NamedTuple):
    record: Callable[[RecordedWeights], None]
    areas: bool
    wanted: Callable[[nn.Module], bool] | None


_watches: ContextVar[tuple[_Watch, ...]] = ContextVar("_watches", default=())


@takes_flags
@contextmanager
def record_weights(*, areas: bool = False) -> Generator[list[RecordedWeights], None, None]:
    """Record the weights of this package's attention modules in a block; `regard.record_weights` covers any model.

    Weights are computed separately, before dropout and without a gradient; results and random numbers of the model do not change. Not
    recorded: compiled code, and attention to a cache of materialized areas (`MultiHeadAttention.attend_items`), as in decoding with learned
    keys.

    Args:
        areas: also record area weights.

    Returns:
        A list to which calls are appended in order.

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
    """Pass the weights of each attention called in this block to `record`.

    Args:
        record: called with each `RecordedWeights`.
        areas: also record area weights.
        wanted: the attentions to record; None: all.

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
    """Return whether recording is on: attentions must then call `record_call`.

    Example:
        >>> is_recording()
        False
    """
    return not torch.compiler.is_compiling() and bool(_watches.get())  # the compiler traces no context variable


def record_call(attention: nn.Module, areas: Areas | None, weigh: Callable[[NeedWeights], Tensor | None]) -> None:
    """Record a call.

    Args:
        attention: the called module.
        areas: its areas, if any.
        weigh: repeats the call for a `need_weights`; returns weights (B, T, S) or (B, H, T, S).
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
        attention: the called module.
        weigh: takes whether areas are wanted; returns item weights (B, H, T, S) and area weights (B, H, T, N) or None.
    """
    watches = [each for each in _watches.get() if each.wanted is None or each.wanted(attention)]
    if not watches:
        return
    token = _watches.set(())  # the repeated call is not recorded
    try:
        with torch.no_grad(), _undrawn(attention):
            items, of_areas = weigh(any(each.areas for each in watches))
    finally:
        _watches.reset(token)
    for each in watches:
        each.record(RecordedWeights(attention, items, of_areas if each.areas else None))


@contextmanager
def _undrawn(attention: nn.Module) -> Generator[None, None, None]:
    """Restore random state and buffers, which a call in training changes, and one that draws a position in evaluation."""
    if not attention.training and not any(getattr(part, "mode", None) == "sample" for part in attention.modules()):
        yield
        return
    buffers = [(buffer, buffer.clone()) for buffer in attention.buffers()] if attention.training else []
    devices = {parameter.device for parameter in attention.parameters() if parameter.device.type not in ("cpu", "meta")}
    if torch.cuda.is_initialized():  # an attention without parameters draws where its inputs are
        devices.add(torch.device("cuda", torch.cuda.current_device()))
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
