"""Length and coverage penalties (Wu et al., 2016, Eq. 14) and n-gram blocking."""

from __future__ import annotations

import torch
from torch import Tensor

# A source position without any attention (outside all windows) costs log(1e-6), not infinity.
MIN_COVERAGE = 1e-6


def length_penalty(length: int, alpha: float) -> float:
    """Return the GNMT length penalty lp = ((5 + length) / 6) ** alpha (Wu et al., 2016, Eq. 14).

    Args:
        length: tokens, EOS included; 0 or more.
        alpha: 0 (always 1) or more.

    Example:
        >>> length_penalty(7, 1.0)
        2.0
    """
    return ((5 + length) / 6) ** alpha


def coverage_penalty(coverage: Tensor, source_lengths: Tensor, *, beta: float) -> Tensor:
    """Return the GNMT coverage penalty cp = beta * sum_j log(min(sum_i p_ij, 1)) (Wu et al., 2016, Eq. 14); at most 0.

    Differs from the paper: a sum below 1e-6 counts as 1e-6, so that the penalty of an uncovered word is finite.

    Args:
        coverage: (B, K, S) attention weights summed over target positions; padding is ignored.
        source_lengths: (B,) long; length 0 gives penalty 0.
        beta: weight, 0 or more.

    Returns:
        (B, K), in the precision of `coverage`.

    Example:
        >>> coverage_penalty(torch.tensor([[[1.5, 1.0, 0.0]]]), torch.tensor([2]), beta=0.2)
        tensor([[0.]])
    """
    inside = torch.arange(coverage.size(-1), device=coverage.device) < source_lengths[:, None, None]
    return beta * coverage.clamp(MIN_COVERAGE, 1.0).log().masked_fill(~inside, 0.0).sum(-1)


def block_repeats_(log_probs: Tensor, history: Tensor, *, size: int) -> Tensor:
    """Set to -inf, in place, every token that would complete an n-gram already in the hypothesis.

    Args:
        log_probs: (B, K, V) of the next token.
        history: (B, K, T) long, the tokens so far; shorter than `size` blocks nothing.
        size: n, at least 1; 1 forbids repeated tokens.

    Returns:
        `log_probs`.

    Example:
        >>> block_repeats_(torch.zeros(1, 1, 3), torch.tensor([[[1, 2, 1]]]), size=2)
        tensor([[[0., 0., -inf]]])
    """
    length = history.size(-1)
    if length < size:
        return log_probs
    ngrams = history.unfold(-1, size, 1)
    begun = (ngrams[..., :-1] == history[..., None, length - size + 1 :]).all(-1)
    # Added, not assigned: a token may complete several n-grams, and 0 plus -inf stays -inf.
    return log_probs.scatter_add_(-1, ngrams[..., -1], torch.zeros_like(begun, dtype=log_probs.dtype).masked_fill_(begun, -torch.inf))
