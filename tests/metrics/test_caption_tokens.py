"""The caption tokenizer against what Stanford CoreNLP 3.4.1 makes of the same captions, punctuation left out."""

from __future__ import annotations

import pytest

from regard.metrics import caption_tokens

# Right: the output of pycocoevalcap's PTBTokenizer, run with Java.
OFFICIAL = {
    "A man's T-shirt doesn't fit, at 10:30 p.m.": "a man 's t-shirt does n't fit at 10:30 p.m.",
    "He can't and cannot go; they're gonna leave.": "he ca n't and can not go they 're gon na leave",
    "Mr. Smith (left) and Dr. Who.": "mr. smith -lrb- left -rrb- and dr. who",
    'A 20-year-old woman\'s "red" car, $5.00 off!': "a 20-year-old woman 's red car $ 5.00 off",
    "a sign reading 50% off": "a sign reading 50 % off",
    "it's the '80s": "it 's the '80s",
    "A boy in a #3 jersey": "a boy in a # 3 jersey",
    "dogs' toys": "dogs toys",
    "O'Brien's pub": "o'brien 's pub",
    "Men & women at AT&T park": "men & women at at&t park",
    "an old-fashioned 1,000-year-old clock": "an old-fashioned 1,000-year-old clock",
    "half-eaten sandwich,fries": "half-eaten sandwich fries",
    "a café table": "a café table",
    "I'd've gone": "i 'd 've gone",
    "five o'clock": "five o'clock",
    "[red] {blue}": "-lsb- red -rsb- -lcb- blue -rcb-",
    "A cat - sleeping -- on a couch...": "a cat sleeping on a couch",
    "a 4x4 truck with a 2nd wheel at 5pm": "a 4x4 truck with a 2nd wheel at 5pm",
    "e-mail me@x.com": "e-mail me@x.com",
    "black-and-white photo of U.S. soldiers": "black-and-white photo of u.s. soldiers",
}


@pytest.mark.parametrize("text", OFFICIAL)
def test_tokens_are_those_of_the_official_tokenizer(text: str) -> None:
    assert caption_tokens(text) == OFFICIAL[text].split()


def test_typographic_quotes_and_dashes_are_plain_ones() -> None:
    assert caption_tokens("a dog\u2019s \u201cball\u201d \u2014 red\u2026") == ["a", "dog", "'s", "ball", "red"]


@pytest.mark.parametrize("text", ["", "   ", ". , ! '' -- \"", "\n"])
def test_a_text_without_words_has_no_tokens(text: str) -> None:
    assert caption_tokens(text) == []


def test_tokens_joined_by_spaces_give_the_same_tokens() -> None:
    for text in OFFICIAL.values():
        if "-lrb-" not in text and "-lsb-" not in text and "can not" not in text:
            assert caption_tokens(" ".join(caption_tokens(text))) == caption_tokens(text)
