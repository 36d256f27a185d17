"""What goes on from batch to batch, such as the states of a recurrent network that reads a long text: saved and read with a checkpoint.

A plan of `lanes` lanes has batch number i in lane `i % lanes`. Where the processes divide the lanes, every process meets the same lanes at
each update, and the tensors hold the lanes' own parts along their first axis, those of other processes unused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from regard.errors import CheckpointError, ConfigError
from regard.training.distributed import World
from regard.training.weights import check_tensor, open_tensors


def check_lanes(carried: Mapping[str, Tensor], world: World) -> None:
    """Refuse a number of processes that the lanes cannot be shared out among.

    Raises:
        ConfigError: it does not divide the number of lanes; holds both.

    Example:
        >>> check_lanes({"hidden": torch.zeros(3, 5)}, World(size=2))
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: 2 processes cannot share 3 lanes of text; training.lanes must be a multiple of the processes
    """
    for tensor in carried.values():
        if tensor.shape[0] % world.size:
            raise ConfigError(
                f"{world.size} processes cannot share {tensor.shape[0]} {'lane' if tensor.shape[0] == 1 else 'lanes'} of text; "
                "training.lanes must be a multiple of the processes"
            )


def gather_lanes(carried: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """Return the tensors with every lane taken from the process that has it (collective).

    Example:
        >>> gather_lanes({"hidden": torch.ones(2, 3)}, World())["hidden"].sum().item()
        6.0
    """
    if world.size == 1:
        return dict(carried)
    whole = {}
    for name, tensor in carried.items():
        copies = [torch.empty_like(tensor) for _ in range(world.size)]
        dist.all_gather(copies, tensor)
        whole[name] = torch.stack([copies[lane % world.size][lane] for lane in range(tensor.shape[0])])
    return whole


def read_lanes(path: Path, carried: Mapping[str, Tensor]) -> None:
    """Read a safetensors file into tensors of exactly its names, shapes and types.

    Raises:
        CheckpointError: names the tensor that does not fit, or the file that cannot be read.
    """
    with open_tensors(path) as file:
        if odd := sorted(set(file.keys()) ^ carried.keys()):
            raise CheckpointError(f"{path}: tensor {odd[0]} does not fit what is carried from batch to batch")
        for name, tensor in carried.items():
            check_tensor(path, file, name, shape=tensor.shape, dtype=tensor.dtype)
        for name, tensor in carried.items():
            tensor.copy_(file.get_tensor(name))
