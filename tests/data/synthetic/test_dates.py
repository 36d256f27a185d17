"""Dates: spelled as CLDR has it, exactly solvable, links kept through the noise, a clean split."""

from __future__ import annotations

import datetime
import time
from collections import Counter

import pytest
from babel import Locale
from babel.dates import format_date

from regard.data.synthetic.dates import LOCALES, DateExample, date_styles, fold, generate_dates, render_date, split_dates
from regard.errors import ConfigError

CLDR = ("full", "long", "medium", "short")
NATIVE = {"ar_EG": "٠١٢٣٤٥٦٧٨٩", "bn": "০১২৩৪৫৬৭৮৯"}


@pytest.fixture(scope="module")
def examples() -> list[DateExample]:
    return generate_dates(20_011, seed=3)


@pytest.mark.parametrize("locale", LOCALES)
def test_pattern_styles_are_those_of_babel(locale: str) -> None:
    native = str.maketrans("0123456789", NATIVE.get(locale, "0123456789"))
    for number in range(0, 36_500, 173):
        date = datetime.date(1950, 1, 1) + datetime.timedelta(number)
        for style in set(date_styles(locale)) & set(CLDR):
            babel = format_date(date, style, locale)
            assert render_date(date, locale, style) == babel.translate(native), (date, style)


def test_native_digits_are_used_where_cldr_says_so() -> None:
    systems = {locale: Locale.parse(locale).default_numbering_system for locale in LOCALES}
    assert {locale for locale, system in systems.items() if system != "latn"} == set(NATIVE)


def test_english_ordinals_are_spelled_right() -> None:
    endings = {1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 22: "22nd", 23: "23rd", 30: "30th"}
    for day, ordinal in endings.items():
        assert render_date(datetime.date(1987, 3, day), "en_GB", "ordinal of") == f"{ordinal} of March 1987"
    assert render_date(datetime.date(1987, 3, 31), "en_US", "ordinal full") == "Tuesday, March 31st, 1987"


def test_no_text_means_two_dates() -> None:
    # Every day, in every style, of years some of whose two-digit forms are also days and months.
    meanings: dict[str, datetime.date] = {}
    for year in (2003, 2007, 2012, 1950, 2031):
        for number in range(366 if year == 2012 else 365):
            date = datetime.date(year, 1, 1) + datetime.timedelta(number)
            for locale in LOCALES:
                for style in date_styles(locale):
                    text = fold(render_date(date, locale, style))
                    assert meanings.setdefault(text, date) == date, (text, locale, style)


def test_no_noisy_text_means_two_dates(examples: list[DateExample]) -> None:
    meanings: dict[str, str] = {}
    for example in examples:
        assert meanings.setdefault(fold(example.source), example.target) == example.target


def test_excluded_short_styles_would_collide() -> None:
    third_of_april = format_date(datetime.date(2005, 4, 3), "short", "en_US")
    assert third_of_april == render_date(datetime.date(2005, 3, 4), "es", "short")
    with pytest.raises(ConfigError, match="style 'short' of en_US"):
        render_date(datetime.date(2005, 4, 3), "en_US", "short")


def value(text: str) -> str:
    """Return the number a field shows, or the folded name of a month."""
    digits = "".join(str(int(character)) for character in text if character.isdecimal())
    return digits.lstrip("0") if digits else fold(text)


def test_links_point_at_the_field_through_all_noise(examples: list[DateExample]) -> None:
    for example in examples:
        assert len(example.links) == len(example.target) == 10
        assert [link is None for link in example.links] == [character == "-" for character in example.target]
        assert len(set(example.links[:4])) == len(set(example.links[5:7])) == len(set(example.links[8:])) == 1
        date = datetime.date.fromisoformat(example.target)
        year, month, day = (value(example.source[slice(*example.links[place])]) for place in (0, 5, 8))  # type: ignore[misc]
        assert year in (str(date.year), f"{date.year % 100}".lstrip("0")), example
        assert day == str(date.day), example
        data = Locale.parse(example.locale)
        names = {fold(data.months[form][width][date.month]) for form in ("format", "stand-alone") for width in ("wide", "abbreviated")}
        assert month in {str(date.month)} | names | {fold(name.upper()) for name in names} | {value(name) for name in names}, example


def test_every_locale_style_and_kind_of_noise_occurs(examples: list[DateExample]) -> None:
    assert {(example.locale, example.style) for example in examples} == {
        (locale, style) for locale in LOCALES for style in date_styles(locale)
    }
    assert len(LOCALES) >= 14
    clean = [render_date(datetime.date.fromisoformat(item.target), item.locale, item.style) for item in examples]
    noisy = [(item.source, text) for item, text in zip(examples, clean, strict=True) if item.source != text]
    assert 0.25 < len(noisy) / len(examples) < 0.5
    kinds = Counter(
        name
        for source, text in noisy
        for name, there in {
            "upper": source.isupper() and not text.isupper(),
            "case": source.casefold() == text.casefold(),
            "doubled": "  " in source,
            "dropped": source == "".join(text.split()),
            "comma": source == text.replace(",", ""),
            "stop": source == text + ".",
            "opening": source.endswith(" " + text),
        }.items()
        if there
    )
    assert min(kinds.values()) > 100
    assert len(kinds) == 7


def test_years_cover_the_range_evenly(examples: list[DateExample]) -> None:
    years = Counter(int(example.target[:4]) for example in examples)
    assert (min(years), max(years), len(years)) == (1950, 2049, 100)
    assert max(years.values()) < 2 * min(years.values())


def test_example_depends_on_seed_and_number_only() -> None:
    whole = generate_dates(211, seed=5)
    assert generate_dates(101, seed=5) == whole[:101]
    assert generate_dates(101, seed=5, start=53) == whole[53:154]
    assert generate_dates(211, seed=6) != whole
    assert generate_dates(0, seed=5) == []
    assert {example.locale for example in generate_dates(53, seed=5, locales=["ja", "de"])} == {"ja", "de"}


def test_without_noise_texts_are_the_clean_ones() -> None:
    for example in generate_dates(211, seed=5, noise=False):
        assert example.source == render_date(datetime.date.fromisoformat(example.target), example.locale, example.style)


def test_thirty_thousand_examples_take_seconds() -> None:
    begin = time.process_time()
    generate_dates(30_000, seed=1)
    assert time.process_time() - begin < 6


def test_split_shares_no_text_and_a_longer_training_set_begins_with_the_shorter() -> None:
    train, held_out = split_dates(3001, 503, seed=7)
    assert (len(train), len(held_out)) == (3001, 503)
    assert not {fold(example.source) for example in train} & {fold(example.source) for example in held_out}
    assert len({example.source for example in train}) == 3001
    assert len({example.source for example in held_out}) == 503
    shorter, same = split_dates(1009, 503, seed=7)
    assert (shorter, same) == (train[:1009], held_out)
    assert split_dates(0, 0, seed=7) == ([], [])


def test_wrong_arguments_are_named() -> None:
    for call in (lambda: generate_dates(-1, seed=1), lambda: generate_dates(1, seed=1, start=-1), lambda: split_dates(-1, 1, seed=1)):
        with pytest.raises(ConfigError, match="-1"):
            call()
    with pytest.raises(ConfigError, match="locale 'xx'"):
        generate_dates(1, seed=1, locales=["de", "xx"])
    with pytest.raises(ConfigError, match="locale 'xx'"):
        date_styles("xx")
    with pytest.raises(ConfigError, match="year 1949"):
        render_date(datetime.date(1949, 12, 31), "de", "long")
