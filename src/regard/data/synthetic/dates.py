"""The generated set *dates*: a date as people write it, in many languages, to ISO `YYYY-MM-DD`.

Endless, seeded, exactly solvable, and it is known which characters of the source each target character comes from.

The patterns, month and weekday names are those of Unicode's CLDR as the installed Babel has them (another release of
Babel may spell some dates differently). Where two languages would write different dates the same way, as `3/4/05` in the
United States and in Spain, only one of them is used: with `/`, `.` and `-` the day comes first unless the year does.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from babel import Locale
from babel.dates import tokenize_pattern

from regard.data.lines import single_line
from regard.errors import ConfigError, shown
from regard.flags import takes_flags

FIRST_YEAR, LAST_YEAR = 1950, 2049  # two-digit years below 50 are 20xx, others 19xx
_FIRST_DAY = datetime.date(FIRST_YEAR, 1, 1).toordinal()
_DAYS = datetime.date(LAST_YEAR, 12, 31).toordinal() - _FIRST_DAY + 1

# The styles, by Babel's names, that each locale takes part with.
_ALL = ("full", "long", "medium", "short")
_LOCALES: dict[str, tuple[str, ...]] = {
    "en_US": ("full", "long", "medium"),  # short, M/d/yy, reads as d/M/yy in the locales below
    "en_GB": _ALL,
    "de": _ALL,
    "fr": _ALL,
    "es": _ALL,
    "it": _ALL,
    "pt": _ALL,
    "nl": _ALL,
    "sv": _ALL,
    "pl": _ALL,
    "cs": _ALL,
    "fi": _ALL,
    "hu": _ALL,
    "tr": _ALL,
    "ru": _ALL,
    "el": _ALL,
    "ar_EG": _ALL,
    "hi": _ALL,
    "bn": ("full", "long", "medium"),
    "th": ("full", "long", "medium"),  # short leaves the era out, and then the year is read as a Buddhist one
    "vi": _ALL,
    "ja": _ALL,
    "zh": _ALL,
    "ko": ("full", "long", "medium"),  # short, yy. M. d., reads as dd. MM. yy
}
LOCALES = tuple(_LOCALES)

# Zero of each numbering system that is not 0: CLDR's patterns leave it to the locale.
_ZEROS = {"arab": 0x660, "beng": 0x9E6}

# Ways to write English dates that CLDR has no pattern for; "dddd" is the day with its ending (3rd).
_ENGLISH: dict[str, dict[str, str]] = {
    "en_US": {
        "ordinal": "MMMM dddd, y",
        "ordinal full": "EEEE, MMMM dddd, y",
        "ordinal medium": "MMM dddd, y",
        "ordinal the": "MMMM 'the' dddd, y",
    },
    "en_GB": {
        "ordinal": "dddd MMMM y",
        "ordinal of": "dddd 'of' MMMM y",
        "ordinal full": "EEEE 'the' dddd 'of' MMMM y",
        "ordinal the": "'the' dddd 'of' MMMM, y",
        "hyphens": "d-MMM-y",
    },
}

# What may stand before a date in a sentence; none of them is a word or number of a date.
_OPENINGS: dict[str, tuple[str, ...]] = {
    "en_US": ("on", "date:", "dated", "due by"),
    "en_GB": ("on", "date:", "dated", "as of"),
    "de": ("am", "Datum:", "vom"),
    "fr": ("le", "date :", "Paris, le"),
    "es": ("el", "fecha:"),
    "it": ("il", "data:"),
    "pt": ("em", "data:"),
    "nl": ("op", "datum:"),
    "ru": ("дата:",),
}

Span = tuple[int, int]
Links = tuple[Span | None, ...]


class DateExample(NamedTuple):
    """A written date, its ISO form, and where in the source the target comes from.

    `links[i]` is the span of source characters (start, end) that determines character i of the target: that of the
    year for characters 0 to 3, of the month for 5 and 6, of the day for 8 and 9; None for the hyphens.
    """

    source: str
    target: str
    locale: str
    style: str
    links: Links


class _Part(NamedTuple):
    """A piece of a rendered date; `field` is "y", "M", "d", or empty for what determines nothing."""

    text: str
    field: str


@takes_flags
def generate_dates(count: int, *, seed: int, start: int = 0, locales: Sequence[str] = LOCALES, noise: bool = True) -> list[DateExample]:
    """Generate examples `start` to `start + count - 1` of the endless set with this seed.

    Example i depends on `seed`, i, `locales` and `noise` only: a longer list begins with the shorter one. Dates are
    uniform over 1950 to 2049, locales uniform over `locales`, styles uniform within the locale. The same source text may
    come twice, always with the same target, also when case and spaces are ignored.

    Args:
        count: examples, >= 0.
        seed: any integer.
        start: number of the first example, >= 0.
        locales: some of `LOCALES`.
        noise: let about half of the examples differ from the pattern: upper, lower or mixed case, doubled or missing
            spaces, missing commas, a final full stop, words before the date.

    Returns:
        The examples; an empty list for a count of 0.

    Raises:
        ConfigError: `count` or `start` is negative, or a locale is not one of `LOCALES`.

    Example:
        >>> example = generate_dates(1, seed=1, locales=["en_GB"], noise=False)[0]
        >>> example.source, example.target
        ('Sunday the 27th of March 1955', '1955-03-27')
        >>> [example.source[slice(*span)] for span in example.links if span][::2]
        ['1955', '1955', 'March', '27th']
    """
    if count < 0 or start < 0:
        raise ConfigError(f"count {count}, start {start}: expected 0 or more")
    unknown = [locale for locale in locales if locale not in _LOCALES]
    if unknown or not locales:
        raise ConfigError(f"locale {shown(unknown[0] if unknown else 'list')}: expected some of {', '.join(LOCALES)}")
    generator = random.Random()
    return [_example(generator, f"dates {seed} {number}", locales, noise) for number in range(start, start + count)]


def split_dates(train: int, held_out: int, seed: int) -> tuple[list[DateExample], list[DateExample]]:
    """Generate a training set and a held-out set that share no source text.

    The held-out examples are the first of the set whose sources differ; the training examples are those after them whose
    source is neither held out nor in the training set already. "Held out" is strict: a training source is also refused
    when it equals a held-out one but for case, spaces and commas. The date itself may occur on both sides, written in
    another way. The held-out set does not depend on `train`, and a longer training set begins with the shorter one.

    Args:
        train: training examples, >= 0.
        held_out: held-out examples, >= 0.
        seed: any integer.

    Returns:
        (training examples, held-out examples), as many as asked for.

    Raises:
        ConfigError: a number is negative.

    Example:
        >>> train, held_out = split_dates(70, 30, seed=1)
        >>> len(train), len(held_out), {item.source for item in train} & {item.source for item in held_out}
        (70, 30, set())
    """
    if train < 0 or held_out < 0:
        raise ConfigError(f"train {train}, held_out {held_out}: expected 0 or more")
    stream = _stream(seed)
    held: dict[str, DateExample] = {}
    while len(held) < held_out:
        example = next(stream)
        held.setdefault(fold(example.source), example)
    kept: dict[str, DateExample] = {}
    while len(kept) < train:
        example = next(stream)
        if fold(example.source) not in held:
            kept.setdefault(example.source, example)
    return list(kept.values()), list(held.values())


def render_date(date: datetime.date, locale: str, style: str) -> str:
    """Return a date in one style of one locale, without noise.

    Args:
        date: any date of the years 1950 to 2049.
        locale: one of `LOCALES`.
        style: one of `date_styles(locale)`.

    Raises:
        ConfigError: locale or style is unknown, or the year is outside the range.

    Example:
        >>> render_date(datetime.date(1987, 3, 8), "es", "long")
        '8 de marzo de 1987'
    """
    if style not in date_styles(locale):
        raise ConfigError(f"style {shown(style)} of {locale}: expected one of {', '.join(date_styles(locale))}")
    if not FIRST_YEAR <= date.year <= LAST_YEAR:
        raise ConfigError(f"year {date.year}: expected {FIRST_YEAR} to {LAST_YEAR}")
    return "".join(part.text for part in _render(date, locale, style))


def date_styles(locale: str) -> tuple[str, ...]:
    """Return the date styles of a locale: CLDR's names, and for English additional patterns.

    Raises:
        ConfigError: the locale is unknown.

    Example:
        >>> date_styles("ko")
        ('full', 'long', 'medium')
    """
    if locale not in _LOCALES:
        raise ConfigError(f"locale {shown(locale)}: expected some of {', '.join(LOCALES)}")
    return _LOCALES[locale] + tuple(_ENGLISH.get(locale, {}))


def fold(source: str) -> str:
    """Return a source text without case, spaces, commas and final full stops: what noise may change.

    Example:
        >>> fold("March 8,  1987.") == fold("MARCH 8 1987")
        True
    """
    return "".join(character for character in source.casefold() if not character.isspace() and character not in ",،").rstrip(".")


def _stream(seed: int) -> Iterator[DateExample]:
    start, chunk = 0, 1024
    while True:
        yield from generate_dates(chunk, seed=seed, start=start)
        start += chunk


def _example(generator: random.Random, key: str, locales: Sequence[str], noise: bool) -> DateExample:
    generator.seed(key)
    date = datetime.date.fromordinal(_FIRST_DAY + generator.randrange(_DAYS))
    locale = generator.choice(locales)
    style = generator.choice(date_styles(locale))
    parts = _render(date, locale, style)
    if noise and generator.random() < 0.5:
        parts = _disturb(generator, parts, _OPENINGS.get(locale, ()))
    spans: dict[str, Span] = {}
    place = 0
    for text, field in parts:
        if field:
            spans[field] = (place, place + len(text))
        place += len(text)
    year, month, day = spans["y"], spans["M"], spans["d"]
    links = (year, year, year, year, None, month, month, None, day, day)
    return DateExample("".join(part.text for part in parts), date.isoformat(), locale, style, links)


def _render(date: datetime.date, locale: str, style: str) -> list[_Part]:
    parts = []
    for kind, values in _compiled(locale, style):
        if kind == "text":
            parts.append(_Part(values[0], ""))
        elif kind == "weekday":
            parts.append(_Part(values[date.weekday()], ""))
        elif kind == "y":
            parts.append(_Part(values[date.year - FIRST_YEAR], "y"))
        else:
            parts.append(_Part(values[(date.month if kind == "M" else date.day) - 1], kind))
    return parts


@cache
def _compiled(locale: str, style: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the pattern as a list of kinds ("text", "weekday", "y", "M", "d") with every text each can have."""
    data = Locale.parse(locale)
    pattern = data.date_formats[style].pattern if style in _ALL else _ENGLISH[locale][style]
    return [
        ("text", (single_line(value),)) if isinstance(value, str) else _field(data, str(value[0]), int(value[1]))
        for _, value in tokenize_pattern(pattern)
    ]


def _field(data: Any, letter: str, width: int) -> tuple[str, tuple[str, ...]]:
    zero = _ZEROS.get(data.default_numbering_system, ord("0"))
    digits = {ord("0") + digit: chr(zero + digit) for digit in range(10)}

    def numbers(first: int, last: int, padded: int) -> tuple[str, ...]:
        return tuple(f"{number:0{padded}d}".translate(digits) for number in range(first, last + 1))

    years = numbers(FIRST_YEAR, LAST_YEAR, 4)

    form = "stand-alone" if letter in "Lc" else "format"
    if letter == "y":
        return "y", tuple(year[-2:] for year in years) if width == 2 else years
    if letter == "d":
        return "d", numbers(1, 31, width) if width <= 2 else tuple(f"{day}{_ending(day)}" for day in range(1, 32))
    if letter in "ML" and width <= 2:
        return "M", numbers(1, 12, width)
    if letter in "ML":
        names = data.months[form][{3: "abbreviated", 4: "wide"}[width]]
        return "M", tuple(names[month] for month in range(1, 13))
    if letter in "Ec":
        names = data.days[form]["wide" if width == 4 else "abbreviated"]
        return "weekday", tuple(names[day] for day in range(7))
    if letter == "G":
        return "text", (data.eras["abbreviated"][1],)
    raise ConfigError(f"{data}: date pattern letter {shown(letter)} of this Babel release is not known here")


def _ending(day: int) -> str:
    return "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def _disturb(generator: random.Random, parts: list[_Part], openings: Sequence[str]) -> list[_Part]:
    """Write a date less carefully: one or two of the changes below. Which characters belong to which field is kept."""
    changes = generator.sample(("case", "double", "drop", "comma", "stop", "opening"), generator.choice((1, 1, 2)))
    if "opening" in changes and openings:
        parts = [_Part(generator.choice(openings), ""), _Part(" ", ""), *parts]
    if "comma" in changes:
        parts = [part if part.field else _Part(part.text.replace(",", "").replace("،", ""), "") for part in parts]
    if "stop" in changes and not parts[-1].text.endswith("."):
        parts = [*parts, _Part(".", "")]
    if "case" in changes:
        parts = _change_case(generator, parts)
    if "double" in changes:
        parts = [part if part.field else _Part(part.text.replace(" ", generator.choice(("  ", "   ", " "))), "") for part in parts]
    if "drop" in changes:
        parts = [part if generator.random() < 0.5 else _without_spaces(parts, number) for number, part in enumerate(parts)]
    return parts


def _change_case(generator: random.Random, parts: list[_Part]) -> list[_Part]:
    way = generator.choice(("upper", "lower", "mixed"))
    if way == "mixed":
        return [_Part("".join(generator.choice((c.upper(), c.lower())) for c in text), field) for text, field in parts]
    return [_Part(text.upper() if way == "upper" else text.lower(), field) for text, field in parts]


def _without_spaces(parts: list[_Part], number: int) -> _Part:
    """Return part `number` without spaces, unless it alone keeps two numbers apart or is a field."""
    text, field = parts[number]
    shorter = "".join(text.split())
    if field or (
        not shorter and 0 < number < len(parts) - 1 and parts[number - 1].text[-1:].isdigit() and parts[number + 1].text[:1].isdigit()
    ):
        return parts[number]
    return _Part(shorter, field)
