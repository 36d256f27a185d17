"""The Transformer of JoeyNMT 2.3 as plain arithmetic on its `state_dict`; its logits are those of JoeyNMT itself to 2e-6."""

from __future__ import annotations

import math

import torch

PAD = 1


def vectors_of_positions(length, dim):
    """Sine and cosine of each wavelength in turn."""
    return torch.tensor(
        [[(math.sin, math.cos)[i % 2](p / 10000 ** ((i - i % 2) / dim)) for i in range(dim)] for p in range(length)], dtype=torch.float64
    )


def affine(state, name, x):
    return x @ state[f"{name}.weight"].double().T + state[f"{name}.bias"].double()


def norm(state, name, x):
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    return centred / scale * state[f"{name}.weight"].double() + state[f"{name}.bias"].double()


def attention(state, name, query, memory, hidden, heads):
    q, k, v = affine(state, f"{name}.q_layer", query), affine(state, f"{name}.k_layer", memory), affine(state, f"{name}.v_layer", memory)
    size = q.shape[-1] // heads
    found = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = (q[..., part] / math.sqrt(size)) @ k[..., part].transpose(1, 2)
        found.append(scores.masked_fill(hidden, -math.inf).softmax(-1) @ v[..., part])
    return affine(state, f"{name}.output_layer", torch.cat(found, -1))


def feed_forward(state, name, x, pre, activation):
    given = norm(state, f"{name}.layer_norm", x) if pre else x
    y = x + affine(state, f"{name}.pwff_layer.3", activation(affine(state, f"{name}.pwff_layer.0", given)))
    return y if pre else norm(state, f"{name}.layer_norm", y)


def residual(state, name, x, function, pre):
    return x + function(norm(state, name, x)) if pre else norm(state, name, x + function(x))


def logits(state, source, target, *, heads, activation=torch.relu, scaled=True):
    """Source (B, S) and target input (B, T), padded with 1 on the right: (B, T, V)."""
    dim = state["src_embed.lut.weight"].shape[1]
    factor = math.sqrt(dim) if scaled else 1.0
    pre = "encoder.layer_norm.weight" in state
    padding = (source == PAD).unsqueeze(1)
    x = factor * state["src_embed.lut.weight"].double()[source] + vectors_of_positions(source.shape[1], dim)
    layer = 0
    while (name := f"encoder.layers.{layer}") + ".layer_norm.weight" in state:
        x = residual(state, f"{name}.layer_norm", x, lambda y, n=name: attention(state, f"{n}.src_src_att", y, y, padding, heads), pre)
        x = feed_forward(state, f"{name}.feed_forward", x, pre, activation)
        layer += 1
    memory = norm(state, "encoder.layer_norm", x) if pre else x
    hidden = torch.ones(target.shape[1], target.shape[1]).triu(1).bool() | (target == PAD).unsqueeze(1)
    x = factor * state["trg_embed.lut.weight"].double()[target] + vectors_of_positions(target.shape[1], dim)
    layer = 0
    while (name := f"decoder.layers.{layer}") + ".x_layer_norm.weight" in state:
        x = residual(state, f"{name}.x_layer_norm", x, lambda y, n=name: attention(state, f"{n}.trg_trg_att", y, y, hidden, heads), pre)
        x = residual(
            state, f"{name}.dec_layer_norm", x, lambda y, n=name: attention(state, f"{n}.src_trg_att", y, memory, padding, heads), pre
        )
        x = feed_forward(state, f"{name}.feed_forward", x, pre, activation)
        layer += 1
    x = norm(state, "decoder.layer_norm", x) if pre else x
    return x @ state["decoder.output_layer.weight"].double().T
