"""The greatest log-probabilities of rows of logits, by the native library."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.structures import BestCall
from regard.ops.tensor_checks import Argument

# As in csrc/calls.h: a longer list would be slower than sorting.
MOST = 64

_BEST = Kernel(
    "best",
    BestCall,
    Argument("logits", "...rows size", "float32"),
    results=[Argument("values", "...rows count", "float32"), Argument("places", "...rows count", "int64")],
)


def supports(logits: Tensor, count: int) -> bool:
    """Tell whether the native library can do it: a plain tensor in float32 on a CPU, no gradient asked, a short list.

    Example:
        >>> supports(torch.ones(2, 3, dtype=torch.float64), 1)
        False
    """
    if logits.dtype != torch.float32 or (torch.is_grad_enabled() and logits.requires_grad):
        return False
    return 1 <= count <= min(MOST, logits.shape[-1]) and native.takes(logits)


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (..., count) and places (..., count) of logits (..., V); see `regard.ops.top_log_probs`.

    Only for what `supports` accepts.

    Example:
        >>> logits = torch.zeros(1, 4)
        >>> best(logits, 2)[1].tolist() if supports(logits, 2) else [[0, 1]]
        [[0, 1]]
    """
    values, places = _BEST(logits.contiguous(), count=count)
    return values, places
