"""The store of decoded images: the same pixels as decoding again, decoded once, never stale and never half."""

from __future__ import annotations

import dataclasses
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard import progress
from regard.data import ImageArchive, ImageCache, Preprocessing
from regard.data.images import ImageSource
from regard.errors import DataError

SETTINGS = Preprocessing(size=11, fit="stretch")


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for number, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (23, 29, 3), dtype=np.uint8)).save(path)
    return paths


def test_the_store_gives_what_decoding_gives_in_any_order(tmp_path: Path, sources: list[Path]) -> None:
    store = ImageCache(sources, SETTINGS, tmp_path / "cache")
    assert len(store) == 5
    order = [4, 0, 0, 2]
    assert torch.equal(store[order], torch.stack([SETTINGS.read(sources[number]) for number in order]))
    assert np.array_equal(store.pixels(np.array(order)), np.stack([SETTINGS.pixels(sources[number]) for number in order]))
    assert store[[]].shape == (0, 3, 11, 11)
    with pytest.raises(IndexError):
        store.pixels([5])


def decoded(sources: Sequence[ImageSource], settings: Preprocessing, folder: Path) -> int:
    """Open the store; return how many images were decoded for it."""
    ended: list[progress.Event] = []
    with progress.listening(lambda event: ended.append(event) if event.kind == "end" else None):
        ImageCache(sources, settings, folder)
    stages = [event.stage for event in ended if event.stage is not None and event.stage.name != "Checking decoded images"]
    assert all((stage.name, stage.total) == ("Decoding images", len(sources)) for stage in stages)
    return sum(stage.done for stage in stages)


def test_images_are_decoded_once_for_each_list_size_and_state_of_the_files(tmp_path: Path, sources: list[Path]) -> None:
    cache = tmp_path / "cache"
    assert decoded(sources, SETTINGS, cache) == 5
    assert decoded(sources, SETTINGS, cache) == 0
    assert decoded(sources, dataclasses.replace(SETTINGS, mean=(0.0, 0.0, 0.0)), cache) == 0  # not a matter of pixels
    assert decoded(sources[::-1], SETTINGS, cache) == 5
    for change in ({"size": 13}, {"fit": "crop"}, {"keep": 0.5}, {"resample": "lanczos"}):
        assert decoded(sources, dataclasses.replace(SETTINGS, **change), cache) == 5
    os.utime(sources[3], ns=(1, 1))
    assert decoded(sources, SETTINGS, cache) == 5


def test_a_cache_file_cut_short_is_written_again(tmp_path: Path, sources: list[Path]) -> None:
    store = ImageCache(sources, SETTINGS, tmp_path)
    whole = store.pixels(range(5))
    del store
    path = next(tmp_path.glob("*.pixels"))
    path.write_bytes(path.read_bytes()[:-1])
    assert np.array_equal(ImageCache(sources, SETTINGS, tmp_path).pixels(range(5)), whole)


def test_a_damaged_cache_file_is_written_again(tmp_path: Path, sources: list[Path]) -> None:
    whole = ImageCache(sources, SETTINGS, tmp_path).pixels(range(5))
    path = next(tmp_path.glob("*.pixels"))
    path.write_bytes(bytes(path.stat().st_size))
    assert np.array_equal(ImageCache(sources, SETTINGS, tmp_path).pixels(range(5)), whole)


def test_another_image_of_the_same_size_and_time_is_decoded(tmp_path: Path, sources: list[Path]) -> None:
    ImageCache(sources, SETTINGS, tmp_path / "cache")
    before, content = sources[0].stat(), sources[1].read_bytes()
    sources[0].write_bytes(content[: before.st_size].ljust(before.st_size, b"\0"))
    os.utime(sources[0], ns=(before.st_atime_ns, before.st_mtime_ns))
    found = ImageCache(sources, SETTINGS, tmp_path / "cache")
    assert np.array_equal(found.pixels([0])[0], SETTINGS.pixels(sources[0]))


def test_what_killed_writers_left_in_a_shared_folder_is_removed_in_time(tmp_path: Path, sources: list[Path]) -> None:
    ImageCache(sources, SETTINGS, tmp_path)
    path = next(tmp_path.glob("*.pixels"))
    path.unlink()
    old, new = (tmp_path / f".{path.name}.{digit * 12}" for digit in "ab")
    old.touch()
    new.touch()  # may be written by another process
    os.utime(old, (1, 1))
    ImageCache(sources, SETTINGS, tmp_path)
    assert sorted(tmp_path.glob(".*")) == [new]


def test_images_of_an_archive_are_stored_like_others(tmp_path: Path, sources: list[Path]) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        for path in sources:
            tar.add(path, path.name)
    archive = ImageArchive(tmp_path / "a.tgz")
    packed = [archive[path.name] for path in sources]
    assert torch.equal(ImageCache(packed, SETTINGS, tmp_path)[range(5)], ImageCache(sources, SETTINGS, tmp_path)[range(5)])
    assert decoded([packed[0], packed[0]], SETTINGS, tmp_path) == 2


def test_a_damaged_image_is_named_and_leaves_no_file(tmp_path: Path, sources: list[Path]) -> None:
    sources[3].write_text("no image")
    with pytest.raises(DataError, match=r"3\.png: not an image"):
        ImageCache(sources, SETTINGS, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    sources[3].unlink()
    with pytest.raises(DataError, match=r"3\.png: no such file"):
        ImageCache(sources, SETTINGS, tmp_path / "cache")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, sources: list[Path]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file.*cannot be written"):
        ImageCache(sources, SETTINGS, tmp_path / "file" / "cache")


def test_a_store_of_no_images_is_empty(tmp_path: Path) -> None:
    assert len(ImageCache([], SETTINGS, tmp_path)) == 0
