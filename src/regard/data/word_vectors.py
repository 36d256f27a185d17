"""Pretrained word vectors in the text format of GloVe and word2vec."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from regard.data.lines import is_gzip, iter_lines, unreadable
from regard.errors import DataError
from regard.input_files import open_input
from regard.progress import track


class WordVectors(NamedTuple):
    """Vectors of the requested words.

    Attributes:
        path: source file.
        vectors: word to (dim,) float32; only words that the file has, as it writes them or in lower case.
        dim: size of a vector.
        lines: vectors in the file.
    """

    path: str
    vectors: dict[str, np.ndarray]
    dim: int
    lines: int


def read_vectors(path: str | Path, words: Collection[str]) -> WordVectors:
    r"""Read vectors of given words; a line is a word and its numbers, separated by single spaces.

    Skips word2vec's header line (count and size). Words may contain spaces, as in GloVe: numbers are counted from the line's end. Repeated
    words keep their first vector. Words missing in their spelling are looked up in lower case. Memory is needed for the requested vectors
    only.

    Args:
        path: the file; its name may end in `.gz`.
        words: words to keep.

    Returns:
        The vectors found, possibly none.

    Raises:
        DataError: the file cannot be read, has no vector, or a line has another number of numbers than the first, or something else in
            their place.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.txt").write_text("dog 1 2\ncat 3 4\n")
        ...     found = read_vectors(Path(folder, "a.txt"), ["Cat", "cow"])
        >>> found.vectors, found.dim
        ({'Cat': array([3., 4.], dtype=float32)}, 2)
    """
    wanted: dict[str, list[str]] = {}
    for word in words:
        for form in {word, word.lower()}:
            wanted.setdefault(form, []).append(word)
    exact: dict[str, np.ndarray] = {}
    lower: dict[str, np.ndarray] = {}
    dim = count = 0
    for number, line in enumerate(track(_stream(path), f"Reading {path}", unit="lines", block=256), start=1):
        where = f"{path}, line {number}"
        if number == 1 and _is_heading(line):
            continue
        if not dim:
            dim = _size(line, where)
        cells = line.rstrip(" ").rsplit(" ", dim)
        if len(cells) != dim + 1 or not cells[0]:
            raise DataError(f"{where}: expected a word and {dim} numbers with single spaces between them")
        count += 1
        for word in wanted.get(cells[0], ()):
            found = exact if word == cells[0] else lower
            if word not in found:
                found[word] = _numbers(cells[1:], where)
    if not count:
        raise DataError(f"{path}: no lines, expected a word and its numbers a line")
    return WordVectors(str(path), {**lower, **exact}, dim, count)


def _stream(path: str | Path) -> Iterator[str]:
    number = 0
    try:
        with open_input(path) as raw:
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_gzip(path, raw) else raw
            for number, line in enumerate(iter_lines(stream, Path(path)), start=1):  # noqa: B007 - an error tells how far it came
                yield line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated gzip data after line {number}") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def _is_heading(line: str) -> bool:
    cells = line.split()
    return len(cells) == 2 and all(cell.isascii() and cell.isdigit() for cell in cells)


def _size(line: str, where: str) -> int:
    # A word may hold spaces, and even numbers: the first line's cells behind the first one must all be numbers.
    cells = line.rstrip(" ").split(" ")
    if len(cells) < 2:
        raise DataError(f"{where}: expected a word and its numbers with single spaces between them")
    _numbers(cells[1:], where)
    return len(cells) - 1


def _numbers(cells: list[str], where: str) -> np.ndarray:
    try:
        vector = np.array([float(cell) for cell in cells], dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{where}: expected numbers behind the word ({error})") from error
    if not np.isfinite(vector).all():
        raise DataError(f"{where}: expected finite numbers behind the word")
    return vector
