"""Inline markup: removed before translation, and placed into the translation by word links.

Tags (`<b>`, `</b>`, `<br/>`, comments) and line breaks are removed. A word that contains a placeholder (`{name}`, `{{ x }}`, `${x}`,
`%s`, `%(n)d`), an address (`https://...`, `me@example.org`), or nothing but an entity (`&amp;`), is opaque: the model reads it, and the
translation gets it verbatim. A number is opaque, too, but a translation with the same digits keeps its own format.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from regard.data.scripts import UNSPACED

# No alternative passes the next `<` or brace, or starts twice in a run of characters, so the time is linear in the line.
TAG = r"""<(?:(?P<close>/)?(?P<name>[A-Za-z][\w:.-]*)(?:\s(?:[^<>"']|"[^"<]*"|'[^'<]*')*)?/?|(?:!--|[!?][A-Za-z])[^<>]*)>"""
OPAQUE = (
    r"\$?\{[{%][^{}]*[%}]\}",
    r"[$#%]?\{ ?[^{}<>\s]* ?\}",
    r"(?<![\w%])%(?:\(\w+\)|\d+\$)?[-+0#]*\d*(?:\.\d+)?[hl]{0,2}[sdiufgxXcrp@](?!\w)",
    r"""(?:(?:https?|ftp)://|\bwww\.)[^\s<>"]*[^\s<>".,;:!?')\]]""",
    r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    r"(?<![^\s>])&#?\w+;(?![^\s<])",
)
BREAKS = r"\n\r\v\f\x85\u2028\u2029"
BREAK = rf"[ \t]*[{BREAKS}]\s*"
LINE_END = re.compile(rf"[{BREAKS}][^\S{BREAKS}]*(?:</[^<>]*>)*$")
FIXED = re.compile("|".join(OPAQUE))
MARKUP = re.compile("|".join((f"(?P<tag>{TAG}|{BREAK})", *OPAQUE)))
# A word that is a number, with its sign, currency and separators: -1, $5.50, 1,000, 12/05/2024, 10:30, 5%.
NUMBER = re.compile(r"[-+±−~]?[$€£¥]?\d+(?:[.,:/'’−–-]\d+)*[%‰°$€£¥]?")  # noqa: RUF001 - signs and marks of numbers
# Punctuation around a word, excluded by tags around the word.
OPENING, CLOSING = "([\"'«„“‘¿¡‹「『（", ".,;:!?…)]\"'»“”‘’›。、，！？」』）"  # noqa: RUF001 - quotes of other scripts
# A word: what white space separates, or a letter of a script without spaces, with the punctuation around it.
_LETTER = rf"[{re.escape(OPENING)}]{{0,3}}[{UNSPACED}]"
WORD = re.compile(rf"{_LETTER}[{re.escape(CLOSING)}]*|(?:(?!{_LETTER})\S)+")


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the character spans of the words that tags can enclose: what white space separates, or a Chinese or Japanese letter.

    Example:
        >>> word_spans("a dog: 「狗」。")
        [(0, 1), (2, 6), (7, 11)]
    """
    spans = [match.span() for match in WORD.finditer(text)]
    if len(spans) < 2 or not any(before == start for (_, before), (start, _) in pairwise(spans)):
        return spans
    whole = [match.span() for match in FIXED.finditer(text)]
    found: list[tuple[int, int]] = []
    for start, end in spans:
        at = bisect_right(whole, start, key=lambda span: span[0]) - 1
        if found and found[-1][1] == start and at >= 0 and whole[at][0] < start < whole[at][1]:
            found[-1] = (found[-1][0], end)  # inside a placeholder or an address
        else:
            found.append((start, end))
    return found


class TagPair(NamedTuple):
    """An opening tag, its closing tag, and the words between them.

    Attributes:
        opening: the tag, verbatim.
        closing: likewise.
        first: index of the first enclosed word.
        last: index of the last one.
        inside: whether the tags exclude punctuation around the words.
        parent: index of the pair around this one; -1: none.
    """

    opening: str
    closing: str
    first: int
    last: int
    inside: tuple[bool, bool]
    parent: int


class EmptyTag(NamedTuple):
    """A tag that encloses no word: `<br/>`, `<b></b>`, a comment, a tag without its partner.

    Attributes:
        text: the tag or tags, verbatim.
        word: index of the word before it; -1: none.
        pair: index of the pair that closes between that word and this tag; -1: none.
        parent: index of the pair around it; -1: none.
        spaced: whether white space separates it from the word before it, or for the first of a line or a pair from the word after it.
    """

    text: str
    word: int
    pair: int
    parent: int
    spaced: bool


class MarkedLine(NamedTuple):
    """A line without its tags, and the markup for its translation.

    Attributes:
        plain: the text for the model; links count its words, see `word_spans`.
        words: number of words.
        pairs: tags around words, in the order of their opening tags.
        empty: tags without words, in order.
        opaque: index of each opaque word -> (text in `plain`, verbatim), without surrounding punctuation.
        numbers: those of them that are numbers.
    """

    plain: str
    words: int
    pairs: tuple[TagPair, ...]
    empty: tuple[EmptyTag, ...]
    opaque: dict[int, tuple[str, str]]
    numbers: frozenset[int]

    @property
    def marked(self) -> bool:
        """Whether the line has markup, numbers included."""
        return bool(self.pairs or self.empty or self.opaque)


def split_markup(line: str) -> MarkedLine:
    """Remove the markup from a line.

    A `<` that begins no tag is text, and entities are not decoded. A closing tag closes the last open tag of its name; an unmatched tag
    becomes an empty one. An empty tag, or a closing and an opening one, between two letters separates words. White space inside a
    placeholder becomes `_` in the plain text. A line break, with the white space around it, becomes a space.

    Example:
        >>> line = split_markup("A <b>red</b> ball for {name}.")
        >>> line.plain, line.pairs[0][:4], line.opaque
        ('A red ball for {name}.', ('<b>', '</b>', 1, 1), {4: ('{name}', '{name}')})
    """
    found = list(MARKUP.finditer(line))
    tags = [match for match in found if match["tag"]]
    partner = _partners(tags)
    plain, verbatim, places, fixed = _plain_text(line, found, partner)
    spans = word_spans(plain)
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    pairs: list[TagPair] = []
    empty: list[EmptyTag] = []
    around: list[int] = []
    closed = done = -1
    for number, tag in enumerate(tags):
        other, place, parent = partner.get(number, number), places[number], around[-1] if around else -1
        if number <= done:
            continue
        if other < number:
            closed = around.pop()
            continue
        first, last = bisect_right(ends, place), bisect_left(starts, places[other]) - 1
        if place < places[other] and first <= last:
            text = plain[place : places[other]].strip()
            around.append(len(pairs))
            inside = (text[0] not in OPENING, text[-1] not in CLOSING)
            if text == plain.strip():  # all of the translation, too
                inside = (False, False)
            pairs.append(TagPair(tag[0], tags[other][0], first, last, inside, parent))
            continue
        done, word, end = other, bisect_left(starts, place) - 1, tags[other].end()
        follows = closed >= 0 and (pairs[closed].parent, pairs[closed].last) == (parent, word)
        leads = word < (pairs[parent].first if parent >= 0 else 0)
        beside = line[end : end + 1] if leads else line[tag.start() - 1]
        empty.append(EmptyTag(line[tag.start() : end], word, closed if follows else -1, parent, beside.isspace()))
    opaque = _opaque_words(plain, verbatim, spans, fixed)
    numbers = {number: core for number, span in enumerate(spans) if number not in opaque and (core := number_in(plain[slice(*span)]))}
    opaque |= {number: (core, core) for number, core in numbers.items()}
    return MarkedLine(plain, len(spans), tuple(pairs), tuple(empty), opaque, frozenset(numbers))


def _partners(tags: Sequence[re.Match[str]]) -> dict[int, int]:
    # For each tag of a pair the index of the other one.
    found: dict[int, int] = {}
    opened: list[int] = []
    by_name: dict[str, list[int]] = {}
    for number, tag in enumerate(tags):
        name = (tag["name"] or "").lower()
        if not name or tag[0].endswith("/>"):
            continue
        if not tag["close"]:
            opened.append(number)
            by_name.setdefault(name, []).append(number)
        elif by_name.get(name):
            match = by_name[name][-1]
            while opened[-1] >= match:  # later tags stay open
                by_name[tags[opened[-1]]["name"].lower()].pop()
                if opened.pop() == match:
                    break
            found[match], found[number] = number, match
    return found


def _plain_text(line: str, found: Sequence[re.Match[str]], partner: dict[int, int]) -> tuple[str, str, list[int], list[tuple[int, int]]]:
    # The plain text, the same with white space inside placeholders, the position of each tag in it, and those of opaque words.
    plain: list[str] = []
    verbatim: list[str] = []
    places: list[int] = []
    fixed: list[tuple[int, int]] = []
    size = at = 0
    last, breaks, ends = "", False, False

    def add(text: str, shown: str) -> None:
        nonlocal size, last, breaks, ends
        if at_tag and (not last or last.isspace()):  # a tag between spaces leaves one of them
            text, shown = text.lstrip(), shown.lstrip()
        if not text:
            return
        gap = " " * ((breaks and last.isalnum() and text[0].isalnum()) or (ends and bool(last) and not last.isspace()))
        plain.append(gap + shown)
        verbatim.append(gap + text)
        size, last, breaks, ends = size + len(gap + text), text[-1], False, False

    closed, at_tag = -1, False
    for match in found:
        start, end = match.span()
        if at < start:
            add(line[at:start], line[at:start])
        at, at_tag = end, bool(match["tag"])
        if not at_tag:
            add(match[0], re.sub(r"\s", "_", match[0]))
            fixed.append((size - len(match[0]), size))
            continue
        breaks = breaks or len(places) not in partner or (not match["close"] and closed == start)
        ends = ends or match[0][0].isspace()
        closed = end if match["close"] else -1
        places.append(size)
    if at < len(line):
        add(line[at:], line[at:])
    text = "".join(plain)
    return text.rstrip() if at_tag else text, "".join(verbatim), places, fixed


def _opaque_words(
    plain: str, verbatim: str, words: Sequence[tuple[int, int]], fixed: Iterable[tuple[int, int]]
) -> dict[int, tuple[str, str]]:
    extents: dict[int, tuple[int, int]] = {}
    ends = [end for _, end in words]
    for start, end in fixed:
        number = bisect_right(ends, start)
        low, high = words[number]
        first, last = extents[number] if number in extents else (low + part for part in core_span(plain[low:high]))
        extents[number] = min(first, start), max(last, end)
    for number, (start, last) in extents.items():
        end = last
        while end < words[number][1] and plain[end] == ")" and plain.count("(", start, end) > plain.count(")", start, end):
            end += 1  # of an address such as .../Area_(maths)
        extents[number] = start, end
    return {number: (plain[start:end], verbatim[start:end]) for number, (start, end) in extents.items()}


def core_span(word: str) -> tuple[int, int]:
    """Return first and last character of a word without surrounding punctuation; punctuation alone is a word.

    Example:
        >>> core_span("(ball),"), core_span("...")
        ((1, 5), (0, 3))
    """
    start, end = len(word) - len(word.lstrip(OPENING)), len(word.rstrip(CLOSING))
    return (start, end) if start < end else (0, len(word))


def number_in(word: str) -> str:
    """Return a word that is a number, without surrounding punctuation; "" for any other.

    Example:
        >>> number_in("(1,000)."), number_in("a1")
        ('1,000', '')
    """
    found = NUMBER.match(word, len(word) - len(word.lstrip(OPENING)))
    return found[0] if found and not word[found.end() :].strip(CLOSING) else ""
