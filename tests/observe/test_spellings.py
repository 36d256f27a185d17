"""Weights times values, spelled in many ways, in a class whose name says nothing: each is seen, or named; none is left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.errors import ConfigError

Spelling = Callable[[Tensor, Tensor], Tensor]


class Mixer(nn.Module):
    """Mixes states (B, T, D) as a spelling says, which is given scores (B, T, T) and values (B, T, D)."""

    def __init__(self, spelling: Spelling) -> None:
        super().__init__()
        self.spelling = spelling
        self.table = nn.Parameter(torch.randn(5, 7))

    def forward(self, x: Tensor) -> Tensor:
        return self.spelling(x @ x.mT * 0.3, x)


def sparsemax(scores: Tensor) -> Tensor:
    ordered = scores.sort(-1, descending=True)[0]
    sums, places = ordered.cumsum(-1) - 1, torch.arange(1, scores.shape[-1] + 1)
    count = (ordered * places > sums).sum(-1, keepdim=True)
    return (scores - sums.gather(-1, count - 1) / count).clamp(min=0)


def relu_normed(scores: Tensor) -> Tensor:
    kept = scores.relu() + 1e-3
    return kept / kept.sum(-1, keepdim=True)


def one_by_one(scores: Tensor, values: Tensor) -> Tensor:
    weights, context = scores.softmax(-1), torch.zeros_like(values)
    for key in range(values.shape[1]):
        context = context + weights[:, :, key, None] * values[:, None, key]
    return context


def in_a_generator(scores: Tensor, values: Tensor) -> Tensor:
    weights = scores.softmax(-1)
    return torch.as_tensor(sum(weights[:, :, key, None] * values[:, None, key] for key in range(values.shape[1])))


def stacked(scores: Tensor, values: Tensor) -> Tensor:
    weights = scores.softmax(-1)
    return torch.stack([weights[:, :, key, None] * values[:, None, key] for key in range(values.shape[1])]).sum(0)


def each_example(scores: Tensor, values: Tensor) -> Tensor:
    return torch.stack([torch.mm(own.softmax(-1), x) for own, x in zip(scores, values, strict=True)])


def scattered(scores: Tensor, values: Tensor) -> Tensor:
    out = torch.zeros(values.shape[1], values.shape[2])
    return out.index_add(0, torch.arange(5).repeat_interleave(5), (scores[0].softmax(-1)[..., None] * values[0]).flatten(0, 1))


def as_a_kernel(scores: Tensor, values: Tensor) -> Tensor:
    return F.conv1d(values[:1].mT.unfold(-1, 5, 1)[:, :, 0].mT, scores[0].softmax(-1)[:, :, None])


def one_hot(scores: Tensor, values: Tensor) -> Tensor:
    return F.one_hot(scores.softmax(-1).argmax(-1), 5).float() @ values


def sampled(scores: Tensor, values: Tensor) -> Tensor:
    chosen = torch.multinomial(scores.softmax(-1).flatten(0, 1), 1).view(scores.shape[:2])
    return values.gather(1, chosen.unsqueeze(-1).expand_as(values))


class Wrapped(torch.autograd.Function):
    """A softmax from elsewhere: no function of torch."""

    @staticmethod
    def forward(ctx: object, scores: Tensor) -> Tensor:
        return torch.from_numpy(scores.detach().softmax(-1).numpy().copy())


def soft(s: Tensor) -> Tensor:
    return s.softmax(-1)


def in_two(weights: Tensor, values: Tensor, keys: int = 1) -> Tensor:
    return weights[..., :keys] @ values[:, :keys] + weights[..., keys:] @ values[:, keys:]


def rest_first(weights: Tensor, values: Tensor) -> Tensor:
    return weights[..., 2:] @ values[:, 2:] + weights[..., :2] @ values[:, :2]


def split(weights: Tensor, values: Tensor) -> Tensor:
    pairs = zip(weights.split([1, 3, 1], -1), values.split([1, 3, 1], 1), strict=True)
    return torch.stack([part @ own for part, own in pairs]).sum(0)


def summed_in_two(weights: Tensor, values: Tensor) -> Tensor:
    first = (weights[..., :2, None] * values[:, None, :2]).sum(2)
    return first + (weights[..., 2:, None] * values[:, None, 2:]).sum(2)


def beside_a_sink(scores: Tensor, values: Tensor) -> Tensor:
    weights = soft(F.pad(scores, (0, 1)))
    return weights[..., :2] @ values[:, :2] + torch.einsum("bts,bsd->btd", weights[..., 2:5], values[:, 2:])


SEEN: dict[str, tuple[Spelling, Callable[[Tensor], Tensor]]] = {
    # element by element
    "products, summed": (lambda s, v: (soft(s).unsqueeze(-1) * v.unsqueeze(1)).sum(2), soft),
    "values first": (lambda s, v: (v.unsqueeze(1) * soft(s)[..., None]).sum(dim=-2), soft),
    "torch.sum of torch.mul": (lambda s, v: torch.sum(torch.mul(soft(s).unsqueeze(-1), v.unsqueeze(1)), dim=2), soft),
    "sum kept, squeezed": (lambda s, v: (soft(s).unsqueeze(-1) * v.unsqueeze(1)).sum(2, keepdim=True).squeeze(2), soft),
    "expanded before": (lambda s, v: (soft(s).unsqueeze(-1).expand(3, 5, 5, 7) * v.unsqueeze(1)).sum(2), soft),
    "turned before the sum": (lambda s, v: (soft(s).unsqueeze(-1) * v.unsqueeze(1)).permute(0, 2, 3, 1).sum(1).mT, soft),
    "features first": (lambda s, v: (soft(s).unsqueeze(1) * v.mT.unsqueeze(2)).sum(-1).mT, soft),
    "softmax over the first of the last two": (lambda s, v: (s.mT.softmax(1).unsqueeze(-1) * v.unsqueeze(2)).sum(1), soft),
    "dropout of the products": (lambda s, v: F.dropout(soft(s).unsqueeze(-1) * v.unsqueeze(1), 0.3).sum(2), soft),
    "dropout of the weights": (lambda s, v: (F.dropout(soft(s), 0.3).unsqueeze(-1) * v.unsqueeze(1)).sum(2), soft),
    "in place": (lambda s, v: v.unsqueeze(1).repeat(1, 5, 1, 1).mul_(soft(s).unsqueeze(-1)).sum(2), soft),
    "one query": (lambda s, v: (s[:, :1].mT.softmax(1) * v).sum(1), lambda s: soft(s[:, :1])),
    "one query without its axis": (lambda s, v: (s[:, 0].softmax(-1)[..., None] * v).sum(1), lambda s: soft(s[:, :1])),
    "exponents, divided behind": (lambda s, v: (s.exp()[..., None] * v[:, None]).sum(2) / s.exp().sum(-1, keepdim=True), soft),
    "one number for each key": (lambda s, v: (soft(s) * v[:, None, :, 0]).sum(-1), soft),
    "a mask in between": (lambda s, v: ((soft(s) * torch.ones(5, 5).tril())[..., None] * v[:, None]).sum(2), lambda s: soft(s).tril()),
    # products
    "einsum": (lambda s, v: torch.einsum("bts,bsd->btd", soft(s), v), soft),
    "einsum, implicit": (lambda s, v: torch.einsum("ats,asd", soft(s[:1]), v[:1]), lambda s: soft(s[:1])),
    "einsum, values first": (lambda s, v: torch.einsum("bsd,bts->btd", v, soft(s)), soft),
    "einsum, keys first": (lambda s, v: torch.einsum("bst,bsd->btd", soft(s).mT, v), soft),
    "einsum of three": (lambda s, v: torch.einsum("bts,bsd,de->bte", soft(s), v, torch.eye(7)), soft),
    "tensordot": (lambda s, v: torch.tensordot(soft(s[0]), v[0], dims=1), lambda s: soft(s[:1])),
    "tensordot of axes": (lambda s, v: torch.tensordot(v[0].mT, soft(s[0]), dims=([1], [1])).mT, lambda s: soft(s[:1])),
    "bmm of views": (lambda s, v: torch.bmm(s.view(3, 25).view(3, 5, 5).softmax(-1).view(3, 5, 5), v.reshape(-1, 5, 7)), soft),
    "values on the left": (lambda s, v: (v.mT @ soft(s).mT).mT, soft),
    "softmax over columns, turned": (lambda s, v: s.softmax(1).mT @ v, soft),
    "einsum of lists": (lambda s, v: torch.einsum(soft(s), [0, 1, 2], v, [0, 2, 3], [0, 1, 3]), soft),
    "linear": (lambda s, v: torch.stack([F.linear(own, x.mT) for own, x in zip(soft(s), v, strict=True)]), soft),
    "query by query": (lambda s, v: (lambda w: torch.stack([(w[:, n, None] @ v)[:, 0] for n in range(5)], 1))(soft(s)), soft),
    "used twice": (lambda s, v: (lambda w: w @ v + w.mT.contiguous().mT @ v)(soft(s)), soft),
    "linear, as its weight": (lambda s, v: F.linear(v[0].mT, soft(s[0])).mT, lambda s: soft(s[:1])),
    "a vector of weights": (lambda s, v: torch.mv(v[0].mT, soft(s[0, 0])), lambda s: soft(s[:1, :1])),
    "a vector on the left": (lambda s, v: soft(s[0, 0]) @ v[0], lambda s: soft(s[:1, :1])),
    "addmm": (lambda s, v: torch.addmm(torch.zeros(7), soft(s[0]), v[0]), lambda s: soft(s[:1])),
    "example by example": (each_example, soft),
    # weights
    "gumbel": (lambda s, v: F.gumbel_softmax(s * 1e4, 1e-3) @ v, lambda s: F.one_hot(s.argmax(-1), 5).float()),
    "gumbel, one hot": (lambda s, v: F.gumbel_softmax(s * 1e4, 1e-3, hard=True) @ v, lambda s: F.one_hot(s.argmax(-1), 5).float()),
    "logarithms": (lambda s, v: (s - torch.logsumexp(s, -1, keepdim=True)).exp() @ v, soft),
    "sparsemax of one's own": (lambda s, v: sparsemax(s) @ v, sparsemax),
    "sparsemax, products": (lambda s, v: (sparsemax(s).unsqueeze(-1) * v.unsqueeze(1)).sum(2), sparsemax),
    "sparsemax, dropout": (lambda s, v: F.dropout(sparsemax(s), 0.3) @ v, sparsemax),
    "rectified": (lambda s, v: relu_normed(s) @ v, relu_normed),
    "squared again": (lambda s, v: soft(s).pow(2).div(soft(s).pow(2).sum(-1, keepdim=True)) @ v, lambda s: soft(2 * s)),
    "a softmax from elsewhere": (lambda s, v: Wrapped.apply(s) @ v, soft),
    "mean of two": (lambda s, v: (soft(s) + soft(2 * s)) / 2 @ v, lambda s: (soft(s) + soft(2 * s)) / 2),
    "chosen, as one hot": (one_hot, lambda s: F.one_hot(s.argmax(-1), 5).float()),
    "keys in two parts": (lambda s, v: in_two(soft(s), v), soft),
    "keys in two parts, dropout": (lambda s, v: in_two(F.dropout(soft(s), 0.3), v, 2), soft),
    "keys in two parts, masked": (
        lambda s, v: in_two(soft(s).masked_fill(torch.eye(5).bool(), 0.0), v),
        lambda s: soft(s) * (1 - torch.eye(5)),
    ),
    "keys in two parts, rest first": (lambda s, v: rest_first(soft(s), v), soft),
    "keys in three parts": (lambda s, v: split(soft(s), v), soft),
    "keys in two parts, products": (lambda s, v: summed_in_two(soft(s), v), soft),
    "keys in two parts, a sink": (beside_a_sink, lambda s: soft(F.pad(s, (0, 1)))[..., :5]),
    "a learned key": (
        lambda s, v: (w := soft(F.pad(s, (1, 0))))[..., :1] @ nn.Parameter(torch.ones(1, 7)) + w[..., 1:] @ v,
        lambda s: soft(F.pad(s, (1, 0))),
    ),
    "a part, then all": (lambda s, v: (w := soft(s))[..., 1:] @ v[:, 1:] + w @ v, soft),
    "first padded, then cut": (lambda s, v: F.pad(soft(s), (0, 2))[..., :5] @ v, soft),
}

NAMED: dict[str, tuple[Spelling, str]] = {
    "one key at a time": (one_by_one, "its weights multiply values one key at a time"),
    "in a generator": (in_a_generator, "its weights multiply values one key at a time"),
    "stacked": (stacked, "its weights multiply values one key at a time"),
    "one key by a product": (lambda s, v: (w := soft(s))[..., :1] * v[:, :1] + w[..., 1:] @ v[:, 1:], "its weights are used in parts"),
    "one key by a product behind": (
        lambda s, v: (w := soft(s))[..., 1:] @ v[:, 1:] + w[..., :1] * v[:, :1],
        "its weights are used in parts",
    ),
    "a learned value": (
        lambda s, v: (w := soft(s))[..., :1] * nn.Parameter(torch.ones(7)) + w[..., 1:] @ v[:, 1:],
        "its weights are used in parts",
    ),
    "a learned value behind": (
        lambda s, v: (w := soft(s))[..., 1:] @ v[:, 1:] + w[..., :1] * nn.Parameter(torch.ones(7)),
        "its weights are used in parts",
    ),
    "parts that overlap": (lambda s, v: (w := soft(s))[..., :3] @ v[:, :3] + w[..., 2:] @ v[:, 2:], "its weights are used in parts"),
    "some queries of changed weights": (
        lambda s, v: torch.cat([part @ v for part in (soft(s) * torch.ones(5, 5).tril()).split([2, 3], 1)], 1),
        "its weights are used in parts",
    ),
    "scattered": (scattered, "its weighted values go through index_add"),
    "mean of products": (lambda s, v: (soft(s).unsqueeze(-1) * v.unsqueeze(1)).mean(2), "its weighted values go through mean"),
    "summed by ones": (lambda s, v: torch.ones(5) @ (soft(s).unsqueeze(-1) * v.unsqueeze(1)), "its weighted values go through matmul"),
    "changed before the sum": (lambda s, v: (soft(s).unsqueeze(-1) * v.unsqueeze(1)).tanh().sum(2), "its weighted values go through tanh"),
    "a kernel": (as_a_kernel, "its weights go through conv1d"),
    "three at once": (lambda s, v: torch.linalg.multi_dot([soft(s[0]), v[0], torch.ones(7, 7)]), "its weights go through linalg_multi_dot"),
    "over the queries": (lambda s, v: soft(s).mT @ v, "sums its weights over another axis than their softmax runs over"),
    "not summing to one": (lambda s, v: soft(s).sqrt() @ v, "its weights go through sqrt"),
    "in windows": (
        lambda s, v: F.pad(v, (0, 0, 1, 1)).unfold(1, 3, 1).flatten(0, 1) @ s[..., :3].softmax(-1).view(15, 3, 1),
        "each of its queries has keys of its own, as in a window, which make no map",
    ),
    "a diagonal of windows": (lambda s, v: F.pad(soft(s), (0, 1)).flatten(1)[:, :-5].view(3, 5, 5) @ v, "its weights go through pad"),
    "chosen": (lambda s, v: v[0][soft(s[0]).argmax(-1)], "it selects values by the largest of its weights"),
    "chosen by index_select": (lambda s, v: v[0].index_select(0, soft(s[0]).max(-1)[1]), "it selects values by the largest"),
    "sampled": (sampled, "it selects values by the largest of its weights"),
}

NOTHING: dict[str, Spelling] = {
    "a gate": lambda s, v: v * v.softmax(-1),
    "a gate, projected": lambda s, v: F.linear(v * v.softmax(-1), torch.nn.Parameter(torch.ones(2, 7))),
    "renormalized": lambda s, v: (soft(s) * torch.rand(5)).div((soft(s) * torch.rand(5)).sum(-1, keepdim=True)).log(),
    "a loss": lambda s, v: -(soft(s) * soft(s).log()).sum(-1),
    "another loss": lambda s, v: -(soft(s) * F.log_softmax(s * 2, -1)).sum(-1),
    "the likeliest": lambda s, v: soft(s).argmax(-1),
    "its embedding": lambda s, v: F.embedding(soft(s).argmax(-1), nn.Parameter(torch.ones(5, 2))),
    "a layer": lambda s, v: F.linear(soft(s), nn.Parameter(torch.ones(2, 5))),
    "two sources": lambda s, v: (g := s[..., :2].softmax(-1))[..., :1] * v + g[..., 1:] * v.tanh(),
}


@pytest.mark.parametrize("spelling", SEEN)
def test_a_spelling_is_seen(spelling: str) -> None:
    attend, expected = SEEN[spelling]
    model, x = Mixer(attend), torch.randn(3, 5, 7)
    plain = torch.manual_seed(3) and model(x)
    with regard.watch(model) as seen:
        torch.manual_seed(3)
        assert torch.equal(model(x), plain)
    weights = expected(x @ x.mT * 0.3)
    assert [(call.layer, call.weights.shape) for call in seen] == [("Mixer", (len(weights), 1, *weights.shape[1:]))]
    torch.testing.assert_close(seen[0].weights[:, 0], weights, atol=1e-6, rtol=1e-6)
    assert seen.unseen == []


@pytest.mark.parametrize("spelling", NAMED)
def test_a_spelling_that_cannot_be_seen_is_named(spelling: str) -> None:
    attend, reason = NAMED[spelling]
    model, x = nn.Sequential(Mixer(SEEN["einsum"][0]), Mixer(attend)), torch.randn(3, 5, 7)
    with pytest.raises(ConfigError, match=f"the attention of 1 was not seen .Mixer: .*{reason}"), regard.watch(model):
        model(x)
    with regard.watch(model, strict=False) as seen:
        model(x)
    assert ([call.layer for call in seen], [each.layer for each in seen.unseen]) == (["0"], ["1"])


@pytest.mark.parametrize("spelling", NOTHING)
def test_what_is_no_attention_is_not_taken_for_it(spelling: str) -> None:
    model, x = nn.Sequential(Mixer(SEEN["einsum"][0]), Mixer(NOTHING[spelling])), torch.randn(3, 5, 7)
    with regard.watch(model) as seen:
        model(x)
    assert ([call.layer for call in seen], seen.unseen) == (["0"], [])


def test_experts_that_are_weighed_are_no_attention() -> None:
    class SparseMoE(Mixer):
        pass

    model = nn.Sequential(Mixer(SEEN["einsum"][0]), SparseMoE(SEEN["products, summed"][0]))
    with regard.watch(model) as seen:
        model(torch.randn(3, 5, 7))
    assert [call.layer for call in seen] == ["0"]


@pytest.mark.parametrize(("spelling", "layers"), [("einsum", ["0"]), ("rectified", []), ("logarithms", [])])
def test_in_a_block_with_a_state_space_a_softmax_alone_is_attention(spelling: str, layers: list[str]) -> None:
    class MambaFormerBlock(Mixer):
        pass

    model = nn.Sequential(MambaFormerBlock(SEEN[spelling][0]))
    with regard.watch(model, strict=False) as seen:
        model(torch.randn(3, 5, 7))
    assert [call.layer for call in seen] == layers


def test_heads_of_products_are_heads() -> None:
    class Heads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = x.unflatten(-1, (2, 3)).transpose(1, 2)  # (B, H, T, D)
            weights = (q.unsqueeze(3) * q.unsqueeze(2)).sum(-1).softmax(-1)
            return (weights.unsqueeze(-1) * q.unsqueeze(2)).sum(3)

    x = torch.randn(1, 5, 6)
    q = x.unflatten(-1, (2, 3)).transpose(1, 2)
    with regard.watch(model := Heads()) as seen:
        model(x)
    torch.testing.assert_close(seen[0].weights, (q @ q.mT).softmax(-1))


def test_one_missed_softmax_beside_one_that_is_seen_is_named() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return soft(x @ x.mT) @ x + one_by_one(x @ x.mT, x)

    with pytest.raises(ConfigError, match="1 calls were recorded, but the attention of Both was not seen"), regard.watch(model := Both()):
        model(torch.randn(3, 5, 7))
