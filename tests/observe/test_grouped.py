"""Grouped queries of five axes, and modules that share weights: each map has its own axes and its own name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import ConfigError

GROUPS, HEADS, WIDTH = 2, 3, 24


class GroupAttention(nn.Module):
    """Heads (G, R) of which R share keys and values; weights laid out as the equation of the scores says."""

    def __init__(self, axes: str, *, multiplies: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // HEADS), nn.Linear(WIDTH, WIDTH // HEADS)
        self.axes, self.multiplies = axes, multiplies
        self.weights = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (GROUPS, HEADS, -1))
        key, value = (layer(x).unflatten(-1, (GROUPS, -1)) for layer in (self.key, self.value))
        self.weights = torch.einsum(f"btgrd,bsgd->{self.axes}", query, key).softmax(-1)
        if not self.multiplies:
            return torch.einsum(f"{self.axes},bsgd->btgrd", self.weights, value).flatten(2)
        values = value.transpose(1, 2)[:, None, :, None] if self.axes == "btgrs" else value.transpose(1, 2)[:, :, None, None]
        return (self.weights.unsqueeze(-1) * values).sum(-2).flatten(1)


@pytest.mark.parametrize("multiplies", [False, True])
@pytest.mark.parametrize(("axes", "order"), [("btgrs", (0, 2, 3, 1, 4)), ("bgrts", (0, 1, 2, 3, 4))])
def test_queries_are_found_among_the_axes_of_grouped_heads(axes: str, order: tuple[int, ...], multiplies: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(GroupAttention(axes, multiplies=multiplies))
    with regard.watch(model) as seen:
        model(torch.randn(4, 5, WIDTH))
    assert isinstance(model[0], GroupAttention)
    assert torch.equal(seen[0].weights, model[0].weights.permute(*order).flatten(1, 2))
    with pytest.raises(ConfigError, match="which of its axes counts queries"), regard.watch(model):
        model(torch.randn(4, HEADS, WIDTH))  # as many tokens as heads that share keys


class HeadAttention(nn.Module):
    """Attention that is given projected heads: queries (B, T, H, D) or (B, H, T, D), keys and values of G heads likewise."""

    def __init__(self, axes: str, *, first: bool, multiplies: bool) -> None:
        super().__init__()
        self.axes, self.first, self.multiplies = axes, first, multiplies
        self.weights = torch.empty(0)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.first:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        self.weights = torch.einsum(f"btgrd,bsgd->{self.axes}", q.unflatten(2, (GROUPS, -1)), k).softmax(-1)
        values = v.transpose(1, 2)
        values = values[:, None] if self.axes == "btgrs" else values[:, :, None]
        return (self.weights.unsqueeze(-1) * values.unsqueeze(-3)).sum(-2) if self.multiplies else self.weights @ values


class Projected(nn.Module):
    """Projects tokens to heads, and has an attention module attend."""

    def __init__(self, attention: HeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, tokens: Tensor) -> Tensor:
        x = (nn.functional.one_hot(tokens, WIDTH) / 2).unflatten(-1, (-1, 4))
        x = x.transpose(1, 2) if self.attention.first else x
        return self.attention(x, *(x.narrow(1 if self.attention.first else 2, start, GROUPS) for start in (0, 2)))


@pytest.mark.parametrize("multiplies", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("axes", "order"), [("btgrs", (0, 2, 3, 1, 4)), ("bgrts", (0, 1, 2, 3, 4))])
def test_queries_are_found_without_states(axes: str, order: tuple[int, ...], first: bool, multiplies: bool) -> None:
    attention = HeadAttention(axes, first=first, multiplies=multiplies)

    def heads(length: int, count: int) -> Tensor:
        return torch.randn((4, count, length, 4) if first else (4, length, count, 4))

    for length, shared, keys in (
        (5, HEADS, 7),
        (1, HEADS, 7),
        (GROUPS, HEADS, 7),
        (5, 1, 7),
        (5, HEADS, HEADS),
        (1, HEADS, 3),
        (HEADS, HEADS, 7),
    ):
        q, k, v = heads(length, GROUPS * shared), heads(keys, GROUPS), heads(keys, GROUPS)
        if length == HEADS:  # neither the queries nor the keys tell
            with pytest.raises(ConfigError, match="which of its axes counts queries"), regard.watch(attention):
                attention(q, k, v)
            continue
        with regard.watch(attention) as seen:
            attention(q, k, v)
        assert torch.equal(seen[0].weights, attention.weights.permute(*order).flatten(1, 2))
    model = Projected(attention)
    with regard.watch(model) as seen:
        model(torch.randint(0, WIDTH, (4, 6)))
    assert torch.equal(seen[0].weights, attention.weights.permute(*order).flatten(1, 2))


@pytest.mark.parametrize("multiplies", [False, True])
@pytest.mark.parametrize(("axes", "order"), [("btgrs", (0, 2, 3, 1, 4)), ("bgrts", (0, 1, 2, 3, 4))])
def test_a_single_query_is_found_among_axes_of_one_entry(axes: str, order: tuple[int, ...], multiplies: bool) -> None:
    model = nn.Sequential(GroupAttention(axes, multiplies=multiplies))
    with regard.watch(model) as seen:
        model(torch.randn(4, 1, WIDTH))
    assert isinstance(model[0], GroupAttention)
    assert torch.equal(seen[0].weights, model[0].weights.permute(*order).flatten(1, 2))


class OneKeyHead(nn.Module):
    """Queries (B, H, T, D) that share the keys (B, 1, S, D) of one head; its weights (B, 1, H, T, S) have five axes."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q.unflatten(1, (1, -1)) @ k[:, :, None].mT).softmax(-1) @ v[:, :, None]


@pytest.mark.parametrize(("queries", "keys"), [(1, 4), (2, 4), (2, 3), (1, 3)])
def test_as_many_keys_as_heads_are_no_queries(queries: int, keys: int) -> None:
    model = OneKeyHead()
    with regard.watch(model) as seen:
        model(torch.randn(2, 4, queries, 8), torch.randn(2, 1, keys, 8), torch.randn(2, 1, keys, 8))
    assert seen[0].weights.shape == (2, 4, queries, keys)


class GivenHeads(nn.Module):
    """Attention that is given (B, T, H, D), with its heads before its examples, or both in one axis."""

    def __init__(self, *, folded: bool) -> None:
        super().__init__()
        self.folded = folded
        self.weights = torch.empty(0)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.folded:
            weights = torch.einsum("bthd,bshd->hbts", q, k).softmax(-1)
            self.weights = weights.transpose(0, 1)
            return torch.einsum("hbts,bshd->bthd", weights, v)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        weights = (q.flatten(0, 1) @ k.flatten(0, 1).mT).softmax(-1)
        self.weights = weights.view(*q.shape[:3], -1)
        return torch.bmm(weights, v.flatten(0, 1)).view(q.shape).transpose(1, 2)


class HeadsInside(nn.Module):
    """Splits states into heads for another module."""

    def __init__(self, heads: nn.Module) -> None:
        super().__init__()
        self.projection, self.heads = nn.Linear(16, 48), heads

    def forward(self, x: Tensor) -> Tensor:
        return self.heads(*(each.unflatten(-1, (4, 4)) for each in self.projection(x).chunk(3, -1))).flatten(2)


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
@pytest.mark.parametrize("folded", [False, True])
def test_a_module_that_is_given_heads_has_as_many_examples_as_its_queries(batch: int, folded: bool) -> None:
    heads = GivenHeads(folded=folded)
    model = HeadsInside(heads)
    with regard.watch(model) as seen:
        model(torch.randn(batch, 5, 16))
    assert torch.equal(seen[0].weights, heads.weights)


class Tied(nn.Module):
    """Two encoders of two layers that all share the projections of one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False)
            for _ in range(2)
        )
        for encoder in (self.first, self.second):
            for layer in encoder.layers:
                layer.self_attn.in_proj_weight = self.first.layers[0].self_attn.in_proj_weight
                layer.self_attn.out_proj.weight = self.first.layers[0].self_attn.out_proj.weight

    def forward(self, x: Tensor, *, both: bool) -> Tensor:
        return self.second(self.first(x) if both else x)


@pytest.mark.parametrize("gradients", [False, True])
def test_modules_that_share_weights_are_named_each_by_its_own_name(gradients: bool) -> None:
    torch.manual_seed(0)
    model = Tied().eval()
    names = [f"{encoder}.layers.{layer}.self_attn" for encoder in ("first", "second") for layer in range(2)]
    with torch.set_grad_enabled(gradients), regard.watch(model) as seen:
        model(torch.randn(2, 5, 16), both=True)
        model(torch.randn(2, 5, 16), both=False)
    assert [call.layer for call in seen] == [*names, *names[2:]]
    for wanted, expected in ((names[1:3], names[1:3]), ([names[1]], names[1:2]), (["first"], names[:2])):
        with torch.set_grad_enabled(gradients), regard.watch(model, layers=wanted) as some:
            model(torch.randn(2, 5, 16), both=True)
        assert [call.layer for call in some] == expected


@pytest.mark.parametrize("gradients", [False, True])
def test_a_model_called_with_other_weights_is_seen(gradients: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 5, 16)
    others = {name: tensor.detach() * 2 for name, tensor in model.state_dict().items()}
    with torch.set_grad_enabled(gradients), regard.watch(model) as seen:
        torch.func.functional_call(model, others, (x,))
    model.load_state_dict(others)
    with torch.set_grad_enabled(gradients), regard.watch(model) as expected:
        model(x)
    assert [call.layer for call in seen] == ["layers.0.self_attn", "layers.1.self_attn"]
    for one, two in zip(seen, expected, strict=True):
        torch.testing.assert_close(one.weights, two.weights)


def test_weights_that_two_layers_exchange_leave_each_layer_its_name() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    own = dict(model.named_parameters())
    other = {"0": "1", "1": "0"}
    exchanged = {name: own[f"layers.{other[name[7]]}{name[8:]}"] for name in own}
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(2, 5, 16))
        torch.func.functional_call(model, exchanged, (torch.randn(2, 5, 16),))
    assert [call.layer for call in seen] == ["layers.0.self_attn", "layers.1.self_attn"] * 2


class Gated(nn.Module):
    """Attends, then sums the states of the examples (B, T, D), each times a factor of its own."""

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.factors = torch.tensor(factors)

    def forward(self, x: Tensor) -> Tensor:
        return (self.attention(x, x, x)[0] * self.factors.view(-1, 1, 1).clone()).sum(0)


@pytest.mark.parametrize(("factors", "layers"), [([0.3, 0.7005], ["attention"]), ([0.25, 0.75], ["attention", "Gated"])])
def test_factors_of_unknown_origin_are_weights_only_if_they_sum_to_one(factors: list[float], layers: list[str]) -> None:
    model = Gated(factors).eval()
    with regard.watch(model) as seen:
        model(torch.randn(2, 5, 16))
    assert [call.layer for call in seen] == layers


@pytest.mark.parametrize(("length", "keys", "groups", "shared"), [(1, 4, 4, 4), (2, 4, 4, 4), (1, 2, 2, 2), (1, 4, 4, 2), (1, 8, 8, 4)])
@pytest.mark.parametrize("first", [False, True])
def test_the_keys_of_a_step_tell_no_order(first: bool, length: int, keys: int, groups: int, shared: int) -> None:
    class Cached(nn.Module):
        """Given a step's queries and keys, (B, H, T, D) or (B, T, H, D); attends to those before, too."""

        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            q, k = (q, k) if first else (q.transpose(1, 2), k.transpose(1, 2))
            whole = torch.cat([torch.randn(2, groups, keys - length, 8), k], 2)[:, :, None]
            return (q.unflatten(1, (groups, -1)) @ whole.mT).softmax(-1) @ whole

    model = Cached()
    q, k = torch.randn(2, groups * shared, length, 8), torch.randn(2, groups, length, 8)
    with regard.watch(model) as seen:
        model(*((q, k) if first else (q.transpose(1, 2), k.transpose(1, 2))))
    assert seen[0].weights.shape == (2, groups * shared, length, keys)
