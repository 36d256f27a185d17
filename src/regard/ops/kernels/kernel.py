"""Calls of the native library: arguments are checked against a table before their addresses are passed.

A kernel names the tensors of its structure with their axes. Sizes in the structure, and shapes of results, are derived from the tensors, so
they are always consistent. Calls use ctypes, not operators registered with PyTorch: ARCHITECTURE.md says why.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError, RangeError, ShapeError
from regard.ops.kernels import native
from regard.ops.tensor_checks import DTYPES, Argument, Signature, check_range, is_ordinary

NO_MEMORY, OUTSIDE = 1, 2  # of enum regard_status in csrc/native.h
_MAX_PLANS = 1024


class _Plan(NamedTuple):
    # Shared by calls with tensors of the same shapes: fields of the structure, and shape and dtype of each result, or None.
    fields: dict[str, int]
    results: tuple[tuple[str, tuple[int, ...], torch.dtype] | None, ...]


class Kernel:
    """A function of the native library with its arguments and results.

    Args:
        name: name of the function, without `regard_`.
        structure: its argument structure.
        arguments: tensor pointers of the structure, in any order; axes are its fields, numbers, or other names.
        results: tensors allocated for each call; their axes are axes of the arguments, or numbers of the call.
        loose: arguments whose strides the binding handles; only their last axis must be contiguous.
        operation: prefix of error messages; None: the function's name.

    Example:
        >>> from regard.ops.kernels.structures import BestCall
        >>> values = Argument("values", "rows count", "float32")
        >>> best = Kernel("best", BestCall, Argument("logits", "rows size", "float32"), results=[values])
        >>> call, (values,) = best.make(torch.ones(2, 3), count=1)
        >>> call.size, values.shape
        (3, torch.Size([2, 1]))
    """

    def __init__(
        self,
        name: str,
        structure: type[ctypes.Structure],
        *arguments: Argument,
        results: Sequence[Argument] = (),
        loose: Sequence[str] = (),
        operation: str | None = None,
    ) -> None:
        self.name, self.structure = f"regard_{name}", structure
        self.signature = Signature(operation or self.name, *arguments)
        self._results, self._loose = tuple(results), frozenset(loose)
        self._names = tuple(argument.name for argument in arguments)
        self._fields = {field[0] for field in structure._fields_}
        pointers = {*self._names, *(result.name for result in results)}
        assert self._fields >= pointers, f"{pointers} are not all fields of {structure.__name__}"
        known = {axis.lstrip(".") for argument in arguments if not argument.optional for axis in argument.axes.split()}
        self._given = sorted({axis for result in results for axis in result.axes.split() if axis.isidentifier()} - known)
        self._plans: dict[tuple[object, ...], _Plan] = {}

    def make(self, *tensors: Tensor | None, without: tuple[str, ...] = (), **numbers: Any) -> tuple[Any, tuple[Any, ...]]:
        """Check the tensors, allocate the results, and fill the structure.

        Args:
            tensors: one per argument, contiguous.
            without: results that are not needed; they are None.
            numbers: other fields, and axes of results; missing ones are 0.

        Raises:
            ShapeError: a tensor does not match the table; see `Signature.check`.
            ConfigError: a tensor has no memory.
        """
        asked = (*[None if x is None else (x.shape, x.dtype) for x in tensors], *[numbers[axis] for axis in self._given], without)
        plan = self._plans.get(asked) or self._plan(asked, tensors, without, numbers)
        fields: dict[str, Any] = {**numbers, **plan.fields}
        first: Any = None
        for name, tensor in zip(self._names, tensors, strict=True):
            if tensor is None:
                continue
            if not tensor.is_contiguous() and not (name in self._loose and (tensor.stride(-1) == 1 or tensor.shape[-1] == 1)):
                raise ShapeError(f"{self.signature.operation}: {name} is not contiguous, it has strides {tensor.stride()}")
            fields[name] = (tensor.data_ptr() if tensor.is_cpu else 0) or address(tensor, self.signature.operation, name)
            first = tensor if first is None else first
        found = []
        for result in plan.results:
            made = None
            if result is not None:
                name, shape, dtype = result
                made = first.new_empty(shape) if dtype == first.dtype else first.new_empty(shape, dtype=dtype)
                fields[name] = made.data_ptr()
            found.append(made)
        fields["threads"] = torch.get_num_threads()  # ignored by a structure without threads
        call = self.structure(**fields)
        call.tensors = tensors  # keeps the tensors alive: the structure holds addresses only
        return call, tuple(found)

    def run(self, *tensors: Tensor | None, without: tuple[str, ...] = (), **numbers: Any) -> tuple[Any, tuple[Any, ...]]:
        """Make a call and return its structure and its results.

        Raises:
            RangeError: an index is out of range; the message holds the first one.
            ConfigError: there is no library; or see `make`.
            ShapeError: see `make`.
            MemoryError: a thread could not allocate memory.
        """
        call, found = self.make(*tensors, without=without, **numbers)
        if invoke(self.name, call, self.signature.operation) == OUTSIDE:
            sizes = {**numbers, **self.signature.check(*tensors)}
            for argument, tensor in zip(self.signature.arguments, tensors, strict=True):
                if tensor is not None and (argument.below or argument.most):
                    end = sizes[argument.below] - 1 if argument.below else sizes[argument.most]
                    check_range(self.signature.operation, argument.name, tensor, 0, end)
            raise RangeError(f"{self.signature.operation}: an index is out of range")
        return call, found

    def __call__(self, *tensors: Tensor | None, without: tuple[str, ...] = (), **numbers: Any) -> tuple[Any, ...]:
        """Make a call and return its results; see `run`."""
        return self.run(*tensors, without=without, **numbers)[1]

    def _plan(self, asked: tuple[object, ...], tensors: tuple[Tensor | None, ...], without: tuple[str, ...], numbers: Any) -> _Plan:
        sizes = self.signature.check(*tensors)
        pairs = zip(self.signature.arguments, tensors, strict=True)
        shared = (x.shape[: x.dim() - len(a.axes.split()) + 1] for a, x in pairs if x is not None and a.axes.startswith("..."))
        leading = next(shared, ())
        results: list[tuple[str, tuple[int, ...], torch.dtype] | None] = []
        for name, axes, dtype, *_ in self._results:
            shape = tuple(leading) if axes.startswith("...") else ()
            for axis in axes.split()[1 if axes.startswith("...") else 0 :]:
                shape += (int(axis) if axis.isdigit() else sizes[axis] if axis in sizes else numbers[axis],)
            results.append(None if name in without else (name, shape, DTYPES[dtype]))
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        plan = _Plan({axis: size for axis, size in sizes.items() if axis in self._fields}, tuple(results))
        self._plans[asked] = plan
        return plan


def invoke(name: str, call: ctypes.Structure, operation: str) -> int:
    """Call a function of the native library.

    Returns:
        0, or `OUTSIDE`: an index is out of range, and nothing was computed.

    Raises:
        ConfigError: there is no library.
        MemoryError: a thread could not allocate memory.

    Example:
        >>> from regard.ops.kernels.structures import BestCall
        >>> invoke("regard_best", BestCall(), "best") if native.library() is not None else 0
        0
    """
    status = native.function(name, operation)(ctypes.byref(call))
    if status == NO_MEMORY:
        raise MemoryError(f"{operation}: no memory for the threads")
    return status


def address(tensor: Tensor, what: str, name: str) -> int:
    """Return the address of a tensor's data.

    Raises:
        ConfigError: it has no memory; the message begins with `what` and names the argument.

    Example:
        >>> address(torch.ones(2), "f", "x") > 0
        True
    """
    found = tensor.data_ptr() if tensor.is_cpu else 0
    if not found and tensor.numel():
        raise ConfigError(f"{what}: {name} has no numbers in memory that a kernel could read; REGARD_KERNELS=torch does without")
    return found


def solid(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor without lazy negation, usually the argument itself.

    For the inputs of a backward pass, which no `supports` has checked.

    Raises:
        ConfigError: it has no memory, as in `torch.vmap` over a backward pass.

    Example:
        >>> solid(torch._neg_view(torch.ones(1))).tolist()
        [-1.0]
    """
    if not is_ordinary(tensor):
        tensor = tensor.resolve_neg()
        if not is_ordinary(tensor):
            raise ConfigError("a native backward pass takes no gradient that is fake or wrapped by torch.vmap; REGARD_KERNELS=torch does")
    return tensor.contiguous()
