"""Native additive scores: forward and backward without a tensor of size (T, S, A)."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel, solid
from regard.ops.kernels.operator import Forms, Operator
from regard.ops.kernels.structures import AdditiveCall
from regard.ops.tensor_checks import Argument, is_tracing

_QUERY, _KEY = Argument("query", "...batch targets width", "float32"), Argument("key", "...batch sources width", "float32")
_GIVEN, _SCORES = (_QUERY, _KEY, Argument("vector", "width", "float32")), Argument("scores", "...batch targets sources", "float32")
_FORWARD = Kernel("additive_forward", AdditiveCall, *_GIVEN, results=[_SCORES])
_BACKWARD = Kernel(
    "additive_backward",
    AdditiveCall,
    _SCORES,
    *_GIVEN,
    results=[_QUERY._replace(name="query_grad"), _KEY._replace(name="key_grad"), Argument("vector_grad", "batch width", "float32")],
)


def supports(query: Tensor, key: Tensor, vector: Tensor) -> bool:
    """Return whether the native library supports this call: plain or traced float32 tensors on a CPU with equal leading axes.

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

    Only for calls that `supports` accepts.

    Example:
        >>> query, key, vector = torch.ones(2, 3), torch.ones(5, 3), torch.ones(3)
        >>> additive_scores(query, key, vector).shape if supports(query, key, vector) else torch.Size([2, 5])
        torch.Size([2, 5])
    """
    return _SCORING(query, key, vector)


def _forward(query: Tensor, key: Tensor, vector: Tensor) -> tuple[Tensor, ...]:
    return _FORWARD(query.contiguous(), key.contiguous(), vector.contiguous())


def _backward(grad: Tensor, result: None, others: list[Tensor], *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    query_grad, key_grad, vector_grad = _BACKWARD(solid(grad), *(part.contiguous() for part in inputs))
    # Summed here in a fixed order, so that the result does not depend on the assignment of threads.
    return query_grad, key_grad, vector_grad.sum(0)


def _plain(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ vector


_SCORING = Operator(
    "additive_scores",
    "Tensor query, Tensor key, Tensor vector",
    Forms(
        _forward,
        _backward,
        _plain,
        shapes=lambda query, key, vector: (query.new_empty(*query.shape[:-1], key.shape[-2]),),
        room=lambda x: torch.empty_like(x, memory_format=torch.contiguous_format),
    ),
    results=1,
    gradients=3,
)
