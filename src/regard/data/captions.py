"""Images with several captions each, in published formats and a simple one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, overload

import numpy as np

from regard.data.caption_formats import CaptionFormat, Entry, read_entries
from regard.data.image_archive import ImageArchive
from regard.data.images import Box, ImageSource
from regard.data.lines import read_lines, single_line
from regard.data.tables import as_json
from regard.data.token_arrays import FlatTokens, PackedTexts, sequence_offsets
from regard.errors import DataError
from regard.progress import stage


@dataclass(frozen=True)
class CaptionExample:
    """One image with its captions.

    Attributes:
        id: the image's name in the file of captions; unique in its set.
        image: location of the image.
        captions: at least one, without surrounding white space, single spaces inside.
        regions: boxes by word, or None if unknown.
    """

    id: str
    image: ImageSource
    captions: tuple[str, ...]
    regions: Mapping[str, tuple[Box, ...]] | None = None


class CaptionSet(Sequence[CaptionExample]):
    """Captioned images in the order of their file or split list, created from arrays on access.

    Args:
        names: each image's name in the file of captions, all different.
        files: each image's path, relative to `place`, or its name in the archive.
        captions: the captions, image by image.
        starts: (N + 1,) first caption of each image, and the number of all captions.
        place: folder or archive of the images.
        regions: boxes by word, of images by name.

    Example:
        >>> examples = CaptionSet.of([CaptionExample("a.jpg", Path("a.jpg"), ("a dog", "one dog"))])
        >>> examples.pairs, examples[0].image.name
        ([(0, 'a dog'), (0, 'one dog')], 'a.jpg')
    """

    def __init__(
        self,
        names: PackedTexts,
        files: PackedTexts,
        captions: PackedTexts,
        starts: np.ndarray,
        place: Path | ImageArchive,
        regions: Mapping[str, Mapping[str, tuple[Box, ...]]],
    ) -> None:
        self.names, self.files, self.captions, self.starts = names, files, captions, starts
        self.place, self.regions = place, regions

    @staticmethod
    def of(examples: Sequence[CaptionExample]) -> CaptionSet:
        """Pack images that are files."""
        entries = [Entry(each.id, (), list(each.captions), "") for each in examples]
        regions = {each.id: each.regions for each in examples if each.regions is not None}
        return pack_entries(entries, [str(each.image) for each in examples], Path(), regions)

    def chosen(self, rows: np.ndarray) -> CaptionSet:
        """Select images by (M,) integers or (N,) booleans."""
        captions = FlatTokens(np.arange(len(self.captions)), self.starts).chosen(rows)
        names, files, texts = self.names.chosen(rows), self.files.chosen(rows), self.captions.chosen(captions.ids)
        return CaptionSet(names, files, texts, captions.offsets, self.place, self.regions)

    @overload
    def __getitem__(self, index: int) -> CaptionExample: ...
    @overload
    def __getitem__(self, index: slice) -> CaptionSet: ...
    def __getitem__(self, index: int | slice) -> CaptionExample | CaptionSet:
        if isinstance(index, slice):
            return self.chosen(np.arange(len(self))[index])
        number = range(len(self))[index]
        name, captions = self.names[number], self.captions[int(self.starts[number]) : int(self.starts[number + 1])]
        return CaptionExample(name, self.image(number), tuple(captions), self.regions.get(name))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[CaptionExample]:
        return (self[number] for number in range(len(self)))

    def image(self, number: int) -> ImageSource:
        """Return the location of an image."""
        name = self.files[number]
        return self.place / name if isinstance(self.place, Path) else self.place[name]

    @property
    def ids(self) -> list[str]:
        """The id of every image."""
        return list(self.names)

    @property
    def images(self) -> list[ImageSource]:
        """The location of every image."""
        return [self.image(number) for number in range(len(self))]

    @property
    def references(self) -> list[tuple[str, ...]]:
        """All captions of every image."""
        return [tuple(self.captions[start:stop]) for start, stop in pairwise(self.starts.tolist())]

    @property
    def owners(self) -> np.ndarray:
        """The image index of every caption."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @property
    def pairs(self) -> list[tuple[int, str]]:
        """(image index, caption) for every caption: the training pairs."""
        return list(zip(self.owners.tolist(), self.captions, strict=True))


def read_captions(
    path: str | Path,
    images: str | Path | None = None,
    *,
    split: str | Path | None = None,
    form: CaptionFormat = "auto",
    regions: str | Path | None = None,
) -> CaptionSet:
    r"""Read captions and locate their images.

    | form | the file | `split` |
    |---|---|---|
    | "karpathy" | the JSON of Karpathy's splits (COCO, Flickr8k, Flickr30k) | names joined by `+`: "train+restval"; None: all |
    | "coco" | COCO's annotation JSON (`captions_val2017.json`) | none |
    | "flickr" | `image#0<TAB>caption` a line (`Flickr8k.token.txt`) | a file with an image's name a line; None: all |
    | "lines" | `image<TAB>caption` a line, any number of lines an image; a header may name the columns | as for "flickr" |
    | "csv" | columns "image" (or "image_name", "file_name", "filename", "file") and "caption" ("text", "comment") | as for "flickr" |
    | "jsonl" | an object with such keys a line; the caption may be a list | as for "flickr" |

    Args:
        path: the file of captions; but for JSON, `.gz` may follow.
        images: the folder, or the `.tar`, `.tar.gz` or `.tgz`, that image names are looked up in; None: the captions' folder.
            In an archive a name may stand below any folder.
        split: the part to read; see the table.
        form: the format; "auto" detects it.
        regions: a JSONL file `{"image": name, "regions": {word: [[left, top, right, bottom], ...]}}`, parts of 0 to 1.

    Returns:
        At least one `CaptionExample`.

    Raises:
        DataError: a file cannot be read or is not in its format, a caption is empty, an image of the split has no captions, or images are
            missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.png").touch()
        ...     _ = Path(folder, "captions.tsv").write_text("a.png\ta red circle\na.png\ta circle\n")
        ...     read_captions(Path(folder, "captions.tsv")).references
        [('a red circle', 'a circle')]
    """
    path = Path(path)
    entries = read_entries(path, form, split)
    place = path.parent if images is None else Path(images)
    if not place.exists():
        raise DataError(f"{place}: no such folder or archive of images")
    with stage(f"Finding images in {place}", total=len(entries), unit="images") as finding:
        opened = place if place.is_dir() else ImageArchive(place)
        files = _find(opened, finding.track(entries))
    missing = [entry for entry, file in zip(entries, files, strict=True) if file is None]
    if missing:
        count = f"{len(missing)} of {len(entries)} images {'is' if len(missing) == 1 else 'are'} missing"
        hint = "; this is the folder of the captions, --images names another" if images is None else ""
        raise DataError(f"{path}, {missing[0].where}: no image {single_line(missing[0].name)} in {place} ({count}){hint}")
    boxes = {} if regions is None else read_regions(regions)
    known = {entry.name for entry in entries}
    strange = next((name for name in boxes if name not in known), None)
    if strange is not None and split is None:
        raise DataError(f"{regions}: regions of {single_line(strange)}, which has no caption in {path}")
    return pack_entries(entries, [file for file in files if file is not None], opened, boxes)


def pack_entries(
    entries: Sequence[Entry],
    files: Sequence[str],
    place: Path | ImageArchive,
    regions: Mapping[str, Mapping[str, tuple[Box, ...]]] | None = None,
) -> CaptionSet:
    """Pack what was read of a file of captions, with the images' names in their folder or archive."""
    starts = sequence_offsets(np.array([len(entry.captions) for entry in entries], np.int64))
    with stage("Packing the captions", total=len(entries), unit="images") as packing:
        captions = PackedTexts.of(caption for entry in packing.track(entries) for caption in entry.captions)
    return CaptionSet(PackedTexts.of(entry.name for entry in entries), PackedTexts.of(files), captions, starts, place, regions or {})


def _find(place: Path | ImageArchive, entries: Iterable[Entry]) -> list[str | None]:
    if isinstance(place, Path):
        return [next((name for name in entry.names if (place / name).is_file()), None) for entry in entries]
    # A file name in two folders of the archive is ambiguous and matches neither.
    below: dict[str, str | None] = {}
    for name in place.names:
        last = name.rsplit("/", 1)[-1]
        below[last] = None if last in below else name
    found: list[str | None] = []
    for entry in entries:
        candidates = [*entry.names, *(below.get(name) for name in entry.names)]
        found.append(next((name for name in candidates if name is not None and name in place), None))
    return found


def read_regions(path: str | Path) -> dict[str, dict[str, tuple[Box, ...]]]:
    """Return the boxes of words, of images by name, from a JSONL file; see `read_captions`.

    Raises:
        DataError: a line is not of this form; names it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a").write_text('{"image": "a.png", "regions": {"dog": [[0, 0, 0.5, 1]]}}')
        ...     read_regions(Path(folder, "a"))
        {'a.png': {'dog': ((0.0, 0.0, 0.5, 1.0),)}}
    """
    regions = {}
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        item = as_json(line, where)
        if not isinstance(item, dict) or not isinstance(item.get("image"), str) or not isinstance(item.get("regions"), dict):
            raise DataError(f'{where}: expected {{"image": ..., "regions": {{word: [[left, top, right, bottom], ...]}}}}')
        if item["image"] in regions:
            raise DataError(f"{where}: {single_line(item['image'])} again; one line holds all words of an image")
        regions[item["image"]] = {word: _boxes(found, f"{where}, {single_line(word)}") for word, found in item["regions"].items()}
    return regions


def _four_numbers(box: Any) -> bool:
    return isinstance(box, list) and len(box) == 4 and all(isinstance(part, int | float) and math.isfinite(part) for part in box)


def _boxes(found: Any, where: str) -> tuple[Box, ...]:
    boxes = []
    given: list[Any] = found if isinstance(found, list) else [None]
    for box in given:
        if not _four_numbers(box) or not (0 <= box[0] <= box[2] <= 1 and 0 <= box[1] <= box[3] <= 1):
            raise DataError(f"{where}: expected boxes [left, top, right, bottom] of 0 to 1, found {str(box)[:80]}")
        boxes.append((float(box[0]), float(box[1]), float(box[2]), float(box[3])))
    return tuple(boxes)
