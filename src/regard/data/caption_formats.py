"""Readers of published caption formats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from regard.data.lines import read_lines, single_line, stream_lines, unreadable, whole_characters
from regard.data.tables import as_json, ending_of, is_csv, names_columns, read_table
from regard.errors import DataError, listed, shown
from regard.input_files import open_input
from regard.progress import stage
from regard.strict_json import kind_of

CaptionFormat = Literal["auto", "karpathy", "coco", "flickr", "lines", "csv", "jsonl"]
FORMATS: tuple[CaptionFormat, ...] = ("auto", "karpathy", "coco", "flickr", "lines", "csv", "jsonl")
# Columns and keys of image folders, Flickr8k and Flickr30k as they are passed around.
IMAGES, CAPTIONS = ("image", "image_name", "file_name", "filename", "file"), ("caption", "text", "comment")
_FLICKR = re.compile(r"[^\t]*#[0-9]+\t")


@dataclass(slots=True)
class Entry:
    """An image in a file of captions: its name, the names its file may have, its captions, and where the file first names it."""

    name: str
    names: tuple[str, ...]
    captions: list[str]
    where: str


def read_entries(path: Path, form: CaptionFormat, split: str | Path | None) -> list[Entry]:
    """Read a file of captions; formats and splits are those of `read_captions`.

    Returns:
        At least one entry, each with at least one caption, in the order of the file or of the split.

    Raises:
        DataError: the file or the split does not match the format.

    Example:
        >>> read_entries(Path("missing.json"), "auto", None)
        Traceback (most recent call last):
        regard.errors.DataError: missing.json: no such file
    """
    if form not in FORMATS:
        raise DataError(f"{path}: format {shown(form)}, expected one of {', '.join(FORMATS)}")
    with stage(f"Reading the captions of {path}", unit="lines") as reading:
        if form in ("karpathy", "coco") or (form == "auto" and path.suffix.lower() == ".json"):
            entries = _read_json(path, form, split)
        else:
            entries = _read_text(path, form, reading.track(stream_lines(path)))
            if split is not None:
                entries = _listed(entries, Path(split), path)
    if not entries:
        raise DataError(f"{path}: no captions, expected at least one")
    return entries


def _read_text(path: Path, form: CaptionFormat, lines: Iterator[str]) -> list[Entry]:
    head = next(lines, None)
    if head is None:
        return []
    if form == "auto":
        form = _text_format(path, head)
    entries: dict[str, Entry] = {}
    rows = _from_objects if form == "jsonl" else partial(_from_table, form=form)
    for number, name, captions in rows(chain([head], lines), path):
        where = f"line {number}"
        entry = entries.setdefault(name, Entry(name, (name,), [], where))
        entry.captions.extend(_caption(caption, f"{path}, {where}") for caption in captions)
    return list(entries.values())


def _text_format(path: Path, head: str) -> CaptionFormat:
    if ending_of(path) == ".jsonl":
        return "jsonl"
    if is_csv(path) or ("\t" not in head and names_columns(head, (IMAGES, CAPTIONS))):
        return "csv"
    return "flickr" if _FLICKR.match(head) else "lines"


def _from_table(lines: Iterator[str], path: Path, *, form: CaptionFormat) -> Iterator[tuple[int, str, list[str]]]:
    table = read_table(lines, str(path), (IMAGES, CAPTIONS), quoted=form == "csv")
    expected = "image#number, a tab, the caption" if form == "flickr" else "image, a tab, the caption"
    for number, cells in table.rows:
        name, *rest = (cell or "" for cell in cells)
        if table.named:
            name = name.strip()
        elif form == "flickr":
            name, mark, at = name.rpartition("#")
            rest = rest if mark and at.isdecimal() else []
        if not name or len(rest) != 1:
            wanted = "the name of an image" if table.named else expected
            found = f", found {len(cells)} columns" if len(cells) > 2 else ""
            raise DataError(f"{path}, line {number}: expected {wanted}{found}")
        yield number, name, rest


def _from_objects(lines: Iterator[str], path: Path) -> Iterator[tuple[int, str, list[str]]]:
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        item = as_json(line, where)
        if not isinstance(item, dict):
            raise DataError(f"{where}: expected an object with an image and its caption, found {kind_of(item)}")
        image, caption = (next((key for key in keys if key in item), None) for keys in (IMAGES, (*CAPTIONS, "captions")))
        if image is None or caption is None:
            wanted = listed(IMAGES if image is None else (*CAPTIONS, "captions"))
            raise DataError(f"{where}: expected one of the keys {wanted}, found {listed(item) or 'none'}")
        if "captions" in item and caption != "captions":
            raise DataError(f"{where}: has both {caption} and captions; give one of them")
        texts = item[caption] if isinstance(item[caption], list) else [item[caption]]
        if not texts:
            raise DataError(f'{where}: expected a text, or a list of at least one, under "{caption}"')
        yield number, _text(item, image, where), [_text({caption: text}, caption, where) for text in texts]


def _listed(entries: Sequence[Entry], split: Path, path: Path) -> list[Entry]:
    by_name = {entry.name: entry for entry in entries}
    lines = read_lines(split)
    absent = [number for number, name in enumerate(lines, start=1) if name not in by_name]
    if absent:
        name = single_line(lines[absent[0] - 1])
        raise DataError(
            f"{split}, line {absent[0]}: no captions of {shown(name)} in {path} ({len(absent)} of {len(lines)} images have none)"
        )
    return [by_name[name] for name in dict.fromkeys(lines)]


def _read_json(path: Path, form: CaptionFormat, split: str | Path | None) -> list[Entry]:
    try:
        with open_input(path) as file:
            text = file.read()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    content = as_json(text, str(path))
    images = _items(content, "images", path)
    if form == "auto":
        form = "coco" if "annotations" in content else "karpathy"
    if form == "karpathy":
        return _unique(_karpathy(images, None if split is None else str(split), path), path)
    if split is not None:
        raise DataError(f"{path}: COCO annotations have no splits, expected none, found {shown(str(split))}")
    return _unique(_coco(images, _items(content, "annotations", path), path), path)


def _karpathy(images: list[dict[str, Any]], split: str | None, path: Path) -> Iterator[Entry]:
    wanted = None if split is None else split.split("+")
    found = {_text(image, "split", f"{path}, images[{number}]") for number, image in enumerate(images)}
    unknown = sorted(set(wanted or []) - found)
    if unknown:
        raise DataError(f"{path}: no split {shown(unknown[0])}, expected one of {listed(sorted(found))}, or several joined by +")
    for number, image in enumerate(images):
        if wanted is not None and image["split"] not in wanted:
            continue
        where = f"images[{number}]"
        name = _text(image, "filename", f"{path}, {where}")
        # COCO's images lie in a folder for each of its parts.
        names = (f"{image['filepath']}/{name}", name) if isinstance(image.get("filepath"), str) else (name,)
        captions = []
        for index, sentence in enumerate(_items(image, "sentences", path, f", {where}")):
            at = f"{path}, {where}.sentences[{index}]"
            captions.append(_caption(_text(sentence, "raw", at), at))
        if not captions:
            raise DataError(f"{path}, {where}: {single_line(name)} has no captions")
        yield Entry(name, names, captions, where)


def _coco(images: list[dict[str, Any]], annotations: list[dict[str, Any]], path: Path) -> Iterator[Entry]:
    captions: dict[Any, list[str]] = {}
    for number, image in enumerate(images):
        image_id = _number(image, "id", f"{path}, images[{number}]")
        if image_id in captions:
            raise DataError(f"{path}, images[{number}]: the id {image_id} again")
        captions[image_id] = []
    for number, annotation in enumerate(annotations):
        where = f"{path}, annotations[{number}]"
        image_id = _number(annotation, "image_id", where)
        if image_id not in captions:
            other = next((known for known in captions if str(known) == str(image_id)), None)
            kinds = f"; there it is {'text' if isinstance(other, str) else 'a number'}" if other is not None else ""
            raise DataError(f"{where}: image_id {shown(image_id)} is none of the {len(images)} images{kinds}")
        captions[image_id].append(_caption(_text(annotation, "caption", where), where))
    bare = [number for number, image in enumerate(images) if not captions[image["id"]]]
    if bare:
        raise DataError(f"{path}, images[{bare[0]}]: no captions ({len(bare)} of {len(images)} images have none)")
    for number, image in enumerate(images):
        name = _text(image, "file_name", f"{path}, images[{number}]")
        yield Entry(name, (name,), captions[image["id"]], f"images[{number}]")


def _unique(entries: Iterator[Entry], path: Path) -> list[Entry]:
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in found:
            raise DataError(f"{path}, {entry.where}: {single_line(entry.name)} again, first in {found[entry.name].where}")
        found[entry.name] = entry
    return list(found.values())


def _items(content: Any, key: str, path: Path, where: str = "") -> list[dict[str, Any]]:
    items = content.get(key) if isinstance(content, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise DataError(f'{path}{where}: expected a list of objects under "{key}"')
    return items


def _text(item: dict[str, Any], key: str, where: str) -> str:
    if not isinstance(item.get(key), str) or not item[key]:
        raise DataError(f'{where}: expected a text under "{key}"')
    return whole_characters(item[key])


def _number(item: dict[str, Any], key: str, where: str) -> int | str:
    if isinstance(item.get(key), bool) or not isinstance(item.get(key), int | str):
        raise DataError(f'{where}: expected a number under "{key}"')
    return item[key]


def _caption(text: str, where: str) -> str:
    caption = " ".join(text.split())
    if not caption:
        raise DataError(f"{where}: an empty caption")
    return caption
