"""What is not UTF-8: a damaged line, or a file in another encoding."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from itertools import islice

from regard.errors import DataError

SAMPLE = 2000
"""Number of lines read to tell."""
LEAST, SHARE = 20, 0.1
"""Number and share of lines that are not UTF-8, from which on a file is refused."""


def refuse_other_encoding(lines: Iterable[bytes], path: str) -> None:
    """Refuse a file whose first lines are mostly in another encoding.

    Args:
        lines: of the file.
        path: its name, for errors.

    Raises:
        DataError: they begin as UTF-16 does; or of the first `SAMPLE` lines at least `LEAST`, and more than `SHARE` of them, are not UTF-8.

    Example:
        >>> refuse_other_encoding(["größer".encode()] * 30, "a.txt")
    """
    sample = list(islice(lines, SAMPLE))
    if sample and sample[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in b"".join(sample[:2]):
        raise DataError(f"{path}: is UTF-16, which Windows calls Unicode; save it as UTF-8, such as by iconv -f UTF-16 -t UTF-8")
    wrong = sum(not _is_utf8(line) for line in sample)
    if wrong >= LEAST and wrong > SHARE * len(sample):
        advice = "save it as UTF-8, such as by iconv -f WINDOWS-1252 -t UTF-8 (labelled examples: or give data.encoding=latin-1)"
        raise DataError(f"{path}: {wrong} of the first {len(sample)} lines are not UTF-8, perhaps Windows-1252; {advice}")


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
