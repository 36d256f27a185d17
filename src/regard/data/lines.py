r"""Reading text line by line, the same way for every file and for standard input.

A line ends at a line feed and nowhere else. Python's text mode also splits at a lone carriage return, `str.splitlines`
at ten more characters; with either, the lines of two parallel files stop matching.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import glob
import gzip
import hashlib
import io
import os
import re
import stat
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from regard.data.encodings import Validation, refuse_binary, refuse_other_encoding
from regard.errors import DataError, os_reason
from regard.input_files import check_name, is_device, open_input
from regard.progress import message, stage

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 26
"""Max bytes of a line, without which input that has no line feed, such as /dev/zero, would fill the memory."""
_GZIP_MAGIC = b"\x1f\x8b"
# Every character that some reader treats as a line end (str.splitlines, browsers, C strings).
_BREAKS = str.maketrans(dict.fromkeys("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0", " "))

# The first invalid line of each file that was reported: files are read several times.
_REPORTED: set[tuple[Path, int]] = set()


def read_lines(path: str | Path) -> list[str]:
    r"""Read a text file, or a gzip file when the name ends in `.gz`, as a list of lines.

    Splits bytes at `b"\n"` only. Removes a byte order mark at the start and one `"\r"` at line ends; replaces invalid UTF-8 by U+FFFD, with
    a warning, see `LineDecoder`. A last line without a line feed counts; lines may be empty or contain other control characters.

    Args:
        path: the file; `-` is an ordinary file name.

    Returns:
        The lines without line ends.

    Raises:
        DataError: the file is missing, a folder, not readable, or named `.gz` without complete gzip data, or a line is longer than
            `MAX_LINE_BYTES`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.txt").write_bytes(b"one\r\ntwo\x0bthree\n\nend")
        ...     read_lines(Path(folder, "a.txt"))
        ['one', 'two\x0bthree', '', 'end']
    """
    with stage(f"Reading {path}", unit="lines") as reading:
        return list(reading.track(stream_lines(path)))


def stream_lines(path: str | Path) -> Iterator[str]:
    r"""Yield the lines of `read_lines` without loading the file into memory.

    Raises:
        DataError: see `read_lines`; raised during iteration.

    Example:
        >>> import os
        >>> list(stream_lines(os.devnull))
        []
    """
    return _decoded(stream_bytes(path), Path(path))


class LineDecoder:
    r"""Decodes lines; the first one with invalid UTF-8 causes a warning that names it.

    Invalid bytes become U+FFFD, so no line is lost. Text in UTF-16 is refused (`regard.data.encodings.refuse_binary`).

    Args:
        name: name of the stream in the warnings; the path of a file, which is reported once per process, however often it is read.

    Example:
        >>> list(LineDecoder("a.txt").decode([b"one", b"caf\xc3\xa9"]))
        ['one', 'café']
    """

    def __init__(self, name: str | Path) -> None:
        self._name, self._number, self._bad = name, 0, 0
        self._silent = False

    def decode(self, lines: Iterable[bytes]) -> Iterator[str]:
        """Yield lines decoded; their numbers continue those of the call before."""
        number = self._number
        for number, line in enumerate(lines, start=self._number + 1):
            if number == 1:
                refuse_binary([line], str(self._name))
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError:
                text = line.decode("utf-8", errors="replace")
                self._bad += 1
                if self._bad == 1:
                    self._silent = not _first_report(self._name, number)
            yield text
        self._number = number

    def summarize(self) -> None:
        """Say at the end how many lines were not UTF-8, if more than one."""
        if self._bad > 1 and not self._silent:
            message(f"{self._name}: {self._bad} of {self._number} lines are not UTF-8", warning=True)


def _decoded(lines: Iterable[bytes], name: str | Path) -> Iterator[str]:
    decoder = LineDecoder(name)
    yield from decoder.decode(lines)
    decoder.summarize()


def _first_report(name: str | Path, line: int) -> bool:
    """Warn of the first line that is not UTF-8, unless it is that of a file and was reported before; refuse one in another encoding."""
    if isinstance(name, Path):
        if (name, line) in _REPORTED:
            return False
        if name.is_file():
            refuse_other_encoding(stream_bytes(name), str(name))
        _REPORTED.add((name, line))
    message(f"{name}, line {line}: not UTF-8; each invalid byte is read as U+FFFD", warning=True)
    return True


def stream_bytes(path: str | Path, *, mark: bool = True) -> Iterator[bytes]:
    r"""Yield the undecoded lines of `stream_lines`.

    Args:
        path: as for `read_lines`.
        mark: remove a byte order mark; False for text that is not UTF-8.

    Raises:
        DataError: see `read_lines`; raised during iteration.

    Example:
        >>> import os
        >>> list(stream_bytes(os.devnull))
        []
    """
    done = 0
    try:
        with open_input(path) as raw, _opened(path, raw, raw) as stream:
            for line in strip_ends(_whole_lines(stream, path), mark=mark):
                yield line
                done += 1
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated gzip data after line {done}") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def stream_chunks(path: str | Path) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked if they are gzip data.

    Raises:
        DataError: see `read_lines`; raised during iteration.

    Example:
        >>> import os
        >>> list(stream_chunks(os.devnull))
        []
    """
    try:
        with open_input(path) as raw, _opened(path, raw, raw) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated gzip data") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def scan_lines(path: str | Path, advance: Callable[[int], None] = lambda lines: None, *, text: bool = False) -> tuple[str, int]:
    r"""Hash a file, which is to be read again, and count its lines in one pass.

    Args:
        path: as for `read_lines`.
        advance: progress function, receives counted lines.
        text: warn of the first line that is not UTF-8, as `LineDecoder` does.

    Returns:
        The sha256 of the file as 64 hexadecimal digits, and the number of lines of `read_lines`.

    Raises:
        DataError: see `read_lines`; also for a pipe.

    Example:
        >>> import os
        >>> scan_lines(os.devnull)[1]
        0
    """
    stat_rereadable(path)
    lines, last, first = 0, b"\n", True
    valid = Validation(lambda line: _first_report(Path(path), line)) if text else None
    try:
        with open_input(path) as raw:
            digested = _Digested(raw)
            with _opened(path, raw, digested) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    if valid is not None:
                        valid.check(chunk, lines)
                    found = chunk.count(b"\n")
                    lines += found
                    advance(found)
                    last = b"" if first and chunk == codecs.BOM_UTF8 else chunk
                    first = False
                if valid is not None:
                    valid.check(b"", lines)
            while digested.read(CHUNK_BYTES):  # trailing bytes after compressed data
                pass
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated gzip data after line {lines}") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    return digested.sha256.hexdigest(), lines + bool(last and not last.endswith(b"\n"))


class _Digested:
    """A file that hashes (sha256) everything read from it."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self.sha256 = raw, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self.sha256.update(data)
        return data


@contextlib.contextmanager
def _opened(path: str | Path, file: io.BufferedReader, through: Any) -> Iterator[BinaryIO]:
    """Open a file's bytes through a wrapper, decompressed if they are gzip data."""
    if is_gzip(path, file):
        with gzip.GzipFile(fileobj=through) as stream:
            yield cast(BinaryIO, stream)
    else:
        yield through


def is_gzip(path: str | Path, file: io.BufferedReader) -> bool:
    """Return whether a file at its beginning is gzip data, under whatever name.

    Raises:
        DataError: its name ends in `.gz`, and it is not.

    Example:
        >>> is_gzip("a.txt", io.BufferedReader(io.BytesIO(gzip.compress(b"a"))))
        True
    """
    found = file.peek(2)[:2] == _GZIP_MAGIC
    if not found and str(path).lower().endswith(".gz"):
        raise DataError(f"{path}: expected gzip data (by its name), found something else")
    return found


def iter_lines(stream: BinaryIO, name: str | Path = "standard input") -> Iterator[str]:
    r"""Yield the lines of a binary stream by the rules of `read_lines`, one in memory at a time.

    Args:
        stream: an iterable of bytes up to each line feed (`sys.stdin.buffer`).
        name: its name in warnings, see `LineDecoder`.

    Returns:
        An iterator over the lines.

    Raises:
        DataError: a line is longer than `MAX_LINE_BYTES`; raised during iteration.

    Example:
        >>> import io
        >>> list(iter_lines(io.BytesIO(b"\xef\xbb\xbfa\rb\r\n\n")))
        ['a\rb', '']
    """
    return _decoded(strip_ends(_whole_lines(stream, name)), name)


def _whole_lines(stream: BinaryIO, name: str | Path) -> Iterator[bytes]:
    number = 1
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise line_too_long(name, number)
        yield line
        number += 1


def line_too_long(name: str | Path, number: int) -> DataError:
    """Return the error for a line of more than `MAX_LINE_BYTES`.

    Example:
        >>> str(line_too_long("a.txt", 3))
        'a.txt, line 3: longer than 67,108,864 bytes, the maximum; is it text with line feeds?'
    """
    return DataError(f"{name}, line {number}: longer than {MAX_LINE_BYTES:,} bytes, the maximum; is it text with line feeds?")


def strip_ends(raw: Iterable[bytes], *, mark: bool = True) -> Iterator[bytes]:
    r"""Yield lines without their ends, by the rules of `read_lines`.

    Args:
        raw: lines with their line feeds.
        mark: remove a byte order mark from the first.

    Example:
        >>> list(strip_ends([b"a\r\n", b"b"]))
        [b'a', b'b']
    """
    lines = iter(raw)
    for first in lines:
        line = first.removeprefix(codecs.BOM_UTF8) if mark else first
        if line:  # a byte order mark and nothing after it: no line
            yield line.removesuffix(b"\n").removesuffix(b"\r")
        break
    for line in lines:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def single_line(text: str) -> str:
    r"""Replace each character that some reader treats as a line end (and NUL) by a space, keeping the length.

    Args:
        text: any text.

    Returns:
        The text, safe to print as exactly one line.

    Example:
        >>> single_line("a\r\nb\u2028c\0")
        'a  b c '
    """
    return text.translate(_BREAKS)


def whole_characters(text: str) -> str:
    r"""Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD, keeping the length.

    They come from JSON (`"\ud800"`) or programs, never from text files.

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
    r"""Write files atomically: all under temporary names first, then renamed.

    Follows links; writes to special files (a pipe, `/dev/null`) instead of replacing them.

    Args:
        contents: bytes by path; creates missing folders.

    Raises:
        DataError: a folder or file cannot be written, or two paths are of one file. No temporary file is left.

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
            place = Path(os.path.realpath(path))  # of a loop of links: itself
            if place in temporary:
                raise DataError(f"{path}: another output is written to the same file")
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary[place] = _temporary(place)
            with open(temporary[place], "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        for path, written in temporary.items():
            os.replace(written, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({os_reason(path, error)})") from error
    finally:
        for written in temporary.values():
            with contextlib.suppress(OSError):
                written.unlink(missing_ok=True)


@contextlib.contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    r"""Open a file for atomic writing in a block; creates its folder.

    Raises:
        DataError: it cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open_whole(Path(folder, "a", "b.txt")) as stream:
        ...         _ = stream.write(b"one\n")
        ...     read_lines(Path(folder, "a", "b.txt"))
        ['one']
    """
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({os_reason(path, error)})") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    # Not by the process' number: processes in containers that share a folder have equal numbers.
    return path.with_name(f"{_stem(path.name)}{uuid.uuid4().hex[:12]}")


def _stem(name: str) -> str:
    # Names have at most 255 bytes; a digest stands for one that leaves no room. Longer names shall fail before anything is written.
    return f".{hashlib.sha256(os.fsencode(name)).hexdigest()}." if 240 < len(os.fsencode(name)) <= 255 else f".{name}."


def leftovers(path: Path) -> list[Path]:
    """Return the temporary files of `open_whole` and `write_files` for a path: of killed processes, or of those that are writing now.

    Example:
        >>> leftovers(Path("no-such-file"))
        []
    """
    found = path.parent.glob(glob.escape(_stem(path.name)) + "?" * 12)
    return [each for each in found if re.fullmatch("[0-9a-f]{12}", each.name[-12:])]


def stat_rereadable(path: str | Path) -> os.stat_result:
    """Return the state of a file that is read more than once.

    Raises:
        DataError: it is missing, or a pipe or a device, which cannot be read again (opening a pipe that nobody writes to waits for ever).

    Example:
        >>> stat_rereadable(os.devnull).st_size
        0
    """
    try:
        check_name(path)
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
        raise DataError(f"{path}: expected a file, which is read more than once, found a pipe; write its content to a file")
    if is_device(found):
        raise DataError(f"{path}: is a device, expected a file")
    return found


def unreadable(path: str | Path, error: Exception) -> DataError:
    """Return the error to raise when `path` cannot be opened or read: one line, naming the file and the reason.

    Example:
        >>> str(unreadable("a.txt", FileNotFoundError()))
        'a.txt: no such file'
    """
    if isinstance(error, DataError):
        return error
    reasons: dict[type, str] = {
        FileNotFoundError: "expected a file, not standard input" if str(path) == "-" else "no such file",
        IsADirectoryError: "expected a file, found a folder",
        PermissionError: "no permission to read it",
    }
    reason = reasons.get(type(error)) or (os_reason(path, error) if isinstance(error, OSError) else str(error))
    shown = repr(str(path)) if not str(path) or "\0" in str(path) else path
    return DataError(f"{shown}: {reason}")
