"""The non-local operation and block of one input in float64 loops, written from Wang et al. 2018, section 3."""

from __future__ import annotations

import numpy as np

from tests.reference.attention import NORMALIZERS


def operation(query, key, value, form, mask, vector=None, normalizer="softmax"):
    """query (T, C), key (S, C), value (S, Cv), mask (T, S) -> y (T, Cv), f / C(x) (T, S)."""
    table = np.zeros((len(query), len(key)))
    for i, q in enumerate(query):
        allowed = [j for j in range(len(key)) if mask[i][j]]
        for j in allowed:
            if form == "concat":
                pair = np.concatenate([q, key[j]])
                table[i, j] = max(0.0, float(vector @ pair))
            else:
                table[i, j] = sum(a * b for a, b in zip(q, key[j], strict=True))
        if form in ("dot", "concat"):
            table[i] /= max(1, len(allowed))
        else:
            table[i] = NORMALIZERS[normalizer](table[i : i + 1], [[j in allowed for j in range(len(key))]])[0]
    out = np.zeros((len(query), value.shape[1]))
    for i in range(len(query)):
        for j in range(len(key)):
            if mask[i][j]:
                out[i] += table[i, j] * value[j]
    return out, table


def block(x2, x1, form, mask, weights, residual, normalizer="softmax"):
    """z_i = W_z y_i + x2_i with y from x1; mask (S,)."""
    query, key = (x2, x1) if form == "gaussian" else (x2 @ weights["theta"].T, x1 @ weights["phi"].T)
    y, table = operation(query, key, x1 @ weights["g"].T, form, [mask] * len(x2), weights.get("w_f"), normalizer)
    z = y @ weights["W_z"].T
    return (z + x2 if residual else z), table
