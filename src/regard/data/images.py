"""Image input: file lists, cropping, and normalization."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import torch
from PIL import Image

from regard.data.image_archive import ArchivedImage
from regard.data.image_decoding import decode_square, visible_part
from regard.data.lines import read_lines, unreadable
from regard.errors import ConfigError, DataError, counted, shown

# An image file, or one inside a tar.
ImageSource = str | Path | ArchivedImage
# Left, top, right and bottom relative to width and height, 0 to 1.
Box = tuple[float, float, float, float]

# Image file extensions in folders; explicitly named files may have any.
ENDINGS = (".jpg", ".jpeg", ".jpe", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".avif", ".jp2", ".ppm", ".pgm", ".pbm")
LIST_ENDING = ".txt"
RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Preprocessing:
    """Image preprocessing, stored with a model so that new images are processed like training images.

    `dataclasses.asdict` and `Preprocessing(**mapping)` convert to and from a configuration. Defaults are those of ImageNet models; for
    timm's see `timm.data.resolve_model_data_config`.

    Args:
        size: height and width in pixels, 8 to 4096.
        fit: "crop" the maximum central square, or "stretch" the whole image.
        keep: the central share to keep, above 0 and up to 1 (timm's crop_pct).
        resample: the filter: "bilinear", "bicubic" or "lanczos".
        mean: of red, green and blue, subtracted from values of 0 to 1.
        std: divisor of the differences, above 0.

    Raises:
        ConfigError: an argument is outside its range.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (70, 50), 255).save(Path(folder, "white.png"))
        ...     Preprocessing(size=8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)).read(Path(folder, "white.png")).shape
        torch.Size([3, 8, 8])
    """

    size: int = 224
    fit: Literal["crop", "stretch"] = "crop"
    keep: float = 1.0
    resample: Literal["bilinear", "bicubic", "lanczos"] = "bicubic"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        # JSON and YAML give lists here; equal settings must compare equal.
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
        if not 8 <= self.size <= 4096:
            raise ConfigError(f"size {self.size}: expected 8 to 4096 pixels")
        if self.fit not in ("crop", "stretch"):
            raise ConfigError(f"fit {shown(self.fit)}: expected crop or stretch")
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep {self.keep}: expected a part above 0 and up to 1")
        if self.resample not in RESAMPLING:
            raise ConfigError(f"resample {shown(self.resample)}: expected {', '.join(RESAMPLING)}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or not all(math.isfinite(value) for value in values):
                raise ConfigError(f"{name} {values}: expected three numbers, for red, green and blue")
        if min(self.std) <= 0:
            raise ConfigError(f"std {self.std}: expected numbers above 0")

    def pixels(self, source: ImageSource) -> np.ndarray:
        """Read an image without normalization, for plots of attention.

        Args:
            source: an image file, or one in an archive.

        Returns:
            uint8 (size, size, 3), upright, transparent parts on white.

        Raises:
            DataError: it cannot be read as an image.
        """
        with open_source(source) as stream:
            return self.pixels_of(stream, str(source))

    def pixels_of(self, stream: BinaryIO, name: str) -> np.ndarray:
        """Read an open image, which messages call `name`, as `pixels` does."""
        return decode_square(stream, name, self.size, crop=self.fit == "crop", keep=self.keep, resample=RESAMPLING[self.resample])

    def visible_boxes(self, boxes: Sequence[Box], source: ImageSource) -> list[Box]:
        """Return boxes of an image as parts of what `pixels` shows of it; those outside are left out.

        Args:
            boxes: left, top, right and bottom, from 0 to 1 of the whole image.
            source: the image, of which the size is read if a part is shown.

        Raises:
            DataError: it cannot be read as an image.

        Example:
            >>> Preprocessing(fit="stretch", keep=0.5).visible_boxes([(0.0, 0.25, 0.5, 0.5)], "any.jpg")
            [(0.0, 0.0, 0.5, 0.5)]
        """
        if not boxes:
            return []
        if self.fit == "stretch":
            left, top, right, bottom = ((1 + sign * self.keep) / 2 for sign in (-1, -1, 1, 1))
        else:
            with open_source(source) as stream:
                left, top, right, bottom = visible_part(stream, str(source), crop=True, keep=self.keep)

        def moved(edge: float, low: float, high: float) -> float:
            return min(max((edge - low) / (high - low), 0.0), 1.0)

        return [
            (moved(box[0], left, right), moved(box[1], top, bottom), moved(box[2], left, right), moved(box[3], top, bottom))
            for box in boxes
            if box[0] < right and box[2] > left and box[1] < bottom and box[3] > top
        ]

    def normalize(self, pixels: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Normalize pixels: divide by 255, subtract the mean, divide by the standard deviation.

        Args:
            pixels: uint8 (..., H, W, 3); a tensor stays on its device.

        Returns:
            float32 (..., 3, H, W).

        Raises:
            DataError: the last axis is not 3, or the type is not uint8.
        """
        values = pixels if isinstance(pixels, torch.Tensor) else torch.from_numpy(np.array(pixels))
        if values.dtype != torch.uint8 or values.ndim < 3 or values.shape[-1] != 3:
            raise DataError(f"pixels {values.dtype} {tuple(values.shape)}: expected uint8 (..., H, W, 3)")
        mean, std = (torch.tensor(numbers, device=values.device)[:, None, None] for numbers in (self.mean, self.std))
        # Transpose bytes, not floats of four times the size.
        channels = values.movedim(-1, -3).contiguous().to(torch.float32)
        return channels.mul_(1 / (255 * std)).sub_(mean / std)

    def read(self, source: ImageSource) -> torch.Tensor:
        """Read one image as float32 (3, size, size): `pixels`, then `normalize`."""
        return self.normalize(self.pixels(source))


@dataclass(frozen=True)
class ImageList:
    """Image files of command-line arguments.

    Attributes:
        paths: the files, in the order of the arguments; those of a folder in natural order (`2.jpg` before `10.jpg`).
        ignored: number of files in folders without an image extension.
    """

    paths: tuple[Path, ...]
    ignored: int


def expand_images(arguments: Sequence[str | Path]) -> ImageList:
    """Expand arguments to image files.

    A folder gives its image files (without subfolders); a `.txt` file the files it lists, one per line, relative to its folder; anything
    else itself. Missing files are reported when read, so that they do not stop the others.

    Args:
        arguments: files, folders and lists.

    Returns:
        An `ImageList`; no arguments give no paths.

    Raises:
        DataError: a folder holds no image, or a folder or list cannot be read.

    Example:
        >>> expand_images(["b.jpg", "a.png"]).paths == (Path("b.jpg"), Path("a.png"))
        True
    """
    paths: list[Path] = []
    ignored = 0
    for argument in map(Path, arguments):
        if argument.is_dir():
            files = _files_of(argument)
            images = [path for path in files if path.suffix.lower() in ENDINGS]
            if not images:
                raise DataError(
                    f"{argument}: {counted(len(files), 'file')}, none with the ending of an image ({', '.join(ENDINGS[:4])} ...)"
                )
            paths += sorted(images, key=natural_order)
            ignored += len(files) - len(images)
        elif argument.suffix.lower() == LIST_ENDING:
            paths += [argument.parent / line for line in read_lines(argument) if line.strip()]
        else:
            paths.append(argument)
    return ImageList(tuple(paths), ignored)


def natural_order(path: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Return the natural sort key: digits as numbers, ignoring case.

    Example:
        >>> [path.name for path in sorted(map(Path, ["b10.png", "B2.png", "a.png"]), key=natural_order)]
        ['a.png', 'B2.png', 'b10.png']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", path.name.casefold())
    return [(0, int(part[:4000]), "") if part[0] in "0123456789" else (1, 0, part) for part in parts], path.name


def open_source(source: ImageSource) -> BinaryIO:
    """Open an image file, or one in an archive, for reading.

    Raises:
        DataError: it is missing, is no ordinary file or may not be read.

    Example:
        >>> open_source("missing.jpg")
        Traceback (most recent call last):
        regard.errors.DataError: missing.jpg: no such file
    """
    if isinstance(source, ArchivedImage):
        return io.BytesIO(source.read())
    path = Path(source)
    try:
        # Pipes and devices may never end.
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: expected an image file, found {'a folder' if path.is_dir() else 'no ordinary file'}")
        return open(path, "rb")
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def _files_of(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_file()]
    except OSError as error:
        raise unreadable(folder, error) from error
