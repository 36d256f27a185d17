"""Warns of tokens outside a run's vocabulary, which the model reads as "<unk>"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from regard import progress
from regard.data.vocabulary import UNK, TokenizedText
from regard.errors import listed, shown

_SIDES = ("source", "target")
_UNITS = {"word": "words", "character": "characters"}
_MAX_EXAMPLES = 3
_MAX_COUNTED = 10_000  # distinct tokens, to bound memory


class UnknownTokenWarning:
    """Counts unknown tokens and warns of them at most twice.

    Args:
        kind: of the vocabulary.
        vocabulary: what messages call it.

    Example:
        >>> unknown = UnknownTokenWarning("word")
        >>> with progress.listening(lambda event: print(event.text)):
        ...     for number in (1, 2):
        ...         unknown.add(TokenizedText([4, UNK], ["a", "zebra"], [(0, 1), (2, 7)]), at_once=number)
        ...     unknown.tell()
        line 1: 1 of 2 words unknown to the source vocabulary: 'zebra' (the run expects words separated by spaces)
        2 of 4 words unknown to the source vocabulary, in 2 of 2 lines; most often 'zebra'
    """

    def __init__(self, kind: str, vocabulary: str = "source vocabulary") -> None:
        self._vocabulary = vocabulary
        self._unit = _UNITS.get(kind, "pieces")
        self._hint = " (the run expects words separated by spaces)" if kind == "word" else ""
        self._lines = self._affected = self._tokens = self._unknown = 0
        self._told = False
        self._examples: Counter[str] = Counter()

    def add(self, line: TokenizedText, *, at_once: int | None = None) -> None:
        """Count the tokens of a line.

        Args:
            line: its tokens.
            at_once: the line's number, from 1: warn now if it is the first with unknown tokens. None: only `tell` warns.
        """
        self._lines += 1
        self._tokens += len(line.ids)
        unknown = [piece for piece, index in zip(line.pieces, line.ids, strict=True) if index == UNK]
        if not unknown:
            return
        self._affected += 1
        self._unknown += len(unknown)
        if len(self._examples) < _MAX_COUNTED:
            self._examples.update(unknown)
        if at_once is not None and not self._told:
            self._told = True
            found = _examples(unknown)
            count = f"{len(unknown)} of {len(line.ids)} {self._unit}"
            progress.message(f"line {at_once}: {count} unknown to the {self._vocabulary}: {found}{self._hint}", warning=True)

    def tell(self) -> None:
        """Warn of all lines so far in one message, unless already warned."""
        if self._affected <= self._told:
            return
        count = f"{self._unknown} of {self._tokens} {self._unit}"
        found = _examples([piece for piece, _ in self._examples.most_common(_MAX_EXAMPLES)])
        where = f"in {self._affected} of {self._lines} lines"
        hint = "" if self._told else self._hint
        progress.message(f"{count} unknown to the {self._vocabulary}, {where}; most often {found}{hint}", warning=True)


def tell_unknown(kind: str, vocabulary: str, texts: Sequence[TokenizedText]) -> None:
    """Warn of the unknown tokens of a few texts.

    Args:
        kind: of the vocabulary.
        vocabulary: what messages call it.
        texts: in the order of their lines.

    Example:
        >>> with progress.listening(lambda event: print(event.text)):
        ...     tell_unknown("bpe", "vocabulary", [TokenizedText([4, UNK], ["a", "b"], [])])
        line 1: 1 of 2 pieces unknown to the vocabulary: 'b'
    """
    unknown = UnknownTokenWarning(kind, vocabulary)
    for text in texts:
        unknown.add(text, at_once=1 if len(texts) == 1 else None)
    unknown.tell()


class UnknownPairTokens:
    """Counts the tokens of given pairs that a translation model does not know, and warns of them by side.

    Args:
        vocabularies: of the run.
    """

    def __init__(self, vocabularies: Any) -> None:
        sides = [(getattr(vocabularies, name), f"{name} vocabulary") for name in _SIDES]
        self._sides = [(vocabulary, UnknownTokenWarning(vocabulary.kind, name)) for vocabulary, name in sides]

    def add(self, pairs: Sequence[tuple[str, str]], *, at_once: int | None = None) -> None:
        """Count the tokens of pairs, source and target; `at_once` as in `UnknownTokenWarning.add`."""
        for side, (vocabulary, unknown) in enumerate(self._sides):
            for pair in pairs:
                unknown.add(vocabulary.encode(pair[side]), at_once=at_once)

    def tell(self) -> None:
        """Warn of all pairs so far in one message a side."""
        for _, unknown in self._sides:
            unknown.tell()


def tell_unknown_pairs(vocabularies: Any, pairs: Sequence[tuple[str, str]]) -> None:
    """Warn of tokens of a few pairs that a model does not know, by side.

    Args:
        vocabularies: of a translation run.
        pairs: sources and targets.
    """
    unknown = UnknownPairTokens(vocabularies)
    unknown.add(pairs, at_once=1 if len(pairs) == 1 else None)
    unknown.tell()


def _examples(pieces: list[str]) -> str:
    return listed([shown(piece) for piece in dict.fromkeys(pieces)], most=_MAX_EXAMPLES)
