"""Score functions of queries and keys, before the softmax.

All take queries (..., T, D) and keys (..., S, D) and return scores (..., T, S) in nats. Leading axes broadcast. Projections with learned
weights happen outside, so that keys are projected once and used for every step.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.kernels import additive_cpu
from regard.ops.number_checks import LARGEST_SCALE, check_count, check_factor, check_number
from regard.ops.tensor_checks import Argument, Signature, autocasts, check_floating, refuse_others

_ADDITIVE = Signature("additive_scores", Argument("query", "* T A"), Argument("key", "* S A"), Argument("vector", "A"))


def _check_last(query: Tensor, key: Tensor, what: str) -> None:
    refuse_others(what, query=query, key=key)
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"{what}: the last axis of query {tuple(query.shape)} and key {tuple(key.shape)} must agree, "
            f"found {query.shape[-1]} and {key.shape[-1]}"
        )
    if query.dtype != key.dtype and not autocasts(query.device.type):
        raise ShapeError(f"{what}: key must be {query.dtype}, the dtype of query, found {key.dtype}; convert it with key.to({query.dtype})")


@takes_tensors
def dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """Score by the inner product.

        scores[t, s] = query[t] . key[s]

    Luong et al. 2015, section 3.1 ("dot"). With `query` replaced by `query @ W` it is their "general" (bilinear) score.

    Args:
        query: (..., T, D).
        key: (..., S, D).

    Returns:
        (..., T, S).

    Raises:
        ShapeError: the last axes differ.

    Example:
        >>> dot_scores(torch.ones(2, 3), torch.ones(5, 3)).shape
        torch.Size([2, 5])
    """
    _check_last(query, key, "dot_scores")
    return query @ key.transpose(-1, -2)


@takes_tensors
def scaled_dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """Score by the inner product over the root of its length.

        scores[t, s] = query[t] . key[s] / sqrt(D)

    Vaswani et al. 2017 (arXiv:1706.03762), Eq. 1.

    Args:
        query: (..., T, D).
        key: (..., S, D).

    Returns:
        (..., T, S).

    Raises:
        ShapeError: the last axes differ.

    Example:
        >>> scaled_dot_scores(torch.ones(1, 4), torch.ones(1, 4)).item()
        2.0
    """
    _check_last(query, key, "scaled_dot_scores")
    return (query / math.sqrt(max(1, query.shape[-1]))) @ key.transpose(-1, -2)


@takes_tensors
def additive_scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """Score with a one-layer perceptron.

        scores[t, s] = vector . tanh(query[t] + key[s])

    Bahdanau et al. 2015 (arXiv:1409.0473), A.1.2, with query = W_a s and key = U_a h already projected. Luong's "concat", v .
    tanh(W [q; k]), is the same function with W = [W_a, U_a].

    Args:
        query: (..., T, A) projected queries.
        key: (..., S, A) projected keys.
        vector: (A,), the paper's v_a.

    Returns:
        (..., T, S).

    Raises:
        ShapeError: the last axes differ, or the vector is not (A,).

    Example:
        >>> additive_scores(torch.zeros(2, 4), torch.zeros(3, 4), torch.ones(4)).shape
        torch.Size([2, 3])
    """
    _ADDITIVE.check(query, key, vector)
    if additive_cpu.supports(query, key, vector):
        return additive_cpu.additive_scores(query, key, vector)
    return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ vector.to(query.dtype)


@takes_tensors
def cosine_scores(query: Tensor, key: Tensor, sharpness: Tensor | float = 1.0) -> Tensor:
    """Score by the cosine of the angle, times a sharpness.

        scores[t, s] = sharpness * cos(query[t], key[s])

    Graves et al. 2014 (arXiv:1410.5401), Eq. 5 and 6; `sharpness` is their beta. A zero vector scores 0 with everything.

    Args:
        query: (..., T, D).
        key: (..., S, D).
        sharpness: beta, a finite number of at least 0 or a 0-dimensional tensor.

    Returns:
        (..., T, S), between -sharpness and sharpness.

    Raises:
        ShapeError: the last axes differ, or the sharpness is a tensor of no floating dtype.
        ConfigError: the sharpness is another number.

    Example:
        >>> cosine_scores(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])).tolist()
        [[1.0, 0.0]]
    """
    _check_last(query, key, "cosine_scores")
    check_factor("cosine_scores", "sharpness", sharpness)
    if not isinstance(sharpness, Tensor):
        check_number("cosine_scores", "sharpness", sharpness, 0, LARGEST_SCALE)
    return sharpness * (_unit(query) @ _unit(key).transpose(-1, -2))


def _unit(vectors: Tensor) -> Tensor:
    # The square of a large or small number overflows or vanishes, so first the largest component becomes 1. That changes no direction, and
    # so no gradient: the factor is a constant. The length is then 1 or more, but for zero vectors.
    if not vectors.shape[-1]:
        return vectors
    largest = vectors.detach().abs().amax(-1, keepdim=True)
    return F.normalize(vectors / largest.masked_fill(largest == 0, 1.0), dim=-1, eps=1.0)


@takes_tensors
def location_scores(projected: Tensor, size: int) -> Tensor:
    """Take the scores from the query alone: one per source position.

        scores[t, :] = W_a query[t]

    Luong et al. 2015, Eq. 8 ("location"). A source shorter than the maximum uses the leading entries; positions past the maximum score -inf
    and are never attended to.

    Args:
        projected: (..., T, M), the queries times W_a; M is the largest reachable number of positions.
        size: S, the number of source positions.

    Returns:
        (..., T, S).

    Raises:
        ConfigError: `size` is no whole number of at least 0.

    Example:
        >>> location_scores(torch.zeros(1, 2), 3).tolist()
        [[0.0, 0.0, -inf]]
    """
    check_floating("location_scores", projected=projected)
    check_count("location_scores", "size", size)
    reachable = projected.shape[-1]
    if size <= reachable:
        return projected[..., :size]
    return F.pad(projected, (0, size - reachable), value=float("-inf"))
