"""Report on this installation: device, code paths, versions."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from functools import partial

import torch

import regard
from regard.config import TrainingConfig
from regard.ops import area_path, bfloat16_path, matmul_path
from regard.ops.kernels import native
from regard.ops.kernels.panels import weight_bits
from regard.training import ProcessGroup, automatic_micro_batches
from regard.training.distributed import choose_device
from regard.training.micro_batch import choose_workers, describe_workers, resolve_micro_batches

_PARTS = ("numpy", "tokenizers", "safetensors", "sacrebleu", "pydantic", "typer", "matplotlib", "babel")


def report() -> list[str]:
    """Return lines that say which device, processor paths and versions are in use.

    Example:
        >>> report()[0].startswith("regard")
        True
    """
    path, reason = matmul_path()
    half, half_reason = bfloat16_path()
    device = choose_device()
    # A plain call in float32, as a model makes it.
    query = torch.zeros(1, 1, 5, 64, device=device)
    area, area_reason = area_path(query, query, query, max_area=5)
    lines = [
        f"regard {regard.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        f"device: {device}",
        f"threads: {torch.get_num_threads()} of torch; vector units: {torch.backends.cpu.get_cpu_capability()}",
        f"training on the CPU, {_workers()}",
        f"float32 products on the CPU: {path} ({reason})",
        f"bfloat16 products on the CPU: {half} ({half_reason})",
        f"int8 products on the CPU: {_int8()}",
        f"native kernels: {'used' if native.status().usable else 'not used'} ({native.status().reason})",
        f"area attention on {device}: {area} ({area_reason})",
        f"interpreter: {sys.executable}",
        # With the build, which the metadata of some releases leave out.
        f"torch {torch.__version__}",
    ]
    return lines + [f"{name} {importlib.metadata.version(name)}" for name in _PARTS] + _extras()


def _extras() -> list[str]:
    # What the extras bring, in the order of the project's metadata.
    lines = list[str]()
    for extra in importlib.metadata.metadata("regard").get_all("Provides-Extra", []):
        if extra == "dev":
            continue
        missing = list[str]()
        for requirement in importlib.metadata.requires("regard") or []:
            name = re.split(r"[^\w.-]", requirement)[0]
            if f'extra == "{extra}"' in requirement and not _installed(name):
                missing.append(name)
        lines.append(
            f"extra {extra}: " + (f"lacks {', '.join(missing)} (pip install '.[{extra}]' in the clone)" if missing else "installed")
        )
    return lines


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _int8() -> str:
    if not native.status().usable:
        return f"none ({native.status().reason})"
    return "native (weights of 8 bits)" if weight_bits() == 8 else "native (weights of 7 bits: an x86 processor without VNNI)"


def _workers() -> str:
    config, world = TrainingConfig(), ProcessGroup()
    recurrent = partial(automatic_micro_batches, config.batch_tokens, width=256, sequential=True)
    chosen = resolve_micro_batches(config, world, lambda workers: recurrent(workers=workers))
    return describe_workers(*choose_workers(chosen, chosen.micro_batches or 1, world))
