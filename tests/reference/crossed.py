"""Crossed co-attention of one pair of inputs in float64 loops, from Li et al. 2019, section 2.2, with the heads of the Transformer."""

from __future__ import annotations

import math

import numpy as np


def heads(query, memory, mask, weights, count):
    """Multi-head attention (Vaswani et al. 2017, section 3.2) of query (T, D) over memory (S, D), V = K; mask (S,)."""
    q, k, v = (x @ weights[f"{n}.weight"].T + weights[f"{n}.bias"] for n, x in (("query", query), ("key", memory), ("value", memory)))
    size = q.shape[1] // count
    joined = np.zeros((len(query), q.shape[1]))
    for h in range(count):
        part = slice(h * size, (h + 1) * size)
        for t in range(len(query)):
            allowed = [s for s in range(len(memory)) if mask[s]]
            raw = {s: math.exp(q[t, part] @ k[s, part] / math.sqrt(size)) for s in allowed}
            for s in allowed:
                joined[t, part] += raw[s] / sum(raw.values()) * v[s, part]
    return joined @ weights["output.weight"].T + weights["output.bias"]


def crossed(x1, x2, mask1, mask2, left, right, count):
    """Left: V = K = x1, Q = x2; right: V = K = x2, Q = x1."""
    return heads(x2, x1, mask1, left, count), heads(x1, x2, mask2, right, count)
