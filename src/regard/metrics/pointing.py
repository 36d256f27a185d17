"""Does attention look at what the word names? Pointing accuracy, attention correctness, entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.metrics.score import Score


@dataclass(frozen=True)
class PointingScores:
    """`accuracy` beside its baselines: `random_cell`, and `random_object` where the numbers of objects were given."""

    accuracy: Score
    random_cell: Score
    random_object: Score | None


def cell_coverage(region: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Return the part of each cell that a region (bool (H, W)) covers, float64 (h * w,) row by row."""
    raise NotImplementedError


def cell_hits(region: np.ndarray, grid: tuple[int, int], *, tolerance: float = 0.0) -> np.ndarray:
    """Say for each cell whether its centre lies within `tolerance` pixels of the region: bool (h * w,)."""
    raise NotImplementedError


def box_region(boxes: Any, height: int, width: int) -> np.ndarray:
    """Turn boxes (left, top, right, bottom as parts, 0 to 1) into a region, bool (height, width)."""
    raise NotImplementedError


def pointing_accuracy(weights: Any, hits: Any, *, objects: Any = None) -> PointingScores:
    """Compute how often the largest of a word's weights (N, L) falls on a cell that counts as a hit, bool (N, L)."""
    raise NotImplementedError


def attention_correctness(weights: Any, coverage: Any) -> tuple[Score, Score]:
    """Compute the mean mass of weights (N, L) inside the region, coverage (N, L), and the value of uniform weights."""
    raise NotImplementedError


def attention_entropy(weights: Any) -> Score:
    """Compute the mean entropy of weights (N, L) in nats; uniform weights have log L."""
    raise NotImplementedError
