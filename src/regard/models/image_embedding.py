"""Embeds images: their cells become vectors that an encoder reads after, or next to, those of a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Size, checked
from regard.models.embedding import grid_positions
from regard.models.image_encoder import ImageEncoder

ReadImages = Callable[[Sequence[int]], Tensor]


class ImageEmbedding(nn.Module):
    """Embed images by id: the vectors of their cells with positions, and an EOS vector.

    Args:
        image_encoder: images to features (B, L, D).
        embed_dim: E.
        cells_only: omit the EOS vector after the cells, so that areas can be rectangles of the grid.

    Attributes:
        images: returns images (n, 3, H, W) by id, such as `regard.data.image_tokens.ImageTokens.read`.
        sometimes_unused: a batch without images gives the image encoder no gradient, which distributed training must know.

    Parameters: `image_encoder.*`, `project.*` (E, D), `end` (E,), which alone represents a missing image.

    Example:
        >>> from regard.config.images import SmallCNNConfig
        >>> from regard.models.image_encoder import build_image_encoder
        >>> embedding = ImageEmbedding(build_image_encoder(SmallCNNConfig(channels=(5,)), image_size=8), 6)
        >>> embedding.images = lambda numbers: torch.zeros(len(numbers), 3, 8, 8)
        >>> embedding(torch.tensor([[7] * 16 + [3], [3] + [0] * 16]), torch.tensor([17, 1])).shape
        torch.Size([2, 17, 6])
    """

    images: ReadImages
    sometimes_unused = True

    @checked
    def __init__(self, image_encoder: ImageEncoder, embed_dim: Size, *, cells_only: bool = False) -> None:
        super().__init__()
        self.cells_only = cells_only
        self.image_encoder = image_encoder
        self.project = ops.Linear(image_encoder.output_dim, embed_dim)
        self.end = nn.Parameter(torch.randn(embed_dim))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Embed rows (B, T) of image ids, each repeated L times and followed by EOS, or EOS alone: (B, T, E), or cells (B, L, E)."""
        rows, encoder = (lengths > 1).nonzero().squeeze(1), self.image_encoder
        size = encoder.grid[0] * encoder.grid[1] if self.cells_only else tokens.shape[1]
        vectors = self.end.expand(len(tokens), size, -1)
        if not len(rows):
            return vectors
        images = self.images(tokens[rows, 0].tolist()).to(tokens.device)
        cells = self.project(encoder(images))
        cells = cells + grid_positions(encoder.grid, cells.shape[-1]).to(cells)
        if not self.cells_only:
            cells = torch.cat([cells, self.end.to(cells).expand(len(cells), 1, -1)], 1)
        return vectors.to(cells.dtype).index_copy(0, rows, cells)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"cells_only={self.cells_only}"
