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

    def __init__(self, axes: str, *, first: bool) -> None:
        super().__init__()
        self.axes, self.first = axes, first
        self.weights = torch.empty(0)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.first:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        self.weights = torch.einsum(f"btgrd,bsgd->{self.axes}", q.unflatten(2, (GROUPS, HEADS)), k).softmax(-1)
        values = v.transpose(1, 2)
        return self.weights @ (values[:, None] if self.axes == "btgrs" else values[:, :, None])


class Projected(nn.Module):
    """Projects tokens to heads, and has an attention module attend."""

    def __init__(self, attention: HeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, tokens: Tensor) -> Tensor:
        x = nn.functional.one_hot(tokens, WIDTH).float().unflatten(-1, (-1, 4))
        x = x.transpose(1, 2) if self.attention.first else x
        return self.attention(x, *(x.narrow(1 if self.attention.first else 2, start, GROUPS) for start in (0, 2)))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("axes", "order"), [("btgrs", (0, 2, 3, 1, 4)), ("bgrts", (0, 1, 2, 3, 4))])
def test_queries_are_found_without_states(axes: str, order: tuple[int, ...], first: bool) -> None:
    attention = HeadAttention(axes, first=first)

    def heads(length: int, count: int) -> Tensor:
        return torch.randn((4, count, length, 4) if first else (4, length, count, 4))

    for length in (5, 1, GROUPS, HEADS):
        q, k, v = heads(length, GROUPS * HEADS), heads(7, GROUPS), heads(7, GROUPS)
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


@pytest.mark.parametrize(("axes", "order"), [("btgrs", (0, 2, 3, 1, 4)), ("bgrts", (0, 1, 2, 3, 4))])
def test_a_single_query_is_found_among_axes_of_one_entry(axes: str, order: tuple[int, ...]) -> None:
    model = nn.Sequential(GroupAttention(axes, multiplies=False))
    with regard.watch(model) as seen:
        model(torch.randn(4, 1, WIDTH))
    assert isinstance(model[0], GroupAttention)
    assert torch.equal(seen[0].weights, model[0].weights.permute(*order).flatten(1, 2))


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
