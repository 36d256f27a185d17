"""Key-value(-predict) attention and the N-gram RNN of one sequence in float64 loops, from Daniluk et al. 2017, sections 2.1 to 2.4."""

from __future__ import annotations

import numpy as np

from tests.reference.attention import NORMALIZERS


def split(state, parts):
    """h -> key, value, prediction: thirds; halves, the value also predicting; or the whole three times."""
    size = len(state) // parts
    pieces = [state[n * size : (n + 1) * size] for n in range(parts)]
    return {1: (0, 0, 0), 2: (0, 1, 1), 3: (0, 1, 2)}[parts], pieces


def attend(states, mask, parts, window, weights, normalizer="softmax"):
    """states (T, parts * d), mask (T,); W_Y, W_h, w, W_r, W_x -> h* (T, d), weights (T, T)."""
    states = [state if allowed else np.zeros_like(state) for state, allowed in zip(states, mask, strict=True)]
    keys, values, predictions = [], [], []
    for state in states:
        (k, v, p), pieces = split(state, parts)
        keys.append(pieces[k])
        values.append(pieces[v])
        predictions.append(pieces[p])
    size = len(states)
    out, table = [], np.zeros((size, size))
    for i in range(size):
        past = [j for j in range(i - window, i) if j >= 0 and mask[j]]
        scores = np.zeros((1, size))
        for j in past:
            scores[0, j] = weights["w"] @ np.tanh(weights["W_Y"] @ keys[j] + weights["W_h"] @ keys[i])
        table[i] = NORMALIZERS[normalizer](scores, [[j in past for j in range(size)]])[0]
        read = np.zeros(len(values[i]))
        for j in past:
            read = read + table[i, j] * values[j]
        out.append(np.tanh(weights["W_r"] @ read + weights["W_x"] @ predictions[i]))
    return np.array(out), table


def ngram(states, order, weight):
    """states (T, D), W_N -> h* (T, D / (N - 1)); section 2.4."""
    parts, width = order - 1, len(states[0]) // (order - 1)
    out = []
    for i in range(len(states)):
        joined = []
        for back in range(parts):
            state = states[i - back] if i >= back else np.zeros(parts * width)
            joined.extend(state[back * width : (back + 1) * width])
        out.append(np.tanh(weight @ np.array(joined)))
    return np.array(out)
