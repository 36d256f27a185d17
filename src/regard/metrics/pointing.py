"""Compare attention with the image region of a word: pointing accuracy, attention correctness, entropy, and chance levels.

Attention covers the cells of a grid on the image, row by row. A word's region is a set of pixels; `cell_hits` and `cell_coverage` map it to
cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.arguments import takes_arguments
from regard.errors import DataError
from regard.metrics.score import Score


@dataclass(frozen=True)
class PointingScores:
    """Pointing accuracy and its chance levels.

    Attributes:
        accuracy: how often the maximum weight is in the region, in percent.
        random_cell: the accuracy of a random cell, equal to that of uniform weights.
        random_object: the accuracy of pointing at a random object; None without numbers of objects.
    """

    accuracy: Score
    random_cell: Score
    random_object: Score | None


@dataclass(frozen=True)
class CorrectnessScores:
    """Attention correctness and its chance level.

    Attributes:
        correctness: mean attention mass inside the region, in percent.
        uniform: the same for uniform weights: the mean share of the image that regions cover.
    """

    correctness: Score
    uniform: Score


@takes_arguments
def cell_coverage(region: Any, grid: tuple[int, int]) -> np.ndarray:
    """Compute the share of each cell inside a region.

    Args:
        region: bool (H, W), the pixels of the region.
        grid: height h and width w in cells; H and W need not be their multiples.

    Returns:
        float64 (h * w,) of 0 to 1, row by row.

    Raises:
        DataError: the region is no (H, W) array of pixels, or a side of the grid is below 1.

    Example:
        >>> cell_coverage([[True, True, False, False], [False, True, False, False]], (1, 2)).tolist()
        [0.75, 0.0]
    """
    pixels = _region(region, grid)
    rows, columns = (_overlap(length, cells) for length, cells in zip(pixels.shape, grid, strict=True))
    return (rows @ pixels @ columns.T).reshape(-1)


@takes_arguments
def cell_hits(region: Any, grid: tuple[int, int], *, tolerance: float = 0.0) -> np.ndarray:
    """Return which cells count as hits: those whose centre lies inside a region, or near it (Zhang et al., 2016).

    Args:
        region: bool (H, W), the pixels of the region.
        grid: height h and width w in cells.
        tolerance: greatest distance in pixels from the centre of the cell to the square of a pixel of the region; half the side of
            a cell lets a region that lies between the centres be hit.

    Returns:
        bool (h * w,), row by row; nothing is hit where the region is empty.

    Raises:
        DataError: as for `cell_coverage`, or a tolerance below 0.

    Example:
        >>> cell_hits([[True, True, False, False]], (1, 4)).tolist()
        [True, True, False, False]
    """
    if not tolerance >= 0:
        raise DataError(f"tolerance {tolerance}: expected 0 or more pixels")
    pixels = _region(region, grid)
    height, width = pixels.shape
    y, x = ((np.arange(cells) + 0.5) * length / cells for cells, length in zip(grid, pixels.shape, strict=True))
    down = np.maximum(np.abs(y[:, None] - (np.arange(height) + 0.5)) - 0.5, 0.0)
    across = np.maximum(np.abs(x[:, None] - (np.arange(width) + 0.5)) - 0.5, 0.0)
    # From each column of cells to the nearest pixel of the region in each row of pixels: (H, w), infinite where a row has none.
    nearest = np.where(pixels[:, None, :] > 0, across[None, :, :], np.inf).min(axis=2)
    squared = (down[:, :, None] ** 2 + nearest[None, :, :] ** 2).min(axis=1)
    return (squared <= tolerance**2).reshape(-1)


@takes_arguments
def box_region(boxes: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    """Mark the pixels whose centres lie in one of the boxes.

    Args:
        boxes: left, top, right and bottom relative to width and height, 0 to 1; no boxes give an empty region.
        height: image height in pixels.
        width: image width in pixels.

    Returns:
        bool (height, width).

    Raises:
        DataError: a box is not four numbers.

    Example:
        >>> box_region([(0.5, 0.0, 1.0, 1.0)], 1, 4).tolist()
        [[False, False, True, True]]
    """
    y, x = (np.arange(height) + 0.5) / max(1, height), (np.arange(width) + 0.5) / max(1, width)
    region = np.zeros((height, width), bool)
    for box in boxes:
        if len(box) != 4:
            raise DataError(f"box {tuple(box)}: expected left, top, right and bottom")
        left, top, right, bottom = box
        region |= ((y >= top) & (y < bottom))[:, None] & ((x >= left) & (x < right))[None, :]
    return region


@takes_arguments
def pointing_accuracy(weights: Any, hits: Any, *, objects: Sequence[int] | None = None) -> PointingScores:
    """Compute how often the cell with the maximum weight is a hit, with two chance levels.

    Args:
        weights: (N, L) attention of N words over L cells, an array or tensor, finite, >= 0. Tied maxima share the hit, so uniform weights
            score as a random cell. A row of zeros is a miss.
        hits: (N, L) bool from `cell_hits`, per word.
        objects: number of objects in each word's image, at least 1.

    Returns:
        `PointingScores`, in percent.

    Raises:
        DataError: no words, shapes that differ, weights below 0 or not finite, or a number of objects below 1.

    Example:
        >>> scores = pointing_accuracy([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], [[0, 1, 0], [0, 1, 0]], objects=[2, 2])
        >>> print(scores.accuracy, scores.random_cell.value, scores.random_object.value)
        pointing accuracy 50.00 % [nwords:2|ncells:3] 33.33333333333333 50.0
    """
    values = _weights(weights)
    marks = _like(hits, values, "hits").astype(bool)
    largest = (values == values.max(axis=1, keepdims=True)) & (values > 0)
    found = (largest & marks).sum(axis=1) / np.maximum(1, largest.sum(axis=1))
    signature = f"nwords:{len(values)}|ncells:{values.shape[1]}"
    random_object = None
    if objects is not None:
        numbers = np.asarray(objects)
        if numbers.shape != (len(values),) or numbers.min() < 1:
            raise DataError(f"objects {numbers.shape}: expected {len(values)} numbers of 1 or more, one for each word")
        random_object = Score("random object", 100 * float((1 / numbers).mean()), "%", f"nwords:{len(values)}")
    return PointingScores(
        Score("pointing accuracy", 100 * float(found.mean()), "%", signature),
        Score("random cell", 100 * float(marks.mean()), "%", signature),
        random_object,
    )


@takes_arguments
def attention_correctness(weights: Any, coverage: Any) -> CorrectnessScores:
    """Compute the attention mass inside the region (Liu et al., 2017), with that of uniform attention.

    A cell's mass is spread evenly over its pixels; rows are normalized.

    Args:
        weights: (N, L) attention of N words over L cells, finite, >= 0. A row of zeros counts 0.
        coverage: (N, L) of 0 to 1, from `cell_coverage`, per word.

    Returns:
        `CorrectnessScores`, in percent.

    Raises:
        DataError: no words, shapes that differ, or numbers outside their range.

    Example:
        >>> scores = attention_correctness([[0.1, 0.7, 0.2]], [[0.0, 1.0, 0.5]])
        >>> round(scores.correctness.value, 6), scores.uniform.value
        (80.0, 50.0)
    """
    values = _weights(weights)
    parts = _like(coverage, values, "coverage")
    if not (parts.min() >= 0 and parts.max() <= 1):
        raise DataError(f"coverage {parts.shape}: expected parts of 0 to 1")
    sums = values.sum(axis=1)
    inside = (values * parts).sum(axis=1) / np.where(sums > 0, sums, 1.0)
    signature = f"nwords:{len(values)}|ncells:{values.shape[1]}"
    return CorrectnessScores(
        Score("attention correctness", 100 * float(inside.mean()), "%", signature),
        Score("uniform attention", 100 * float(parts.mean()), "%", signature),
    )


@takes_arguments
def attention_entropy(weights: Any) -> Score:
    """Compute the mean entropy of attention in nats: 0 for one cell, log L for uniform weights over L cells.

    Args:
        weights: (N, L) attention of N words over L cells, finite, >= 0; rows are normalized. A row of zeros has entropy 0.

    Returns:
        A `Score`; its signature holds log L as `max`.

    Raises:
        DataError: no words, or weights below 0 or not finite.

    Example:
        >>> print(attention_entropy([[0.5, 0.5, 0.0, 0.0]]))
        attention entropy 0.69 [nwords:1|ncells:4|unit:nats|max:1.3863]
    """
    values = _weights(weights)
    sums = values.sum(axis=1, keepdims=True)
    parts = values / np.where(sums > 0, sums, 1.0)
    terms = -parts * np.log(np.where(parts > 0, parts, 1.0))
    signature = f"nwords:{len(values)}|ncells:{values.shape[1]}|unit:nats|max:{math.log(values.shape[1]):.4f}"
    return Score("attention entropy", abs(float(terms.sum(axis=1).mean())), "", signature)


def _array(values: Any, name: str) -> np.ndarray:
    # Tensors may carry a gradient, lie on another device or hold bfloat16, which NumPy cannot read.
    plain = values.detach().cpu().double().numpy() if hasattr(values, "detach") else values
    try:
        return np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: expected rows of numbers, all of one length") from error


def _weights(weights: Any) -> np.ndarray:
    values = _array(weights, "weights")
    if values.ndim != 2 or 0 in values.shape:
        raise DataError(f"weights {values.shape}: expected (N, L), at least one word and one cell")
    if not np.isfinite(values).all() or values.min() < 0:
        raise DataError(f"weights {values.shape}: expected finite numbers of 0 or more")
    return values


def _like(values: Any, weights: np.ndarray, name: str) -> np.ndarray:
    found = _array(values, name)
    if found.shape != weights.shape:
        raise DataError(f"{name} {found.shape}, but weights {weights.shape}: expected one shape")
    return found


def _region(region: Any, grid: tuple[int, int]) -> np.ndarray:
    pixels = _array(region, "region")
    if pixels.ndim != 2 or 0 in pixels.shape or min(grid) < 1:
        raise DataError(f"region {pixels.shape} and grid {tuple(grid)}: expected pixels (H, W) and at least one cell a side")
    return (pixels != 0).astype(np.float64)


def _overlap(length: int, cells: int) -> np.ndarray:
    """Return the share of each pixel in each cell along one side: (cells, length), rows sum to 1."""
    edges = np.arange(cells + 1) * (length / cells)
    pixels = np.arange(length)
    shared = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.maximum(shared, 0.0) * (cells / length)
