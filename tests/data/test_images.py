"""Images of every kind become the right pixels; what is no image becomes one line; memory stays bounded."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from PIL import Image, ImageOps

from regard.data import Preprocessing, expand_images, image_decoding
from regard.data.image_decoding import BUDGET
from regard.errors import ConfigError, DataError

GREEN = (30, 200, 60)
# Four colours in the quarters of a picture: the order of any two shows a turn or a flip.
QUARTERS = np.array([[[250, 10, 10], [10, 250, 10]], [[10, 10, 250], [250, 250, 10]]], np.uint8)


def quarters(width: int = 64, height: int = 64) -> Image.Image:
    return Image.fromarray(QUARTERS).resize((width, height), Image.Resampling.NEAREST)


def looked_at(path: Path, fit: str = "stretch") -> np.ndarray:
    """Return the middles of the four quarters: int (2, 2, 3)."""
    pixels = Preprocessing(size=16, fit=fit).pixels(path).astype(int)  # type: ignore[arg-type]
    return pixels[4::8, 4::8]


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png_header(path: Path, width: int, height: int) -> None:
    """Write a PNG that says it is large and holds next to nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + png_chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"])
def test_each_format_is_read_whatever_the_file_is_called(tmp_path: Path, form: str) -> None:
    quarters().save(tmp_path / "picture.jpg", form)
    assert np.abs(looked_at(tmp_path / "picture.jpg") - QUARTERS).max() < 25


# Before 13 Pillow could not read the YCbCr TIFF it wrote.
old = pytest.mark.skipif(int(PIL.__version__.partition(".")[0]) < 13, reason="Pillow 13 reads such a TIFF")


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", pytest.param("YCbCr", marks=old), "RGBA", "LA"])
def test_each_mode_becomes_red_green_and_blue(tmp_path: Path, mode: str) -> None:
    white = Image.new("RGB", (40, 40), (255, 255, 255)).convert(mode)
    white.save(tmp_path / "white", "TIFF" if mode in ("CMYK", "YCbCr") else "PNG")
    assert Preprocessing(size=8).pixels(tmp_path / "white").min() >= 253
    if mode in ("P", "CMYK", "YCbCr", "RGBA"):
        Image.new("RGB", (40, 40), GREEN).convert(mode).save(tmp_path / "green", "TIFF" if mode in ("CMYK", "YCbCr") else "PNG")
        assert np.abs(Preprocessing(size=8).pixels(tmp_path / "green").astype(int) - GREEN).max() < 30


def test_a_cmyk_jpeg_is_not_inverted(tmp_path: Path) -> None:
    quarters().convert("CMYK").save(tmp_path / "a.jpg", "JPEG", quality=95)
    assert np.abs(looked_at(tmp_path / "a.jpg") - QUARTERS).max() < 25


@pytest.mark.parametrize(("form", "values"), [("PNG", np.uint16), ("TIFF", np.uint16), ("TIFF", np.float32), ("PPM", np.uint16)])
def test_sixteen_bits_are_scaled_to_eight_not_cut_off(tmp_path: Path, form: str, values: type) -> None:
    white = 1.0 if values is np.float32 else 65535
    ramp = (np.array([[0.0, 0.25], [0.5, 1.0]]) * white).astype(values)
    Image.fromarray(np.kron(ramp, np.ones((32, 32), values))).save(tmp_path / "deep", form)
    assert np.abs(looked_at(tmp_path / "deep")[..., 0] - [[0, 64], [128, 255]]).max() <= 2


def test_transparent_parts_are_white_and_half_transparent_ones_half(tmp_path: Path) -> None:
    picture = np.zeros((64, 64, 4), np.uint8)
    picture[:32, 32:] = (0, 0, 0, 255)
    picture[32:, :32] = (0, 0, 0, 128)
    picture[32:, 32:] = (200, 0, 0, 0)  # what colour lies under nothing does not matter
    Image.fromarray(picture).save(tmp_path / "a.png")
    assert np.abs(looked_at(tmp_path / "a.png")[..., 0] - [[255, 0], [127, 255]]).max() <= 2


def test_a_palette_with_a_transparent_colour_is_on_white(tmp_path: Path) -> None:
    picture = Image.fromarray(np.kron(np.array([[0, 1], [1, 0]], np.uint8), np.ones((32, 32), np.uint8)), "P")
    picture.putpalette([0, 0, 0, *GREEN])
    picture.save(tmp_path / "a.gif", transparency=0)
    assert looked_at(tmp_path / "a.gif").tolist() == [[[255] * 3, [*GREEN]], [[*GREEN], [255] * 3]]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("fit", ["stretch", "crop"])
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int, fit: str) -> None:
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    upright = quarters(96, 64)
    stored = upright.transpose(turns[orientation]) if orientation in turns else upright  # as a camera held that way stores it
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.png", exif=exif)
    assert np.abs(looked_at(tmp_path / "a.png", fit) - QUARTERS).max() <= 3
    noise = np.random.default_rng(3).integers(0, 256, (83, 61, 3)).astype(np.uint8)
    for name in ("b.png", "b.tif", "b.webp"):
        Image.fromarray(noise).save(tmp_path / name, exif=exif, lossless=True)
        ImageOps.exif_transpose(Image.open(tmp_path / name)).save(tmp_path / "upright.png")
        np.testing.assert_array_equal(looked_at(tmp_path / name, fit), looked_at(tmp_path / "upright.png", fit))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_of_many_tiles_is_that_of_one(tmp_path: Path, orientation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (83, 61, 3)).astype(np.uint8)).save(tmp_path / "a.png", exif=exif)
    expected = looked_at(tmp_path / "a.png")
    monkeypatch.setattr(image_decoding, "TILE", 16)
    np.testing.assert_array_equal(looked_at(tmp_path / "a.png"), expected)


def test_the_size_of_a_png_is_checked_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (300, 200)).save(tmp_path / "a.png")
    monkeypatch.setattr(image_decoding, "BUDGET", 1000)
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", lambda self: pytest.fail("decoded"))
    with pytest.raises(DataError, match="300 x 200 pixels, expected at most 0 million in such a PNG image"):
        looked_at(tmp_path / "a.png")


def test_damaged_exif_data_turn_nothing(tmp_path: Path) -> None:
    quarters().save(tmp_path / "a.jpg", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\xffgarbage")
    assert np.abs(looked_at(tmp_path / "a.jpg") - QUARTERS).max() < 25


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_an_animation_is_its_first_frame(tmp_path: Path, form: str) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in (GREEN, (255, 0, 0), (0, 0, 255))]
    frames[0].save(tmp_path / "a", form, save_all=True, append_images=frames[1:])
    assert np.abs(Preprocessing(size=8).pixels(tmp_path / "a").astype(int) - GREEN).max() < 10


def test_crop_takes_the_central_square_and_keep_a_part_of_it(tmp_path: Path) -> None:
    picture = np.zeros((50, 150, 3), np.uint8)
    picture[:, 50:100] = (0, 255, 0)
    picture[15:35, 65:85] = (255, 0, 0)
    Image.fromarray(picture).save(tmp_path / "a.png")
    cropped = Preprocessing(size=10, fit="crop", resample="bilinear").pixels(tmp_path / "a.png")
    assert (cropped[0, :, 1] == 255).all()
    assert (Preprocessing(size=10, keep=0.35, resample="bilinear").pixels(tmp_path / "a.png") == (255, 0, 0)).all()
    assert (Preprocessing(size=12, fit="stretch").pixels(tmp_path / "a.png")[0, 0] == 0).all()


def test_a_large_picture_is_averaged_as_one_resize_of_it_is(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    smooth = Image.fromarray(generator.integers(0, 255, (7, 11, 3), dtype=np.uint8)).resize((1103, 709), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "a.png")
    smooth.save(tmp_path / "a.jpg", quality=98, subsampling=0)
    whole = np.asarray(smooth.resize((17, 17), Image.Resampling.BICUBIC)).astype(int)
    for name in ("a.png", "a.jpg"):
        found = Preprocessing(size=17, fit="stretch").pixels(tmp_path / name).astype(int)
        assert np.abs(found - whole).max() <= 6, name
        assert abs((found - whole).mean()) < 0.5, name  # no shift towards a side


def test_pictures_larger_than_a_tile_have_no_seams(tmp_path: Path) -> None:
    ramp = np.tile((np.arange(5000) * 255 // 4999).astype(np.uint8), (3, 1))
    Image.fromarray(ramp).save(tmp_path / "a.png")
    row = Preprocessing(size=16, fit="stretch").pixels(tmp_path / "a.png")[0, :, 0].astype(int)
    assert np.abs(row - (np.arange(16) + 0.5) * 255 / 16).max() <= 2


def test_numbers_are_divided_by_255_once_and_normalized() -> None:
    pixels = np.zeros((2, 3, 5, 3), np.uint8)
    pixels[..., 1] = 255
    pixels[..., 2] = 51
    found = Preprocessing(size=8, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 0.1)).normalize(pixels)
    assert found.shape == (2, 3, 3, 5)
    assert found.dtype == torch.float32
    for channel, value in enumerate((-1.0, 3.0, 2.0)):
        assert torch.allclose(found[:, channel], torch.tensor(value))
    with pytest.raises(DataError, match="uint8"):
        Preprocessing().normalize(pixels.astype(np.float32))
    with pytest.raises(DataError, match=r"\(3, 5\)"):
        Preprocessing().normalize(pixels[0, :, :, 0])


def test_preprocessing_survives_json() -> None:
    settings = Preprocessing(size=96, fit="stretch", keep=0.875, resample="lanczos", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert Preprocessing(**json.loads(json.dumps(asdict(settings)))) == settings


@pytest.mark.parametrize(
    "settings", [{"size": 7}, {"fit": "pad"}, {"keep": 0.0}, {"keep": 1.1}, {"resample": "box"}, {"mean": (1.0,)}, {"std": (1.0, 0.0, 1.0)}]
)
def test_settings_outside_their_range_are_named(settings: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Preprocessing(**settings)


def hostile(folder: Path, name: str) -> Path:
    """Write a file that is no whole image, and return its path."""
    path = folder / f"{name}.jpg"
    buffer = io.BytesIO()
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 255, (99, 99, 3), dtype=np.uint8))
    if name == "empty":
        path.touch()
    elif name == "text":
        path.write_text("This is no image.\n" * 50)
    elif name.startswith("truncated"):
        noise.save(buffer, name.split()[1])
        path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) * 2 // 3])
    elif name == "header only":
        noise.save(buffer, "JPEG")
        path.write_bytes(buffer.getvalue()[:2])
    elif name == "bomb":
        write_png_header(path, 50_000, 50_000)
    elif name == "smaller bomb":
        write_png_header(path, 15_000, 9_000)
    elif name == "folder":
        path.mkdir()
    elif name == "pipe":
        os.mkfifo(path)
    elif name == "vector":
        path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99 99\n%%EndComments\nshowpage\n")
    return path


KINDS = ["empty", "text", "truncated JPEG", "truncated PNG", "truncated GIF", "truncated TIFF", "truncated WEBP", "truncated BMP"]
KINDS += ["header only", "bomb", "smaller bomb", "folder", "pipe", "vector", "missing"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_image_is_one_line_that_names_the_file(tmp_path: Path, kind: str) -> None:
    path = hostile(tmp_path, kind)
    with pytest.raises(DataError) as caught:
        Preprocessing(size=16).read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    expected = {"empty": "empty file", "text": "expected JPEG, PNG", "vector": "expected JPEG, PNG", "bomb": "too many pixels"}
    expected |= {"smaller bomb": "15000 x 9000 pixels, expected at most 104 million", "missing": "no such file"}
    expected |= {"folder": "found a folder", "pipe": "no ordinary file"}
    assert expected.get(kind, "image") in message


def test_any_damage_to_a_file_is_a_data_error_or_a_picture(tmp_path: Path) -> None:
    generator = np.random.default_rng(7)
    path = tmp_path / "a"
    for form in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        buffer = io.BytesIO()
        quarters().save(buffer, form)
        for _ in range(40):
            data = np.frombuffer(buffer.getvalue(), np.uint8).copy()
            places = generator.integers(0, min(len(data), 400), 5)
            data[places] = generator.integers(0, 256, 5)
            path.write_bytes(data.tobytes())
            assert outcome(path) in ((8, 8, 3), "one line"), outcome(path)


def outcome(path: Path) -> tuple[int, ...] | str:
    try:
        return Preprocessing(size=8).pixels(path).shape
    except DataError as error:
        return "one line" if str(error).startswith(f"{path}: ") and "\n" not in str(error) else repr(error)


MEASURE = r"""
import re, sys
from pathlib import Path
from regard.data import Preprocessing
from regard.errors import DataError
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        print(path.name, Preprocessing(size=96, fit=sys.argv[2]).pixels(path).shape)
    except DataError as error:
        print(path.name, error)
# getrusage would count what the process that started this one holds.
print(int(re.search(r"VmHWM:\s+([0-9]+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def measured(folder: Path, fit: str) -> tuple[dict[str, bool], int]:
    """Read every file of a folder in a process of its own; return which were read, and its peak memory in MB."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(folder), fit], capture_output=True, text=True, check=True)
    *lines, peak = done.stdout.splitlines()
    return {line.split(".")[0]: line.endswith("(96, 96, 3)") for line in lines}, int(peak)


def test_very_wide_pictures_and_bombs_stay_far_below_a_gigabyte(tmp_path: Path) -> None:
    wide = Image.new("P", (50_000, 300), 3)
    wide.save(tmp_path / "palette.png", compress_level=1)
    wide.convert("RGB").resize((50_000, 500)).save(tmp_path / "plain.jpg")
    write_png_header(tmp_path / "bomb.png", 13_000, 13_000)
    write_png_header(tmp_path / "large.png", 60_000, 60_000)
    read, peak = measured(tmp_path, "stretch")
    assert read == {"bomb": False, "large": False, "palette": True, "plain": True}
    assert peak < 500


@pytest.mark.slow
@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_the_largest_pictures_that_are_read_stay_below_a_gigabyte(tmp_path: Path, fit: str) -> None:
    wide = Image.new("RGB", (50_000, 2000), (1, 2, 3))  # 100 million pixels
    wide.save(tmp_path / "plain.png", compress_level=1)
    wide.save(tmp_path / "plain.jpg")
    wide.convert("CMYK").save(tmp_path / "cmyk.jpg")
    wide.convert("RGBA").save(tmp_path / "alpha.png", compress_level=1)
    wide.crop((0, 0, 50_000, 1200)).save(tmp_path / "progressive.jpg", progressive=True)
    wide.crop((0, 0, 50_000, 1000)).save(tmp_path / "strip.tif", compression="tiff_lzw", tiffinfo={278: 1000})
    wide.crop((0, 0, 16_000, 1500)).save(tmp_path / "wide.webp", quality=50, method=0)
    Image.new("1", (100_000_000, 1)).save(tmp_path / "widest.png")
    read, peak = measured(tmp_path, fit)
    assert all(read.values()), read
    assert peak < 1000 - 250  # a model and its libraries need room beside


def test_a_budget_of_memory_is_what_the_limit_follows_from(tmp_path: Path) -> None:
    write_png_header(tmp_path / "a.png", 1_000, BUDGET // 4000)
    with pytest.raises(DataError, match="truncated"):  # small enough to be tried
        Preprocessing(size=8).pixels(tmp_path / "a.png")
    write_png_header(tmp_path / "a.png", 1_000, BUDGET // 4000 + 1)
    with pytest.raises(DataError, match="pixels, expected at most"):
        Preprocessing(size=8).pixels(tmp_path / "a.png")


def test_a_folder_is_its_images_in_natural_order_and_other_files_are_counted(tmp_path: Path) -> None:
    for name in ("10.jpg", "9.JPG", "b.png", "a2.webp", "a10.webp", "notes.md", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "sub.jpg").mkdir()
    found = expand_images([tmp_path / "b.png", tmp_path, "missing.jpg"])
    assert [path.name for path in found.paths] == ["b.png", "9.JPG", "10.jpg", "a2.webp", "a10.webp", "b.png", "missing.jpg"]
    assert found.ignored == 2


def test_a_list_names_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"b.jpg\n\n{tmp_path}/x/a.jpg\n")
    assert expand_images([tmp_path / "list.txt"]).paths == (tmp_path / "b.jpg", tmp_path / "x" / "a.jpg")


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.md").touch()
    with pytest.raises(DataError, match="1 file, none with the ending of an image"):
        expand_images([tmp_path])
    assert expand_images([]).paths == ()


@pytest.mark.parametrize("turned", [1, 3, 6])
@pytest.mark.parametrize(("fit", "keep"), [("stretch", 1.0), ("stretch", 0.5), ("crop", 1.0), ("crop", 0.5)])
@pytest.mark.parametrize("size", [(160, 96), (96, 160), (96, 96)])
def test_boxes_of_an_image_move_with_what_a_model_sees_of_it(
    tmp_path: Path, size: tuple[int, int], fit: str, keep: float, turned: int
) -> None:
    how = Preprocessing(size=96, fit=fit, keep=keep, resample="bilinear")  # type: ignore[arg-type]
    for number, box in enumerate([(0.3, 0.4, 0.6, 0.55), (0.0, 0.0, 0.45, 0.5), (0.0, 0.0, 0.1, 0.1), (0.0, 0.0, 1.0, 1.0)]):
        upright = Image.new("L", size)
        left, top, right, bottom = (round(edge * side) for edge, side in zip(box, size * 2, strict=True))
        upright.paste(255, (left, top, right, bottom))
        exif = Image.Exif()
        exif[0x0112] = turned
        # Turned back by the orientation, it is upright again.
        stored = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}[turned]
        path = tmp_path / f"{number}.png"
        (upright if stored is None else upright.transpose(stored)).save(path, exif=exif)
        rows, columns = np.nonzero(how.pixels(path)[..., 0] > 127)
        found = how.visible_boxes([box], path)
        if not len(rows):
            assert not found or (found[0][2] - found[0][0]) * (found[0][3] - found[0][1]) < 1e-3
            continue
        expected = columns.min() / 96, rows.min() / 96, (columns.max() + 1) / 96, (rows.max() + 1) / 96
        assert found[0] == pytest.approx(expected, abs=0.03)
