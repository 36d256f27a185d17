"""Flags of functions: what counts as true or false."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from regard.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

# What a flag may be besides true and false, by its type in the signature.
_OTHERS: dict[str, tuple[str | None, ...]] = {
    "bool": (),
    "bool | None": (None,),
    "bool | Literal['areas']": ("areas",),
    "NeedWeights": ("areas",),
}


def takes_flags(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function take its flags as `bool`, and refuse what is none, as text that would count as true whatever it says.

    True, False, 1, 0, and a boolean of NumPy or PyTorch are flags.

    Raises:
        ConfigError: from the function's calls.

    Example:
        >>> @takes_flags
        ... def attend(*, causal: bool = False) -> bool:
        ...     return causal
        >>> attend(causal=1)
        True
        >>> attend(causal="false")
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: attend: causal may be True or False, found 'false'
    """
    # (name, place, what else it may be); one that is only a keyword is at no place.
    flags = [
        (name, place if each.kind is each.POSITIONAL_OR_KEYWORD else sys.maxsize, _OTHERS[each.annotation])
        for place, (name, each) in enumerate(inspect.signature(function).parameters.items())
        if each.annotation in _OTHERS
    ]
    first = min((place for _, place, _ in flags), default=sys.maxsize)
    names = frozenset(name for name, *_ in flags)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Most calls give True or False, and are not looked at again.
        if len(args) > first or any(value is not True and value is not False and name in names for name, value in kwargs.items()):
            args, kwargs = taken(args, kwargs)  # type: ignore[assignment]
        return function(*args, **kwargs)

    def taken(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        own, named, operation = list(args), dict(kwargs), function.__qualname__.removesuffix(".forward").removesuffix(".__init__")
        for name, place, others in flags:
            if place < len(own):
                own[place] = _flag(operation, name, own[place], others)
            elif name in named:
                named[name] = _flag(operation, name, named[name], others)
        return own, named

    return with_own_code(call) if flags else function


def with_own_code(wrapper: Callable[P, R]) -> Callable[P, R]:
    """Give a function that a decorator made code of its own, and return it.

    `torch.compile` limits compilations by code: of each decorated function then, not of all together.

    Example:
        >>> twice = [with_own_code(eval("lambda: 1")) for _ in range(2)]
        >>> twice[0].__code__ is twice[1].__code__
        False
    """
    assert isinstance(wrapper, FunctionType)
    wrapper.__code__ = wrapper.__code__.replace()
    return wrapper


def _flag(operation: str, name: str, given: Any, others: tuple[str | None, ...]) -> Any:
    if given is True or given is False or type(given).__name__ == "SymBool":  # of a traced program
        return given
    text = isinstance(given, str)
    if (given is None or text) and given in others:
        return str(given) if text else given
    array = str(getattr(given, "dtype", "")) in ("bool", "torch.bool") and getattr(given, "ndim", 0) == 0
    if array or (isinstance(given, int) and given in (0, 1)):
        return bool(given)
    *choices, last = ("True", "False", *map(repr, others))
    raise ConfigError(f"{operation}: {name} may be {', '.join(choices)} or {last}, found {given!r}")
