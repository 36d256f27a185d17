"""Server limits on load and waiting time; exceeding one gives an error status."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from regard.errors import ConfigError, shown

MAX_COUNT = 10**9
MAX_SECONDS = 86_400.0


def _limit(default: float, text: str, *, least: float = 1) -> Any:
    most = MAX_SECONDS if isinstance(default, float) else MAX_COUNT
    return field(default=default, metadata={"help": text, "least": least, "most": most})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on requests, queue and time.

    Raises:
        ConfigError: a limit is out of its bounds, or `max_lines` exceeds `queue`.

    Example:
        >>> Limits(queue=100).max_lines
        64
    """

    batch_size: int = _limit(32, "lines per batch")
    batch_characters: int = _limit(8192, "lines of a batch times its longest line, in characters")
    queue: int = _limit(256, "max lines that wait for the model; above it status 429")
    timeout: float = _limit(30.0, "max seconds from a request to its response; after it status 504", least=0.001)
    shutdown_timeout: float = _limit(10.0, "max seconds for running requests after a signal to stop", least=0)
    max_body: int = _limit(262_144, "max bytes of a request body; above it status 413")
    max_text: int = _limit(5_000, "max characters per line; above it status 422")
    max_lines: int = _limit(64, "max lines per request; above it status 422")
    max_beam: int = _limit(10, "max beam width of a request")
    max_explained: int = _limit(128, "max tokens, with the end, of a text to explain by a method and of its output; above it status 422")
    max_output: int = _limit(256, "max `max_length` of a request, in tokens")
    max_image: int = _limit(5_242_880, "max bytes of an image; above it status 413")
    max_pixels: int = _limit(50_000_000, "max pixels of an image; above it status 422, before decoding")
    max_body_memory: int = _limit(67_108_864, "max bytes of all request bodies in memory; above it status 429")
    max_connections: int = _limit(256, "max open connections; above it status 503")
    header_timeout: float = _limit(10.0, "max seconds for a client to send the request head", least=0.001)
    body_timeout: float = _limit(10.0, "max seconds for a client to send the body; after it status 408", least=0.001)
    write_timeout: float = _limit(30.0, "max seconds for a client to read the response", least=0.001)

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least, most = getattr(self, each.name), each.metadata["least"], each.metadata["most"]
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise ConfigError(f"--{each.name.replace('_', '-')} {shown(value)}: expected a number from {least} to {most}")
        if self.max_lines > self.queue:
            raise ConfigError(f"--max-lines {self.max_lines}: must not be more than --queue {self.queue}, it could never be taken")

    @property
    def max_image_characters(self) -> int:
        """Maximum length of an image in base64."""
        return -(-self.max_image // 3) * 4

    @property
    def max_image_body(self) -> int:
        """Maximum bytes of a body with an image; some JSON writers escape each slash."""
        return self.max_image_characters * 17 // 16 + 4096
