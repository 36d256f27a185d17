"""Weights in the layout of native products: copied once, in panels, for many calls."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError, RangeError, ShapeError
from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel, solid
from regard.ops.kernels.structures import PackBytesCall, PackCall, PanelLinear, RowsCall
from regard.ops.tensor_checks import Argument, Signature

_HUGE_PAGE = 1 << 21


class Affine(NamedTuple):
    """Weight and bias of a product, (O, I) and (O,), or of a norm, (E,) and (E,); the bias may be None."""

    weight: Tensor
    bias: Tensor | None


_PACK = Kernel("pack", PackCall, Argument("weight", "outputs inputs", "float32"), Argument("panels", "numbers", "float32"))
_PACK_BYTES = Kernel(
    "pack_bytes",
    PackBytesCall,
    Argument("weight", "outputs inputs", "float32"),
    Argument("bytes", "whole quads", "int8"),
    Argument("scales", "whole", "float32"),
    Argument("offsets", "whole", "int32"),
)
_ROWS = Kernel(
    "rows", RowsCall, Argument("x", "rows inputs", "float32"), results=[Argument("y", "rows panels", "float32")], operation="linear"
)
_MAX_BYTES_INPUTS = 1 << 16  # a sum of more products of bytes could overflow 32 bits
_AFFINE = Signature("packed weights", Argument("weight", "O I", "float32"), Argument("bias", "O", "float32", optional=True))


class PackedWeights:
    """Owner of the memory that structures of native calls point to: packed products and other weights.

    Args:
        dtype: torch.float32, or torch.int8: weights of products are rounded to 8 bits, with a scale per output, and their inputs row by
            row; 7 bits on x86 processors without VNNI.

    Attributes:
        widest: max number of outputs of a product so far, in whole panels.

    Example:
        >>> import torch
        >>> native.library() is None or PackedWeights().linear(Affine(torch.ones(3, 2), None)).outputs == 3
        True
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        library = native.library()
        assert library is not None
        self._panel = library.regard_panel(ctypes.byref(PackCall()))
        self._kept: list[Tensor] = []
        self._bytes = dtype == torch.int8
        self.widest = 0

    def keep(self, part: Tensor) -> int:
        """Keep a contiguous copy of a tensor alive, and return its address.

        Raises:
            ConfigError: it is not a plain CPU tensor.
        """
        self._kept.append(solid(part.detach()))
        if not part.is_cpu:
            raise ConfigError(f"packed weights: the native library runs on CPUs, a weight is on {part.device}")
        return self._kept[-1].data_ptr()

    def whole(self, outputs: int) -> int:
        """Return the number of outputs of a product rounded up to whole panels."""
        return -(-outputs // self._panel) * self._panel

    def linear(self, part: Affine) -> PanelLinear:
        """Pack a product.

        Raises:
            ShapeError: the weight is not (O, I), or the bias not (O,), in float32.
            RangeError: there are too many inputs for 8 bits.
        """
        _AFFINE.check(*part)
        weight = solid(part.weight.detach())
        outputs, inputs = weight.shape
        whole = self.whole(outputs)
        self.widest = max(self.widest, whole)
        found = PanelLinear(bias=None if part.bias is None else self.keep(part.bias), inputs=inputs, outputs=outputs)
        if not self._bytes:
            panels = _room(whole * inputs)
            _PACK(weight, panels)
            found.panels = self.keep(panels)
            return found
        if inputs > _MAX_BYTES_INPUTS:
            raise RangeError(f"packed weights: 8-bit products take at most {_MAX_BYTES_INPUTS:,} inputs, found {inputs:,}")
        quads = -(-inputs // 4) * 4
        panels, scales = _room(whole * quads // 4).view(torch.int8).view(whole, quads), weight.new_empty(whole)
        offsets = torch.empty(whole, dtype=torch.int32, device="cpu")
        _PACK_BYTES(weight, panels, scales, offsets)
        found.bytes, found.scales, found.offsets = map(self.keep, (panels, scales, offsets))
        return found


class PackedLinear:
    """A product of many rows with a weight that is packed once.

    Args:
        part: float32 on the CPU, (O, I) and (O,) or None.
        dtype: see `PackedWeights`.

    Example:
        >>> import torch
        >>> part = Affine(torch.eye(3), None)
        >>> native.library() is None or PackedLinear(part, torch.int8)(torch.ones(2, 3)).shape == (2, 3)
        True
    """

    def __init__(self, part: Affine, dtype: torch.dtype) -> None:
        self._shelf = PackedWeights(dtype)
        self._layer = self._shelf.linear(part)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (R, I) to (R, O).

        Raises:
            ShapeError: x is not (R, I), in float32.
        """
        if x.shape[-1] != self._layer.inputs:
            raise ShapeError(f"linear: x has {x.shape[-1]} features, the packed weight takes {self._layer.inputs}")
        found = _ROWS(x.contiguous(), layer=self._layer, panels=self._shelf.widest)[0]
        return found if self._layer.outputs == self._shelf.widest else found[:, : self._layer.outputs]


def weight_bits() -> int:
    """Return the bits of weights in int8 products of the native library: 7 on x86 processors without VNNI, otherwise 8.

    Example:
        >>> weight_bits() in (7, 8) if native.library() is not None else True
        True
    """
    packed = PackedWeights(torch.int8)
    largest = ctypes.c_int8.from_address(packed.linear(Affine(torch.ones(1, 1), None)).bytes).value
    return largest.bit_length() + 1


def _room(count: int) -> Tensor:
    """Allocate float32 memory, in huge pages if available, because every product reads all of its weight."""
    size = 4 * count
    if size < _HUGE_PAGE // 2 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, dtype=torch.float32, device="cpu")
    memory = mmap.mmap(-1, (size // _HUGE_PAGE + 2) * _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.float32)
    start = -whole.data_ptr() % _HUGE_PAGE // 4
    return whole[start : start + count]
