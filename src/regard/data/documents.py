"""Splits documents into parts to keep and blocks to translate. Plain text, Markdown, HTML.

A block is a paragraph, heading, list item, table cell or similar. Its inline markup becomes tags and placeholders for `regard.data.markup`;
`finish` restores them.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from regard.data.markup import MARKUP, TAG
from regard.errors import DataError

# Inline elements of HTML; all others begin and end a block.
SPANS = (
    "a abbr acronym b bdi bdo big br cite code data del dfn em font i img ins kbd label mark q ruby rp rt s samp small span strike strong "
    "sub sup time tt u var wbr"
)
INLINE = frozenset(SPANS.split())
VERBATIM = frozenset(("code", "kbd", "samp", "var", "pre", "script", "style", "svg", "math", "textarea", "template"))
HTML_TOKEN = re.compile(
    r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<[!?][^>]*>|</?(?P<name>[A-Za-z][^\s/>]*)(?:[^<>"']|"[^"]*"|'[^']*')*>""", re.DOTALL
)
# Inline markup of Markdown, and code and addresses, in which none is recognized.
MARKDOWN_INLINE = re.compile(
    r"""(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|!\[[^\]]*\]\([^()\s]*(?:\s+"[^"]*")?\)|<(?:https?:|mailto:)[^<>\s]+>|\\[!-/:-@\[-`{-~])
    |\[(?P<words>(?:[^\[\]]|\[[^\[\]]*\])+)\](?P<link>\((?:[^()\s]|\([^()\s]*\))*(?:\s+"[^"]*")?\)|\[[^\[\]]*\])
    |(?P<mark>\*\*\*|\*\*|\*|~~|(?<!\w)__|(?<!\w)_)(?=\S)(?P<inner>.+?)(?<=\S)(?P=mark)(?!\w|\*)""",
    re.VERBOSE,
)
FENCE = re.compile(r"\s*(?:>\s?)*\s*(```+|~~~+)")
MARKER = re.compile(r"(?P<indent>[ \t]*(?:>[ \t]?)*[ \t]*)(?P<mark>(?:(?:[-*+]|\d+[.)])[ \t]+(?:\[[ xX]\][ \t]+)?)*(?:#{1,6}[ \t]+)?)")
KEPT_LINE = re.compile(r"\s*(?:\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?|=+|(?:[*_-]\s*){3,}|\[[^\]]+\]:\s.*|<!--.*-->)\s*$")
NESTED = 2
BULLET = re.compile(r"\s*(?:[-*\u2022\u2023]|\d+[.)])\s")


class Block(NamedTuple):
    """Text to translate.

    Attributes:
        text: one line; inline markup as tags and placeholders.
        stands_for: the markup in the document behind each tag and placeholder.
        width: width to wrap the translation to; 0: one line.
    """

    text: str
    stands_for: dict[str, str] = {}  # noqa: RUF012 - a field of a tuple; nobody adds to it
    width: int = 0

    def finish(self, translation: str) -> str:
        """Return the translation with the document's markup."""
        if self.stands_for:
            known = re.compile("|".join(map(re.escape, self.stands_for)))
            for _ in range(NESTED):  # a link may contain code
                translation = known.sub(lambda found: self.stands_for[found[0]], translation)
        return textwrap.fill(translation, self.width, break_long_words=False, break_on_hyphens=False) if self.width else translation


Part = str | Block


def read_document(text: str, name: str | Path) -> list[Part]:
    """Split a document into parts to keep and blocks to translate; joined, they are the document except for white space in blocks.

    Args:
        text: the document.
        name: its file name: `.txt`, `.md`, `.markdown`, `.html`, `.htm`.

    Raises:
        DataError: the name has another extension.

    Example:
        >>> read_document("# A title", "a.md")
        ['# ', Block(text='A title', stands_for={}, width=0)]
    """
    readers: dict[str, Callable[[str], Iterator[Part]]] = {
        ".txt": _plain,
        ".md": _markdown,
        ".markdown": _markdown,
        ".html": _html,
        ".htm": _html,
    }
    suffix = Path(name).suffix.lower()
    if suffix not in readers:
        raise DataError(f"{name}: no document that can be read; its name must end in {', '.join(readers)}")
    return [part for part in readers[suffix](text) if part]


def _block(text: str, stands_for: dict[str, str] | None = None, *, width: int = 0) -> Iterator[Part]:
    # A block without surrounding white space, which is kept; text without letters is kept whole.
    stands_for = stands_for or {}
    if not re.search(r"[^\W\d_]", MARKUP.sub("", text)):
        yield Block(text, stands_for).finish(text) if stands_for else text
        return
    inner = text.strip()
    start = text.index(inner)
    yield text[:start]
    yield Block(re.sub(r"\s+", " ", inner), stands_for, width)
    yield text[start + len(inner) :]


def _plain(text: str) -> Iterator[Part]:
    for piece in re.split(r"(\n\s*\n)", text):
        items: list[list[str]] = []
        for line in piece.split("\n"):
            if not items or not piece.strip() or BULLET.match(line):
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
            yield from _block("\n".join([lines[0][len(head) :], *lines[1:]]), width=max(map(len, lines)) if len(lines) > 1 else 0)


def _markdown(text: str) -> Iterator[Part]:
    lines = text.split("\n")
    paragraph: list[str] = []
    fence = "---" if lines[0].rstrip() == "---" else ""
    in_list = False

    def flush() -> Iterator[Part]:
        if paragraph:
            yield from _markdown_block("\n".join(paragraph))
            paragraph.clear()

    for number, line in enumerate(lines):
        if number and not (paragraph and not fence and _continues(line)):
            yield from flush()
            yield "\n"
        opened = FENCE.match(line)
        if fence:
            yield line
            closes = line.strip() == fence if fence == "---" else opened and opened[1].startswith(fence)
            fence = "" if closes and number else fence
            continue
        if opened:
            fence = opened[1]
            yield line
            continue
        if not line.strip() or KEPT_LINE.match(line) or (not paragraph and not in_list and re.match(r"    |\t", line)):
            yield line
            in_list = in_list and not line.strip()
            continue
        if line.lstrip().startswith("|"):
            for cell in re.split(r"((?<!\\)\|)", line):
                yield from [cell] if cell == "|" else _markdown_block(cell)
            continue
        if paragraph:
            paragraph.append(line)
            continue
        found = MARKER.match(line)
        assert found is not None
        in_list = bool(found["mark"].strip(" \t#")) or (in_list and bool(found["indent"]))
        yield found[0]
        paragraph.append(line[found.end() :])
    yield from flush()


def _continues(line: str) -> bool:
    # Whether a line continues the previous paragraph, as a wrapped line does.
    found = MARKER.match(line)
    begins = (found and found["mark"]) or FENCE.match(line) or KEPT_LINE.match(line) or line.lstrip().startswith("|")
    return bool(line.strip()) and not begins


def _markdown_block(text: str) -> Iterator[Part]:
    stands_for: dict[str, str] = {}

    def put(found: re.Match[str]) -> str:
        number = len(stands_for)
        if found["code"]:
            stands_for[f"{{~{number}}}"] = found[0]
            return f"{{~{number}}}"
        opening, closing = ("[", f"]{found['link']}") if found["link"] else (found["mark"], found["mark"])
        stands_for.update({f"<m{number}>": opening, f"</m{number}>": closing})
        return f"<m{number}>{MARKDOWN_INLINE.sub(put, found['words'] or found['inner'])}</m{number}>"

    def line_break(found: re.Match[str]) -> str:
        stands_for[f"<m{len(stands_for)}/>"] = found[0]
        return f"<m{len(stands_for) - 1}/>"

    lines = re.sub(r"(?: {2,}|\\)\n", line_break, re.sub(r"\n[ \t]*(?:>[ \t]?)*", "\n", text))
    yield from _block(MARKDOWN_INLINE.sub(put, lines), stands_for)


def _html(text: str) -> Iterator[Part]:
    block: list[str] = []
    stands_for: dict[str, str] = {}

    def flush() -> Iterator[Part]:
        yield from _block("".join(block), dict(stands_for))
        block.clear()
        stands_for.clear()

    at = 0
    while found := HTML_TOKEN.search(text, at):
        block.append(_unescaped(text[at : found.start()]))
        name, at = (found["name"] or "").lower(), found.end()
        if name in VERBATIM and not found[0].startswith("</") and not found[0].endswith("/>"):
            end = re.compile(rf"</{re.escape(name)}\s*>", re.IGNORECASE).search(text, at)
            at = end.end() if end else len(text)
        whole = text[found.start() : at]
        if name in INLINE and name in VERBATIM:
            stands_for[f"{{~{len(stands_for)}}}"] = whole
            block.append(f"{{~{len(stands_for) - 1}}}")
        elif name in INLINE or (whole.startswith("<!--") and "".join(block).strip() and re.fullmatch(TAG, whole)):
            block.append(whole)
        else:
            yield from flush()
            yield whole
    block.append(_unescaped(text[at:]))
    yield from flush()


def _unescaped(text: str) -> str:
    # Decode entities, except those that would become markup.
    return re.sub(r"&(?!(?:amp|lt|gt|#0*38|#0*60|#0*62);)#?\w+;", lambda found: html.unescape(found[0]), text)
