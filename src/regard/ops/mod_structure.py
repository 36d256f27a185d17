"""Describe what a `score_mod` or `mask_mod` captures and calls, to recognise functions that work alike on tiles."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._C import _is_tracing  # pyright: ignore[reportPrivateUsage]

_IMMUTABLE = (int, float, str, bool, complex, type(None), torch.dtype, torch.device)


def names_in(code: CodeType) -> set[str]:
    """List the global and attribute names that code uses, including nested functions.

    Example:
        >>> names_in((lambda x: torch.sin(x)).__code__) == {"torch", "sin"}
        True
    """
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*map(names_in, inner))


def structure_of(mod: object) -> object:
    """Describe a function; functions of equal description work alike on tiles. None if unknown.

    Covers code, captured plain values, sizes and dtypes of tensors, and the functions it calls.

    Example:
        >>> one, other = (structure_of(lambda score, slope=slope: score * slope) for slope in (0.5, 0.25))
        >>> one == other
        False
    """
    return _structure(mod, [])


def _structure(thing: Any, seen: list[Any]) -> object:
    if any(thing is one for one in seen):  # a recursive function
        return "again", next(n for n, one in enumerate(seen) if one is thing)
    if isinstance(thing, FunctionType):
        return _structures(thing.__code__, _held(thing), [*seen, thing])
    if isinstance(thing, tuple | list):
        return _structures(type(thing), thing, [*seen, thing])
    if isinstance(thing, Tensor):
        return Tensor, plain_sizes(thing.shape), thing.dtype
    if isinstance(thing, BuiltinFunctionType):  # a method depends on its object's state
        return thing if isinstance(thing.__self__, ModuleType | type | None) else None
    if isinstance(thing, ModuleType | type):
        return thing if _is_lasting(thing) else None
    return (type(thing), thing) if type(thing) in _IMMUTABLE else None


def plain_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return sizes as ints: `torch.jit.trace` has them as tensors and warns on every read.

    Example:
        >>> plain_sizes(torch.ones(2, 3).shape)
        (2, 3)
    """
    if not _is_tracing():
        return tuple(sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(int(size) for size in sizes)


def _structures(kind: CodeType | type, parts: Sequence[Any], seen: list[Any]) -> object:
    inside = tuple(_structure(part, seen) for part in parts)
    return None if None in inside else (kind, inside)


def _held(function: FunctionType) -> list[Any]:
    """List what a function uses besides arguments: defaults, closure variables and, for user code, module globals."""
    names = set() if _is_lasting(function) else names_in(function.__code__)
    found = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    found += [value for name, value in function.__globals__.items() if name in names]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an unassigned variable
            found.append(cell.cell_contents)
    return found


def _is_lasting(thing: Any) -> bool:
    """Return whether a module, or that of a function or class, is constant while a program runs."""
    found = thing.__globals__.get("__name__") if isinstance(thing, FunctionType) else thing.__module__ if isinstance(thing, type) else None
    name = thing.__name__ if isinstance(thing, ModuleType) else found
    return str(name).split(".")[0] in ("builtins", "math", "torch", "regard")


def other_values(thing: object) -> dict[int, Tensor]:
    """Replace captured floating tensors for a trial: a table of zeros would hide mistakes.

    Example:
        >>> table = torch.zeros(2, 2)
        >>> other_values(lambda score, h, table=table: score + table[h])[id(table)].tolist()
        [[0.0625, 1.265625], [1.265625, 4.0]]
    """
    found: dict[int, Tensor] = {}
    parts: list[Any] = [thing]
    seen: list[Any] = []
    while parts:
        part = parts.pop()
        if any(part is one for one in seen):
            continue
        seen.append(part)
        if isinstance(part, FunctionType):
            parts += _held(part)
        elif isinstance(part, tuple | list):
            parts += part
        elif isinstance(part, Tensor) and part.is_floating_point() and part.numel():
            # Entry (i, j, ...) is element i + j + ... of a vector: different along every axis, without a second table in memory.
            line = torch.linspace(0.25, 2.0, sum(part.shape) - part.dim() + 1, device=part.device).square().to(part.dtype)
            found[id(part)] = line.as_strided(part.shape, (1,) * part.dim())
    return found
