"""Sparse normalizers: sparsemax and 1.5-entmax, and the one choice between them and the softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_mask
from regard.ops.softmax import masked_softmax
from regard.ops.tensor_checks import check_scores

Normalizer = Literal["softmax", "sparsemax", "entmax15"]
"""How scores become weights."""


@takes_tensors
def normalize(scores: Tensor, mask: Tensor | None = None, *, normalizer: Normalizer = "softmax") -> Tensor:
    """Normalize the scores over the allowed source positions with `masked_softmax`, `sparsemax` or `entmax15`.

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


@takes_tensors
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
    return _sparse("sparsemax", scores, mask, _sparsemax)


@takes_tensors
def entmax15(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Normalize each row of scores by 1.5-entmax, between softmax (1-entmax) and sparsemax (2-entmax).

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
    return _sparse("entmax15", scores, mask, _entmax15)


def _sparse(name: str, scores: Tensor, mask: Tensor | None, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    check_scores(name, scores)
    blocked = torch.isneginf(scores)
    if mask is not None:
        check_mask(mask, scores.shape, name)
        blocked = blocked | ~mask
    if not scores.shape[-1]:
        return scores.clone()
    empty = blocked.all(-1, keepdim=True)
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    weights = weigh(wide.masked_fill(blocked, -torch.inf).masked_fill(empty, 0.0))
    return weights.to(scores.dtype).masked_fill(blocked, 0.0)


# The support is found by sorting, without gradients; given it, the weights are a formula that is differentiated, also twice.


def _below_best(scores: Tensor) -> Tensor:
    # Distances to the best score. Those of 1 and more have weight 0, so that -inf may become -1: all sums below stay finite.
    return (scores - scores.detach().amax(-1, keepdim=True)).clamp(min=-1.0)


def _at_last(found: Tensor, inside: Tensor) -> Tensor:
    # The entry of the last sorted position inside the support; a row with NaN has no such position and is NaN anyway.
    return found.gather(-1, inside.sum(-1, keepdim=True).clamp(min=1) - 1)


def _sparsemax(scores: Tensor) -> Tensor:
    scores = _below_best(scores)
    count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    ordered = scores.detach().sort(-1, descending=True).values
    tau = (ordered.cumsum(-1) - 1) / count
    support = scores.detach() > _at_last(tau, ordered > tau)
    tau = (scores.masked_fill(~support, 0.0).sum(-1, keepdim=True) - 1) / _size(support)
    return torch.where(support, (scores - tau).clamp(min=0.0), _outside(scores))


def _entmax15(scores: Tensor) -> Tensor:
    scores = _below_best(scores / 2)
    count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    ordered = scores.detach().sort(-1, descending=True).values
    mean = ordered.cumsum(-1) / count
    spread = (ordered * ordered).cumsum(-1) - count * mean * mean
    tau = mean - ((1 - spread) / count).clamp(min=0.0).sqrt()
    # A distance of 1 is outside, whichever way tau is rounded.
    support = scores.detach() > _at_last(tau, (ordered > tau) & (ordered > -1))
    kept, size = scores.masked_fill(~support, 0.0), _size(support)
    mean = kept.sum(-1, keepdim=True) / size
    spread = (kept * kept).sum(-1, keepdim=True) - size * mean * mean
    tau = mean - ((1 - spread) / size).clamp(min=0.0).sqrt()
    return torch.where(support, (scores - tau).square(), _outside(scores))


def _size(support: Tensor) -> Tensor:
    return support.sum(-1, keepdim=True).clamp(min=1)


def _outside(scores: Tensor) -> Tensor:
    # Zeros, or NaN in a row with NaN.
    return scores.detach().abs().sum(-1, keepdim=True) * 0.0
