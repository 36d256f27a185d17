"""Token embeddings that can be tied to the output layer."""

from __future__ import annotations

from torch import Tensor, nn


class ScaledEmbedding(nn.Embedding):
    """An embedding whose rows are multiplied by sqrt(E): `y = sqrt(E) table[token]`.

    Vaswani et al. 2017, section 3.4. The table starts with variance 1 / E, as an output layer wants it, and the vectors that come out have
    variance 1, as a recurrent cell or an encoder wants them, so that one table can serve both.

    Args:
        num_embeddings: V, entries.
        embedding_dim: E.

    Example:
        >>> import torch
        >>> ScaledEmbedding(7, 16)(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 16])
    """

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__(num_embeddings, embedding_dim)
        self.scale = embedding_dim**0.5
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)

    def forward(self, input: Tensor) -> Tensor:
        """Look up tokens (...,): (..., E)."""
        return super().forward(input) * self.scale
