"""State carried across batches (truncated BPTT), saved and loaded with checkpoints.

Batch number i of a plan belongs to stream group `i % stream_groups`. If the number of processes divides `stream_groups`, every process has
the same stream groups at each update. Tensors hold all stream groups along the first axis; those of other processes are unused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from regard.errors import CheckpointError, ConfigError, counted
from regard.training.distributed import ProcessGroup
from regard.training.weights import check_tensor, open_tensors


def check_stream_groups(carried: Mapping[str, Tensor], world: ProcessGroup) -> None:
    """Check that the number of processes divides the stream groups.

    Raises:
        ConfigError: it does not divide them.

    Example:
        >>> check_stream_groups({"hidden": torch.zeros(3, 5)}, ProcessGroup(size=2))
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: 2 processes cannot share 3 stream groups; training.stream_groups must be a multiple of the processes
    """
    for tensor in carried.values():
        if tensor.shape[0] % world.size:
            raise ConfigError(
                f"{world.size} processes cannot share {counted(tensor.shape[0], 'stream group')}; "
                "training.stream_groups must be a multiple of the processes"
            )


def gather_stream_state(carried: Mapping[str, Tensor], world: ProcessGroup) -> dict[str, Tensor]:
    """Return the tensors with every stream group from its process (collective).

    Example:
        >>> gather_stream_state({"hidden": torch.ones(2, 3)}, ProcessGroup())["hidden"].sum().item()
        6.0
    """
    if world.size == 1:
        return dict(carried)
    whole = {}
    for name, tensor in carried.items():
        copies = [torch.empty_like(tensor) for _ in range(world.size)]
        dist.all_gather(copies, tensor)
        whole[name] = torch.stack([copies[stream_group % world.size][stream_group] for stream_group in range(tensor.shape[0])])
    return whole


def read_stream_state(path: Path, carried: Mapping[str, Tensor]) -> None:
    """Read a safetensors file into tensors of exactly its names, shapes and types.

    Raises:
        CheckpointError: a tensor does not fit, or the file cannot be read.
    """
    with open_tensors(path) as file:
        if odd := sorted(set(file.keys()) ^ carried.keys()):
            raise CheckpointError(f"{path}: tensor {odd[0]} does not fit what is carried from batch to batch")
        for name, tensor in carried.items():
            check_tensor(path, file, name, shape=tensor.shape, dtype=tensor.dtype)
        for name, tensor in carried.items():
            tensor.copy_(file.get_tensor(name))
