"""Arguments checked by the types in the signature; a wrong one is named."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike
from typing import Any, ParamSpec, TypeVar

from regard.errors import DataError, shown
from regard.flags import takes_flags

P = ParamSpec("P")
R = TypeVar("R")

Labels = Sequence[str] | Sequence[int]
"""Labels, all of them text or all whole numbers; "" is none."""
RAW = (
    *(AttributeError, TypeError, ValueError, IndexError, KeyError),
    *(RuntimeError, NotImplementedError, ZeroDivisionError, OverflowError),
)
"""Classes of errors that a wrong argument causes, where nothing checks it; see `is_raw`."""


def is_raw(error: Exception) -> bool:
    """Return whether an error says that nothing can be computed of an argument, in the words of Python, NumPy or PyTorch.

    Of the classes below `RAW` only NumPy's are: the others are errors of Regard, of tracing or of memory.

    Example:
        >>> is_raw(TypeError("no number")), is_raw(DataError("samples must be at least 1, found 0"))
        (True, False)
    """
    return type(error) in RAW or (isinstance(error, RAW) and type(error).__module__.partition(".")[0] == "numpy")


def takes_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function name an argument that is none, and take lists of texts, labels or numbers also as arrays or tensors.

    By the types in the signature: `Sequence[str]`, `Iterable[str]`, `Sequence[int]`, `Sequence[float]`, `Labels`, `str`, `int`, `float` and
    `str | Path`, also with `| None`; see also `takes_flags`.

    Raises:
        DataError: from the function's calls.

    Example:
        >>> @takes_arguments
        ... def longest(lines: Sequence[str]) -> int:
        ...     return max(map(len, lines))
        >>> longest(["a", "two"])
        3
        >>> longest(["a", 2])
        Traceback (most recent call last):
            ...
        regard.errors.DataError: longest: lines must be a list of texts, item 2 is 2
    """
    name = function.__qualname__.removesuffix(".__init__")

    def run(given: inspect.BoundArguments) -> R:
        labelled = (given.arguments.get(each.name, ()) for each in given.signature.parameters.values() if str(each.annotation) == "Labels")
        if len({isinstance(label, str) for labels in labelled for label in labels if label != ""}) > 1:
            raise DataError(f"{name}: labels must be all text or all whole numbers, found both")
        try:
            return function(*given.args, **given.kwargs)
        except RAW as error:
            if not is_raw(error):
                raise
            what = ", ".join(f"{each} {shown(value)}" for each, value in given.arguments.items())
            raise DataError(f"{name}: cannot be computed of {what}: {str(error) or type(error).__name__}") from error

    return by_signature(function, lambda each, kind, value: _taken(f"{name}: {each}", kind, value), run)


def by_signature(
    function: Callable[P, R], take: Callable[[str, str, Any], Any], run: Callable[[inspect.BoundArguments], R] | None = None
) -> Callable[P, R]:
    """Return a function whose arguments are checked, or made others, by their types in the signature; see also `takes_flags`.

    None for an argument of a type with `| None` is kept, and so is one without a type.

    Args:
        function: what is called with the arguments.
        take: is given a parameter's name, its type as written, without `| None`, and the argument; returns the argument, or raises.
        run: calls the function with what was taken; default, as it is.

    Example:
        >>> def double(number: int | None = None) -> int | None:
        ...     return number and 2 * number
        >>> checked = by_signature(double, lambda name, kind, value: int(value) if kind == "int" else value)
        >>> checked("4"), checked()
        (8, None)
    """
    signature = inspect.signature(function)
    kinds = {name: str(each.annotation) for name, each in signature.parameters.items() if each.annotation is not each.empty}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python reports missing and unknown arguments
        for name, value in given.arguments.items():
            kind = kinds.get(name, "")
            if kind and not (value is None and kind.endswith(" | None")):
                given.arguments[name] = take(name, kind.removesuffix(" | None"), value)
        return run(given) if run else function(*given.args, **given.kwargs)

    return takes_flags(call)


def _taken(argument: str, kind: str, value: Any) -> Any:
    match kind:
        case "Sequence[str]" | "Iterable[str]":
            return list_of(argument, value, "texts", str)
        case "Labels":
            return list_of(argument, value, "labels, text or whole numbers", str, Integral, bool)
        case "Sequence[int]":
            return list_of(argument, value, "whole numbers", Integral)
        case "Sequence[float]":
            return list_of(argument, value, "numbers", Real)
        case "str | Path" if not isinstance(value, str | PathLike):
            raise DataError(f"{argument} must be the name of a file, found {shown(value)}")
        case "str" if not isinstance(value, str):
            raise DataError(f"{argument} must be text, found {shown(value)}")
        case "int" if not isinstance(value, Integral) or isinstance(value, bool):
            raise DataError(f"{argument} must be a whole number, found {shown(value)}")
        case "float" if not isinstance(value, Real) or isinstance(value, bool):
            raise DataError(f"{argument} must be a number, found {shown(value)}")
        case _:
            return int(value) if isinstance(value, Integral) and kind == "int" else value


def list_of(argument: str, value: Any, wanted: str, *kinds: type) -> Sequence[Any]:
    """Return the items of a list, tuple, array, tensor or iterator.

    Args:
        argument: function and argument, which begin the message.
        value: what was given; a text, bytes, a set or a dictionary is no list.
        wanted: what the items are.
        kinds: their types; a boolean is a number only if `bool` is among them.

    Raises:
        DataError: no list, or an item of another type; the message states the first, counted from 1.

    Example:
        >>> list_of("bleu_by_length: edges", (10, 20), "whole numbers", Integral)
        (10, 20)
        >>> list_of("bleu_by_length: edges", [10, 20.5], "whole numbers", Integral)
        Traceback (most recent call last):
            ...
        regard.errors.DataError: bleu_by_length: edges must be a list of whole numbers, item 2 is 20.5
    """
    if (found := items_of(value)) is None:
        raise DataError(f"{argument} must be a list of {wanted}, found {shown(value)}")
    items = found if isinstance(found, list | tuple) else list(found)
    for number, item in enumerate(items, 1):
        if not isinstance(item, kinds) or (isinstance(item, bool) and bool not in kinds):
            raise DataError(f"{argument} must be a list of {wanted}, item {number} is {shown(item)}")
    return items


def items_of(value: Any) -> Iterable[Any] | None:
    """Return an argument that may stand for a list, an array or tensor as the numbers or texts in it; None if it is no list.

    A text, bytes, a set or a dictionary is none, nor is an array without dimensions.

    Example:
        >>> items_of(range(2)), items_of("two"), items_of({"two": 2})
        (range(0, 2), None, None)
    """
    found = value.tolist() if hasattr(value, "tolist") and not isinstance(value, memoryview) else value
    none = isinstance(found, str | bytes | bytearray | memoryview | Mapping | set | frozenset) or not isinstance(found, Iterable)
    return None if none else found
