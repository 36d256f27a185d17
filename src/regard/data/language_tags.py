"""Names of languages in data: tags such as pt-BR and zh-Hans, and names such as German."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from regard.data.tables import spelled

_TAG = re.compile(r"([a-z]{2,3})(?:[-_]([a-z]{4}))?(?:[-_]([a-z]{2}|[0-9]{3}))?", re.IGNORECASE)
_NAME = re.compile(r"([^\W\d_]{3,19})(?: \([^\W\d_]{3,19}\))?")
OF_A_RUN = " (with a trained run: --languages A B)"
"""How commands other than `train` are given `data.languages`; the end of an advice."""
_SIDES = ("src", "source"), ("tgt", "trg", "target")


def script_of(tag: str) -> str:
    """Return the script that a tag names, or that its region writes; "" for another.

    Args:
        tag: see `regard.data.tables.spelled`.

    Example:
        >>> script_of("zh-hant"), script_of("zh-tw"), script_of("zh")
        ('hant', 'hant', '')
    """
    _, *rest = tag.split("-")
    if found := next((part for part in rest if len(part) == 4 and part.isalpha()), ""):
        return found
    if not rest:
        return ""
    from babel.core import get_global

    likely, language = get_global("likely_subtags"), tag.split("-")[0]
    likely = likely.get(f"{language}_{rest[0].upper()}") or likely.get(language, "")
    return next((part.lower() for part in likely.split("_") if len(part) == 4), "")


def is_of(tag: str, language: str) -> bool:
    """Return whether a tag is that of a language or of one of its countries and scripts.

    Example:
        >>> is_of("en-us", "en"), is_of("zh-hans-cn", "zh-hans"), is_of("zh-cn", "zh-hans"), is_of("zh-tw", "zh-hans")
        (True, True, True, False)
    """
    if f"{tag}-".startswith(f"{language}-"):
        return True
    one, *parts = language.split("-")
    return tag.split("-")[0] == one and len(parts) == 1 and len(parts[0]) == 4 and script_of(tag) == parts[0]


def several_scripts(tags: Iterable[str]) -> bool:
    """Return whether tags name more than one script.

    Example:
        >>> several_scripts(["zh-hans", "zh-tw"]), several_scripts(["en", "en-us"])
        (True, False)
    """
    return len({script_of(tag) for tag in tags} - {""}) > 1


def language_names(cells: Sequence[str]) -> list[str]:
    """Return cells that all name languages, different ones, or sides of pairs; else none. "German" beside "Deutsch" is a pair.

    Args:
        cells: the first line of a table.

    Example:
        >>> language_names(["en", "pt-BR"]), language_names(["src_text", "tgt_text"]), language_names(["German", "Deutsch"])
        (['en', 'pt-BR'], ['src_text', 'tgt_text'], [])
    """
    names = [cell.strip().strip('"') for cell in cells]
    sides = [re.match("[a-z]+", name.lower()) for name in names]
    if len(names) > 1 and all(one and one[0] in known for one, known in zip((sides[0], sides[-1]), _SIDES, strict=True)):
        return [cell.strip() for cell in cells]
    found = [_meanings(name) for name in names] if all(_TAG.fullmatch(name) or _NAME.fullmatch(name) for name in names) else []
    different = all(not a & b for number, a in enumerate(found) for b in found[:number])
    return [cell.strip() for cell in cells] if len(found) > 1 and all(found) and different else []


def _meanings(name: str) -> set[str]:
    """Return the tags that a cell may mean."""
    from babel import Locale
    from babel.core import get_global

    if tag := _TAG.fullmatch(name):
        code, script, region = tag.groups(default="")
        known = {*Locale.parse("en").languages, *get_global("language_aliases")}
        if code.lower() in known and (not script or script.title() in Locale.parse("en").scripts):
            return {spelled(name)} if script or region or name.islower() or name.isupper() else set()
    plain = _NAME.fullmatch(name)
    return set() if plain is None else set(_named().get(plain[1].lower(), ()))


@functools.cache
def _named() -> dict[str, set[str]]:
    """Return the codes of languages by their names, in languages that many write."""
    from babel import Locale

    named = dict[str, set[str]]()
    for locale in map(Locale.parse, ("en", "de", "fr", "es", "it", "pt", "nl", "cs", "pl")):
        for code, name in locale.languages.items():
            named.setdefault(name.lower(), set()).add(code)
    return named
