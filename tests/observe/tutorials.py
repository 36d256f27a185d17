"""Attention as people write it: each class is in the style of a well-known tutorial or repository, written anew and small."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CausalSelfAttention(nn.Module):
    """In the style of nanoGPT: one product for three, the kernel or a softmax by hand."""

    def __init__(self, dim: int, heads: int, *, flash: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.attn_dropout, self.heads, self.flash, self.dropout = nn.Dropout(dropout), heads, flash, dropout
        self.register_buffer("bias", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.size()
        q, k, v = self.c_attn(x).split(dim, dim=2)
        q, k, v = (part.view(batch, length, self.heads, dim // self.heads).transpose(1, 2) for part in (q, k, v))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
            att = self.attn_dropout(F.softmax(att, dim=-1))
            y = att @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, dim))


class GPT(nn.Module):
    """Tokens to logits over blocks of CausalSelfAttention."""

    def __init__(self, *, flash: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(37, 15), nn.Embedding(32, 15)
        self.h = nn.ModuleList(CausalSelfAttention(15, 3, flash=flash, dropout=dropout) for _ in range(2))
        self.lm_head = nn.Linear(15, 37, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = x + block(x)
        return F.softmax(self.lm_head(x), dim=-1)


class Head(nn.Module):
    """One head of a lecture's language model: no word of attention in its name, no axis of heads."""

    def __init__(self, dim: int, head_size: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(dim, head_size, bias=False) for _ in range(3))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(torch.tril(torch.ones(x.shape[1], x.shape[1])) == 0, float("-inf"))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ self.value(x)


class Lecture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(12, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: nn.Module) -> tuple[Tensor, Tensor]:
    """As in the Annotated Transformer."""
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = dropout(scores.softmax(dim=-1))
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    """As in the Annotated Transformer: queries, keys and values are three arguments, and a function does the rest."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.heads, self.linears, self.dropout = heads, nn.ModuleList(nn.Linear(dim, dim) for _ in range(4)), nn.Dropout(0.1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = zip(self.linears, (query, key, value), strict=False)
        q, k, v = (linear(x).view(len(x), -1, self.heads, x.shape[-1] // self.heads).transpose(1, 2) for linear, x in parts)
        x, self.attn = attention(q, k, v, mask, self.dropout)
        return self.linears[-1](x.transpose(1, 2).flatten(2))


class ScaledDotProductAttention(nn.Module):
    """A part of its own that is given projected queries, keys and values, as in many repositories."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        attn = torch.matmul(q / q.shape[-1] ** 0.5, k.transpose(2, 3))
        attn = F.softmax(attn if mask is None else attn.masked_fill(mask == 0, -1e9), dim=-1)
        return torch.matmul(attn, v)


class PartedAttention(nn.Module):
    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.heads, self.attention = heads, ScaledDotProductAttention()
        self.w_qs, self.w_ks, self.w_vs = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = zip((self.w_qs, self.w_ks, self.w_vs), (q, k, v), strict=True)
        q, k, v = (linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear, x in parts)
        return self.attention(q, k, v, mask=mask).transpose(1, 2).flatten(2)


class EinsumAttention(nn.Module):
    """Einsum throughout, heads behind the positions."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.heads, self.values, self.keys, self.queries = heads, nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = zip((self.queries, self.keys, self.values), (query, key, value), strict=True)
        q, k, v = (linear(x).unflatten(-1, (self.heads, -1)) for linear, x in parts)
        energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        weights = torch.softmax(energy / q.shape[-1] ** 0.5, dim=3)
        return torch.einsum("nhql,nlhd->nqhd", [weights, v]).flatten(2)


class DecoderBlock(nn.Module):
    """Self-attention and cross-attention of one class, as a tutorial's decoder has them."""

    def __init__(self, kind: type, heads: int, dim: int) -> None:
        super().__init__()
        self.self_attn, self.src_attn = kind(heads, dim), kind(heads, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        x = x + self.self_attn(y, y, y, mask)
        return x + self.src_attn(self.norm(x), memory, memory)


class BahdanauAttention(nn.Module):
    """As in translation tutorials: weights only; the decoder multiplies them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attn, self.v = nn.Linear(2 * dim, dim), nn.Linear(dim, 1, bias=False)

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        hidden = hidden.unsqueeze(1).repeat(1, encoder_outputs.shape[1], 1)
        energy = torch.tanh(self.attn(torch.cat((hidden, encoder_outputs), dim=2)))
        return F.softmax(self.v(energy).squeeze(2), dim=1)


class RecurrentDecoder(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention, self.rnn = BahdanauAttention(dim), nn.GRUCell(2 * dim, dim)

    def forward(self, inputs: Tensor, encoder_outputs: Tensor) -> Tensor:
        hidden, outputs = encoder_outputs[:, -1], []
        for step in inputs.unbind(1):
            weights = self.attention(hidden, encoder_outputs).unsqueeze(1)
            context = torch.bmm(weights, encoder_outputs).squeeze(1)
            hidden = self.rnn(torch.cat([step, context], 1), hidden)
            outputs.append(hidden)
        return torch.stack(outputs, 1)
