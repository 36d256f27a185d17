"""Cross-entropy of logits by the native library: three quick passes over a row instead of eight over all of them."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native

OUTSIDE = 2  # what the library returns for a target that is no class


class _Call(ctypes.Structure):
    # Mirrors LossCall of csrc/loss.h.
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("logits", "target", "nll", "uniform", "correct")),
        ("smoothing", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("rows", "size", "gradient", "threads")),
    ]


class Losses(NamedTuple):
    """Of each row (N,): negative log-likelihood, the same against the uniform distribution, and whether the target was the best class."""

    nll: Tensor
    uniform: Tensor
    correct: Tensor


def supports(logits: Tensor) -> bool:
    """Tell whether the native library can do it: contiguous float32 on a CPU, at least one class, the library there.

    Example:
        >>> supports(torch.ones(2, 3, dtype=torch.float64))
        False
    """
    plain = logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.is_contiguous() and logits.shape[-1] > 0
    return plain and not torch.compiler.is_compiling() and native.library() is not None


def cross_entropy_(logits: Tensor, target: Tensor, *, smoothing: float, gradient: bool) -> Losses:
    """Measure logits (N, V) against targets (N,); with `gradient` they become the gradient of the smoothed loss.

    Only for what `supports` accepts; see `regard.ops.linear_cross_entropy`.

    Raises:
        IndexError: a target is no class; the message holds V.

    Example:
        >>> logits = torch.zeros(1, 2)
        >>> cross_entropy_(logits, torch.tensor([1]), smoothing=0.0, gradient=True).nll.shape if supports(logits) else torch.Size([1])
        torch.Size([1])
    """
    library = native.library()
    assert library is not None
    rows, size = logits.shape
    target = target.contiguous()
    found = Losses(logits.new_empty(rows), logits.new_empty(rows), torch.empty(rows, dtype=torch.uint8))
    parts = (logits, target, *found)
    call = _Call(*(part.data_ptr() for part in parts), smoothing, rows, size, gradient, torch.get_num_threads())
    if library.regard_loss(ctypes.byref(call)) == OUTSIDE:
        raise IndexError(f"linear_cross_entropy: a target is not within 0 to {size - 1}")
    return found
