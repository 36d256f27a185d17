"""Native cross-entropy of logits in three passes per row instead of eight over the whole tensor."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.structures import LossCall, LossPairCall
from regard.ops.tensor_checks import Argument

_LOSS = Kernel(
    "loss",
    LossCall,
    Argument("logits", "rows size", "float32", optional=True),
    Argument("half", "rows size", "bfloat16", optional=True),
    Argument("target", "rows", "int64", below="size"),
    results=[Argument("nll", "rows", "float32"), Argument("uniform", "rows", "float32"), Argument("correct", "rows", "uint8")],
    operation="linear_cross_entropy",
)
_PAIR = Kernel(
    "loss_pair",
    LossPairCall,
    Argument("logits", "2 rows size", "float32", optional=True),
    Argument("half", "2 rows size", "bfloat16", optional=True),
    Argument("target", "rows", "int64", below="size"),
    results=[
        Argument("nll", "2 rows", "float32"),
        Argument("uniform", "2 rows", "float32"),
        Argument("correct", "2 rows", "uint8"),
        Argument("divergence", "rows", "float32"),
    ],
    operation="consistent_cross_entropy",
)


class Losses(NamedTuple):
    """Per row (N,): negative log-likelihood, the same against the uniform distribution, and whether the target was the best class."""

    nll: Tensor
    uniform: Tensor
    correct: Tensor


def supports(logits: Tensor, target: Tensor) -> bool:
    """Return whether the native library supports this call: plain contiguous CPU logits of float32 or bfloat16 with at least one class.

    Example:
        >>> supports(torch.ones(2, 3, dtype=torch.float64), torch.tensor([0, 1]))
        False
    """
    return (
        logits.dtype in (torch.float32, torch.bfloat16) and logits.is_contiguous() and logits.shape[-1] > 0 and native.takes(logits, target)
    )


def cross_entropy_(logits: Tensor, target: Tensor, *, smoothing: float, gradient: bool) -> Losses:
    """Compute the losses of logits (N, V) and targets (N,); with `gradient` the logits become the gradient of the smoothed loss.

    Computed in float32, bfloat16 logits too; only what is stored is rounded.

    Only for calls that `supports` accepts; see `regard.ops.linear_cross_entropy`.

    Raises:
        RangeError: a target is out of range; the message holds V.

    Example:
        >>> logits, target = torch.zeros(1, 2), torch.tensor([1])
        >>> ready = supports(logits, target)
        >>> cross_entropy_(logits, target, smoothing=0.0, gradient=True).nll.shape if ready else target.shape
        torch.Size([1])
    """
    return Losses(*_LOSS(*_stored(logits), target.contiguous(), smoothing=smoothing, gradient=gradient))


def consistent_cross_entropy_(logits: Tensor, target: Tensor, *, smoothing: float, alpha: float) -> tuple[Losses, Tensor]:
    """Compute the losses (2, N) of two passes' logits (2, N, V) and targets (N,), and the divergences (N,) of the passes.

    The logits become the gradient of the mean smoothed loss and alpha / 4 times the divergence. Only for calls that `supports` accepts; see
    `regard.ops.consistent_cross_entropy`.

    Raises:
        RangeError: a target is out of range; the message holds V.

    Example:
        >>> logits, target = torch.zeros(2, 1, 2), torch.tensor([1])
        >>> ready = supports(logits, target)
        >>> consistent_cross_entropy_(logits, target, smoothing=0.0, alpha=5.0)[1].shape if ready else target.shape
        torch.Size([1])
    """
    nll, uniform, correct, divergence = _PAIR(*_stored(logits), target.contiguous(), smoothing=smoothing, alpha=alpha)
    return Losses(nll, uniform, correct), divergence


def _stored(logits: Tensor) -> tuple[Tensor | None, Tensor | None]:
    return (None, logits) if logits.dtype == torch.bfloat16 else (logits, None)
