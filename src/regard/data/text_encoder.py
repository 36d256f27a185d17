"""Fast text encoding with a table of known words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.data.lines import whole_characters
from regard.data.token_arrays import FlatTokens, sequence_offsets
from regard.data.vocabulary import IMPORTED, Vocabulary
from regard.data.word_table import LONGEST, Words, WordTable, split_words

_MAX_WORDS = 2**18
BLOCK = 16384
"""Lines that are encoded together."""


class EncodedLines(NamedTuple):
    """Lines as tokens.

    Attributes:
        tokens: of each line.
        blank: (N,) which lines are blank.
        lengths: (N,) tokens of each line, or of the longer of two inputs.
    """

    tokens: FlatTokens
    blank: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, tokens: FlatTokens, blank: np.ndarray) -> EncodedLines:
        """Return lines of one input each."""
        return cls(tokens, blank, tokens.lengths)


def usable_lines(sides: Sequence[EncodedLines], max_length: int) -> tuple[np.ndarray, dict[str, int]]:
    """Return which examples of one or two texts are usable, (N,) bool, and counts of skipped ones by reason."""
    lengths = np.stack([side.lengths for side in sides])
    # Blank lines are also skipped in prediction.
    empty = np.any([side.blank for side in sides], 0) | (lengths == 0).any(0)
    long = ~empty & (lengths.max(0) > max_length)
    return ~(empty | long), {"empty": int(empty.sum()), "too long": int(long.sum())}


class TextEncoder:
    """Encode lines like `Vocabulary.encode_ids`, many times faster if words repeat.

    In all vocabularies but `sentencepiece`, tokens of a word between single spaces do not depend on its context, so each word is tokenized
    once. Lines with other white space (two spaces, a tab, a space at an end) are encoded entirely.

    Args:
        vocabulary: the vocabulary.

    Example:
        >>> encoder = TextEncoder(Vocabulary.train(["a b"], kind="word", size=9))
        >>> encoder.encode(["b a", "", "b"]).lengths.tolist()
        [2, 0, 1]
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._known = WordTable(_MAX_WORDS)
        self._clear()

    def encode(self, lines: Sequence[str]) -> FlatTokens:
        """Return the tokens of each line."""
        return self.encode_bytes([whole_characters(line).encode() for line in lines]).tokens

    def encode_bytes(self, lines: Sequence[bytes]) -> EncodedLines:
        """Encode UTF-8 lines; invalid bytes stand for U+FFFD."""
        if not lines:
            return EncodedLines.of(FlatTokens.of([]), np.zeros(0, bool))
        text = b"\n".join(lines) + b"\n"
        if self.vocabulary.kind in (IMPORTED, "image") or text.count(b"\n") != len(lines):
            return self._whole(lines)
        words = split_words(text)
        numbers = self._numbers(words)
        sizes = self._sizes[numbers]
        stops = np.cumsum(sizes)
        # Index of each token among the tokens of all known words.
        places = np.repeat(self._firsts[numbers] - (stops - sizes), sizes)
        places += np.arange(len(places))
        tokens = FlatTokens(self._ids[places], np.concatenate([np.zeros(1, np.int64), stops[words.ends]]))
        blank = np.zeros(len(lines), bool)
        apart = np.unique(np.searchsorted(words.ends, np.flatnonzero(self._irregular[numbers])))
        self._forget()
        if not len(apart):
            return EncodedLines.of(tokens, blank)
        whole = self._whole([lines[number] for number in apart.tolist()])
        blank[apart] = whole.blank
        order = np.arange(len(lines))
        order[apart] = len(lines) + np.arange(len(apart))
        return EncodedLines.of(FlatTokens.joined([tokens, whole.tokens]).chosen(order), blank)

    def _whole(self, lines: Sequence[bytes]) -> EncodedLines:
        """Encode lines without the word table."""
        texts = [line.decode("utf-8", errors="replace") for line in lines]
        blank = np.fromiter((not text.strip() for text in texts), bool, len(texts))
        return EncodedLines.of(FlatTokens.of(self.vocabulary.encode_ids(texts)), blank)

    def _numbers(self, words: Words) -> np.ndarray:
        """Return the number of each word, adding new ones; its tokens are `ids[firsts[number] :][: sizes[number]]`."""
        numbers = self._known.find(words)
        new = np.flatnonzero((numbers == 0) & (words.sizes <= LONGEST))
        # Frequent words come early, so a full table stays useful, unless the text changes.
        if len(self._known) + len(new) > _MAX_WORDS and len(new) > len(numbers) // 2:
            self._known.clear()
            self._clear()
            numbers[:] = 0
            new = np.flatnonzero(words.sizes <= LONGEST)
        if len(new):
            names = words.names(new)
            rows = dict(zip(names, new.tolist(), strict=True))
            own = dict(zip(rows, range(len(self._sizes), len(self._sizes) + len(rows)), strict=True))
            self._learn(list(rows))
            if len(self._known) + len(rows) <= _MAX_WORDS:
                self._known.add(words, np.fromiter(rows.values(), np.int64, len(rows)))
            numbers[new] = [own[name] for name in names]
        return numbers

    def _learn(self, names: Sequence[bytes]) -> None:
        """Append the tokens of new words."""
        words = [name.decode("utf-8", errors="replace") for name in names]
        regular = np.fromiter(map(_regular, words), bool, len(words))
        space = " " if self.vocabulary.kind in ("bpe", "character") else ""
        chosen = [words[number] for number in np.flatnonzero(regular).tolist()]
        found = self.vocabulary.encode_ids([word[:-1] if word[-1] == " " else space + word for word in chosen])
        tokens, sizes = FlatTokens.of(found), np.zeros(len(words), np.int64)
        sizes[regular] = tokens.lengths
        self._irregular = np.concatenate([self._irregular, ~regular])
        self._firsts = np.concatenate([self._firsts, len(self._ids) + sequence_offsets(sizes)[:-1]])
        self._sizes = np.concatenate([self._sizes, sizes])
        self._ids = np.concatenate([self._ids, tokens.ids])

    def _forget(self) -> None:
        """Drop this block's words that exceed the table."""
        kept = len(self._known) + 1
        if len(self._sizes) > kept:
            self._ids = self._ids[: self._firsts[kept]].copy()
            self._irregular, self._firsts, self._sizes = self._irregular[:kept], self._firsts[:kept], self._sizes[:kept]

    def _clear(self) -> None:
        # Number 0: a word too long for the table.
        self._irregular, self._firsts, self._sizes = np.ones(1, bool), np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._ids = np.zeros(0, np.int32)


def _regular(word: str) -> bool:
    """Return whether a word (with a space after it if it is first in its line) is tokenized alone as in its line."""
    own = word[:-1] if word[-1:] == " " else word
    # U+2581 replaces a space in `unigram`.
    return bool(own) and own.split() == [own] and "\u2581" not in own
