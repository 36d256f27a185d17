"""Distributed training under `torchrun`: ranks, agreement, and model sharding.

Small decisions are integers over a CPU (gloo) group even if gradients use nccl, so that they never wait for the accelerator. Objects are
not exchanged, because torch would pickle them.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard import __version__
from regard.cores import processor
from regard.errors import ConfigError, TrainingError, shown

TIMEOUT = timedelta(minutes=2)
"""How long a process waits for the others, for example while process 0 writes a checkpoint, before it gives up."""

_GROUP: list[Any] = []
"""The group, held until there is another or Python ends. Only where Python drops it last are its threads waited for without Python's lock,
which they may need to end (pytorch issue 56297): else a process that lost another now and then hung for good, in DDP's destructor."""


@atexit.register
def _leave() -> None:
    # Before Python shuts down: a thread that asks for its lock later ends the process by SIGABRT (pytorch issue 190489).
    gc.collect()
    _GROUP.clear()


@dataclass(frozen=True)
class ProcessGroup:
    """The process group of a training run.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        device: device of this process.

    Example:
        >>> ProcessGroup().main
        True
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def main(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """Return the integers of every process, in rank order (collective)."""
        return gather(values)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes (collective), not in place."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def share(self, values: Sequence[float]) -> list[float]:
        """Return the numbers of process 0 (collective); every process passes equally many."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(list(values), dtype=torch.float64)
        dist.broadcast(tensor, src=0)
        return tensor.tolist()

    def on_main(self, action: Callable[[], int]) -> int:
        """Run `action` on process 0 and return its number (at least 0) everywhere (collective).

        Raises:
            TrainingError: on other processes, if `action` failed on process 0, which raises the cause.
        """
        value, failure = 0, None
        if self.main:
            try:
                value = action()
            except Exception as error:
                failure = error
        rows = self.gather([value, int(failure is not None)])
        if failure is not None:
            raise failure
        if rows[0][1]:
            raise TrainingError("process 0 gave up; its own message says why")
        return rows[0][0]


def gather(values: Sequence[int]) -> list[list[int]]:
    """Return the integers of every process, in rank order.

    Example:
        >>> gather([3, 5])
        [[3, 5]]
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [list(values)]
    mine = torch.tensor(list(values), dtype=torch.int64)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return [row.tolist() for row in rows]


def choose_device(local_rank: int = 0) -> torch.device:
    """Return the device to train on: cuda if available, else cpu; `REGARD_DEVICE` (cpu or cuda) overrides.

    Raises:
        ConfigError: `REGARD_DEVICE` is neither, or cuda is not available.
    """
    wanted = os.environ.get("REGARD_DEVICE", "")
    if wanted not in ("", "cpu", "cuda"):
        raise ConfigError(f"REGARD_DEVICE is {shown(wanted)}, expected cpu or cuda")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda (--device or REGARD_DEVICE): torch finds no CUDA device")
    if wanted != "cpu" and torch.cuda.is_available():
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def describe_device(device: torch.device) -> str:
    """Return the name of a device, and the versions of PyTorch and Regard.

    Example:
        >>> describe_device(torch.device("cpu")).endswith(f", torch {torch.__version__}, regard {__version__}")
        True
    """
    name = processor() if device.type == "cpu" else torch.cuda.get_device_name(device)
    return f"{name}, torch {torch.__version__}, regard {__version__}"


@contextmanager
def processes(timeout: timedelta = TIMEOUT) -> Iterator[ProcessGroup]:
    """Join the process group of `torchrun`; without it, a group of one.

    Reuses an existing group and does not destroy it, so a caller may enter this first (for instance to prepare data on process 0) and train
    inside.

    Args:
        timeout: time until a collective call fails, if a process has died.

    Raises:
        ConfigError: see `choose_device`.
        TrainingError: the other processes cannot be reached, or were lost.

    Example:
        >>> with processes() as world:
        ...     print(world.rank, world.size, world.on_main(lambda: 7))
        0 1 7
    """
    device = choose_device(int(os.environ.get("LOCAL_RANK", "0")))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    joined = dist.is_available() and dist.is_initialized()
    if size == 1 and not joined:
        yield ProcessGroup(device=device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        if not joined:
            import_module("torch.distributed.nn.functional")  # before there is a group, which its default arguments would hold for good
            from torch.distributed.rendezvous import rendezvous

            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
            # torchrun keeps its store over a restart, with addresses of dead processes: each try uses its own prefix.
            own = f"try {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
            store = dist.PrefixStore(own, store)  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        _GROUP[:] = [dist.group.WORLD]
        yield ProcessGroup(dist.get_rank(), dist.get_world_size(), device)
    except RuntimeError as error:
        if not _lost_contact(error):
            raise
        # The first sentence, without gloo's source location.
        reason = re.sub(r"^\[[^]]*\] *", "", str(error).strip().splitlines()[0]).split(". ")[0]
        raise TrainingError(f"lost contact with another process of this run; start the same command again to resume ({reason})") from error
    finally:
        if not joined and dist.is_initialized():
            dist.destroy_process_group()


def wrap_distributed(model: nn.Module, world: ProcessGroup, kind: Literal["ddp", "fsdp"]) -> nn.Module:
    """Return the module to call in training: the model itself, its DDP wrapper, or itself sharded in place (FSDP2).

    FSDP2 keeps parameters, gradients and optimizer state as one sharded group, gathered for each forward pass. The
    models here are called through one `forward`, and tied parameters may not cross groups.
    """
    if world.size == 1:
        return model
    if kind == "ddp":
        devices = [world.device] if world.device.type == "cuda" else None
        # Buffers outside the state dict are constants (position tables): do not send them every step.
        constant = [name for name, _ in model.named_buffers() if name not in model.state_dict()]
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, constant)
        # Such as the network of images, which a batch without images gives no gradient.
        partial = any(getattr(module, "sometimes_unused", False) for module in model.modules())
        return nn.parallel.DistributedDataParallel(model, device_ids=devices, find_unused_parameters=partial)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    fully_shard(model, mesh=init_device_mesh(world.device.type, (world.size,)))
    return model


def sync_gradients(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Reduce gradients over the processes only in the last backward pass of an update."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return nullcontext() if last else module.no_sync()
    sharded: Any = module
    if hasattr(sharded, "set_requires_gradient_sync"):
        sharded.set_requires_gradient_sync(last)
    return nullcontext()


@contextmanager
def full_parameters(model: nn.Module) -> Iterator[None]:
    """Gather the full parameters of a sharded model, so that any method may be called (decoding, encoding)."""
    sharded: Any = model if hasattr(model, "unshard") else None
    if sharded is not None:
        sharded.unshard()
    try:
        yield
    finally:
        if sharded is not None:
            sharded.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor of a sharded one (collective), or the tensor itself."""
    whole = getattr(tensor, "full_tensor", None)
    return tensor if whole is None else whole()


def assign_tensor(tensor: Tensor, value: Tensor) -> None:
    """Copy a full `value`, present in every process, into a possibly sharded tensor."""
    with torch.no_grad():
        tensor.copy_(shard_like(value, tensor))


def shard_like(value: Tensor, tensor: Tensor) -> Tensor:
    """Return a full `value`, present in every process, on the device and with the sharding of `tensor`."""
    value = value.to(tensor.device)
    sharded: Any = tensor
    if not hasattr(sharded, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, sharded.device_mesh, sharded.placements, src_data_rank=None)


def _lost_contact(error: RuntimeError) -> bool:
    text = str(error)
    signs = (
        "Connection closed by peer",
        "Connection reset",
        "Connection refused",
        "Broken pipe",
        "Timed out",
        "timeout",
        "NCCL",
        "TCPStore",
        "gloo",
    )
    return isinstance(error, dist.DistError) or any(sign in text for sign in signs)
