"""Images of vision models: their patch grid, and the picture drawn under it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor, nn

from regard.errors import DataError
from regard.viewer import Grid

LARGEST = 512
"""Max pixels of the longer side of a picture in a page."""
MOST_OTHERS = 16
"""Max number of tokens that are not patches: class token, distillation token, some registers."""


class Patches(NamedTuple):
    """Position of an image's patches among a vision model's tokens.

    Attributes:
        grid: (rows, columns) from the model or its configuration; None if unknown.
        behind: number of other tokens after the patches.
    """

    grid: tuple[int, int] | None
    behind: int = 0


def find_patches(model: nn.Module) -> Patches:
    """Return the patch layout that a model declares.

    Example:
        >>> find_patches(nn.Linear(2, 3))
        Patches(grid=None, behind=0)
    """
    config = getattr(model, "config", None)
    behind = getattr(config, "num_detection_tokens", 0)
    behind = behind if isinstance(behind, int) else 0
    for module in model.modules():
        grid = getattr(module, "grid_size", None)  # of timm's PatchEmbed
        if isinstance(grid, tuple) and len(grid) == 2 and all(isinstance(side, int) for side in grid):
            return Patches(grid, behind)
    image, patch = (_pair(getattr(config, name, None)) for name in ("image_size", "patch_size"))
    return Patches(None if image is None or patch is None else (image[0] // patch[0], image[1] // patch[1]), behind)


def _pair(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    return (size[0], size[1]) if isinstance(size, list | tuple) and len(size) == 2 else None


def patch_places(keys: int, patches: Patches) -> slice:
    """Return the token indices of the patches.

    Raises:
        DataError: no grid is known, or the number of keys does not fit it.

    Example:
        >>> patch_places(197, Patches((14, 14)))
        slice(1, 197, None)
    """
    if patches.grid is None:
        raise DataError("grid: the model does not tell how its patches lie; say grid=(rows, columns)")
    rows, columns = patches.grid
    others = keys - rows * columns - patches.behind
    if not 0 <= others <= MOST_OTHERS:
        raise DataError(f"grid: {rows} x {columns} patches, but there are {keys} keys; say grid=(rows, columns) of the image that ran")
    return slice(others, others + rows * columns)


def read_image(image: Any, grid: tuple[int, int]) -> Grid:
    """Read a picture for a grid of patches.

    Args:
        image: a file, a Pillow image, or an array or tensor (3, height, width) or (height, width, 3): bytes 0 to 255, numbers 0 to 1, or
            normalized ones, which are rescaled from min to max.
        grid: (rows, columns) of the patches.

    Raises:
        DataError: it cannot be read as an image; the message names it.
    """
    if isinstance(image, str | Path):
        try:
            with Image.open(image) as opened:
                picture = opened.convert("RGB")
        except (OSError, ValueError) as error:
            raise DataError(f"{image}: cannot be read as an image") from error
    elif isinstance(image, Image.Image):
        picture = image.convert("RGB")
    else:
        picture = Image.fromarray(_pixels(image))
    size = picture.size
    picture.thumbnail((LARGEST, LARGEST))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    address = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    return Grid(*grid, image=address, size=size)


def _pixels(image: Any) -> np.ndarray:
    values = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if values.ndim == 3 and values.shape[0] in (1, 3) and values.shape[2] not in (1, 3):
        values = values.transpose(1, 2, 0)
    if values.ndim != 3 or values.shape[2] not in (1, 3) or not values.size:
        found = " x ".join(map(str, values.shape)) or "a number"
        raise DataError(f"image: expected (3, height, width) or (height, width, 3), found {found}")
    values = np.repeat(values, 3 // values.shape[2], 2)
    if values.dtype == np.uint8:
        return values
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError("image: expected finite numbers")
    least, largest = values.min(), values.max()
    if least < 0 or largest > 1:
        values = (values - least) / ((largest - least) or 1.0)
    return np.rint(255 * values).astype(np.uint8)


def images_of(image: Any) -> Sequence[Any]:
    """Split a batch into images: a list, or an array or tensor with four axes."""
    if isinstance(image, list | tuple):
        return image
    if isinstance(image, Tensor | np.ndarray) and image.ndim == 4:
        return list(image)
    return [image]
