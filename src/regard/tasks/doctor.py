"""What this installation uses, and why."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

import torch

import regard
from regard.ops import matmul_path
from regard.training.distributed import choose_device

_PARTS = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "pydantic", "typer", "matplotlib", "babel")


def report() -> list[str]:
    """Return lines that say which device, processor paths and versions are in use.

    Example:
        >>> report()[0].startswith("regard")
        True
    """
    path, reason = matmul_path()
    lines = [
        f"regard {regard.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        f"device: {choose_device()}",
        f"threads: {torch.get_num_threads()} of torch; vector units: {torch.backends.cpu.get_cpu_capability()}",
        f"float32 products on the CPU: {path} ({reason})",
        f"interpreter: {sys.executable}",
    ]
    return lines + [f"{name} {importlib.metadata.version(name)}" for name in _PARTS]
