"""Whether a model fits into memory, told before there is any of it."""

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

AnyModel = TypeVar("AnyModel", bound=nn.Module)

MEMINFO = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says how much memory a container may use."""
# Parameters are registered again where tables are shared or replaced; beyond so many times the limit nothing is left to find out.
SLACK = 4


def check_memory(build: Callable[[], nn.Module], training: TrainingConfig | None = None) -> None:
    """Refuse a model that this machine has no memory for, by its bytes; it is built without any, on torch's meta device.

    Args:
        build: makes the model.
        training: how it trains: with gradients, the optimizer's state and a moving average it takes several times the weights. None
            counts the weights alone.

    Raises:
        ConfigError: says how many parameters, how many bytes, and how many there are.

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
    """Build a model that is to be trained on a device, after `check_memory`.

    Args:
        build: makes the model.
        training: how it trains.
        device: where it trains; on an accelerator this machine's memory holds the weights alone.

    Raises:
        ConfigError: see `check_memory`.

    Example:
        >>> build_with_memory_check(lambda: nn.Linear(3, 2), TrainingConfig(), torch.device("cpu"))
        Linear(in_features=3, out_features=2, bias=True)
    """
    check_memory(build, training if device.type == "cpu" else None)
    return build()


def total_memory() -> int:
    """Return the bytes of memory this process may use: of the machine, with its swap space, or of its container if that is less.

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
    """Return a number of bytes as a message tells it.

    Example:
        >>> format_bytes(10_995_116_277_760), format_bytes(2_500)
        ('11.0 TB', '2.5 kB')
    """
    size, units = float(count), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:,.1f} {units[0]}" if units[0] != "bytes" else f"{count} bytes"


def _copies(training: TrainingConfig) -> int:
    # Weights and gradients, two running means of Adam, the moving average.
    return 2 + 2 * (training.optimizer != "sgd") + (training.ema_decay is not None)


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
    """Build models on torch's meta device in this block: shapes without numbers.

    Nothing is drawn there: on that device torch's own random fills do nothing either, but import its compiler first, which takes more than
    a second and 150 MB.

    Example:
        >>> with meta_device():
        ...     layer = nn.Linear(2**40, 2**20)
        >>> layer.weight.shape
        torch.Size([1048576, 1099511627776])
    """
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Leave tensors as they are that are to be filled with random numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_) or getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
