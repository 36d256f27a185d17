"""Pictures written by matplotlib."""

from __future__ import annotations

import base64
import html
import io
import re
import struct
import warnings
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.errors import DataError
from regard.viewer import AttentionMap, AttentionRecord, Grid, save_picture
from tests.viewer import samples

RECORD = AttentionRecord.alignment(["das", "Haus", " ist"], ["the", "house"], [[0.8, 0.1, 0.1], [0.0, 0.9, 0.1]], title="a title")
STARTS = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF-"}


def _captioned(words: list[str], weights: object, grid: Grid) -> AttentionRecord:
    return AttentionRecord({"image": grid, "caption": words}, [AttentionMap("weights", "image", "caption", "image", weights)])


def _plain(color: tuple[int, int, int], kind: str = "PNG", size: tuple[int, int] = (40, 30)) -> str:
    """An image of one color as a data address."""
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, kind)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def _size(png: bytes) -> tuple[int, int]:
    return struct.unpack(">II", png[16:24])


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "PNG"])
def test_the_ending_chooses_the_format_and_the_same_record_gives_the_same_bytes(tmp_path, ending):
    one, two = tmp_path / f"one.{ending}", tmp_path / f"two.{ending}"
    save_picture(RECORD, one)
    save_picture(RECORD, str(two))
    assert one.read_bytes().startswith(STARTS[ending.lower()])
    assert one.read_bytes() == two.read_bytes()
    assert b"CreationDate" not in one.read_bytes()  # two files of the same second would be equal with it


@pytest.mark.parametrize("name", ["a.gif", "a", "png", "a.png.txt"])
def test_another_ending_is_a_data_error_that_names_the_known_ones(tmp_path, name):
    with pytest.raises(DataError, match=r"expected a name that ends in \.png, \.svg or \.pdf"):
        save_picture(RECORD, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 61), (61, 1), (23, 29)])
def test_sizes_follow_the_matrix_and_stay_within_reason(tmp_path, rows, columns):
    weights = np.full((rows, columns), 1 / columns)
    save_picture(AttentionRecord.alignment(["s"] * columns, ["t"] * rows, weights), tmp_path / "a.png")
    width, height = _size((tmp_path / "a.png").read_bytes())
    assert 100 <= width <= 3500
    assert 100 <= height <= 3500
    if rows != columns:
        assert (width > height) == (columns > rows)


def test_two_hundred_tokens_a_side_make_a_readable_file_of_bearable_size(tmp_path):
    weights = np.eye(199, 197) + 0.001
    save_picture(AttentionRecord.alignment(["ss"] * 197, ["tt"] * 199, weights), tmp_path / "a.svg")
    content = (tmp_path / "a.svg").read_bytes()
    assert 100_000 < len(content) < 3_000_000
    assert b"<image" in content  # the cells, drawn as one image


def test_letters_without_a_font_control_characters_and_mathematics_are_drawn_without_a_word(tmp_path, capfd, caplog):
    tokens = ["\U00012000", "東京", "$x^2$", "$\\frac", "\x1b[2J", "", "\ud800", "שלום", "\u0e01"]
    record = AttentionRecord.alignment(tokens, ["_{a}", "b"], np.full((2, len(tokens)), 0.1), title="$\\broken{ \U00012000")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_picture(record, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(STARTS["png"])
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_labels_are_the_tokens_with_white_space_visible(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        save_picture(AttentionRecord.alignment(["a&b", " ist"], ["$x$"], [[0.5, 0.5]], title="<two words>"), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for shown in (">a&amp;b<", ">␣ist<", ">$x$<", ">&lt;two words&gt;<", ">0.5<", ">0<"):
        assert shown in text


def test_the_global_state_of_matplotlib_is_left_alone(tmp_path):
    import matplotlib
    from matplotlib import _pylab_helpers

    before = dict(matplotlib.rcParams)
    save_picture(RECORD, tmp_path / "a.png")
    assert dict(matplotlib.rcParams) == before
    assert not _pylab_helpers.Gcf.figs


@pytest.mark.parametrize(("source", "target", "side"), [([], ["x"], "source"), (["x"], [], "target")])
def test_a_record_without_tokens_is_a_data_error(tmp_path, source, target, side):
    with pytest.raises(DataError, match=f"no {side} tokens"):
        save_picture(AttentionRecord.alignment(source, target, []), tmp_path / "a.png")


def test_weights_of_zero_are_drawn(tmp_path):
    save_picture(AttentionRecord.alignment(["a"], ["x"], [[0.0]]), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0


def _svg(record: AttentionRecord, folder: Path) -> str:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        save_picture(record, folder / "a.svg")
    return (folder / "a.svg").read_text(encoding="utf-8")


def _texts(svg: str) -> list[str]:
    return [html.unescape(text) for text in re.findall(r">([^<>]+)</text>", svg)]


def _pixels(tag: str) -> np.ndarray:
    coded = re.search(r"base64,\s*([A-Za-z0-9+/=]+)", tag)
    assert coded is not None
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(coded[1]))).convert("RGB"))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_record_of_an_image_gives_the_same_bytes(tmp_path, ending):
    one, two = tmp_path / f"one.{ending}", tmp_path / f"two.{ending}"
    save_picture(samples.image(), one)
    save_picture(samples.image(), two)
    assert one.read_bytes().startswith(STARTS[ending])
    assert one.read_bytes() == two.read_bytes()


def test_an_svg_file_holds_the_photograph_once_and_draws_it_before_the_words_and_under_each(tmp_path):
    text = _svg(samples.image(), tmp_path)
    assert _texts(text) == [*samples.CAPTION, "A caption", "a cell in full light: 0.3, in the dark: 0"]
    drawn = re.findall(r'<use xlink:href="#(image\w+)"', text)
    assert [drawn.count(drawn[0]), len(drawn)] == [6, 6 + 5]  # the photograph, and over five copies of it the weights
    stored = re.findall(r"<image [^>]*>", text)
    assert len(stored) == len(set(drawn)) == 6
    photograph = _pixels(samples.picture(350, 250))
    assert [np.array_equal(_pixels(tag), photograph) for tag in stored] == [True] + [False] * 5
    assert "pixelated" not in text
    xml.etree.ElementTree.fromstring(text)


@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (12, 12), (1, 5), (1, 1)])
def test_the_cell_with_the_highest_weight_is_the_brightest(tmp_path, rows, columns):
    cells = np.random.default_rng(3).permutation(rows * columns)[:4]
    weights = np.full((4, rows * columns), 0.01)
    weights[range(len(cells)), cells] = 0.9
    weights = weights[: len(cells)]
    red = Grid(rows, columns, _plain((255, 0, 0)), (4, 3))
    save_picture(_captioned(["x"] * len(cells), weights, red), tmp_path / "a.png")
    found = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).astype(int)
    is_red = (found[..., 0] > 230) & (found[..., 1:].max(-1) < 25)
    left, wide = 30, 240  # the margin and a panel in pixels
    high = np.flatnonzero(is_red[:, left + 10])
    assert is_red[high[0] : high[-1] + 1, left : left + wide].mean() > 0.97
    for number, cell in enumerate(cells, start=1):
        start = left + number * (wide + 21)
        panel = found[high[0] : high[-1] + 1, start : start + wide, 0]
        y, x = [np.linspace(0, size, 2 * count + 1)[1::2].astype(int) for size, count in zip(panel.shape, (rows, columns), strict=True)]
        light = panel[np.ix_(y, x)]
        assert int(light.argmax()) == cell
        assert light.max() > 250
        assert (light < 90).sum() == rows * columns - 1


@pytest.mark.parametrize(("words", "across", "down"), [(1, 2, 1), (4, 5, 1), (5, 5, 2), (60, 5, 13)])
def test_panels_wrap_after_five(tmp_path, words, across, down):
    save_picture(_captioned(["x"] * words, np.full((words, 4), 0.25), Grid(2, 2, _plain((9, 9, 9)))), tmp_path / "a.png")
    width, height = _size((tmp_path / "a.png").read_bytes())
    assert width == pytest.approx(2 * 30 + across * 240 + (across - 1) * 21, abs=4)
    assert height == pytest.approx(2 * 30 + down * (240 + 45) + 36, abs=30)


def test_more_steps_than_a_page_shows_are_a_matrix(tmp_path):
    text = _svg(_captioned(["x"] * 61, np.full((61, 4), 0.25), Grid(2, 2, _plain((9, 9, 9)))), tmp_path)
    assert {"1,1", "2,2"} <= set(_texts(text))
    assert '<use xlink:href="#image' not in text


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 4), (1, 49), (49, 1), (120, 120)])
def test_without_a_photograph_the_cells_are_drawn_in_the_colors_of_a_matrix(tmp_path, rows, columns):
    weights = np.zeros((2, rows * columns))
    weights[:, -1] = [0.5, 1.0]
    text = _svg(_captioned(["a", "b"], weights, Grid(rows, columns)), tmp_path)
    assert _texts(text) == ["a", "b", "0", "0.5", "1"]
    assert ("#3b2560" in text) == (rows * columns < 10_000)  # the darkest color; many cells are one image for each word
    save_picture(_captioned(["a", "b"], weights, Grid(rows, columns)), tmp_path / "a.png")
    width, height = _size((tmp_path / "a.png").read_bytes())
    assert 500 < width < 800
    assert 80 < height < 900


def test_words_over_an_image_are_cut_to_their_panel_and_keep_their_letters(tmp_path):
    words = ["w" * 40, "\u05e9\u05dc\u05d5\u05dd", "\u6771\u4eac\u90fd", "$x$", "<b>", "", " a"]
    record = _captioned(words, np.full((7, 4), 0.1), Grid(2, 2, _plain((200, 9, 9))))
    shown = _texts(_svg(record, tmp_path))
    assert shown[:7] == ["w" * 17 + "\u2026", *words[1:5], "\u2205", "\u2423a"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_every_type_of_image_is_drawn_and_a_large_one_is_made_smaller(tmp_path, kind):
    text = _svg(_captioned(["a"], [[1.0]], Grid(1, 1, _plain((200, 9, 9), kind, (1200, 600)))), tmp_path)
    photograph = _pixels(re.findall(r"<image [^>]*>", text)[0])
    assert photograph.shape == (240, 480, 3)
    assert np.abs(photograph.astype(int) - [200, 9, 9]).max() < 12


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"])
def test_an_image_that_cannot_be_read_is_a_data_error(tmp_path, content):
    record = _captioned(["a"], [[1.0]], Grid(1, 1, "data:image/png;base64," + base64.b64encode(content).decode()))
    with pytest.raises(DataError, match=r"the image of the record cannot be read \(UnidentifiedImageError\)"):
        save_picture(record, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_scores_below_zero_are_in_the_dark(tmp_path):
    below = AttentionMap("effect", "image", "caption", "image", [[-0.5, 0.25]], method="effect")
    record = AttentionRecord({"image": Grid(1, 2, _plain((200, 9, 9))), "caption": ["a"]}, [below])
    assert _texts(_svg(record, tmp_path))[-1] == "a cell in full light: 0.25, in the dark: 0 or less"


@pytest.mark.parametrize("photograph", [True, False])
def test_a_text_with_an_image_has_its_matrix_and_the_panels_below(tmp_path, photograph):
    text = _svg(samples.two_inputs(photograph=photograph), tmp_path)
    assert [_texts(text).count(word) for word in ("Der", "The", "</s>")] == [1, 2, 2]
    assert text.count("<image") == (1 + 1 + 6 if photograph else 2)  # each legend of colors is an image
    save_picture(samples.two_inputs(), tmp_path / "a.png", map="alignment, image")
    alone = _size((tmp_path / "a.png").read_bytes())
    save_picture(samples.two_inputs(), tmp_path / "a.png")
    assert _size((tmp_path / "a.png").read_bytes())[1] > alone[1] + 300
