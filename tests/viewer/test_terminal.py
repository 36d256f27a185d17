"""Matrices drawn in a terminal."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import DataError
from regard.viewer import AttentionMap, AttentionRecord, Grid, render_alignment
from regard.viewer.terminal import SHADES
from regard.viewer.text import display_width
from tests.viewer import samples

RECORD = AttentionRecord.alignment(["das", "Haus", "ist", "klein", "."], ["the", "house", "is"], np.eye(3, 5) * 0.8 + 0.01, title="a title")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def _marks(line: str) -> str:
    return re.sub(rf"[^{SHADES}]", "", line)


def test_small_scores_of_a_method_have_digits():
    record = AttentionRecord.alignment(["das", "Haus"], ["house"], [[0.0000123, 0.0000456]])
    assert "Haus 4.6e-05" in render_alignment(record, width=60, color=False)


def test_rows_are_targets_columns_are_sources_and_shades_follow_the_weights():
    weights = [[0.0, 0.15, 0.35], [0.6, 0.9, 1.0]]
    lines = render_alignment(AttentionRecord.alignment(["aa", "bb", "cc"], ["x", "y"], weights), width=60, color=False).splitlines()
    assert lines[0].split() == ["aa", "bb", "cc"]
    assert lines[1].split() == ["x", "·", "░░", "▒▒", "cc", "0.35"]
    assert lines[2].split() == ["y", "▓▓", "██", "██", "cc", "1.00"]
    columns = [lines[0].index(name) for name in ("aa", "bb", "cc")]
    assert [lines[2][column : column + 2] for column in columns] == ["▓▓", "██", "██"]


def test_the_title_comes_first_and_the_legend_names_the_weights_where_shades_begin():
    text = render_alignment(RECORD, width=90, color=False)
    assert text.splitlines()[0] == "a title"
    assert text.splitlines()[-1] == "·  below 0.081  ░░ from 0.081  ▒▒ from 0.24  ▓▓ from 0.41  ██ from 0.61"


def test_colour_adds_escapes_and_changes_nothing_else():
    plain, colored = (render_alignment(RECORD, width=70, color=color) for color in (False, True))
    assert "\x1b" not in plain
    assert "\x1b[38;5;" in colored
    assert ESCAPE.sub("", colored) == plain


def test_words_that_do_not_fit_across_hang_down_to_their_columns():
    text = render_alignment(RECORD, width=24, color=False)
    lines = text.splitlines()[2:]
    assert [line.strip().replace(" ", "") for line in lines[:5]] == ["k", "Hl", "daie", "ausi", "sstn."]
    assert lines[5].startswith("  the ██ ·")


def test_wide_characters_keep_the_columns_straight():
    record = AttentionRecord.alignment(["東京", "は", "e\u0301"], ["Tokyo", "日本"], [[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    lines = render_alignment(record, width=50, color=False).splitlines()
    assert display_width(lines[0][: lines[0].index("東京")]) == display_width(lines[1][: lines[1].index("██")]) - 1
    assert display_width(lines[2][: lines[2].index("日本")]) == 1
    assert display_width(lines[1][: lines[1].rindex("·")]) == display_width(lines[2][: lines[2].rindex("██")])


def test_white_space_is_visible_and_control_characters_never_reach_the_terminal():
    record = AttentionRecord.alignment(
        [" the", "\x1b[2J", "\n"], ["\x07", "\t"], [[0.3, 0.4, 0.3], [0.3, 0.3, 0.4]], title="\x1b]0;title\x07"
    )
    text = render_alignment(record, width=80, color=False)
    assert "␣the" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_long_inputs_are_cut_with_a_note_of_how_much():
    record = AttentionRecord.alignment(["s"] * 97, ["t"] * 53, np.full((53, 97), 1 / 97))
    lines = render_alignment(record, width=62, color=False, height=31).splitlines()
    assert lines[-1] == "not shown: 67 source tokens, 22 target tokens"
    rows = [line for line in lines if line.startswith("t ")]
    assert len(rows) == 31
    assert {_marks(row) for row in rows} == {"██" * 30}


@pytest.mark.parametrize(("source", "target", "side"), [([], ["x"], "source"), (["x"], [], "target"), ([], [], "source")])
def test_a_side_without_tokens_is_said_in_words(source, target, side):
    text = render_alignment(AttentionRecord.alignment(source, target, []), width=60, color=False)
    assert text == f"(no {side} tokens: nothing to draw)"


def test_weights_of_zero_are_drawn_as_the_lightest_shade():
    text = render_alignment(AttentionRecord.alignment(["a", "b"], ["x"], [[0.0, 0.0]]), width=40, color=False)
    assert _marks(text.splitlines()[1]) == "··"


def test_one_cell_is_drawn():
    lines = render_alignment(AttentionRecord.alignment(["a"], ["x"], [[1.0]]), width=20, color=False).splitlines()
    assert lines[1].split() == ["x", "██", "a", "1.00"]


@settings(max_examples=60, deadline=None)
@given(
    source=st.lists(st.text(st.characters(), max_size=30), min_size=1, max_size=23),
    target=st.lists(st.text(st.characters(), max_size=30), min_size=1, max_size=7),
    width=st.integers(20, 120),
)
def test_no_line_is_wider_than_the_terminal(source, target, width):
    weights = np.linspace(0, 1, len(source) * len(target)).reshape(len(target), len(source))
    text = render_alignment(AttentionRecord.alignment(source, target, weights, title="t" * 40), width=width, color=True)
    assert max(display_width(ESCAPE.sub("", line)) for line in text.split("\n")) <= width


@pytest.mark.parametrize(("width", "height"), [(19, 5), (40, 0)])
def test_a_terminal_too_small_is_a_data_error(width, height):
    with pytest.raises(DataError, match=f"width {width}, height {height}"):
        render_alignment(RECORD, width=width, color=False, height=height)


def test_right_to_left_words_stay_above_their_columns() -> None:
    record = AttentionRecord.alignment(["\u05d0\u05d1", "\u05d2\u05d3"], ["\u05d4", "x"], [[0.9, 0.1], [0.2, 0.8]])
    header, first, second, *_ = render_alignment(record, width=60, color=False).splitlines()
    # A terminal that writes neighbouring words of such a script from right to left would exchange them; not what is isolated.
    assert header.split() == ["\u2068\u05d0\u05d1\u2069", "\u2068\u05d2\u05d3\u2069"]
    assert first.startswith("\u2068\u05d4\u2069 ")
    assert first.endswith("\u2068\u05d0\u05d1\u2069 0.90")
    assert second.startswith("x ")
    plain = render_alignment(AttentionRecord.alignment(["ab", "cd"], ["e", "x"], [[0.9, 0.1], [0.2, 0.8]]), width=60, color=False)
    assert [display_width(line) for line in (header, first, second)] == [display_width(line) for line in plain.splitlines()[:3]]


def _captioned(words: list[str], weights: object, rows: int, columns: int) -> AttentionRecord:
    items = {"image": Grid(rows, columns), "caption": words}
    return AttentionRecord(items, [AttentionMap("weights", "image", "caption", "image", weights)])


def test_an_image_is_a_block_of_shades_for_each_word_below_it() -> None:
    weights = [[0.0, 0.15, 0.35, 0.6, 0.9, 1.0], [1.0, 0.0, 0.0, 0.0, 0.0, 0.1]]
    assert render_alignment(_captioned(["a", "red"], weights, 2, 3), width=70, color=False).splitlines() == [
        "a       red",
        "· ░░▒▒  ██· ·",
        "▓▓████  · · ░░",
        "",
        "·  below 0.1  ░░ from 0.1  ▒▒ from 0.3  ▓▓ from 0.5  ██ from 0.75",
    ]


@pytest.mark.parametrize(
    ("width", "across", "cell"), [(102, 4, 2), (101, 3, 2), (76, 3, 2), (49, 1, 2), (24, 1, 2), (23, 1, 1), (20, 1, 1)]
)
def test_as_many_blocks_are_side_by_side_as_fit(width: int, across: int, cell: int) -> None:
    lines = render_alignment(_captioned(["x"] * 4, np.eye(4, 144), 12, 12), width=width, color=False).splitlines()
    assert [len(line.split()) for line in lines if line.startswith("x")] == [across] * (4 // across) + [4 % across] * (4 % across > 0)
    assert lines[1].startswith("█" * cell + ("·" if cell == 1 else "· "))
    assert len(_marks(lines[1].replace("██", "█"))) == 12 * across
    assert max(map(len, lines)) <= width
    assert "not shown" not in lines[-1]


def test_rows_columns_and_words_that_do_not_fit_are_counted() -> None:
    text = render_alignment(_captioned(["x"] * 5, np.full((5, 30 * 31), 0.1), 30, 31), width=30, height=3, color=False)
    lines = text.splitlines()
    assert lines[:5] == ["x", *["█" * 30] * 3, ""]
    assert lines[-1] == "not shown: 27 rows, 1 column,…"


def test_more_steps_than_a_page_shows_are_a_matrix() -> None:
    header = render_alignment(_captioned(["x"] * 61, np.full((61, 4), 0.25), 2, 2), width=60, color=False).splitlines()[0]
    assert header.split() == ["1,1", "1,2", "2,1", "2,2"]


def test_one_cell_has_room_for_its_word() -> None:
    record = _captioned(["house", "\u6771\u4eac", "w" * 30, "\u05d0\u05d1", ""], np.ones((5, 1)), 1, 1)
    lines = render_alignment(record, width=66, color=False).splitlines()
    assert lines[:2] == [f"{'house':22}\u6771\u4eac{' ' * 18}{'w' * 19}\u2026", f"{'██':22}{'██':22}██"]
    assert lines[3:5] == [f"\u2068\u05d0\u05d1\u2069{' ' * 20}\u2205", f"{'██':22}██"]


def test_a_text_with_an_image_has_a_matrix_and_blocks() -> None:
    text = render_alignment(samples.two_inputs(), width=80, color=False)
    matrix, _, blocks = text.partition("from 0.63\n\n")
    assert "Der" in matrix
    assert blocks.startswith("The             ␣big ")
    assert "Der" not in render_alignment(samples.two_inputs(), width=80, color=False, map="alignment, image")


@settings(max_examples=40, deadline=None)
@given(
    words=st.lists(st.text(st.characters(), max_size=30), min_size=1, max_size=7),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 40)),
    width=st.integers(20, 120),
)
def test_no_line_of_an_image_is_wider_than_the_terminal(words: list[str], shape: tuple[int, int], width: int) -> None:
    weights = np.linspace(0, 1, len(words) * shape[0] * shape[1]).reshape(len(words), -1)
    text = render_alignment(_captioned(words, weights, *shape), width=width, color=True)
    assert max(display_width(ESCAPE.sub("", line)) for line in text.split("\n")) <= width
