"""Torch products: the axis over which each factor is summed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportPrivateUsage]

ROWS = {"matmul", "linalg_matmul", "bmm", "mm", "__matmul__", "__rmatmul__", "baddbmm", "addbmm", "addmm"}
LAST = {"linear", "mv", "addmv", "dot", "vdot", "inner", "vecdot", "linalg_vecdot"}
ADDED = {"baddbmm", "addbmm", "addmm", "addmv"}
PRODUCT = {*ROWS, *LAST, "einsum", "tensordot"}
NAMES = ("input", "self", "a", "x", "batch1", "mat1", "mat", "tensor", "weight", "batch2", "mat2", "other", "b", "y", "vec", "vec1", "vec2")


class Factor(NamedTuple):
    """A factor of a product.

    Attributes:
        tensor: the tensor.
        others: the other factors.
        axis: its summed axis, counted from the end; None: unknown or several.
        query: its axis that the other factors lack, counted from the end; None: none.
        lacking: all axes that they lack, which may count the queries, counted from the end in `arranged` weights.
    """

    tensor: Tensor
    others: tuple[Tensor, ...]
    axis: int | None
    query: int | None = None
    lacking: tuple[int, ...] = ()

    def arranged(self, weights: Tensor) -> Tensor:
        """Return weights shaped like the factor as (..., T, S)."""
        assert self.axis is not None
        if self.query is None:
            return weights.movedim(self.axis, -1).unsqueeze(-2)
        return weights.movedim((self.query, self.axis), (-2, -1))


def factors(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Factor]:
    """Yield the factors of a call of the named function."""
    if name == "einsum":
        yield from _of_einsum(args)
        return
    given = (*args, *(kwargs[key] for key in NAMES if key in kwargs))
    given = given[1:] if name in ADDED else given
    pair = tuple(each for each in given[:2] if isinstance(each, Tensor))
    if len(pair) < 2:
        return
    first, second = reversed(pair) if name == "__rmatmul__" else pair
    if name == "tensordot":
        axes = _of_tensordot(kwargs.get("dims", args[2] if len(args) > 2 else 2), first, second)
        for tensor, other, axis in zip((first, second), (second, first), axes, strict=True):
            yield Factor(tensor, (other,), axis, _last_but(tensor, axis))
        return
    yield Factor(first, (second,), -1, -2 if first.dim() > 1 else None, _lacking(second, first))
    axis = -2 if name in ROWS and second.dim() > 1 else -1
    yield Factor(second, (first,), axis, None if second.dim() < 2 else -3 - axis, _lacking(first, second))


def _lacking(values: Tensor, weights: Tensor) -> tuple[int, ...]:
    """Return the axes of weights (..., T, S) that the values they are multiplied by lack, or have once."""
    missing = weights.dim() - values.dim()
    shared = (axis for axis in range(1, weights.dim() - 2) if axis < missing or values.shape[axis - missing] == 1)
    return (*(axis - weights.dim() for axis in shared), -2)


def _last_but(tensor: Tensor, axis: int | None) -> int | None:
    return None if tensor.dim() < 2 else -2 if axis == -1 else -1


def _of_tensordot(dims: Any, first: Tensor, second: Tensor) -> tuple[int | None, int | None]:
    if dims == 1:
        return -1, -second.dim()
    if isinstance(dims, int | Tensor):
        return None, None
    own, other = ([each] if isinstance(each, int) else list(each) for each in dims)
    if len(own) != 1 or len(other) != 1:
        return None, None
    return own[0] % first.dim() - first.dim(), other[0] % second.dim() - second.dim()


def _of_einsum(args: tuple[Any, ...]) -> Iterator[Factor]:
    equation = args[0].replace(" ", "") if args and isinstance(args[0], str) else ""
    tensors = tuple(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    tensors = tuple(each for each in tensors if isinstance(each, Tensor)) if equation else tuple(x for x in args if isinstance(x, Tensor))
    left, arrow, kept = equation.partition("->")
    operands = left.split(",")
    if not arrow:
        kept = "".join(axis for axis in left if axis.isalpha() and left.count(axis) == 1)
    for place, tensor in enumerate(tensors):
        others = tensors[:place] + tensors[place + 1 :]
        own = operands[place] if len(operands) == len(tensors) else "?"
        axes = own.removeprefix("...")
        if re.fullmatch("[a-zA-Z]+", axes) and (axes != own or len(axes) == tensor.dim()):
            other = "".join(operands[:place] + operands[place + 1 :])
            yield Factor(tensor, others, *_axes(axes, other, kept))
        else:
            yield Factor(tensor, others, None)


def _axes(own: str, other: str, kept: str) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Return the summed axis of an einsum, the query axis, which values lack, and all that they lack, see `Factor`.

    They are k and t for "bthk,bkhd->bthd".
    """
    summed = [axis for axis in own if axis in other and axis not in kept]
    if own[-1] in summed:
        summed = [own[-1]]  # others are those of heads
    if len(summed) != 1 or any(axis not in kept + other for axis in own):
        return None, None, ()
    place = own.index(summed[0])
    queries = [axis for axis in own if axis not in other]
    beside = own[place - 1 : place]
    if len(queries) > 1 and beside not in queries:
        return None, None, ()
    query = beside if beside in queries and beside else queries[0] if queries else None
    if query is None:
        return place - len(own), None, ()
    order = [axis for axis in own if axis not in (query, summed[0])] + [query, summed[0]]
    return place - len(own), own.index(query) - len(own), tuple(order.index(axis) - len(own) for axis in queries)


def has_numbers(tensor: Tensor) -> bool:
    """Return whether a tensor's values can be read: dense, on a device, outside torch.func transforms."""
    plain = tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_nested or type(tensor).__name__ == "FakeTensor")
    return plain and peek_interpreter_stack() is None


def is_learned(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter or a view of one: a layer, not values."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
