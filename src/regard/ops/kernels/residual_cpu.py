"""Residual connections with dropout and a layer norm by the native library: forward and backward in one pass each."""

from __future__ import annotations

import ctypes
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.kernels import native

ROWS = 16  # RESIDUAL_ROWS of csrc/residual.h


@dataclass
class _Parts:
    # The pointers of ResidualCall of csrc/residual.h, in its order.
    x: Tensor | None = None
    change: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    sum: Tensor | None = None
    out: Tensor | None = None
    stats: Tensor | None = None
    grad: Tensor | None = None
    sum_grad: Tensor | None = None
    change_grad: Tensor | None = None
    parts: Tensor | None = None


class _Call(ctypes.Structure):
    # Mirrors ResidualCall of csrc/residual.h.
    _fields_ = [
        *((field.name, ctypes.c_void_p) for field in dataclasses.fields(_Parts)),
        ("seed", ctypes.c_uint64),
        ("dropout", ctypes.c_double),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("rows", "size", "threads")),
    ]


def supports(x: Tensor | None, change: Tensor, weight: Tensor | None) -> bool:
    """Tell whether the native library can do it: float32 (the change also bfloat16) on a CPU, not compiled, the library there.

    Args:
        x: (..., E) or None.
        change: (..., E).
        weight: (E,) or None.

    Example:
        >>> supports(torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3), None)
        False
    """
    wide = all(part is None or part.dtype == torch.float32 for part in (x, weight))
    if change.device.type != "cpu" or not wide or change.dtype not in (torch.float32, torch.bfloat16) or not change.numel():
        return False
    return not torch.compiler.is_compiling() and native.library() is not None


def residual(x: Tensor | None, change: Tensor, weight: Tensor | None, bias: Tensor | None, *, dropout: float, eps: float) -> Tensor:
    """Compute `norm(x + dropout(change))`, without weight the sum alone, without x `dropout(change)`; see `regard.ops.residual`.

    Only for what `supports` accepts. With a dropout the seed of what is dropped is drawn from torch's generator.

    Example:
        >>> x = torch.ones(2, 3)
        >>> residual(x, x, None, None, dropout=0.0, eps=1e-5).sum().item() if supports(x, x, None) else 12.0
        12.0
    """
    seed = int(torch.empty((), dtype=torch.int64).random_()) if dropout else 0
    return _Residual.apply(x, change, weight, bias, (seed, dropout, eps))


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor | None, change: Tensor, weight: Tensor | None, bias: Tensor | None, settings: tuple[int, float, float]
    ) -> Tensor:
        wide = change.float().contiguous()
        parts = _Parts(None if x is None else x.contiguous(), wide, sum=torch.empty_like(wide))
        if weight is not None:
            parts.weight, parts.bias = weight.contiguous(), None if bias is None else bias.contiguous()
            parts.out, parts.stats = torch.empty_like(wide), wide.new_empty(wide.numel() // wide.shape[-1], 2)
        _run("regard_residual_forward", parts, settings, wide)
        ctx.save_for_backward(parts.weight, None if weight is None else parts.sum, parts.stats)
        ctx.settings, ctx.dtype, ctx.alone = settings, change.dtype, x is None
        result = parts.sum if weight is None else parts.out
        assert result is not None
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, total, stats = ctx.saved_tensors
        grad = grad.contiguous()
        parts = _Parts(weight=weight, sum=total, stats=stats, grad=grad)
        dropped = ctx.settings[1] > 0
        if weight is not None:
            tasks = -(-stats.shape[0] // ROWS)
            parts.sum_grad, parts.parts = torch.empty_like(grad), grad.new_empty(tasks, 2, grad.shape[-1])
        if dropped:
            parts.change_grad = torch.empty_like(grad)
        if weight is not None or dropped:
            _run("regard_residual_backward", parts, ctx.settings, grad)
        sum_grad = grad if parts.sum_grad is None else parts.sum_grad
        change_grad = (sum_grad if parts.change_grad is None else parts.change_grad).to(ctx.dtype)
        # Summed here, in a fixed order, so that the result does not depend on which thread took which rows.
        weight_grad, bias_grad = (None, None) if parts.parts is None else parts.parts.sum(0)
        return None if ctx.alone else sum_grad, change_grad, weight_grad, bias_grad, None


def _run(name: str, parts: _Parts, settings: tuple[int, float, float], like: Tensor) -> None:
    library = native.library()
    assert library is not None
    pointers = (None if part is None else part.data_ptr() for part in vars(parts).values())
    call = _Call(*pointers, *settings, like.numel() // like.shape[-1], like.shape[-1], torch.get_num_threads())
    if getattr(library, name)(ctypes.byref(call)):
        raise MemoryError(f"{name}: no memory for the threads")
