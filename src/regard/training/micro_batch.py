"""Micro-batches (examples per forward pass): how many per batch, and how many processes compute them."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import TrainingConfig
from regard.cores import THREADS, quota_cores
from regard.errors import ConfigError, RegardError, TrainingError, counted
from regard.ops import SequenceLoss
from regard.training.distributed import ProcessGroup
from regard.training.training_job import TrainingJob

TOKENS = 1000
"""Padded tokens of a micro-batch, about, where their number is automatic: on fewer, what an operator costs before it computes shows."""
MIN_TOKENS = 500
MAX_MICRO_BATCHES = 8
"""Micro-batches of a batch at most where their number is automatic; their gradients are kept apart until they are summed."""


def automatic_micro_batches(tokens: int) -> int:
    """Return the number of micro-batches on a CPU for a batch of `tokens` padded tokens: 1, 2, 4 or 8.

    Depends on the batch only, so that weights do not depend on the number of cores.

    Example:
        >>> [automatic_micro_batches(tokens) for tokens in (300, 2000, 4096, 25_000)]
        [1, 2, 4, 8]
    """
    if tokens < MIN_TOKENS:
        return 1
    return min(MAX_MICRO_BATCHES, 1 << max(2, tokens // TOKENS).bit_length() - 1)


def micro_batches_of(job: TrainingJob, config: TrainingConfig, device: torch.device) -> int:
    """Return the number of micro-batches per batch on a device.

    Raises:
        ConfigError: `training.micro_batches` > 1 for batches that cannot be divided.
    """
    if config.micro_batches is None:
        return job.micro_batches if device.type == "cpu" and job.split is not None and not config.compile else 1
    if config.micro_batches > 1 and job.split is None:
        raise ConfigError(f"training.micro_batches: {config.micro_batches}, but the batches of this job cannot be divided")
    return config.micro_batches


def choose_workers(config: TrainingConfig, micro_batches: int, world: ProcessGroup) -> tuple[int, str]:
    """Return the number of single-thread processes for the micro-batches of a batch, and the reason.

    0 means this process alone, with all threads of torch.

    Args:
        config: `workers` and `compile` are read.
        micro_batches: of each batch.
        world: the processes `torchrun` started.

    Raises:
        ConfigError: `training.workers` > 1 where only one is possible.

    Example:
        >>> choose_workers(TrainingConfig(workers=3), 8, ProcessGroup())
        (3, 'training.workers')
        >>> choose_workers(TrainingConfig(), 1, ProcessGroup())
        (0, 'a batch is one micro-batch')
    """
    why = ""
    if world.device.type != "cpu":
        why = f"training is on {world.device.type}"
    elif world.size > 1:
        why = "torchrun has started the processes"
    elif config.compile:
        why = "training.compile"
    elif not sys.platform.startswith("linux"):
        why = f"a process with threads cannot be forked safely on {sys.platform}"
    elif torch.cuda.is_available():  # torch refuses a backward pass in a fork of a process that has made one
        why = "a process that has used a GPU cannot be forked"
    if why:
        if (config.workers or 1) > 1:
            raise ConfigError(f"training.workers: {config.workers}, but only 1 is possible: {why}")
        return 0, why
    if micro_batches == 1:
        return 0, "a batch is one micro-batch"
    if config.workers is not None:
        limit = f" {config.workers}, {micro_batches} micro-batches in a batch" if config.workers > micro_batches else ""
        return min(config.workers, micro_batches), f"training.workers{limit}"
    threads = torch.get_num_threads()
    # OpenMP takes no value that it cannot read, and torch no more threads than cores.
    cause = f"OMP_NUM_THREADS={threads}" if os.environ.get(THREADS) == str(threads) else counted(threads, "core")
    if threads == quota_cores():
        cause = f"a CPU quota of {counted(threads, 'core')}"
    return min(threads, micro_batches), f"{cause}, {micro_batches} micro-batches in a batch"


def describe_workers(count: int, why: str) -> str:
    """Return the message about the result of `choose_workers`.

    Example:
        >>> describe_workers(2, "2 cores, 4 micro-batches in a batch")
        'workers: 2 processes of one thread each (2 cores, 4 micro-batches in a batch)'
    """
    if count:
        return f"workers: {counted(count, 'process', 'processes')} of one thread each ({why})"
    threads = torch.get_num_threads()
    return f"workers: none, this process trains with {counted(threads, 'thread')} ({why})"


def backward(
    model: nn.Module,
    batch: Any,
    loss: Callable[[nn.Module, Any], SequenceLoss],
    *,
    scale: Callable[[Tensor], Tensor],
    config: TrainingConfig,
    device: torch.device,
) -> SequenceLoss:
    """Add the gradient of `scale(loss)` of a micro-batch to the parameters; return its sums.

    Raises:
        ConfigError: this processor cannot train this model in this precision.
        TrainingError: compilation failed.
    """
    batch = batch.to(device) if hasattr(batch, "to") else batch
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float16
    try:
        with torch.autocast(device.type, dtype=dtype, enabled=config.precision != "fp32"):
            sums = loss(model, batch)
        scale(sums.loss).backward()
    except Exception as error:
        if explained := _explained(error, config, device):
            raise explained from error
        raise
    return SequenceLoss(*(value.detach() for value in sums))


def seed_torch(device: torch.device, *parts: int | str) -> None:
    """Seed torch from a position in the run."""
    seed = int.from_bytes(hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest(), "little") >> 1
    # torch.manual_seed also records, with a stack trace, the seed of every unused device: 0.5 ms per batch.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _explained(error: Exception, config: TrainingConfig, device: torch.device) -> RegardError | None:
    """Return the message for an error caused by the configuration, or None."""
    if device.type == "cpu" and config.precision != "fp32" and ("primitive" in str(error) or "not implemented for" in str(error)):
        return ConfigError(f"training.precision: this processor cannot train this model in {config.precision} ({error})")
    if not config.compile:
        return None
    from torch._dynamo.exc import TorchDynamoException

    if not isinstance(error, TorchDynamoException):
        return None
    reason = str(error).strip().splitlines()[0]
    return TrainingError(f"torch.compile failed on this model: {reason}; train with training.compile=false")
