"""Compact storage of labelled examples: a million take little more memory than their file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np

from regard.data.lines import whole_characters
from regard.data.token_arrays import FlatTokens

_ROWS = 1024
"""Examples that are copied at a time."""


class LabelledExample(NamedTuple):
    """A label and its text, or its premise and hypothesis; `line` counts from 1."""

    label: str
    texts: tuple[str, ...]
    line: int


class ExampleList(Sequence[LabelledExample]):
    """N labelled examples, created from arrays on access.

    Args:
        names: the labels, in the order of their first use.
        codes: (N,) label index of each example.
        lines: (N,) line number of each example, from 1.
        texts: UTF-8 bytes, per text of an example (one or two).

    Example:
        >>> examples = ExampleList.of([LabelledExample("good", ("a joy",), 1), LabelledExample("bad", ("a bore",), 2)])
        >>> examples[1], examples.chosen(np.array([1])).names
        (LabelledExample(label='bad', texts=('a bore',), line=2), ['good', 'bad'])
    """

    def __init__(self, names: list[str], codes: np.ndarray, lines: np.ndarray, texts: Sequence[FlatTokens]) -> None:
        self.names, self.codes, self.lines, self.texts = names, codes, lines, tuple(texts)

    @classmethod
    def of(cls, examples: Iterable[LabelledExample]) -> ExampleList:
        """Pack examples with equal numbers of texts; an `ExampleList` is returned unchanged."""
        if isinstance(examples, ExampleList):
            return examples
        numbers: dict[str, int] = {}
        codes, lines, found, ends = array("i"), array("q"), [], []
        for label, texts, line in examples:
            if not found:
                found, ends = [bytearray() for _ in texts], [array("q", [0]) for _ in texts]
            codes.append(numbers.setdefault(label, len(numbers)))
            lines.append(line)
            for text, whole, own in zip(texts, found, ends, strict=True):
                whole.extend(whole_characters(text).encode())
                own.append(len(whole))
        packed = [FlatTokens(np.frombuffer(text, np.uint8), np.frombuffer(own, np.int64)) for text, own in zip(found, ends, strict=True)]
        return cls(list(numbers), np.frombuffer(codes, np.int32), np.frombuffer(lines, np.int64), packed)

    def chosen(self, rows: np.ndarray) -> ExampleList:
        """Select examples by (M,) integers or (N,) booleans; label indices do not change."""
        numbers = np.flatnonzero(rows) if rows.dtype == bool else rows
        # In parts, because the selection lists every byte.
        parts = [numbers[start : start + _ROWS] for start in range(0, max(1, len(numbers)), _ROWS)]
        texts = [FlatTokens.joined([text.chosen(part) for part in parts]) for text in self.texts]
        return ExampleList(self.names, self.codes[numbers], self.lines[numbers], texts)

    def side(self, number: int, start: int, stop: int) -> list[bytes]:
        """Return one of the texts of examples `start` to `stop`, in UTF-8."""
        return [text.tobytes() for text in self.texts[number].part(start, min(stop, len(self)))]

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, index: int) -> LabelledExample: ...
    @overload
    def __getitem__(self, index: slice) -> list[LabelledExample]: ...
    def __getitem__(self, index: int | slice) -> LabelledExample | list[LabelledExample]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        texts = tuple(text[index].tobytes().decode() for text in self.texts)
        return LabelledExample(self.names[self.codes[index]], texts, int(self.lines[index]))

    def __iter__(self) -> Iterator[LabelledExample]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
