"""Decode untrusted image files: any format, upright, on white, with bounded memory.

Memory is bounded by checking the header's size first, decoding JPEG files at reduced size where possible, and converting to RGB in tiles.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from regard.data.lines import single_line
from regard.errors import DataError

# Pillow supports more formats, but some start programs or are not photographs.
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM")
EXPECTED = "JPEG, PNG, GIF, BMP, TIFF, WebP, AVIF, JPEG 2000 or PPM"
# Maximum bytes for decoding; with its libraries the process stays below 1 GB.
BUDGET = 400 * 2**20
# Bytes per pixel of the file beside the 4 of the decoded picture: the decoders' own memory, rounded up.
WORKSPACE = {"TIFF": 4, "WEBP": 12, "AVIF": 12, "JPEG2000": 20}
PROGRESSIVE = 6
TILE = 2048
ORIENTATION = 0x0112
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Orientations whose stored rows and columns are exchanged, whose columns run backwards, and whose rows run upwards.
SIDEWAYS, BACKWARDS, UPWARDS = (5, 6, 7, 8), (2, 3, 7, 8), (3, 4, 6, 7)

Box = tuple[int, int, int, int]


def decode_square(
    stream: BinaryIO, name: str, size: int, *, crop: bool, keep: float = 1.0, resample: Image.Resampling = Image.Resampling.BICUBIC
) -> np.ndarray:
    """Decode an image file and fit it into a square, upright by its EXIF data, transparent parts on white.

    Reads the first frame of an animation; scales 16-bit grey to 8 bits; ignores colour profiles.

    Args:
        stream: the file, open for reading.
        name: name in messages.
        size: height and width of the result in pixels, at least 1.
        crop: crop the maximum central square; False stretches the whole picture.
        keep: the central share to keep, above 0 and up to 1.
        resample: the filter.

    Returns:
        uint8 (size, size, 3): red, green and blue.

    Raises:
        DataError: the file is empty, of unknown format, damaged or truncated, or needs too much memory.

    Example:
        >>> import io
        >>> buffer = io.BytesIO()
        >>> Image.new("RGB", (70, 50), (10, 200, 30)).save(buffer, "PNG")
        >>> decode_square(buffer, "green.png", 2, crop=True)[1, 1].tolist()
        [10, 200, 30]
    """
    shown = single_line(name)
    # Decoders may raise and warn of anything on untrusted bytes: convert both to one message.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = _open(stream, shown)
        try:
            _check_size(image, size, shown)
            image.load()
            # Read last: a PNG may have it behind its pixels, and Pillow has already turned a TIFF.
            return _fit(image, size, crop=crop, keep=keep, resample=resample, orientation=_orientation(image))
        except DataError:
            raise
        except Exception as error:
            reason = single_line(str(error)) or type(error).__name__
            raise DataError(f"{shown}: damaged or truncated {image.format} image ({reason[:120]})") from error
        finally:
            image.close()


def visible_part(stream: BinaryIO, name: str, *, crop: bool, keep: float = 1.0) -> tuple[float, float, float, float]:
    """Return the part of an upright image that `decode_square` shows: left, top, right and bottom, from 0 to 1 of the whole.

    Raises:
        DataError: no image.

    Example:
        >>> import io
        >>> buffer = io.BytesIO()
        >>> Image.new("RGB", (80, 40)).save(buffer, "PNG")
        >>> visible_part(buffer, "wide.png", crop=True, keep=0.5)
        (0.375, 0.25, 0.625, 0.75)
    """
    with _open(stream, single_line(name)) as image:
        orientation = _orientation(image)
        width, height = image.size[:: -1 if orientation in SIDEWAYS else 1]
        left, top, right, bottom = _central(image, orientation, crop=crop)
    across, down = ((right - left) * (1 - keep) / 2, (bottom - top) * (1 - keep) / 2)
    return (left + across) / width, (top + down) / height, (right - across) / width, (bottom - down) / height


def _open(stream: BinaryIO, name: str) -> Image.Image:
    try:
        empty = not stream.seek(0, 2)
        stream.seek(0)
        if empty:
            raise DataError(f"{name}: empty file, expected an image")
        Image.init()
        return Image.open(stream, formats=[form for form in FORMATS if form in Image.OPEN])
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"{name}: not an image, expected {EXPECTED}") from error
    except Image.DecompressionBombError as error:
        limit = f"{2 * (Image.MAX_IMAGE_PIXELS or 0) // 10**6} million"
        raise DataError(f"{name}: too many pixels, expected at most {limit} ({single_line(str(error)).split(',')[0]})") from error
    except Exception as error:
        raise DataError(f"{name}: not an image that can be read ({single_line(str(error))[:120]})") from error


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # ignore damaged EXIF data; the picture may be intact
        return 1


def _check_size(image: Image.Image, size: int, name: str) -> None:
    """Request reduced JPEG decoding, and refuse images that need too much memory, before decoding."""
    width, height = image.size
    image.draft(None, (2 * size, 2 * size))  # no effect on other formats
    workspace = PROGRESSIVE if image.info.get("progressive") else WORKSPACE.get(image.format or "", 0)
    needed = width * height * workspace + image.size[0] * image.size[1] * 4
    if needed > BUDGET:
        limit = BUDGET * width * height // needed // 10**6
        raise DataError(f"{name}: {width} x {height} pixels, expected at most {limit} million in such a {image.format} image")


def _fit(image: Image.Image, size: int, *, crop: bool, keep: float, resample: Image.Resampling, orientation: int) -> np.ndarray:
    box = _central(image, orientation, crop=crop)
    across, down = box[2] - box[0], box[3] - box[1]
    factors = max(1, across // (2 * size)), max(1, down // (2 * size))
    small = _reduced(image, box, factors, orientation)
    # The last column and row of `small` may cover less than a factor: the exact size is fractional.
    exact = across / factors[0], down / factors[1]
    edges = tuple(length * (1 + sign * keep) / 2 for sign in (-1, 1) for length in exact)
    return np.array(small.resize((size, size), resample, box=edges))  # type: ignore[arg-type]


def _central(image: Image.Image, orientation: int, *, crop: bool) -> Box:
    width, height = image.size[:: -1 if orientation in SIDEWAYS else 1]
    if not crop:
        return 0, 0, width, height
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _reduced(image: Image.Image, box: Box, factors: tuple[int, int], orientation: int) -> Image.Image:
    """Average blocks of `factors` pixels in a box of the upright picture, as RGB."""
    left, top, right, bottom = box
    across, down = factors
    result = Image.new("RGB", (-(-(right - left) // across), -(-(bottom - top) // down)))
    to_rgb = _converter(image)
    # A tile holds whole blocks.
    step_x, step_y = (max(1, TILE // factor) * factor for factor in factors)
    for y in range(top, bottom, step_y):
        for x in range(left, right, step_x):
            tile = to_rgb(_crop_upright(image, (x, y, min(x + step_x, right), min(y + step_y, bottom)), orientation))
            result.paste(tile.reduce(factors), ((x - left) // across, (y - top) // down))
    return result


def _crop_upright(image: Image.Image, box: Box, orientation: int) -> Image.Image:
    """Return a box of the upright picture."""
    if orientation not in UPRIGHT:
        return image.crop(box)
    left, top, right, bottom = box[1::-1] + box[:1:-1] if orientation in SIDEWAYS else box
    if orientation in BACKWARDS:
        left, right = image.width - right, image.width - left
    if orientation in UPWARDS:
        top, bottom = image.height - bottom, image.height - top
    return image.crop((left, top, right, bottom)).transpose(UPRIGHT[orientation])


def _converter(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """Return the function that converts a tile of the picture to RGB."""
    if image.mode.startswith(("I", "F")):
        scale = _white_level(image)
        return lambda tile: Image.fromarray(_to_bytes(np.asarray(tile), scale)).convert("RGB")
    if image.has_transparency_data:
        return _on_white
    return lambda tile: tile.convert("RGB")


def _white_level(image: Image.Image) -> float:
    """Return the white level of a picture of 16 or 32 bits per pixel; for 32 bits from its maximum."""
    if image.mode.startswith("I;16"):
        return 65535.0
    greatest = float(np.nan_to_num(image.getextrema()[1]))  # type: ignore[arg-type]
    return next((level for level in (1.0, 255.0, 65535.0) if greatest <= level and (level > 1 or image.mode == "F")), greatest)


def _to_bytes(values: np.ndarray, white: float) -> np.ndarray:
    scaled = np.nan_to_num(values.astype(np.float32)) * np.float32(255.0 / white)
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def _on_white(tile: Image.Image) -> Image.Image:
    white = Image.new("RGBA", tile.size, (255, 255, 255, 255))
    white.alpha_composite(tile.convert("RGBA"))
    return white.convert("RGB")
