"""Area attention in float64 loops over areas and their items, written from Li et al. 2018; the extra key modes from their description."""

from __future__ import annotations

import math

import numpy as np


def areas(grid, max_area):
    """Every area, height outer, width inner, raster within: (y, x, height, width) and the indices of its items."""
    found = []
    for height in range(1, max_area[0] + 1):
        for width in range(1, max_area[1] + 1):
            for y in range(grid[0]):
                for x in range(grid[1]):
                    if y + height <= grid[0] and x + width <= grid[1]:
                        inside = [r * grid[1] + c for r in range(y, y + height) for c in range(x, x + width)]
                        found.append(((y, x, height, width), inside))
    return found


def sized(size, max_area, grid):
    """A sequence is one row."""
    return ((1, size), (1, max_area)) if grid is None else (grid, max_area)


def moments(rows):
    """Mean, standard deviation, sum and maximum of some items, one feature at a time (Eq. 3, 4, 5)."""
    columns = [[float(row[d]) for row in rows] for d in range(len(rows[0]))]
    means = [math.fsum(c) / len(c) for c in columns]
    stds = [math.sqrt(math.fsum((v - m) ** 2 for v in c) / len(c)) for c, m in zip(columns, means, strict=True)]
    return np.array(means), np.array(stds), np.array([math.fsum(c) for c in columns]), np.array([max(c) for c in columns])


def over_areas(x, max_area, grid, which):
    """One of 'mean', 'std', 'sum', 'max' for every area: (N, D)."""
    index = ["mean", "std", "sum", "max"].index(which)
    found = [moments([x[i] for i in inside])[index] for _, inside in areas(*sized(len(x), max_area, grid))]
    return np.array(found).reshape(-1, x.shape[1])


def keys(x, max_area, grid, mode, weights=None, epsilon=1e-6):
    """Keys of all areas, without noise; the deviation is the root of the variance plus epsilon, as the authors' code has it."""
    found = []
    for (_, _, height, width), inside in areas(*sized(len(x), max_area, grid)):
        mean, std, _, largest = moments([x[i] for i in inside])
        std = np.sqrt(std**2 + epsilon)
        if mode in ("mean", "sample", "max"):
            found.append(largest if mode == "max" else mean)
            continue
        of_height, of_width = weights["height"][height - 1], weights["width"][width - 1]
        if mode == "features":  # Eq. 9
            size = x.shape[1]
            w_mu, w_sigma, w_e = (weights["hidden.weight"][:, i * size : (i + 1) * size] for i in range(3))
            e = np.concatenate([of_width, of_height])  # Eq. 8
            found.append(weights["output.weight"] @ np.maximum(0, w_mu @ mean + w_sigma @ std + w_e @ e))
            continue
        e = np.concatenate([of_height, of_width])
        features = {
            "concat": lambda m=mean, s=std, e=e: np.concatenate([m, s, e]),
            "max_concat": lambda m=largest, e=e: np.concatenate([m, e]),
            "sum": lambda m=mean, s=std, e=e: m + s + e,
            "sample_concat": lambda m=mean, e=e: np.concatenate([m, e]),
            "sample_sum": lambda m=mean, e=e: m + e,
        }[mode]()
        hidden = np.maximum(0, weights["hidden.weight"] @ features + weights["hidden.bias"])
        found.append(weights["output.weight"] @ hidden + weights["output.bias"])
    return np.array(found).reshape(-1, x.shape[1])


def attend(query, key, value, mask, max_area, grid=None, value_mode="sum", area_keys=None, top_k=None, temperature=1.0):
    """Context (T, Dv), item weights (T, S) and area weights (T, N) of one head; mask (T, S)."""
    spans = areas(*sized(len(key), max_area, grid))
    area_keys = keys(key, max_area, grid, "mean") if area_keys is None else area_keys
    area_values = over_areas(value, max_area, grid, value_mode)
    context = np.zeros((len(query), value.shape[1]))
    per_item, per_area = np.zeros((len(query), len(key))), np.zeros((len(query), len(spans)))
    for t, q in enumerate(query):
        alive = [n for n, (_, inside) in enumerate(spans) if all(mask[t][i] for i in inside)]
        scores = {n: float(q @ area_keys[n]) / math.sqrt(len(q)) / temperature for n in alive}
        if top_k is not None:
            alive = [n for n in alive if sum(scores[m] > scores[n] for m in alive) < top_k]  # ties at the end all stay
        if not alive:
            continue
        highest = max(scores[n] for n in alive)
        total = math.fsum(math.exp(scores[n] - highest) for n in alive)
        for n in alive:
            weight = math.exp(scores[n] - highest) / total
            per_area[t, n] = weight
            context[t] += weight * area_values[n]
            for i in spans[n][1]:
                per_item[t, i] += weight if value_mode == "sum" else weight / len(spans[n][1])
    return context, per_item, per_area
