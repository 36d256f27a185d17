"""Whole mechanisms in float64 loops, one sentence at a time, put together from the loops of their parts.

`weights` is a dictionary of arrays under the parameter names of the module. Masks are (T, S), True = may be attended.
"""

from __future__ import annotations

import math

import numpy as np

from tests.reference import area
from tests.reference.attention import NORMALIZERS, scores


def score_weights(kind, weights, prefix=""):
    """The letters of the papers for one score's parameters."""
    own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    return {
        "dot": lambda: {},
        "scaled_dot": lambda: {},
        "general": lambda: {"W": own["key.weight"]},
        "additive": lambda: {"v": own["vector"], "W": own["query.weight"], "U": own["key.weight"], "b": own["key.bias"]},
        "concat": lambda: {"v": own["vector"], "W": own["weight"]},
        "cosine": lambda: {"beta": math.log1p(math.exp(own["sharpness"]))},
        "location": lambda: {"W": own["query.weight"]},
    }[kind]()


def opened(window, query, mask, weights):
    """Luong et al. 2015, section 3.2: centre of each query's window, and the mask inside it. S is the sentence's own length."""
    size = mask.shape[1]
    if window is None:
        return None, mask
    kind, radius = window
    centers = np.arange(len(query), dtype=float)
    if kind == "predictive":
        length = max((s + 1 for s in range(size) if mask[:, s].any()), default=0)
        for t, q in enumerate(query):
            inner = np.tanh(weights["window.hidden.weight"] @ q)
            centers[t] = length / (1 + math.exp(-(weights["window.position.weight"][0] @ inner)))
    inside = [[mask[t, s] and abs(s - centers[t]) <= radius for s in range(size)] for t in range(len(query))]
    return centers, np.array(inside, dtype=bool).reshape(mask.shape)


def attend(query, key, value, mask, weights, *, score, window=None, areas=None, choice=None, prefix="score.", normalizer="softmax"):
    """One head: context (T, Dv) and the weights of the items (T, S).

    window: None or ("monotonic" | "predictive", radius). areas: None or a dictionary of max_area, grid, key_mode, value_mode.
    choice: None, "argmax" or "expected". normalizer: a key of NORMALIZERS.
    """
    centers, inside = opened(window, query, mask, weights)
    places = np.arange(len(key), dtype=float)
    spans = None
    if areas is not None:
        grid, learned = areas.get("grid"), {name.removeprefix("areas."): w for name, w in weights.items() if name.startswith("areas.")}
        spans = area.areas(*area.sized(len(key), areas["max_area"], grid))
        inside = np.array([[all(row[i] for i in items) for _, items in spans] for row in inside], dtype=bool).reshape(
            len(query), len(spans)
        )
        places = np.array([float(np.mean(items)) for _, items in spans])
        value_mode = areas.get("value_mode", "sum")
        key = area.keys(key, areas["max_area"], grid, areas.get("key_mode", "mean"), learned)
        value = area.over_areas(value, areas["max_area"], grid, value_mode)
    table = NORMALIZERS[normalizer](scores(score, query, key, **score_weights(score, weights, prefix)), inside)
    if window is not None and window[0] == "predictive":
        for t, n in np.ndindex(*table.shape):
            table[t, n] *= math.exp(-((places[n] - centers[t]) ** 2) / (2 * (window[1] / 2) ** 2))  # Eq. 10, sigma = D / 2
    if choice is not None:
        table = np.array([chosen(row, choice) for row in table]).reshape(table.shape)
    context = table @ value
    if spans is not None:
        table = to_items(table, spans, mask.shape[1], value_mode)
    return context, table


def chosen(row, choice):
    """The distribution itself, or all of it at its first maximum; nothing of nothing."""
    total = math.fsum(row)
    if total == 0:
        return row
    return row / total if choice == "expected" else np.eye(len(row))[int(np.argmax(row))]


def to_items(table, spans, size, value_mode):
    """The weight of every area to its items; shared among them where its value is a mean."""
    out = np.zeros((len(table), size))
    for t, row in enumerate(table):
        for weight, (_, items) in zip(row, spans, strict=True):
            for i in items:
                out[t, i] += weight if value_mode == "sum" else weight / len(items)
    return out


def multi_head(query, key, value, mask, weights, *, heads, score="scaled_dot", areas=None, normalizer="softmax"):
    """Vaswani et al. 2017, section 3.2.2: context (T, E) and weights (H, T, S). score: one kind for all heads, or a list."""
    q, k, v = (x @ weights[f"{n}.weight"].T + weights[f"{n}.bias"] for n, x in (("query", query), ("key", key), ("value", value)))
    parts, tables = [], []
    for h, (qh, kh, vh) in enumerate(zip(*(np.split(x, heads, axis=1) for x in (q, k, v)), strict=True)):
        kind = score if isinstance(score, str) else score[h]
        prefix = "score." if isinstance(score, str) else f"score.{h}."
        context, table = attend(qh, kh, vh, mask, weights, score=kind, areas=areas, prefix=prefix, normalizer=normalizer)
        parts.append(context)
        tables.append(table)
    return np.concatenate(parts, 1) @ weights["output.weight"].T + weights["output.bias"], np.array(tables)
