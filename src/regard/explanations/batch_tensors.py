"""What batches of all kinds do with tensors of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard import ops
from regard.models import EncoderDecoder, RecurrentLanguageModel

# Rows of logits in memory at a time.
BATCH_ROWS = 512


def apart(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy a tensor that is given twice: an embedding of both must tell the vectors of one from those of the other.

    Example:
        >>> tokens = torch.tensor([[4, 5]])
        >>> [tensor is tokens for tensor in apart([tokens, tokens])]
        [True, False]
    """
    return [one.clone() if any(one is other for other in tensors[:place]) else one for place, one in enumerate(tensors)]


def take_away(tokens: Tensor, lengths: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Remove the tokens (B, S) where `kept` is False and close the gaps; return tokens (B, S) and lengths (B,).

    Example:
        >>> take_away(torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[False, True, True]]))
        (tensor([[5, 3, 0]]), tensor([2]))
    """
    there = kept & ops.length_mask(lengths, tokens.shape[1])
    order = (~there).to(torch.uint8).argsort(dim=1, stable=True)
    left = there.sum(1)
    return tokens.gather(1, order).masked_fill(~ops.length_mask(left, tokens.shape[1]), 0), left


def goal_log_probs(model: EncoderDecoder[Any] | RecurrentLanguageModel, readout: Tensor, goals: Tensor, real: Tensor) -> Tensor:
    """Return the log-probability of goals (B, T) from readouts (B, T, R), 0 if not `real`, computed in chunks."""
    rows, wanted = readout[real], goals[real]
    found = [
        model.logits(some).log_softmax(-1).gather(-1, goal.unsqueeze(-1)).squeeze(-1)
        for some, goal in zip(rows.split(BATCH_ROWS), wanted.split(BATCH_ROWS), strict=True)
    ]
    log_probs = torch.cat(found)
    return log_probs.new_zeros(real.shape).masked_scatter(real, log_probs)
