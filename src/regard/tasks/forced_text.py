"""Forced text of translations: a prefix per line, and translations of terms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.lines import stream_bytes
from regard.data.scripts import UNSPACED
from regard.data.vocabulary import Vocabulary, has_unknown
from regard.decoding import Phrase
from regard.errors import ConfigError, DataError, shown

_WORD = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])\w)+|[^\w\s]")
SOURCE_TERM = r"[^\n]*[^\s!-/:-@\[-`{-~][^\n]*"
"""A source term, more than ASCII punctuation; written so that it means the same in JSON Schema."""


# Minimum beam size for a line with terms: with fewer, terms come before the words that lead to them.
MIN_BEAM = 5


class Term(NamedTuple):
    """A term and its required translation, of one or more words each.

    Attributes:
        source: matched in any case if lower-case, otherwise exactly.
        target: the exact translation; if lower-case, it may be capitalised at the beginning of a translation.
    """

    source: str
    target: str


class Glossary:
    """Terms, to be found in lines.

    Args:
        terms: each source with one translation.

    Raises:
        ConfigError: a source has two translations, or a term is no pair of texts, or one of them is empty.

    Example:
        >>> Glossary([Term("red ball", "roter Ball"), Term("ball", "Kugel"), Term("US", "USA")]).find("Us and a Red ball")
        ['roter Ball']
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        # A tree of words in one table: from the number of a beginning of terms, and a word, to that of the longer beginning.
        self._next: dict[tuple[int, str], int] = {}
        self._targets: dict[int, str] = {}
        for number, term in enumerate(terms):
            if not isinstance(term, tuple) or len(term) != 2 or not all(isinstance(side, str) for side in term):
                raise ConfigError(f"terms[{number}]: expected a Term of two texts, found {shown(term)}")
            if not all(side.strip() for side in term):
                raise ConfigError(f"terms[{number}]: expected a term and its translation, found {shown(tuple(term))}")
            (source, target), node = term, 0
            for word in _WORD.findall(source):
                node = self._next.setdefault((node, word), len(self._next) + 1)
            before = self._targets.setdefault(node, target)
            if before != target:
                raise ConfigError(f"terms: {shown(source)} is {shown(before)} and {shown(target)}; expected one translation")

    def find(self, line: str) -> list[str]:
        """Return the term translations for a line, each once, in order; the first and longest of overlapping terms wins."""
        words = _WORD.findall(line) if self._next else []
        lower = [word.lower() for word in words]
        found: dict[str, None] = {}
        at = 0
        while at < len(words):
            size, target = max(self._longest(words, at), self._longest(lower, at), key=lambda term: term[0])
            if size:
                found[target] = None
            at += max(size, 1)
        return list(found)

    def _longest(self, words: Sequence[str], at: int) -> tuple[int, str]:
        # Words and translation of the longest term that begins at a word; 0 if there is none.
        node, size, target = 0, 0, ""
        for number in range(at, len(words)):
            node = self._next.get((node, words[number]), 0)
            if not node:
                break
            if node in self._targets:
                size, target = number + 1 - at, self._targets[node]
        return size, target


Terms = Glossary | Sequence[Glossary] | None


def check_forced(lines: int, prefixes: Sequence[str] | None, terms: Terms) -> None:
    """Check that there is a prefix, or a glossary, for each of a number of lines, if any are given.

    Raises:
        ConfigError: there is not; one text, whose letters would be taken for prefixes; or an item of another type.

    Example:
        >>> check_forced(2, "de", None)
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: prefixes: expected a list of 2 texts, one per line, found 'de'
    """
    each: Any = None if isinstance(terms, Glossary) else terms  # one glossary is that of all lines
    for name, what, given, kind in (("prefixes", "texts", prefixes, str), ("terms", "glossaries", each, Glossary)):
        fits = given is None or (isinstance(given, Sequence) and not isinstance(given, str) and len(given) == lines)
        if not fits or any(not isinstance(one, kind) for one in given or ()):
            single = ", or one Glossary" * (kind is Glossary)
            raise ConfigError(f"{name}: expected a list of {lines} {what}, one per line{single}, found {shown(given)}")


def read_terms(path: Path) -> list[Term]:
    """Read a term file: a source, a tab and the required translation per line; blank lines are skipped.

    Raises:
        DataError: a line is invalid or not UTF-8, or a source has two translations.
    """
    terms: dict[tuple[str, ...], tuple[int, Term]] = {}
    for number, line in enumerate(_exact_lines(path), start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 2 or not all(cells):
            raise DataError(f"{path}, line {number}: expected a term, a tab and its translation")
        term = Term(*cells)
        if not re.fullmatch(SOURCE_TERM, term.source):
            raise DataError(f"{path}, line {number}: {shown(term.source)}, expected a letter or a digit in the source term")
        before, other = terms.setdefault((*_WORD.findall(term.source),), (number, term))
        if other.target != term.target:
            raise DataError(f"{path}, line {number}: {term.source!r} is {other.target!r} in line {before}")
    return [term for _, term in terms.values()]


def _exact_lines(path: Path) -> Iterator[str]:
    # Required text must be exact: no replacement characters for invalid UTF-8.
    for number, line in enumerate(stream_bytes(path), start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}, line {number}: not UTF-8") from error


class Beginnings:
    """A file of translation prefixes, read line by line with the input.

    Args:
        path: the file, or None.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._lines = path, iter(()) if path is None else _exact_lines(path)

    def take(self) -> str:
        """Return the next one; "" without a file.

        Raises:
            DataError: the file has no more lines, or the next one is not UTF-8.
        """
        if self._path is None:
            return ""
        found = next(self._lines, None)
        if found is None:
            raise DataError(f"{self._path}: has fewer lines than the input")
        return found

    def finish(self) -> None:
        """Check that all lines were used.

        Raises:
            DataError: a line is left.
        """
        if next(self._lines, None) is not None:
            raise DataError(f"{self._path}: has more lines than the input")


class ForcedText(NamedTuple):
    """Forced text of a translation as tokens.

    Attributes:
        begin: the prefix.
        prefix: its tokens; empty if the vocabulary lacks one of its words.
        phrases: other forced text, and its tokens.
        unplaced: prefix and terms with words that the vocabulary lacks, and terms that do not fit.
    """

    begin: str
    prefix: list[int]
    phrases: list[tuple[str, Phrase]]
    unplaced: list[str]

    @classmethod
    def of(cls, vocabulary: Vocabulary, begin: str, terms: Sequence[str], *, most: int) -> ForcedText:
        """Encode prefix and terms of a translation, with at most `most` tokens of terms."""
        prefix = vocabulary.encode_ids([begin.rstrip()])[0]
        made = cls(begin, [], [], [begin]) if has_unknown(prefix) else cls(begin, prefix, [], [])
        for text in terms:
            phrase = encode_term(vocabulary, text)
            if not phrase.tokens or has_unknown(phrase.tokens) or made.room + _longest(phrase) > most:
                made.unplaced.append(text)
            else:
                made.phrases.append((text, phrase))
        return made

    def beam(self, size: int) -> int:
        """Return the beam width of a search of `size`: with phrases, a place for each number of required tokens that may be missing."""
        return max(size, MIN_BEAM, self.room + 1) if self.phrases else size

    @property
    def room(self) -> int:
        """Number of tokens of the phrases."""
        return sum(_longest(phrase) for _, phrase in self.phrases)

    def missed(self, tokens: Sequence[int], follow: Sequence[bool]) -> list[str]:
        """Return the missing text of a translation; one without tokens belongs to a blank line."""
        begin = [self.begin] if self.prefix and not tokens else []
        return [*begin, *self.unplaced, *(text for text, phrase in self.phrases if not phrase.within(tokens, follow))]


def _longest(phrase: Phrase) -> int:
    return max(map(len, phrase.rows))


def encode_term(vocabulary: Vocabulary, text: str) -> Phrase:
    """Return the tokens of whole words inside a line and, if different, at its very beginning.

    Example:
        >>> vocabulary = Vocabulary.train(["ein Hund"], kind="character", size=20)
        >>> vocabulary.pieces(encode_term(vocabulary, "Hund").tokens)
        [' ', 'H', 'u', 'n', 'd']
    """
    text = " ".join(text.split())
    first = [text, text[:1].upper() + text[1:]] if text == text.lower() else [text]
    inside, *rows = vocabulary.encode_ids([" " + text if vocabulary.kind in ("bpe", "character") else text, *first])
    if vocabulary.kind != "word" and re.match(f"[{UNSPACED}]", text):
        inside = _without_space(vocabulary, text) or inside
    return Phrase(inside, [row for row in rows if row != inside and not has_unknown(row)])


def _without_space(vocabulary: Vocabulary, text: str) -> list[int]:
    # The tokens of a text right after others; [] if the vocabulary merges all that could stand before it.
    for before in ("\u3002", "\u3001", ".", ","):
        known, both = vocabulary.encode_ids([before, before + text])
        if both[: len(known)] == known and not has_unknown(both):
            return both[len(known) :]
    return []
