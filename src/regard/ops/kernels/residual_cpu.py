"""Residual connections with dropout and a layer norm by the native library: forward and backward in one pass each."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel, solid
from regard.ops.kernels.structures import ResidualCall
from regard.ops.tensor_checks import Argument

ROWS = 16  # RESIDUAL_ROWS of csrc/calls.h


_ROWS = Argument("", "... size", "float32", optional=True)
_KERNELS = {
    name: Kernel(
        name,
        ResidualCall,
        *(_ROWS._replace(name=each) for each in ("x", "change", "sum", "out", "grad", "sum_grad", "change_grad")),
        Argument("weight", "size", "float32", optional=True),
        Argument("bias", "size", "float32", optional=True),
        Argument("stats", "rows 2", "float32", optional=True),
        Argument("parts", "tasks 2 size", "float32", optional=True),
    )
    for name in ("residual_forward", "residual_backward")
}


class _Parts(NamedTuple):
    # In the order of the kernels' arguments.
    x: Tensor | None = None
    change: Tensor | None = None
    sum: Tensor | None = None
    out: Tensor | None = None
    grad: Tensor | None = None
    sum_grad: Tensor | None = None
    change_grad: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    stats: Tensor | None = None
    parts: Tensor | None = None


def supports(x: Tensor | None, change: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> bool:
    """Tell whether the native library can do it: plain tensors in float32 on a CPU, the change also in bfloat16.

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

    Only for what `supports` accepts. With a dropout the seed of what is dropped is drawn from torch's generator.

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
        wide = change.float().contiguous()
        total, out, stats = torch.empty_like(wide), None, None
        if weight is not None:
            weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
            out, stats = torch.empty_like(wide), wide.new_empty(wide.numel() // wide.shape[-1], 2)
        given = None if x is None else x.contiguous()
        _run("residual_forward", _Parts(given, wide, total, out, weight=weight, bias=bias, stats=stats), settings, wide)
        ctx.save_for_backward(weight, None if weight is None else total, stats)
        ctx.settings, ctx.dtype, ctx.alone, ctx.biased = settings, change.dtype, x is None, bias is not None
        return total if out is None else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, total, stats = ctx.saved_tensors
        grad = solid(grad)
        sum_grad, sums = grad, None
        if weight is not None:
            rows = grad.numel() // grad.shape[-1]
            sum_grad, sums = torch.empty_like(grad), grad.new_empty(-(-rows // ROWS), 2, grad.shape[-1])
        change_grad = torch.empty_like(grad) if ctx.settings[1] > 0 else None
        if weight is not None or change_grad is not None:
            of_sum = None if weight is None else sum_grad
            parts = _Parts(sum=total, grad=grad, sum_grad=of_sum, change_grad=change_grad, weight=weight, stats=stats, parts=sums)
            _run("residual_backward", parts, ctx.settings, grad)
        # Summed here, in a fixed order, so that the result does not depend on which thread took which rows.
        weight_grad, bias_grad = (None, None) if sums is None else sums.sum(0)
        change_grad = (sum_grad if change_grad is None else change_grad).to(ctx.dtype)
        return None if ctx.alone else sum_grad, change_grad, weight_grad, bias_grad if ctx.biased else None, None


def _run(name: str, parts: _Parts, settings: tuple[int, float, float], like: Tensor) -> None:
    seed, dropout, eps = settings
    kernel, rows = _KERNELS[name], like.numel() // like.shape[-1]
    kernel.run(kernel.make(*parts, seed=seed, dropout=dropout, eps=eps, rows=rows))
