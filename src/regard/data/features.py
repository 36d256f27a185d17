"""Features of images computed beforehand: one memory-mapped safetensors file and the ids of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch


def write_features(path: str | Path, ids: Sequence[str], rows: Iterable[np.ndarray], *, grid: tuple[int, int], encoder: str = "") -> None:
    """Write one array (L, D) for each id, float16 or float32, L = grid height x width, one in memory at a time."""
    raise NotImplementedError


class FeatureFile:
    """Features read back: `ids`, `grid` (h, w), `encoder`, `shape` (N, L, D); `features[ids]` is float32 (n, L, D)."""

    ids: tuple[str, ...]
    grid: tuple[int, int]
    encoder: str
    shape: tuple[int, int, int]

    def __init__(self, path: str | Path) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, ids: Sequence[str]) -> torch.Tensor:
        raise NotImplementedError
