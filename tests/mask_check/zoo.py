"""Small models as people write them, right, and wrong in one place each. `FAULTS` says where the doctor must find what."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.mask_check import Adapter, Sequence

V, E, H = 23, 12, 2
"""Vocabulary, features, heads."""


def tokens(rows: int = 5, width: int = 11, *, seed: int = 0) -> Tensor:
    return torch.randint(1, V, (rows, width), generator=torch.Generator().manual_seed(seed))


def padded(*, rows: int = 5, width: int = 11, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return tokens (B, T) padded with 0 on the right, and their lengths (B,)."""
    lengths = torch.tensor([width - 2 * row for row in range(rows)]).clamp(min=2)
    return torch.where(torch.arange(width) < lengths[:, None], tokens(rows, width, seed=seed), 0), lengths


class SelfAttention(nn.Module):
    """Multi-head self-attention written out, causal or with a padding mask (B, S), True where there is a token."""

    def __init__(self, fault: str = "", *, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(E, 3 * E)
        self.proj = nn.Linear(E, E)
        self.fault, self.causal = fault, causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.fault == "view":
            q, k, v = (t.reshape(rows, H, length, E // H) for t in (q, k, v))
        else:
            q, k, v = (t.view(rows, length, H, E // H).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(E // H)
        diagonal = {"sees the next": 1, "blind to itself": -1, "blind to itself, sdpa": -1}.get(self.fault, 0)
        keep = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(diagonal)
        if self.fault == "blind to itself, sdpa":
            return self.proj(F.scaled_dot_product_attention(q, k, v, keep).nan_to_num().transpose(1, 2).reshape(rows, length, E))
        if self.causal and self.fault not in ("not causal", "causal mask multiplied", "causal mask after the softmax"):
            scores = scores.masked_fill(keep if self.fault == "inverted" else ~keep, -1e9)
        if self.fault == "causal mask multiplied":
            scores = scores * keep
        if mask is not None:
            scores = self._padded(scores, mask)
        weights = scores.softmax({"softmax over queries": -2, "softmax over rows": 0}.get(self.fault, -1))
        if self.fault == "causal mask after the softmax":
            weights = weights * keep
        if mask is not None and self.fault == "masked after the softmax":
            weights = weights * mask[:, None, None]
        out = weights @ v
        return self.proj(out.transpose(1, 2).reshape(rows, length, E))

    def _padded(self, scores: Tensor, mask: Tensor) -> Tensor:
        match self.fault:
            case "padding forgotten" | "masked after the softmax":
                return scores
            case "padding inverted":
                return scores.masked_fill(mask[:, None, None], -1e9)
            case "mask of 0 and 1 added":
                return scores + mask[:, None, None].to(scores)
            case "boolean added":
                return scores + ~mask[:, None, None]
            case "(B, S) read as (T, S)":
                return scores.masked_fill(~mask, -1e9)
            case _:
                return scores.masked_fill(~mask[:, None, None], -1e9)


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, fault: str = "", *, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(E), nn.LayerNorm(E)
        self.attn = SelfAttention(fault, causal=causal)
        self.mlp = nn.Sequential(nn.Linear(E, 2 * E), nn.GELU(), nn.Linear(2 * E, E))
        self.drop = nn.Dropout(0.1)
        self.fault = fault

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.drop(self.attn(self.norm1(x), mask))
        if self.fault == "dropout in evaluation":
            return x + F.dropout(self.mlp(self.norm2(x)), 0.1)
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """A decoder-only language model with learned absolute positions; logits (B, T, V). A fault stands in one of its blocks."""

    def __init__(self, fault: str = "", *, layer: int = 0, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, E), nn.Embedding(64, E)
        self.blocks = nn.ModuleList([Block(fault if number == layer else "", causal=True) for number in range(2)])
        self.middle = middle
        self.norm, self.head = nn.LayerNorm(E), nn.Linear(E, V)

    def forward(self, idx: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1], device=idx.device))
        for number, block in enumerate(self.blocks):
            x = block(x, mask)
            if number == 0 and self.middle is not None:
                x = self.middle(x)
        return self.head(self.norm(x))


class CountingGPT(GPT):
    """Positions count the real tokens, so that it can be padded on the left."""

    def forward(self, idx: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        x = self.tok(idx) + self.pos((mask.cumsum(-1) - 1).clamp(min=0))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class PlacedGPT(GPT):
    """Is given its positions, (B, T) or (1, T)."""

    def forward(self, idx: Tensor, pos: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        x = self.tok(idx) + self.pos(pos)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class GPTWithLoss(GPT):
    """Returns (logits, loss); the loss asks for the targets as they are given, or shifts them itself."""

    def __init__(self, fault: str = "", *, shifts: bool = False) -> None:
        super().__init__()
        self.shifts, self.leaks = shifts, fault == "labels read"

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        logits = super().forward(idx)
        if self.leaks:
            logits = logits + F.one_hot(targets, V)
        if self.shifts:
            return logits, F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Residual(nn.Module):
    """x + inner(x), the inner module reading (B, E, T)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x.transpose(1, 2)).transpose(1, 2)


class CausalConv(nn.Conv1d):
    """Padded on the left alone."""

    def __init__(self) -> None:
        super().__init__(E, E, 3)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.pad(input, (2, 0)))


class NormOverTime(nn.Module):
    """A layer norm by hand that takes its statistics over positions and features."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True)


class Context(nn.Module):
    """Adds the mean of the whole sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean(1, keepdim=True)


class RecurrentLM(nn.Module):
    """An LSTM language model."""

    def __init__(self, *, bidirectional: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.rnn = nn.LSTM(E, E, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(2 * E if bidirectional else E, V)

    def forward(self, idx: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(idx))[0])


class CellLM(nn.Module):
    """A recurrent language model that loops over its cell; "looks ahead" reads the next token, too."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(V, E), nn.GRUCell(E, E), nn.Linear(E, V)
        self.fault = fault

    def forward(self, idx: Tensor) -> Tensor:
        x = self.embedding(idx)
        if self.fault == "looks ahead":
            x = x + torch.cat([x[:, 1:], x[:, :1] * 0], 1)
        state, states = x.new_zeros(len(idx), E), []
        for step in x.unbind(1):
            state = self.cell(step, state)
            states.append(state)
        return self.head(torch.stack(states, 1))


class BatchAxis(nn.Module):
    """nn.MultiheadAttention given (B, T, E), with batch_first as told."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.attn = nn.MultiheadAttention(E, H, batch_first=batch_first)
        self.head = nn.Linear(E, V)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.embedding(idx)
        return self.head(x + self.attn(x, x, x, need_weights=False)[0])


class Encoder(nn.Module):
    """A classifier over a Transformer encoder by hand: tokens (B, S) and their mask, True where there is one; logits (B, 3)."""

    def __init__(self, fault: str = "", pool: str = "mean") -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.blocks = nn.ModuleList([Block(fault, causal=False), Block(causal=False)])
        self.pool = Pool(pool)
        self.head = nn.Linear(E, 3)

    def forward(self, idx: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(idx)
        mask = mask.flatten(1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.pool(x, mask))


class AddedMask(nn.Module):
    """A classifier in the way of BERT, whose attention is given a mask that it adds; made wrong if told so."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(V, E), Adding(), nn.Linear(E, 3)
        self.fault = fault

    def forward(self, idx: Tensor, mask: Tensor) -> Tensor:
        hidden = 1 - mask.to(self.head.weight)
        match self.fault:
            case "along the queries":
                added = hidden[:, None, :, None] * -1e4
            case "of the first row":
                added = hidden[:1, None, None] * -1e4
            case "of -1":
                added = hidden[:, None, None] * -1
            case _:
                added = hidden[:, None, None] * -1e4
        x = self.embedding(idx)
        return self.head((x + self.layer(x, added))[:, 0])


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(E, 3 * E)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return ((q @ k.mT / math.sqrt(E // H) + attention_mask).softmax(-1) @ v).transpose(1, 2).flatten(2)


class VisionModel(nn.Module):
    """Patches of an image, a class token, attention over both; classifies their mean, or the token's state."""

    def __init__(self, *, batch_first: bool, pool: str = "mean") -> None:
        super().__init__()
        self.pool = pool
        self.patches, self.token = nn.Conv2d(3, E, 2, 2), nn.Parameter(torch.randn(1, 1, E))
        self.attn, self.head = nn.MultiheadAttention(E, H, batch_first=batch_first), nn.Linear(E, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = x + self.attn(x, x, x)[0]
        return self.head(x.mean(1) if self.pool == "mean" else x[:, 0])


class Pool(nn.Module):
    """Make one vector of real positions; or of all, if told so wrongly."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        keep = mask.unsqueeze(-1)
        match self.kind:
            case "mean":
                return (x * keep).sum(1) / keep.sum(1)
            case "max":
                return x.masked_fill(~keep, -torch.inf).amax(1)
            case "last":
                return x[torch.arange(len(x), device=x.device), mask.sum(1) - 1]
            case "mean of all":
                return x.mean(1)
            case "max of all":
                return x.amax(1)
            case "last of all":
                return x[:, -1]
            case "max of zeroed":
                return (x * keep).amax(1)
            case "mean over the width":
                return (x * keep).mean(1)
        raise ValueError(self.kind)


class TorchEncoder(nn.Module):
    """nn.TransformerEncoder, its padding mask inverted or left out if told so; the right one takes torch's fast path."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, 2 * E, batch_first=True), 2, enable_nested_tensor=False)
        self.fault = fault

    def forward(self, idx: Tensor, mask: Tensor) -> Tensor:
        given = {"forgotten": None, "inverted": mask}.get(self.fault, ~mask)
        return self.encoder(self.embedding(idx), src_key_padding_mask=given)


class RecurrentClassifier(nn.Module):
    """A GRU over padded text, packed or not; its last state is classified."""

    def __init__(self, *, packed: bool, bidirectional: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.rnn = nn.GRU(E, E, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(2 * E if bidirectional else E, 3)
        self.packed = packed

    def forward(self, idx: Tensor, lengths: Tensor) -> Tensor:
        x = self.embedding(idx)
        state = self.rnn(pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False) if self.packed else x)[1]
        return self.head(state.transpose(0, 1).flatten(1))


class RecurrentTagger(nn.Module):
    """A bidirectional LSTM that labels every token."""

    def __init__(self, *, packed: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.rnn = nn.LSTM(E, E, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * E, 3)
        self.packed = packed

    def forward(self, idx: Tensor, lengths: Tensor) -> Tensor:
        x = self.embedding(idx)
        if not self.packed:
            return self.head(self.rnn(x)[0])
        states = self.rnn(pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False))[0]
        return self.head(pad_packed_sequence(states, batch_first=True)[0])


class ConvTagger(nn.Module):
    """Convolutions over text that set padding to zero before each, or do not."""

    def __init__(self, *, clears: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.first, self.second = nn.Conv1d(E, E, 3, padding=1), nn.Conv1d(E, E, 3, padding=1)
        self.head = nn.Linear(E, 3)
        self.clears = clears

    def forward(self, idx: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(idx).transpose(1, 2)
        for conv in (self.first, self.second):
            x = conv(x * mask.unsqueeze(1) if self.clears else x).relu()
        return self.head(x.transpose(1, 2))


class NormTagger(nn.Module):
    """A tagger with a batch norm over positions, padding included."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(V, E), norm, nn.Linear(E, 3)

    def forward(self, idx: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.norm(self.embedding(idx).transpose(1, 2)).transpose(1, 2))


class Translator(nn.Module):
    """nn.Transformer over two texts, called as tutorials do."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.source, self.target, self.pos = nn.Embedding(V, E), nn.Embedding(V, E), nn.Embedding(64, E)
        self.transformer = nn.Transformer(E, H, 1, 1, 2 * E, batch_first=True)
        self.head = nn.Linear(E, V)
        self.fault = fault

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        padding = src == 0
        causal = None if self.fault == "not causal" else torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool, device=tgt.device).triu(1)
        memory = self.transformer.encoder(
            self.source(src) + self.pos(torch.arange(src.shape[1], device=src.device)),
            src_key_padding_mask=None if self.fault == "source padding" else padding,
        )
        states = self.transformer.decoder(
            self.target(tgt) + self.pos(torch.arange(tgt.shape[1], device=tgt.device)),
            memory,
            tgt_mask=causal,
            memory_key_padding_mask=None if self.fault == "cross-attention" else padding,
        )
        return self.head(states)


class TimeFirstTranslator(nn.Module):
    """nn.Transformer over tokens (S, B) and (T, B), as tutorials of torch had it."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(V, E), nn.Embedding(V, E)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fast path that is not taken
            self.transformer = nn.Transformer(E, H, 1, 1, 2 * E)
        self.head = nn.Linear(E, V)
        self.fault = fault

    def forward(self, src: Tensor, tgt: Tensor, src_padding_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        memory_mask = None if self.fault == "cross-attention" else src_padding_mask
        masks = {"src_key_padding_mask": src_padding_mask, "memory_key_padding_mask": memory_mask}
        return self.head(self.transformer(self.source(src), self.target(tgt), tgt_mask=tgt_mask, **masks))


class TimeFirstTagger(nn.Module):
    """An encoder layer over tokens (S, B) with their padding mask (S, B), True at padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(V, E), nn.TransformerEncoderLayer(E, H, 2 * E), nn.Linear(E, 3)

    def forward(self, text: Tensor, pad: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(text), src_key_padding_mask=pad.T))


class SparseMLP(nn.Module):
    """A layer that gives each token of the batch to one of two experts, which take so many in order and drop the rest."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.route, self.experts, self.capacity = nn.Linear(E, 2), nn.ModuleList([nn.Linear(E, E), nn.Linear(E, E)]), capacity

    def forward(self, x: Tensor) -> Tensor:
        chosen = F.one_hot(self.route(x).argmax(-1), 2)  # (B, T, 2)
        room = chosen.flatten(0, 1).cumsum(0).view_as(chosen) <= self.capacity
        return x + sum((chosen * room)[..., n : n + 1] * expert(x) for n, expert in enumerate(self.experts))


class PackedLM(nn.Module):
    """A model over several documents in a row, which see themselves alone; "embedded": each other, though it adds their numbers."""

    def __init__(self, fault: str = "", *, causal: bool = True) -> None:
        super().__init__()
        self.embedding, self.number, self.qkv, self.head = nn.Embedding(V, E), nn.Embedding(9, E), nn.Linear(E, 3 * E), nn.Linear(E, V)
        self.fault, self.causal = fault, causal

    def forward(self, tokens: Tensor, doc_ids: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k, v = self.qkv(x + self.number(doc_ids) if self.fault == "embedded" else x).chunk(3, -1)
        same = doc_ids[:, :, None] == doc_ids[:, None]
        same = torch.ones_like(same) if self.fault else same
        return self.head(F.scaled_dot_product_attention(q, k, v, attn_mask=same.tril() if self.causal else same))


class LabelTranslator(Translator):
    """Makes the decoder's input of the labels, shifted by one; or forgets to shift them."""

    def __init__(self, *, shifts: bool = True) -> None:
        super().__init__()
        self.shifts = shifts

    def forward(self, src: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        start = torch.zeros_like(labels[:, :1])
        return super().forward(src, torch.cat([start, labels[:, :-1]], 1) if self.shifts else labels)


class CachedAttention(nn.Module):
    """Causal attention that goes on from keys and values (B, S, E) of before."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(E, E) for _ in range(4))
        self.fault = fault

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        query, key, value = self.q(x), self.k(x), self.v(x)
        whole = (key, value) if past is None else (torch.cat([past[0], key], 1), torch.cat([past[1], value], 1))
        seen = past if self.fault == "one step off" and past is not None and past[0].shape[1] else whole
        if self.fault in ("oldest unseen", "newest unseen") and past is not None and past[0].shape[1]:
            part = slice(1, None) if self.fault == "oldest unseen" else slice(None, -1)
            seen = tuple(torch.cat([kept[:, part], new], 1) for kept, new in zip(past, (key, value), strict=True))
        if self.fault == "rows share" and past is not None and past[0].shape[1]:
            seen = tuple(torch.cat([kept[:1].expand_as(kept), new], 1) for kept, new in zip(past, (key, value), strict=True))
        if self.fault == "top-left mask" or (self.fault == "top-left mask of a chunk" and query.shape[1] > 1):
            out = F.scaled_dot_product_attention(query, *seen, is_causal=True)
        else:
            keep = torch.ones(query.shape[1], seen[0].shape[1], dtype=torch.bool, device=query.device).tril(
                seen[0].shape[1] - query.shape[1]
            )
            out = F.scaled_dot_product_attention(query, *seen, attn_mask=keep)
        return self.o(out), whole


class CachedGPT(nn.Module):
    """A language model that can be read at once or one token at a time."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, E), nn.Embedding(64, E)
        self.layers = nn.ModuleList([CachedAttention(fault), CachedAttention("")])
        self.head = nn.Linear(E, V)
        self.fault = fault

    def forward(self, idx: Tensor, cache: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
        start = 0 if cache is None or self.fault == "positions" else cache[0][0].shape[1]
        count = 1 if self.fault == "one position for a chunk" and cache is not None else idx.shape[1]
        x = self.tok(idx) + self.pos(torch.arange(start, start + count, device=idx.device))
        kept = []
        for number, layer in enumerate(self.layers):
            change, one = layer(x, None if cache is None else cache[number])
            x = x + change
            kept.append(one)
        return self.head(x), kept


class RollingAttention(nn.Module):
    """Attention to the last 8 positions, whose cache keeps so many as told."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.kept = nn.Linear(E, E), nn.Linear(E, E), nn.Linear(E, E), kept

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        key, value = self.k(x), self.v(x)
        if past is not None:
            key, value = torch.cat([past[0], key], 1), torch.cat([past[1], value], 1)
        count, length = x.shape[1], key.shape[1]
        keep = torch.ones(count, length, dtype=torch.bool, device=x.device).tril(length - count).triu(length - count - 7)
        return F.scaled_dot_product_attention(self.q(x), key, value, attn_mask=keep), (key[:, -self.kept :], value[:, -self.kept :])


class RollingGPT(CachedGPT):
    """Keeps too few keys, unless told otherwise."""

    def __init__(self, kept: int = 6) -> None:
        super().__init__()
        self.layers, self.pos = nn.ModuleList([RollingAttention(kept)]), nn.Embedding(1, E)

    def forward(self, idx: Tensor, cache: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
        x = self.tok(idx)
        change, kept = self.layers[0](x, None if cache is None else cache[0])
        return self.head(x + change), [kept]


class StepTagger(RecurrentTagger):
    """Returns the logits of each position in a list."""

    def __init__(self) -> None:
        super().__init__(packed=True)

    def forward(self, idx: Tensor, mask: Tensor) -> list[Tensor]:  # type: ignore[override]
        return list(super().forward(idx, mask.sum(1)).unbind(1))


class StepLM(CellLM):
    """Returns a dictionary with a tuple of the logits of each position."""

    def forward(self, idx: Tensor) -> dict[str, tuple[Tensor, ...]]:  # type: ignore[override]
        return {"steps": super().forward(idx).unbind(1)}


def cached_adapter() -> Adapter:
    return Adapter(
        (Sequence("idx", causal=True),),
        call=lambda model, batch: model(batch["idx"])[0],
        start=lambda model, batch: None,
        step=lambda model, token, state: model(token, state),
        chunked=True,
    )


class Forgetful(GPT):
    """Keeps the mean of every batch and adds it to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Any = 0.0

    def forward(self, idx: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = super().forward(idx, mask)
        shown, self.last = logits + self.last, logits.mean()
        return shown


@dataclass(frozen=True)
class Case:
    """A model and how it is checked; for a wrong one, which check must find it, where, and a word of the cause."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)
    check: str = ""
    module: str = ""
    cause: str = ""


def ids() -> dict[str, Tensor]:
    return {"idx": tokens()}


def long_ids() -> dict[str, Tensor]:
    return {"idx": tokens(5, 14)}


def masked() -> dict[str, Tensor]:
    text, lengths = padded()
    return {"idx": text, "mask": torch.arange(text.shape[1]) < lengths[:, None]}


def masked_on_the_left() -> dict[str, Tensor]:
    given = masked()
    return {key: value.flip(1) for key, value in given.items()}


def mask_of_axes(*axes: int) -> Callable[[], dict[str, Tensor]]:
    """Padded tokens and a mask with axes of one between."""

    def batch() -> dict[str, Tensor]:
        text, mask = masked().values()
        return {"idx": text, "mask": mask.reshape(len(text), *axes, text.shape[1])}

    return batch


def placed() -> dict[str, Tensor]:
    """Padded on the left, with positions that count real tokens."""
    text, mask = masked_on_the_left().values()
    return {"idx": text, "pos": (mask.cumsum(-1) - 1).clamp(min=0), "mask": mask}


def placed_by_column() -> dict[str, Tensor]:
    return masked() | {"pos": torch.arange(11).expand(5, 11)}


def placed_once() -> dict[str, Tensor]:
    return ids() | {"pos": torch.arange(11)[None]}


def images() -> Tensor:
    return torch.randn(5, 3, 6, 10, generator=torch.Generator().manual_seed(0))


def time_first() -> dict[str, Tensor]:
    src, tgt = pairs().values()
    return {"src": src.T, "tgt": tgt.T, "src_padding_mask": src == 0, "tgt_mask": torch.ones(9, 9, dtype=torch.bool).triu(1)}


def time_first_text() -> dict[str, Tensor]:
    text = padded()[0].T[:, [2, 0, 4, 1, 3]]  # rows by length would do either way
    return {"text": text, "pad": text == 0}


def square() -> dict[str, Tensor]:
    text, lengths = padded(rows=8, width=8)
    return {"idx": text, "mask": torch.arange(8) < lengths[:, None]}


def with_lengths() -> dict[str, Tensor]:
    text, lengths = padded()
    return {"idx": text, "lengths": lengths}


def pairs() -> dict[str, Tensor]:
    return {"src": padded()[0], "tgt": tokens(5, 9, seed=1)}


def labelled_pairs() -> dict[str, Tensor]:
    return {"src": padded()[0], "labels": tokens(5, 9, seed=1)}


def documents(size: int = 4) -> dict[str, Tensor]:
    """Rows of several documents of a size."""
    return {"tokens": tokens(), "doc_ids": (torch.arange(11) // size).expand(5, 11)}


def shifted_targets() -> dict[str, Tensor]:
    text = tokens(5, 12)
    return {"idx": text[:, :-1], "targets": text[:, 1:]}


def same_targets() -> dict[str, Tensor]:
    return {"idx": tokens(), "targets": tokens()}


CAUSAL = {"causal": True}
OPEN = {"causal": False}
BOTH = {"adapter": Adapter((Sequence("idx", mask=("mask",), causal=True),), sides=("right", "left"))}
CACHE = {"adapter": cached_adapter()}
ROLLING = {"adapter": replace(cached_adapter(), window=8)}
PLACED = {"adapter": Adapter((Sequence("idx", mask=("mask",), causal=True, companions=("pos",)),), sides=("right", "left"))}
ATTN = "blocks.0.attn"
FUTURE, CONTENT = "future tokens", "padding content"

FAULTS = {
    "causal mask forgotten": Case(lambda: GPT("not causal"), ids, CAUSAL, FUTURE, ATTN, "there is no causal mask"),
    "causal mask forgotten in the second layer": Case(
        lambda: GPT("not causal", layer=1), ids, CAUSAL, FUTURE, "blocks.1.attn", "there is no causal mask"
    ),
    "diagonal one too high": Case(lambda: GPT("sees the next"), ids, CAUSAL, FUTURE, ATTN, "off by one"),
    "diagonal one too low": Case(lambda: GPT("blind to itself"), ids, CAUSAL, FUTURE, ATTN, "leaves out its own diagonal"),
    "diagonal one too low, without a leak": Case(
        lambda: GPT("blind to itself, sdpa"), ids, CAUSAL, "own token", ATTN, "leaves out its own diagonal"
    ),
    "inverted causal mask": Case(lambda: GPT("inverted"), ids, CAUSAL, FUTURE, ATTN, "inverted"),
    "causal mask multiplied": Case(lambda: GPT("causal mask multiplied"), ids, CAUSAL, FUTURE, ATTN, "there is no causal mask"),
    "causal mask after the softmax": Case(
        lambda: GPT("causal mask after the softmax"), ids, CAUSAL, FUTURE, ATTN, "applied after the softmax; it must"
    ),
    "softmax over queries": Case(lambda: GPT("softmax over queries"), ids, CAUSAL, FUTURE, ATTN, "over the queries, not"),
    "softmax over rows": Case(lambda: GPT("softmax over rows"), ids, CAUSAL, "other rows", ATTN, "rows of the batch"),
    "view instead of transpose": Case(lambda: GPT("view"), ids, CAUSAL, FUTURE, ATTN, "transpose"),
    "dropout in evaluation": Case(lambda: GPT("dropout in evaluation"), ids, CAUSAL, "repeated run", "blocks.0", "F.dropout"),
    "state kept between calls": Case(Forgetful, ids, CAUSAL, "repeated run", "", "from one call to the next"),
    "layer norm over time": Case(lambda: GPT(middle=nn.LayerNorm((11, E))), ids, CAUSAL, FUTURE, "middle", "normalize over features alone"),
    "layer norm over time by hand": Case(lambda: GPT(middle=NormOverTime()), ids, CAUSAL, FUTURE, "middle", "every position sees"),
    "convolution that looks ahead": Case(
        lambda: GPT(middle=Residual(nn.Conv1d(E, E, 3, padding=1))), ids, CAUSAL, FUTURE, "middle.inner", "on the left only"
    ),
    "mean of the whole sequence": Case(lambda: GPT(middle=Context()), ids, CAUSAL, FUTURE, "middle", "every position sees"),
    "group norm in a language model": Case(
        lambda: GPT(middle=Residual(nn.GroupNorm(1, E))), ids, CAUSAL, FUTURE, "middle.inner", "later positions"
    ),
    "bidirectional language model": Case(lambda: RecurrentLM(bidirectional=True), ids, CAUSAL, FUTURE, "rnn", "bidirectional"),
    "cell given the next token": Case(lambda: CellLM("looks ahead"), ids, CAUSAL, FUTURE, "", "off by one"),
    "batch_first forgotten": Case(lambda: BatchAxis(batch_first=False), ids, OPEN, "other rows", "attn", "batch_first"),
    "labels read": Case(lambda: GPTWithLoss("labels read"), shifted_targets, CAUSAL, "labels", "", "labels"),
    "targets not shifted": Case(GPTWithLoss, same_targets, CAUSAL, "labels: shift", "", "shift the labels"),
    "decoder input not shifted": Case(
        lambda: LabelTranslator(shifts=False), labelled_pairs, {"causal": "strict", "pad": 0}, "future tokens: labels", "", "not shifted"
    ),
    "documents see each other": Case(lambda: PackedLM("ignored"), documents, CAUSAL, "other documents", "", "nothing depends on doc_ids"),
    "documents see each other, numbers read": Case(
        lambda: PackedLM("embedded", causal=False), lambda: documents(6), OPEN, "other documents", "", "doc_ids is read, but hides nothing"
    ),
    "experts that drop tokens": Case(lambda: GPT(middle=SparseMLP(5)), ids, CAUSAL, "row order", "middle", "limited number of tokens"),
    "padding forgotten": Case(lambda: Encoder("padding forgotten"), masked, OPEN, CONTENT, ATTN, "not used"),
    "padding forgotten, mask (B, 1, S)": Case(lambda: Encoder("padding forgotten"), mask_of_axes(1), OPEN, CONTENT, ATTN, "not used"),
    "padding forgotten, mask (B, 1, 1, S)": Case(lambda: Encoder("padding forgotten"), mask_of_axes(1, 1), OPEN, CONTENT, ATTN, "not used"),
    "padding mask inverted": Case(lambda: Encoder("padding inverted"), masked, OPEN, CONTENT, ATTN, "inverted"),
    "mask of 0 and 1 added": Case(lambda: Encoder("mask of 0 and 1 added"), masked, OPEN, CONTENT, ATTN, "does not exclude"),
    "boolean mask added": Case(lambda: Encoder("boolean added"), masked, OPEN, CONTENT, ATTN, "does not exclude"),
    "masked after the softmax": Case(lambda: Encoder("masked after the softmax"), masked, OPEN, CONTENT, ATTN, "does not exclude"),
    "(B, S) read as (T, S)": Case(lambda: Encoder("(B, S) read as (T, S)"), square, OPEN, "batch size", ATTN, "(B, S)"),
    "padding forgotten, nn.TransformerEncoder": Case(
        lambda: TorchEncoder("forgotten"), masked, OPEN, CONTENT, "encoder.layers.0.self_attn", "no mask arrives"
    ),
    "padding inverted, nn.TransformerEncoder": Case(
        lambda: TorchEncoder("inverted"), masked, OPEN, CONTENT, "encoder.layers.0.self_attn", "inverted"
    ),
    "mean pooling over padding": Case(lambda: Encoder(pool="mean of all"), masked, OPEN, CONTENT, "pool", "the mean takes in"),
    "max pooling over padding": Case(lambda: Encoder(pool="max of all"), masked, OPEN, CONTENT, "pool", "the maximum takes in"),
    "maximum of zeroed padding": Case(
        lambda: Encoder(pool="max of zeroed"), masked, OPEN, "no padding", "pool", "the zeros that padding was set to"
    ),
    "mean over the width": Case(
        lambda: Encoder(pool="mean over the width"), masked, OPEN, "padding amount", "pool", "divides by all columns"
    ),
    "mask along the queries": Case(lambda: AddedMask("along the queries"), masked, OPEN, CONTENT, "layer", "lies along the queries"),
    "mask of the first row": Case(lambda: AddedMask("of the first row"), masked, OPEN, CONTENT, "layer", "holds 0 everywhere"),
    "mask of -1": Case(lambda: AddedMask("of -1"), masked, OPEN, CONTENT, "layer", "adds -1"),
    "batch_first forgotten, images": Case(lambda: VisionModel(batch_first=False), images, {}, "other rows", "attn", "batch_first"),
    "last token is padding": Case(lambda: Encoder(pool="last of all"), masked, OPEN, CONTENT, "pool", "the last column takes in"),
    "recurrent network not packed": Case(
        lambda: RecurrentClassifier(packed=False), with_lengths, OPEN, CONTENT, "rnn", "pack_padded_sequence"
    ),
    "last state after the padding": Case(
        lambda: RecurrentClassifier(packed=False, bidirectional=False), with_lengths, OPEN, CONTENT, "rnn", "after the padding"
    ),
    "bidirectional tagger not packed": Case(
        lambda: RecurrentTagger(packed=False), with_lengths, OPEN, CONTENT, "rnn", "backward direction"
    ),
    "convolution over padding": Case(lambda: ConvTagger(clears=False), masked, OPEN, CONTENT, "first", "set it to zero"),
    "batch norm over padding": Case(
        lambda: NormTagger(nn.BatchNorm1d(E)), masked, OPEN, "training mode, padding content", "norm", "batch norm"
    ),
    "instance norm over padding": Case(lambda: NormTagger(nn.InstanceNorm1d(E)), masked, OPEN, CONTENT, "norm", "mean and variance"),
    "padding forgotten in the encoder": Case(
        lambda: Translator("source padding"), pairs, {"pad": 0}, "padding amount: src", "transformer.encoder.layers.0.self_attn", "no mask"
    ),
    "padding forgotten in cross-attention": Case(
        lambda: Translator("cross-attention"),
        pairs,
        {"pad": 0},
        "padding amount: src",
        "transformer.decoder.layers.0.multihead_attn",
        "no mask",
    ),
    "target mask forgotten": Case(
        lambda: Translator("not causal"), pairs, {"pad": 0}, "future tokens: tgt", "transformer.decoder.layers.0.self_attn", "no mask"
    ),
    "left padding with absolute positions": Case(GPT, masked, BOTH, "left padding", "", "count real tokens"),
    "padded on the left with absolute positions": Case(GPT, masked_on_the_left, CAUSAL, "padding amount", "", "count real tokens"),
    "padding on the left not hidden": Case(
        lambda: CountingGPT("padding forgotten"), masked_on_the_left, CAUSAL, "padding content", ATTN, "not used"
    ),
    "padding forgotten in cross-attention, time first": Case(
        lambda: TimeFirstTranslator("cross-attention"),
        time_first,
        {},
        "padding amount: src",
        "transformer.decoder.layers.0.multihead_attn",
        "no mask",
    ),
    "cache one step off": Case(lambda: CachedGPT("one step off"), ids, CACHE, "cache", "layers.0", "one step off"),
    "cache without its oldest key": Case(lambda: CachedGPT("oldest unseen"), ids, CACHE, "cache", "layers.0", "does not see the oldest"),
    "cache without its newest key": Case(lambda: CachedGPT("newest unseen"), ids, CACHE, "cache", "layers.0", "one key short"),
    "cache that rolls one column too early": Case(RollingGPT, long_ids, ROLLING, "cache", "layers.0", "does not see the oldest"),
    "cache shared between rows": Case(lambda: CachedGPT("rows share"), ids, CACHE, "cache", "layers.0", "rows share"),
    "positions not advanced": Case(lambda: CachedGPT("positions"), ids, CACHE, "cache", "", "positions do not continue"),
    "causal mask of the wrong corner": Case(lambda: CachedGPT("top-left mask"), ids, CACHE, "cache", "layers.0", "overwritten, or masked"),
    "causal mask of a chunk in the wrong corner": Case(
        lambda: CachedGPT("top-left mask of a chunk"), ids, CACHE, "cache, in chunks", "layers.0", "tril(S - T)"
    ),
    "one position for a whole chunk": Case(
        lambda: CachedGPT("one position for a chunk"), ids, CACHE, "cache, in chunks", "", "positions of a chunk"
    ),
}

RIGHT = {
    "language model": Case(GPT, ids, CAUSAL),
    "language model with a mask, padded on both sides": Case(CountingGPT, masked, BOTH),
    "language model, padded on the left": Case(CountingGPT, masked_on_the_left, CAUSAL),
    "language model given positions": Case(PlacedGPT, placed, PLACED),
    "language model given positions of columns": Case(PlacedGPT, placed_by_column, CAUSAL),
    "language model given one row of positions": Case(PlacedGPT, placed_once, CAUSAL),
    "language model with a loss": Case(GPTWithLoss, shifted_targets, CAUSAL),
    "language model that shifts its labels": Case(lambda: GPTWithLoss(shifts=True), same_targets, CAUSAL),
    "language model with a cache": Case(CachedGPT, ids, CACHE),
    "language model with a rolling cache": Case(lambda: RollingGPT(8), long_ids, ROLLING),
    "tagger that returns a list of steps": Case(StepTagger, masked, OPEN),
    "language model that returns a list of steps": Case(StepLM, ids, CAUSAL),
    "language model with a causal convolution": Case(lambda: GPT(middle=Residual(CausalConv())), ids, CAUSAL),
    "language model with experts": Case(lambda: GPT(middle=SparseMLP(99)), ids, CAUSAL),
    "recurrent language model": Case(RecurrentLM, ids, CAUSAL),
    "language model that loops over a cell": Case(CellLM, ids, CAUSAL),
    "nn.MultiheadAttention": Case(lambda: BatchAxis(batch_first=True), ids, OPEN),
    "encoder, mean": Case(Encoder, masked, OPEN),
    "encoder, mask (B, 1, S)": Case(Encoder, mask_of_axes(1), OPEN),
    "encoder, mask (B, 1, 1, S)": Case(Encoder, mask_of_axes(1, 1), OPEN),
    "encoder that adds its mask": Case(AddedMask, masked, OPEN),
    "images, mean": Case(lambda: VisionModel(batch_first=True), images),
    "images, class token": Case(lambda: VisionModel(batch_first=True, pool="token"), images),
    "encoder, max": Case(lambda: Encoder(pool="max"), masked, OPEN),
    "encoder, last": Case(lambda: Encoder(pool="last"), masked, OPEN),
    "nn.TransformerEncoder, fast path": Case(TorchEncoder, masked, OPEN),
    "packed classifier": Case(lambda: RecurrentClassifier(packed=True), with_lengths, OPEN),
    "packed tagger": Case(lambda: RecurrentTagger(packed=True), with_lengths, OPEN),
    "convolutional tagger": Case(lambda: ConvTagger(clears=True), masked, OPEN),
    "layer norm": Case(lambda: NormTagger(nn.Identity()), masked, OPEN),
    "nn.Transformer on tokens": Case(Translator, pairs, {"pad": 0}),
    "nn.Transformer on tokens, time first": Case(TimeFirstTranslator, time_first),
    "tagger, time first, mask as well": Case(TimeFirstTagger, time_first_text, OPEN),
    "documents packed into a row": Case(PackedLM, documents, CAUSAL),
    "two documents packed into a row": Case(PackedLM, lambda: documents(6), CAUSAL),
    "documents packed into a row, all seen": Case(lambda: PackedLM(causal=False), documents, OPEN),
    "labels shifted inside": Case(LabelTranslator, labelled_pairs, {"causal": "strict", "pad": 0}),
}
