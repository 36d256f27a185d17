"""Token embeddings that can be tied to the output layer, and position encodings."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Size, checked
from regard.errors import ConfigError

PositionKind = Literal["paper", "fairseq"]
FAIRSEQ_FIRST = 2  # fairseq counts from after its padding token, whose id is 1


class ScaledEmbedding(nn.Embedding):
    """An embedding whose rows are multiplied by sqrt(E): `y = sqrt(E) table[token]`.

    Vaswani et al. 2017, section 3.4. The table is initialised with variance 1 / E, suitable for an output layer, and embedded tokens have
    variance 1, suitable for encoders, so that both can share it.

    Args:
        num_embeddings: V, entries.
        embedding_dim: E.

    Example:
        >>> import torch
        >>> ScaledEmbedding(7, 16)(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 16])
    """

    @checked
    def __init__(self, num_embeddings: Size, embedding_dim: Size) -> None:
        super().__init__(num_embeddings, embedding_dim)
        self.scale = embedding_dim**0.5
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)

    def forward(self, input: Tensor) -> Tensor:
        """Look up tokens (...,): (..., E)."""
        return super().forward(input) * self.scale


def sinusoidal_positions(positions: Tensor, dim: int, *, dtype: torch.dtype = torch.float32, kind: PositionKind = "paper") -> Tensor:
    """Return sinusoidal position encodings.

        p[2i] = sin(position / 10000^(2i / E));  p[2i + 1] = cos(position / 10000^(2i / E))

    Vaswani et al. 2017, section 3.5. Computed on the fly, for any length.

    Args:
        positions: (...,) integers, from 0.
        dim: E; an odd one ends with a sine.
        dtype: dtype of the result; half precision is computed in float32.
        kind: "fairseq" takes `(position + 2) / 10000^(2i / (E - 2))` instead, as models trained with fairseq expect; E even, at least 4.

    Returns:
        (..., E).

    Raises:
        ConfigError: "fairseq" with an odd or too small E.

    Example:
        >>> sinusoidal_positions(torch.tensor([0, 1]), 4)[0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    wide = torch.promote_types(dtype, torch.float32)
    span = dim
    if kind == "fairseq":
        if dim % 2 or dim < 4:
            raise ConfigError(f"positions fairseq: the size must be even and at least 4, found {dim}")
        positions, span = positions + FAIRSEQ_FIRST, dim - 2
    rates = torch.exp(torch.arange(0, dim, 2, dtype=wide, device=positions.device) * (-math.log(10000) / span))
    angles = positions.unsqueeze(-1) * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :dim].to(dtype)


def embed_positions(
    embedding: nn.Embedding, tokens: Tensor, *, start: int = 0, dropout: float = 0.0, kind: PositionKind = "paper"
) -> Tensor:
    """Embed tokens and add their position encodings. Vaswani et al. 2017, section 3.5.

    Args:
        embedding: (V, E).
        tokens: (B, T).
        start: position of the first token.
        dropout: probability of dropping an element of the sums.
        kind: see `sinusoidal_positions`.

    Returns:
        (B, T, E).

    Example:
        >>> embed_positions(nn.Embedding(7, 4), torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 4])
    """
    vectors = embedding(tokens)
    positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
    vectors = vectors + sinusoidal_positions(positions, vectors.shape[-1], dtype=vectors.dtype, kind=kind)
    return ops.dropout(vectors, dropout) if dropout else vectors


def grid_positions(grid: tuple[int, int], dim: int) -> Tensor:
    """Return position encodings of grid cells (L, E): the first half encodes the row, the second the column.

    Example:
        >>> grid_positions((2, 3), 8).shape
        torch.Size([6, 8])
    """
    rows, columns = (torch.arange(length) for length in grid)
    of_rows, of_columns = sinusoidal_positions(rows, dim // 2), sinusoidal_positions(columns, dim - dim // 2)
    return torch.cat([of_rows.repeat_interleave(grid[1], 0), of_columns.repeat(grid[0], 1)], -1)
