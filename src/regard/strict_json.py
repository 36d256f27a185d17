"""JSON: parsing of untrusted text within limits, and text that every reader takes."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

MAX_DEPTH = 64
"""Max nesting of lists and objects; Regard's files have six levels."""
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "an object"}
_ESCAPED = re.compile("[\x80-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that end a line for some readers, and halves of characters, which UTF-8 cannot encode."""
MAX_DIGITS = 19
"""Max digits of an integer: 64 bits. Larger ones fail differently in numpy, torch and Python."""
MAX_SHOWN = 40
"""Max characters of a repeated key in an error."""


def parse_json(text: str | bytes, *, allow_nan: bool = True) -> Any:
    """Parse JSON.

    Args:
        text: a document; bytes are UTF-8.
        allow_nan: read NaN, Infinity and -Infinity, which are not JSON, as floats; False: a ValueError.

    Raises:
        ValueError: it is not JSON, not UTF-8, has a key twice in an object, an integer of more than 64 bits, a float beyond the largest, or
            too many levels; the message says which.

    Example:
        >>> parse_json('{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
        >>> parse_json("9" * 5000)
        Traceback (most recent call last):
            ...
        ValueError: an integer of 5000 digits, expected at most 64 bits
    """
    try:
        whole = text.decode("utf-8") if isinstance(text, bytes) else text
        tree = (_WITH_NAN if allow_nan else _WITHOUT_NAN).decode(whole)
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} levels of lists and objects") from None
    level = [tree]
    for _ in range(MAX_DEPTH):
        level = [part for node in level for part in _parts(node) if isinstance(part, dict | list)]
        if not level:
            return tree
    raise ValueError(f"more than {MAX_DEPTH} levels of lists and objects")


def dump_json(value: Any, *, indent: int | None = None, allow_nan: bool = True) -> str:
    r"""Write JSON that people can read: characters beyond ASCII as they are, but line separators and lone surrogates escaped.

    So one line stays one line for every reader, and strings are read as they were, whatever their source.

    Args:
        value: a tree of lists, dictionaries and plain values.
        indent: spaces per level; None: one line.
        allow_nan: write NaN and infinities, which are not JSON; False: a ValueError.

    Example:
        >>> dump_json({"id": "é\u2028\ud800"})
        '{"id": "é\\u2028\\ud800"}'
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=allow_nan)
    return text if text.isascii() else _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def kind_of(value: object) -> str:
    """Return the type of a parsed value, in words.

    Example:
        >>> kind_of(3), kind_of(None)
        ('a whole number', 'null')
    """
    return KINDS.get(type(value), "null")


def _float(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is too large for a number")
    return number


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {ascii(repeated)[:MAX_SHOWN]} stands twice in an object")
    return found


def _parts(node: Any) -> Any:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _integer(digits: str) -> int:
    if len(digits) <= MAX_DIGITS - 1:
        return int(digits)
    if len(digits) > MAX_DIGITS + 1 or not -(2**63) <= int(digits) < 2**64:
        raise ValueError(f"an integer of {len(digits.lstrip('-'))} digits, expected at most 64 bits")
    return int(digits)


_WITH_NAN = json.JSONDecoder(parse_int=_integer, parse_float=_float, object_pairs_hook=_object)
_WITHOUT_NAN = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_constant, object_pairs_hook=_object)
