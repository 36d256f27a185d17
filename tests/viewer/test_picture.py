"""Pictures written by matplotlib."""

from __future__ import annotations

import struct
import warnings

import numpy as np
import pytest

from regard.errors import DataError
from regard.viewer import AttentionRecord, save_picture

RECORD = AttentionRecord.alignment(["das", "Haus", " ist"], ["the", "house"], [[0.8, 0.1, 0.1], [0.0, 0.9, 0.1]], title="a title")
STARTS = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF-"}


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
