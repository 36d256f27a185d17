"""Markup of a line: taken out whole, and put into any translation once, well nested, where the links say."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.markup import split_markup, word_spans
from regard.data.markup_placement import place_markup

WORDS = ["ein", "Hund,", "bellt", "„rot“", "x", "Haus.", "(grün)", "5", "1.000,5", "7%", "<", "&", "{", "%"]
OPAQUE = ["{name}", "{{x}}", "{{ user name }}", "%s", "%(n)d", "${y}", "https://a.example/b?c=1", "me@x.example", "&amp;", "{a}/{b}"]
EMPTY = ["<wbr/>", '<img src="a b"/>', "<!-- c -->", "<hr>", "</stray>"]


def copied(line: str) -> str:
    """Return a line put together again from its own words, each linked to itself."""
    marked = split_markup(line)
    return place_markup(marked, marked.plain, {(word, word) for word in range(marked.words)})


@pytest.mark.parametrize(
    "line",
    [
        "A <b>red</b> ball for {name}.",
        "<p>A dog.</p>",
        "x <b><i>y</i> z</b>, w",
        'see <a href="x>y" title=\'"\'>this</a>, (<i>and</i>) "<b>that</b>".',
        "a < b and <b c, 3<4, <>",
        "mail <me@x.example> &amp; {{ user name }} %s: 100% sure, caf&eacute;",
        "read http://x.example/A_(b), (https://y.example/q).",
        "<b></b> a <i> </i> b <br/> c<hr/>",
        "<u>a b<br/></u>. <u><br/>c</u> d",
        "One  \r\n two.\n\n<b>Three\n</b>four\u2028",
        "\n- a -1 of $5.50, (10:30) 1,000 to 5%.\n",
        "",
    ],
)
def test_a_copy_has_its_markup_where_it_was(line: str) -> None:
    assert copied(line) == line


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("one<br/>two <b>th</b>ree", "one two three"),
        ("<td>one</td><td>two</td><!-- no --> three <br/>", "one two three"),
        ("an <b>open tag, and </i>one closed", "an open tag, and one closed"),
        ("say {{ user name }} or { x }", "say {{_user_name_}} or {_x_}"),
        ("one\ntwo. \r\n three</b>\n", "one two. three"),
        ("a<b, x < y, 1<2>3, <1>, a &lt; b, don&#39;t", "a<b, x < y, 1<2>3, <1>, a &lt; b, don&#39;t"),
    ],
)
def test_what_the_model_reads_has_no_tags_and_what_is_no_tag_is_text(line: str, plain: str) -> None:
    assert split_markup(line).plain == plain


def test_a_line_without_markup_is_left_alone() -> None:
    marked = split_markup(" all of  a < b ")
    assert (marked.plain, marked.marked) == (" all of  a < b ", False)


@pytest.mark.parametrize(
    ("line", "target", "links", "expected"),
    [
        # A pair whose words have no link: where the nearest linked word is, rather the one to the left.
        ("a <b>b</b> c", "C A", {(0, 2), (1, 0)}, "C <b>A</b>"),
        # No link at all, and nothing translated.
        ("<b>a</b> b", "X Y", set(), "X <b>Y</b>"),
        ("<b>a</b> <br/> {x}", "", set(), "<b>{x}</b> <br/>"),
        # Pairs whose words the translation mixes would cross: the later one is cut short.
        ("<b>a b</b> <i>c d</i>", "A C B D", {(0, 0), (1, 2), (2, 1), (3, 3)}, "<b>A C B</b> <i>D</i>"),
        # An inner pair stays within an outer one that does so.
        ("<b>a <i>b</i></b> c", "B C A", {(0, 1), (1, 2), (2, 0)}, "<b><i>B</i> C A</b>"),
        # Punctuation of the translation stays outside, unless it was inside.
        ("a <b>b</b>", "„B“, A.", {(0, 1), (1, 0)}, "„<b>B</b>“, A."),
        ("a <b>b!</b>", "A B!", {(0, 0), (1, 1)}, "A <b>B!</b>"),
        # A placeholder: in place of what is linked to it, or of its copy; what is too much goes, what is missing comes.
        ("hi {x}, you", "hallo Ding Dong, du", {(0, 0), (1, 1), (2, 1), (3, 2)}, "hallo {x}, du"),
        ("hi {x}", "hallo {x} {x}! {x}", {(0, 0), (1, 0), (2, 1), (3, 0)}, "hallo {x}!"),
        ("hi {x} you", "hallo du", {(0, 0), (1, 2)}, "hallo {x} du"),
        ("{x} <b>%s</b>", "Eins Zwei", {(0, 1), (1, 0)}, "<b>%s</b> {x}"),
        ("a {{ b }}", "{{_b_}} A", {(0, 1), (1, 0)}, "{{ b }} A"),
        # Punctuation linked to a placeholder or number, too, stays.
        ("go to {x} .", "GEH ZU X .", {(0, 0), (1, 1), (2, 2), (3, 2)}, "GEH ZU {x} ."),
        ("5 ( b )", "fünf ( B )", {(0, 0), (1, 0), (2, 2), (3, 2)}, "5 ( B )"),
        # An empty tag behind a pair stays behind it, wherever the pair's last word is.
        ("<b>x y</b><br/> z", "Y X Z", {(0, 1), (1, 0), (2, 2)}, "<b>Y X</b><br/> Z"),
        # A line break where the fewest links cross it, wherever the last word before it went.
        ("I saw it.\n\nIt was.", "Ich es sah. Es war.", {(0, 0), (1, 2), (2, 1), (3, 3), (4, 4)}, "Ich es sah.\n\nEs war."),
        ("<b>a b<br></b> c", "B A C", {(0, 1), (1, 0), (2, 2)}, "<b>B A<br></b> C"),
        # A number: the model's own if it has the digits, else the source's, in place of another number or of what is linked to it.
        ("1,000.5 on 12/31/2024, 5%", "am 31.12.2024 waren 1.000,5 und 5 %", {(0, 1)}, "am 31.12.2024 waren 1.000,5 und 5 %"),
        ("in 1987 and 2", "in 1978 und zwei", {(0, 0), (1, 1), (2, 2), (3, 3)}, "in 1987 und 2"),
        ("5 and 7", "7 und fünf", {(0, 0), (2, 0)}, "7 und 5"),
        ("7 a", "A", {(0, 1)}, "7 A"),
        ("a 15, 5", "A 15 5", set(), "A 15 5"),
        ("in ٣ years", "3 Jahre", {(0, 1), (1, 2)}, "3 Jahre"),
        ("5 a", "555. A", {(0, 0), (1, 1)}, "5. A"),
        # An entity that the source has inside another word, too, is no copy too many.
        ("a &amp; b&amp;c", "A &amp; B&amp;C", {(0, 0), (1, 1), (2, 2)}, "A &amp; B&amp;C"),
        ("{x} a {x}!", "{x} {x} {x} A {x}!", {(0, 0), (3, 1), (4, 2)}, "{x} A {x}!"),
        # A pair around all words, but not around the full stop; around all of the line.
        ("<b>a b</b>.", "B A.", {(0, 1), (1, 0)}, "<b>B A</b>."),
        ("<i><b>a</b></i>", "A.", {(0, 0)}, "<i><b>A.</b></i>"),
    ],
)
def test_markup_goes_where_the_links_say(line: str, target: str, links: set[tuple[int, int]], expected: str) -> None:
    assert place_markup(split_markup(line), target, links) == expected


@pytest.mark.parametrize(
    ("line", "target", "links", "expected"),
    [
        ("a <b>big table</b> .", "un grand banc .", {(0, 0), (1, 1), (2, 2), (3, 2)}, "un <b>grand banc</b> ."),
        ("a <b>big table</b>.", "un grand banc .", {(0, 0), (1, 1), (2, 2), (3, 2)}, "un <b>grand banc</b> ."),
        ("<b>a table</b>.", "un banc .", {(0, 0), (1, 1), (2, 1)}, "<b>un banc</b> ."),
        ("( <b>a</b> ) b", "( A ) B", {(0, 1), (1, 1), (2, 1), (3, 3)}, "( <b>A</b> ) B"),
        ("a <b><i>b</i> c</b> – d", "A B C – D", {(0, 0), (1, 1), (2, 2), (3, 2), (4, 4)}, "A <b><i>B</i> C</b> – D"),  # noqa: RUF001 - a dash
        # The mark of a quotation inside the pair, and the full stop outside.
        ("a <b>(b)</b> .", "A (B) .", {(0, 0), (1, 1), (2, 1)}, "A <b>(B)</b> ."),
        # Only punctuation is linked: the nearest word.
        ("<b>a</b> b .", "B .", {(0, 1), (1, 0)}, "<b>B</b> ."),
        # Punctuation inside stays inside.
        ("<b>a table .</b> b", "un banc . B", {(0, 0), (1, 1), (2, 2), (3, 3)}, "<b>un banc .</b> B"),
        ("a <b>b !</b>", "A B !", {(0, 0), (1, 1), (2, 1)}, "A <b>B !</b>"),
        ("a <b>b! c</b> d", "A C B ! D", {(0, 0), (1, 2), (2, 1), (3, 1), (4, 3)}, "A <b>C B !</b> D"),
        ("<b>a table</b>", "un banc .", {(0, 0), (1, 1)}, "<b>un banc .</b>"),
        ("a <b>.</b> b", "A . B", {(0, 0), (1, 1), (2, 2)}, "A <b>.</b> B"),
    ],
)
def test_a_word_of_punctuation_outside_a_pair_stays_outside(line: str, target: str, links: set[tuple[int, int]], expected: str) -> None:
    assert place_markup(split_markup(line), target, links) == expected


class Drawn:
    """A random line: words, empty tags and pairs, with distinct tags, so that each can be found again."""

    def __init__(self, seed: int, *, words: list[str], empty: list[str]) -> None:
        self._random, self._words, self._empty, self._numbers = random.Random(seed), words, empty, count()
        self.tags: list[str] = []

    def _own(self, tag: str) -> str:
        name = f"n{next(self._numbers)}"
        tag = tag.replace("c -->", f"{name} -->") if "--" in tag else re.sub(r"[a-z]+", lambda found: found[0] + name, tag, count=1)
        self.tags.append(tag)
        return tag

    def items(self, depth: int = 0) -> list[object]:
        """Return words, empty tags, and (opening, items, closing); a word comes first, so that no pair is empty."""
        found: list[object] = [self._random.choice(self._words)]
        for _ in range(self._random.randint(0, 5)):
            kind = self._random.random()
            if kind < 0.25 and self._empty:
                found.append(self._own(self._random.choice(self._empty)))
            elif kind < 0.55 and depth < 3:
                opening = self._own("<b>")
                inner, closing = self.items(depth + 1), opening.replace("<b", "</b")
                self.tags.append(closing)
                found.append((opening, inner, closing))
            else:
                found.append(self._random.choice(self._words))
        return found


def source_of(items: list[object]) -> str:
    return " ".join(item if isinstance(item, str) else f"{item[0]}{source_of(item[1])}{item[2]}" for item in items)  # type: ignore[index]


def reverse_of(items: list[object]) -> str:
    """Return the line with its words in reverse: pairs around the same words, empty tags behind what they were behind."""
    groups: list[list[str]] = []
    for item in items:
        if isinstance(item, str) and item.startswith("<"):
            groups[-1].append(item)
        else:
            groups.append([item if isinstance(item, str) else f"{item[0]}{reverse_of(item[1])}{item[2]}"])  # type: ignore[index]
    return " ".join(" ".join(group) for group in reversed(groups))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_copy_and_a_reversal_with_known_links_have_every_tag_in_its_place(reverse: bool) -> None:
    right = 0
    for seed in range(1_000):
        items = Drawn(seed, words=[*"abcdefgh", *OPAQUE], empty=["<wbr/>", "<hr>", "<!-- c -->"]).items()
        source = source_of(items)
        marked = split_markup(source)
        words = marked.plain.split()
        # The model spoils what it does not know.
        target = [f"un{number}" if number in marked.opaque else word for number, word in enumerate(words)]
        order = range(len(words))[:: -1 if reverse else 1]
        found = place_markup(marked, " ".join(target[word] for word in order), set(enumerate(order)))
        right += found == (reverse_of(items) if reverse else source)
    assert right / 1_000 >= 0.98, f"{right} of 1,000 lines are right"


def check_nesting(tags: list[str]) -> None:
    opened = []
    for tag in tags:
        if tag.startswith("<bn"):
            opened.append(tag)
        elif tag.startswith("</bn"):
            assert opened.pop() == tag.replace("</", "<")
    assert opened == []


@settings(max_examples=1_000)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_whatever_the_links_every_tag_comes_once_and_well_nested_and_no_word_is_lost(data: st.DataObject, seed: int) -> None:
    drawn = Drawn(seed, words=[*WORDS, *OPAQUE], empty=EMPTY)
    empty = data.draw(st.lists(st.sampled_from(["<x1/>", "<x2/>"]), unique=True, max_size=2))
    source = " ".join([*empty, source_of(drawn.items())])
    marked = split_markup(source)
    target = data.draw(st.lists(st.sampled_from([*"ABC", "D,", ".", "„E“"]), max_size=13))
    pairs = st.tuples(st.integers(0, max(0, len(target) - 1)), st.integers(0, marked.words - 1))
    links = data.draw(st.frozensets(pairs, max_size=17))
    found = place_markup(marked, " ".join(target), links if target else set())
    tags = re.findall(r"<!--[^>]*-->|</?[a-z][^>]*>", found)
    assert Counter(tags) == Counter([*empty, *drawn.tags])
    check_nesting(tags)
    left = Counter(re.sub(r"<!--[^>]*-->|</?[a-z][^>]*>", "", found).replace("{{ user name }}", "{{_user_name_}}").split())
    opaque = Counter(seen for seen, _ in marked.opaque.values())
    kept = Counter(word for word in left.elements() if not any(seen in word for seen in opaque))
    assert kept <= Counter(target)
    held = [seen for word in left.elements() for seen in opaque if word.strip("„“(),.") == seen]
    assert Counter(held) == opaque
    linked = {word for word, source_word in links if source_word in marked.opaque}
    assert kept >= Counter(word for number, word in enumerate(target) if number not in linked)


def test_letters_of_scripts_without_spaces_are_words() -> None:
    line = split_markup("The <b>red dog</b> sees the <i>cat</i> {name}.")
    links = {(0, 1), (1, 1), (2, 1), (3, 2), (4, 3), (5, 3), (6, 5), (7, 6)}
    assert place_markup(line, "红色的狗看见猫{name}。", links) == "<b>红色的狗</b>看见<i>猫</i>{name}。"
    line = split_markup("<b>红色的狗</b>看见<i>猫</i>。{名字}有5只")
    assert (line.plain, line.words) == ("红色的狗看见猫。{名字}有5只", 11)
    found = place_markup(line, "The red dog sees the cat. 5 {名字}", {(1, 0), (2, 3), (3, 4), (5, 6), (6, 9), (7, 7)})
    assert found == "The <b>red dog</b> sees the <i>cat</i>. 5 {名字}"
    assert place_markup(split_markup("ein <i>Hund</i>"), "「狗」", {(0, 1)}) == "「<i>狗</i>」"


@given(data=st.data(), seed=st.integers(0, 2**32))
def test_tags_come_once_and_no_letter_is_lost_where_no_space_is(data: st.DataObject, seed: int) -> None:
    drawn = Drawn(seed, words=["狗", "猫。", "a", "5", "{名}"], empty=EMPTY)
    marked = split_markup(re.sub(" (?![^<]*>)", data.draw(st.sampled_from(["", " "])), source_of(drawn.items())))
    target = "".join(data.draw(st.lists(st.sampled_from(["狗", "猫。", "「书」", "Ab", " "]), max_size=13)))
    links = data.draw(st.frozensets(st.tuples(st.integers(0, 13), st.integers(0, max(0, marked.words - 1))), max_size=17))
    found = place_markup(marked, target, links)
    tags = re.findall(r"<!--[^>]*-->|</?[a-z][^>]*>", found)
    assert Counter(tags) == Counter(drawn.tags)
    check_nesting(tags)
    for verbatim in marked.opaque.values():
        assert verbatim[1] in found


@given(st.text(alphabet="ab5 \n<>/!-{}%s&;\"'=@.:狗。", max_size=60), st.text(alphabet="AB5 .{}狗", max_size=20))
def test_any_text_can_be_split_and_placed(line: str, target: str) -> None:
    marked = split_markup(line)
    assert marked.words == len(word_spans(marked.plain))
    found = place_markup(marked, target, {(word, marked.words - 1 - word) for word in range(marked.words)})
    assert all(tag.text in found for tag in marked.empty)
    assert all(tag in found for pair in marked.pairs for tag in (pair.opening, pair.closing))


LONG = ["<a ", '<a "', "<!--", "{", "{ ", "{{", "{% ", "%(", "a", "a@", "<b>", "</b>", "<b>x</b> ", "{x} ", "x<br/>", "www.", "&a", "("]
LONG += ["\n", "a\n", "\n ", "5 ", "5/", "1.000 "]


@pytest.mark.parametrize("part", LONG)
def test_a_long_line_takes_time_in_proportion(part: str) -> None:
    line = part * 20_000
    started = time.process_time()
    marked = split_markup(line)
    place_markup(marked, "A B C", {(0, 0), (1, 7), (2, 5)})
    assert time.process_time() - started < 4
