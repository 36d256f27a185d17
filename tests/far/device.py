"""A stand-in for a GPU: tensors that hold their numbers on the CPU, say that they are on the device "far", and refuse to meet others.

PyTorch runs on it every operation that exists on a CPU. As on a GPU, an operation of far and near tensors fails, but for single numbers,
near indices and copies. So a program that puts a tensor on the wrong device fails here, without a GPU. Native code takes near tensors
only, and so does not run on far ones.

Only for a process of its own, see `install`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only


class _Module:
    # What torch asks of a device's module.
    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def synchronize(self, device: Any = None) -> None:
        pass


FAR = "far:0"
INDEXED = ("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default", "aten._index_put_impl_.default")


def install() -> None:
    """Register the device in this process, before `regard` is imported.

    Replaces `torch.inference_mode` by `torch.no_grad`, as subclasses made outside cannot be viewed inside.
    """
    backend_registration._setup_privateuseone_for_python_backend("far", _Module())

    def no_grad(mode: Any = True) -> Any:
        return torch.no_grad()(mode) if callable(mode) else torch.no_grad() if mode else contextlib.nullcontext()

    torch.inference_mode = no_grad


class FarTensor(Tensor):
    """A tensor on the device; `near` holds its numbers."""

    near: Tensor

    def __new__(cls, near: Tensor) -> FarTensor:
        layout = {"strides": near.stride(), "storage_offset": near.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(
            cls, near.shape, dtype=near.dtype, device=torch.device(FAR), requires_grad=near.requires_grad, **layout
        )

    def __init__(self, near: Tensor) -> None:
        self.near = near

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"FarTensor({self.near})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["near"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: None, size: Any, stride: Any) -> FarTensor:
        return FarTensor(inner["near"])

    def tolist(self) -> Any:
        """Copy the numbers, as a tensor of a GPU does."""
        return self.near.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, as a tensor of a GPU does."""
        raise TypeError("can't convert a far tensor to numpy; use Tensor.cpu() first")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = str(func)
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = any(isinstance(tensor, FarTensor) for tensor in given)
    asked = kwargs.get("device")
    to_far = here if asked is None else torch.device(asked).type == "far"
    if not here and not to_far:
        return func(*args, **kwargs)
    copies = name in ("aten._to_copy.default", "aten.copy_.default")
    meeting = given[:1] if name in INDEXED or copies else given
    if here and any(tensor.dim() and not isinstance(tensor, FarTensor) for tensor in meeting) and not copies:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, found far and cpu")
    near_kwargs = kwargs if asked is None else {**kwargs, "device": torch.device("cpu")}
    near_kwargs = {key: value for key, value in near_kwargs.items() if key != "pin_memory"}
    found = func(*tree_map_only(FarTensor, lambda far: far.near, args), **tree_map_only(FarTensor, lambda far: far.near, near_kwargs))
    if name == "aten._to_copy.default" and not to_far:
        # A copy to where it is already would be the same memory.
        return found.clone() if isinstance(found, Tensor) and found is args[0].near else found
    if not to_far:
        return found
    wrapped = tree_map_only(Tensor, FarTensor, found)
    writes = any(each.alias_info is not None and each.alias_info.is_write for each in func._schema.arguments)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if writes else wrapped


class _Creation(TorchDispatchMode):
    # Tensors made on the device, and copied to it.
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return _run(func, args, kwargs or {})


class _Python(TorchFunctionMode):
    # Calls that reach no dispatch mode.
    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        words = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and words.get("device") is not None and torch.device(words["device"]).type == "far":
            device = words.pop("device")
            made = args[0] if isinstance(args[0], Tensor) else func(*args, **words)
            return made.to(device)
        return func(*args, **words)


@contextlib.contextmanager
def far_device() -> Iterator[torch.device]:
    """Make the device usable, and yield it."""
    with _Creation(), _Python():
        yield torch.device(FAR)


def near(value: Any) -> Any:
    """Return a tree of values with all far tensors brought back."""
    return tree_map_only(Tensor, lambda tensor: tensor.near if isinstance(tensor, FarTensor) else tensor, value)
