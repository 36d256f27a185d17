"""A decorator that explains arguments of which nothing can be computed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from numbers import Real
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from regard.arguments import RAW, is_raw
from regard.errors import ConfigError, RegardError, ShapeError, shown
from regard.flags import takes_flags, with_own_code
from regard.ops.number_checks import check_factor
from regard.ops.tensor_checks import is_plain, refuse_others

P = ParamSpec("P")
R = TypeVar("R")


def takes_tensors(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function name the argument of which it computes nothing; and see `takes_flags`.

    That is one that should be a tensor or a number and is none; else tensors that do not fit each other, with the words of PyTorch.

    Raises:
        ShapeError: from the function's calls, about tensors.
        ConfigError: likewise, about numbers.

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
    name = function.__qualname__.removesuffix(".forward")
    kinds = {each.name: str(each.annotation) for each in signature.parameters.values()}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (*RAW, RegardError) as error:
            said = str(error).startswith(f"{name}: ") or any(f"{each} must " in str(error) for each in kinds)
            if said if isinstance(error, RegardError) else not is_raw(error):
                raise
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:  # Python says which argument is missing or unknown
                raise error from None
            _refuse(name, {each: (kinds[each], value) for each, value in given.items()})
            for each, value in given.items():
                if is_raw(error) and isinstance(value, Tensor) and (value.is_nested or value.layout != torch.strided):
                    kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
                    raise ShapeError(f"{name}: {each} must be a dense tensor, found a {kind} one") from error
            if is_raw(error) and is_plain(*(value for value in given.values() if isinstance(value, Tensor))):
                what = ", ".join(f"{each} {_shown(value)}" for each, value in given.items() if each != "self")
                raise ShapeError(f"{name}: cannot be computed of {what}: {str(error).strip().splitlines()[0]}") from error
            raise

    return with_own_code(call)


def _refuse(operation: str, given: dict[str, tuple[str, Any]]) -> None:
    """Refuse what is neither a tensor nor a number where the signature has one."""
    refuse_others(operation, **{name: value for name, (kind, value) in given.items() if kind in ("Tensor", "Tensor | None")})
    for name, (kind, value) in given.items():
        if kind == "Tensor" and value is None:
            raise ShapeError(f"{operation}: {name} must be a tensor, found None")
        if {"float", "Tensor"} <= (parts := {*kind.split(" | ")}) and not (value is None and "None" in parts):
            check_factor(operation, name, value)
        number = kind.removesuffix(" | None") in ("int", "float") and not (value is None and kind.endswith("None"))
        if number and not isinstance(value, Real | torch.SymInt | torch.SymFloat):
            raise ConfigError(f"{operation}: {name} must be a {'whole ' * kind.startswith('int')}number, found {value!r}")


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return shown(value) if isinstance(value, str | Real | list | tuple | None) and not hasattr(value, "_fields") else type(value).__name__
