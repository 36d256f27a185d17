"""Weight files: names, shapes and dtypes are checked against the model before tensors are read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from regard.errors import CheckpointError
from regard.training.distributed import assign_tensor, full_tensor
from regard.training.memory_check import meta_device

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The types a checkpoint may hold, by the names of the safetensors header."""
# Stop building a model beyond this multiple of the file's parameters: the two do not match.
SLACK = 4
# Maximum header bytes (names, dtypes and shapes): enough for tens of thousands of tensors.
MAX_HEADER = 2**22


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name; tied tensors once, by their first name."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def whole_tensors(tensors: Mapping[str, Tensor], *, keep: bool = True) -> dict[str, Tensor]:
    """Gather tensors from all processes (collective) into separate CPU memory.

    Args:
        tensors: by name; sharded or not.
        keep: False on processes that only participate; they return an empty dictionary.
    """
    whole = {}
    for name, tensor in tensors.items():
        gathered = full_tensor(tensor)
        if keep:
            gathered = gathered.to("cpu").contiguous()
            own = gathered.untyped_storage().nbytes() == gathered.nbytes
            whole[name] = gathered if own else gathered.clone()
    return whole


def weights_sha256(model: nn.Module) -> str:
    """Return a hash over names, dtypes, shapes and bytes of a model's weights, sorted by name (collective).

    Models with equal hashes are equal bit for bit. A model without weights has the hash of the empty string.

    Example:
        >>> from torch import nn
        >>> weights_sha256(nn.Identity())[:8]
        'e3b0c442'
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(whole_tensors(named_tensors(model)).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_weights(path: Path, model: nn.Module) -> None:
    """Load a safetensors file into a model of exactly its names, shapes and dtypes.

    Raises:
        CheckpointError: a tensor does not fit.
    """
    expected = named_tensors(model)
    with open_tensors(path) as file:
        _check_tensors(path, file, expected)
        for name, tensor in expected.items():
            assign_tensor(tensor, file.get_tensor(name))


def check_fit(path: Path, build: Callable[[], nn.Module]) -> None:
    """Compare a safetensors file with a model, without allocating either.

    An untrusted configuration may describe any size: building stops far beyond the file's size.

    Args:
        path: the file; only its header is read.
        build: builds the model; called on the meta device.

    Raises:
        CheckpointError: a tensor does not fit, or the model is far larger than the file.
    """
    with open_tensors(path) as file:
        names = file.keys()
        numbers = sum(math.prod(file.get_slice(name).get_shape()) for name in names)
        with _no_larger(path, len(names), numbers), meta_device():
            model = build()
        _check_tensors(path, file, named_tensors(model))


@contextmanager
def _no_larger(path: Path, tensors: int, numbers: int) -> Iterator[None]:
    # Shared and replaced tables count more than once.
    most_tensors, most_numbers = SLACK * tensors + 1000, SLACK * numbers + 1_000_000

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal most_tensors, most_numbers
        if parameter is not None:
            most_tensors -= 1
            most_numbers -= parameter.numel()
        if min(most_tensors, most_numbers) < 0:
            raise CheckpointError(f"{path}: holds {numbers:,} numbers in {tensors} tensors, the model of the configuration has far more")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    except (RuntimeError, OverflowError, TypeError, MemoryError) as error:  # a size that no tensor can have
        raise CheckpointError(f"{path}: the model of the configuration cannot be built ({' '.join(str(error).split())[:200]})") from error
    finally:
        hook.remove()


def _check_tensors(path: Path, file: Any, expected: Mapping[str, Tensor]) -> None:
    names = set(file.keys())
    for name in sorted(expected.keys() - names):
        raise CheckpointError(f"{path}: the checkpoint lacks tensor {name}, the model has it with shape {tuple(expected[name].shape)}")
    for name in sorted(names - expected.keys()):
        raise CheckpointError(f"{path}: checkpoint tensor {name} is not in the model")
    for name, tensor in expected.items():
        check_tensor(path, file, name, shape=tensor.shape, dtype=tensor.dtype)


def open_tensors(path: Path) -> Any:
    """Open a safetensors file; only its header is read.

    Raises:
        CheckpointError: the file is missing or has no valid header.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
        if size > MAX_HEADER:  # some releases of the library take minutes over a header of a hundred thousand tensors
            raise CheckpointError(f"{path}: cannot be read as safetensors (a header of {size:,} bytes, at most {MAX_HEADER:,} are read)")
        return safe_open(path, framework="pt")
    # RuntimeError: the library's error for a file that a training is removing.
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({error})") from error


def check_tensor(path: Path, file: Any, name: str, *, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Compare the header's entry of one tensor with what is expected.

    Raises:
        CheckpointError: `checkpoint tensor decoder.x is (3, 4), the model has (5, 4)`.
    """
    entry = file.get_slice(name)
    if tuple(entry.get_shape()) != tuple(shape):
        raise CheckpointError(f"{path}: checkpoint tensor {name} is {tuple(entry.get_shape())}, the model has {tuple(shape)}")
    found = entry.get_dtype()
    if DTYPES.get(found) != dtype:
        raise CheckpointError(f"{path}: checkpoint tensor {name} is {found}, the model has {dtype}")


def average_files(paths: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and mean of each tensor over files of equal names and shapes; integers and booleans come from the last file.

    Summed in float64, so that the order of the files does not matter.

    Raises:
        CheckpointError: a file cannot be read, or lacks a tensor of the last one.
    """
    files = [open_tensors(path) for path in paths]
    for name in list(files[-1].keys()):  # an open safetensors file is no mapping: it has no iterator
        last = files[-1].get_tensor(name)
        if not last.is_floating_point():
            yield name, last
            continue
        total = last.double()
        for path, file in zip(paths[:-1], files[:-1], strict=True):
            if name not in set(file.keys()):
                raise CheckpointError(f"{path}: the checkpoint lacks tensor {name}")
            check_tensor(path, file, name, shape=last.shape, dtype=last.dtype)
            total += file.get_tensor(name).double()
        yield name, (total / len(files)).to(last.dtype)
