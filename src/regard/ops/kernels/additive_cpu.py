"""Additive scores by the native library: forward and backward without a tensor of the size (T, S, A)."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from regard.ops.kernels import native


class _Call(ctypes.Structure):
    # Mirrors AdditiveCall of csrc/additive.h.
    _fields_ = [(name, ctypes.c_void_p) for name in ("query", "key", "vector", "scores", "query_grad", "key_grad", "vector_grad")] + [
        (name, ctypes.c_int64) for name in ("batch", "targets", "sources", "width", "threads")
    ]


def supports(query: Tensor, key: Tensor, vector: Tensor) -> bool:
    """Tell whether the native library computes these scores: float32 on a CPU, leading axes alike, the library there.

    Args:
        query: (..., T, A).
        key: (..., S, A).
        vector: (A,).

    Example:
        >>> supports(torch.ones(2, 3, dtype=torch.float64), torch.ones(5, 3), torch.ones(3))
        False
    """
    parts = (query, key, vector)
    if any(part.dtype != torch.float32 or part.device.type != "cpu" for part in parts):
        return False
    return query.shape[:-2] == key.shape[:-2] and native.library() is not None


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
    scores = _traced(query, key, vector) if torch.compiler.is_compiling() else _Scores.apply(query, key, vector)
    return scores.reshape(*leading, *scores.shape[1:])


def _forward(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    query, key, vector = query.contiguous(), key.contiguous(), vector.contiguous()
    scores = query.new_empty(query.shape[0], query.shape[1], key.shape[1])
    _run("regard_additive_forward", query, key, vector, scores)
    return scores


def _backward(grad: Tensor, query: Tensor, key: Tensor, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    grad, query, key, vector = grad.contiguous(), query.contiguous(), key.contiguous(), vector.contiguous()
    grads = torch.empty_like(query), torch.empty_like(key), query.new_empty(query.shape[0], query.shape[2])
    _run("regard_additive_backward", query, key, vector, grad, *grads)
    # Summed here, in a fixed order, so that the result does not depend on which thread took which sentence.
    return grads[0], grads[1], grads[2].sum(0)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, vector)
        return _forward(query, key, vector)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, vector = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _backward(grad, query, key, vector)
        # A gradient of the gradient is asked for: in plain operations, which autograd can follow once more.
        tanh = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))
        inner = grad.unsqueeze(-1) * vector * (1 - tanh * tanh)
        return inner.sum(-2), inner.sum(-3), (grad.unsqueeze(-1) * tanh).flatten(0, -2).sum(0)


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


def _run(name: str, query: Tensor, key: Tensor, vector: Tensor, scores: Tensor, *grads: Tensor) -> None:
    library = native.library()
    assert library is not None
    pointers = [part.data_ptr() for part in (query, key, vector, scores, *grads)]
    sizes = query.shape[0], query.shape[1], key.shape[1], query.shape[2], torch.get_num_threads()
    call = _Call(*pointers, *(None for _ in range(7 - len(pointers))), *sizes)
    if getattr(library, name)(ctypes.byref(call)):
        raise MemoryError(f"{name}: no memory for the threads")
