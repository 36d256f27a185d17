"""Printable tokens: visible white space, harmless control characters, known width."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

# Joiners shape letters and emoji (Persian words, families); unlike other format characters they cannot reorder text.
JOINERS = "\u200c\u200d"
ISOLATES = "\u2068\u2069"
EMPTY = "\u2205"


def visible(token: str) -> str:
    r"""Return a token as one line of printable text.

    Any space becomes U+2423, a tab U+21E5, a line end U+21B5, another control character its control picture, an invisible or
    direction-changing character and a lone surrogate U+FFFD, an empty token the empty-set sign. A combining mark without a base gets a
    dotted circle.

    Args:
        token: any text.

    Returns:
        Text without control characters; never empty.

    Example:
        >>> visible(" the"), visible("a\x1b[31m"), visible("")
        ('␣the', 'a␛[31m', '∅')
    """
    shown = "".join(_visible_character(character) for character in token) or EMPTY
    return f"\u25cc{shown}" if unicodedata.category(shown[0]).startswith("M") or shown[0] in JOINERS else shown


def plain_text(text: str) -> str:
    r"""Return a title or a sentence as one printable line in which spaces stay spaces.

    Args:
        text: any text.

    Returns:
        Text without control characters, as from `visible`; empty for an empty text.

    Example:
        >>> plain_text("two words\x1b")
        'two words␛'
    """
    return " ".join(visible(word) for word in text.split())


def _visible_character(character: str) -> str:
    code, category = ord(character), unicodedata.category(character)
    if category == "Zs":
        return "\u2423"
    if character == "\t":
        return "\u21e5"
    if character in "\n\r\x85" or category in ("Zl", "Zp"):
        return "\u21b5"
    if category == "Cc":
        return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"
    if category in ("Cf", "Cs", "Cn") and character not in JOINERS:
        return "\ufffd"
    return character


def clusters(text: str) -> list[str]:
    r"""Split text into characters with their combining marks.

    Args:
        text: printable text, as from `visible`; may be empty.

    Returns:
        Parts of width 1 or 2 that join to the text.

    Example:
        >>> [len(part) for part in clusters("e\u0301a")]
        [2, 1]
    """
    parts: list[str] = []
    for character in text:
        if parts and _width(character) == 0:
            parts[-1] += character
        else:
            parts.append(character)
    return parts


def isolated(text: str) -> str:
    r"""Return text that keeps its place in a line of a terminal: right-to-left text between U+2068 and U+2069, which have no width.

    Without them the neighbours of such words change places with them, and columns get each other's labels (Unicode Standard Annex 9).

    Example:
        >>> isolated("der"), ascii(isolated("\u05d0"))
        ('der', "'\\u2068\\u05d0\\u2069'")
    """
    first, last = ISOLATES
    return f"{first}{text}{last}" if any(unicodedata.bidirectional(letter) in ("R", "AL", "AN") for letter in text) else text


def display_width(text: str) -> int:
    r"""Return the terminal width of a text: 2 for a wide (East Asian) character, 0 for a combining mark, else 1.

    Args:
        text: printable text, as from `visible`.

    Returns:
        0 for an empty text.

    Example:
        >>> display_width("東京"), display_width("e\u0301")
        (4, 1)
    """
    return sum(_width(character) for character in text)


def fit_width(text: str, width: int) -> str:
    """Cut text to a number of terminal columns; a cut ends in an ellipsis.

    Args:
        text: printable text, as from `visible`.
        width: columns, at least 1.

    Returns:
        Text of at most `width` columns; a wide character is never split.

    Example:
        >>> fit_width("international", 5), fit_width("東京都", 4), fit_width("is", 5)
        ('inte…', '東…', 'is')
    """
    if display_width(text) <= width:
        return text
    kept, used = "", 0
    for part in clusters(text):
        if used + display_width(part) > width - 1:
            break
        kept, used = kept + part, used + display_width(part)
    return kept + "…"


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines of printable text.

    Args:
        columns: the names.
        rows: of as many cells.

    Returns:
        A line of names, and a line per row.

    Example:
        >>> aligned(["a", "b"], [["1", "22"], ["333", ""]])
        ['a    b', '1    22', '333']
    """
    lines = [columns, *rows]
    widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(isolated(cell) + " " * (width - display_width(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me") or character in JOINERS or character in ISOLATES:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
