"""Compact storage of labelled examples: a million take little more memory than their file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np

from regard.data.lines import whole_characters
from regard.data.token_arrays import PackedTexts, TextPacker


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
        texts: the texts, per text of an example (one or two).

    Example:
        >>> examples = ExampleList.of([LabelledExample("good", ("a joy",), 1), LabelledExample("bad", ("a bore",), 2)])
        >>> examples[1], examples.chosen(np.array([1])).names
        (LabelledExample(label='bad', texts=('a bore',), line=2), ['good', 'bad'])
    """

    def __init__(self, names: list[str], codes: np.ndarray, lines: np.ndarray, texts: Sequence[PackedTexts]) -> None:
        self.names, self.codes, self.lines, self.texts = names, codes, lines, tuple(texts)

    @classmethod
    def of(cls, examples: Iterable[LabelledExample]) -> ExampleList:
        """Pack examples with equal numbers of texts; an `ExampleList` is returned unchanged."""
        if isinstance(examples, ExampleList):
            return examples
        numbers: dict[str, int] = {}
        codes, lines = array("i"), array("q")
        found: list[TextPacker] = []
        for label, texts, line in examples:
            found = found or [TextPacker() for _ in texts]
            codes.append(numbers.setdefault(label, len(numbers)))
            lines.append(line)
            for text, packer in zip(texts, found, strict=True):
                packer.append(whole_characters(text))
        packed = [packer.packed() for packer in found]
        return cls(list(numbers), np.frombuffer(codes, np.int32), np.frombuffer(lines, np.int64), packed)

    def chosen(self, rows: np.ndarray) -> ExampleList:
        """Select examples by (M,) integers or (N,) booleans; label indices do not change."""
        return ExampleList(self.names, self.codes[rows], self.lines[rows], [text.chosen(rows) for text in self.texts])

    def side(self, number: int, start: int, stop: int) -> list[bytes]:
        """Return one of the texts of examples `start` to `stop`, in UTF-8."""
        return [text.tobytes() for text in self.texts[number].utf8.part(start, min(stop, len(self)))]

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, index: int) -> LabelledExample: ...
    @overload
    def __getitem__(self, index: slice) -> list[LabelledExample]: ...
    def __getitem__(self, index: int | slice) -> LabelledExample | list[LabelledExample]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        texts = tuple(text[index] for text in self.texts)
        return LabelledExample(self.names[self.codes[index]], texts, int(self.lines[index]))

    def __iter__(self) -> Iterator[LabelledExample]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
