"""Additive scores by the native library: forward and backward without a tensor of the size (T, S, A)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel, solid
from regard.ops.kernels.second_order import differentiable_gradients
from regard.ops.kernels.structures import AdditiveCall
from regard.ops.tensor_checks import Argument, is_tracing

_KERNELS = {
    name: Kernel(
        name,
        AdditiveCall,
        Argument("query", "batch targets width", "float32"),
        Argument("key", "batch sources width", "float32"),
        Argument("vector", "width", "float32"),
        Argument("scores", "batch targets sources", "float32"),
        Argument("query_grad", "batch targets width", "float32", optional=True),
        Argument("key_grad", "batch sources width", "float32", optional=True),
        Argument("vector_grad", "batch width", "float32", optional=True),
    )
    for name in ("additive_forward", "additive_backward")
}


def supports(query: Tensor, key: Tensor, vector: Tensor) -> bool:
    """Tell whether the native library computes these scores: plain or traced tensors in float32 on a CPU, leading axes alike.

    Args:
        query: (..., T, A).
        key: (..., S, A).
        vector: (A,).

    Example:
        >>> supports(torch.ones(2, 3, dtype=torch.float64), torch.ones(5, 3), torch.ones(3))
        False
    """
    parts = (query, key, vector)
    if any(part.dtype != torch.float32 for part in parts) or query.shape[:-2] != key.shape[:-2]:
        return False
    return native.takes(*parts) or (native.library() is not None and query.device.type == "cpu" and is_tracing(*parts))


def additive_scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """Score queries (..., T, A) against keys (..., S, A): (..., T, S); see `regard.ops.additive_scores`.

    Only for what `supports` accepts.

    Example:
        >>> query, key, vector = torch.ones(2, 3), torch.ones(5, 3), torch.ones(3)
        >>> additive_scores(query, key, vector).shape if supports(query, key, vector) else torch.Size([2, 5])
        torch.Size([2, 5])
    """
    leading = query.shape[:-2]
    query, key = (part.reshape(math.prod(leading), *part.shape[-2:]) for part in (query, key))
    # The registered operator is for the compiler only: its first call imports a second and a half of torch.
    scores = _traced(query, key, vector) if is_tracing(query, key, vector) else _Scores.apply(query, key, vector)
    return scores.reshape(*leading, *scores.shape[1:])


def _forward(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    query, key, vector = query.contiguous(), key.contiguous(), vector.contiguous()
    scores = query.new_empty(query.shape[0], query.shape[1], key.shape[1])
    _run("additive_forward", query, key, vector, scores, None, None, None)
    return scores


def _backward(grad: Tensor, query: Tensor, key: Tensor, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    grad, query, key, vector = solid(grad), query.contiguous(), key.contiguous(), vector.contiguous()
    grads = torch.empty_like(query), torch.empty_like(key), query.new_empty(query.shape[0], query.shape[2])
    _run("additive_backward", query, key, vector, grad, *grads)
    # Summed here, in a fixed order, so that the result does not depend on which thread took which sentence.
    return grads[0], grads[1], grads[2].sum(0)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, vector)
        return _forward(query, key, vector)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return differentiable_gradients(_plain, ctx.saved_tensors, ctx.needs_input_grad, grad)
        return _backward(grad, *ctx.saved_tensors)


def _plain(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ vector


_traced = torch.library.custom_op("regard::additive_scores", _forward, mutates_args=(), device_types="cpu")
_traced_backward = torch.library.custom_op("regard::additive_scores_backward", _backward, mutates_args=(), device_types="cpu")


@_traced.register_fake
def _(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[1], key.shape[1])


@_traced_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(vector)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


_traced.register_autograd(lambda ctx, grad: _traced_backward(grad, *ctx.saved_tensors), setup_context=_keep)


def _run(name: str, *tensors: Tensor | None) -> None:
    _KERNELS[name].run(_KERNELS[name].make(*tensors))
