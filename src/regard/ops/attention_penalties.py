"""Penalties on attention weights, added to a loss: look everywhere about once, and let hops look at different places."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.ops.masks import check_boolean
from regard.ops.tensor_checks import no_autocast


def doubly_stochastic_penalty(
    weights: Tensor,
    *,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    reduction: Literal["paper", "mean"] = "paper",
) -> Tensor:
    """Penalise source positions that get much more or less than one unit of attention over all target steps.

        paper:  1/B sum over b, s of (1 - sum over t of weights[b, t, s])^2
        mean:   the mean of (1 - sum over t of weights[b, t, s])^2 over all real source positions of the batch

    Xu et al. 2015 (arXiv:1502.03044), Eq. 14, where it stands beside the cross-entropy of a sentence, summed over its words. "paper" is
    that, averaged over sentences, to go with a cross-entropy that is summed over words and averaged over sentences.

    Four codes call their scaling "lambda = 1". For a batch of B sentences without padding, C words each, L source positions:

        ==========================================  ==============================  ================================================
        code                                        this function                   relative to the paper, beside its cross-entropy
        ==========================================  ==============================  ================================================
        the paper                                   "paper"                         1; CE summed over words
        the authors' (summed over B, mean over L)   B * "mean" = B/L * "paper"      B/L (0.33 for 64 images of 14 x 14)
        target T/L for each position instead of 1   "paper", up to a constant       1; the gradient is the same while rows sum to 1
        mean over B and L, CE averaged over words   "mean" = 1/L * "paper"          C/L (0.056 for 11 words on 14 x 14)
        ==========================================  ==============================  ================================================

    It belongs to soft attention. In the authors' stochastic mode it has no effect: there the gradient of the weights is replaced.

    Args:
        weights: (B, T, S), the weights used at each target step.
        query_mask: (B, T) bool, True = a real target step; None: all are. What padded steps hold, NaN included, does not count.
        key_mask: (B, S) bool, True = a real source position; None: all are. Padded positions are not missed.
        reduction: "paper" or "mean".

    Returns:
        A 0-dimensional tensor, at least 0, float32 for half-precision weights; 0 for B = 0 or S = 0, and for T = 0 the penalty of never
        having looked: S ("paper") or 1 ("mean").

    Raises:
        ShapeError: weights are not (B, T, S), or a mask does not fit or is not boolean; the message holds what was found.
        ConfigError: an unknown reduction; the message holds it.

    Example:
        >>> weights = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])    # position 0 twice, the others never: 1 + 1 + 1
        >>> doubly_stochastic_penalty(weights).item(), doubly_stochastic_penalty(weights, reduction="mean").item()
        (3.0, 1.0)
    """
    if reduction not in ("paper", "mean"):
        raise ConfigError(f"doubly_stochastic_penalty: reduction may be 'paper' or 'mean', found {reduction!r}")
    size = weights.shape
    fits = [mask is None or mask.shape == axes for mask, axes in ((query_mask, size[:2]), (key_mask, (size[0], size[-1])))]
    if weights.dim() != 3 or not all(fits):
        found = [None if part is None else tuple(part.shape) for part in (weights, query_mask, key_mask)]
        raise ShapeError(f"doubly_stochastic_penalty: expected weights (B, T, S), query_mask (B, T), key_mask (B, S); found {found}")
    if query_mask is not None:
        check_boolean(query_mask, "doubly_stochastic_penalty: query_mask")
        weights = weights.masked_fill(~query_mask.unsqueeze(-1), 0.0)
    missing = (1 - weights.sum(1, dtype=torch.promote_types(weights.dtype, torch.float32))) ** 2  # (B, S)
    if key_mask is not None:
        check_boolean(key_mask, "doubly_stochastic_penalty: key_mask")
        missing = missing.masked_fill(~key_mask, 0.0)
    if reduction == "paper":
        return missing.sum() / max(1, size[0])
    if key_mask is not None:
        return missing.sum() / key_mask.sum().clamp_min(1)
    return missing.sum() / max(1, missing.numel())


def redundancy_penalty(weights: Tensor, *, reduction: Literal["sum", "mean"] = "sum") -> Tensor:
    """Penalise hops that look at the same places, and hops that look at many.

        sum:   1/B sum over b of ||A A^T - I||_F^2
        mean:  the mean of (A A^T - I)^2 over all B r r entries, = "sum" / r^2

    Lin et al. 2017 (arXiv:1703.03130), Eq. 8 ("sum"). The authors' code takes "mean", so that the paper's coefficient of 1.0 differs r^2
    times between the two: 900 for 30 hops, of which 29.25 and 0.0325 are left when all look evenly at 20 words. The norm is squared
    in both; codes that do not square it (5.41 here) are a third thing.

    Args:
        weights: (B, r, S), the rows A of each sentence; zeros where padded.
        reduction: "sum" or "mean".

    Returns:
        A 0-dimensional tensor, at least 0, float32 for half-precision weights and under autocast; 0 for B = 0 or r = 0. A sentence
        without words, all zeros, adds the constant r to its sum.

    Raises:
        ShapeError: weights are not (B, r, S); the message holds the shape.
        ConfigError: an unknown reduction; the message holds it.

    Example:
        >>> redundancy_penalty(torch.eye(3).unsqueeze(0)).item()
        0.0
        >>> redundancy_penalty(torch.full((2, 30, 20), 1 / 20)).round(decimals=2).item()
        29.25
    """
    if reduction not in ("sum", "mean"):
        raise ConfigError(f"redundancy_penalty: reduction may be 'sum' or 'mean', found {reduction!r}")
    if weights.dim() != 3:
        raise ShapeError(f"redundancy_penalty: expected weights (B, r, S), found {tuple(weights.shape)}")
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    # Near its optimum the penalty is a difference of nearly equal numbers: autocast must not round the product.
    with no_autocast(weights):
        product = torch.bmm(weights, weights.transpose(1, 2))
    identity = torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
    squares = (product - identity) ** 2
    return squares.sum() / max(1, squares.shape[0] if reduction == "sum" else squares.numel())
