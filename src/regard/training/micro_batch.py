"""Micro-batches (examples per forward pass): how many per batch, and how many processes compute them."""

from __future__ import annotations

import hashlib
import math
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

MIN_TOKENS = 500
"""Padded tokens of an automatic micro-batch at least: on fewer, what an operator costs before it computes shows."""
MAX_TOKENS = 8192
"""At most, about, for the memory that a forward pass keeps."""
VALUES = 1_000_000
"""Values of a layer in an automatic micro-batch, about, unless it is recurrent: more outgrow the cache, and fewer are slower."""
MIN_MICRO_BATCHES, MAX_MICRO_BATCHES = 2, 64
"""At least 2 of a batch that is large enough, so that a run that began on one core goes on with two, and ends with the same weights."""


def automatic_micro_batches(tokens: int, *, width: int, sequential: bool, workers: int) -> int:
    """Return the number of micro-batches for a batch of `tokens` padded tokens: as few as keep the workers busy.

    Recurrent layers take as many steps for few sentences as for many, so their batches are divided for the workers only.

    Args:
        tokens: of a batch.
        width: size of a layer's output.
        sequential: whether layers are recurrent.
        workers: processes that compute; see `choose_workers`.

    Example:
        >>> [automatic_micro_batches(8192, width=512, sequential=recurrent, workers=2) for recurrent in (False, True)]
        [4, 2]
    """
    least = max(workers, math.ceil(tokens / MAX_TOKENS), MIN_MICRO_BATCHES)
    return max(1, min(least if sequential else max(least, tokens * width // VALUES), tokens // MIN_TOKENS, MAX_MICRO_BATCHES))


def resolve_micro_batches(config: TrainingConfig, world: ProcessGroup, automatic: Callable[[int], int]) -> TrainingConfig:
    """Choose `training.micro_batches` for this machine unless it is set, so that a run's `config.yaml` states it.

    Args:
        config: the requested settings.
        world: the processes `torchrun` started.
        automatic: number of workers -> number of micro-batches.

    Example:
        >>> resolve_micro_batches(TrainingConfig(workers=3), ProcessGroup(), lambda workers: workers).micro_batches
        3
    """
    if config.micro_batches is not None:
        return config
    if world.device.type != "cpu" or config.compile:
        return config.model_copy(update={"micro_batches": 1})
    workers = 1 if why_alone(config, world) else config.workers or torch.get_num_threads()
    return config.model_copy(update={"micro_batches": automatic(workers)})


def micro_batches_of(job: TrainingJob, config: TrainingConfig) -> int:
    """Return the number of micro-batches per batch; 1 if it is not set.

    Raises:
        ConfigError: `training.micro_batches` > 1 for batches that cannot be divided.
    """
    count = config.micro_batches or 1
    if count > 1 and job.split is None:
        raise ConfigError(f"training.micro_batches: {count}, but the batches of this job cannot be divided")
    return count


def why_alone(config: TrainingConfig, world: ProcessGroup) -> str:
    """Return why this process must train without workers, or ""."""
    if world.device.type != "cpu":
        return f"training is on {world.device.type}"
    if world.size > 1:
        return "torchrun has started the processes"
    if config.compile:
        return "training.compile"
    if not sys.platform.startswith("linux"):
        return f"a process with threads cannot be forked safely on {sys.platform}"
    if torch.cuda.is_available():  # torch refuses a backward pass in a fork of a process that has made one
        return "a process that has used a GPU cannot be forked"
    return ""


def choose_workers(config: TrainingConfig, micro_batches: int, world: ProcessGroup, *, tokens: int | None = None) -> tuple[int, str]:
    """Return the number of single-thread processes for the micro-batches of a batch, and the reason.

    0 means this process alone, with all threads of torch. A batch too small for micro-batches is computed by one thread: a second one
    saves less than beside another program it costs, where the two wait for each other (`benchmarks/busy.py`).

    Args:
        config: `workers` and `compile` are read.
        micro_batches: of each batch.
        world: the processes `torchrun` started.
        tokens: padded tokens of a batch; None: unknown.

    Raises:
        ConfigError: `training.workers` > 1 where only one is possible.

    Example:
        >>> choose_workers(TrainingConfig(workers=3), 8, ProcessGroup())
        (3, 'training.workers')
        >>> choose_workers(TrainingConfig(), 1, ProcessGroup())
        (0, 'a batch is one micro-batch')
        >>> choose_workers(TrainingConfig(), 1, ProcessGroup(), tokens=500)
        (1, 'a batch of 500 tokens is not divided')
    """
    why = why_alone(config, world)
    if why:
        if (config.workers or 1) > 1:
            raise ConfigError(f"training.workers: {config.workers}, but only 1 is possible: {why}")
        return 0, why
    if micro_batches == 1 and tokens is not None and tokens < MIN_MICRO_BATCHES * MIN_TOKENS:
        return 1, f"a batch of {tokens} tokens is not divided"
    if micro_batches == 1 and config.workers is None:
        return 0, "a batch is one micro-batch"
    if config.workers is not None:
        parts = f" {config.workers}, {counted(micro_batches, 'micro-batch', 'micro-batches')} in a batch"
        return min(config.workers, micro_batches), f"training.workers{parts if config.workers > micro_batches else ''}"
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
        >>> describe_workers(1, "a batch of 500 tokens is not divided")
        'workers: 1 process of one thread (a batch of 500 tokens is not divided)'
    """
    if count:
        return f"workers: {counted(count, 'process', 'processes')} of one thread{' each' if count > 1 else ''} ({why})"
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
