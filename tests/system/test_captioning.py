"""`regard generate scenes`, `regard train captioning` and `regard caption`, in this process: images of every kind, good and hostile."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

SMALL = [
    "image.size=32",
    "model.encoder.channels=[3, 5]",
    "model.embed_dim=7",
    "model.decoder_dim=11",
    "model.attention_dim=5",
    "model.feature_dim=6",
    "training.max_updates=2",
    "training.batch_tokens=60",
    "decoding.max_length=7",
]
# Prints the most memory that it and its threads held, in kB.
MEASURED = """
import re, sys
from pathlib import Path
from regard import cli
try:
    cli.main()
finally:  # what the system tells of a process's largest memory begins with that of the one that started it; this does not
    print(re.search(r"VmHWM:\\s+([0-9]+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with generated scenes and a small run on them."""
    from regard.config import load_config
    from regard.config.captioning import CaptioningConfig
    from regard.tasks.captioning_training import train_captioning
    from regard.tasks.synthetic_data import generate

    folder = tmp_path_factory.mktemp("made")
    written = generate("scenes", folder, train=12, test=5, seed=1)
    assert [path.name for path in written] == ["train.tsv", "train.regions.jsonl", "test.tsv", "test.regions.jsonl"]
    settings = [f"data.captions={written[0]}", *SMALL]
    train_captioning(load_config(None, settings, kind=CaptioningConfig), folder / "run")
    return folder


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def bomb(path: Path) -> None:
    """A file of a few kB whose header announces 2.5 gigapixels."""
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10_000))) + chunk(b"IEND", b""))


def write_images(folder: Path) -> tuple[list[str], list[str]]:
    """Write images of all kinds; return the names of the good and of the bad ones."""
    plain = Image.new("RGB", (60, 40), (200, 30, 30))
    plain.save(folder / "plain.jpg")
    plain.convert("CMYK").save(folder / "cmyk.jpg")
    plain.convert("P").save(folder / "palette.png")
    Image.new("I;16", (30, 50), 40_000).save(folder / "sixteen.png")
    plain.convert("RGBA").save(folder / "alpha.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    plain.save(folder / "turned.jpg", exif=turned)
    plain.save(folder / "animated.gif", save_all=True, append_images=[Image.new("RGB", (60, 40), (0, 0, 200))])
    Image.new("L", (50_000, 20), 128).save(folder / "wide.png")
    whole = (folder / "plain.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "zero.jpg").touch()
    (folder / "text.jpg").write_text("this is no image\n")
    bomb(folder / "bomb.png")
    good = ["plain.jpg", "cmyk.jpg", "palette.png", "sixteen.png", "alpha.png", "turned.jpg", "animated.gif", "wide.png"]
    return good, ["truncated.jpg", "zero.jpg", "text.jpg", "bomb.png", "missing.jpg"]


def test_generated_scenes_train_and_are_captioned(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGARD_QUIET")
    assert call("generate", "scenes", "--out", "s", "--count", 12, "--test", 3, "--seed", 2).code == 0
    answer = call("train", "captioning", "--captions", "s/train.tsv", "--out", "run", *SMALL)
    assert answer.code == 0, answer.err
    assert "each of which sees 7 pixels" in (answer.err if isinstance(answer.err, str) else answer.err.decode())
    captions = call("caption", "run", "s/test")
    assert (captions.code, captions.out.count(b"\n")) == (0, 3)
    named = call("caption", "run", "s/test", "--names").out.decode().splitlines()
    assert [line.partition("\t")[0] for line in named] == [f"s/test/{n:06}.png" for n in range(3)]
    Path("some.txt").write_text("s/test/000001.png\n\ns/test/000000.png\n")
    listed = call("caption", "run", "--list", "some.txt", "--names").out.decode().splitlines()
    assert listed == [named[1], named[0]]
    again = call("train", "captioning", "--captions", "s/train.tsv", "--out", "run", *SMALL)
    assert again.code == 0
    assert again.out.splitlines()[-1] == answer.out.splitlines()[-1]


def test_every_bad_image_costs_one_line_of_errors_and_the_others_are_captioned(call: Callable[..., Any], made: Path) -> None:
    good, bad = write_images(Path())
    order = [name for pair in zip(bad, good, strict=False) for name in pair] + good[len(bad) :]
    answer = call("caption", made / "run", *order, "--json", "--batch-size", 3)
    assert answer.code == 1
    found = [json.loads(line) for line in answer.out.decode().splitlines()]
    assert [item["image"] for item in found] == order
    assert [item["image"] for item in found if "error" in item] == [name for name in order if name in bad]
    assert all(item["text"] for item in found if item["image"] in good)
    errors = answer.err.splitlines()
    assert len(errors) == len(bad)
    for line, name in zip(errors, [name for name in order if name in bad], strict=True):
        assert line.startswith(f"regard: error: {name}: ")
    lines = call("caption", made / "run", *order).out.decode().splitlines()
    assert [not line for line in lines] == [name in bad for name in order]


def test_hostile_images_stay_below_a_gigabyte(made: Path, tmp_path: Path) -> None:
    good, bad = write_images(tmp_path)
    command = [sys.executable, "-c", MEASURED, "caption", str(made / "run"), *good, *bad]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert int(done.stderr.splitlines()[-1]) < 1_000_000


def test_a_caption_does_not_depend_on_the_batch(call: Callable[..., Any], made: Path) -> None:
    images = sorted((made / "test").iterdir())
    together = [call("caption", made / "run", *images, "--batch-size", size).out.splitlines() for size in (1, 2, 100)]
    assert together[0] == together[1] == together[2]
    assert [call("caption", made / "run", image).out.splitlines()[0] for image in images] == together[0]


def test_several_hypotheses_come_sorted(call: Callable[..., Any], made: Path) -> None:
    answer = call("caption", made / "run", made / "test" / "000000.png", "--n-best", 3, "--beam-size", 4)
    (found,) = [json.loads(line) for line in answer.out.decode().splitlines()]
    scores = [hypothesis["score"] for hypothesis in found["hypotheses"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3


def test_folders_without_images_and_files_beside_them_are_told(call: Callable[..., Any], made: Path) -> None:
    shutil.copytree(made / "test", "mixed")
    Path("mixed/notes.doc").touch()
    answer = call("caption", made / "run", "mixed")
    assert (answer.code, answer.err) == (0, "regard: ignored 1 file without an image in the folders\n")
    Path("nothing").mkdir()
    assert call("caption", made / "run", "nothing").code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give it images (files, folders, --list FILE), --list - for standard input, or --features FILE"),
        (["--list", "a", "--features", "f"], "--features: goes with names of images or none, for all of them, not with --list"),
        (["a.png", "--hard", "argmax"], "with a run of model.attention=hard"),
        (["--features", "f"], "f: no such file"),
    ],
)
def test_a_wrong_command_line_is_one_line(call: Callable[..., Any], made: Path, words: list[str], message: str) -> None:
    answer = call("caption", made / "run", *words)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_a_wrong_setting_is_named_by_its_key(call: Callable[..., Any]) -> None:
    answer = call("train", "captioning", "--captions", "c", "--out", "r", "model.encoder.chanels=[3]")
    assert answer.code == 2
    assert "model.encoder.chanels: unknown key; did you mean model.encoder.channels?" in answer.err


def test_words_are_looked_for_where_they_are_and_cider_counts_where_it_is_told(call: Callable[..., Any], made: Path) -> None:
    words = ["evaluate", made / "run", "--captions", made / "test.tsv"]
    plain = call(*words, "--json", "plain.json")
    assert plain.code == 0, plain.err
    told = ["--regions", made / "test.regions.jsonl", "--frequencies", made / "train.tsv"]
    found = call(*words, *told, "--json", "found.json")
    assert found.code == 0, found.err
    scores = {
        name: {score["name"]: score for score in json.loads(Path(name).read_text())["scores"]} for name in ("plain.json", "found.json")
    }
    assert "|df:refs" in scores["plain.json"]["CIDEr-D"]["signature"]
    assert "|df:given:12" in scores["found.json"]["CIDEr-D"]["signature"]
    assert scores["plain.json"]["BLEU-1"] == scores["found.json"]["BLEU-1"]
    (made / "one.txt").write_text((made / "train.tsv").read_text().split("\t")[0] + "\n")
    part = call(*words, "--frequencies", made / "train.tsv", "--frequencies-split", made / "one.txt", "--json", "part.json")
    assert part.code == 0, part.err
    assert "df:given:1|" in Path("part.json").read_text() + "|"
    alone = call(*words, "--frequencies-split", made / "one.txt")
    assert (alone.code, alone.err.strip().splitlines()[-1]) == (2, "regard: error: --frequencies-split: only with --frequencies")


def test_meteor_that_is_not_there_is_said_before_anything_is_done(
    call: Callable[..., Any], made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["regard.metrics.meteor"], "find_spec", lambda name: None)
    # `regard.metrics.meteor` is the function, too.
    answer = call("evaluate", made / "run", "--captions", made / "test.tsv", "--meteor")
    assert (answer.code, answer.out) == (2, b"")
    assert "pip install '.[coco]'" in answer.err
