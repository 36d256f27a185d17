"""Random access to images inside a tar, without unpacking."""

from __future__ import annotations

import bisect
import io
import os
import tarfile
import threading
import weakref
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from regard.data.lines import unreadable
from regard.errors import DataError

# Uncompressed bytes between two restart points of decompression, about 50 kB of memory each.
POINT_EVERY = 4 * 2**20
CHUNK = 64 * 1024
# zlib's own data after a gzip header.
GZIP = 16 + zlib.MAX_WBITS
# Larger members are not photographs; members are read into memory entirely.
MAX_MEMBER = 256 * 2**20


class ImageArchive:
    """The files of a `.tar`, `.tar.gz` or `.tgz`, in the order of the archive, indexed once and read in any order.

    Names are as in the archive, without a leading `./`, links and folders. Threads, and processes that were forked, may read it together.

    Args:
        path: the archive; its first bytes determine the compression.

    Raises:
        DataError: the file is missing or not a complete tar.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with tarfile.open(Path(folder, "a.tgz"), "w:gz") as tar:
        ...         info = tarfile.TarInfo("./x.txt")
        ...         info.size = 5
        ...         tar.addfile(info, io.BytesIO(b"hello"))
        ...     archive = ImageArchive(Path(folder, "a.tgz"))
        ...     list(archive.names), archive["x.txt"].read()
        (['x.txt'], b'hello')
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self._stream = _open_stream(self.path)
            self._places = _index(self._stream)
        except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
            if isinstance(error, OSError) and error.errno:
                raise unreadable(path, error) from error
            raise DataError(f"{path}: expected a whole .tar, .tar.gz or .tgz ({error})") from error
        self._absolute = os.path.abspath(path)
        _OPEN.add(self)

    def _reopen(self) -> None:
        # A forked process needs a file of its own, since the place in it is shared; and a lock, which nobody may be left to let go.
        self._lock = threading.Lock()
        if isinstance(self._stream, _SeekableGzip):
            self._stream.reopen(self._absolute)
        else:
            self._stream = open(self._absolute, "rb")  # noqa: SIM115

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self._stream.close()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all files, in the order of the archive."""
        return tuple(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __getitem__(self, name: str) -> ArchivedImage:
        if name not in self._places:
            raise DataError(f"{self.path}: no {name} among its {len(self)} files")
        return ArchivedImage(self, name, *self._places[name])

    def read_at(self, offset: int, length: int) -> bytes:
        """Return `length` bytes of the uncompressed archive from `offset`.

        Raises:
            DataError: the archive is too short or can no longer be read.

        Example: see the class.
        """
        try:
            with self._lock:
                self._stream.seek(offset)
                data = self._stream.read(length)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise DataError(f"{self.path}: cannot be read at byte {offset} ({error})") from error
        if len(data) != length:
            raise DataError(f"{self.path}: ends at byte {offset + len(data)}, expected {offset + length} bytes")
        return data


_OPEN: weakref.WeakSet[ImageArchive] = weakref.WeakSet()


def _reopen_all() -> None:
    for archive in list(_OPEN):
        archive._reopen()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):  # Windows forks no process
    os.register_at_fork(after_in_child=_reopen_all)


@dataclass(frozen=True)
class ArchivedImage:
    """One file inside an archive: its `name`, where its bytes start and how many there are. `str()` names archive and file."""

    archive: ImageArchive = field(compare=False, repr=False)
    name: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.archive.path}: {self.name}"

    def read(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            DataError: the file exceeds the maximum image size, or the archive can no longer be read.

        Example: see `ImageArchive`.
        """
        if self.length > MAX_MEMBER:
            raise DataError(f"{self}: {self.length} bytes, expected at most {MAX_MEMBER} of an image in an archive")
        return self.archive.read_at(self.offset, self.length)


def _open_stream(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: expected a tar, found a folder" if path.is_dir() else f"{path}: expected a tar")
    raw = open(path, "rb")  # noqa: SIM115  it stays open as long as the archive
    if raw.peek(2)[:2] != b"\x1f\x8b":
        return raw
    return cast(BinaryIO, _SeekableGzip(raw))


def _index(stream: BinaryIO) -> dict[str, tuple[int, int]]:
    """Return offset and length of every file; among equal names the last wins, as in unpacking."""
    places: dict[str, tuple[int, int]] = {}
    with tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in tar:
            if member.isreg():
                places[member.name.removeprefix("./")] = (member.offset_data, member.size)
            # For a million files the list of members would take hundreds of megabytes.
            tar.members = []  # type: ignore[attr-defined]
    # The gzip checksum comes after the end of the tar.
    while isinstance(stream, _SeekableGzip) and stream.read(CHUNK):
        pass
    return places


class _SeekableGzip(io.RawIOBase):
    """A gzip file with random access: stores the decompressor's state every few megabytes."""

    def __init__(self, raw: BinaryIO) -> None:
        super().__init__()
        self._raw = raw
        self._size: int | None = None
        self._states: list[tuple[int, int, Any]] = [(0, 0, zlib.decompressobj(GZIP))]
        self._wanted = 0
        self._restore(0)

    def reopen(self, path: str) -> None:
        """Read another file object of the same file from now on."""
        self._raw = open(path, "rb")  # noqa: SIM115
        self._restore(0)

    def close(self) -> None:
        self._raw.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._wanted

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != io.SEEK_SET:
            raise ValueError("expected a place counted from the start")
        self._wanted = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        self._go_to(self._wanted)
        start = self._wanted - self._start
        data = self._block[start : start + len(view)]
        view[: len(data)] = data
        self._wanted += len(data)
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        parts, left = [], size
        while left and (part := super().read(min(left, CHUNK) if left > 0 else CHUNK)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _go_to(self, place: int) -> None:
        """Load the block of uncompressed bytes that contains `place`; empty at the end of the file."""
        nearest = bisect.bisect_right(self._states, place, key=lambda state: state[0]) - 1
        if place < self._start or self._states[nearest][0] > self._start + len(self._block):
            self._restore(nearest)
        while place >= self._start + len(self._block) and self._next_block():
            pass

    def _restore(self, number: int) -> None:
        self._start, self._position, state = self._states[number]
        self._decompressor = state.copy()
        self._block = b""

    def _next_block(self) -> bool:
        self._start += len(self._block)
        self._block = b""
        if self._start >= self._states[-1][0] + POINT_EVERY and not self._decompressor.eof:
            self._states.append((self._start, self._position, self._decompressor.copy()))
        while not self._block:
            waiting = self._decompressor.unconsumed_tail
            if not waiting:
                self._raw.seek(self._position)
                waiting = self._raw.read(CHUNK)
                self._position += len(waiting)
            if self._decompressor.eof:
                waiting = (self._decompressor.unused_data + waiting).lstrip(b"\0")  # padding may follow a member
                if not waiting:
                    return False
                self._decompressor = zlib.decompressobj(GZIP)
            elif not waiting:
                raise EOFError("truncated gzip data")
            self._block = self._decompressor.decompress(waiting, 16 * CHUNK)
        return True
