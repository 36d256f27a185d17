"""The pointer-generator's distribution and the coverage loss in float64 loops, written from See et al. 2017, section 2."""

from __future__ import annotations

import math

import numpy as np


def distribution(scores, gate, attention, source, size):
    """Eq. 9 for one step: scores (V,), attention (S,), source ids (S,), of V and more unknown words; the probability of each word."""
    chance = 1 / (1 + math.exp(-gate))
    powers = [math.exp(score - max(scores)) for score in scores]
    found = {word: chance * power / sum(powers) for word, power in enumerate(powers)}
    for weight, word in zip(attention, source, strict=True):
        found[int(word)] = found.get(int(word), 0.0) + (1 - chance) * weight / sum(attention)
    assert len(powers) == size
    return found


def coverage_loss(attention):
    """Eq. 10 and 12 for one sentence: attention (T, S)."""
    total, coverage = 0.0, np.zeros(attention.shape[1])
    for row in attention:
        total += sum(min(a, c) for a, c in zip(row, coverage, strict=True))
        coverage = coverage + row
    return total
