"""Checks of arguments that several metrics share; each message begins with the function that was called."""

from __future__ import annotations

from collections.abc import Sized
from numbers import Real
from typing import Any

import numpy as np

from regard.errors import DataError, shown


def check_lengths(operation: str, **lists: Sized) -> None:
    """Check that lists, by the names of their arguments, are equally long and not empty.

    Raises:
        DataError: they are not; the message states all lengths.

    Example:
        >>> check_lengths("bleu", hypotheses=["a", "b"], references=["a"])
        Traceback (most recent call last):
        regard.errors.DataError: bleu: hypotheses and references must have the same length, found 2 and 1
    """
    lengths = [len(each) for each in lists.values()]
    if len(set(lengths)) > 1:
        raise DataError(f"{operation}: {_joined(lists)} must have the same length, found {_joined(map(str, lengths))}")
    if not lengths[0]:
        raise DataError(f"{operation}: {_joined(lists)} must not be empty")


def _joined(names: Any) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}"


def check_least(operation: str, name: str, number: float, least: int) -> None:
    """Check that a number is at least `least`.

    Raises:
        DataError: it is smaller, or NaN.

    Example:
        >>> check_least("paired_bootstrap", "samples", 0, 1)
        Traceback (most recent call last):
        regard.errors.DataError: paired_bootstrap: samples must be at least 1, found 0
    """
    if not number >= least:
        raise DataError(f"{operation}: {name} must be at least {least}, found {shown(number)}")


def check_correct(operation: str, correct: int, **total: int) -> None:
    """Check a number of correct items against their total, which is given by the name of its argument.

    Raises:
        DataError: the total is below 1, or `correct` outside 0 to it.

    Example:
        >>> check_correct("token_accuracy", 3, tokens=2)
        Traceback (most recent call last):
        regard.errors.DataError: token_accuracy: correct must be from 0 to tokens, found 3 of 2
    """
    [(name, number)] = total.items()
    check_least(operation, name, number, 1)
    if not 0 <= correct <= number:
        raise DataError(f"{operation}: correct must be from 0 to {name}, found {shown(correct)} of {shown(number)}")


def read_numbers(argument: str, values: Any) -> np.ndarray:
    """Return numbers as an array that keeps booleans, whole numbers and floats apart; floats are float64.

    Args:
        argument: function and argument, which begin the message.
        values: a number, nested lists, an array or a tensor. Text that reads like a number is none.

    Raises:
        DataError: not all are real numbers, or rows have different lengths.

    Example:
        >>> read_numbers("attention_entropy: weights", [[1, 2], [3, 4]]).shape
        (2, 2)
        >>> read_numbers("attention_entropy: weights", [["0.5"]])
        Traceback (most recent call last):
        regard.errors.DataError: attention_entropy: weights must be numbers, in rows of one length, found [['0.5']]
    """
    if hasattr(values, "detach"):  # tensors may carry a gradient, lie on another device or hold bfloat16, which NumPy cannot read
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    try:
        found = np.asarray(values)
        if found.dtype.kind in "biuf":
            return found.astype(np.float64) if found.dtype.kind == "f" else found
        if all(isinstance(each, Real) for each in found.flat):  # fractions, and whole numbers of more than 64 bits
            return found.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise DataError(f"{argument} must be numbers, in rows of one length, found {shown(values)}")


def read_flags(argument: str, values: Any) -> np.ndarray:
    """Return booleans as a bool array.

    Args:
        argument: function and argument, which begin the message.
        values: as for `read_numbers`; True and False, or 1 and 0.

    Raises:
        DataError: a value is neither; the message states the first.

    Example:
        >>> read_flags("cell_hits: region", [[1, 0.0]]).tolist()
        [[True, False]]
        >>> read_flags("cell_hits: region", [[1, 0.3]])
        Traceback (most recent call last):
        regard.errors.DataError: cell_hits: region must be True or False (1 or 0), found 0.3 at [0, 1]
    """
    found = read_numbers(argument, values)
    refuse_where((found != 0) & (found != 1), found, f"{argument} must be True or False (1 or 0)")
    return found.astype(bool)


def refuse_where(wrong: np.ndarray, values: np.ndarray, message: str) -> None:
    """Refuse an array where any of its values is marked as wrong.

    Raises:
        DataError: the message, with the first wrong value and its position.

    Example:
        >>> values = np.array([0.5, -1.0])
        >>> refuse_where(values < 0, values, "attention_entropy: weights must be at least 0")
        Traceback (most recent call last):
        regard.errors.DataError: attention_entropy: weights must be at least 0, found -1.0 at [1]
    """
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise DataError(f"{message}, found {values[place].item()} at {list(place)}")


def read_counts(operation: str, counts: object, *, axes: int, columns: int | None) -> np.ndarray:
    """Return an array of counts by which a score is computed, as float64: others lose counts when they are added up.

    Args:
        operation: name that begins the message.
        counts: (D,) or (N, D) numbers.
        axes: 1 or 2.
        columns: D; None: any even number, two for each label.

    Raises:
        DataError: no array of numbers, or one of another shape.

    Example:
        >>> read_counts("run_score", np.ones((3, 2), np.float16), axes=2, columns=2).dtype
        dtype('float64')
        >>> read_counts("run_score", np.ones(2), axes=2, columns=2)
        Traceback (most recent call last):
        regard.errors.DataError: run_score: counts must be an array of numbers (N, 2), found float64 (2,)
    """
    found = shown(counts)
    if isinstance(counts, np.ndarray):
        found = f"{counts.dtype} {counts.shape}"
        fits = counts.ndim == axes and (counts.shape[-1] == columns or (columns is None and counts.shape[-1] % 2 == 0))
        if fits and counts.dtype.kind in "biuf":
            return counts.astype(np.float64)
    size = "2 C" if columns is None else columns
    raise DataError(f"{operation}: counts must be an array of numbers {f'(N, {size})' if axes == 2 else f'({size},)'}, found {found}")
