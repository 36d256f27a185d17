"""Token sequences concatenated in one array, in memory or in partially mapped files."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol, overload

import numpy as np

from regard.errors import DataError

_RELEASE = 512
"""Sequences after which mapped pages are released: some 60 MB, reloaded in about a millisecond."""


class FlatTokens(Sequence[np.ndarray]):
    """N token sequences in one array; sequence i is `ids[offsets[i] - offsets[0] : offsets[i + 1] - offsets[0]]`.

    Takes two to four bytes per token and eight per sequence; lists of Python integers take eight and 56.

    Args:
        ids: concatenated tokens of all sequences.
        offsets: (N + 1,) int64, start of each sequence, and the end of the last; `offsets[0]` may be any number.

    Example:
        >>> tokens = FlatTokens.of([[5, 6], [], [7]])
        >>> len(tokens), tokens[0].tolist(), tokens.lengths.tolist()
        (3, [5, 6], [2, 0, 1])
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids, self.offsets = ids, offsets
        self._base, self._read = int(offsets[0]), 0

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> FlatTokens:
        """Join lists of token ids."""
        rows = list(rows)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return cls(ids, sequence_offsets(lengths))

    @classmethod
    def joined(cls, parts: Sequence[FlatTokens]) -> FlatTokens:
        """Concatenate the sequences of several arrays.

        Example:
            >>> [row.tolist() for row in FlatTokens.joined([FlatTokens.of([[5]]), FlatTokens.of([[], [6, 7]])])]
            [[5], [], [6, 7]]
        """
        return cls(np.concatenate([part.ids for part in parts]), sequence_offsets(np.concatenate([part.lengths for part in parts])))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, (N,) int64."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> FlatTokens: ...
    def __getitem__(self, index: int | slice) -> np.ndarray | FlatTokens:
        if isinstance(index, slice):
            return self.chosen(np.arange(len(self))[index])
        place = range(len(self))[index]
        return self.ids[self.offsets[place] - self._base : self.offsets[place + 1] - self._base]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[number] for number in range(len(self)))

    def rows(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Return the sequences of a batch, and release mapped pages now and then.

        Sequences of a batch are scattered over the files, and the system maps 64 KiB around each.
        """
        self._read += len(numbers)
        if self._read >= _RELEASE:
            self._read = 0
            self.release()
        return [self[number] for number in numbers]

    def chosen(self, rows: np.ndarray) -> FlatTokens:
        """Copy the sequences selected by (M,) integers or (N,) booleans."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        lengths = self.lengths[rows]
        offsets = sequence_offsets(lengths)
        places = np.repeat(self.offsets[:-1][rows] - self._base - offsets[:-1], lengths)
        places += np.arange(len(places))
        return FlatTokens(self.ids[places], offsets)

    def release(self) -> None:
        """Release pages of mapped files, which count as this process' memory; they are read again on access."""
        for part in (self.ids, self.offsets):
            if isinstance(part.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
                part.base.madvise(mmap.MADV_DONTNEED)

    def part(self, start: int, stop: int) -> FlatTokens:
        """Return sequences `start` to `stop` without copying them."""
        offsets = self.offsets[start : stop + 1]
        return FlatTokens(self.ids[offsets[0] - self._base : offsets[-1] - self._base], offsets)


class PackedTexts(Sequence[str]):
    r"""N texts in one array of UTF-8 bytes, decoded on access.

    Args:
        utf8: the bytes of each text.

    Example:
        >>> texts = PackedTexts.of(["a", "", "\u00e4"])
        >>> texts[2], list(texts), texts.utf8.ids.nbytes
        ('\xe4', ['a', '', '\xe4'], 3)
    """

    def __init__(self, utf8: FlatTokens) -> None:
        self.utf8 = utf8

    @classmethod
    def of(cls, texts: Iterable[str]) -> PackedTexts:
        """Pack texts; file names may hold bytes that are not UTF-8."""
        packer = TextPacker()
        for text in texts:
            packer.append(text)
        return packer.packed()

    def chosen(self, rows: np.ndarray) -> PackedTexts:
        """Copy the texts selected by (M,) integers or (N,) booleans."""
        numbers = np.flatnonzero(rows) if rows.dtype == bool else rows
        # In parts, because the selection lists every byte.
        parts = [numbers[start : start + 1024] for start in range(0, max(1, len(numbers)), 1024)]
        return PackedTexts(FlatTokens.joined([self.utf8.chosen(part) for part in parts]))

    def __len__(self) -> int:
        return len(self.utf8)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self.utf8[index].tobytes().decode("utf-8", "surrogateescape")


class TextPacker:
    """Collect texts for `PackedTexts`, one by one."""

    def __init__(self) -> None:
        self._bytes, self._ends = bytearray(), array("q", [0])

    def append(self, text: str) -> None:
        """Add a text."""
        self._bytes += text.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._bytes))

    def packed(self) -> PackedTexts:
        """Return what was added."""
        return PackedTexts(FlatTokens(np.frombuffer(self._bytes, np.uint8), np.frombuffer(self._ends, np.int64)))


class TokenSource(Protocol):
    """Interface of token sequences: `FlatTokens`, or `TokenFile` on disk."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> FlatTokens:
        """Return sequences `start` to `stop`."""
        ...


class TokenFile:
    """Token sequences in two files, NAME.ids and NAME.offsets; only parts in use are memory-mapped.

    Pages that were read count as this process' memory, so released parts are unmapped.

    Args:
        path: NAME, without an ending.
        dtype: dtype of the ids.

    Raises:
        DataError: a file is missing or is too short.
    """

    def __init__(self, path: Path, dtype: str) -> None:
        self.path, self.dtype = path, np.dtype(dtype)
        self._count = _size(path.with_suffix(".offsets")) // 8 - 1
        if self._count < 0 or _size(path.with_suffix(".ids")) != self._offsets(self._count, 1)[0] * self.dtype.itemsize:
            raise DataError(f"{path.with_suffix('.ids')}: not as long as {path.with_suffix('.offsets')} says")

    def __len__(self) -> int:
        return self._count

    def part(self, start: int, stop: int) -> FlatTokens:
        """Map sequences `start` to `stop`."""
        offsets = self._offsets(start, stop - start + 1)
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        if not count:  # an empty range cannot be mapped
            return FlatTokens(np.zeros(0, self.dtype), offsets)
        place = first * self.dtype.itemsize
        return FlatTokens(np.memmap(self.path.with_suffix(".ids"), self.dtype, "r", place, (count,)), offsets)

    def whole(self) -> FlatTokens:
        """Map all sequences."""
        return self.part(0, len(self))

    def _offsets(self, start: int, count: int) -> np.ndarray:
        return np.memmap(self.path.with_suffix(".offsets"), np.int64, "r", start * 8, (count,))


class TokenWriter:
    """Write blocks of sequences for `TokenFile`.

    Args:
        path: NAME, without an ending; its folder is there.
        dtype: dtype of the ids; see `smallest_dtype`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with TokenWriter(Path(folder, "source"), "uint16") as writer:
        ...         writer.append(FlatTokens.of([[5, 6], [7]]))
        ...     TokenFile(Path(folder, "source"), "uint16").part(1, 2)[0].tolist()
        [7]
    """

    def __init__(self, path: Path, dtype: str) -> None:
        self._ids, self._offsets = open(path.with_suffix(".ids"), "wb"), open(path.with_suffix(".offsets"), "wb")  # noqa: SIM115
        self._dtype = np.dtype(dtype)
        self._end = 0
        self._offsets.write(np.zeros(1, np.int64).tobytes())

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.close()
        self._offsets.close()

    def append(self, tokens: FlatTokens) -> None:
        """Append sequences."""
        self._ids.write(tokens.ids.astype(self._dtype).tobytes())
        self._offsets.write((tokens.offsets[1:] - tokens.offsets[0] + self._end).astype(np.int64).tobytes())
        self._end += len(tokens.ids)


def write_tokens(path: Path, tokens: FlatTokens) -> None:
    """Write sequences for `TokenFile`, with their own dtype."""
    with TokenWriter(path, tokens.ids.dtype.name) as writer:
        writer.append(tokens)


def smallest_dtype(size: int) -> str:
    """Return the smallest integer type for the ids of a vocabulary of `size` entries.

    Example:
        >>> smallest_dtype(8000), smallest_dtype(100_000)
        ('uint16', 'int32')
    """
    return "uint16" if size <= 2**16 else "int32"


def sequence_offsets(lengths: np.ndarray) -> np.ndarray:
    """Return the offsets of sequences of these lengths: (N + 1,) int64.

    Example:
        >>> sequence_offsets(np.array([2, 0, 1])).tolist()
        [0, 2, 2, 3]
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: missing ({error.strerror})") from error
