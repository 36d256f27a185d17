"""Parts of documents: kept as they are, or blocks to translate."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from regard.data.markup import MARKUP

# Elements of HTML whose content is never translated.
VERBATIM = frozenset(("code", "kbd", "samp", "var", "pre", "script", "style", "svg", "math", "textarea", "template"))


class Block(NamedTuple):
    """Text to translate.

    Attributes:
        text: one line; inline markup as tags and placeholders.
        stands_for: the markup in the document behind each tag and placeholder.
        width: width to wrap the translation to; 0: one line.
        escapes: characters of a translation that get a backslash.
    """

    text: str
    stands_for: dict[str, str] = {}  # noqa: RUF012 - a field of a tuple; nobody adds to it
    width: int = 0
    escapes: str = ""

    def finish(self, translation: str) -> str:
        """Return the translation with the document's markup."""
        for character in self.escapes:
            translation = re.sub(rf"(?<!\\){re.escape(character)}", lambda found: f"\\{found[0]}", translation)
        if self.stands_for:
            known = re.compile("|".join(map(re.escape, self.stands_for)))
            translation = known.sub(lambda found: self.stands_for[found[0]], translation)
        return textwrap.fill(translation, self.width, break_long_words=False, break_on_hyphens=False) if self.width else translation


Part = str | Block


def unused(mark: str, text: str) -> str:
    """Return the first of `mark`, `mark` twice, three times, ... that stands in no tag or placeholder of a text.

    Example:
        >>> unused("m", "a <m0>ball</m0>"), unused("~", "a ball")
        ('mm', '~')
    """
    return next(name for name in (mark * number for number in count(1)) if not re.search(rf"(?:</?|{{){re.escape(name)}\d", text))


def has_letters(text: str) -> bool:
    """Return whether a text has letters outside tags, placeholders and addresses, and so something to translate.

    Example:
        >>> has_letters("a ball"), has_letters("<b>{~1}</b> 12 https://example.org")
        (True, False)
    """
    return re.search(r"[^\W\d_]", MARKUP.sub("", text)) is not None


def block_parts(text: str, stands_for: dict[str, str] | None = None, *, width: int = 0, escapes: str = "") -> Iterator[Part]:
    """Return a block, and the white space around it, which is kept; text without letters is kept whole.

    Example:
        >>> list(block_parts(" a ball ")), list(block_parts(" 12 "))
        ([' ', Block(text='a ball', stands_for={}, width=0, escapes=''), ' '], [' 12 '])
    """
    stands_for = stands_for or {}
    if not has_letters(text):
        yield Block(text, stands_for).finish(text) if stands_for else text
        return
    inner = text.strip()
    start = text.index(inner)
    yield text[:start]
    yield Block(re.sub(r"\s+", " ", inner), stands_for, width, escapes)
    yield text[start + len(inner) :]
