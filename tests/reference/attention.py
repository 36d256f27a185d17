"""Scores, softmax and recurrent steps in float64 loops, written from the papers."""

from __future__ import annotations

import math

import numpy as np


def scores(kind, query, key, **weights):
    """Scores (T, S) of one sentence: query (T, Dq), key (S, Dk), one entry at a time."""
    table = np.zeros((len(query), len(key)))
    for t, q in enumerate(query):
        for s, k in enumerate(key):
            if kind == "dot":
                table[t, s] = sum(a * b for a, b in zip(q, k, strict=True))
            elif kind == "scaled_dot":
                table[t, s] = sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q))
            elif kind == "general":
                table[t, s] = q @ weights["W"] @ k
            elif kind == "additive":
                table[t, s] = sum(
                    v * math.tanh(x) for v, x in zip(weights["v"], weights["W"] @ q + weights["U"] @ k + weights["b"], strict=True)
                )
            elif kind == "concat":
                table[t, s] = sum(v * math.tanh(x) for v, x in zip(weights["v"], weights["W"] @ np.concatenate([q, k]), strict=True))
            elif kind == "cosine":
                table[t, s] = weights["beta"] * (q @ k) / math.sqrt((q @ q) * (k @ k))
            elif kind == "location":
                reach = weights["W"] @ q
                table[t, s] = reach[s] if s < len(reach) else -math.inf
    return table


def softmax(table, mask):
    """Row by row over what the mask allows; an empty row is zeros."""
    out = np.zeros_like(table)
    for t, row in enumerate(table):
        allowed = [s for s in range(len(row)) if mask[t][s] and row[s] != -math.inf]
        if not allowed:
            continue
        top = max(row[s] for s in allowed)
        total = sum(math.exp(row[s] - top) for s in allowed)
        for s in allowed:
            out[t, s] = math.exp(row[s] - top) / total
    return out


def sparsemax(table, mask):
    """Martins and Astudillo 2016, Eq. 3: tau by bisection, for sum of max(z - tau, 0) falls from 1 or more to 0."""
    return _by_bisection(table, mask, lambda z, tau: max(z - tau, 0.0))


def entmax15(table, mask):
    """Peters et al. 2019, Eq. 9 with alpha = 1.5: p = max(z / 2 - tau, 0)^2."""
    return _by_bisection(table, mask, lambda z, tau: max(z / 2 - tau, 0.0) ** 2)


def _by_bisection(table, mask, weight):
    out = np.zeros_like(table)
    for t, row in enumerate(table):
        allowed = [s for s in range(len(row)) if mask[t][s] and row[s] != -math.inf]
        if not allowed:
            continue
        top = max(row[s] for s in allowed)
        low, high = -2.0, 0.0  # relative to the best score, which alone would get all weight at -1
        for _ in range(200):
            middle = (low + high) / 2
            total = sum(weight(row[s] - top, middle) for s in allowed)
            low, high = (middle, high) if total > 1 else (low, middle)
        for s in allowed:
            out[t, s] = weight(row[s] - top, (low + high) / 2)
    return out


NORMALIZERS = {"softmax": softmax, "sparsemax": sparsemax, "entmax15": entmax15}


def local_p(table, mask, centers, radius):
    """Luong et al. 2015, Eq. 10: softmax inside the window, times the Gaussian, not normalized again."""
    inside = [[mask[t][s] and abs(s - centers[t]) <= radius for s in range(table.shape[1])] for t in range(table.shape[0])]
    weights = softmax(table, inside)
    sigma = radius / 2
    for t in range(table.shape[0]):
        for s in range(table.shape[1]):
            weights[t, s] *= math.exp(-((s - centers[t]) ** 2) / (2 * sigma**2))
    return weights


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_step(x, h, W, U, bias_input, bias_new):
    """x (I,), h (H,); rows of W, U in the order r, z, n."""
    size = len(h)
    wx, uh = W @ x + bias_input, U @ h
    r = sigmoid(wx[:size] + uh[:size])
    z = sigmoid(wx[size : 2 * size] + uh[size : 2 * size])
    n = np.tanh(wx[2 * size :] + r * (uh[2 * size :] + bias_new))
    return (1 - z) * n + z * h
