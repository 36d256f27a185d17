"""Captions in every format: the right images with the right captions, or a message that names file and entry."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from regard.data import CaptionSet, ImageArchive, Preprocessing, read_captions
from regard.errors import DataError

KARPATHY = {
    "dataset": "coco",
    "images": [
        {"filepath": "val2014", "filename": "b.jpg", "split": "train", "sentences": [{"raw": "A  dog. "}, {"raw": "one dog"}]},
        {"filename": "a.jpg", "split": "restval", "sentences": [{"raw": "a cat"}]},
        {"filename": "c.jpg", "split": "test", "sentences": [{"raw": "a bus"}]},
    ],
}
COCO = {
    "images": [{"id": 7, "file_name": "b.jpg"}, {"id": 3, "file_name": "a.jpg"}],
    "annotations": [
        {"image_id": 3, "id": 1, "caption": "a cat"},
        {"image_id": 7, "id": 2, "caption": "a dog\n"},
        {"image_id": 3, "id": 3, "caption": "the cat"},
    ],
}
FLICKR = "b.jpg#0\tA dog .\r\nb.jpg#1\tOne dog\r\na#1.jpg#0\ta cat\r\nc.jpg#0\ta bus\r\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.jpg", "val2014/b.jpg", "b.jpg", "c.jpg", "a#1.jpg"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_text(name)
    return tmp_path


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def table(captions: CaptionSet) -> dict[str, tuple[str, ...]]:
    return {example.id: example.captions for example in captions}


def test_karpathy_splits_are_read_alone_joined_or_all(folder: Path) -> None:
    path = write(folder / "dataset.json", KARPATHY)
    found = read_captions(path, folder / "images", split="train+restval")
    assert table(found) == {"b.jpg": ("A dog.", "one dog"), "a.jpg": ("a cat",)}
    assert found.images == [folder / "images/val2014/b.jpg", folder / "images/a.jpg"]
    assert read_captions(path, folder / "images", split="test").ids == ["c.jpg"]
    assert len(read_captions(path, folder / "images")) == 3
    with pytest.raises(DataError, match=r"dataset.json: no split 'val', expected one of restval, test, train"):
        read_captions(path, folder / "images", split="val")


def test_coco_annotations_meet_their_images_in_the_order_of_images(folder: Path) -> None:
    found = read_captions(write(folder / "captions.json", COCO), folder / "images")
    assert list(table(found).items()) == [("b.jpg", ("a dog",)), ("a.jpg", ("a cat", "the cat"))]


def test_flickr_captions_follow_the_list_of_the_split(folder: Path) -> None:
    path, split = write(folder / "token.txt", FLICKR), write(folder / "train.txt", "c.jpg\r\nb.jpg\r\n")
    found = read_captions(path, folder / "images", split=split)
    assert list(table(found).items()) == [("c.jpg", ("a bus",)), ("b.jpg", ("A dog .", "One dog"))]
    assert len(read_captions(path, folder / "images")) == 3
    write(split, "b.jpg\nx.jpg\ny.jpg\n")
    with pytest.raises(DataError, match=r"train.txt, line 2: no captions of 'x.jpg' in .*token.txt \(2 of 3 images have none\)"):
        read_captions(path, folder / "images", split=split)


def test_plain_lines_may_name_an_image_again_and_lie_beside_the_images(folder: Path) -> None:
    path = write(folder / "images" / "captions.tsv", "c.jpg\ta bus\nval2014/b.jpg\ta dog\nc.jpg\ta red bus\n")
    found = read_captions(path)
    assert table(found) == {"c.jpg": ("a bus", "a red bus"), "val2014/b.jpg": ("a dog",)}
    assert found.pairs == [(0, "a bus"), (0, "a red bus"), (1, "a dog")]
    assert found.references == [("a bus", "a red bus"), ("a dog",)]
    assert found[1:].ids == ["val2014/b.jpg"]


def test_images_are_found_in_a_tar_below_any_folder(folder: Path) -> None:
    with tarfile.open(folder / "images.tgz", "w:gz") as tar:
        for name in ("deep/b.jpg", "c.jpg", "x/a#1.jpg"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(name[-5:-2].encode()))
    found = read_captions(write(folder / "token.txt", FLICKR), folder / "images.tgz")
    assert [str(image) for image in found.images] == [f"{folder}/images.tgz: {name}" for name in ("deep/b.jpg", "x/a#1.jpg", "c.jpg")]


def test_a_name_in_two_folders_of_a_tar_is_missing_rather_than_guessed(folder: Path) -> None:
    with tarfile.open(folder / "images.tar", "w") as tar:
        for name in ("x/c.jpg", "y/c.jpg"):
            tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(DataError, match=r"no image c.jpg in .*images.tar \(1 of 1 images is missing\)"):
        read_captions(write(folder / "captions.tsv", "c.jpg\ta bus\n"), folder / "images.tar")


def test_missing_images_are_an_error_with_the_first_and_the_count(folder: Path) -> None:
    path = write(folder / "captions.tsv", "a.jpg\ta\nx.jpg\tb\nc.jpg\tc\ny.jpg\td\n")
    with pytest.raises(DataError, match=r"captions.tsv, line 2: no image x.jpg in .*images \(2 of 4 images are missing\)$"):
        read_captions(path, folder / "images")
    with pytest.raises(DataError, match=r"4 images are missing\); this is the folder of the captions, --images names another"):
        read_captions(path)
    with pytest.raises(DataError, match="nowhere: no such folder or archive"):
        read_captions(path, folder / "nowhere")


def test_regions_meet_their_images(folder: Path) -> None:
    path = write(folder / "captions.tsv", "a.jpg\ta dog\nc.jpg\ta bus\n")
    regions = write(folder / "regions.jsonl", '{"image": "c.jpg", "regions": {"bus": [[0, 0.25, 0.5, 1]], "cat": []}}\n')
    found = read_captions(path, folder / "images", regions=regions)
    assert [example.regions for example in found] == [None, {"bus": ((0.0, 0.25, 0.5, 1.0),), "cat": ()}]
    for line, message in (
        ('{"image": "x.jpg", "regions": {}}', r"regions of x.jpg, which has no caption"),
        ('{"image": "a.jpg", "regions": {}}\n{"image": "a.jpg", "regions": {}}', r"regions.jsonl, line 2: a.jpg again"),
        ('{"image": "a.jpg"}', r"regions.jsonl, line 1: expected"),
        ('{"image": "a.jpg", "regions": {"dog": [[0, 0, 2, 1]]}}', r"line 1, dog: expected boxes"),
        ('{"image": "a.jpg", "regions": {"dog": [0, 0, 1, 1]}}', r"line 1, dog: expected boxes"),
        ("nothing", r"line 1: not JSON"),
    ):
        write(regions, line)
        with pytest.raises(DataError, match=message):
            read_captions(path, folder / "images", regions=regions)


def damaged(content: dict, *keys: object, value: object = None) -> str:
    """Return JSON with the item at a path of keys replaced, or taken out for None."""
    copy = json.loads(json.dumps(content))
    place = copy
    for key in keys[:-1]:
        place = place[key]
    if value is None:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return json.dumps(copy)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "", "no captions"),
        ("a.tsv", "a.jpg\ta dog\n\n", "line 2: expected image, a tab"),
        ("a.tsv", "a.jpg a dog\n", "line 1: expected image, a tab"),
        ("a.tsv", "a.jpg\t \n", "line 1: an empty caption"),
        ("a.tsv", "\ta dog\n", "line 1: expected image, a tab"),
        ("a.txt", "a.jpg#0\ta dog\na.jpg\ta dog\n", "line 2: expected image#number"),
        ("a.json", "[]", 'expected a list of objects under "images"'),
        ("a.json", "{", "not JSON"),
        ("a.json", "[" * 100_000, "more than 64 levels"),
        ("a.json", damaged(KARPATHY, "images", 1, "filename"), r'images\[1\]: expected a text under "filename"'),
        ("a.json", damaged(KARPATHY, "images", 2, "split", value=5), r'images\[2\]: expected a text under "split"'),
        ("a.json", damaged(KARPATHY, "images", 0, "sentences", 1, "raw"), r'images\[0\].sentences\[1\]: expected a text under "raw"'),
        ("a.json", damaged(KARPATHY, "images", 0, "sentences", value=[]), r"images\[0\]: b.jpg has no captions"),
        ("a.json", damaged(KARPATHY, "images", 1, "filename", value="b.jpg"), r"images\[1\]: b.jpg again, first in images\[0\]"),
        ("a.json", damaged(COCO, "annotations", 1, "image_id", value=99), r"annotations\[1\]: image_id 99 is none of the 2 images"),
        ("a.json", damaged(COCO, "annotations", 0, "caption"), r'annotations\[0\]: expected a text under "caption"'),
        ("a.json", damaged(COCO, "annotations", 1), r"images\[0\]: no captions \(1 of 2 images have none\)"),
        ("a.json", damaged(COCO, "images", 1, "id", value=COCO["images"][0]["id"]), r"images\[1\]: the id \d+ again"),
        ("a.json", damaged(COCO, "images", 1, "id"), r'images\[1\]: expected a number under "id"'),
    ],
)
def test_errors_name_the_file_and_the_entry(folder: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_captions(write(folder / name, content), folder / "images")
    assert str(caught.value).startswith(str(folder / name))
    assert "\n" not in str(caught.value)


def test_a_format_can_be_named_and_must_be_known(folder: Path) -> None:
    path = write(folder / "a.txt", "a#1.jpg\ta cat\n")
    assert read_captions(path, folder / "images").ids == ["a#1.jpg"]  # `#` alone does not make it Flickr's
    with pytest.raises(DataError, match="line 1: expected image#number"):
        read_captions(path, folder / "images", form="flickr")
    with pytest.raises(DataError, match="expected one of auto, karpathy"):
        read_captions(path, folder / "images", form="xml")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="COCO annotations have no splits"):
        read_captions(write(folder / "a.json", COCO), folder / "images", split="train")


@pytest.mark.data
def test_flickr8k_is_whole_and_its_images_open(data_folder: Path) -> None:
    folder = data_folder / "flickr8k"
    sizes = {}
    for split in ("train", "dev", "test"):
        found = read_captions(folder / "Flickr8k.token.txt", folder / "flickr8k_96px.tar", split=folder / f"Flickr_8k.{split}Images.txt")
        sizes[split] = len(found), len(found.pairs)
        assert Preprocessing(size=96, fit="stretch").pixels(found.images[-1]).std() > 5
    assert sizes == {"train": (5997, 29985), "dev": (1000, 5000), "test": (1000, 5000)}
    with pytest.raises(DataError, match=r"2258277193_586949ec62.jpg.1 in .* \(1 of 8090 images is missing\)"):
        read_captions(folder / "Flickr8k.token.txt", folder / "flickr8k_96px.tar")


@pytest.mark.data
def test_a_compressed_archive_gives_the_same_images(data_folder: Path, tmp_path: Path) -> None:
    plain = ImageArchive(data_folder / "flickr8k" / "flickr8k_96px.tar")
    with tarfile.open(tmp_path / "a.tgz", "w:gz", compresslevel=1) as tar:
        for name in plain.names[::5]:
            info = tarfile.TarInfo(name)
            info.size = plain[name].length
            tar.addfile(info, io.BytesIO(plain[name].read()))
    packed = ImageArchive(tmp_path / "a.tgz")
    assert all(packed[name].read() == plain[name].read() for name in plain.names[::-35] if name in packed)
