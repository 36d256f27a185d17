"""The greatest log-probabilities of rows of logits, by the native library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from regard.ops.kernels import native

# As in csrc/best.h: a longer list would be slower than sorting.
MOST = 64


class _Call(ctypes.Structure):
    # Mirrors BestCall of csrc/best.h.
    _fields_ = [(name, ctypes.c_void_p) for name in ("logits", "values", "places")] + [
        (name, ctypes.c_int64) for name in ("rows", "size", "count", "threads")
    ]


def supports(logits: Tensor, count: int) -> bool:
    """Tell whether the native library can do it: float32 on a CPU, no gradient asked, a short list, not traced, the library there.

    Example:
        >>> supports(torch.ones(2, 3, dtype=torch.float64), 1)
        False
    """
    if logits.dtype != torch.float32 or logits.device.type != "cpu" or (torch.is_grad_enabled() and logits.requires_grad):
        return False
    if torch.compiler.is_compiling():
        return False
    return 1 <= count <= min(MOST, logits.shape[-1]) and native.library() is not None


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (..., count) and places (..., count) of logits (..., V); see `regard.ops.top_log_probs`.

    Only for what `supports` accepts.

    Example:
        >>> logits = torch.zeros(1, 4)
        >>> best(logits, 2)[1].tolist() if supports(logits, 2) else [[0, 1]]
        [[0, 1]]
    """
    library = native.library()
    assert library is not None
    logits = logits.contiguous()
    leading, size = logits.shape[:-1], logits.shape[-1]
    values = logits.new_empty(*leading, count)
    places = torch.empty(*leading, count, dtype=torch.long)
    pointers = (part.data_ptr() for part in (logits, values, places))
    call = _Call(*pointers, leading.numel(), size, count, torch.get_num_threads())
    if library.regard_best(ctypes.byref(call)):
        raise MemoryError("regard_best: no memory for the threads")
    return values, places
