"""Attention in windows makes no map and is named; what only looks like it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.errors import ConfigError

B, H, L, W, D = 2, 3, 35, 7, 11  # five windows of seven positions


def heads(x: Tensor) -> Tensor:
    """(B, L, H * D) -> (B, H, L, D)."""
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def beside(x: Tensor) -> Tensor:
    """(N, windows, W, D) -> (N, windows, 2 * W, D): the keys of each window and of the one before."""
    return torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :-1], x], 2)


class LocalAttention(nn.Module):
    """Takes heads, (B, H, L, D) or (B * H, L, D), pads to whole windows and folds examples and heads, as the package local-attention."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (F.pad(x.reshape(-1, *x.shape[-2:]), (0, 0, 0, -x.shape[-2] % W)).unflatten(1, (-1, W)) for x in (q, k, v))
        weights = torch.einsum("bhie,bhje->bhij", q, beside(k)).softmax(-1)
        return torch.einsum("bhij,bhje->bhie", weights, beside(v))


class LocalLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.local = LocalAttention()

    def forward(self, x: Tensor) -> Tensor:
        return self.local(heads(x), heads(x), heads(x))


class InBatch(nn.Module):
    """Folds windows into the batch."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        q = F.pad(x, (0, 0, 0, -x.shape[1] % W)).unflatten(1, (-1, W)).flatten(0, 1)  # (B * windows, W, H * D)
        if self.fused:
            return F.scaled_dot_product_attention(heads(q), heads(q), heads(q))
        return (heads(q) @ heads(q).mT).softmax(-1) @ heads(q)


class OneHead(nn.Module):
    """One head: the second axis of the weights (B, windows, W, W) counts windows."""

    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(1, (-1, W))
        return (q @ q.mT).softmax(-1) @ q


class FiveAxes(nn.Module):
    """(B, H, windows, W, W)."""

    def forward(self, x: Tensor) -> Tensor:
        q = heads(x).unflatten(2, (-1, W))
        return (q @ q.mT).softmax(-1) @ q


WINDOWS = {
    "heads": (LocalLayer, L),
    "heads, padded": (LocalLayer, L - 2),
    "in the batch": (lambda: InBatch(fused=False), L),
    "in the batch, padded": (lambda: InBatch(fused=False), L - 3),
    "in the batch, fused": (lambda: InBatch(fused=True), L),
    "one head": (OneHead, L),
    "five axes": (FiveAxes, L),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_attention_in_windows_is_named(name: str) -> None:
    build, length = WINDOWS[name]
    model = nn.Sequential(build())
    says = r"attends in windows of 7 queries and (7|14) keys .* a window as long as the input"
    with pytest.raises(ConfigError, match=says), regard.watch(model):
        model(torch.randn(B, length, H * D))
    with regard.watch(model, strict=False) as seen:
        model(torch.randn(B, length, H * D))
    assert not seen.layers
    assert [one.layer for one in seen.unseen] == ["0.local" if build is LocalLayer else "0"]


def test_windows_of_folded_heads_are_named() -> None:
    model = LocalAttention()
    states = torch.randn(B * H, L, D)
    with pytest.raises(ConfigError, match="in windows of 7 queries and 14 keys"), regard.watch(model):
        model(states, states, states)


def test_windows_as_long_as_the_batch_are_named() -> None:
    model = nn.Sequential(FiveAxes())
    with pytest.raises(ConfigError, match="in windows of 7 queries and 7 keys"), regard.watch(model):
        model(torch.randn(W, L, H * D))  # seven examples


@pytest.mark.parametrize(("batch", "length"), [(16, 4), (4, 16), (12, 3), (21, 7), (7, 21)])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_batch_that_is_a_multiple_of_the_length_is_recorded(batch: int, length: int, batch_first: bool) -> None:
    model = nn.Sequential(WholeAttention() if batch_first else TimeFirst())
    with regard.watch(model) as seen:
        model(torch.randn(batch, length, H * D) if batch_first else torch.randn(length, batch, H * D))
    assert [tuple(call.weights.shape) for call in seen] == [(batch, H, length, length)]


class PooledAttention(nn.Module):
    """Pools queries and keys, as multiscale vision Transformers: 35 positions become 7."""

    def forward(self, x: Tensor) -> Tensor:
        q = heads(F.avg_pool1d(x.mT, 5).mT)
        return (q @ q.mT).softmax(-1) @ q


class ChannelAttention(nn.Module):
    """Attends from features to features, as cross-covariance attention."""

    def forward(self, x: Tensor) -> Tensor:
        q = heads(x).mT  # (B, H, D, L)
        return (q @ q.mT).softmax(-1) @ q


class LatentAttention(nn.Module):
    """Learned queries that attend to the input, as in a Perceiver."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, W, H * D))

    def forward(self, x: Tensor) -> Tensor:
        q = heads(self.latents.expand(len(x), -1, -1))
        return (q @ heads(x).mT).softmax(-1) @ heads(x)


class Windows(nn.Module):
    """Cuts windows outside the attention, as Swin: each is an example of the attention's batch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = WholeAttention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x.unflatten(1, (-1, W)).flatten(0, 1))


class WholeAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (heads(x) @ heads(x).mT).softmax(-1) @ heads(x)


class TimeFirst(nn.Module):
    """Takes (L, B, D)."""

    def forward(self, x: Tensor) -> Tensor:
        q = heads(x.transpose(0, 1))
        return (q @ q.mT).softmax(-1) @ q


RECORDED = {
    "pooled queries": (PooledAttention, (B, H, 7, 7)),
    "features": (ChannelAttention, (B, H, D, D)),
    "latent queries": (LatentAttention, (B, H, W, L)),
    "windows as examples": (Windows, (B * 5, H, W, W)),
    "the whole input": (WholeAttention, (B, H, L, L)),
}


@pytest.mark.parametrize("name", RECORDED)
def test_what_only_looks_like_windows_is_recorded(name: str) -> None:
    build, shape = RECORDED[name]
    model = nn.Sequential(build())
    with regard.watch(model) as seen:
        model(torch.randn(B, L, H * D))
    assert [tuple(call.weights.shape) for call in seen] == [shape]


class ManifoldHyperConnection(nn.Module):
    """Mixes residual streams by a doubly stochastic matrix (Xie et al. 2025), around a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.mix = layer, nn.Linear(H * D, 4 + 16)

    def forward(self, streams: Tensor) -> Tensor:  # (B * 4, L, E)
        x = streams.unflatten(0, (-1, 4)).transpose(1, 2)  # (B, L, 4, E)
        read, mix = self.mix(x.mean(2)).split((4, 16), -1)
        mix = mix.unflatten(-1, (4, 4)).softmax(-2)
        for _ in range(3):
            mix = F.normalize(F.normalize(mix, p=1, dim=-1), p=1, dim=-2)
        both = torch.einsum("blst,blse->blte", torch.cat([read.sigmoid().unsqueeze(-1), mix], -1), x)
        out = both[:, :, 1:] + self.layer(both[:, :, 0]).unsqueeze(2)
        return out.transpose(1, 2).flatten(0, 1)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(H * D, H, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def test_hyper_connections_mix_streams_and_attend_to_nothing() -> None:
    model = nn.Sequential(ManifoldHyperConnection(SelfAttention()), ManifoldHyperConnection(nn.Linear(H * D, H * D)))
    with regard.watch(model) as seen:
        model(torch.randn(B * 4, L, H * D))
    assert [(call.layer, tuple(call.weights.shape)) for call in seen] == [("0.layer.attention", (B, H, L, L))]


class SparseAttention(nn.Module):
    """Each query attends to three keys of its own: its best, or those before it."""

    def __init__(self, way: str, *, window: bool) -> None:
        super().__init__()
        self.way, self.window = way, window

    def forward(self, x: Tensor) -> Tensor:
        q = heads(x)
        if self.window:
            values = F.pad(q, (0, 0, 2, 0)).unfold(2, 3, 1).mT  # (B, H, T, 3, D)
            weights = torch.einsum("bhtd,bhtkd->bhtk", q, values).softmax(-1)
        else:
            scores, places = (q @ q.mT).topk(3, -1)
            weights = scores.softmax(-1)
            values = q.unsqueeze(2).expand(-1, -1, q.shape[2], -1, -1).gather(3, places.unsqueeze(-1).expand(*places.shape, D))
        if self.way == "einsum":
            return torch.einsum("bhtk,bhtkd->bhtd", weights, values)
        return (weights.unsqueeze(-2) @ values).squeeze(-2) if self.way == "matmul" else (weights.unsqueeze(-1) * values).sum(-2)


class Projecting(nn.Module):
    """Has another module attend to projected states."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.projection, self.inner = nn.Linear(H * D, H * D), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.projection(x))


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("way", ["einsum", "matmul", "product"])
def test_keys_of_each_query_alone_make_no_map(way: str, window: bool, batch: int) -> None:
    model = Projecting(SparseAttention(way, window=window))
    for length in (4, 5):
        with pytest.raises(ConfigError, match="each of its queries has keys of its own"), regard.watch(model):
            model(torch.randn(batch, length, H * D))


class PooledHeads(nn.Module):
    """Pools states by one learned query for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(H, D))

    def forward(self, x: Tensor) -> Tensor:
        keys = heads(x)
        return torch.einsum("bhs,bhsd->bhd", torch.einsum("hd,bhsd->bhs", self.query, keys).softmax(-1), keys)


@pytest.mark.parametrize("length", [1, 2, H, 6])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_one_query_for_each_head_makes_a_map(batch: int, length: int) -> None:
    model = nn.Sequential(PooledHeads())
    with regard.watch(model) as seen:
        model(torch.randn(batch, length, H * D))
    assert seen[0].weights.shape == (batch, H, 1, length)


class ClassAttention(nn.Module):
    """The first token attends to all others."""

    def forward(self, x: Tensor) -> Tensor:
        q = heads(x)
        return (q[:, :, :1] @ q[:, :, 1:].mT).softmax(-1) @ q[:, :, 1:]


class Hierarchy(nn.Module):
    """Pools the words (B, documents, words * D) of each document by a learned query."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        words = x.unflatten(-1, (-1, 8))
        return torch.einsum("bns,bnsd->bnd", (words @ self.query).softmax(-1), words)


class Chat(nn.Module):
    """A recurrent decoder whose states (1, B, D) attend to memory (S, B, D) in a module that returns weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Weights()

    def forward(self, state: Tensor, memory: Tensor) -> Tensor:
        return torch.bmm(self.attn(state, memory), memory.transpose(0, 1))


class Weights(nn.Module):
    def forward(self, state: Tensor, memory: Tensor) -> Tensor:
        return (state * memory).sum(2).t().softmax(1).unsqueeze(1)


class OneOfMany(nn.Module):
    """The first position attends, in PyTorch's own attention with time first."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, count)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x[:1], x, x)[0]


@pytest.mark.parametrize(
    ("build", "shapes", "expected"),
    [
        (ClassAttention, [(4, H, H * D)], (4, H, 1, H - 1)),
        (ClassAttention, [(5, H, H * D)], (5, H, 1, H - 1)),
        (Hierarchy, [(2, 3, 40)], (2, 3, 1, 5)),
        (Chat, [(1, 4, 6), (5, 4, 6)], (4, 1, 1, 5)),
        (lambda: OneOfMany(1), [(5, 2, 16)], (2, 1, 1, 5)),
        (lambda: OneOfMany(2), [(5, 2, 16)], (2, 2, 1, 5)),
    ],
)
def test_single_queries_with_common_keys_make_a_map(build: Callable[[], nn.Module], shapes: list[Any], expected: tuple[int, ...]) -> None:
    model = nn.Sequential(build()) if len(shapes) == 1 else build()
    with regard.watch(model) as seen:
        model(*(torch.randn(shape) for shape in shapes))
    assert seen[0].weights.shape == expected
