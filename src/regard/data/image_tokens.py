"""Images as tokens: an image's id, repeated once per grid cell, so that it can follow a sentence in a row of tokens."""

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
from regard.errors import DataError, counted
from regard.progress import message

INLINE = "data:image/"
"""Prefix of a line that contains an image in base64 instead of its name."""
PIECE = "\u25a6"
RECENT = 256
"""Number of recently used images kept in memory."""
_FIRST_UNKNOWN = 2**24
"""Ids of images outside the training set, above those of any in it."""


class Picture:
    """The pixels of an image, uint8 (H, W, 3)."""

    __slots__ = ("__weakref__", "pixels")

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels


class ImageNumber(int):
    """The id of an image; keeps the picture in memory as long as the id is referenced."""

    picture: Picture


class ImageTokens(Vocabulary):
    """Vocabulary of images: a text is an image name, its tokens are the image's id, once per cell.

    A training image has the index of its row in a cache of decoded images. Any other image is read when its name is encoded, and released
    some time after its tokens.

    Args:
        preprocessing: preprocessing of the images.
        cells: L, number of grid cells per image.
        folder: base of relative names; a line may also be a `data:image/...;base64,` URL.
        optional: a missing file is a missing image without tokens.

    Attributes:
        absent: names encoded whose file was missing, until they are reported.

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
        self.absent = set[str]()
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
        """Assign ids to images by name, and decode them once into a cache file in `folder`.

        Raises:
            DataError: an image cannot be read; the message names it.
        """
        self._known = {name: number for number, name in enumerate(files, start=len(SPECIALS))}
        self._cache = ImageCache(list(files.values()), self.preprocessing, folder)

    def missing(self, text: str, how: str = "") -> str:
        """Return why there is no image of this name, or ""."""
        try:
            _ = self._absent(text) or self._numbered(text)
        except DataError as error:
            return " ".join(str(error).splitlines())
        return ""

    def encode_batch(self, texts: Iterable[str]) -> list[TokenizedText]:
        """Return the tokens of each image; none for a blank name.

        Raises:
            DataError: an image cannot be read; names it.
        """
        return [self._tokens(text) for text in texts]

    def encode_ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Return one id per image, in order, for a corpus; these images stay in memory."""
        found = [item.ids for item in self.encode_batch(texts)]
        self._kept += [ids[0].picture for ids in found if ids and isinstance(ids[0], ImageNumber)]
        return found

    def read(self, numbers: Sequence[int]) -> Tensor:
        """Return images by id, preprocessed: float32 (n, 3, H, W)."""
        return self.preprocessing.normalize(np.stack([self.pixels(number) for number in numbers]))

    def pixels(self, number: int) -> np.ndarray:
        """Return an image before normalization, uint8 (H, W, 3)."""
        if number >= _FIRST_UNKNOWN:
            return self._pictures[number].pixels
        assert self._cache is not None
        return self._cache.pixels([number - len(SPECIALS)])[0]

    def _tokens(self, text: str) -> TokenizedText:
        if not text.strip():
            return TokenizedText([], [], [])
        if self._absent(text):
            self.absent.add(text)
            return TokenizedText([], [], [])
        return TokenizedText([self._numbered(text)] * self.cells, [PIECE] * self.cells, [(0, len(text))] * self.cells)

    def _absent(self, text: str) -> bool:
        return self.optional and not (text in self._known or text.startswith(INLINE) or _is_file(self.folder / text))

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
    r"""Return the image files listed in text files, one name per line, by name, in order.

    Args:
        lists: text files; a blank line names no image.
        folder: base of relative names; None: the folder of the first list.
        optional: skip missing files and tell how many; one at least must be there.

    Raises:
        DataError: a file is missing; the message names list, line and image.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "list").write_text("\n")
        ...     find_images([Path(folder, "list")], None, optional=True)
        {}
    """
    found: dict[str, Path] = {}
    missing, first = set[str](), ""
    for path in lists:
        folder = path.parent if folder is None else folder
        for number, name in enumerate(stream_lines(path), start=1):
            if not name.strip() or name in found:
                continue
            if _is_file(folder / name):
                found[name] = folder / name
                continue
            wrong = f"{path}, line {number}: no image {single_line(name)[:200]} in {folder}"
            if not optional:
                raise DataError(wrong)
            missing.add(name)
            first = first or wrong
    if missing and not found:
        raise DataError(f"{first}, and none of the others that are named there (--images names the folder)")
    if missing:
        message(f"{first}; {counted(len(missing), 'image')} of {len(missing) + len(found)} missing", warning=True)
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long for the file system, or with a null byte
        return False


def images_digest(files: Mapping[str, Path]) -> str:
    """Return the sha256 of the names and contents of image files.

    Example:
        >>> images_digest({})[:8]
        'e3b0c442'
    """
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(f"{name}\0".encode("utf-8", "surrogateescape") + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
