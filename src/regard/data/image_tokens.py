"""Images as tokens: the number of an image, once for each cell of its grid, so that it stands behind a sentence in a row of tokens."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from torch import Tensor

from regard.data.image_cache import ImageCache
from regard.data.images import Preprocessing
from regard.data.lines import single_line, stream_lines
from regard.data.vocabulary import SPECIALS, TokenizedText, Vocabulary
from regard.errors import DataError

INLINE = "data:image/"
"""How a line begins that holds an image itself in base64, not its name."""
PIECE = "\u25a6"
RECENT = 256
"""Images that are kept for the next time that somebody names them."""
_FIRST_UNKNOWN = 2**24
"""Numbers of images that are in no training set, above those of any."""


class Picture:
    """The pixels of an image, uint8 (H, W, 3)."""

    __slots__ = ("__weakref__", "pixels")

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels


class ImageNumber(int):
    """The number of an image, which keeps its picture in memory as long as somebody has the number."""

    picture: Picture


class ImageTokens(Vocabulary):
    """What names of images mean: a text is a name, its tokens are the number of the image, once per cell.

    An image of the training set has the number of its row in a cache of decoded images. Any other is read when its name is encoded, and
    forgotten some time after its tokens.

    Args:
        preprocessing: how images become numbers.
        cells: L, cells of the grid that a model makes of an image.
        folder: that names are relative to; a line may also be a `data:image/...;base64,` address.
        optional: a name that no file has is that of a missing image, which has no tokens.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (20, 10)).save(Path(folder, "a.png"))
        ...     tokens = ImageTokens(Preprocessing(size=8), 4, Path(folder))
        ...     found = tokens.encode("a.png")
        ...     len(found.ids), tokens.read(found.ids[:1]).shape, tokens.missing("b.png") == f"no image {folder}/b.png"
        (4, torch.Size([1, 3, 8, 8]), True)
    """

    def __init__(self, preprocessing: Preprocessing, cells: int, folder: Path, *, optional: bool = False) -> None:
        self.kind, self.preprocessing, self.cells, self.folder, self.optional = "image", preprocessing, cells, folder, optional
        self._known: dict[str, int] = {}
        self._cache: ImageCache | None = None
        self._recent: dict[str, ImageNumber] = {}
        self._kept: list[Picture] = []
        self._pictures: WeakValueDictionary[int, Picture] = WeakValueDictionary()
        self._numbers = itertools.count(_FIRST_UNKNOWN)

    def __len__(self) -> int:
        """Return the number of special tokens and known images."""
        return len(SPECIALS) + len(self._known)

    def keep(self, files: Mapping[str, Path], folder: Path) -> None:
        """Number images by their names, and decode them once into a cache file in `folder`.

        Raises:
            DataError: an image cannot be read; names it.
        """
        self._known = {name: number for number, name in enumerate(files, start=len(SPECIALS))}
        self._cache = ImageCache(list(files.values()), self.preprocessing, folder)

    def missing(self, text: str, how: str = "") -> str:
        """Say that there is no image of this name, or why it cannot be read; "" where it can."""
        try:
            _ = self._absent(text) or self._numbered(text)
        except DataError as error:
            return " ".join(str(error).splitlines())
        return ""

    def encode_batch(self, texts: Iterable[str]) -> list[TokenizedText]:
        """Return the tokens of each image; of a blank name there are none.

        Raises:
            DataError: an image cannot be read; names it.
        """
        return [self._tokens(text) for text in texts]

    def encode_ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Return only the ids of each image, in order, for a corpus: these images stay in memory."""
        found = [item.ids for item in self.encode_batch(texts)]
        self._kept += [ids[0].picture for ids in found if ids and isinstance(ids[0], ImageNumber)]
        return found

    def read(self, numbers: Sequence[int]) -> Tensor:
        """Return images by number, as a model takes them: float32 (n, 3, H, W)."""
        return self.preprocessing.normalize(np.stack([self.pixels(number) for number in numbers]))

    def pixels(self, number: int) -> np.ndarray:
        """Return an image before normalisation, uint8 (H, W, 3)."""
        if number >= _FIRST_UNKNOWN:
            return self._pictures[number].pixels
        assert self._cache is not None
        return self._cache.pixels([number - len(SPECIALS)])[0]

    def _tokens(self, text: str) -> TokenizedText:
        if not text.strip() or self._absent(text):
            return TokenizedText([], [], [])
        return TokenizedText([self._numbered(text)] * self.cells, [PIECE] * self.cells, [(0, len(text))] * self.cells)

    def _absent(self, text: str) -> bool:
        return self.optional and not (text in self._known or text.startswith(INLINE) or (self.folder / text).is_file())

    def _numbered(self, text: str) -> int:
        if text in self._known:
            return self._known[text]
        inline = text.startswith(INLINE)
        key = hashlib.sha256(text.encode()).hexdigest() if inline else self._state(self.folder / text)
        found = self._recent.pop(key, None)
        if found is None:
            found = ImageNumber(next(self._numbers))
            found.picture = Picture(self._inline(text) if inline else self.preprocessing.pixels(self.folder / text))
            self._pictures[int(found)] = found.picture
        self._recent[key] = found
        while len(self._recent) > RECENT:
            self._recent.pop(next(iter(self._recent)), None)
        return found

    @staticmethod
    def _state(path: Path) -> str:
        try:
            state = path.stat()
        except (OSError, ValueError) as error:
            raise DataError(f"no image {single_line(str(path))[:200]}") from error
        return f"{path} {state.st_size} {state.st_mtime_ns}"

    def _inline(self, text: str) -> np.ndarray:
        try:
            content = base64.b64decode(text.partition(",")[2], validate=True)
        except (binascii.Error, ValueError) as error:
            raise DataError("image: no base64") from error
        return self.preprocessing.pixels_of(io.BytesIO(content), "image")


def find_images(lists: Iterable[Path], folder: Path | None, *, optional: bool) -> dict[str, Path]:
    """Return the image files that lists name, a name per line, by name, in the order they come.

    Args:
        lists: text files; a blank line names no image.
        folder: that names are relative to; None: the folder of the first list.
        optional: leave out names that nothing has.

    Raises:
        DataError: a name that nothing has; names list, line and image.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "list").write_text("a.png\\n")
        ...     find_images([Path(folder, "list")], None, optional=True)
        {}
    """
    found: dict[str, Path] = {}
    for path in lists:
        folder = path.parent if folder is None else folder
        for number, name in enumerate(stream_lines(path), start=1):
            if not name.strip() or name in found:
                continue
            if (folder / name).is_file():
                found[name] = folder / name
            elif not optional:
                raise DataError(f"{path}, line {number}: no image {single_line(name)[:200]} in {folder}")
    return found


def images_digest(files: Mapping[str, Path]) -> str:
    """Return what tells a set of images from another: a sha256 of names and sizes, for thousands of files are not read twice.

    Example:
        >>> images_digest({})[:8]
        'e3b0c442'
    """
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(f"{name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
