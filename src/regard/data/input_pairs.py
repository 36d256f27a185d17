r"""Two inputs as one line with a tab, and as one token row with an EOS between them.

All readers, batches and caches handle such lines like single inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from regard.data.text_encoder import EncodedLines, TextEncoder
from regard.data.token_arrays import FlatTokens
from regard.data.vocabulary import EOS, SPECIALS, TokenizedText, Vocabulary
from regard.errors import DataError

TAB = "\t"


class PairVocabulary(Vocabulary):
    r"""Vocabulary of lines with two tab-separated inputs, from one vocabulary per input.

    Tokens of the first input, EOS, tokens of the second. Equal ids may mean different tokens in the two parts.

    Args:
        first: vocabulary of the first input.
        second: vocabulary of the second; may be the same object.
        optional: either input may be missing.

    Example:
        >>> words = Vocabulary.train(["ein Hund", "a dog"], kind="word", size=20)
        >>> PairVocabulary(words, words, optional=False).encode("a dog\tein Hund").pieces
        ['a', 'dog', '</s>', 'ein', 'Hund']
    """

    def __init__(self, first: Vocabulary, second: Vocabulary, *, optional: bool) -> None:
        self.kind, self.inputs, self.optional = first.kind, (first, second), optional

    def __len__(self) -> int:
        """Return the number of entries of the larger vocabulary."""
        return max(map(len, self.inputs))

    def missing(self, text: str, how: str = "with a tab between them") -> str:
        """Name the input that a non-blank line lacks, or say that it has too many columns; "" if complete.

        Args:
            text: the line.
            how: where the two inputs are expected; for the message.
        """
        first, _, second = text.partition(TAB)
        if not text.strip():
            return ""
        if TAB in second:
            return f"found {text.count(TAB) + 1} columns, expected {'at most ' * self.optional}2: the two inputs, with a tab between them"
        if second.strip() and (first.strip() or self.optional):
            return self.inputs[1].missing(second)
        if self.optional:
            return ""
        which = "second" if first.strip() else "first"
        return f"the {which} input is missing; this model reads two, {how} (model.second.drop trains for one alone)"

    def encode_batch(self, texts: Iterable[str]) -> list[TokenizedText]:
        """Return `encode` of each text, in order; an empty text has no tokens.

        Raises:
            DataError: a text lacks an input.
        """
        return [self._joined(text) for text in texts]

    def encode_ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Return only the ids of each text, in order.

        Raises:
            DataError: a text lacks an input.
        """
        return [item.ids for item in self.encode_batch(texts)]

    def _joined(self, text: str) -> TokenizedText:
        if missing := self.missing(text):
            raise DataError(missing)
        if not text.strip():
            return TokenizedText([], [], [])
        parts = text.partition(TAB)
        first, second = (vocabulary.encode(part if part.strip() else "") for vocabulary, part in zip(self.inputs, parts[::2], strict=True))
        start = len(parts[0])
        return TokenizedText(
            [*first.ids, EOS, *second.ids],
            [*first.pieces, SPECIALS[EOS], *second.pieces],
            [*first.offsets, (start, start + len(parts[1])), *((start + 1 + begin, start + 1 + end) for begin, end in second.offsets)],
        )


class PairEncoder:
    r"""Encode lines of two inputs as `PairVocabulary` does, each part as `TextEncoder` does.

    Args:
        vocabulary: vocabulary of both inputs.

    Example:
        >>> words = Vocabulary.train(["a b"], kind="word", size=9)
        >>> PairEncoder(PairVocabulary(words, words, optional=False)).encode_bytes([b"b a\tb"]).tokens[0].tolist()
        [5, 4, 3, 5]
    """

    def __init__(self, vocabulary: PairVocabulary) -> None:
        self._optional = vocabulary.optional
        self._encoders = [TextEncoder(part) for part in vocabulary.inputs]

    def encode_bytes(self, lines: Sequence[bytes]) -> EncodedLines:
        """Encode UTF-8 lines; a line without a required input counts as blank."""
        halves = [line.partition(b"\t")[::2] for line in lines]
        first, second = (encoder.encode_bytes([half[side] for half in halves]) for side, encoder in enumerate(self._encoders))
        blank = [part.blank | (part.tokens.lengths == 0) for part in (first, second)]
        # Per row: first input, EOS, second input.
        order = np.arange(3 * len(lines)).reshape(3, -1).T.flatten()
        ends = FlatTokens(np.full(len(lines), EOS, first.tokens.ids.dtype), np.arange(len(lines) + 1))
        parts = FlatTokens.joined([first.tokens, ends, second.tokens]).chosen(order)
        lengths = np.maximum(first.lengths, second.lengths)
        return EncodedLines(
            FlatTokens(parts.ids, parts.offsets[::3]), blank[0] & blank[1] if self._optional else blank[0] | blank[1], lengths
        )


def line_encoder(vocabulary: Vocabulary) -> TextEncoder | PairEncoder:
    """Return the fast encoder of a vocabulary.

    Example:
        >>> type(line_encoder(Vocabulary.train(["a"], kind="word", size=9))).__name__
        'TextEncoder'
    """
    return PairEncoder(vocabulary) if isinstance(vocabulary, PairVocabulary) else TextEncoder(vocabulary)
