"""Tars read at any place, compressed or not, equal what the tar module gives."""

from __future__ import annotations

import gzip
import io
import multiprocessing
import os
import random
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regard.data import ArchivedImage, ImageArchive, image_archive
from regard.errors import DataError

GENERATOR = random.Random(11)
# Some cannot be compressed, one is all zeros, one is empty.
CONTENTS = {f"images/{number}.jpg": GENERATOR.randbytes(1 + 997 * number) for number in range(23)}
CONTENTS |= {"zeros.png": b"\0" * 500_000, "empty.png": b""}


def write_tar(path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("./images")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in CONTENTS.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "images/1.jpg"
        tar.addfile(link)
    return path


@pytest.mark.parametrize(("name", "mode"), [("a.tar", "w"), ("a.tgz", "w:gz"), ("a.tar.gz", "w:gz"), ("named.wrongly", "w:gz")])
def test_every_file_is_read_in_any_order(tmp_path: Path, name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_archive, "POINT_EVERY", 40_000)  # several places to start again from
    archive = ImageArchive(write_tar(tmp_path / name, mode))
    assert list(archive.names) == list(CONTENTS)
    order = list(CONTENTS) * 3
    GENERATOR.shuffle(order)
    assert all(archive[name].read() == CONTENTS[name] for name in order)
    assert ("images" in archive, "link.jpg" in archive, "zeros.png" in archive) == (False, False, True)


def test_a_compressed_archive_is_started_again_close_to_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_archive, "POINT_EVERY", 40_000)
    monkeypatch.setattr(image_archive, "CHUNK", 4_000)
    archive = ImageArchive(write_tar(tmp_path / "a.tgz", "w:gz"))
    stream = archive._stream
    read: list[int] = []
    original = stream._raw.read  # type: ignore[attr-defined]
    monkeypatch.setattr(stream, "_raw", type("Raw", (), {"seek": stream._raw.seek, "close": stream._raw.close})())  # type: ignore[attr-defined]
    stream._raw.read = lambda size: read.append(size) or original(size)  # type: ignore[attr-defined]
    assert archive["images/22.jpg"].read() == CONTENTS["images/22.jpg"]
    assert sum(read) < 80_000  # of 250,000


def test_gzip_files_one_after_another_are_one(tmp_path: Path) -> None:
    data = write_tar(tmp_path / "a.tar").read_bytes()
    parts = [data[:70_001], data[70_001:70_001], data[70_001:]]
    (tmp_path / "a.tgz").write_bytes(b"".join(map(gzip.compress, parts)) + b"\0" * 100)
    archive = ImageArchive(tmp_path / "a.tgz")
    assert all(archive[name].read() == data for name, data in CONTENTS.items())


def test_of_files_with_the_same_name_the_last_counts(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for data in (b"old", b"newer"):
            info = tarfile.TarInfo("a.jpg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert ImageArchive(tmp_path / "a.tar")["a.jpg"].read() == b"newer"


def test_an_image_in_an_archive_shows_both_names(tmp_path: Path) -> None:
    archive = ImageArchive(write_tar(tmp_path / "a.tar"))
    assert str(archive["images/3.jpg"]) == f"{tmp_path}/a.tar: images/3.jpg"
    with pytest.raises(DataError, match=r"no images/99.jpg among its 25 files"):
        archive["images/99.jpg"]
    huge = ArchivedImage(archive, "huge.jpg", 0, 2**40)
    with pytest.raises(DataError, match=r"huge.jpg: 1099511627776 bytes"):
        huge.read()


@pytest.mark.parametrize("kind", ["missing", "folder", "text", "empty", "cut tar", "cut gzip", "damaged gzip"])
def test_what_is_no_whole_archive_is_a_data_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.tgz"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("no tar at all\n" * 100)
    elif kind == "empty":
        path.touch()
    elif kind != "missing":
        data = bytearray(write_tar(path, "w" if kind == "cut tar" else "w:gz").read_bytes())
        if kind == "damaged gzip":
            data[len(data) // 2 : len(data) // 2 + 50] = b"\xff" * 50
        path.write_bytes(data[: len(data) // 2] if kind.startswith("cut") else data)
    with pytest.raises(DataError, match=r"a\.tgz: ") as caught:
        ImageArchive(path)
    assert "\n" not in str(caught.value)


def test_an_archive_that_shrinks_is_a_data_error(tmp_path: Path) -> None:
    archive = ImageArchive(write_tar(tmp_path / "a.tar"))
    with open(tmp_path / "a.tar", "r+b") as stream:
        stream.truncate(9_000)
    with pytest.raises(DataError, match=r"a\.tar: ends at byte [0-9]+, expected 269743"):
        archive["images/22.jpg"].read()


@pytest.mark.parametrize(("name", "mode"), [("a.tar", "w"), ("a.tgz", "w:gz")])
def test_threads_and_forked_processes_read_one_archive_together(
    tmp_path: Path, name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    archive = ImageArchive(write_tar(Path(name), mode))
    order = list(CONTENTS) * 20
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda name: archive[name].read() == CONTENTS[name], order))
    with multiprocessing.get_context("fork").Pool(2, initializer=_keep, initargs=(archive,)) as processes:
        found = processes.map_async(_is_whole, order)
        assert all(archive[name].read() == CONTENTS[name] for name in order)
        assert all(found.get(60))


_KEPT: list[ImageArchive] = []


def _keep(archive: ImageArchive) -> None:
    os.chdir("/")  # the archive may be named from elsewhere
    _KEPT.append(archive)


def _is_whole(name: str) -> bool:
    with ThreadPoolExecutor(3) as pool:
        return all(pool.map(lambda _: _KEPT[0][name].read() == CONTENTS[name], range(3)))
