"""Penalties on attention weights: doubly stochastic attention, coverage, and redundancy among hops."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_boolean
from regard.ops.tensor_checks import check_floating, no_autocast


@takes_tensors
def doubly_stochastic_penalty(
    weights: Tensor,
    *,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    reduction: Literal["paper", "mean"] = "paper",
) -> Tensor:
    """Penalise source positions whose attention, summed over target steps, differs from 1.

        paper:  1/B sum over b, s of (1 - sum over t of weights[b, t, s])^2
        mean:   the mean of (1 - sum over t of weights[b, t, s])^2 over all real source positions of the batch

    Xu et al. 2015 (arXiv:1502.03044), Eq. 14, added to the cross-entropy summed over the words of a sentence. "paper" averages it over
    sentences, for a cross-entropy summed over words and averaged over sentences.

    Four codes call their scaling "lambda = 1". For a batch of B sentences without padding, C words each, L source positions:

        ==========================================  ==============================  ================================================
        code                                        this function                   relative to the paper, beside its cross-entropy
        ==========================================  ==============================  ================================================
        the paper                                   "paper"                         1; CE summed over words
        the authors' (summed over B, mean over L)   B * "mean" = B/L * "paper"      B/L (0.33 for 64 images of 14 x 14)
        target T/L for each position instead of 1   "paper", up to a constant       1; the gradient is the same while rows sum to 1
        mean over B and L, CE averaged over words   "mean" = 1/L * "paper"          C/L (0.056 for 11 words on 14 x 14)
        ==========================================  ==============================  ================================================

    For soft attention only: the authors' stochastic mode replaces the gradient of the weights, so the penalty has no effect there.

    Args:
        weights: (B, T, S), the weights used at each target step.
        query_mask: (B, T) bool, True = a real target step; None: all are. Padded steps are ignored, NaN included.
        key_mask: (B, S) bool, True = a real source position; None: all are. Padded positions are not penalised.
        reduction: "paper" or "mean".

    Returns:
        A 0-dimensional tensor >= 0, float32 for half-precision weights; 0 for B = 0 or S = 0; for T = 0 the penalty of zero attention, S
        ("paper") or 1 ("mean").

    Raises:
        ShapeError: weights are not (B, T, S), or a mask does not fit or is not boolean.
        ConfigError: an unknown reduction.

    Example:
        >>> weights = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])    # position 0 twice, the others never: 1 + 1 + 1
        >>> doubly_stochastic_penalty(weights).item(), doubly_stochastic_penalty(weights, reduction="mean").item()
        (3.0, 1.0)
    """
    if reduction not in ("paper", "mean"):
        raise ConfigError(f"doubly_stochastic_penalty: reduction may be 'paper' or 'mean', found {reduction!r}")
    check_floating("doubly_stochastic_penalty", weights=weights)
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


@takes_tensors
def coverage_loss(weights: Tensor, *, query_mask: Tensor | None = None) -> Tensor:
    """Penalise attention to what was attended before, summed over the batch.

        loss = sum over t, s of min(a[t, s], c[t, s]),   c[t] = sum of a[t'] over t' < t

    See et al. 2017 (arXiv:1704.04368), Eq. 10, 12 and 13, before the factor lambda.

    Args:
        weights: (B, T, S) attention of each step.
        query_mask: (B, T) bool, True = real target; None: all.

    Returns:
        A scalar; at most 1 a step where rows sum to 1.

    Raises:
        ShapeError: weights are not (B, T, S), or the mask is not boolean (B, T).

    Example:
        >>> coverage_loss(torch.tensor([[[1.0, 0.0], [0.25, 0.75], [0.5, 0.5]]])).item()  # 0 + 0.25 + 1
        1.25
    """
    if weights.dim() != 3 or (query_mask is not None and query_mask.shape != weights.shape[:2]):
        found = [None if part is None else tuple(part.shape) for part in (weights, query_mask)]
        raise ShapeError(f"coverage_loss: expected weights (B, T, S) and query_mask (B, T), found {found}")
    if query_mask is not None:
        check_boolean(query_mask, "coverage_loss: query_mask")
        weights = weights.masked_fill(~query_mask.unsqueeze(-1), 0.0)
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    before = weights.cumsum(1) - weights
    return torch.minimum(weights, before).sum()


@takes_tensors
def redundancy_penalty(weights: Tensor, *, reduction: Literal["sum", "mean"] = "sum") -> Tensor:
    """Penalise hops that attend to the same positions, and hops with spread attention.

        sum:   1/B sum over b of ||A A^T - I||_F^2
        mean:  the mean of (A A^T - I)^2 over all B r r entries, = "sum" / r^2

    Lin et al. 2017 (arXiv:1703.03130), Eq. 8 ("sum"). The authors' code takes "mean", which makes the paper's coefficient of 1.0 r^2 times
    weaker: 900 for 30 hops (29.25 against 0.0325 when all hops attend evenly to 20 words). Both square the norm; codes that do not (5.41
    here) differ again.

    Args:
        weights: (B, r, S), the rows A of each sentence; zeros where padded.
        reduction: "sum" or "mean".

    Returns:
        A 0-dimensional tensor >= 0, float32 for half-precision weights and under autocast; 0 for B = 0 or r = 0. An empty sentence, all
        zeros, adds the constant r.

    Raises:
        ShapeError: weights are not (B, r, S).
        ConfigError: an unknown reduction.

    Example:
        >>> redundancy_penalty(torch.eye(3).unsqueeze(0)).item()
        0.0
        >>> redundancy_penalty(torch.full((2, 30, 20), 1 / 20)).round(decimals=2).item()
        29.25
    """
    if reduction not in ("sum", "mean"):
        raise ConfigError(f"redundancy_penalty: reduction may be 'sum' or 'mean', found {reduction!r}")
    check_floating("redundancy_penalty", weights=weights)
    if weights.dim() != 3:
        raise ShapeError(f"redundancy_penalty: expected weights (B, r, S), found {tuple(weights.shape)}")
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    # Near its optimum the penalty is a difference of nearly equal numbers: autocast must not round the product.
    with no_autocast(weights):
        product = torch.bmm(weights, weights.transpose(1, 2))
    identity = torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
    squares = (product - identity) ** 2
    return squares.sum() / max(1, squares.shape[0] if reduction == "sum" else squares.numel())
