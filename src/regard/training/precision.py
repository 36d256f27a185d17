"""Numeric precision of training on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

INITIAL_SCALE = 2.0**16  # of the loss in fp16
LEAST_SCALE = 2.0**-13  # fairseq's, rounded to a power of two


def fastest_precision(device: torch.device) -> Literal["fp32", "bf16"]:
    """Return the faster of bf16 and fp32.

    Args:
        device: the training device.

    Returns:
        "bf16" where the hardware multiplies bfloat16 (CUDA from compute capability 8.0, x86 with AVX512-BF16 or AMX), else "fp32".
        Without such instructions bfloat16 is emulated: slower than float32, by half on an Intel Xeon with AVX-512.

    Example:
        >>> fastest_precision(torch.device("cpu")) in ("fp32", "bf16")
        True
    """
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    return "bf16" if cpu_flags() & {"avx512_bf16", "amx_bf16"} else "fp32"


def is_emulated(precision: str, device: torch.device) -> bool:
    """Return whether a device emulates a precision through float32, which is slower than float32 itself.

    Example:
        >>> is_emulated("fp32", torch.device("cpu"))
        False
    """
    if device.type == "cuda":
        return precision == "bf16" and torch.cuda.get_device_capability(device) < (8, 0)
    needed = {"bf16": {"avx512_bf16", "amx_bf16"}, "fp16": {"avx512_fp16", "amx_fp16"}}
    return precision in needed and not cpu_flags() & needed[precision]


def overflow(scaler: torch.amp.GradScaler, *, least: float) -> str | None:
    """Return what is wrong if the gradients overflow whatever the loss is multiplied by, or None.

    Args:
        scaler: of a training in fp16, after an update; it halves the scale with every update that it skips. None if it is disabled.
        least: the smallest scale that is accepted.

    Example:
        >>> overflow(torch.amp.GradScaler("cpu", 2.0**-14), least=LEAST_SCALE)
        'the gradients overflow in fp16, also of a loss multiplied by 0.000122'
        >>> overflow(torch.amp.GradScaler("cpu", 2.0**-14, enabled=False), least=LEAST_SCALE)
    """
    if not scaler.is_enabled() or (scale := scaler.get_scale()) >= least:
        return None
    return f"the gradients overflow in fp16, also of a loss multiplied by {2 * scale:.3g}"


def cpu_flags() -> set[str]:
    """Return this processor's instruction sets by their Linux names; empty on other systems.

    Example:
        >>> isinstance(cpu_flags(), set)
        True
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())
