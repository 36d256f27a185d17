"""Attention of a query over a source: any score with any window."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention.protocol import AttentionOutput, Memory
from regard.attention.score import Score
from regard.attention.window import Window
from regard.errors import ShapeError


class SourceAttention(nn.Module):
    """Attend to a source: scores, a softmax over what mask and window allow, a weighted sum.

        weights = softmax(score(query, key)) * factor;  context = weights . value

    Bahdanau et al. 2015, Eq. 5 and 6; Luong et al. 2015, section 3. With no window this is their global attention.

    Args:
        score: how a query meets a key.
        window: `MonotonicWindow`, `PredictiveWindow`, or None for the whole source.

    Example:
        >>> from regard.attention import AdditiveScore
        >>> attention = SourceAttention(AdditiveScore(3, 5, 7))
        >>> memory = attention.memory(torch.ones(2, 11, 5), torch.tensor([11, 4]))
        >>> context, weights = attention(torch.ones(2, 1, 3), memory)
        >>> context.shape, weights.shape
        (torch.Size([2, 1, 5]), torch.Size([2, 1, 11]))
    """

    def __init__(self, score: Score, window: Window | None = None) -> None:
        super().__init__()
        self.score = score
        self.window = window

    def memory(self, source: Tensor, lengths: Tensor) -> Memory:
        """Project the keys once: source states (B, S, Dk) of the given lengths (B,) become a `Memory`.

        Raises:
            ShapeError: `lengths` is not (B,); the message holds both shapes.
        """
        if lengths.shape != source.shape[:1]:
            raise ShapeError(f"memory: lengths must be (B,) = ({source.shape[0]},), found {tuple(lengths.shape)}")
        mask = ops.length_mask(lengths, source.shape[1])
        value = source.masked_fill(~mask.unsqueeze(-1), 0.0)
        return Memory(self.score.project(value), value, mask, lengths)

    def forward(self, query: Tensor, memory: Memory, *, position: int | Tensor = 0) -> AttentionOutput:
        """Attend with queries (B, T, Dq); `position` is their target position, one for all or (T,), counted from 0.

        Several hypotheses of one sentence are several queries: the source is never copied.

        Returns:
            `AttentionOutput` with context (B, T, Dv) and weights (B, T, S); a row with nothing to attend to is all zeros.
        """
        scores = self.score(query, memory.key)
        mask, factor = memory.mask.unsqueeze(1), None
        if self.window is not None:
            window, factor = self.window(query, memory.lengths, memory.value.shape[1], position)
            mask = mask & window
        weights = ops.masked_softmax(scores, mask)
        if factor is not None:
            weights = weights * factor.to(weights.dtype)
        return AttentionOutput(torch.bmm(weights, memory.value.to(weights.dtype)), weights)
