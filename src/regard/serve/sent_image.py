"""Images of untrusted origin: base64 in JSON, which a form of another site cannot send."""

from __future__ import annotations

import base64
import binascii
import io
import warnings
from typing import Any, cast

from PIL import Image

from regard.data.image_archive import ArchivedImage
from regard.data.image_decoding import FORMATS
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import Schema
from regard.serve.limits import Limits

# A white GIF of one pixel.
DOT = "R0lGODdhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs="


class SentImage(ArchivedImage):
    """Bytes of an image in a request; error messages name its field."""

    data: bytes

    def __init__(self, data: bytes) -> None:
        super().__init__(archive=cast(Any, None), name="image", offset=0, length=len(data))
        object.__setattr__(self, "data", data)  # the parent class is frozen

    def __str__(self) -> str:
        return "image"

    def read(self) -> bytes:
        """Return the bytes."""
        return self.data


def image_schema(limits: Limits) -> Schema:
    """Return the schema of an image."""
    # No pattern, which would be matched against megabytes; `decode_image` detects invalid base64.
    description = "an image file as base64, without line feeds: JPEG, PNG, GIF, BMP, TIFF, WebP, AVIF, JPEG 2000 or PPM"
    words = {"contentEncoding": "base64", "description": description, "examples": [DOT]}
    return {"type": "string", "maxLength": limits.max_image_characters, **words}


def decode_image(text: str) -> bytes:
    """Return the bytes of an image; raises HTTPError (422) for invalid base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise HTTPError(422, "image: expected base64") from error


def refuse_large(data: bytes, limits: Limits) -> HTTPError | None:
    """Return an error if the file's header declares too many pixels; other errors are left to the decoder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            Image.init()
            with Image.open(io.BytesIO(data), formats=[form for form in FORMATS if form in Image.OPEN]) as image:
                width, height = image.size
        except Exception:  # a decoder can raise anything for invalid bytes
            return None
    if width * height <= limits.max_pixels:
        return None
    return HTTPError(422, f"image: {width} x {height} pixels, expected at most {limits.max_pixels}")
