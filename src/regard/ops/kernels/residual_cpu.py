"""Native residual connections with dropout and layer norm: one pass forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel, solid
from regard.ops.kernels.second_order import once_differentiable
from regard.ops.kernels.structures import ResidualCall
from regard.ops.tensor_checks import Argument, is_ordinary

ROWS = 16  # RESIDUAL_ROWS of csrc/calls.h
_WEIGHT = Argument("weight", "size", "float32", optional=True)
_FORWARD = Kernel(
    "residual_forward",
    ResidualCall,
    Argument("change", "...rows size", "float32"),
    Argument("x", "...rows size", "float32", optional=True),
    _WEIGHT,
    _WEIGHT._replace(name="bias"),
    results=[*(Argument(name, "...rows size", "float32") for name in ("sum", "out")), Argument("stats", "rows 2", "float32")],
)
_BACKWARD = Kernel(
    "residual_backward",
    ResidualCall,
    Argument("grad", "...rows size", "float32"),
    Argument("sum", "...rows size", "float32", optional=True),
    _WEIGHT,
    Argument("stats", "rows 2", "float32", optional=True),
    results=[
        *(Argument(name, "...rows size", "float32") for name in ("sum_grad", "change_grad")),
        Argument("parts", "tasks 2 size", "float32"),
    ],
)


def supports(x: Tensor | None, change: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> bool:
    """Return whether the native library supports this call: plain float32 CPU tensors, the change also in bfloat16.

    Args:
        x: (..., E) or None.
        change: (..., E).
        weight: (E,) or None.
        bias: (E,) or None.

    Example:
        >>> supports(torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3))
        False
    """
    wide = all(part is None or part.dtype == torch.float32 for part in (x, weight, bias))
    if not wide or change.dtype not in (torch.float32, torch.bfloat16) or not change.numel():
        return False
    return native.takes(x, change, weight, bias)


def residual(x: Tensor | None, change: Tensor, weight: Tensor | None, bias: Tensor | None, *, dropout: float, eps: float) -> Tensor:
    """Compute `norm(x + dropout(change))`, without weight the sum alone, without x `dropout(change)`; see `regard.ops.residual`.

    Only for calls accepted by `supports`. Dropout takes its seed from torch's generator.

    Example:
        >>> x = torch.ones(2, 3)
        >>> residual(x, x, None, None, dropout=0.0, eps=1e-5).sum().item() if supports(x, x) else 12.0
        12.0
    """
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if dropout else 0
    return _Residual.apply(x, change, weight, bias, (seed, dropout, eps))


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor | None, change: Tensor, weight: Tensor | None, bias: Tensor | None, settings: tuple[int, float, float]
    ) -> Tensor:
        seed, dropout, eps = settings
        given = (None if part is None else part.contiguous() for part in (x, weight, bias))
        without = ("out", "stats") if weight is None else ()
        total, out, stats = _FORWARD(change.float().contiguous(), *given, without=without, seed=seed, dropout=dropout, eps=eps)
        ctx.save_for_backward(weight, None if weight is None else total, stats)
        ctx.settings, ctx.dtype, ctx.alone, ctx.biased = settings, change.dtype, x is None, bias is not None
        return total if out is None else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.saved_tensors[0] is not None or (is_ordinary(grad) and not torch.is_grad_enabled()):
            return _Residual._gradients(ctx, grad)
        # Without a norm the gradient is a product with what the dropout makes of ones, which autograd and vmap can follow.
        seed, dropout, eps = ctx.settings
        kept, *_ = _FORWARD(torch.ones(grad.shape), None, None, None, without=("out", "stats"), seed=seed, dropout=dropout, eps=eps)
        return None if ctx.alone else grad, (grad * kept).to(ctx.dtype), None, None, None

    @staticmethod
    @once_differentiable
    def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weight, total, stats), (seed, dropout, eps) = ctx.saved_tensors, ctx.settings
        grad = solid(grad)
        sum_grad, change_grad, sums = grad, None, None
        if weight is not None or dropout > 0:
            without = (*(("sum_grad", "parts") if weight is None else ()), *(() if dropout > 0 else ("change_grad",)))
            given = {"seed": seed, "dropout": dropout, "eps": eps, "tasks": -(-grad.numel() // (grad.shape[-1] * ROWS))}
            weight = None if weight is None else weight.contiguous()
            sum_grad, change_grad, sums = _BACKWARD(grad, total, weight, stats, without=without, **given)
            sum_grad = grad if sum_grad is None else sum_grad
        # Summed here in a fixed order, so that the result does not depend on the assignment of threads.
        weight_grad, bias_grad = (None, None) if sums is None else sums.sum(0)
        change_grad = (sum_grad if change_grad is None else change_grad).to(ctx.dtype)
        return None if ctx.alone else sum_grad, change_grad, weight_grad, bias_grad if ctx.biased else None, None
