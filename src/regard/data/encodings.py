"""What is not UTF-8: a damaged line, or a file in another encoding."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from regard.errors import DataError

SAMPLE = 2000
"""Number of lines read to tell."""
LEAST, SHARE = 20, 0.1
"""Number and share of lines that are not UTF-8, from which on a file is refused."""
NULS = 0.3
"""Share of NUL bytes from which on text is UTF-16 or UTF-32; Latin letters have a half or more."""


def refuse_other_encoding(lines: Iterable[bytes], path: str) -> None:
    """Refuse a file whose first lines are mostly in another encoding.

    Args:
        lines: of the file.
        path: its name, for errors.

    Raises:
        DataError: they begin as UTF-16 or UTF-32 does, or many of their bytes are NUL; or of the first `SAMPLE` lines at least `LEAST`, and
            more than `SHARE` of them, are not UTF-8.

    Example:
        >>> refuse_other_encoding(["größer".encode()] * 30, "a.txt")
    """
    sample = list(islice(lines, SAMPLE))
    refuse_binary(sample, path)
    wrong = sum(not _is_utf8(line) for line in sample)
    if wrong >= LEAST and wrong > SHARE * len(sample):
        advice = "save it as UTF-8, such as by iconv -f WINDOWS-1252 -t UTF-8"
        raise DataError(f"{path}: {wrong} of the first {len(sample)} lines are not UTF-8, perhaps Windows-1252; {advice}")


def refuse_binary(sample: Sequence[bytes], path: str) -> None:
    """Refuse lines of UTF-16 or UTF-32, or of a zip archive.

    Raises:
        DataError: they begin as an archive, or as these do and have a NUL; or more than `NULS` of their bytes are NUL.

    Example:
        >>> refuse_binary(["a b".encode("utf-16-le")], "a.txt")
        Traceback (most recent call last):
            ...
        regard.errors.DataError: a.txt: is UTF-16, which Windows calls Unicode; save it as UTF-8, such as by iconv -f UTF-16LE -t UTF-8
    """
    start, whole = sample[0] if sample else b"", b"".join(sample)
    if start.startswith(b"PK\3\4"):
        raise DataError(f"{path}: is a zip archive, as spreadsheets are; export the sheet as CSV in UTF-8")
    if b"\0" not in whole:
        return
    marked = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE))
    if marked or whole.count(b"\0") > NULS * len(whole):
        wide = whole.count(b"\0\0") * 5 > len(whole)
        order = "" if marked else "LE" if whole[1:2] == b"\0" else "BE"
        form = "UTF-32" if wide else "UTF-16"
        windows = "" if wide else ", which Windows calls Unicode"
        raise DataError(f"{path}: is {form}{windows}; save it as UTF-8, such as by iconv -f {form}{order} -t UTF-8")


def all_utf8(lines: Iterable[bytes]) -> bool:
    """Return whether lines are UTF-8 beyond doubt: they have other characters than those of ASCII, and all of these are UTF-8.

    Example:
        >>> all_utf8(["gr\u00fcn".encode()]), all_utf8(["gr\u00fcn".encode("latin-1")]), all_utf8([b"green"])
        (True, False, False)
    """
    other = [line for line in lines if not line.isascii()]
    return bool(other) and all(map(_is_utf8, other))


class Validation:
    r"""Finds the first line of a file that is not UTF-8, a chunk at a time.

    Args:
        report: receives its number, from 1.

    Example:
        >>> found = []
        >>> Validation(found.append).check(b"a\n\xff", 3)
        >>> found
        [5]
    """

    def __init__(self, report: Callable[[int], object]) -> None:
        self._report, self._rest, self._found = report, b"", False

    def check(self, chunk: bytes, lines: int) -> None:
        """Check a chunk before which there were `lines` line feeds; empty: the end. A character may lie across two chunks."""
        if self._found or (not self._rest and chunk.isascii()):
            return
        whole = self._rest + chunk
        try:
            _, used = codecs.utf_8_decode(whole, "strict", not chunk)
        except UnicodeDecodeError as error:
            self._found = True
            self._report(lines + whole.count(b"\n", 0, error.start) + 1)
        else:
            self._rest = whole[used:]


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
