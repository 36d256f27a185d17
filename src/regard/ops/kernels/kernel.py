"""The one door to the native library: what a call takes is checked against a table before its addresses are taken.

A kernel names the tensors of its structure with their axes; sizes that the structure has under the names of axes come from the tensors
themselves, so that what C is told of them cannot be wrong. Calls go by ctypes, and not by operators registered with PyTorch: a call in
inference mode takes 1 microsecond so, 2.3 by `torch.library.Library` and 7.4 by `custom_op` (an empty one, torch 2.13, measured by hand).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.ops.kernels import native
from regard.ops.tensor_checks import Argument, Signature, is_ordinary

NO_MEMORY, OUTSIDE = 1, 2  # of enum regard_status in csrc/native.h
Call = TypeVar("Call", bound=ctypes.Structure)


class Kernel:
    """A function of the native library and what it takes.

    Args:
        name: of the function, without `regard_`.
        structure: of its argument.
        arguments: the pointers of the structure that are tensors of the call, in any order; axes are fields of it, numbers, or other names.
        loose: those whose strides the binding sees to itself; only the numbers of the last axis must lie side by side.

    Example:
        >>> from regard.ops.kernels.structures import BestCall
        >>> best = Kernel("best", BestCall, Argument("logits", "rows size", "float32"))
        >>> best.make(torch.ones(2, 3), count=1).size
        3
    """

    def __init__(self, name: str, structure: type[ctypes.Structure], *arguments: Argument, loose: Sequence[str] = ()) -> None:
        self.name, self.structure = f"regard_{name}", structure
        self.signature = Signature(self.name, *arguments)
        fields = {field[0] for field in structure._fields_}
        self._names = tuple(argument.name for argument in arguments)
        assert fields.issuperset(self._names), f"{self._names} are not all fields of {structure.__name__}"
        self._sizes = tuple({axis for argument in arguments for axis in argument.axes.split()} & fields)
        self._loose = frozenset(loose)
        self._threads = "threads" in fields

    def make(self, *tensors: Tensor | None, **numbers: Any) -> Any:
        """Check the tensors, and fill the structure.

        Args:
            tensors: one for each argument, contiguous.
            numbers: the other fields; what is not named stays 0.

        Raises:
            ShapeError: a tensor is not what the kernel takes; see `Signature.check`.
            ConfigError: a tensor has no numbers in memory.
        """
        sizes = self.signature.check(*tensors)
        for name in self._sizes:
            if name in sizes:
                numbers[name] = sizes[name]
        for name, tensor in zip(self._names, tensors, strict=True):
            if tensor is None:
                continue
            if not tensor.is_contiguous() and not (name in self._loose and (tensor.stride(-1) == 1 or tensor.shape[-1] == 1)):
                raise ShapeError(f"{self.name}: {name} is not contiguous, it has strides {tensor.stride()}")
            numbers[name] = (tensor.data_ptr() if tensor.is_cpu else 0) or address(tensor, self.name, name)
        if self._threads:
            numbers["threads"] = torch.get_num_threads()
        return self.structure(**numbers)

    def run(self, call: ctypes.Structure) -> bool:
        """Call the function.

        Returns:
            Whether all whole numbers named something; if not, nothing was computed, and `check_range` says which one it was.

        Raises:
            ConfigError: there is no library.
            MemoryError: the threads got none.
        """
        library = native.library()
        if library is None:
            raise ConfigError(f"{self.name}: {native.status().reason}")
        status = getattr(library, self.name)(ctypes.byref(call))
        if status not in (0, OUTSIDE):
            raise MemoryError(f"{self.name}: no memory for the threads")
        return not status


def address(tensor: Tensor, what: str, name: str) -> int:
    """Return where the numbers of a tensor lie.

    Raises:
        ConfigError: it has none in memory; the message begins with `what` and names the argument.

    Example:
        >>> address(torch.ones(2), "f", "x") > 0
        True
    """
    found = tensor.data_ptr() if tensor.is_cpu else 0
    if not found and tensor.numel():
        raise ConfigError(f"{what}: {name} has no numbers in memory that a kernel could read; REGARD_KERNELS=torch does without")
    return found


def solid(tensor: Tensor) -> Tensor:
    """Return a tensor whose numbers lie side by side as they are, without a sign or order that only a view knows of; most often itself.

    For what a backward pass is given, which no `supports` has seen.

    Raises:
        ConfigError: its numbers are not in memory, as within `torch.vmap` over a backward pass.

    Example:
        >>> solid(torch._neg_view(torch.ones(1))).tolist()
        [-1.0]
    """
    if not is_ordinary(tensor):
        tensor = tensor.resolve_neg()
        if not is_ordinary(tensor):
            raise ConfigError("a native backward pass takes no gradient that is fake or wrapped by torch.vmap; REGARD_KERNELS=torch does")
    return tensor.contiguous()
