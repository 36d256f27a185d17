"""Fast encoding of much text: a word that was met before is looked up, not split again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from regard.data.token_arrays import FlatTokens, sequence_offsets
from regard.data.vocabulary import IMPORTED, Vocabulary
from regard.progress import stage

_MAX_WORDS = 2**18
_LONGEST_WORD = 40
BLOCK = 16384
"""Lines that are encoded together."""


class TextEncoder:
    """Encode lines as `Vocabulary.encode_ids` does, to the same tokens, some ten times as fast where words repeat.

    In every kind of vocabulary but `character` and `sentencepiece` a word between single spaces is tokenized whatever stands beside it,
    so each word need be split into tokens once. Lines with any other white space (two spaces, a tab, a space at an end) are encoded
    whole.

    Args:
        vocabulary: turns text into tokens.

    Example:
        >>> encoder = TextEncoder(Vocabulary.train(["a b"], kind="word", size=9))
        >>> encoder.encode(["b a", "", "b"]).lengths.tolist()
        [2, 0, 1]
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        # The ids of a word, as bytes of 32-bit integers. The first word of a line has a space behind it: in `bpe` it is another word.
        self._known: dict[str, bytes] = {}
        self._passing: dict[str, bytes] = {}  # of this block only

    def encode_all(self, lines: Sequence[str], name: str) -> FlatTokens:
        """Return the tokens of each line as `encode` does, as a stage called "Encoding NAME"."""
        with stage(f"Encoding {name}", total=len(lines), unit="lines") as encoding:
            blocks = []
            for start in range(0, max(1, len(lines)), BLOCK):
                blocks.append(self.encode(lines[start : start + BLOCK]))
                encoding.advance(len(lines[start : start + BLOCK]))
        return FlatTokens(
            np.concatenate([each.ids for each in blocks]), sequence_offsets(np.concatenate([each.lengths for each in blocks]))
        )

    def encode(self, lines: Sequence[str]) -> FlatTokens:
        """Return the tokens of each line."""
        if self.vocabulary.kind in ("character", IMPORTED):
            return FlatTokens.of(self.vocabulary.encode_ids(lines))
        split = [line.split(" ") for line in lines]
        for words in split:
            words[0] += " "
        counts = np.fromiter(map(len, split), np.int64, len(split))
        words = list(chain.from_iterable(split))
        irregular = self._learn(set(words))
        if not irregular:
            return self._joined(words, counts)
        apart = np.zeros(len(lines), bool)
        flags = np.fromiter((word in irregular for word in words), bool, len(words))
        apart[np.repeat(np.arange(len(lines)), counts)[flags]] = True
        whole = self.vocabulary.encode_ids([lines[number] for number in np.flatnonzero(apart).tolist()])
        regular = [words for words, alone in zip(split, apart, strict=True) if not alone]
        rest = self._joined(list(chain.from_iterable(regular)), counts[~apart])
        both = FlatTokens(
            np.concatenate([rest.ids, FlatTokens.of(whole).ids]), sequence_offsets(np.concatenate([rest.lengths, list(map(len, whole))]))
        )
        order = np.empty(len(lines), np.int64)
        order[np.concatenate([np.flatnonzero(~apart), np.flatnonzero(apart)])] = np.arange(len(lines))
        return both.chosen(order)

    def _learn(self, words: set[str]) -> set[str]:
        """Encode the words that are new; return those that have to be encoded with their line."""
        new = words.difference(self._known)
        # The frequent words come early, so a full table serves on; unless the text has become another.
        if len(self._known) + len(new) > _MAX_WORDS and len(new) > len(words) // 2:
            self._known.clear()
            new = words
        self._passing.clear()
        irregular = {word for word in new if not _regular(word)}
        chosen = list(new - irregular) if irregular else list(new)
        space = " " if self.vocabulary.kind == "bpe" else ""
        texts = [word[:-1] if word[-1] == " " else space + word for word in chosen]
        table = self._known if len(self._known) + len(chosen) <= _MAX_WORDS else self._passing
        for word, ids in zip(chosen, self.vocabulary.encode_ids(texts), strict=True):
            table[word] = np.array(ids, np.int32).tobytes()
        return irregular

    def _joined(self, words: list[str], counts: np.ndarray) -> FlatTokens:
        """Return the tokens of lines of known words, `counts` of them each."""
        if self._passing:
            get, passing = self._known.get, self._passing
            found = [get(word) or passing[word] for word in words]
        else:
            found = list(map(self._known.__getitem__, words))
        sizes = np.fromiter(map(len, found), np.int64, len(found)) // 4
        offsets = sequence_offsets(sizes)[sequence_offsets(counts)]
        return FlatTokens(np.frombuffer(b"".join(found), np.int32), offsets)


def _regular(word: str) -> bool:
    """Whether a word (with a space behind it if it is the first of its line) is tokenized alone as in its line."""
    own = word[:-1] if word[-1:] == " " else word
    # U+2581 is what `unigram` puts in the place of a space.
    return 0 < len(own) <= _LONGEST_WORD and own.split() == [own] and "\u2581" not in own
