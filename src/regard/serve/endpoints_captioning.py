"""What can be asked of a captioner: images that nobody vouches for, as base64 in JSON, which no form of another site can send."""

from __future__ import annotations

import base64
import binascii
import io
import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from PIL import Image

from regard.config import DecodingConfig
from regard.data.image_archive import ArchivedImage
from regard.data.image_decoding import FORMATS
from regard.errors import DataError
from regard.serve.endpoints import RECORD, RECORDS, DecodingRequest, ServedModel, body_schema, to_json
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import Schema
from regard.serve.limits import Limits
from regard.tasks.captioning_prediction import Captioner
from regard.viewer import page_records

# A white GIF of one pixel.
DOT = "R0lGODdhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs="
# Of `regard caption`: where hard attention draws, each image is drawn for as if it came alone.
SEED = 1


class SentImage(ArchivedImage):
    """The bytes of an image that came with a request; messages call it by the name of its field."""

    data: bytes

    def __init__(self, data: bytes) -> None:
        super().__init__(archive=cast(Any, None), name="image", offset=0, length=len(data))
        object.__setattr__(self, "data", data)  # the class it comes from is frozen

    def __str__(self) -> str:
        return "image"

    def read(self) -> bytes:
        """Return the bytes."""
        return self.data


class CaptionEndpoint:
    """POST /caption: what `regard caption` writes for an image."""

    path: ClassVar[str] = "/caption"
    summary: ClassVar[str] = "Describe an image, as `regard caption` does."
    result: ClassVar[str] = "captions"
    item: ClassVar[Schema] = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "the caption"},
            "score": {"type": ["number", "null"], "description": "by which it was chosen"},
        },
        "required": ["text", "score"],
        "additionalProperties": False,
    }

    def __init__(self, models: Sequence[ServedModel[Captioner]], limits: Limits) -> None:
        self._models = models
        self._limits = limits
        self.max_body = limits.max_image_body
        # A pattern would be tried on megabytes; `plan` decodes them, and tells what is no base64.
        description = "an image file as base64, without line feeds: JPEG, PNG, GIF, BMP, TIFF, WebP, AVIF, JPEG 2000 or PPM"
        image = {
            "type": "string",
            "maxLength": limits.max_image_characters,
            "contentEncoding": "base64",
            "description": description,
            "examples": [DOT],
        }
        self.request = body_schema(models, {"image": image}, limits, searches=True)

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[bytes]]:
        """Return the search and the bytes of the image; raises Refused (422) for what is no base64."""
        try:
            return DecodingRequest.asked(self._models, body), [base64.b64decode(body["image"], validate=True)]
        except (binascii.Error, ValueError) as error:
            raise HTTPError(422, "image: expected base64") from error

    def width(self, item: bytes) -> int:
        """Return 0: every image is cut to the same size."""
        return 0

    def compute(self, settings: Hashable, items: Sequence[bytes]) -> list[str | HTTPError]:
        """Caption images together; one that cannot be read is refused (422)."""
        assert isinstance(settings, DecodingRequest)
        captioner = self._models[settings.model].worker
        answers: list[str | HTTPError] = [self._too_large(data) or "" for data in items]
        left = [number for number, answer in enumerate(answers) if not answer]
        together = [[number] for number in left] if _draws(captioner) else [left]
        for numbers in filter(None, together):
            torch.manual_seed(SEED)
            decoding = settings.decoding.model_copy(update={"batch_size": len(numbers)})
            found = captioner.caption([SentImage(items[number]) for number in numbers], decoding=decoding)
            for number, caption in zip(numbers, found, strict=True):
                answers[number] = HTTPError(422, caption.error) if caption.error is not None else _answer(caption.text, caption.hypotheses)
        return answers

    def _too_large(self, data: bytes) -> HTTPError | None:
        width, height = _size(data)
        if width * height <= self._limits.max_pixels:
            return None
        return HTTPError(422, f"image: {width} x {height} pixels, expected at most {self._limits.max_pixels}")


class CaptionAttentionEndpoint(CaptionEndpoint):
    """POST /attention: the record that `regard view` shows."""

    path: ClassVar[str] = "/attention"
    summary: ClassVar[str] = "Describe an image and return where the model looked for each word, as `regard view` does."
    result: ClassVar[str] = RECORDS
    item: ClassVar[Schema] = RECORD

    def compute(self, settings: Hashable, items: Sequence[bytes]) -> list[str | HTTPError]:
        """Caption images one after another and record where the model looked."""
        assert isinstance(settings, DecodingRequest)
        return [self._too_large(data) or self._record(settings.model, settings.decoding, data) for data in items]

    def _record(self, model: int, decoding: DecodingConfig, data: bytes) -> str | HTTPError:
        name, captioner = self._models[model]
        torch.manual_seed(SEED)
        try:
            record = captioner.record(SentImage(data), decoding=decoding)
        except DataError as error:
            return HTTPError(422, " ".join(str(error).splitlines()))
        return to_json(page_records([replace(record, model=name, title="")])[0])


def _answer(text: str, hypotheses: Sequence[Any]) -> str:
    score = hypotheses[0].score
    return to_json({"text": text, "score": score if math.isfinite(score) else None})


def _draws(captioner: Captioner) -> bool:
    settings = captioner.run.config.model
    return getattr(settings, "attention", "soft") == "hard" and settings.hard.mode == "sample"  # pyright: ignore[reportAttributeAccessIssue]


def _size(data: bytes) -> tuple[int, int]:
    """Return width and height as the head of a file says them; (0, 0) for what reading it will tell more about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            Image.init()
            with Image.open(io.BytesIO(data), formats=[form for form in FORMATS if form in Image.OPEN]) as image:
                return image.size
        except Exception:  # a decoder meeting foreign bytes can raise anything
            return 0, 0
