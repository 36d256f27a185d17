"""Weights as the native library's products read them: copied once, in panels, for many calls."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native

_HUGE_PAGE = 1 << 21


class Affine(NamedTuple):
    """A product or a norm: its weight, (O, I) or (E,), and bias, (O,) or (E,) or None."""

    weight: Tensor
    bias: Tensor | None


class PanelLinear(ctypes.Structure):
    """Mirrors PanelLinear of csrc/panels.h; one of nothing has no outputs."""

    _fields_ = [("panels", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("inputs", ctypes.c_int64), ("outputs", ctypes.c_int64)]


class _Pack(ctypes.Structure):
    # Mirrors PackCall.
    _fields_ = [("weight", ctypes.c_void_p), ("panels", ctypes.c_void_p), ("inputs", ctypes.c_int64), ("outputs", ctypes.c_int64)]


class Shelf:
    """Keeps what structures of native calls point to: packed copies of products, and other weights as they are.

    Attributes:
        widest: the most outputs of a product so far, in whole panels.

    Example:
        >>> import torch
        >>> native.library() is None or Shelf().linear(Affine(torch.ones(3, 2), None)).outputs == 3
        True
    """

    def __init__(self) -> None:
        library = native.library()
        assert library is not None
        self._library = library
        self._panel = library.regard_panel(ctypes.byref(_Pack()))
        self._kept: list[Tensor] = []
        self.widest = 0

    def keep(self, part: Tensor) -> int:
        """Keep a tensor, contiguous, and return where it is."""
        self._kept.append(part.detach().contiguous())
        return self._kept[-1].data_ptr()

    def whole(self, outputs: int) -> int:
        """Return how many numbers the outputs of a product take, in whole panels."""
        return -(-outputs // self._panel) * self._panel

    def linear(self, part: Affine) -> PanelLinear:
        """Pack a product."""
        weight = part.weight.detach().contiguous()
        outputs, inputs = weight.shape
        whole = self.whole(outputs)
        panels = _room(whole * inputs)
        self._library.regard_pack(ctypes.byref(_Pack(weight.data_ptr(), panels.data_ptr(), inputs, outputs)))
        self._kept.append(panels)
        self.widest = max(self.widest, whole)
        return PanelLinear(panels.data_ptr(), None if part.bias is None else self.keep(part.bias), inputs, outputs)


def _room(count: int) -> Tensor:
    """Return memory for float32 numbers, in huge pages where there are such: every product goes through all of its weight."""
    size = 4 * count
    if size < _HUGE_PAGE // 2 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, dtype=torch.float32)
    memory = mmap.mmap(-1, (size // _HUGE_PAGE + 2) * _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.float32)
    start = -whole.data_ptr() % _HUGE_PAGE // 4
    return whole[start : start + count]
