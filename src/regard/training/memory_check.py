"""Check whether a model fits into memory, before allocating it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from regard.config import TrainingConfig
from regard.errors import ConfigError
from regard.training.optimizer import STATE_KEYS

AnyModel = TypeVar("AnyModel", bound=nn.Module)

MEMINFO = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says how much memory a container may use."""
# Shared or replaced tables are registered repeatedly; stop counting beyond this multiple of the limit.
SLACK = 4


def check_memory(build: Callable[[], nn.Module], training: TrainingConfig | None = None) -> None:
    """Refuse a model that does not fit into memory, counted on torch's meta device.

    Args:
        build: builds the model.
        training: training settings, to include gradients, optimizer state and moving average. None counts the weights only.

    Raises:
        ConfigError: the model does not fit.

    Example:
        >>> check_memory(lambda: nn.Linear(3, 2))
        >>> check_memory(lambda: nn.Linear(2**30, 2**20))
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: model: ...
    """
    there, copies = total_memory(), 1 if training is None else _copies(training)
    with _counted(SLACK * there), meta_device():
        model = build()
    count = sum(parameter.numel() for parameter in model.parameters())
    needed = copies * sum(parameter.nbytes for parameter in model.parameters())
    if needed > there:
        how = "" if copies == 1 else f" to train ({copies} times the weights)"
        raise ConfigError(
            f"model: {count:,} parameters need {format_bytes(needed)} of memory{how}, this machine has {format_bytes(there)}; "
            "make the model or the vocabulary smaller"
        )


def build_with_memory_check(build: Callable[[], AnyModel], training: TrainingConfig, device: torch.device) -> AnyModel:
    """Build a model for training on a device, after `check_memory`.

    Args:
        build: builds the model.
        training: training settings.
        device: the training device; for an accelerator, main memory holds the weights only.

    Raises:
        ConfigError: see `check_memory`.

    Example:
        >>> build_with_memory_check(lambda: nn.Linear(3, 2), TrainingConfig(), torch.device("cpu"))
        Linear(in_features=3, out_features=2, bias=True)
    """
    check_memory(build, training if device.type == "cpu" else None)
    return build()


def total_memory() -> int:
    """Return the bytes available to this process: of the machine with swap, or of its container if less.

    Example:
        >>> total_memory() > 2**20
        True
    """
    try:
        found = {name: int(value.split()[0]) for name, value in (line.split(":") for line in MEMINFO.read_text().splitlines())}
        there = 1024 * (found["MemTotal"] + found.get("SwapTotal", 0))
    except (OSError, ValueError, KeyError, IndexError):
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in LIMITS:
        with suppress(OSError, ValueError):  # "max": no limit
            there = min(there, int(path.read_text()))
    return there


def format_bytes(count: int) -> str:
    """Format a number of bytes.

    Example:
        >>> format_bytes(10_995_116_277_760), format_bytes(2_500)
        ('11.0 TB', '2.5 kB')
    """
    size, units = float(count), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:,.1f} {units[0]}" if units[0] != "bytes" else f"{count} bytes"


def _copies(training: TrainingConfig) -> int:
    # Weights and gradients, the optimizer's running means, the moving average.
    means = [key for key in STATE_KEYS[training.optimizer] if key != "step"]
    return 2 + len(means) + (training.ema_decay is not None)


@contextmanager
def _counted(limit: int) -> Iterator[None]:
    left = limit

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal left
        left -= 0 if parameter is None else parameter.nbytes
        if left < 0:
            raise ConfigError(
                f"model: its parameters need more than {format_bytes(limit)} of memory, this machine has {format_bytes(limit // SLACK)}; "
                "make the model or the vocabulary smaller"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    except (RuntimeError, OverflowError, MemoryError) as error:  # a size that no tensor can have
        raise ConfigError(f"model: cannot be built ({' '.join(str(error).split())[:200]})") from error
    finally:
        hook.remove()


@contextmanager
def meta_device() -> Iterator[None]:
    """Build models in this block on torch's meta device, without data.

    Skips random fills: on this device they do nothing, but import torch's compiler, which takes more than a second and 150 MB.

    Example:
        >>> with meta_device():
        ...     layer = nn.Linear(2**40, 2**20)
        >>> layer.weight.shape
        torch.Size([1048576, 1099511627776])
    """
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Skip random fills of tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_) or getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
