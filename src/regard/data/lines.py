r"""Reading text line by line, the same way for every file and for standard input.

A line ends at a line feed and nowhere else. Python's text mode also splits at a lone carriage return, `str.splitlines`
at ten more characters; with either, the lines of two parallel files stop matching.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gzip
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from regard.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
# Every character that some reader takes for the end of a line (str.splitlines, browsers, C strings).
_BREAKS = str.maketrans(dict.fromkeys("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0", " "))


def read_lines(path: str | Path) -> list[str]:
    r"""Read a text file, or a gzip file when the name ends in `.gz`, as a list of lines.

    Bytes are split at `b"\n"` only. A byte order mark at the start and one `"\r"` at the end of a line are removed;
    bytes that are not UTF-8 become U+FFFD. A last line without a line feed counts; nothing else is removed, so a line
    may be empty or hold any other control character.

    Args:
        path: the file; `-` is an ordinary file name here.

    Returns:
        The lines without their ends; an empty file gives an empty list.

    Raises:
        DataError: the file is missing, is a folder, may not be read, or is named `.gz` and is not whole gzip data; the
            message holds the path, and for damaged data the last line that could be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.txt").write_bytes(b"one\r\ntwo\x0bthree\n\nend")
        ...     read_lines(Path(folder, "a.txt"))
        ['one', 'two\x0bthree', '', 'end']
    """
    lines: list[str] = []
    try:
        with open(path, "rb") as raw:
            if not str(path).endswith(".gz"):
                lines.extend(iter_lines(raw))
            elif raw.peek(2)[:2] != _GZIP_MAGIC:
                raise DataError(f"{path}: expected gzip data (by its name), found something else")
            else:
                with gzip.GzipFile(fileobj=raw) as stream:
                    lines.extend(iter_lines(cast(BinaryIO, stream)))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated gzip data after line {len(lines)}") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    return lines


def iter_lines(stream: BinaryIO) -> Iterator[str]:
    r"""Yield the lines of a binary stream by the rules of `read_lines`, one in memory at a time.

    Args:
        stream: anything that gives bytes up to each line feed when iterated (`sys.stdin.buffer`).

    Returns:
        An iterator over the lines; an empty stream yields nothing.

    Example:
        >>> import io
        >>> list(iter_lines(io.BytesIO(b"\xef\xbb\xbfa\rb\r\n\xff")))
        ['a\rb', '�']
    """
    for number, raw in enumerate(cast(Iterable[bytes], stream)):
        line = raw.removeprefix(codecs.BOM_UTF8) if number == 0 else raw
        if not line:  # a byte order mark and nothing after it: no line
            continue
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="replace")


def single_line(text: str) -> str:
    r"""Replace each character that some reader takes for a line end (and NUL) by a space; the length stays.

    Args:
        text: any text.

    Returns:
        The text, safe to print as exactly one line; an empty text stays empty.

    Example:
        >>> single_line("a\r\nb\u2028c\0")
        'a  b c '
    """
    return text.translate(_BREAKS)


def whole_characters(text: str) -> str:
    r"""Replace lone surrogates, which cannot be written as UTF-8, by U+FFFD; the length stays.

    They come in through JSON (`"\ud800"`) or from a program, never from the bytes of a text file.

    Example:
        >>> whole_characters("a\ud800b")
        'a�b'
    """
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return text


def write_files(contents: Mapping[Path, bytes]) -> None:
    r"""Write files so that each is there whole or not at all: all under temporary names first, then renamed.

    A link is followed, and what is no ordinary file (a pipe, `/dev/null`) is written to, not replaced.

    Args:
        contents: the bytes of each path; missing folders are made.

    Raises:
        DataError: a folder or file cannot be written; names it. No temporary file is left.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_files({Path(folder, "a.txt"): b"one\n"})
        ...     read_lines(Path(folder, "a.txt"))
        ['one']
    """
    temporary: dict[Path, Path] = {}
    path = Path()
    try:
        for path, data in contents.items():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a folder")
            if path.exists() and not path.is_file():
                path.write_bytes(data)
                continue
            place = path.resolve()
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary[place] = place.with_name(f".{place.name}.{uuid.uuid4().hex[:12]}")
            with open(temporary[place], "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        for path, written in temporary.items():
            os.replace(written, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        for written in temporary.values():
            with contextlib.suppress(OSError):
                written.unlink(missing_ok=True)


def unreadable(path: str | Path, error: Exception) -> DataError:
    """Return the error to raise when `path` cannot be opened or read: one line, naming the file and the reason.

    Example:
        >>> str(unreadable("a.txt", FileNotFoundError()))
        'a.txt: no such file'
    """
    if isinstance(error, DataError):
        return error
    reasons: dict[type, str] = {
        FileNotFoundError: "no such file",
        IsADirectoryError: "expected a file, found a folder",
        PermissionError: "no permission to read it",
    }
    reason = reasons.get(type(error)) or (isinstance(error, OSError) and error.strerror) or str(error)
    shown = repr(str(path)) if not str(path) or "\0" in str(path) else path
    return DataError(f"{shown}: {reason}")
