"""Decorators that refuse arguments of other kinds than a signature says."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from regard.errors import ConfigError, ShapeError
from regard.ops.tensor_checks import refuse_others

P = ParamSpec("P")
R = TypeVar("R")


# Words that a flag may be, by its type in the signature.
_WORDS: dict[str, tuple[str, ...]] = {"bool": (), "bool | None": (), "bool | Literal['areas']": ("areas",), "NeedWeights": ("areas",)}


def takes_flags(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse text for a flag, which would count as true, whatever it says.

    Raises:
        ConfigError: from the function's calls.

    Example:
        >>> @takes_flags
        ... def attend(*, causal: bool = False) -> bool:
        ...     return causal
        >>> attend(causal="false")
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: attend: causal may be True or False, found 'false'
    """
    # (name, place, words it may be); one that is only a keyword is at no place.
    flags = [
        (name, place if each.kind is each.POSITIONAL_OR_KEYWORD else sys.maxsize, _WORDS[each.annotation])
        for place, (name, each) in enumerate(inspect.signature(function).parameters.items())
        if each.annotation in _WORDS
    ]
    first = min((place for _, place, _ in flags), default=sys.maxsize)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > first or any(type(value) is str for value in kwargs.values()):  # most calls have no text, and are not looked at
            check(args, kwargs)
        return function(*args, **kwargs)

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for name, place, words in flags:
            given = args[place] if place < len(args) else kwargs.get(name)
            if isinstance(given, str) and given not in words:
                *choices, last = ("True", "False", *map(repr, words))
                operation = function.__qualname__.removesuffix(".forward")
                raise ConfigError(f"{operation}: {name} may be {', '.join(choices)} or {last}, found {given!r}")

    return call if flags else function


def takes_tensors(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function name an argument that should be a tensor and is none, where it fails because of it; and see `takes_flags`.

    Raises:
        ShapeError: from the function's calls.

    Example:
        >>> @takes_tensors
        ... def rows(x: Tensor) -> int:
        ...     return x.shape[0]
        >>> rows([1, 2])
        Traceback (most recent call last):
            ...
        regard.errors.ShapeError: rows: x must be a tensor, found list
    """
    signature, function = inspect.signature(function), takes_flags(function)
    tensors = [name for name, each in signature.parameters.items() if str(each.annotation).startswith("Tensor")]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError, ShapeError) as error:
            if str(error).startswith(f"{function.__name__}: "):  # not of a function that this one calls
                raise
            given = signature.bind(*args, **kwargs).arguments
            refuse_others(function.__name__, **{name: given.get(name) for name in tensors})
            raise

    return call
