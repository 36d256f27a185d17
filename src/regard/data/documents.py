"""Splits documents into parts to keep and blocks to translate. Plain text, Markdown, HTML.

A block is a paragraph, heading, list item, table cell or similar. Its inline markup becomes tags and placeholders for `regard.data.markup`;
`finish` restores them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from regard.data.document_blocks import Part, block_parts
from regard.data.html_document import html_parts
from regard.data.markdown_document import markdown_parts
from regard.errors import DataError

SENTENCE_END = re.compile(r"""[.!?:。！？][\])"'»”’」』]*\s*$""")  # noqa: RUF001 - ends of sentences in other scripts
BULLET = re.compile(r"\s*(?:[-*\u2022\u2023]|\d+[.)])\s")


def read_document(text: str, name: str | Path) -> list[Part]:
    """Split a document into parts to keep and blocks to translate; joined, they are the document except for white space in blocks.

    Args:
        text: the document.
        name: its file name: `.txt`, `.md`, `.markdown`, `.html`, `.htm`.

    Raises:
        DataError: the name has another extension.

    Example:
        >>> read_document("# A title", "a.md")
        ['# ', Block(text='A title', stands_for={}, width=0, escapes='')]
    """
    readers: dict[str, Callable[[str], Iterator[Part]]] = {
        ".txt": _plain,
        ".md": markdown_parts,
        ".markdown": markdown_parts,
        ".html": html_parts,
        ".htm": html_parts,
    }
    suffix = Path(name).suffix.lower()
    if suffix not in readers:
        raise DataError(f"{name}: no document that can be read; its name must end in {', '.join(readers)}")
    return [part for part in readers[suffix](text) if part]


def _kept_breaks(lines: Sequence[str]) -> set[int]:
    """Return the lines that do not continue the one before, as after wrapping: it ends a sentence, and either the first word of this line
    would have fitted there, or all lines end a sentence."""
    ended = [number for number, line in enumerate(lines[:-1], start=1) if SENTENCE_END.search(line)]
    if len(ended) == len(lines) - 1:
        return set(ended)
    width = max(map(len, lines))
    return {number for number in ended if len(lines[number - 1].rstrip()) + 1 + len(lines[number].split(" ")[0]) <= width}


def _plain(text: str) -> Iterator[Part]:
    for piece in re.split(r"(\n\s*\n)", text):
        items: list[list[str]] = []
        given = piece.split("\n")
        kept = _kept_breaks(given)
        for number, line in enumerate(given):
            if number in kept or not items or not piece.strip() or BULLET.match(line):
                items.append([])
            items[-1].append(line)
        if not piece.strip():
            yield piece
            continue
        for number, lines in enumerate(items):
            if number:
                yield "\n"
            bullet = BULLET.match(lines[0])
            head = bullet[0] if bullet else ""
            yield head
            yield from block_parts("\n".join([lines[0][len(head) :], *lines[1:]]), width=max(map(len, lines)) if len(lines) > 1 else 0)
