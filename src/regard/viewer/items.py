"""Items that attention connects: a sequence of tokens, or the cells of an image."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import DataError, shown
from regard.viewer.record_checks import check_count, check_fields, check_text, check_texts
from regard.viewer.text import visible

TOKENS = ("tokens", "text", "marks")
MARKS = ("", "space", "none")
GRID = ("rows", "columns", "image", "size")
MAX_CELLS = 1_000_000
"""Max number of cells of a grid: each has a label, and a page draws them all."""
# Prefixes of tokens that begin a word, those of byte-level tokenizers too, and tokens that are not part of a word.
SPACES = (" ", "\u2581")
GUESSED_SPACES = (*SPACES, "\u0120", "\u010a")
SPECIAL = re.compile(r"<[^<>\s]*>|\[[A-Z]+\]")
# Image types allowed in a page: browsers display them without running code.
IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Tokens:
    """A sequence of tokens.

    Attributes:
        tokens: their text; may be empty.
        text: the detokenized text; may be empty.
        marks: how the tokens mark words. "space": " " or "\u2581" before a word; "none": every token is a word; "": unknown, as in files
            saved without it. Unknown marks are guessed from the tokens of any tokenizer, see `words`: text that itself has such marks, as
            in the Maltese "\u0120ermanja", is merged wrongly and loses them.

    Raises:
        DataError: tokens are not a list of text, or the marks are unknown.

    Example:
        >>> len(Tokens(["das", "Haus"], "das Haus"))
        2
    """

    tokens: Sequence[str]
    text: str = ""
    marks: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", check_texts("tokens", self.tokens))
        check_text("text", self.text)
        if self.marks not in MARKS:
            raise DataError(f"marks: {shown(self.marks)}, expected space or none")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def labels(self) -> list[str]:
        """The tokens as printable labels, white space visible."""
        return [visible(token) for token in self.tokens]

    @property
    def words(self) -> list[tuple[int, str]]:
        """The words of the tokens, (first token, label); empty if every token is a word.

        Read from `marks`. Unknown ones are guessed: a space, "\u2581" or "\u0120" before a word, "##" before a continuation, "@@" or a
        missing "</w>" after an unfinished token. Special tokens and punctuation are words.
        """
        joined = _joined(self.tokens, self.marks)
        if joined is None:
            return []
        bare = [_bare(token, self.marks) for token in self.tokens]
        apart = [_apart(token, own) for token, own in zip(self.tokens, bare, strict=True)]
        pairs = zip(self.tokens, self.tokens[1:], apart, apart[1:], strict=False)
        within = [joined(before, token) and not (alone or own) for before, token, alone, own in pairs]
        starts = [0, *(place for place, goes_on in enumerate(within, start=1) if not goes_on)]
        if len(starts) == len(self.tokens):
            return []
        ends = [*starts[1:], len(self.tokens)]
        labels = ["".join(bare[start:end]) for start, end in zip(starts, ends, strict=True)]
        return [(start, visible(label or self.tokens[start])) for start, label in zip(starts, labels, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"tokens": list(self.tokens), "text": self.text, **({"marks": self.marks} if self.marks else {})}


@dataclass(frozen=True)
class Grid:
    """The cells of an image, row by row.

    Attributes:
        rows: at least 1.
        columns: at least 1.
        image: the image as a base64 `data:` URL (PNG, JPEG, GIF, WebP or AVIF), or None. It is stretched over the whole grid: crop it to
            the area of the cells.
        size: width and height of the image in pixels; None: square cells.

    Raises:
        DataError: a size is not a positive integer, or the image has another type.

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
        """A label per cell: its row and column, from 1."""
        return [f"{row},{column}" for row in range(1, self.rows + 1) for column in range(1, self.columns + 1)]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"rows": self.rows, "columns": self.columns, "image": self.image, "size": self.size and list(self.size)}


def kind_marks(kind: str) -> str:
    """Return the `Tokens.marks` of a vocabulary kind of Regard.

    Example:
        >>> kind_marks("bpe"), kind_marks("word")
        ('space', 'none')
    """
    return "none" if kind == "word" else "space"


def _joined(tokens: Sequence[str], marks: str) -> Callable[[str, str], bool] | None:
    """Return which tokens continue the word of the previous one; None if none ever does."""
    if marks == "none":
        return None
    if not marks:
        if any(token.startswith("##") for token in tokens):
            return lambda before, token: token.startswith("##")
        if any(token.endswith("@@") for token in tokens):
            return lambda before, token: before.endswith("@@")
        if any(token.endswith("</w>") for token in tokens):
            return lambda before, token: not before.endswith("</w>")
    spaces = SPACES if marks else GUESSED_SPACES
    if marks or any(token.startswith(spaces) for token in tokens):  # a text of one word has no space
        return lambda before, token: not token.startswith(spaces)
    return None


def _apart(token: str, bare: str) -> bool:
    """Return whether a token is a word of its own: a special token, or punctuation that does not occur within words."""
    signs = bool(bare) and all(unicodedata.category(sign) in ("Po", "Ps", "Pe", "Pi", "Pf") and sign not in "'\u2019" for sign in bare)
    return signs or SPECIAL.fullmatch(token) is not None


def _bare(token: str, marks: str) -> str:
    if marks:
        return token.lstrip("".join(SPACES))
    return token.removeprefix("##").removesuffix("@@").removesuffix("</w>").lstrip("".join(GUESSED_SPACES))


def read_items(values: Any) -> Tokens | Grid:
    """Build items from JSON values or a list of tokens, or return existing items.

    Raises:
        DataError: the value is neither.

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
