"""Tokens made visible, and their width."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.viewer.text import clusters, display_width, fit_width, plain_text, visible

TEXT = st.text(st.characters(), max_size=13)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("house", "house"),
        (" the", "\u2423the"),
        ("\u00a0\u3000", "\u2423\u2423"),
        ("\t", "\u21e5"),
        ("\r\n", "\u21b5\u21b5"),
        ("\u2028\x85", "\u21b5\u21b5"),
        ("\x1b[2J", "\u241b[2J"),
        ("\x00\x7f\x9b", "\u2400\u2421\ufffd"),
        ("\u202eevil\u2066", "\ufffdevil\ufffd"),
        ("\ud800", "\ufffd"),
        ("", "\u2205"),
        ("\u0301", "\u25cc\u0301"),
        ("e\u0301", "e\u0301"),
        ("می\u200cروم", "می\u200cروم"),
    ],
)
def test_each_token_is_shown_as_in_the_table(token, shown):
    assert visible(token) == shown


@settings(max_examples=200, deadline=None)
@given(TEXT)
def test_shown_text_holds_nothing_that_controls_a_terminal_or_breaks_a_line(token):
    shown = visible(token)
    assert shown
    assert len(shown.splitlines()) == 1
    bad = {unicodedata.category(character) for character in shown if character not in "\u200c\u200d"}
    assert not bad & {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}
    shown.encode("utf-8")


@settings(max_examples=200, deadline=None)
@given(TEXT)
def test_plain_text_keeps_its_spaces_and_nothing_that_controls(text):
    shown = plain_text(text)
    assert "\u2423" not in shown or "\u2423" in text
    assert not {unicodedata.category(character) for character in shown if character not in "\u200c\u200d"} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "width"), [("", 0), ("abc", 3), ("東京", 4), ("e\u0301", 1), ("\uff41", 2), ("한국", 4), ("😀", 2), ("שלום", 4)]
)
def test_width_counts_wide_characters_twice_and_marks_not_at_all(text, width):
    assert display_width(text) == width


@settings(max_examples=200, deadline=None)
@given(TEXT, st.integers(1, 11))
def test_text_fits_and_its_letters_join_again(token, width):
    shown = visible(token)
    assert "".join(clusters(shown)) == shown
    assert max(map(display_width, clusters(shown))) <= 2
    cut = fit_width(shown, width)
    assert display_width(cut) <= width
    assert cut == shown or cut.endswith("…")


def test_a_wide_character_is_never_halved():
    assert fit_width("東京都", 4) == "東…"
    assert fit_width("東京都", 5) == "東京…"
    assert fit_width("東京都", 6) == "東京都"
