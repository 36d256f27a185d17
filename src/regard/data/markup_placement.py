"""Places inline markup into a translation by word links; see `regard.data.markup`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from regard.data.markup import CLOSING, LINE_END, OPENING, EmptyTag, MarkedLine, TagPair, core_span, number_in, word_spans

# Characters of a word of punctuation.
MARKS = OPENING + CLOSING + "-–—"  # noqa: RUF001 - dashes


class _Unit(NamedTuple):
    """A word of the translation: the white space before it, its text, where punctuation leaves the word, its source words."""

    space: str
    text: str
    core: tuple[int, int]
    sources: frozenset[int]
    opaque: bool = False


class _Marks:
    """Words of punctuation in the translation; attention often links a full stop to the noun before it.

    Args:
        line: the source.
        units: the words of the translation.
    """

    def __init__(self, line: MarkedLine, units: Sequence[_Unit]) -> None:
        self.target = {n: unit for n, unit in enumerate(units) if not unit.opaque and unit.text and not unit.text.strip(MARKS)}
        self._words = [line.plain[start:end] for start, end in word_spans(line.plain)] if self.target else []

    def excludes(self, pair: TagPair, number: int) -> bool:
        """Return whether a pair of tags excludes a word of punctuation of the translation, whatever its links."""
        text, sources = self.target[number].text, self.target[number].sources
        if any(pair.first <= source <= pair.last and text in self._inside(pair, source) for source in sources):
            return False
        for last, beside, inside, marks in (
            (pair.first, pair.first - 1, pair.inside[0], OPENING),
            (pair.last, pair.last + 1, pair.inside[1], CLOSING),
        ):
            apart = 0 <= beside < len(self._words) and self._words[beside] == text and text not in self._inside(pair, last)
            if not inside and not apart and not text.strip(marks):
                return False
        return True

    def _inside(self, pair: TagPair, source: int) -> str:
        # The punctuation of a source word that the pair includes.
        word = self._words[source]
        if not word.strip(MARKS):
            return word
        start, end = core_span(word)
        before = word[:start] if source > pair.first or not pair.inside[0] else ""
        return before + (word[end:] if source < pair.last or not pair.inside[1] else "")


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
        >>> from regard.data.markup import split_markup
        >>> line = split_markup("a <b>red</b> ball")
        >>> place_markup(line, "une balle rouge", {(0, 0), (1, 2), (2, 1)})
        'une balle <b>rouge</b>'
    """
    units = _with_opaque(line, _units(target, links)) or [_Unit("", "", (0, 0), frozenset())]
    marks = _Marks(line, units)
    ranges: list[tuple[int, int]] = []
    taken: set[tuple[int, int]] = set()  # fewer than twice as many as words, since none cross
    for pair in line.pairs:
        first, last = _target_range(line, pair, units, marks)
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


def _units(target: str, links: AbstractSet[tuple[int, int]]) -> list[_Unit]:
    sources: dict[int, set[int]] = {}
    for word, source in links:
        sources.setdefault(word, set()).add(source)
    found, before = list[_Unit](), 0
    for number, (start, end) in enumerate(word_spans(target)):
        space, text = target[before:start] if before else " ", target[start:end]
        found.append(_Unit(space, text, core_span(text), frozenset(sources.get(number, ()))))
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
        part = (word in line.numbers and number_in(first.text)) or seen
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
            kept.append(unit if text == unit.text else unit._replace(text=text, core=core_span(text)))
    return kept


def _with_numbers(line: MarkedLine, units: list[_Unit]) -> tuple[list[_Unit], set[int]]:
    # Numbers that the model translated itself, such as 1,000.5 as 1.000,5; and the source words they stand for.
    written: dict[tuple[str, ...], list[int]] = {}
    for number, unit in enumerate(units if line.numbers else ()):
        if number_in(unit.text):
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
    at = next((number for number, unit in enumerate(units) if word in unit.sources and not unit.opaque and number_in(unit.text)), None)
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
    # Words of punctuation only if nothing else is linked.
    linked = [number for number, unit in enumerate(units) if word in unit.sources and not unit.opaque]
    runs: list[tuple[int, int]] = []
    for number in [number for number in linked if units[number].text.strip(MARKS)] or linked:
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


def _target_range(line: MarkedLine, pair: TagPair, units: Sequence[_Unit], marks: _Marks) -> tuple[int, int]:
    whole = _whole(line, pair)
    outside = set[int]() if whole and pair.inside == (False, False) else {number for number in marks.target if marks.excludes(pair, number)}
    if whole:
        kept = [number for number in range(len(units)) if number not in outside]
        return (kept[0], kept[-1]) if kept else (0, len(units) - 1)
    units = [unit._replace(sources=frozenset()) if number in outside else unit for number, unit in enumerate(units)]
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
