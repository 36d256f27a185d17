"""Weights as the native library's products read them: copied once, in panels, for many calls."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel, solid
from regard.ops.kernels.structures import PackCall, PanelLinear
from regard.ops.tensor_checks import Argument, Signature

_HUGE_PAGE = 1 << 21


class Affine(NamedTuple):
    """A product or a norm: its weight, (O, I) or (E,), and bias, (O,) or (E,) or None."""

    weight: Tensor
    bias: Tensor | None


_PACK = Kernel("pack", PackCall, Argument("weight", "outputs inputs", "float32"), Argument("panels", "numbers", "float32"))
_AFFINE = Signature("packed weights", Argument("weight", "O I", "float32"), Argument("bias", "O", "float32", optional=True))


class PackedWeights:
    """Keeps what structures of native calls point to: packed copies of products, and other weights as they are.

    Attributes:
        widest: the most outputs of a product so far, in whole panels.

    Example:
        >>> import torch
        >>> native.library() is None or PackedWeights().linear(Affine(torch.ones(3, 2), None)).outputs == 3
        True
    """

    def __init__(self) -> None:
        library = native.library()
        assert library is not None
        self._panel = library.regard_panel(ctypes.byref(PackCall()))
        self._kept: list[Tensor] = []
        self.widest = 0

    def keep(self, part: Tensor) -> int:
        """Keep a tensor, contiguous, and return where it is.

        Raises:
            ConfigError: it is no plain tensor on a CPU.
        """
        self._kept.append(solid(part.detach()))
        if not part.is_cpu:
            raise ConfigError(f"packed weights: the native library runs on CPUs, a weight is on {part.device}")
        return self._kept[-1].data_ptr()

    def whole(self, outputs: int) -> int:
        """Return how many numbers the outputs of a product take, in whole panels."""
        return -(-outputs // self._panel) * self._panel

    def linear(self, part: Affine) -> PanelLinear:
        """Pack a product.

        Raises:
            ShapeError: the weight is not (O, I), or the bias not (O,), in float32.
        """
        _AFFINE.check(*part)
        weight = solid(part.weight.detach())
        outputs, inputs = weight.shape
        whole = self.whole(outputs)
        panels = _room(whole * inputs)
        _PACK(weight, panels)
        self._kept.append(panels)
        self.widest = max(self.widest, whole)
        return PanelLinear(panels.data_ptr(), None if part.bias is None else self.keep(part.bias), inputs, outputs)


def _room(count: int) -> Tensor:
    """Return memory for float32 numbers, in huge pages where there are such: every product goes through all of its weight."""
    size = 4 * count
    if size < _HUGE_PAGE // 2 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, dtype=torch.float32, device="cpu")
    memory = mmap.mmap(-1, (size // _HUGE_PAGE + 2) * _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.float32)
    start = -whole.data_ptr() % _HUGE_PAGE // 4
    return whole[start : start + count]
