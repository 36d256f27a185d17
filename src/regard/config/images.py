"""Image preprocessing, and the small network that computes a grid of features."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from regard.config.base import MAX_LAYERS, MAX_RATE, MAX_SIZE, Frozen

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Depth = Annotated[int, Field(ge=0, le=MAX_LAYERS)]
Shade = Annotated[float, Field(ge=-MAX_RATE, le=MAX_RATE)]
NonLocalForm = Literal["gaussian", "embedded_gaussian", "dot", "concat"]
KeyMode = Literal["mean", "features", "max", "sample", "concat", "max_concat", "sum", "sample_concat", "sample_sum"]


class ImageConfig(Frozen):
    """Image preprocessing; stored with the model, so that new images are processed like the training images."""

    size: int = Field(default=96, ge=8, le=4096, description="height and width in pixels")
    fit: Literal["crop", "stretch"] = Field(default="stretch", description="the largest central square, or all of it, proportions changed")
    keep: float = Field(default=1.0, gt=0, le=1, description="fraction of the image to keep, at its centre")
    resample: Literal["bilinear", "bicubic", "lanczos"] = "bicubic"
    mean: tuple[Shade, Shade, Shade] = Field(default=(0.485, 0.456, 0.406), description="of red, green, blue; subtracted")
    std: tuple[Shade, Shade, Shade] = Field(default=(0.229, 0.224, 0.225), description="of red, green, blue; divisor")


class AugmentConfig(Frozen):
    """Random augmentation of training images. Without settings: none."""

    crop: float = Field(default=1.0, gt=0, le=1, description="random square crop: min side as a fraction of the image's")
    flip: bool = Field(default=False, description="mirror half of the images; not if captions say left or right")
    light: float = Field(
        default=0.0, ge=0, le=1, description="change contrast by up to this fraction, brightness by up to this many standard deviations"
    )


class SmallCNNConfig(Frozen):
    """A small convolutional network, trained with the captioner: stages of 3 x 3 convolutions, the first of each with stride 2.

    Without `depth`, a cell after three stages sees 15 x 15 pixels, on a grid of one eighth of the image's size.
    """

    type: Literal["cnn"] = "cnn"
    channels: tuple[Size, ...] = Field(default=(32, 64, 128), min_length=1, max_length=6, description="of each stage; each halves the grid")
    depth: Depth | tuple[Depth, ...] = Field(
        default=0, description="extra convolutions per stage, or a list with one number per stage; each widens the receptive field"
    )
    coordinates: float = Field(
        default=1.0,
        ge=0,
        le=MAX_RATE,
        description="add row and column as two channels from -x to x; larger for images with little content; 0: none",
    )
    non_local: NonLocalForm | None = Field(
        default=None,
        description="form of a non-local block on the grid (Wang et al. 2018), with which every cell sees all; null: none",
    )
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="on the features")
    augment: AugmentConfig = Field(default=AugmentConfig(), description="of training images")
    start: str | None = Field(default=None, description="captioning run to take the encoder from; its encoder settings must be the same")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.depths) != len(self.channels) or min(self.depths) < 0:
            found = list(self.depth) if isinstance(self.depth, tuple) else self.depth
            raise ValueError(f"depth: expected one number of 0 or more, or one for each of {len(self.channels)} stages, found {found}")
        return self

    @property
    def depths(self) -> tuple[int, ...]:
        """Additional convolutions of each stage."""
        return (self.depth,) * len(self.channels) if isinstance(self.depth, int) else self.depth

    @property
    def stride(self) -> int:
        """Pixels between adjacent cells of the grid."""
        return 2 ** len(self.channels)

    @property
    def receptive_field(self) -> int:
        """Height and width in pixels of a cell's receptive field, of the convolutions alone."""
        field, stride = 1, 1
        for depth in self.depths:
            field, stride = field + 2 * stride, 2 * stride
            field += 2 * stride * depth
        return field

    def grid(self, size: int) -> tuple[int, int]:
        """Return the grid's rows and columns for an image of this size."""
        side = math.ceil(size / self.stride)
        return side, side


class GridAreaConfig(Frozen):
    """Area attention over a grid (Li et al. 2018): rectangles of cells instead of single ones."""

    height: int = Field(default=2, ge=1, le=MAX_SIZE, description="max rows of an area")
    width: int = Field(default=2, ge=1, le=MAX_SIZE, description="max columns of an area")
    key_mode: KeyMode = Field(default="mean", description="mean: Eq. 3; features: Eq. 9, learned; the others as in the authors' code")
    value_mode: Literal["sum", "mean", "max"] = Field(default="sum", description="sum: Eq. 4")


class ImageAreaConfig(GridAreaConfig):
    """Rectangles of cells of an image that is the second input, in the first layers that attend to it."""

    layers: int = Field(
        default=2, ge=1, le=MAX_LAYERS, description="areas in this many first layers of encoder and decoder; more than there are: all"
    )


class SecondImageConfig(ImageConfig):
    """An image as the second input of a translation model: its preprocessing, and the network that computes the grid."""

    encoder: SmallCNNConfig = SmallCNNConfig()
    area: GridAreaConfig | None = Field(default=None, description="null: attend to single cells")

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if self.encoder.start is not None:
            raise ValueError("encoder.start: a captioner alone can start from the encoder of another run")
        return self

    @property
    def preprocessing(self) -> dict[str, Any]:
        """The settings of `ImageConfig` alone."""
        return self.model_dump(mode="json", include=set(ImageConfig.model_fields))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the grid."""
        return self.encoder.grid(self.size)

    @property
    def cells(self) -> int:
        """Number of cells of the grid."""
        return self.grid[0] * self.grid[1]


class LayeredImageConfig(SecondImageConfig):
    """The same for a model of several layers."""

    area: ImageAreaConfig | None = Field(default=None, description="null: attend to single cells")
