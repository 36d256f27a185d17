"""Native top-k log-probabilities of logits."""

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
    """Return whether the native library supports this call: a plain float32 CPU tensor without gradient, and a short list.

    Example:
        >>> supports(torch.ones(2, 3, dtype=torch.float64), 1)
        False
    """
    if logits.dtype != torch.float32 or (torch.is_grad_enabled() and logits.requires_grad):
        return False
    return 1 <= count <= min(MOST, logits.shape[-1]) and native.takes(logits)


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the top log-probabilities (..., count) and indices (..., count) of logits (..., V); see `regard.ops.top_log_probs`.

    Only for calls that `supports` accepts.

    Example:
        >>> logits = torch.zeros(1, 4)
        >>> best(logits, 2)[1].tolist() if supports(logits, 2) else [[0, 1]]
        [[0, 1]]
    """
    values, places = _BEST(logits.contiguous(), count=count)
    return values, places
