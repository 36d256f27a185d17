"""How much a server takes on, and for how long it waits; past each of them a request gets a status that says so."""

from __future__ import annotations

from pydantic import Field, model_validator

from regard.config import Frozen


class Limits(Frozen):
    """What one request may ask for, what may wait at a time, and how long anything may take.

    Example:
        >>> Limits(queue=100).max_lines
        64
    """

    batch_size: int = Field(default=32, ge=1, description="lines the model works on together")
    batch_characters: int = Field(default=8192, ge=1, description="lines of a batch times the longest of them, in characters")
    queue: int = Field(default=256, ge=1, description="lines that may wait for the model; one more is answered 429")
    timeout: float = Field(default=30.0, gt=0, description="seconds from a request to its answer; later is answered 504")
    stop_seconds: float = Field(default=10.0, ge=0, description="seconds that what is running may go on after a signal to stop")
    max_body: int = Field(default=262_144, ge=1, description="bytes of a request's body; more is answered 413")
    max_text: int = Field(default=5_000, ge=1, description="characters of a line; more is answered 422")
    max_lines: int = Field(default=64, ge=1, description="lines of a request; more is answered 422")
    max_beam: int = Field(default=10, ge=1, description="the largest beam a request may ask for")
    max_output: int = Field(default=256, ge=1, description="the largest max_length a request may ask for, in tokens")
    max_image: int = Field(default=5_242_880, ge=1, description="bytes of an image; a body with a larger one is answered 413")
    max_pixels: int = Field(default=50_000_000, ge=1, description="pixels of an image; more is answered 422, before any is decoded")
    max_held: int = Field(default=67_108_864, ge=1, description="bytes of the bodies of all requests at work; more is answered 429")
    max_connections: int = Field(default=256, ge=1, description="open connections; one more is answered 503")
    header_seconds: float = Field(default=10.0, gt=0, description="seconds a client may take to send the head of a request")
    body_seconds: float = Field(default=10.0, gt=0, description="seconds a client may take to send a body; later is answered 408")
    write_seconds: float = Field(default=30.0, gt=0, description="seconds a client may take to read an answer")

    @property
    def max_image_characters(self) -> int:
        """The length of the largest image in base64."""
        return -(-self.max_image // 3) * 4

    @property
    def max_image_body(self) -> int:
        """The bytes of a body with the largest image; some writers of JSON put a backslash before each slash."""
        return self.max_image_characters * 17 // 16 + 4096

    @model_validator(mode="after")
    def _check(self) -> Limits:
        if self.max_lines > self.queue:
            raise ValueError(f"max_lines ({self.max_lines}) must not be more than queue ({self.queue}): it could never be taken")
        return self
