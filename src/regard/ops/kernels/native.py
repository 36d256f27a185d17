"""Loads the library of native CPU kernels, built with the package if there is a C compiler.

It is loaded once, when this module is imported: after torch, so that both share one OpenMP runtime. Without it, PyTorch computes
everything.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor  # torch also loads the OpenMP runtime that the library then finds

from regard.errors import ConfigError
from regard.ops.tensor_checks import is_plain

ABI = 20  # REGARD_ABI of csrc/native.h: raised whenever a function, a struct or a limit visible to Python changes
PATHS = ("reference", "torch", "cpu", "triton")
TARGETS = ("the vector units every such processor has", "AVX2", "AVX-512", "AVX-512 with VNNI", "AVX-512 with VNNI and AMX")


class Status(NamedTuple):
    """Whether the native library can be used, and the reason in words."""

    usable: bool
    reason: str


def load(folder: Path) -> tuple[ctypes.CDLL | None, str]:
    """Load the library from a folder.

    Args:
        folder: folder of `_cpu*.so`.

    Returns:
        The library and its build targets, or None and the reason.

    Example:
        >>> load(Path("nowhere"))
        (None, 'the native library was not built (no C compiler at installation?)')
    """
    found = sorted(folder.glob("_cpu*.so"))
    if not found:
        return None, "the native library was not built (no C compiler at installation?)"
    try:
        library = ctypes.CDLL(str(found[0]))
        abi = library.regard_abi()
        if abi != ABI:  # first: the rest may be of another kind, too
            return None, f"the native library {found[0].name} has interface {abi}, this package needs {ABI}: install it again"
        library.regard_threads.restype = ctypes.c_char_p
        threads, target = library.regard_threads().decode(), TARGETS[library.regard_target()]
    except (OSError, AttributeError) as error:
        return None, f"the native library {found[0].name} cannot be loaded: {error}"
    return library, f"native library with {target}, {threads}"


_LIBRARY, _REASON = load(Path(__file__).parent)


def forced_path() -> str | None:
    """Return the value of `REGARD_KERNELS`, None if unset.

    Raises:
        ConfigError: it is not one of reference, torch, cpu and triton.

    Example:
        >>> forced_path() in (None, *PATHS)
        True
    """
    forced = os.environ.get("REGARD_KERNELS", "")
    if forced and forced not in PATHS:
        raise ConfigError(f"REGARD_KERNELS: expected one of {', '.join(PATHS)}, found {forced!r}")
    return forced or None


def library() -> ctypes.CDLL | None:
    """Return the native library; None without one, or if `REGARD_KERNELS` is reference or torch.

    Raises:
        ConfigError: see `forced_path`.

    Example:
        >>> (library() is not None) == status().usable
        True
    """
    return None if forced_path() in ("reference", "torch") else _LIBRARY


def function(name: str, operation: str) -> Any:
    """Return a function of the native library for a supported call; `REGARD_KERNELS` is not checked again.

    Raises:
        ConfigError: there is no library; the message begins with `operation`.

    Example:
        >>> function("regard_abi", "example")() == ABI if library() is not None else True
        True
    """
    if _LIBRARY is None:
        raise ConfigError(f"{operation}: {_REASON}")
    return getattr(_LIBRARY, name)


def takes(*tensors: Tensor | None) -> bool:
    """Return whether the native library can read these tensors: plain CPU tensors, and the library is loaded. Part of every `supports`.

    Args:
        tensors: all tensors of a call; None for missing ones.

    Example:
        >>> import torch
        >>> takes(torch.ones(1, device="meta"))
        False
    """
    for tensor in tensors:
        if tensor is not None and not tensor.is_cpu:
            return False
    return is_plain(*tensors) and library() is not None


def status() -> Status:
    """Return whether the native library is used, and why.

    Raises:
        ConfigError: see `forced_path`.

    Example:
        >>> status().reason != ""
        True
    """
    if forced_path() in ("reference", "torch"):
        return Status(False, f"REGARD_KERNELS={forced_path()}")
    return Status(_LIBRARY is not None, _REASON)
