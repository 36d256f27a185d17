"""Inline markup: removed before translation, and placed into the translation by word links.

Tags (`<b>`, `</b>`, `<br/>`, comments) and line breaks are removed. A word that contains a placeholder (`{name}`, `{{ x }}`, `${x}`,
`%s`, `%(n)d`), an address (`https://...`, `me@example.org`), or nothing but an entity (`&amp;`), is opaque: the model reads it, and the
translation gets it verbatim. A number is opaque, too, but a translation with the same digits keeps its own format.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
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


class _Unit(NamedTuple):
    """A word of the translation: the white space before it, its text, where punctuation leaves the word, its source words."""

    space: str
    text: str
    core: tuple[int, int]
    sources: frozenset[int]
    opaque: bool = False


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
    numbers = {number: core for number, span in enumerate(spans) if number not in opaque and (core := _number(plain[slice(*span)]))}
    opaque |= {number: (core, core) for number, core in numbers.items()}
    return MarkedLine(plain, len(spans), tuple(pairs), tuple(empty), opaque, frozenset(numbers))


def place_markup(line: MarkedLine, target: str, links: AbstractSet[tuple[int, int]]) -> str:
    """Place the markup of a line into its translation.

    A pair of tags encloses the target words linked to its words; a pair around the whole line encloses the whole translation. An empty tag
    follows the last target word linked to the word before it; a line break, `<br>` too, comes where the fewest links cross it. An opaque
    word replaces the longest run of target words linked to it. A number is represented by a target word with its digits, else it replaces a
    number linked to it, or such a run. Unlinked markup uses the nearest linked neighbour. Every tag and every opaque word appears exactly
    once, and pairs are well nested, whatever the links: of two crossing pairs, the later one is shortened.

    Args:
        line: see `split_markup`.
        target: the translation of `line.plain`.
        links: (target, source) word numbers, from 0; see `word_spans`.

    Example:
        >>> line = split_markup("a <b>red</b> ball")
        >>> place_markup(line, "une balle rouge", {(0, 0), (1, 2), (2, 1)})
        'une balle <b>rouge</b>'
    """
    units = _with_opaque(line, _units(target, links)) or [_Unit("", "", (0, 0), frozenset())]
    ranges: list[tuple[int, int]] = []
    taken: set[tuple[int, int]] = set()  # fewer than twice as many as words, since none cross
    for pair in line.pairs:
        first, last = _target_range(line, pair, units)
        if pair.parent >= 0:
            low, high = ranges[pair.parent]
            first, last = min(max(first, low), high), min(max(last, low), high)
        ranges.append(_uncrossed(first, last, taken))
        taken.add(ranges[-1])
    before: list[list[tuple[str, bool]]] = [[] for _ in units]
    after: list[list[tuple[str, bool]]] = [[] for _ in units]
    leading: dict[int, list[str]] = {}
    trailing: dict[int, list[str]] = {}
    elsewhere: list[tuple[int, str]] = []
    for tag in line.empty:
        place = _target_place(line, tag, units, ranges)
        if place < 0:
            leading.setdefault(tag.parent, []).append(tag.text + " " * tag.spaced)
            continue
        text = " " * tag.spaced + tag.text
        if tag.parent >= 0 and ranges[tag.parent][1] == place:
            trailing.setdefault(tag.parent, []).append(text)
        else:
            elsewhere.append((place, text))
    order = sorted(range(len(ranges)), key=lambda number: (ranges[number][0], -ranges[number][1], number))
    before[0] += [(text, False) for text in leading.get(-1, ())]
    for number in order:
        opened = [(line.pairs[number].opening, line.pairs[number].inside[0])]
        before[ranges[number][0]] += opened + [(text, False) for text in leading.get(number, ())]
    for number in reversed(order):
        closing = [(line.pairs[number].closing, line.pairs[number].inside[1])]
        after[ranges[number][1]] += [(text, False) for text in trailing.get(number, ())] + closing
    for place, text in elsewhere:
        after[place].append((text, False))
    parts = [_written(*parts) for parts in zip(units, before, after, strict=True)]
    # A line break is separation enough.
    gaps = ["", *(unit.space * (not LINE_END.search(text)) for unit, text in zip(units[1:], parts[:-1], strict=True))]
    return "".join(gap + text for gap, text in zip(gaps, parts, strict=True))


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
        first, last = extents[number] if number in extents else (low + part for part in _core(plain[low:high]))
        extents[number] = min(first, start), max(last, end)
    for number, (start, last) in extents.items():
        end = last
        while end < words[number][1] and plain[end] == ")" and plain.count("(", start, end) > plain.count(")", start, end):
            end += 1  # of an address such as .../Area_(maths)
        extents[number] = start, end
    return {number: (plain[start:end], verbatim[start:end]) for number, (start, end) in extents.items()}


def _core(word: str) -> tuple[int, int]:
    # First and last character of a word without surrounding punctuation; punctuation alone is a word.
    start, end = len(word) - len(word.lstrip(OPENING)), len(word.rstrip(CLOSING))
    return (start, end) if start < end else (0, len(word))


def _number(word: str) -> str:
    # A word that is a number, without surrounding punctuation; "": none.
    found = NUMBER.match(word, len(word) - len(word.lstrip(OPENING)))
    return found[0] if found and not word[found.end() :].strip(CLOSING) else ""


def _units(target: str, links: AbstractSet[tuple[int, int]]) -> list[_Unit]:
    sources: dict[int, set[int]] = {}
    for word, source in links:
        sources.setdefault(word, set()).add(source)
    found, before = list[_Unit](), 0
    for number, (start, end) in enumerate(word_spans(target)):
        space, text = target[before:start] if before else " ", target[start:end]
        found.append(_Unit(space, text, _core(text), frozenset(sources.get(number, ()))))
        before = end
    return found


def _with_opaque(line: MarkedLine, units: list[_Unit]) -> list[_Unit]:
    missing: list[int] = []
    units, translated = _with_numbers(line, units)
    for word, (seen, verbatim) in sorted(line.opaque.items()):
        if word in translated:
            continue
        run = _linked_number(word, units) if word in line.numbers else _copied(word, seen, units)
        run = run or _linked_run(word, units)
        if run is None:
            missing.append(word)
            continue
        first, last = units[run[0]], units[run[1]]
        # Of a number the whole one that the model wrote, such as 555 for 5.
        part = (word in line.numbers and _number(first.text)) or seen
        start, end = (first.text.index(part), first.text.index(part) + len(part)) if part in first.text else (first.core[0], last.core[1])
        text = first.text[:start] + verbatim + last.text[end:]
        unit = _Unit(first.space, text, (start, start + len(verbatim)), frozenset({word}), True)
        units = [*units[: run[0]], unit, *units[run[1] + 1 :]]
    kept = _without_copies(line, units)
    gaps: dict[int, list[_Unit]] = {}
    for word in missing:
        near, left = _nearest(word, word, kept)
        verbatim = line.opaque[word][1]
        gaps.setdefault(near + left, []).append(_Unit(" ", verbatim, (0, len(verbatim)), frozenset({word}), True))
    return [unit for number in range(len(kept) + 1) for unit in (*gaps.get(number, ()), *kept[number : number + 1])]


def _without_copies(line: MarkedLine, units: Sequence[_Unit]) -> list[_Unit]:
    # Without the copies of opaque words that the model generated too often; text may hold them where the source text does (AT&amp;T).
    words = line.plain.split()
    texts = [word.replace(line.opaque[number][0], "", 1) if number in line.opaque else word for number, word in enumerate(words)]
    copies = {seen for word, (seen, _) in line.opaque.items() if word not in line.numbers}
    spare = {seen: sum(text.count(seen) for text in texts) for seen in copies}
    kept: list[_Unit] = []
    for unit in units:
        text = unit.text
        for seen in sorted(copies, key=len, reverse=True) if not unit.opaque else ():
            more = max(0, text.count(seen) - spare[seen])
            spare[seen] -= text.count(seen) - more
            text = text.replace(seen, "", more)
        if text.strip(OPENING + CLOSING) or text == unit.text:
            kept.append(unit if text == unit.text else unit._replace(text=text, core=_core(text)))
    return kept


def _with_numbers(line: MarkedLine, units: list[_Unit]) -> tuple[list[_Unit], set[int]]:
    # Numbers that the model translated itself, such as 1,000.5 as 1.000,5; and the source words they stand for.
    written: dict[tuple[str, ...], list[int]] = {}
    for number, unit in enumerate(units if line.numbers else ()):
        if _number(unit.text):
            written.setdefault(_digits(unit.text), []).append(number)
    done: set[int] = set()
    for word in sorted(line.numbers):
        same = written.get(_digits(line.opaque[word][0]))
        if not same:
            continue
        at = min(same, key=lambda number: word not in units[number].sources)
        same.remove(at)
        units[at] = units[at]._replace(sources=frozenset({word}), opaque=True)
        done.add(word)
    return units, done


def _digits(text: str) -> tuple[str, ...]:
    # Equal for two formats of a number. The groups of a date may be in any order; other separators do not count.
    groups = ["".join(str(int(digit)) for digit in group) for group in re.findall(r"\d+", text)]
    date = len(groups) > 2 and any(len(group) != 3 for group in groups[1:])
    return tuple(sorted(group.lstrip("0") for group in groups)) if date else ("".join(groups).lstrip("0"),)


def _linked_number(word: int, units: Sequence[_Unit]) -> tuple[int, int] | None:
    # A number that the model spoiled.
    at = next((number for number, unit in enumerate(units) if word in unit.sources and not unit.opaque and _number(unit.text)), None)
    return None if at is None else (at, at)


def _copied(word: int, seen: str, units: Sequence[_Unit]) -> tuple[int, int] | None:
    # The index of a translation word that the model copied itself, preferably a linked one.
    def copies(text: str) -> bool:
        before, found, behind = text.partition(seen)
        return bool(found) and not (before + behind).strip(OPENING + CLOSING)

    same = [number for number, unit in enumerate(units) if not unit.opaque and copies(unit.text)]
    best = min(same, key=lambda number: word not in units[number].sources, default=None)
    return None if best is None else (best, best)


def _linked_run(word: int, units: Sequence[_Unit]) -> tuple[int, int] | None:
    runs: list[tuple[int, int]] = []
    for number, unit in enumerate(units):
        if word in unit.sources and not unit.opaque:
            runs.append((runs.pop()[0] if runs and runs[-1][1] == number - 1 else number, number))
    return max(runs, key=lambda run: run[1] - run[0], default=None)


def _nearest(first: int, last: int, units: Sequence[_Unit]) -> tuple[int, bool]:
    # The translation word linked to the nearest source word, and whether that is to the left.
    found = [
        (first - source, False, -number) if source < first else (source - last, True, number)
        for number, unit in enumerate(units)
        for source in unit.sources
    ]
    _, right, number = min(found, default=(0, False, -max(0, len(units) - 1)))
    return abs(number), not right and bool(units)


def _whole(line: MarkedLine, pair: TagPair) -> bool:
    return pair.last - pair.first + 1 == line.words


def _target_range(line: MarkedLine, pair: TagPair, units: Sequence[_Unit]) -> tuple[int, int]:
    if _whole(line, pair):
        return 0, len(units) - 1
    hits = [number for number, unit in enumerate(units) if any(pair.first <= source <= pair.last for source in unit.sources)]
    hits = hits or [_nearest(pair.first, pair.last, units)[0]]
    return hits[0], hits[-1]


def _uncrossed(first: int, last: int, others: set[tuple[int, int]]) -> tuple[int, int]:
    while crossed := next(((low, high) for low, high in others if first < low <= last < high or low < first <= high < last), None):
        first, last = (first, crossed[0] - 1) if first < crossed[0] else (crossed[1] + 1, last)
    return first, last


def _target_place(line: MarkedLine, tag: EmptyTag, units: Sequence[_Unit], ranges: Sequence[tuple[int, int]]) -> int:
    # Index of the translation word before the tag; -1: the tag comes first in its pair or line.
    if tag.word < (line.pairs[tag.parent].first if tag.parent >= 0 else 0):
        return -1
    if tag.text[0].isspace() or re.match(r"<br\b", tag.text, re.IGNORECASE):
        place = _line_end(tag.word, units)
    elif tag.pair >= 0:
        place = ranges[tag.pair][1]
    else:
        hits = [number for number, unit in enumerate(units) if tag.word in unit.sources]
        near, left = (hits[-1], True) if hits else _nearest(tag.word, tag.word, units)
        place = near if left else near - 1
    if tag.parent < 0:
        return place
    low, high = ranges[tag.parent]
    return min(max(place, low), high)


def _line_end(word: int, units: Sequence[_Unit]) -> int:
    # The translation word after which the fewest links cross a line break after a source word; of equal ones the end of a sentence.
    early = [sum(source <= word for source in unit.sources) for unit in units]
    crossing = [sum(early[1:])]
    for count in early[1:]:
        crossing.append(crossing[-1] - count)
    late = 0
    for number, unit in enumerate(units):
        late += len(unit.sources) - early[number]
        crossing[number] += late
    return min(range(len(units)), key=lambda number: (crossing[number], units[number].text[-1:] not in CLOSING, abs(number - word)))


def _written(unit: _Unit, before: Sequence[tuple[str, bool]], after: Sequence[tuple[str, bool]]) -> str:
    # Tags before and after punctuation; a tag nested in a later one also comes after it. White space beside an empty tag does not separate
    # a word from its punctuation.
    start, end = unit.core
    first = next((number for number, (_, inside) in enumerate(before) if inside), len(before))
    first = max([first, *(number for number, (text, _) in enumerate(before, start=1) if text.endswith(" "))])
    last = max((number for number, (_, inside) in enumerate(after, start=1) if inside), default=0)
    last = min([last, *(number for number, (text, _) in enumerate(after) if text.startswith(" "))])
    texts = [[text for text, _ in part] for part in (before[:first], before[first:], after[:last], after[last:])]
    outer_before, inner_before, inner_after, outer_after = map("".join, texts)
    return f"{outer_before}{unit.text[:start]}{inner_before}{unit.text[start:end]}{inner_after}{unit.text[end:]}{outer_after}"
