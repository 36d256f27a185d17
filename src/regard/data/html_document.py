"""Splits HTML into parts to keep and blocks to translate."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from regard.data.document_blocks import VERBATIM, Part, block_parts, unused
from regard.data.markup import TAG

# Inline elements of HTML; all others begin and end a block.
SPANS = (
    "a abbr acronym b bdi bdo big br cite code data del dfn em font i img ins kbd label mark q ruby rp rt s samp small span strike strong "
    "sub sup time tt u var wbr"
)
INLINE = frozenset(SPANS.split())
HTML_TOKEN = re.compile(
    r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<[!?][^>]*>|</?(?P<name>[A-Za-z][^\s/>]*)(?:[^<>"']|"[^"]*"|'[^']*')*>""", re.DOTALL
)


def html_parts(text: str) -> Iterator[Part]:
    """Split a document; see `regard.data.documents.read_document`.

    Example:
        >>> [part for part in html_parts("<p>A <b>ball</b></p>") if part]
        ['<p>', Block(text='A <b>ball</b>', stands_for={}, width=0, escapes=''), '</p>']
    """
    block: list[str] = []
    stands_for: dict[str, str] = {}
    tildes = unused("~", text)

    def flush() -> Iterator[Part]:
        yield from block_parts("".join(block), dict(stands_for))
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
            block.append(f"{{{tildes}{len(stands_for)}}}")
            stands_for[block[-1]] = whole
        elif name in INLINE or (whole.startswith("<!--") and "".join(block).strip() and re.fullmatch(TAG, whole)):
            block.append(whole)
        else:
            yield from flush()
            yield whole
    block.append(_unescaped(text[at:]))
    yield from flush()


def _unescaped(text: str) -> str:
    # Decode entities, except those that would become markup.
    def decoded(found: re.Match[str]) -> str:
        character = html.unescape(found[0])
        return found[0] if set(character) & set("&<>") else character

    return re.sub(r"&#?\w+;", decoded, text)
