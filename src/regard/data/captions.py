"""Images with several captions each, in published formats and a simple one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from regard.data.caption_formats import CaptionFormat, Entry, as_json, read_entries
from regard.data.image_archive import ImageArchive
from regard.data.images import ImageSource
from regard.data.lines import read_lines, single_line
from regard.errors import DataError
from regard.progress import stage

# Left, top, right and bottom relative to width and height, 0 to 1.
Box = tuple[float, float, float, float]


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


@dataclass(frozen=True)
class CaptionSet(Sequence[CaptionExample]):
    """Captioned images in the order of their file or split list.

    Args:
        examples: the images; their ids differ.

    Example:
        >>> examples = CaptionSet((CaptionExample("a.jpg", Path("a.jpg"), ("a dog", "one dog")),))
        >>> examples.pairs
        [(0, 'a dog'), (0, 'one dog')]
    """

    examples: tuple[CaptionExample, ...]

    @overload
    def __getitem__(self, index: int) -> CaptionExample: ...
    @overload
    def __getitem__(self, index: slice) -> CaptionSet: ...
    def __getitem__(self, index: int | slice) -> CaptionExample | CaptionSet:
        return CaptionSet(self.examples[index]) if isinstance(index, slice) else self.examples[index]

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[CaptionExample]:
        return iter(self.examples)

    @property
    def ids(self) -> list[str]:
        """The id of every image."""
        return [example.id for example in self.examples]

    @property
    def images(self) -> list[ImageSource]:
        """The location of every image."""
        return [example.image for example in self.examples]

    @property
    def references(self) -> list[tuple[str, ...]]:
        """All captions of every image."""
        return [example.captions for example in self.examples]

    @property
    def pairs(self) -> list[tuple[int, str]]:
        """(image index, caption) for every caption: the training pairs."""
        return [(number, caption) for number, example in enumerate(self.examples) for caption in example.captions]


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
    | "lines" | `image<TAB>caption` a line, any number of lines an image | as for "flickr" |

    Args:
        path: the file of captions; for the last two, `.gz` may follow.
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
    sources = _find(place, entries, path)
    boxes = {} if regions is None else _read_regions(Path(regions))
    known = {entry.name for entry in entries}
    strange = next((name for name in boxes if name not in known), None)
    if strange is not None and split is None:
        raise DataError(f"{regions}: regions of {single_line(strange)}, which has no caption in {path}")
    return CaptionSet(
        tuple(
            CaptionExample(entry.name, source, tuple(entry.captions), boxes.get(entry.name))
            for entry, source in zip(entries, sources, strict=True)
        )
    )


def _find(place: Path, entries: Sequence[Entry], captions: Path) -> list[ImageSource]:
    if not place.exists():
        raise DataError(f"{place}: no such folder or archive of images")
    with stage(f"Finding images in {place}"):
        found = _in_folder(place, entries) if place.is_dir() else _in_archive(place, entries)
    missing = [entry for entry, source in zip(entries, found, strict=True) if source is None]
    if missing:
        count = f"{len(missing)} of {len(entries)} images {'is' if len(missing) == 1 else 'are'} missing"
        raise DataError(f"{captions}, {missing[0].where}: no image {single_line(missing[0].name)} in {place} ({count})")
    return [source for source in found if source is not None]


def _in_folder(folder: Path, entries: Sequence[Entry]) -> list[ImageSource | None]:
    return [next((folder / name for name in entry.names if (folder / name).is_file()), None) for entry in entries]


def _in_archive(path: Path, entries: Sequence[Entry]) -> list[ImageSource | None]:
    archive = ImageArchive(path)
    # A file name in two folders of the archive is ambiguous and matches neither.
    below: dict[str, str | None] = {}
    for name in archive.names:
        last = name.rsplit("/", 1)[-1]
        below[last] = None if last in below else name
    found: list[ImageSource | None] = []
    for entry in entries:
        candidates = [*entry.names, *(below.get(name) for name in entry.names)]
        found.append(next((archive[name] for name in candidates if name is not None and name in archive), None))
    return found


def _read_regions(path: Path) -> dict[str, dict[str, tuple[Box, ...]]]:
    regions = {}
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        item = as_json(line, where)
        if not isinstance(item, dict) or not isinstance(item.get("image"), str) or not isinstance(item.get("regions"), dict):
            raise DataError(f'{where}: expected {{"image": ..., "regions": {{word: [[left, top, right, bottom], ...]}}}}')
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
