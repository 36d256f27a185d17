"""Augmentation of training images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config.images import AugmentConfig
from regard.constructor_checks import checked


class RandomView(nn.Module):
    """Random crop, flip, brightness and contrast of each image in training; the identity in evaluation.

    Args:
        config: strength of the augmentation.

    Example:
        >>> view = RandomView(AugmentConfig(crop=0.5, flip=True, light=0.2))
        >>> view(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 3, 8, 8])
        >>> image = torch.randn(1, 3, 8, 8)
        >>> view.eval()(image) is image
        True
    """

    @checked
    def __init__(self, config: AugmentConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to views (B, 3, H, W), each sampled independently from PyTorch's generator."""
        config = self.config
        if not self.training or config == AugmentConfig():
            return images
        # Per image: side, offset, flip, brightness and contrast.
        drawn = torch.rand(6, len(images), device=images.device)
        signed = 2 * drawn - 1
        side = 1 - (1 - config.crop) * drawn[0]
        place = torch.zeros(len(images), 2, 3, device=images.device)
        place[:, 0, 0] = side * signed[3].sign() if config.flip else side
        place[:, 1, 1] = side
        place[:, :, 2] = (1 - side).unsqueeze(1) * signed[1:3].T
        grid = F.affine_grid(place, list(images.shape), align_corners=False)
        views = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
        contrast, brightness = (config.light * each.view(-1, 1, 1, 1) for each in signed[4:])
        return views * (1 + contrast) + brightness
