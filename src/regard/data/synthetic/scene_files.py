"""Scenes as files: PNG images, a caption a line, and what is where."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from regard.data.lines import read_lines, write_files
from regard.data.synthetic.scenes import Scene, SceneObject
from regard.data.tables import as_json
from regard.errors import ConfigError, DataError, shown

EXPECTED = '{"image": ..., "size": ..., "objects": [{"colour", "shape", "x", "y", "radius"}, ...], "captions": [...], "regions": ...}'


def write_scenes(folder: str | Path, name: str, scenes: Iterable[Scene]) -> tuple[Path, Path]:
    """Write scenes as NAME/000000.png and so on, NAME.tsv and NAME.regions.jsonl, for `read_captions` and `read_scenes`.

    A line of the first is `image<TAB>caption`; a line of the second holds a scene: its objects, its captions, and for each
    colour and shape word the boxes of the objects it fits. Images are written one by one, the two lists at the end.

    Args:
        folder: created if needed.
        name: the start of the file names; no folder in it.
        scenes: at least one, each with captions.

    Returns:
        The paths of the two lists.

    Raises:
        ConfigError: `name` holds a folder.
        DataError: there are no scenes, one has no caption, or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> from regard.data.captions import read_captions
        >>> from regard.data.synthetic.scenes import generate_scenes
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     captions, regions = write_scenes(folder, "test", generate_scenes(3, seed=1))
        ...     read_captions(captions, regions=regions).ids, read_scenes(regions) == generate_scenes(3, seed=1)
        (['test/000000.png', 'test/000001.png', 'test/000002.png'], True)
    """
    if not name or Path(name).name != name:
        raise ConfigError(f"name: {shown(name)}, expected the start of a file name without a folder")
    captions, regions = [], []
    for number, scene in enumerate(scenes):
        if not scene.captions:
            raise DataError(f"scene {number}: no captions to write")
        image = f"{name}/{number:06}.png"
        buffer = io.BytesIO()
        Image.fromarray(scene.image()).save(buffer, "PNG")
        write_files({Path(folder, image): buffer.getvalue()})
        captions += [f"{image}\t{caption}\n" for caption in scene.captions]
        regions.append(json.dumps(scene_record(image, scene)) + "\n")
    if not regions:
        raise DataError(f"{Path(folder) / name}: no scenes to write")
    paths = Path(folder, f"{name}.tsv"), Path(folder, f"{name}.regions.jsonl")
    write_files({path: "".join(lines).encode() for path, lines in zip(paths, (captions, regions), strict=True)})
    return paths


def read_scenes(path: str | Path) -> list[Scene]:
    """Read the scenes of a NAME.regions.jsonl, so that the truth of captions can be checked.

    Args:
        path: the file.

    Returns:
        The scenes, in the order of the file.

    Raises:
        DataError: the file cannot be read, or a line holds no scene.

    Example:
        >>> read_scenes("missing.jsonl")
        Traceback (most recent call last):
        regard.errors.DataError: missing.jsonl: no such file
    """
    return [
        _scene(as_json(line, f"{path}, line {number}"), f"{path}, line {number}") for number, line in enumerate(read_lines(path), start=1)
    ]


def scene_record(image: str, scene: Scene) -> dict[str, Any]:
    """Return the line of a NAME.regions.jsonl: what is in an image, its captions, and the boxes that each word names.

    Example:
        >>> sorted(scene_record("a.png", Scene(31, (SceneObject("red", "circle", 7, 9, 5),)))["regions"])
        ['circle', 'red']
    """
    regions: dict[str, list[tuple[float, ...]]] = {}
    for number, thing in enumerate(scene.objects):
        for word in (thing.colour, thing.shape):
            regions.setdefault(word, []).append(scene.box(number))
    objects = [thing._asdict() for thing in scene.objects]
    return {"image": image, "size": scene.size, "objects": objects, "captions": scene.captions, "regions": regions}


def _scene(item: Any, where: str) -> Scene:
    try:
        objects = tuple(SceneObject(*(thing[field] for field in SceneObject._fields)) for thing in item["objects"])
        whole = [item["size"], *(part for thing in objects for part in thing[2:])]
        texts = [*item["captions"], *(part for thing in objects for part in thing[:2])]
        if not all(type(part) is int for part in whole) or not all(isinstance(text, str) for text in texts):
            raise TypeError
        return Scene(item["size"], objects, tuple(item["captions"]))
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    except (KeyError, TypeError, IndexError) as error:
        raise DataError(f"{where}: expected {EXPECTED}") from error
