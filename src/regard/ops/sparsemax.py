"""Sparse normalizers: sparsemax and 1.5-entmax, and the one choice between them and the softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.ops.masks import check_mask
from regard.ops.softmax import masked_softmax
from regard.ops.tensor_checks import refuse_others

Normalizer = Literal["softmax", "sparsemax", "entmax15"]
"""How scores become weights."""


def normalize(scores: Tensor, mask: Tensor | None = None, *, normalizer: Normalizer = "softmax") -> Tensor:
    """Normalise the scores over the allowed source positions with `masked_softmax`, `sparsemax` or `entmax15`.

    Args:
        scores: (..., T, S).
        mask: bool, (S,) or with every axis of the scores, each of its true size or 1; True = may attend. None allows everything.
        normalizer: "softmax", "sparsemax" or "entmax15".

    Returns:
        (..., T, S), same dtype; each row sums to 1, or to 0 when empty.

    Raises:
        ConfigError: an unknown normalizer.
        ShapeError: the mask is not boolean, does not broadcast, or lacks axes.

    Example:
        >>> normalize(torch.tensor([[0.0, 2.0, 1.5]]), normalizer="sparsemax").tolist()
        [[0.0, 0.75, 0.25]]
    """
    match normalizer:
        case "softmax":
            return masked_softmax(scores, mask)
        case "sparsemax":
            return sparsemax(scores, mask)
        case "entmax15":
            return entmax15(scores, mask)
        case _:
            raise ConfigError(f"normalizer: expected one of {', '.join(get_args(Normalizer))}, found {normalizer!r}")


def sparsemax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Project each row of scores onto the probability simplex: weights far below the best are exactly 0.

        weights = argmin over p of ||p - scores||^2 = max(scores - tau, 0),   tau such that the row sums to 1

    Martins and Astudillo 2016 (arXiv:1602.02068), Eq. 1, 2 and Algorithm 1, exact, by sorting: O(S log S) a row. The gradient is that of
    Eq. 11: with the support s = [weights > 0], J = diag(s) - s s^T / |s|. It can be differentiated again; J is constant inside a support.

    A masked position gets weight and gradient exactly 0, even if its score is NaN. A fully masked row is all zeros, with zero gradients.

    Args:
        scores: (..., T, S); -inf counts as masked. Half precision is computed in float32.
        mask: bool, (S,) or with every axis of the scores, each of its true size or 1; True = may attend. None allows everything.

    Returns:
        (..., T, S), same dtype; each row sums to 1, or to 0 when empty. A row with NaN or +inf among its allowed scores is NaN there.

    Raises:
        ShapeError: the mask is not boolean, does not broadcast, or lacks axes.

    Example:
        >>> sparsemax(torch.tensor([[1.0, 0.5, -1.0]])).tolist()
        [[0.75, 0.25, 0.0]]
    """
    return _sparse("sparsemax", scores, mask, _traced_sparsemax if torch.compiler.is_compiling() else _Sparsemax.apply)


def entmax15(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Normalise each row of scores by 1.5-entmax, between softmax (1-entmax) and sparsemax (2-entmax).

        weights = argmax over p of p . scores + H_1.5(p) = max(scores / 2 - tau, 0)^2,   tau such that the row sums to 1

    Peters, Niculae and Martins 2019 (arXiv:1905.05702), Eq. 9 and Algorithm 2, exact, by sorting: O(S log S) a row. The gradient is that of
    their Proposition 2: with u = sqrt(weights), J = diag(u) - u u^T / sum(u). It can be differentiated again.

    Masked positions, empty rows and precision are as in `sparsemax`.

    Args:
        scores: (..., T, S); -inf counts as masked. Half precision is computed in float32.
        mask: bool, (S,) or with every axis of the scores, each of its true size or 1; True = may attend. None allows everything.

    Returns:
        (..., T, S), same dtype; each row sums to 1, or to 0 when empty. A row with NaN or +inf among its allowed scores is NaN there.

    Raises:
        ShapeError: the mask is not boolean, does not broadcast, or lacks axes.

    Example:
        >>> entmax15(torch.tensor([[2.0, 2.0, -1.0]])).round(decimals=4).tolist()
        [[0.5, 0.5, 0.0]]
    """
    return _sparse("entmax15", scores, mask, _traced_entmax15 if torch.compiler.is_compiling() else _Entmax15.apply)


def _sparse(name: str, scores: Tensor, mask: Tensor | None, weigh: Callable[[Tensor], Any]) -> Tensor:
    refuse_others(name, scores=scores)
    blocked = torch.isneginf(scores)
    if mask is not None:
        check_mask(mask, scores.shape, name)
        blocked = blocked | ~mask
    if not scores.shape[-1]:
        return scores.clone()
    empty = blocked.all(-1, keepdim=True)
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    weights: Tensor = weigh(wide.masked_fill(blocked, -torch.inf).masked_fill(empty, 0.0))
    return weights.to(scores.dtype).masked_fill(blocked, 0.0)


def _below_best(scores: Tensor) -> Tensor:
    # Distances to the best score. Those of 1 and more have weight 0, so that -inf may become -1: all sums below stay finite.
    return (scores - scores.detach().amax(-1, keepdim=True)).clamp(min=-1.0)


def _at_last(found: Tensor, inside: Tensor) -> Tensor:
    # The entry of the last sorted position inside the support; a row with NaN has no such position and is NaN anyway.
    return found.gather(-1, inside.sum(-1, keepdim=True).clamp(min=1) - 1)


class _Sparsemax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        scores = _below_best(scores)
        ordered = scores.sort(-1, descending=True).values
        count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
        tau = (ordered.cumsum(-1) - 1) / count
        return (scores - _at_last(tau, ordered > tau)).clamp(min=0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return _through(weights, (weights > 0).to(weights.dtype), grads[0])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return _through(weights, (weights > 0).to(weights.dtype), tangents[0])


class _Entmax15(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        scores = _below_best(scores / 2)
        ordered = scores.sort(-1, descending=True).values
        count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
        mean = ordered.cumsum(-1) / count
        spread = (ordered * ordered).cumsum(-1) - count * mean * mean
        tau = mean - ((1 - spread) / count).clamp(min=0.0).sqrt()
        inside = (ordered > tau) & (ordered > -1)  # a distance of 1 is outside, whichever way tau is rounded
        return (scores - _at_last(tau, inside)).clamp(min=0.0).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return _through(weights, _root(weights), grads[0])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return _through(weights, _root(weights), tangents[0])


def _root(weights: Tensor) -> Tensor:
    # sqrt has an infinite gradient at 0, which must not meet the zero of a second derivative.
    outside = weights <= 0
    return weights.masked_fill(outside, 1.0).sqrt().masked_fill(outside, 0.0)


def _through(weights: Tensor, factor: Tensor, change: Tensor) -> Tensor:
    # J x with the symmetric J = diag(u) - u u^T / sum(u): gradients and tangents alike; zero outside the support, whatever comes in.
    change = change.masked_fill(weights == 0, 0.0)
    mean = (factor * change).sum(-1, keepdim=True) / factor.sum(-1, keepdim=True)
    return factor * (change - mean)


# torch.compile takes no autograd function with a `jvp`: there the support is found without gradients, and the rest is differentiated.


def _traced_sparsemax(scores: Tensor) -> Tensor:
    scores = _below_best(scores)
    support = _Sparsemax.forward(scores.detach()) > 0
    tau = (scores.masked_fill(~support, 0.0).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(support, scores - tau, _outside(scores))


def _traced_entmax15(scores: Tensor) -> Tensor:
    support = _Entmax15.forward(scores.detach()) > 0
    scores = _below_best(scores / 2)
    kept, count = scores.masked_fill(~support, 0.0), support.sum(-1, keepdim=True).clamp(min=1)
    mean = kept.sum(-1, keepdim=True) / count
    spread = (kept * kept).sum(-1, keepdim=True) - count * mean * mean
    tau = mean - ((1 - spread) / count).clamp(min=0.0).sqrt()
    return torch.where(support, (scores - tau).square(), _outside(scores))


def _outside(scores: Tensor) -> Tensor:
    # Zeros, or NaN in a row with NaN.
    return scores.detach().sum(-1, keepdim=True) * 0.0
