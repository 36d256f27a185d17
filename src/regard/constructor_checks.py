"""Checks constructor arguments by the types in the signature."""

from __future__ import annotations

import inspect
import reprlib
import typing
from collections.abc import Callable, Iterable
from functools import cache, wraps
from numbers import Integral
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from annotated_types import Ge, Le, Lt

from regard.errors import ConfigError

Parameters = ParamSpec("Parameters")
Self = TypeVar("Self")


Size = Annotated[int, Ge(1), Le(2**31 - 1)]
"""A number of features, heads or layers: at least 1."""
Count = Annotated[int, Ge(0), Le(2**31 - 1)]
"""A number of things, may be 0."""
Share = Annotated[float, Ge(0), Le(1)]
"""A probability or share, 0 to 1."""
Dropout = Annotated[float, Ge(0), Lt(1)]
"""A probability of dropping, below 1: the rest is scaled up."""
Weight = Annotated[float, Ge(0)]
"""A loss weight, 0 or more."""
SizeOrPair = Annotated[Size | tuple[Size, Size], "should be a whole number of at least 1, or a pair (height, width) of them for a grid"]
"""A length, or a height and a width; the message of a wrong one is the text."""


INSTANCE = "should be an instance of "


def checked(init: Callable[Concatenate[Self, Parameters], None]) -> Callable[Concatenate[Self, Parameters], None]:
    """Make a constructor refuse arguments of other types than in its signature, before its body runs.

    Nothing is converted: True is no int, "3" no number, 3 no `Areas`; but whole numbers of NumPy become Python's. The constructor itself
    checks combinations.

    Raises:
        ConfigError: raised by the constructor call; the message names the class and the argument, what was expected and what was found.

    Example:
        >>> class Halves:
        ...     @checked
        ...     def __init__(self, size: Size) -> None:
        ...         self.size = size / 2
        >>> Halves(0)
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: Halves: size should be greater than or equal to 1, found 0
    """
    signature = inspect.signature(init)

    @wraps(init)
    def checking(self: Self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            bound = {}  # Python reports missing and unknown arguments
        args, kwargs = tuple(map(_plain, args)), {name: _plain(value) for name, value in kwargs.items()}  # type: ignore[assignment]
        _check(type(self).__name__, init, {name: _plain(bound[name]) for name in list(bound)[1:]})
        init(self, *args, **kwargs)

    return checking


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, Integral) and not isinstance(value, int) else value


def _check(owner: str, init: Callable[..., None], given: dict[str, Any]) -> None:
    from pydantic import ValidationError

    try:
        _model(init).__pydantic_validator__.validate_python(given)
    except ValidationError as error:
        found: dict[str, list[str]] = {}
        fields = _model(init).model_fields
        for item in error.errors(include_url=False):
            name = str(item["loc"][0])
            own = [text for text in fields[name].metadata if isinstance(text, str) and item["type"] != "less_than_equal"]
            found.setdefault(name, []).append(own[0] if own else item["msg"].removeprefix("Input "))
        problems = (f"{name} {_either(texts)}, found {reprlib.repr(given[name])}" for name, texts in found.items())
        raise ConfigError(f"{owner}: {'; '.join(problems)}") from None


def _either(texts: Iterable[str]) -> str:
    """Join what each member of a union expects; classes as one list, and without what pydantic says of text where a sequence may stand."""
    told = list(dict.fromkeys(text for text in texts if not text.startswith("'str' instances")))
    classes = [text.removeprefix(INSTANCE) for text in told if text.startswith(INSTANCE)]
    lists = ["a list of these"] * ("Sequence" in classes)
    classes = [name for name in classes if name != "Sequence"]
    named = [INSTANCE + " or ".join(filter(None, (", ".join(classes[:-1]), classes[-1], *lists)))] if classes else []
    return " or ".join([*named, *(text for text in told if not text.startswith(INSTANCE))])


@cache
def _model(init: Callable[..., None]) -> Any:
    from pydantic import ConfigDict, create_model

    # Strict: nothing is converted. Class instances are checked by isinstance.
    settings = ConfigDict(arbitrary_types_allowed=True, strict=True, protected_namespaces=(), allow_inf_nan=False)
    hints = typing.get_type_hints(init, include_extras=True)
    fields: dict[str, Any] = {name: (hint, None) for name, hint in hints.items() if name != "return"}
    return create_model("Arguments", __config__=settings, **fields)
