"""Show, Attend and Tell, one image and one step at a time, in float64, written from Xu et al. 2015."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def lstm(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    enter, forget, new, out = gates.chunk(4)
    cell = sigmoid(forget) * cell + sigmoid(enter) * torch.tanh(new)
    return sigmoid(out) * torch.tanh(cell), cell


def caption(weights: dict[str, Tensor], cells: Tensor, words: list[int], *, look_last: bool = False) -> tuple[Tensor, Tensor]:
    """Return logits (T, V) and attention (T, L) for features (L, F) and the words read, by the names of the model's parameters.

    c_0, h_0 = tanh(f(mean a));  e_i = v . tanh(W h + U a_i + b);  z = sigmoid(w h + b) sum_i alpha_i a_i;
    h_t = LSTM(E y, z);  logits = L_o tanh(E y + L_h h_t + L_z z) + b
    """
    at = {name.removeprefix("decoder."): value for name, value in weights.items()}
    mean = cells.mean(0)
    hidden = torch.tanh(at["first_hidden.weight"] @ mean + at["first_hidden.bias"])
    cell = torch.tanh(at["first_cell.weight"] @ mean + at["first_cell.bias"])
    context = torch.zeros_like(mean)
    logits, attention = [], []

    def look(state: Tensor) -> tuple[Tensor, Tensor]:
        scores = []
        for one in cells:
            inner = at["attention.score.query.weight"] @ state + at["attention.score.key.weight"] @ one + at["attention.score.key.bias"]
            scores.append(at["attention.score.vector"] @ torch.tanh(inner))
        alpha = torch.softmax(torch.stack(scores), 0)
        gate = sigmoid(at["gate.weight"][0] @ state + at["gate.bias"][0])
        return alpha, gate * sum(share * one for share, one in zip(alpha, cells, strict=True))

    for word in words:
        row = at["embedding.weight"][word]
        embedded = row * math.sqrt(len(row))
        if not look_last:
            alpha, context = look(hidden)
        gates = at["stack.inputs.0.weight"] @ embedded + at["stack.inputs.0.bias"]
        gates = gates + at["stack.cells.0.weight"] @ hidden + at["stack.extra.weight"] @ context
        hidden, cell = lstm(gates, cell)
        if look_last:
            alpha, context = look(hidden)
        readout = torch.tanh(embedded + at["state.weight"] @ hidden + at["context.weight"] @ context)
        logits.append(weights["output.weight"] @ readout + weights["output.bias"])
        attention.append(alpha)
    return torch.stack(logits), torch.stack(attention)
