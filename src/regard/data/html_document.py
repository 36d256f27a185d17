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
VOID = frozenset(("br", "embed", "hr", "img", "input", "wbr"))
# Attributes of an element whose author excludes it from translation.
UNTRANSLATED = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(?:"(?:[^"]*\s)?|'(?:[^']*\s)?|)notranslate\b""", re.IGNORECASE)
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
        opens = not found[0].startswith("</") and not found[0].endswith("/>")
        kept = name in VERBATIM or (opens and name not in VOID and bool(UNTRANSLATED.search(found[0])))
        if kept and opens:
            at = _element_end(text, name, at)
        whole = text[found.start() : at]
        if name in INLINE and kept:
            block.append(f"{{{tildes}{len(stands_for)}}}")
            stands_for[block[-1]] = whole
        elif name in INLINE or (whole.startswith("<!--") and "".join(block).strip() and re.fullmatch(TAG, whole)):
            block.append(whole)
        else:
            yield from flush()
            yield whole
    block.append(_unescaped(text[at:]))
    yield from flush()


def _element_end(text: str, name: str, at: int) -> int:
    # The end of an element whose content begins at `at`; elements of its name may be nested, but not in text such as that of a script.
    depth = 1
    for tag in re.compile(rf"<(?P<close>/?){re.escape(name)}(?=[\s/>])[^>]*>", re.IGNORECASE).finditer(text, at):
        depth += -1 if tag["close"] else int(name not in VERBATIM and not tag[0].endswith("/>"))
        if not depth:
            return tag.end()
    return len(text)


def _unescaped(text: str) -> str:
    # Decode entities, except those that would become markup.
    def decoded(found: re.Match[str]) -> str:
        character = html.unescape(found[0])
        return found[0] if set(character) & set("&<>") else character

    return re.sub(r"&#?\w+;", decoded, text)
