"""How good a translation probably is: an expected chrF, from its log-probabilities, calibrated on the validation set of the run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.lines import write_files
from regard.errors import CheckpointError, shown
from regard.strict_json import parse_json

FILE = "confidence.json"
FEATURES = ("mean log-probability", "lowest", "mean of the lowest quarter", "share below 1/2", "log tokens", "log tokens per source token")
# Fewer pairs say too little of a run; more take time after training and change little.
MIN_PAIRS, MAX_PAIRS = 100, 1000
RIDGE = 1.0


class Calibration(NamedTuple):
    """What makes an expected chrF of the figures of a translation: a line through them, then a rising curve.

    Attributes:
        mean: of each figure on the validation set.
        scale: its standard deviation there.
        weights: of each standardized figure.
        bias: chrF where all are at their means.
        curve: (value of the line, expected chrF), both rising; between them it is interpolated.
        pairs: validation pairs it was fitted on.
    """

    mean: list[float]
    scale: list[float]
    weights: list[float]
    bias: float
    curve: list[tuple[float, float]]
    pairs: int

    def expect(self, log_probs: Sequence[float], source_tokens: int) -> float:
        """Return the expected chrF, 0 to 100, of a translation.

        Args:
            log_probs: of its tokens, the end included; at least one.
            source_tokens: how many tokens it translates.

        Example:
            >>> Calibration([0.0] * 6, [1.0] * 6, [1.0, 0, 0, 0, 0, 0], 0.0, [(-1.0, 20.0), (0.0, 80.0)], 100).expect([-0.5], 1)
            50.0
        """
        return float(self.expect_all(figures(log_probs, source_tokens)[None])[0])

    def expect_all(self, rows: np.ndarray) -> np.ndarray:
        """Return the expected chrF of translations by their figures (N, figures)."""
        lines = self.bias + (rows - np.array(self.mean)) / np.array(self.scale) @ np.array(self.weights)
        places, values = zip(*self.curve, strict=True)
        return np.interp(lines, places, values)


def figures(log_probs: Sequence[float], source_tokens: int) -> np.ndarray:
    """Return the figures of a translation that `FEATURES` names."""
    lowest = sorted(log_probs)
    quarter = lowest[: math.ceil(len(lowest) / 4)]
    return np.array(
        [
            sum(lowest) / len(lowest),
            lowest[0],
            sum(quarter) / len(quarter),
            sum(value < math.log(0.5) for value in lowest) / len(lowest),
            math.log(len(lowest)),
            math.log(len(lowest) / max(1, source_tokens)),
        ]
    )


def calibrate(rows: np.ndarray, scores: np.ndarray, *, seed: int = 1) -> Calibration:
    """Fit an expected score to figures of translations.

    Ridge regression on standardized figures; then isotonic regression (pool adjacent violators) of the scores on what lines fitted to the
    other four fifths say, so that the curve knows how wrong a line is on sentences it has not seen.

    Args:
        rows: (N, figures).
        scores: (N,), chrF from 0 to 100.
        seed: of the parts.
    """
    mean, scale = rows.mean(0), rows.std(0)
    scale[scale == 0] = 1.0
    points = (rows - mean) / scale

    def fit(chosen: np.ndarray) -> tuple[np.ndarray, float]:
        x, y = points[chosen], scores[chosen]
        center = x.mean(0)
        weights = np.linalg.solve((x - center).T @ (x - center) + RIDGE * np.eye(x.shape[1]), (x - center).T @ (y - y.mean()))
        return weights, float(y.mean() - center @ weights)

    parts = np.random.default_rng(seed).permutation(len(points)) % 5
    lines = np.empty(len(points))
    for part in range(5):
        weights, bias = fit(parts != part)
        lines[parts == part] = points[parts == part] @ weights + bias
    weights, bias = fit(np.ones(len(points), dtype=bool))
    return Calibration(mean.tolist(), scale.tolist(), weights.tolist(), bias, rising_curve(lines, scores), len(points))


def rising_curve(places: np.ndarray, values: np.ndarray) -> list[tuple[float, float]]:
    """Return the rising step function next to some values (pool adjacent violators), as the middle of each step and its height.

    Example:
        >>> rising_curve(np.array([1.0, 2.0, 3.0]), np.array([1.0, 5.0, 3.0]))
        [(1.0, 1.0), (2.5, 4.0)]
    """
    order = np.argsort(places, kind="stable")
    blocks: list[tuple[float, float, int]] = []  # sums of places and of values, and how many
    for place, value in zip(places[order].tolist(), values[order].tolist(), strict=True):
        blocks.append((place, value, 1))
        while len(blocks) > 1 and blocks[-2][1] * blocks[-1][2] >= blocks[-1][1] * blocks[-2][2]:
            last, before = blocks.pop(), blocks.pop()
            blocks.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
    return [(round(place / count, 6), round(value / count, 4)) for place, value, count in blocks]


def write_calibration(folder: Path, found: Calibration) -> None:
    """Store the calibration of a run."""
    write_files({folder / FILE: (json.dumps(found._asdict(), indent=1) + "\n").encode()})


def read_calibration(folder: Path) -> Calibration | None:
    """Return the stored calibration of a run; None: it has none.

    Raises:
        CheckpointError: it is damaged; names the file.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        read: dict[str, Any] = parse_json(path.read_bytes())
        found = Calibration(**{**read, "curve": [(float(place), float(value)) for place, value in read["curve"]]})
        found.expect([-1.0], 1)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: damaged ({shown(str(error))}); remove it to do without a confidence") from error
    return found
