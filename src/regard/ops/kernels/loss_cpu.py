"""Cross-entropy of logits by the native library: three quick passes over a row instead of eight over all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.structures import LossCall
from regard.ops.tensor_checks import Argument

_LOSS = Kernel(
    "loss",
    LossCall,
    Argument("logits", "rows size", "float32"),
    Argument("target", "rows", "int64", below="size"),
    results=[Argument("nll", "rows", "float32"), Argument("uniform", "rows", "float32"), Argument("correct", "rows", "uint8")],
    operation="linear_cross_entropy",
)


class Losses(NamedTuple):
    """Of each row (N,): negative log-likelihood, the same against the uniform distribution, and whether the target was the best class."""

    nll: Tensor
    uniform: Tensor
    correct: Tensor


def supports(logits: Tensor, target: Tensor) -> bool:
    """Tell whether the native library can do it: plain tensors on a CPU, contiguous logits in float32, at least one class.

    Example:
        >>> supports(torch.ones(2, 3, dtype=torch.float64), torch.tensor([0, 1]))
        False
    """
    return logits.dtype == torch.float32 and logits.is_contiguous() and logits.shape[-1] > 0 and native.takes(logits, target)


def cross_entropy_(logits: Tensor, target: Tensor, *, smoothing: float, gradient: bool) -> Losses:
    """Measure logits (N, V) against targets (N,); with `gradient` they become the gradient of the smoothed loss.

    Only for what `supports` accepts; see `regard.ops.linear_cross_entropy`.

    Raises:
        RangeError: a target is no class; the message holds V.

    Example:
        >>> logits, target = torch.zeros(1, 2), torch.tensor([1])
        >>> ready = supports(logits, target)
        >>> cross_entropy_(logits, target, smoothing=0.0, gradient=True).nll.shape if ready else target.shape
        torch.Size([1])
    """
    return Losses(*_LOSS(logits, target.contiguous(), smoothing=smoothing, gradient=gradient))
