"""The Transformer of fairseq as plain arithmetic on its `state_dict`, written from the description of its modules."""

from __future__ import annotations

import math

import torch

PAD = 1


def vectors_of_positions(ids, dim):
    """Sines in the first half, cosines in the second; counted from PAD + 1, padding not counted and without a vector."""
    half = dim // 2
    result = torch.zeros(*ids.shape, dim, dtype=torch.float64)
    for row, sentence in enumerate(ids.tolist()):
        position = PAD
        for column, token in enumerate(sentence):
            if token == PAD:
                continue
            position += 1
            for i in range(half):
                angle = position * math.exp(-i * math.log(10000) / (half - 1))
                result[row, column, i] = math.sin(angle)
                result[row, column, half + i] = math.cos(angle)
    return result


def affine(state, name, x):
    return x @ state[f"{name}.weight"].double().T + state[f"{name}.bias"].double()


def norm(state, name, x):
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    return centred / scale * state[f"{name}.weight"].double() + state[f"{name}.bias"].double()


def attention(state, name, query, memory, hidden, heads):
    q, k, v = affine(state, f"{name}.q_proj", query), affine(state, f"{name}.k_proj", memory), affine(state, f"{name}.v_proj", memory)
    size = q.shape[-1] // heads
    found = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = q[..., part] @ k[..., part].transpose(1, 2) * size**-0.5
        found.append(scores.masked_fill(hidden, -math.inf).softmax(-1) @ v[..., part])
    return affine(state, f"{name}.out_proj", torch.cat(found, -1))


def logits(state, source, target, *, heads, activation=torch.relu, scaled=True):
    """Source (B, S) and target input (B, T), padded with 1 on the right: (B, T, V)."""
    dim = state["encoder.embed_tokens.weight"].shape[1]
    factor = math.sqrt(dim) if scaled else 1.0
    pre = "encoder.layer_norm.weight" in state

    def around(name, x, function):
        return x + function(norm(state, name, x)) if pre else norm(state, name, x + function(x))

    def feed_forward(name):
        return lambda x: affine(state, f"{name}.fc2", activation(affine(state, f"{name}.fc1", x)))

    padding = (source == PAD).unsqueeze(1)
    x = factor * state["encoder.embed_tokens.weight"].double()[source] + vectors_of_positions(source, dim)
    layer = 0
    while (name := f"encoder.layers.{layer}") + ".fc1.weight" in state:
        x = around(f"{name}.self_attn_layer_norm", x, lambda y, n=name: attention(state, f"{n}.self_attn", y, y, padding, heads))
        x = around(f"{name}.final_layer_norm", x, feed_forward(name))
        layer += 1
    memory = norm(state, "encoder.layer_norm", x) if pre else x
    future = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
    x = factor * state["decoder.embed_tokens.weight"].double()[target] + vectors_of_positions(target, dim)
    layer = 0
    while (name := f"decoder.layers.{layer}") + ".fc1.weight" in state:
        x = around(f"{name}.self_attn_layer_norm", x, lambda y, n=name: attention(state, f"{n}.self_attn", y, y, future, heads))
        x = around(f"{name}.encoder_attn_layer_norm", x, lambda y, n=name: attention(state, f"{n}.encoder_attn", y, memory, padding, heads))
        x = around(f"{name}.final_layer_norm", x, feed_forward(name))
        layer += 1
    x = norm(state, "decoder.layer_norm", x) if pre else x
    return x @ state["decoder.output_projection.weight"].double().T
