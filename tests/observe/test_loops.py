"""Attention that loops over its batch, and heads folded into it: unfolded where the order shows, named where it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.errors import ConfigError

T, D = 5, 3
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Attention(nn.Module):
    def __init__(self, heads: int, attend: Attend) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.heads, self.attend, self.qkv = heads, attend, nn.Linear(heads * D, 3 * heads * D)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (part.unflatten(-1, (self.heads, D)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(*self.projected(x)).transpose(1, 2).flatten(2)


def by_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * D**-0.5).softmax(-1) @ v


def each(attend: Attend) -> Attend:
    return lambda q, k, v: torch.stack([attend(q[b], k[b], v[b]) for b in range(len(q))])


def each_kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([by_softmax(q[b : b + 1], k[b : b + 1], v[b : b + 1]) for b in range(len(q))])


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).unflatten(0, q.shape[:2])


def folded_by_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (part.transpose(0, 1) for part in (q, k, v))
    return folded(q, k, v).transpose(0, 1)


LOOPS = {"softmax": each(by_softmax), "kernel": each(F.scaled_dot_product_attention), "kept": each_kept}
FOLDS = {"folded": folded, "by heads": folded_by_heads}


@pytest.mark.parametrize(
    ("way", "batch", "heads"),
    [
        *[(way, batch, heads) for way in LOOPS for batch, heads in ((3, 2), (1, 2), (5, 1))],
        *[(way, batch, heads) for way in FOLDS for batch, heads in ((3, 2), (1, 2), (2, 2), (2, 4))],
        ("kept", 2, 2),
    ],
)
def test_examples_and_heads_are_told_apart(way: str, batch: int, heads: int) -> None:
    model, x = Attention(heads, (LOOPS | FOLDS)[way]).eval(), torch.randn(batch, T, heads * D)
    q, k, _ = model.projected(x)
    with regard.watch(model) as seen:
        model(x)
    assert [tuple(call.weights.shape) for call in seen] == [(batch, heads, T, T)]
    assert torch.allclose(seen[0].weights, (q @ k.mT * D**-0.5).softmax(-1), atol=1e-6)
    regard.view(seen, [list("abcde")] * batch if batch > 1 else list("abcde"))


@pytest.mark.parametrize("way", ["softmax", "kernel"])
@pytest.mark.parametrize("sizes", [(2, 2), (2, 4)])
def test_what_cannot_be_told_apart_is_named(way: str, sizes: tuple[int, int]) -> None:
    batch, heads = sizes
    says = "heads" if batch != heads else "it loops over heads or examples, which cannot be told apart; run another number of examples"
    model = Attention(heads, LOOPS[way])
    with pytest.raises(ConfigError, match=says), regard.watch(model):
        model(torch.randn(batch, T, heads * D))


def test_a_loop_over_heads_stays_as_many_calls() -> None:
    def heads_apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.stack([by_softmax(q[:, h], k[:, h], v[:, h]) for h in range(q.shape[1])], 1)

    model = Attention(2, heads_apart).eval()
    with regard.watch(model) as seen:
        model(torch.randn(3, T, 2 * D))
    assert [tuple(call.weights.shape) for call in seen] == [(3, 1, T, T)] * 2


def heads_first(attend: Attend) -> Attend:
    return lambda q, k, v: attend(*(part.transpose(0, 1).contiguous() for part in (q, k, v))).transpose(0, 1)


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("hbts,hbsd->hbtd", (torch.einsum("hbtd,hbsd->hbts", q, k) * D**-0.5).softmax(-1), v)


HEADS_FIRST = {"matmul": by_softmax, "einsum": by_einsum, "kernel": F.scaled_dot_product_attention}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("batch", "heads"), [(2, 3), (3, 2), (1, 3), (3, 1), (3, 3), (5, 2), (2, 5), (5, 5)])
@pytest.mark.parametrize("way", HEADS_FIRST)
def test_heads_before_examples_are_heads(way: str, batch: int, heads: int, first: bool) -> None:
    attend = heads_first(HEADS_FIRST[way]) if first else HEADS_FIRST[way]
    model, x = Attention(heads, attend).eval(), torch.randn(batch, T, heads * D)
    q, k, _ = model.projected(x)
    with regard.watch(model) as seen:
        model(x)
    assert [tuple(call.weights.shape) for call in seen] == [(batch, heads, T, T)]
    assert torch.allclose(seen[0].weights, (q @ k.mT * D**-0.5).softmax(-1), atol=1e-6)


@pytest.mark.parametrize("way", HEADS_FIRST)
def test_as_many_examples_as_heads_whose_order_does_not_show_are_named(way: str) -> None:
    class Summed(Attention):
        def forward(self, x: Tensor) -> Tensor:
            return self.attend(*self.projected(x)).sum((0, 1))

    for batch, heads in ((3, 3), (2, 3)):
        model = Summed(heads, HEADS_FIRST[way])
        with regard.watch(model, strict=False) as seen:
            model(torch.randn(batch, T, heads * D))
        assert [each.reason.split(";")[0] for each in seen.unseen] == (
            ["Summed: its examples and heads are in an order that does not show"] if batch == heads else []
        )


@pytest.mark.parametrize("way", ["matmul", "kernel"])
def test_one_sequence_without_a_batch_is_one_example(way: str) -> None:
    class Alone(Attention):
        def forward(self, x: Tensor) -> Tensor:
            return self.attend(*(part[0] for part in self.projected(x[None]))).mT

    model, x = Alone(3, HEADS_FIRST[way]).eval(), torch.randn(T, 3 * D)
    q, k, _ = model.projected(x[None])
    with regard.watch(model) as seen:
        model(x)
    assert [tuple(call.weights.shape) for call in seen] == [(1, 3, T, T)]
    assert torch.allclose(seen[0].weights, (q @ k.mT * D**-0.5).softmax(-1), atol=1e-6)
    model = Alone(T, HEADS_FIRST[way])
    with pytest.raises(ConfigError, match="its first axis may count heads or examples"), regard.watch(model):
        model(torch.randn(T, T * D))
