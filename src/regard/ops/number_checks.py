"""Checks of numbers that are arguments of operations: factors, shares, sizes."""

from __future__ import annotations

from numbers import Integral, Real
from typing import cast

import torch
from torch import Tensor
from torch._C import _is_tracing  # pyright: ignore[reportPrivateUsage]  # torch has no public name for it

from regard.errors import ConfigError, ShapeError

LARGEST_SCALE = torch.finfo(torch.float32).max
LEAST_TEMPERATURE = 1 / LARGEST_SCALE
"""Of a number: a smaller one would scale by more than float32 holds."""


def check_factor(operation: str, name: str, factor: object) -> None:
    """Check that a factor is a number or a floating tensor.

    Raises:
        ConfigError: it is neither.
        ShapeError: a tensor of another dtype.

    Example:
        >>> check_factor("area_attention", "temperature", 2.0)
    """
    if not isinstance(factor, Tensor) and not _is_number(factor):
        raise ConfigError(f"{operation}: {name} must be a number or a tensor, found {factor!r}")
    if isinstance(factor, Tensor) and not factor.is_floating_point():
        raise ShapeError(f"{operation}: {name} must hold floating-point numbers, found {factor.dtype}")


def check_scale(operation: str, scale: object) -> None:
    """Check that a scale is a floating tensor, or a number that is finite in float32.

    Raises:
        ConfigError: another number, or neither.
        ShapeError: a tensor of another dtype.

    Example:
        >>> check_scale("attention", 0.5)
    """
    check_factor(operation, "scale", scale)
    if isinstance(scale, Real) and not -LARGEST_SCALE <= cast("float", scale) <= LARGEST_SCALE:
        raise ConfigError(f"{operation}: scale must be finite in float32, found {scale!r}")


def check_temperature(operation: str, temperature: object) -> None:
    """Check that a temperature is a positive number, or a floating tensor of one, by which finite numbers can be divided.

    Raises:
        ConfigError: another number, or neither.
        ShapeError: a tensor of another dtype or of several numbers.

    Example:
        >>> check_temperature("area_attention", 2.0)
    """
    check_factor(operation, "temperature", temperature)
    if isinstance(temperature, Tensor) and temperature.numel() != 1:
        raise ShapeError(f"{operation}: a temperature that is a tensor must hold one number, found {tuple(temperature.shape)}")
    number = cast("float", temperature)
    if not 0 < number <= LARGEST_SCALE:
        raise ConfigError(f"{operation}: temperature must be above 0 and finite, found {temperature}")
    if isinstance(temperature, Real) and number < LEAST_TEMPERATURE:
        raise ConfigError(f"{operation}: temperature must be at least {LEAST_TEMPERATURE:.2g}, found {temperature}")


def check_share(operation: str, name: str, number: float) -> None:
    """Check that a probability is in [0, 1).

    Raises:
        ConfigError: the number is outside.

    Example:
        >>> check_share("dropout", "probability", 0.5)
    """
    if not _is_number(number) or not 0 <= number < 1:
        raise ConfigError(f"{operation}: {name} must be at least 0 and less than 1, found {number!r}")


def check_number(operation: str, name: str, number: float, low: float, high: float) -> None:
    """Check that a number, and no tensor, is in `low` to `high`.

    Raises:
        ConfigError: it is no number, or outside.

    Example:
        >>> check_number("consistent_cross_entropy", "consistency", 5.0, 0, 1000)
    """
    if not _is_number(number) or not low <= number <= high:
        least = "" if low == -high else f" of at least {low}"
        wanted = f"a finite number{least}" if high == LARGEST_SCALE else f"a number from {low} to {high}"
        raise ConfigError(f"{operation}: {name} must be {wanted}, found {number!r}")


def check_count(operation: str, name: str, count: int, least: int = 0) -> None:
    """Check that a number is whole, at least `least` and below 2**63.

    Raises:
        ConfigError: it is not.

    Example:
        >>> check_count("causal_mask", "target_size", 3)
    """
    if torch.compiler.is_compiling() or _is_tracing():  # torch.jit.trace makes tensors of sizes
        return
    if isinstance(count, bool) or not isinstance(count, Integral | torch.SymInt) or count < least:
        raise ConfigError(f"{operation}: {name} must be a whole number of at least {least}, found {count!r}")
    if isinstance(count, Integral) and count >= 2**63:  # of a 64-bit tensor
        raise ConfigError(f"{operation}: {name} must be below 2**63, found {count}")


def _is_number(value: object) -> bool:
    # Symbolic numbers of a traced graph are no Real.
    return isinstance(value, Real | torch.SymFloat | torch.SymInt) and not isinstance(value, bool)
