"""Images decoded once: a file of pixels at the size of training, memory-mapped, so that no epoch decodes again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from regard import progress
from regard.data.image_archive import ArchivedImage
from regard.data.images import ImageSource, Preprocessing
from regard.data.lines import open_whole, unreadable

# Part of the key: a change of how images are decoded must not find old files.
VERSION = 1


class ImageCache:
    """Decoded images in a cache file: `store[indices]` gives tensors, `store.pixels(indices)` bytes.

    The file is named after a digest of the images (path, size and time of change of each file) and of what preprocessing does
    to pixels; another list, another size or a changed file make another cache file, other means and deviations do not. It is
    written under a temporary name first, so an interruption leaves no half file. A process that finds the file opens it.

    Args:
        sources: the images, in the order of the indices.
        preprocessing: what is done to them.
        folder: of the cache files; made if it is not there.

    Raises:
        DataError: an image cannot be read (the first such one is named), or the folder cannot be written.

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
        # The name holds what is inside; a file of another length was cut short after it was written.
        if not self.path.is_file() or self.path.stat().st_size != size:
            _write(self.path, sources, preprocessing)
        try:
            self._pixels = np.memmap(self.path, np.uint8, "r", shape=shape) if size else np.zeros(shape, np.uint8)
        except (OSError, ValueError) as error:
            raise unreadable(self.path, error) from error

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        """Return images as a model takes them: float32 (n, 3, size, size)."""
        return self.preprocessing.normalize(self.pixels(indices))

    def pixels(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return images before normalisation: uint8 (n, size, size, 3), a copy.

        Args:
            indices: numbers of images, 0 up to `len(store) - 1`, in any order, repeated at will.

        Raises:
            IndexError: a number is outside this range.
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
    return f"{path.resolve()} {found.st_size} {found.st_mtime_ns}"


def _write(path: Path, sources: Sequence[ImageSource], preprocessing: Preprocessing) -> None:
    # Ordinary writes: a full disk is an error here, and would end the process through a memory map.
    with open_whole(path) as stream:
        for source in progress.track(sources, "Decoding images", unit="images"):
            stream.write(preprocessing.pixels(source).tobytes())
