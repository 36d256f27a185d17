"""What attention reads and writes: a sequence of tokens, or the cells of an image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import DataError, shown
from regard.viewer.record_checks import check_count, check_fields, check_text, check_texts
from regard.viewer.text import visible

TOKENS = ("tokens", "text")
GRID = ("rows", "columns", "image", "size")
MAX_CELLS = 1_000_000
"""Of a grid: each has a label, and a page draws them all."""
# Kinds of pictures a page may show: those a browser draws without running anything in them.
IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Tokens:
    """A sequence of tokens.

    Attributes:
        tokens: their text; may be empty.
        text: the whole as a reader would write it; may be empty.

    Raises:
        DataError: tokens that are no list of text.

    Example:
        >>> len(Tokens(["das", "Haus"], "das Haus"))
        2
    """

    tokens: Sequence[str]
    text: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", check_texts("tokens", self.tokens))
        check_text("text", self.text)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def labels(self) -> list[str]:
        """The tokens as they can be shown, white space visible."""
        return [visible(token) for token in self.tokens]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"tokens": list(self.tokens), "text": self.text}


@dataclass(frozen=True)
class Grid:
    """The cells of an image, row by row.

    Attributes:
        rows: at least 1.
        columns: at least 1.
        image: the image itself as a `data:` address in base64 (PNG, JPEG, GIF, WebP or AVIF), or None. It is drawn over the whole
            grid: cut it to what the cells cover.
        size: width and height of the image in pixels; None takes square cells.

    Raises:
        DataError: sizes that are no whole numbers of at least 1, or another kind of image.

    Example:
        >>> Grid(2, 3).labels
        ['1,1', '1,2', '1,3', '2,1', '2,2', '2,3']
    """

    rows: int
    columns: int
    image: str | None = None
    size: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            object.__setattr__(self, name, check_count(name, getattr(self, name), 1))
        if self.rows * self.columns > MAX_CELLS:
            raise DataError(f"rows, columns: {self.rows} x {self.columns}, expected at most {MAX_CELLS:,} cells")
        if self.image is not None and not IMAGE.fullmatch(check_text("image", self.image)):
            raise DataError(f"image: expected a data:image/... address in base64, found {shown(self.image[:30])}")
        if self.size is not None:
            if isinstance(self.size, str) or not isinstance(self.size, Sequence) or len(self.size) != 2:
                raise DataError("size: expected 2 numbers (width, height)")
            object.__setattr__(self, "size", tuple(check_count("size", value, 1) for value in self.size))

    def __len__(self) -> int:
        return self.rows * self.columns

    @property
    def text(self) -> str:
        """Empty: an image has no text."""
        return ""

    @property
    def labels(self) -> list[str]:
        """A name for each cell: its row and its column, from 1."""
        return [f"{row},{column}" for row in range(1, self.rows + 1) for column in range(1, self.columns + 1)]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"rows": self.rows, "columns": self.columns, "image": self.image, "size": self.size and list(self.size)}


def read_items(values: Any) -> Tokens | Grid:
    """Build one or the other from JSON values, a list of tokens, or what is one already.

    Raises:
        DataError: neither fits.

    Example:
        >>> read_items({"rows": 2, "columns": 3}) == Grid(2, 3)
        True
        >>> read_items(["a"]) == Tokens(["a"])
        True
    """
    if isinstance(values, Tokens | Grid):
        return values
    if isinstance(values, Sequence) and not isinstance(values, str):
        return Tokens(values)
    if isinstance(values, dict) and "rows" in values:
        return Grid(**check_fields("a grid", values, GRID, ("rows", "columns")))
    return Tokens(**check_fields("tokens or a grid", values, TOKENS, ("tokens",)))
