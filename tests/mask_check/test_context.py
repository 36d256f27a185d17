"""A mask that hides too much leaks nothing, and is found; models that mix nothing, or little, raise no alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import AdditiveScore, Areas, Attention, KeyValueAttention, MultiHeadAttention
from regard.mask_check import check
from regard.models.transformer_layers import EncoderLayer, FeedForward

V, E, H, T = 29, 14, 2, 9


class Attending(nn.Module):
    """Attention with a residual, through a function of torch or written out, which keeps what `keep` says."""

    def __init__(self, keep: str, *, written_out: bool = False) -> None:
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(V, E), nn.Linear(E, 3 * E), nn.Linear(E, V)
        self.keep, self.written_out = keep, written_out

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(tokens)
        length = x.shape[1]
        q, k, v = (part.unflatten(-1, (H, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        documents = torch.arange(length) // 4
        keep = {
            "all": torch.ones_like(causal),
            "causal": causal,
            "causal, inverted padding": causal,
            "diagonal": torch.eye(length, dtype=torch.bool),
            "neighbour": causal & ~causal.tril(-2),
            "documents": causal & (documents[:, None] == documents),
        }[self.keep]
        keep = keep & (~mask if "inverted" in self.keep else mask)[:, None, None]
        if self.written_out:
            weights = (q @ k.mT).masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num()
            y = weights @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.head(x + y.transpose(1, 2).flatten(2))


def padded() -> dict[str, Tensor]:
    mask = torch.arange(T) < torch.tensor([[9], [7], [5], [4]])
    return {"tokens": torch.randint(1, V, mask.shape, generator=torch.Generator().manual_seed(3)) * mask, "mask": mask}


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("keep", ["diagonal", "causal, inverted padding"])
def test_a_mask_that_hides_all_others_is_found(keep: str, written_out: bool) -> None:
    report = check(Attending(keep, written_out=written_out), padded(), causal=True)
    found = report["sees context"]
    assert (found.verdict, found.module, report.ok) == ("blind", "", False), str(report)
    assert "the mask hides too much: no position sees an earlier one" in found.cause
    assert "1 of" in str(report)
    assert "find a mask that hides too much" in str(report)


def test_a_causal_mask_where_later_tokens_may_be_seen_is_found() -> None:
    report = check(Attending("causal"), padded(), causal=False)
    assert report["sees context"].verdict == "ok"
    assert report["sees context, later tokens"].verdict == "blind", str(report)
    assert "it is causal or inverted" in report["sees context, later tokens"].cause


class OwnLayers(nn.Module):
    """An attention module of Regard, called by `attend` with embedded tokens."""

    def __init__(self, layer: nn.Module, attend: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.layer, self.head, self.attend = nn.Embedding(V, E), layer, nn.Linear(E, V), attend

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.attend(self.layer, self.embedding(tokens)))


class CausalHeads(MultiHeadAttention):
    def forward(self, *states: Tensor, **options: Any) -> Any:
        return super().forward(*states, **options | {"causal": True})


def past(x: Tensor) -> Tensor:
    return torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool).tril()


def heads(**options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(E, H, **options)


OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor], Tensor], str]] = {
    "heads": (heads, lambda layer, x: layer(x, x, x, causal=True).context, "layer"),
    "heads, mask": (heads, lambda layer, x: layer(x, x, x, mask=past(x)).context, "layer"),
    "heads, padding": (heads, lambda layer, x: layer(x, x, x, causal=True, key_mask=past(x)[0, -1:].expand(len(x), -1)).context, "layer"),
    "heads, memory": (heads, lambda layer, x: layer.attend(x, layer.memory(x, x), causal=True).context, "layer"),
    "heads, sparse": (lambda: heads(normalizer="entmax15"), lambda layer, x: layer(x, x, x, causal=True).context, "layer"),
    "areas": (lambda: heads(areas=Areas(3)), lambda layer, x: layer(x, x, x, causal=True).context, "layer"),
    "area features": (
        lambda: heads(areas=Areas(3, key_mode="features", dim=E // H)),
        lambda layer, x: layer(x, x, x, causal=True).context,
        "layer",
    ),
    "additive": (lambda: Attention(AdditiveScore(E, E, 8)), lambda layer, x: layer(x, x, x, mask=past(x)).context, "layer"),
    "key-value": (lambda: KeyValueAttention(E, window=3, parts=1), lambda layer, x: layer(x).context, "layer"),
    "encoder layer": (
        lambda: EncoderLayer(CausalHeads(E, H), FeedForward(E, 8), pre=False, dropout=0.0),
        lambda layer, x: layer(x, None),
        "layer.attention",
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_causal_mask_in_an_attention_of_regard_is_found_where_later_tokens_may_be_seen(kind: str) -> None:
    make, attend, module = OWN[kind]
    report = check(OwnLayers(make(), attend), padded()["tokens"], causal=False)
    found = report["sees context, later tokens"]
    assert (found.verdict, found.module) == ("blind", module), str(report)
    assert report["sees context"].verdict == "ok"


def test_an_attention_of_regard_that_sees_all_tokens_raises_no_alarm() -> None:
    report = check(OwnLayers(heads(), lambda layer, x: layer(x, x, x).context), padded()["tokens"], causal=False)
    assert report.ok, str(report)
    assert report["sees context, later tokens"].verdict == "ok"


@pytest.mark.parametrize(("keep", "causal"), [("all", False), ("causal", True), ("neighbour", True), ("documents", True)])
def test_a_mask_that_hides_what_it_should_raises_no_alarm(keep: str, causal: bool) -> None:
    report = check(Attending(keep), padded(), causal=causal)
    assert report.ok, str(report)
    assert report["sees context"].verdict == "ok"


def test_a_model_without_attention_may_see_one_token_alone() -> None:
    report = check(nn.Sequential(nn.Embedding(V, E), nn.Linear(E, V), nn.Softmax(-1)), padded()["tokens"], causal=True)
    assert report.ok
    assert report["sees context"].verdict == "not checked"


@pytest.mark.parametrize("fill", [-1e9, -torch.inf])
@pytest.mark.parametrize("length", [T, V])  # with as many tokens as the vocabulary, too
def test_a_mask_that_keeps_the_diagonal_is_found_without_an_axis_of_heads(fill: float, length: int) -> None:
    class SingleHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.qkv, self.head = nn.Embedding(V, E), nn.Linear(E, 3 * E), nn.Linear(E, V)

        def forward(self, tokens: Tensor) -> Tensor:
            q, k, v = self.qkv(x := self.embedding(tokens)).chunk(3, -1)  # (B, T, D)
            diagonal = torch.eye(x.shape[1], dtype=torch.bool)
            return self.head(x + (q @ k.mT).masked_fill(~diagonal, fill).softmax(-1) @ v).softmax(-1)

    tokens = torch.randint(V, (4, length), generator=torch.Generator().manual_seed(3))
    assert check(SingleHead(), tokens, causal=True)["sees context"].verdict == "blind"
    alone = nn.Sequential(nn.Embedding(V, E), nn.Linear(E, V), nn.Softmax(-1))
    assert check(alone, tokens, causal=True)["sees context"].verdict == "not checked"


@pytest.mark.parametrize("keep", ["causal", "diagonal"])
def test_attention_that_later_layers_multiply_by_zero_is_no_alarm_unless_it_is_blind(keep: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.attending = nn.Embedding(V, E), Attending(keep)
            self.gain, self.head = nn.Parameter(torch.full((V,), -1.0)), nn.Linear(E, V)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            return self.head(self.embedding(tokens)) + (self.gain + 1) * self.attending(tokens, mask)

    found = check(Scaled(), padded(), causal=True)["sees context"]
    assert found.verdict == ("ok" if keep == "causal" else "blind"), str(found)
    if keep == "causal":
        assert "attending follows the earlier tokens, and no output does" in found.cause
