"""Cache of decoded images: a memory-mapped file of pixels at training size."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from regard import progress
from regard.data.image_archive import ArchivedImage
from regard.data.images import ImageSource, Preprocessing
from regard.data.lines import leftovers, open_whole, unreadable

# Part of the key, so that changes in decoding invalidate old files.
VERSION = 2
SUM = 32
"""Bytes of the sha256 at the end of the file."""
LEFTOVER_SECONDS = 3600
"""Age at which the temporary file of another process is that of a killed one."""


class ImageCache:
    """Decoded images in a cache file: `store[indices]` gives tensors, `store.pixels(indices)` bytes.

    The file name is a digest of the images (path, size, times and number of each file) and of the pixel preprocessing; mean and deviation
    do not matter. The file is written atomically, and reused by later processes if its sha256 is right.

    Args:
        sources: the images, in index order.
        preprocessing: the preprocessing.
        folder: cache folder; created if needed.

    Raises:
        DataError: an image cannot be read, or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (20, 10)).save(Path(folder, "a.png"))
        ...     store = ImageCache([Path(folder, "a.png")] * 3, Preprocessing(size=8), folder)
        ...     len(store), store[[2, 0]].shape
        (3, torch.Size([2, 3, 8, 8]))
    """

    def __init__(
        self,
        sources: Sequence[ImageSource],
        preprocessing: Preprocessing,
        folder: str | Path,
    ) -> None:
        self.preprocessing = preprocessing
        self.path = Path(folder) / f"images-{_digest(sources, preprocessing)}.pixels"
        shape = (len(sources), preprocessing.size, preprocessing.size, 3)
        size = int(np.prod(shape))
        if not _is_whole(self.path, size):
            _write(self.path, sources, preprocessing)
        try:
            self._pixels = np.memmap(self.path, np.uint8, "r", shape=shape) if size else np.zeros(shape, np.uint8)
        except (OSError, ValueError) as error:
            raise unreadable(self.path, error) from error

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        """Return normalized images: float32 (n, 3, size, size)."""
        return self.preprocessing.normalize(self.pixels(indices))

    def pixels(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return images before normalization: uint8 (n, size, size, 3), a copy.

        Args:
            indices: image indices, 0 to `len(store) - 1`, in any order, with repetition.

        Raises:
            IndexError: an index is out of range.
        """
        return np.asarray(self._pixels[np.asarray(indices, dtype=np.int64)])


def _digest(sources: Sequence[ImageSource], preprocessing: Preprocessing) -> str:
    digest = hashlib.sha256(f"{VERSION} {preprocessing.size} {preprocessing.fit} {preprocessing.keep} {preprocessing.resample}".encode())
    seen: dict[Path, str] = {}
    for source in sources:
        path = source.archive.path if isinstance(source, ArchivedImage) else Path(source)
        if path not in seen:
            seen[path] = _state(path)
        place = f"{source.name} {source.offset} {source.length}" if isinstance(source, ArchivedImage) else ""
        digest.update(f"\0{seen[path]}\0{place}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _state(path: Path) -> str:
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    # The time of the last change of anything, because programs that copy files set the other one.
    return f"{path.resolve()} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


def _is_whole(path: Path, size: int) -> bool:
    """Return whether a file holds `size` bytes and their sha256; a disk or a copy may have damaged it."""
    if not path.is_file() or path.stat().st_size != size + SUM:
        return False
    found, left = hashlib.sha256(), size
    try:
        with progress.stage("Checking decoded images"), open(path, "rb") as file:
            while chunk := file.read(min(left, 2**20)):
                found.update(chunk)
                left -= len(chunk)
            return file.read() == found.digest()
    except OSError as error:
        raise unreadable(path, error) from error


def _write(path: Path, sources: Sequence[ImageSource], preprocessing: Preprocessing) -> None:
    # Ordinary writes: a full disk raises an error here, but would kill the process through a memory map.
    for left in leftovers(path):
        with suppress(OSError):  # another process may remove it, too
            if time.time() - left.stat().st_mtime > LEFTOVER_SECONDS:
                left.unlink()
    digest = hashlib.sha256()
    with open_whole(path) as stream:
        for source in progress.track(sources, "Decoding images", unit="images"):
            pixels = preprocessing.pixels(source).tobytes()
            digest.update(pixels)
            stream.write(pixels)
        stream.write(digest.digest())
