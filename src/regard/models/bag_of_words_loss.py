"""Bag-of-words loss of an image's captions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Size, Weight, checked


class BagOfWordsLoss(nn.Module):
    """Bag-of-words loss: predict caption words, in any order, from the mean of an image's cells.

    Helps an encoder trained from scratch, which gets little signal from the decoder alone.

    Args:
        dim: D, size of a cell's features.
        vocab_size: V.
        weight: weight of this loss.

    Parameters: `output.weight` (V, D), `output.bias` (V).

    Example:
        >>> goals, lengths = torch.tensor([[6, 3], [6, 3], [3, 0], [3, 0]]), torch.tensor([2, 2, 1, 1])
        >>> found = BagOfWordsLoss(5, 7, 1.0)(torch.ones(2, 4, 5), goals, lengths)
        >>> found.shape     # two captions of each image, six words
        torch.Size([])
    """

    @checked
    def __init__(self, dim: Size, vocab_size: Size, weight: Weight) -> None:
        super().__init__()
        self.output = ops.Linear(dim, vocab_size)
        nn.init.zeros_(self.output.bias)
        self.weight = weight

    def forward(self, features: Tensor, goals: Tensor, lengths: Tensor) -> Tensor:
        """Return the weighted loss, summed over the words: features (B, L, D), goals (B G, T), lengths (B G,)."""
        logits = self.output(features.mean(1))
        log_prob = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
        real = ops.length_mask(lengths, goals.shape[1])
        # One prediction per image for all words of its captions.
        found = log_prob.gather(1, goals.reshape(len(features), -1))
        return -self.weight * found.masked_fill(~real.reshape(found.shape), 0.0).sum()
