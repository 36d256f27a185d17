"""Compare attention with the image region of a word: pointing accuracy, attention correctness, entropy, and chance levels.

Attention covers the cells of a grid on the image, row by row. A word's region is a set of pixels; `cell_hits` and `cell_coverage` map it to
cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from regard.arguments import list_of, takes_arguments
from regard.errors import DataError, shown
from regard.metrics.checks import check_least, read_flags, read_numbers, refuse_where
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
        DataError: the region is no (H, W) array of booleans, or the grid not two whole numbers of at least 1.

    Example:
        >>> cell_coverage([[True, True, False, False], [False, True, False, False]], (1, 2)).tolist()
        [0.75, 0.0]
    """
    pixels, sides = _region("cell_coverage", region, grid)
    rows, columns = (_overlap(length, cells) for length, cells in zip(pixels.shape, sides, strict=True))
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
        DataError: as for `cell_coverage`, or a tolerance that is below 0 or not finite.

    Example:
        >>> cell_hits([[True, True, False, False]], (1, 4)).tolist()
        [True, True, False, False]
    """
    if not 0 <= tolerance < math.inf:
        raise DataError(f"cell_hits: tolerance must be finite and at least 0 pixels, found {tolerance}")
    pixels, sides = _region("cell_hits", region, grid)
    height, width = pixels.shape
    y, x = ((np.arange(cells) + 0.5) * length / cells for cells, length in zip(sides, pixels.shape, strict=True))
    down = np.maximum(np.abs(y[:, None] - (np.arange(height) + 0.5)) - 0.5, 0.0)
    across = np.maximum(np.abs(x[:, None] - (np.arange(width) + 0.5)) - 0.5, 0.0)
    # From each column of cells to the nearest pixel of the region in each row of pixels: (H, w), infinite where a row has none.
    nearest = np.where(pixels[:, None, :], across[None, :, :], np.inf).min(axis=2)
    squared = (down[:, :, None] ** 2 + nearest[None, :, :] ** 2).min(axis=1)
    return (np.sqrt(squared) <= tolerance).reshape(-1)


@takes_arguments
def box_region(boxes: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    """Mark the pixels whose centres lie in one of the boxes.

    Args:
        boxes: left, top, right and bottom relative to width and height, 0 to 1; no boxes give an empty region.
        height: image height in pixels, at least 1.
        width: image width in pixels, at least 1.

    Returns:
        bool (height, width).

    Raises:
        DataError: a box is not four numbers from 0 to 1, or its right or bottom lies before its left or top; height or width below 1.

    Example:
        >>> box_region([(0.5, 0.0, 1.0, 1.0)], 1, 4).tolist()
        [[False, False, True, True]]
    """
    check_least("box_region", "height", height, 1)
    check_least("box_region", "width", width, 1)
    y, x = (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width
    region = np.zeros((height, width), bool)
    for number, box in enumerate(boxes, 1):
        corners = read_numbers(f"box_region: box {number}", box)
        if corners.shape != (4,) or not (0 <= corners[0] <= corners[2] <= 1 and 0 <= corners[1] <= corners[3] <= 1):
            raise DataError(f"box_region: box {number} must be left, top, right and bottom, increasing from 0 to 1, found {shown(box)}")
        left, top, right, bottom = corners
        region |= ((y >= top) & (y < bottom))[:, None] & ((x >= left) & (x < right))[None, :]
    return region


@takes_arguments
def pointing_accuracy(weights: Any, hits: Any, *, objects: Sequence[int] | None = None) -> PointingScores:
    """Compute how often the cell with the maximum weight is a hit, with two chance levels.

    Args:
        weights: (N, L) attention of N words over L cells, an array or tensor, finite, >= 0. Tied maxima share the hit, so uniform weights
            score as a random cell. A row of zeros is a miss.
        hits: (N, L) bool from `cell_hits`, per word.
        objects: N numbers of objects in each word's image, whole and at least 1.

    Returns:
        `PointingScores`, in percent.

    Raises:
        DataError: no words, shapes that differ, weights below 0 or not finite, hits that are no booleans, or a number of objects that is
            not whole or below 1.

    Example:
        >>> scores = pointing_accuracy([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], [[0, 1, 0], [0, 1, 0]], objects=[2, 2])
        >>> print(scores.accuracy, scores.random_cell.value, scores.random_object.value)
        pointing accuracy 50.00 % [nwords:2|ncells:3] 33.33333333333333 50.0
    """
    values = _weights("pointing_accuracy", weights)
    marks = read_flags("pointing_accuracy: hits", hits)
    _check_shape("pointing_accuracy: hits", marks, values)
    largest = (values == values.max(axis=1, keepdims=True)) & (values > 0)
    found = (largest & marks).sum(axis=1) / np.maximum(1, largest.sum(axis=1))
    signature = f"nwords:{len(values)}|ncells:{values.shape[1]}"
    random_object = None
    if objects is not None:
        numbers = np.asarray(objects)
        if len(numbers) != len(values):
            raise DataError(f"pointing_accuracy: objects must be {len(values)}, one number for each word, found {len(numbers)}")
        refuse_where(numbers < 1, numbers, "pointing_accuracy: objects must be at least 1")
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
    values = _weights("attention_correctness", weights)
    parts = read_numbers("attention_correctness: coverage", coverage).astype(np.float64)
    _check_shape("attention_correctness: coverage", parts, values)
    refuse_where(~((parts >= 0) & (parts <= 1)), parts, "attention_correctness: coverage must be from 0 to 1")
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
    values = _weights("attention_entropy", weights)
    sums = values.sum(axis=1, keepdims=True)
    parts = values / np.where(sums > 0, sums, 1.0)
    terms = -parts * np.log(np.where(parts > 0, parts, 1.0))
    signature = f"nwords:{len(values)}|ncells:{values.shape[1]}|unit:nats|max:{math.log(values.shape[1]):.4f}"
    return Score("attention entropy", abs(float(terms.sum(axis=1).mean())), "", signature)


def _weights(operation: str, weights: Any) -> np.ndarray:
    values = read_numbers(f"{operation}: weights", weights).astype(np.float64)
    if values.ndim != 2 or 0 in values.shape:
        raise DataError(f"{operation}: weights must be (N, L), at least one word and one cell, found shape {values.shape}")
    refuse_where(~(np.isfinite(values) & (values >= 0)), values, f"{operation}: weights must be finite and at least 0")
    return values


def _check_shape(argument: str, found: np.ndarray, weights: np.ndarray) -> None:
    if found.shape != weights.shape:
        raise DataError(f"{argument} must have the shape of weights, found {found.shape} and {weights.shape}")


def _region(operation: str, region: Any, grid: tuple[int, int]) -> tuple[np.ndarray, Sequence[int]]:
    sides = list_of(f"{operation}: grid", grid, "two whole numbers", Integral)
    if len(sides) != 2 or min(sides) < 1:
        raise DataError(f"{operation}: grid must be two whole numbers of at least 1, height and width in cells, found {shown(grid)}")
    pixels = read_flags(f"{operation}: region", region)
    if pixels.ndim != 2 or 0 in pixels.shape:
        raise DataError(f"{operation}: region must be (H, W), at least one pixel, found shape {pixels.shape}")
    return pixels, sides


def _overlap(length: int, cells: int) -> np.ndarray:
    """Return the share of each pixel in each cell along one side: (cells, length), rows sum to 1."""
    edges = np.arange(cells + 1) * (length / cells)
    pixels = np.arange(length)
    shared = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.maximum(shared, 0.0) * (cells / length)
