"""Splits Markdown into parts to keep and blocks to translate: CommonMark with tables, strikethrough, footnotes, definition lists and math.

markdown-it-py finds the blocks and their inline markup. It gives no positions of inline markup, so its rules are wrapped here to record
where each matched.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from regard.data.document_blocks import VERBATIM, Part, block_parts, has_letters, unused
from regard.data.html_document import html_parts
from regard.data.markup import TAG
from regard.errors import missing_extra

# Metadata before a document, in YAML (--- and --- or ...) or TOML (+++).
FRONT_MATTER = re.compile(
    r"""\ufeff?(?:
    ---[ \t]*\r?\n \s* (?:\#.*\n\s*)* [\w.-]+\s*: (?:.*\n)*? (?:---|\.\.\.)
    | \+\+\+[ \t]*\r?\n (?:.*\n)*? \+\+\+
    )[ \t]*(?:\r?\n|$)""",
    re.VERBOSE,
)
# What a block may begin with, beside text: the box of a task, the kind of a note.
BEGINNING = re.compile(r"\[[ xX]\][ \t]+(?=\S)|\[![A-Za-z]+\][ \t]*(?:\n|$)")
ALONE = re.compile(rf"\s*(?=</?[A-Za-z]){TAG}[ \t]*\r?\n")
OPENED, CLOSED = "_open", "_close"
SPAN = "span"


class _Place(NamedTuple):
    """Inline text of the document.

    Attributes:
        start: where it begins in the document.
        end: where it ends.
        text: its lines without what is before them: indentation and marks of quotes.
        before: that of each line, the first excluded.
        cell: whether it is a cell of a table.
    """

    start: int
    end: int
    text: str
    before: list[str]
    cell: bool


def markdown_parts(text: str) -> Iterator[Part]:
    """Split a document; see `regard.data.documents.read_document`.

    Raises:
        MissingExtraError: without the extra `documents`.

    Example:
        >>> [part for part in markdown_parts("- a *red* ball") if part]
        ['- ', Block(text='a <m0>red</m0> ball', stands_for={'<m0>': '*', '</m0>': '*'}, width=0, escapes='')]
    """
    head = FRONT_MATTER.match(text)
    begin = head.end() if head else int(text.startswith("\ufeff"))
    yield text[:begin]
    body = text[begin:].replace("\0", "\ufffd")  # as the parser does
    env: dict[str, Any] = {}
    done = 0
    for place in _places(body, _parser().parse(body, env)):
        yield text[begin + done : begin + place.start]
        done = place.end
        if isinstance(place, _Html):
            block = text[begin + place.start : begin + place.end]
            alone = ALONE.match(block)  # on the same line as a translation, the tag would begin no block of HTML
            first = alone.end() if alone and alone["name"].lower() not in VERBATIM else 0
            yield block[:first]
            yield from html_parts(block[first:])
        else:
            yield from _Inline(place, env).parts()
    yield text[begin + done :]


class _Html(NamedTuple):
    """A block of HTML in the document, from `start` to `end`."""

    start: int
    end: int


@functools.cache
def _parser() -> MarkdownIt:
    try:
        from mdit_py_plugins.deflist import deflist_plugin
        from mdit_py_plugins.dollarmath import dollarmath_plugin
        from mdit_py_plugins.footnote import footnote_plugin
    except ImportError as error:
        raise missing_extra("Markdown documents need mdit-py-plugins", "documents") from error
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")  # it makes text of escaped characters
    parser.use(footnote_plugin, move_to_end=False, always_match_refs=True).use(deflist_plugin)
    parser.use(dollarmath_plugin, allow_space=False, allow_digits=False)
    for rule in parser.inline.ruler.__rules__:
        rule.fn = _recorded(rule.fn)
    return parser


def _recorded(rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
    """Return an inline rule that notes in the `meta` of its tokens where it matched."""

    @functools.wraps(rule)
    def record(state: StateInline, silent: bool) -> bool:
        start, count = state.pos, len(state.tokens)
        if not rule(state, silent):
            return False
        if silent:
            return True
        made = state.tokens[count:]
        for token in made:
            token.meta.setdefault(SPAN, (start, state.pos))
        end = state.pos
        for token in reversed(made):  # a run of marks, such as ***, is a token of text for each
            if token.type != "text" or not token.content or state.src[max(start, end - len(token.content)) : end] != token.content:
                break
            token.meta[SPAN] = (end - len(token.content), end)
            end -= len(token.content)
        return True

    return record


def _places(text: str, tokens: Sequence[Token]) -> Iterator[_Place | _Html]:
    """Return where the tokens of inline text and blocks of HTML are in the document, in its order."""
    pieces = re.split(r"(\r\n|\r|\n)", text)
    lines, starts = pieces[::2], [0]
    for line, end in zip(pieces[::2], pieces[1::2], strict=False):
        starts.append(starts[-1] + len(line) + len(end))
    at = 0
    for number, token in enumerate(tokens):
        if token.map is None:
            continue
        first = token.map[0]
        if token.type == "html_block":
            at = starts[token.map[1]] if token.map[1] < len(starts) else len(text)
            yield _Html(starts[first], at)
        if token.type != "inline" or not token.content:
            continue
        cell = tokens[number - 1].type in ("th_open", "td_open")
        before, rows = list[str](), token.content.split("\n")
        begin = end = 0
        while not cell and not all(row.strip() in line for row, line in zip(rows, lines[first:], strict=False)):
            first += 1  # the parser has removed lines of white space
        for row, line in enumerate(lines[first : first + len(rows)]):
            rows[row] = rows[row].lstrip()
            if cell:  # the parser has removed the backslash before a |
                found = re.compile(re.escape(rows[row]).replace(r"\|", r"\\?\|")).search(line, max(0, at - starts[first]))
                assert found is not None
                column, rows[row] = found.start(), found[0]
            else:
                column = line.rfind(rows[row])
                assert column >= 0
            end = starts[first + row] + column + len(rows[row])
            if row:
                before.append(line[:column])
            else:
                begin = starts[first] + column
        at = end
        yield _Place(begin, end, "\n".join(rows), before, cell)


class _Inline:
    """Inline markup of a place, replaced by tags and placeholders for `regard.data.markup`."""

    def __init__(self, place: _Place, env: dict[str, Any]) -> None:
        self._place = place
        found = BEGINNING.match(place.text)
        self._kept = found[0] if found else ""
        self._text = place.text[len(self._kept) :]
        self._env = env
        self._stands_for: dict[str, str] = {}
        self._said: list[str] = []
        self._at = 0
        self._open: list[str] = []
        # No tag or placeholder that the text itself contains.
        self._letters, self._tildes = unused("m", self._text), unused("~", self._text)

    def parts(self) -> Iterator[Part]:
        """Return what is kept, and the block."""
        yield self._source(-len(self._kept), 0)
        (inline,) = _parser().parseInline(self._text, self._env)
        children = iter(inline.children or [])
        for token in children:
            start, end = token.meta.get(SPAN, (0, 0))
            if end > self._at:
                self._take(token, start, end, children)
        self._said.append(self._text[self._at :])
        if has_letters(text := "".join(self._said)):
            yield from block_parts(text, self._stands_for, escapes="|" if self._place.cell else "")
        else:
            yield self._source(0, len(self._text))

    def _source(self, start: int, end: int) -> str:
        # A piece of the text as the document has it, with what is before its lines.
        start, end = start + len(self._kept), end + len(self._kept)
        rows = self._place.before[self._place.text.count("\n", 0, start) :]
        first, *others = self._place.text[start:end].split("\n")
        return "".join([first, *(f"\n{before}{line}" for before, line in zip(rows, others, strict=False))])

    def _take(self, token: Token, start: int, end: int, following: Iterator[Token]) -> None:
        kind = token.type
        if kind == "text" or (kind == "text_special" and token.info == "entity"):
            return
        if kind == "softbreak":
            self._until(start, end, " ")
        elif kind == "hardbreak":
            self._break(start, end)
        elif kind == "html_inline":
            self._html(token, start, end, following)
        elif kind.endswith(OPENED) and token.info != "auto":
            self._open_tag(token, start)
        elif kind.endswith(CLOSED) and token.info != "auto":
            self._close_tag(token, start, end)
        else:
            self._opaque(start, end)

    def _until(self, start: int, end: int, instead: str) -> None:
        # The text before a piece of markup as it is, then what stands for the markup.
        self._said += [self._text[self._at : start], instead]
        self._at = end

    def _name(self, form: str, markup: str) -> str:
        name = form.format(f"{self._letters}{len(self._stands_for)}")
        self._stands_for[name] = markup
        return name

    def _opaque(self, start: int, end: int) -> None:
        name = f"{{{self._tildes}{len(self._stands_for)}}}"
        self._stands_for[name] = self._source(start, end)
        self._until(start, end, name)

    def _break(self, start: int, end: int) -> None:
        start -= len(self._text[self._at : start]) - len(self._text[self._at : start].rstrip(" "))
        self._until(start, end, self._name("<{}/>", self._source(start, 1 + self._text.index("\n", start))))

    def _html(self, token: Token, start: int, end: int, following: Iterator[Token]) -> None:
        name = re.match(r"<([A-Za-z][^\s/>]*)", token.content)
        if name and name[1].lower() in VERBATIM and not token.content.endswith("/>"):
            closing = re.compile(rf"</{re.escape(name[1])}\s*>", re.IGNORECASE)
            ends = (each.meta[SPAN][1] for each in following if each.type == "html_inline" and closing.fullmatch(each.content))
            self._opaque(start, next(ends, len(self._text)))
        elif re.fullmatch(TAG, token.content):
            self._until(start, end, self._text[start:end])
        else:
            self._until(start, end, self._name("<{}/>", self._source(start, end)))

    def _open_tag(self, token: Token, start: int) -> None:
        width = len(token.markup) if token.markup else 1
        start -= width - 1 if token.markup != "~~" else 0  # of ** the parser keeps the inner one
        name = self._name("<{}>", self._text[start : start + width])
        self._open.append(name)
        self._until(start, start + width, name)

    def _close_tag(self, token: Token, start: int, end: int) -> None:
        if not self._open:
            return
        name = self._open.pop()
        if token.type == "link_close":
            start = self._words_end(start, end)
        else:
            end = start + len(token.markup)
        closing = f"</{name[1:]}"
        self._stands_for[closing] = self._source(start, end)
        self._until(start, end, closing)

    def _words_end(self, start: int, end: int) -> int:
        state = StateInline(self._text, _parser(), self._env, [])
        state.pos = start
        state.posMax = end
        return state.md.helpers.parseLinkLabel(state, start, False)
