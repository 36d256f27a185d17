"""Confidence: the expected chrF of a translation from its log-probabilities, calibrated on the run's validation set."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.lines import write_files
from regard.errors import CheckpointError, shown
from regard.strict_json import parse_json

FILE = "confidence.json"
FEATURES = ("mean log-probability", "lowest", "mean of the lowest quarter", "share below 1/2", "log tokens", "log tokens per source token")
# Fewer pairs are too few to fit; more take time after training and change little.
MIN_PAIRS, MAX_PAIRS = 100, 1000
RIDGE = 1.0
# Few pairs at an end of the curve would decide for all translations beyond: of the surest one alone it may be 100.
END_PAIRS = 20
_HALF = math.log(0.5)
Block = tuple[float, float, int]
"""Of a curve: sum of places, sum of values, and their number."""


class Calibration(NamedTuple):
    """Maps features of a translation to an expected chrF: a linear model, then a monotonic curve.

    Attributes:
        mean: mean of each feature on the validation set.
        scale: its standard deviation there.
        weights: weight of each standardized feature.
        bias: chrF at the mean features.
        curve: (linear prediction, expected chrF), both rising; interpolated in between.
        pairs: number of validation pairs.
    """

    mean: list[float]
    scale: list[float]
    weights: list[float]
    bias: float
    curve: list[tuple[float, float]]
    pairs: int

    def expect(self, translations: Sequence[tuple[Sequence[float], int]]) -> list[float]:
        """Return the expected chrF, 0 to 100, of translations; each is the same alone.

        Args:
            translations: log-probabilities of the tokens of each, EOS included, at least one; and the number of its source's tokens.

        Example:
            >>> Calibration([0.0] * 6, [1.0] * 6, [1.0, 0, 0, 0, 0, 0], 0.0, [(-1.0, 20.0), (0.0, 80.0)], 100).expect([([-0.5], 1)])
            [50.0]
        """
        return self.expect_all(np.array([figures(*each) for each in translations])).tolist() if translations else []

    def expect_all(self, rows: np.ndarray) -> np.ndarray:
        """Return the expected chrF of translations from their features (N, features)."""
        # A matrix product would round a row by how many there are.
        lines = self.bias + ((rows - np.array(self.mean)) / np.array(self.scale) * np.array(self.weights)).sum(-1)
        places, values = zip(*self.curve, strict=True)
        return np.interp(lines, places, values)


def figures(log_probs: Sequence[float], source_tokens: int) -> list[float]:
    """Return the features in `FEATURES` of a translation."""
    lowest = sorted(log_probs)
    quarter = lowest[: math.ceil(len(lowest) / 4)]
    return [
        sum(lowest) / len(lowest),
        lowest[0],
        sum(quarter) / len(quarter),
        bisect_left(lowest, _HALF) / len(lowest),
        math.log(len(lowest)),
        math.log(len(lowest) / max(1, source_tokens)),
    ]


def calibrate(rows: np.ndarray, scores: np.ndarray, *, seed: int = 1) -> Calibration:
    """Fit an expected score to features of translations.

    Ridge regression on standardized features; then isotonic regression (pool adjacent violators) of the scores on out-of-fold predictions
    (five folds), so that the curve accounts for errors on unseen sentences.

    Args:
        rows: (N, features).
        scores: (N,), chrF from 0 to 100.
        seed: seed of the folds.
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
    return Calibration(mean.tolist(), scale.tolist(), weights.tolist(), bias, rising_curve(lines, scores, END_PAIRS), len(points))


def rising_curve(places: np.ndarray, values: np.ndarray, ends: int = 1) -> list[tuple[float, float]]:
    """Fit a rising step function (pool adjacent violators); return the center and height of each step.

    Args:
        places: (N,).
        values: (N,).
        ends: the first and the last step have at least that many values.

    Example:
        >>> rising_curve(np.array([1.0, 2.0, 3.0]), np.array([1.0, 5.0, 3.0]))
        [(1.0, 1.0), (2.5, 4.0)]
    """
    order = np.argsort(places, kind="stable")
    blocks: list[Block] = []
    for place, value in zip(places[order].tolist(), values[order].tolist(), strict=True):
        blocks.append((place, value, 1))
        while len(blocks) > 1 and blocks[-2][1] * blocks[-1][2] >= blocks[-1][1] * blocks[-2][2]:
            blocks[-2:] = [_joined(*blocks[-2:])]
    while len(blocks) > 1 and blocks[0][2] < ends:
        blocks[:2] = [_joined(*blocks[:2])]
    while len(blocks) > 1 and blocks[-1][2] < ends:
        blocks[-2:] = [_joined(*blocks[-2:])]
    return [(round(place / count, 6), round(value / count, 4)) for place, value, count in blocks]


def _joined(one: Block, other: Block) -> Block:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def write_calibration(folder: Path, found: Calibration) -> None:
    """Store the calibration of a run."""
    write_files({folder / FILE: (json.dumps(found._asdict(), indent=1) + "\n").encode()})


def read_calibration(folder: Path) -> Calibration | None:
    """Return the stored calibration of a run; None if there is none.

    Raises:
        CheckpointError: it is damaged; the message names the file.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        read: dict[str, Any] = parse_json(path.read_bytes())
        found = Calibration(**{**read, "curve": [(float(place), float(value)) for place, value in read["curve"]]})
        numbers = [*found.mean, *found.scale, *found.weights, found.bias, *(number for point in found.curve for number in point)]
        sizes = {len(found.mean), len(found.scale), len(found.weights)} == {len(FEATURES)}
        if not (sizes and found.curve and all(map(math.isfinite, numbers)) and min(found.scale) > 0):
            raise ValueError(f"expected {len(FEATURES)} features with positive scales, and a curve")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: damaged ({shown(str(error))}); remove it to do without a confidence") from error
    return found
