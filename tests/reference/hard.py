"""Hard attention, penalties and structured self-attention in float64 loops, written from the papers and the authors' code."""

from __future__ import annotations

import itertools
import math

import numpy as np

from tests.reference.attention import NORMALIZERS


def softmax(logits):
    """One row (N,)."""
    powers = [math.exp(x - max(logits)) for x in logits]
    return np.array([x / sum(powers) for x in powers])


def entropy(probability):
    """One row (N,), nats."""
    return -sum(p * math.log(p) for p in probability if p > 0)


def through_softmax(probability, gradient):
    """Chain the gradient of a row of weights (N,) through the softmax's Jacobian p_i (delta_ij - p_j), entry by entry."""
    size = len(probability)
    out = np.zeros(size)
    for j in range(size):
        for i in range(size):
            out[j] += gradient[i] * probability[i] * ((i == j) - probability[j])
    return out


def known_gradients(alpha, sample, nll, baseline_cost, *, sum_cost):
    """The gradient of the weights in the authors' code (capgen.py): alpha, sample (B, T, N), nll (B, T), their baseline follows the cost.

    sum_cost:      (b - mean_t nll) / 10 * (-sample / alpha) + 0.002 (log alpha + 1)
    not sum_cost:  nll / 10 * (sample / alpha) + 0.002 (log alpha + 1)
    """
    out = np.zeros_like(alpha)
    batch, steps, size = alpha.shape
    for b, t, i in itertools.product(range(batch), range(steps), range(size)):
        ratio = sample[b, t, i] / alpha[b, t, i]
        if sum_cost:
            out[b, t, i] = (baseline_cost - sum(nll[b]) / steps) / 10 * -ratio
        else:
            out[b, t, i] = nll[b, t] / 10 * ratio
        out[b, t, i] += 0.002 * (math.log(alpha[b, t, i]) + 1)
    return out


def expected_log_likelihood(first, second, log_likelihood):
    """L_s of one sentence of two steps: sum over s of p(s) log p(y | s).

    first (N,) logits of step 1; second (N, N) logits of step 2 after each choice of step 1; log_likelihood (N, N, 2): of both words, after
    each pair of choices.
    """
    size = len(first)
    total = 0.0
    for i, j in itertools.product(range(size), range(size)):
        total += softmax(first)[i] * softmax(second[i])[j] * sum(log_likelihood[i][j])
    return total


def difference(function, point, step=1e-6):
    """Central differences of a scalar function of an array."""
    out = np.zeros_like(point)
    for index in np.ndindex(*point.shape):
        up, down = point.copy(), point.copy()
        up[index] += step
        down[index] -= step
        out[index] = (function(up) - function(down)) / (2 * step)
    return out


def doubly_stochastic(weights, steps, sources, target=1.0):
    """Xu et al. 2015, Eq. 14, one value a sentence: weights (B, T, S), real steps and sources given as lists of booleans."""
    out = []
    for b, table in enumerate(weights):
        out.append(0.0)
        for s in range(table.shape[1]):
            if sources[b][s]:
                out[-1] += (target - sum(table[t, s] for t in range(table.shape[0]) if steps[b][t])) ** 2
    return out


def redundancy(weights):
    """Lin et al. 2017, Eq. 8, one value a sentence: weights (B, r, S)."""
    out = []
    for table in weights:
        hops = range(len(table))
        out.append(sum((sum(a * b for a, b in zip(table[i], table[j], strict=True)) - (i == j)) ** 2 for i in hops for j in hops))
    return out


def structured(states, length, first, second, normalizer="softmax"):
    """Lin et al. 2017, Eq. 6 and 7, one sentence: states (S, D), of which `length` are real; first (A, D), second (r, A)."""
    weights = np.zeros((len(second), len(states)))
    for r, row in enumerate(second):
        scores = [sum(w * math.tanh(x) for w, x in zip(row, first @ states[s], strict=True)) for s in range(length)]
        if length:
            weights[r, :length] = NORMALIZERS[normalizer](np.array([scores]), np.ones((1, length), dtype=bool))[0]
    context = np.zeros((len(second), states.shape[1]))
    for r, s in itertools.product(range(len(second)), range(length)):
        context[r] += weights[r, s] * states[s]
    return context, weights
