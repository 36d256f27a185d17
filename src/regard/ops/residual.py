"""Residual connection, dropout and layer norm of a Transformer sub-layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.kernels import residual_cpu
from regard.ops.number_checks import LARGEST_SCALE, check_number, check_share
from regard.ops.tensor_checks import Argument, Signature

_ARGUMENTS = Signature(
    "residual",
    Argument("x", "... E"),
    Argument("change", "... E"),
    Argument("weight", "E", optional=True),
    Argument("bias", "E", dtype="weight", optional=True),
)


@takes_tensors
def residual(
    x: Tensor, change: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, dropout: float = 0.0, eps: float = 1e-5
) -> Tensor:
    """Add a sub-layer's output to its input, and normalize the sum.

        y = norm(x + dropout(change)),  norm(s) = (s - mean(s)) / sqrt(variance(s) + eps) * weight + bias

    Vaswani et al. 2017, sections 3.1 and 5.4; Ba et al. 2016 for the norm. Dropout uses torch's global generator. In float32 on a CPU: one
    pass over memory forward and one backward; with a norm differentiable once.

    Args:
        x: (..., E).
        change: (..., E).
        weight: (E,), or None: no norm.
        bias: (E,) in the weight's dtype, or None: zeros; requires a weight.
        dropout: p, 0 <= p < 1: an element of the change becomes 0 with probability p, the others are divided by 1 - p.
        eps: added to the variance.

    Returns:
        (..., E).

    Raises:
        ShapeError: x and change differ in shape, weight or bias do not fit, or there is a bias without a weight.
        ConfigError: a dropout outside of 0 <= p < 1, or an eps that is negative or no finite number.

    Example:
        >>> residual(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]), torch.ones(2), torch.zeros(2)).tolist()
        [-0.9999949932098389, 0.9999949932098389]
    """
    _ARGUMENTS.check(x, change, weight, bias)
    check_share("residual", "dropout", dropout)
    check_number("residual", "eps", eps, 0, LARGEST_SCALE)
    if weight is None and bias is not None:
        raise ShapeError("residual: found a bias without a weight; a norm has both or a weight alone")
    # Without a gradient there is less to save than the call costs.
    if torch.is_grad_enabled() and residual_cpu.supports(x, change, weight, bias):
        return residual_cpu.residual(x, change, weight, bias, dropout=dropout, eps=eps)
    y = x + F.dropout(change, dropout)
    return y if weight is None else F.layer_norm(y, x.shape[-1:], weight, bias, eps)


@takes_tensors
def dropout(x: Tensor, probability: float) -> Tensor:
    """Drop elements at random: `torch.nn.functional.dropout` in training mode, faster on a CPU.

    Args:
        x: any shape of one axis or more.
        probability: p, 0 <= p < 1: an element becomes 0 with this probability, the others are divided by 1 - p.

    Returns:
        The same shape and type.

    Raises:
        ConfigError: a probability outside of 0 <= p < 1.

    Example:
        >>> dropout(torch.ones(2, 3), 0.0).sum().item()
        6.0
    """
    check_share("dropout", "probability", probability)
    if not probability:
        return x
    if x.dtype == torch.float32 and x.dim() and residual_cpu.supports(None, x):
        return residual_cpu.residual(None, x, None, None, dropout=probability, eps=0.0)
    return F.dropout(x, probability)


class Dropout(torch.nn.Dropout):
    """`torch.nn.Dropout` computed by `dropout`, without its `inplace`.

    Args:
        p: see `dropout`.

    Raises:
        ConfigError: a probability outside of 0 <= p < 1.

    Example:
        >>> Dropout(0.5).eval()(torch.ones(2, 3)).sum().item()
        6.0
    """

    def __init__(self, p: float = 0.5) -> None:
        check_share("Dropout", "p", p)
        super().__init__(p)

    def forward(self, input: Tensor) -> Tensor:
        """Map any shape of one axis or more to the same."""
        return dropout(input, self.p) if self.training else input
