"""Validation of record fields: every error names the field, its value and what was expected."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regard.errors import DataError, shortened, shown

PACKED = ("shape", "float32")
MAX_COUNT = 2**31 - 1
"""Largest integer of a record: no list, image or position is larger."""


def check_text(name: str, value: Any) -> str:
    """Return a text unchanged."""
    if not isinstance(value, str):
        raise DataError(f"{name}: expected text, found {type(value).__name__}")
    return value


def check_texts(name: str, values: Any, what: str = "tokens") -> list[str]:
    """Return texts as a new list."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{name}: expected a list of {what} (text)")
    return list(values)


def check_count(name: str, value: Any, least: int = 0) -> int:
    """Return an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataError(f"{name}: expected a whole number of {least} or more, found {shown(value)}")
    if value > MAX_COUNT:
        raise DataError(f"{name}: expected a whole number up to {MAX_COUNT:,}, found {shown(value)}")
    return int(value)


def check_number(name: str, value: Any) -> float:
    """Return a finite number as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise DataError(f"{name}: expected a number, found {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise DataError(f"{name}: expected a finite number, found {shown(value)}")
    return number


def check_numbers(name: str, values: Any, count: int, what: str) -> list[float]:
    """Return `count` finite numbers as a list; `what` names the items they belong to."""
    try:
        array = np.asarray(_plain(values), dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{name}: expected a number for each {what}") from error
    if array.shape != (count,):
        raise DataError(f"{name}: expected {count} numbers (one for each {what}), found shape {_shape(array)}")
    if not np.isfinite(array).all():
        raise DataError(f"{name}: expected finite numbers")
    return array.tolist()


def check_alternatives(name: str, values: Any, count: int) -> list[list[tuple[str, float]]]:
    """Return a list of (text, probability) for each of `count` items."""
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != count:
        raise DataError(f"{name}: expected {count} lists of tokens with their probabilities (one for each item)")
    found = []
    for place, pairs in enumerate(values):
        if isinstance(pairs, str) or not isinstance(pairs, Sequence) or not all(_is_pair(pair) for pair in pairs):
            raise DataError(f"{name}[{place}]: expected pairs of a token and its probability")
        own = [(check_text(f"{name}[{place}]", token), check_number(f"{name}[{place}]", value)) for token, value in pairs]
        if any(not 0 <= value <= 1.000001 for _, value in own):
            raise DataError(f"{name}[{place}]: expected probabilities from 0 to 1")
        found.append(own)
    return found


def _is_pair(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2


def check_mapping(name: str, value: Any) -> dict[str, str]:
    """Return a mapping of text to text as a new dict."""
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for pair in value.items() for part in pair):
        raise DataError(f"{name}: expected an object of text to text")
    return dict(value)


def check_fields(what: str, values: Any, known: Sequence[str], needed: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a JSON object, without unknown ones and with all required ones."""
    if not isinstance(values, Mapping):
        raise DataError(f"expected {what} (an object), found {type(values).__name__}")
    for name in needed:
        if name not in values:
            raise DataError(f"{name}: missing")
    for name in values:
        if name not in known:
            raise DataError(f"{shortened(str(name), 40)}: unknown field; known ones: {', '.join(known)}")
    return dict(values)


def check_extents(name: str, values: Any) -> np.ndarray:
    """Return the extents of N areas as a read-only integer array, (N, 2) or (N, 4)."""
    expected = "expected rows of 2 (start, length) or 4 (top, left, height, width) whole numbers"
    try:
        array = np.array(_plain(values))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: {expected}, found rows of unequal length") from error
    whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and bool((array == np.floor(array)).all()))
    if whole and array.size and max(array.max(), -array.min()) > MAX_COUNT:
        raise DataError(f"{name}: expected whole numbers up to {MAX_COUNT:,}")
    if array.ndim != 2 or array.shape[1] not in (2, 4) or not whole:
        raise DataError(f"{name}: {expected}, found shape {_shape(array)}")
    array = array.astype(np.int64)
    array.flags.writeable = False
    return array


def check_weights(name: str, values: Any, dims: int, expected: str, *, signed: bool = False) -> np.ndarray:
    """Return weights of `dims` axes as a read-only float32 array: lists, an array, a tensor, or JSON's packed form.

    Args:
        name: name of the field.
        values: numbers, finite and, unless `signed`, non-negative.
        dims: number of axes.
        expected: description for messages ("expected 2 x 3 numbers (target x source)").
        signed: whether negative numbers are allowed.
    """
    if isinstance(values, Mapping):
        array = _unpacked(name, values)
    else:
        try:
            array = np.asarray(_plain(values))
        except (TypeError, ValueError, NotImplementedError) as error:  # the last: a tensor on the meta device
            raise DataError(f"{name}: {expected}, found rows of unequal length or other things than numbers") from error
    if array.size == 0 and array.dtype.kind not in "fiu":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{name}: {expected}, found other things than numbers")
    if array.ndim != dims and array.size:
        raise DataError(f"{name}: {expected}, found shape {_shape(array)}")
    with np.errstate(over="ignore"):  # too large values become infinite, and are refused as such
        array = np.array(array, dtype=np.float32)
    wrong = ~np.isfinite(array) | (array < 0 if not signed else False)
    if wrong.any():
        place = np.argwhere(wrong)[0]
        where = "".join(f"[{index}]" for index in place)
        raise DataError(f"{name}{where} is {array[tuple(place)]}: expected a finite number{'' if signed else ' of 0 or more'}")
    array.flags.writeable = False
    return array


def check_shape(name: str, array: np.ndarray, shape: tuple[int, ...], expected: str) -> np.ndarray:
    """Return weights of this shape; an empty list fits any shape without elements."""
    if array.shape == shape:
        return array
    if array.size == 0 and 0 in shape:
        return np.zeros(shape, np.float32)
    raise DataError(f"{name}: {expected}, found shape {_shape(array)}")


def pack(array: np.ndarray, limit: int = 2000) -> Any:
    """Encode numbers for a file: nested lists up to `limit` numbers, above it base64 of their float32 bytes; both are exact."""
    if array.size <= limit:
        return _shortest(array)
    data = base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode("ascii")
    return {"shape": list(array.shape), "float32": data}


def _shortest(array: np.ndarray) -> list[Any]:
    # The shortest digits that restore this float32: 0.1, not 0.10000000149011612.
    return [float(str(value)) if array.ndim == 1 else _shortest(value) for value in array]


def _unpacked(name: str, values: Mapping[str, Any]) -> np.ndarray:
    fields = check_fields(f"{name}: numbers", values, PACKED, PACKED)
    shape = fields["shape"]
    if not isinstance(shape, list) or not 1 <= len(shape) <= 3:
        raise DataError(f"{name}: shape: expected a list of 1 to 3 whole numbers")
    shape = [check_count(f"{name}: shape", size) for size in shape]
    text = check_text(f"{name}: float32", fields["float32"])
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"{name}: float32: expected base64") from error
    needed = 4
    for size in shape:  # Python integers: the product cannot overflow
        needed *= size
    if len(data) != needed:
        raise DataError(f"{name}: float32: expected {needed} bytes for shape {' x '.join(map(str, shape))}, found {len(data)}")
    return np.frombuffer(data, dtype="<f4").reshape(shape)


def _plain(values: Any) -> Any:
    # Tensors may have gradients, be on another device or in bfloat16, none of which NumPy reads.
    if isinstance(values, list | tuple):
        return [_plain(value) for value in values] if any(hasattr(value, "detach") for value in values) else values
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    return (values.float() if values.is_floating_point() and values.element_size() < 4 else values).numpy()


def _shape(array: np.ndarray) -> str:
    return " x ".join(map(str, array.shape)) or "of one number"
