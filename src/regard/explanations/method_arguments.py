"""A decorator that checks the arguments of explanation methods by the types in the signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from regard.arguments import by_signature
from regard.errors import DataError, ShapeError
from regard.explanations.batch_checks import type_name
from regard.explanations.batches import ModelBatch
from regard.ops.number_checks import check_count

P = ParamSpec("P")
R = TypeVar("R")

# Whole numbers that may be 0; all others are at least 1.
FROM_ZERO = ("seed", "most")


def takes_batch(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method of explanation refuse what is no batch, no whole number or no tensor by its signature; see also `takes_flags`.

    Raises:
        DataError: from the method's calls: the batch is none.
        ConfigError: likewise, a setting is no whole number, or too small.
        ShapeError: likewise, an argument is no tensor.

    Example:
        >>> @takes_batch
        ... def count(batch: ModelBatch) -> int:
        ...     return len(batch.inputs)
        >>> count(None)
        Traceback (most recent call last):
            ...
        regard.errors.DataError: count: batch must be a batch of examples, such as a TranslationBatch, found None
    """
    return by_signature(method, lambda name, kind, value: _checked(method.__name__, name, kind, value))


def _checked(method: str, name: str, kind: str, value: Any) -> Any:
    match kind:
        case "int":
            check_count(method, name, value, 0 if name in FROM_ZERO else 1)
        case "ModelBatch" if not isinstance(value, ModelBatch):
            raise DataError(f"{method}: {name} must be a batch of examples, such as a TranslationBatch, found {type_name(value)}")
        case "Tensor" if not isinstance(value, Tensor):
            raise ShapeError(f"{method}: {name} must be a tensor, found {type_name(value)}")
    return value
