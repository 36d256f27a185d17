"""A decorator that checks arguments of predictors by the types in the signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from numbers import Number
from os import PathLike
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any, ParamSpec, TypeVar, get_args

from regard.arguments import by_signature, items_of
from regard.decoding.options import whole_number
from regard.errors import ConfigError, counted, shown

P = ParamSpec("P")
R = TypeVar("R")

# Whole numbers that may be 0; all others are at least 1.
FROM_ZERO = ("rank", "max_weights")
# How messages name a type, and how one is written in code.
_WORDS = {
    "str": ("a text", ""),
    "ImageSource": ("an image file", ""),
    "Pair": ("a pair of texts", '("...", "...")'),
    "Sequence[str]": ("a list of texts", '["..."]'),
    "Sequence[int]": ("a list of whole numbers", "[4, 7]"),
    "Sequence[Sequence[str]]": ("a list of lists of texts", '[["..."]]'),
    "Sequence[Pair]": ("a list of pairs of texts", '[("...", "...")]'),
    "Sequence[ImageSource]": ("a list of image files", '["..."]'),
    "Iterable[ImageSource]": ("a list of image files", '["..."]'),
}


def takes_inputs(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse arguments of other types than in its signature, and take a list from any iterable; see also `takes_flags`.

    An open file is the list of its lines, without their ends. One item in place of a list is refused: letters would be taken for texts.
    Checked are `int`, texts, images and lists of them (`_WORDS`), and classes by their names; other annotations are not.

    Raises:
        ConfigError: from the function's calls; names function and argument, and the item by its index.

    Example:
        >>> @takes_inputs
        ... def longest(lines: Sequence[str], *, count: int = 1) -> list[str]:
        ...     return sorted(lines, key=len)[-count:]
        >>> longest(line for line in ["a cat", "a"])
        ['a cat']
        >>> longest("a cat")
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: longest: lines: expected a list of texts, found one text; write ["..."]
    """
    names: Mapping[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    return by_signature(function, lambda name, kind, value: _taken(f"{function.__name__}: {name}", kind, value, names))


def _taken(name: str, kind: str, value: Any, names: Mapping[str, Any]) -> Any:
    """Return an argument, which messages call `name`, of a type that is written as `kind` in a module with these names."""
    container, _, each = kind.removesuffix("]").partition("[")
    if container in ("Sequence", "Iterable"):
        items = _items(name, kind, each, value, names)
        return list(items) if container == "Sequence" else items
    if kind == "int":
        return whole_number(name, value, least=0 if name.endswith(FROM_ZERO) else 1)
    if isinstance(texts := names.get(kind), GenericAlias):
        found = list(_items(name, kind, "str", value, names))
        if len(found) != len(get_args(texts)):
            raise ConfigError(f"{name}: expected {_WORDS[kind][0]}, found {counted(len(found), 'text')}")
        return found
    if (types := _types(kind, names)) and not isinstance(value, types):
        one = _WORDS[kind][0] if kind in _WORDS else kind.replace(" | ", " or ")
        raise ConfigError(f"{name}: expected {one}, found {_found(value)}")
    return value


def _items(name: str, kind: str, each: str, value: Any, names: Mapping[str, Any]) -> Iterator[Any]:
    (expected, code), types = _WORDS[kind], _types(each, names)
    if isinstance(value, (str, *types)):
        raise ConfigError(f"{name}: expected {expected}, found one {'text' if isinstance(value, str) else 'item'}; write {code}")
    if (items := items_of(value)) is None:
        raise ConfigError(f"{name}: expected {expected}, found {_found(value)}")
    lines = map(_without_end, items) if hasattr(items, "readline") else items
    return (
        item if types and isinstance(item, types) else _taken(f"{name}[{number}]", each, item, names) for number, item in enumerate(lines)
    )


def _without_end(line: Any) -> Any:
    return line.removesuffix("\n").removesuffix("\r") if isinstance(line, str) else line


def _types(kind: str, names: Mapping[str, Any]) -> tuple[type, ...]:
    """Return the classes of a type; none if it is not made of classes alone."""
    named = [str if name == "str" else names.get(name) for name in kind.split(" | ")]
    parts = [each for one in named for each in (get_args(one) if isinstance(one, UnionType) else (one,))]
    found = [each for each in parts if isinstance(each, type)]
    paths = [PathLike] if Path in found else []
    return (*found, *paths) if len(found) == len(parts) else ()


def _found(value: Any) -> str:
    return shown(value) if isinstance(value, str | bytes | Number | None) else type(value).__name__
