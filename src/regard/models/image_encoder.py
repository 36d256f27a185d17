"""Image encoders: from an image to a grid of features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import NonLocal
from regard.config.captioning import FeaturesConfig, ImageEncoderConfig, SmallCNNConfig, TimmConfig
from regard.constructor_checks import Size, checked
from regard.errors import ConfigError, MissingExtraError, ShapeError, missing_extra
from regard.models.image_augmentation import RandomView


class ImageEncoder(nn.Module, ABC):
    """Interface of image encoders.

    Attributes:
        grid: rows and columns, h and w; L = h w cells, row by row.
        output_dim: D, features per cell.

    Example:
        >>> encoder = build_image_encoder(SmallCNNConfig(channels=(5, 7)), image_size=13)
        >>> encoder.grid, encoder.output_dim, encoder(torch.ones(2, 3, 13, 13)).shape
        ((4, 4), 7, torch.Size([2, 16, 7]))
    """

    grid: tuple[int, int]
    output_dim: int

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W), or precomputed features, to features (B, L, D)."""


class SmallCNN(ImageEncoder):
    """Stages of 3 x 3 convolutions, each followed by batch normalization and a ReLU; the first of each stage has stride 2.

    The receptive field of a cell is bounded (`SmallCNNConfig.receptive_field`), so that attention to a cell is attention to that part of
    the image. (A norm over the whole image would mix all cells, and so does `non_local`, a `regard.attention.NonLocal` behind the stages.)

    Batch normalization amplifies rare features: most cells are background, and with a norm per cell, or none, the few other cells vanish in
    the mean, and attention cannot start to learn. Training uses the statistics of each process' own batch.

    Args:
        config: channels, further convolutions, non-local block, coordinates, dropout, augmentation.
        image_size: height and width in pixels.

    Parameters: `stages.I.J.convolution.weight`, `stages.I.J.norm.*` with its running statistics; `non_local.*`, if configured;
    `cell.weight` (D, D), with coordinates (D, D + 2), and `cell.bias`.

    Example:
        >>> SmallCNN(SmallCNNConfig(), image_size=64)(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 64, 128])
    """

    @checked
    def __init__(self, config: SmallCNNConfig, image_size: Size) -> None:
        super().__init__()
        self.image_size = image_size
        self.grid = config.grid(image_size)
        self.coordinates = config.coordinates
        self.view = RandomView(config.augment)
        stages, before = [], 3
        for channels, depth in zip(config.channels, config.depths, strict=True):
            steps = []
            for number in range(depth + 1):
                convolution = nn.Conv2d(before, channels, 3, stride=1 if number else 2, padding=1, bias=False)
                steps.append(nn.ModuleDict({"convolution": convolution, "norm": nn.BatchNorm2d(channels)}))
                before = channels
            stages.append(nn.ModuleList(steps))
        self.stages = nn.ModuleList(stages)
        self.output_dim = before
        self.non_local = None if config.non_local is None else NonLocal(before, form=config.non_local)
        self.cell = ops.Linear(before + 2 * bool(config.coordinates), before)
        self.dropout = ops.Dropout(config.dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to features (B, L, D).

        Raises:
            ShapeError: images of another size.
        """
        if images.shape[1:] != (3, self.image_size, self.image_size):
            size = self.image_size
            raise ShapeError(f"SmallCNN: expected images (B, 3, {size}, {size}), found {tuple(images.shape)}")
        # Convolutions are faster in channels-last memory format.
        x = self.view(images).contiguous(memory_format=torch.channels_last)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            for step in stage:
                assert isinstance(step, nn.ModuleDict)
                x = torch.relu(step["norm"](step["convolution"](x)))
        cells = x.permute(0, 2, 3, 1).flatten(1, 2)
        if self.non_local is not None:
            cells = self.non_local(cells).context
        if self.coordinates:
            cells = torch.cat([cells, self._places(cells).expand(len(cells), -1, -1)], -1)
        return self.dropout(torch.relu(self.cell(cells)))

    def _places(self, like: Tensor) -> Tensor:
        # (1, L, 2): row and column of each cell, at most 1: small beside normalized features.
        end = self.coordinates
        rows, columns = (torch.linspace(-end, end, length, dtype=like.dtype, device=like.device) for length in self.grid)
        return torch.cartesian_prod(rows, columns).unsqueeze(0)


class TimmEncoder(ImageEncoder):
    """A stage of a timm model as a grid of features.

    It stays in evaluation mode, also when fine-tuned, so that its norms keep their statistics.

    Args:
        config: model name, and whether to fine-tune it.
        image_size: height and width in pixels.
        pretrained: download its weights; False if weights are loaded later.

    Attributes:
        learning_rate_factor: factor on the learning rate of its parameters.

    Parameters: `backbone.*`, as timm names them.

    Raises:
        MissingExtraError: timm, or a matching torchvision, is not installed.
        ConfigError: timm has no such model, or its weights cannot be downloaded.
    """

    @checked
    def __init__(self, config: TimmConfig, image_size: Size, *, pretrained: bool) -> None:
        super().__init__()
        timm = import_timm()
        try:
            self.backbone: Any = timm.create_model(config.name, pretrained=pretrained, features_only=True, out_indices=(config.level,))
        except Exception as error:  # errors of timm, its hub or the network, with the same meaning
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"model.encoder.name {config.name}: timm cannot make it as a grid of features ({reason})") from error
        self.frozen = config.learning_rate_factor == 0
        self.learning_rate_factor = config.learning_rate_factor
        self.backbone.requires_grad_(not self.frozen)
        self.backbone.eval()
        self.output_dim = int(self.backbone.feature_info.channels()[-1])
        with torch.no_grad():
            like = next(self.backbone.parameters())
            found = self._rows_last(torch.zeros(1, 3, image_size, image_size, device=like.device))
        self.grid = found.shape[1], found.shape[2]

    def train(self, mode: bool = True) -> TimmEncoder:
        """Set training mode of everything but the backbone."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to features (B, L, D)."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self._rows_last(images).flatten(1, 2)

    def _rows_last(self, images: Tensor) -> Tensor:
        # (B, h, w, D): most timm models give (B, D, h, w), some channels last.
        (found,) = self.backbone(images)
        return found if getattr(self.backbone, "output_fmt", "NCHW") == "NHWC" else found.permute(0, 2, 3, 1)


class GivenFeatures(ImageEncoder):
    """Precomputed features (B, L, D), returned unchanged.

    Args:
        grid: rows and columns.
        dim: D.

    Example:
        >>> GivenFeatures((2, 3), 5)(torch.ones(7, 6, 5)).shape
        torch.Size([7, 6, 5])
    """

    @checked
    def __init__(self, grid: tuple[Size, Size], dim: Size) -> None:
        super().__init__()
        self.grid, self.output_dim = grid, dim

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (B, L, D).

        Raises:
            ShapeError: features of another shape.
        """
        expected = (self.grid[0] * self.grid[1], self.output_dim)
        if images.shape[1:] != expected:
            raise ShapeError(f"GivenFeatures: expected features (B, {expected[0]}, {expected[1]}), found {tuple(images.shape)}")
        return images


def import_timm() -> Any:
    """Import timm.

    Raises:
        MissingExtraError: timm or torchvision is not installed or does not match.
    """
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise missing_extra("model.encoder.type timm needs timm", "vision") from error
    except RuntimeError as error:
        # timm imports torchvision, whose releases each match one build of PyTorch.
        raise MissingExtraError(
            f"model.encoder.type timm needs a torchvision made for this PyTorch, {torch.__version__}: the usual one is for CUDA and does "
            "not run on a CPU-only PyTorch; install torch and torchvision from the same index"
        ) from error
    return timm


def build_image_encoder(config: ImageEncoderConfig, *, image_size: int, pretrained: bool = False) -> ImageEncoder:
    """Build the configured encoder.

    Args:
        config: the encoder part of a captioner's configuration.
        image_size: height and width of its images in pixels.
        pretrained: download a timm model's weights; False if weights are loaded later.

    Raises:
        ConfigError: invalid settings.
        MissingExtraError: see `TimmEncoder`.

    Example:
        >>> build_image_encoder(FeaturesConfig(grid=(2, 3), dim=5), image_size=96).grid
        (2, 3)
    """
    match config:
        case SmallCNNConfig():
            return SmallCNN(config, image_size)
        case TimmConfig():
            return TimmEncoder(config, image_size, pretrained=pretrained and config.pretrained)
        case FeaturesConfig():
            if config.grid is None or config.dim is None:
                raise ConfigError("model.encoder: features of which grid and dim? data.features fills them in when training starts")
            return GivenFeatures(config.grid, config.dim)
