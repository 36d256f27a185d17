"""Models and modules without attention: no mask is blamed, and sums over earlier tokens alone raise no alarm."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.mask_check import assert_no_leaks, check

V, E, T = 23, 16, 7


def tokens() -> Tensor:
    return torch.randint(1, V, (4, T), generator=torch.Generator().manual_seed(3))


class Mixer(nn.Module):
    """Projects what `mix` makes of the states (B, T, E)."""

    def __init__(self, mix: str) -> None:
        super().__init__()
        self.mix, self.project = mix, nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        if self.mix == "earlier":
            return self.project(x.cumsum(1) - x)
        if self.mix == "previous":
            return self.project(torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1))
        if self.mix == "gated":
            return self.project(torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1] * self.project(x[:, :-1]).softmax(-1)], 1))
        if self.mix == "decayed":
            return self.project(torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1] * (-self.project(x[:, :-1]).exp()).exp()], 1))
        if self.mix == "next":
            return self.project(torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1))
        if self.mix == "later":
            return self.project(x.flip(1).cumsum(1).flip(1) - x)
        return self.project(x.mean(1, keepdim=True).expand_as(x))


class Model(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.layer, self.head = nn.Embedding(V, E), layer, nn.Linear(E, V)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.head(x + self.layer(x))


@pytest.mark.parametrize("mix", ["earlier", "previous", "gated", "decayed"])
def test_a_sum_of_earlier_tokens_leaves_the_token_itself_to_the_residual_connection(mix: str) -> None:
    assert_no_leaks(Model(Mixer(mix)), tokens(), causal=True)


@pytest.mark.parametrize(
    ("mix", "cause"),
    [
        ("next", "off by one: position t sees t + 1; something here is shifted"),
        ("later", "positions see later ones and no earlier ones: something here runs backwards"),
        ("all", "every position sees all later ones: something here runs over all positions"),
    ],
)
def test_a_leak_without_attention_is_not_blamed_on_a_mask(mix: str, cause: str) -> None:
    result = check(Model(Mixer(mix)), tokens(), causal=True)["future tokens"]
    assert (result.verdict, result.module) == ("leak", "layer")
    assert result.cause.startswith(cause)
    assert "mask" not in result.cause


def test_positions_of_a_long_row_that_see_later_ones_are_named() -> None:
    longer = torch.randint(1, V, (4, 40), generator=torch.Generator().manual_seed(3))  # too long to try each position
    found = check(Model(Mixer("next")), longer, causal=True)["future tokens"]
    assert found.cause.startswith("later tokens are seen at position"), found.cause
    assert "alone, of those before them: tokens are shifted" in found.cause


class Sigmoid(nn.Module):
    """Attention without a softmax, with weights (B, T, H, S), whose mask hides more or less than later positions."""

    def __init__(self, diagonal: int) -> None:
        super().__init__()
        self.diagonal, self.project = diagonal, nn.Linear(E, 3 * E)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).unflatten(-1, (3, 4, -1)).unbind(2)  # (B, T, H, D)
        keep = torch.ones(x.shape[1], x.shape[1]).tril(self.diagonal)
        weights = torch.einsum("bthd,bshd->bths", query, key).sigmoid() * keep[:, None]
        return torch.einsum("bths,bshd->bthd", weights, value).flatten(2)


def test_attention_without_a_softmax_is_attention() -> None:
    found = check(Model(Sigmoid(-1)), tokens(), causal=True)["own token"]
    assert (found.verdict, found.module) == ("leak", "layer")
    assert "off by one: position t attends to t + 1" in check(Model(Sigmoid(1)), tokens(), causal=True)["future tokens"].cause


class Divides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.0 / (x - x)


def test_nan_without_a_softmax_is_not_blamed_on_one() -> None:
    result = check(Model(Divides()), tokens(), causal=True)["finite values"]
    assert (result.verdict, result.module) == ("leak", "layer")
    assert result.cause.startswith("layer computes no softmax")


class Attends(nn.Module):
    """Attends, and divides zero by zero beside or after that."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.divides = nn.MultiheadAttention(E, 4, batch_first=True), Divides()

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.divides(self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])


def test_nan_is_not_blamed_on_the_softmax_of_another_module() -> None:
    result = check(Model(Attends()), tokens(), causal=True)["finite values"]
    assert (result.verdict, result.module) == ("leak", "layer.divides")
    assert result.cause.startswith("layer.divides computes no softmax")


class Encoder(nn.Module):
    """A causal encoder of torch, whose mask is inverted."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(E, 4, 2 * E, dropout=0.0, batch_first=True)
        self.embedding, self.encoder = nn.Embedding(V, E), nn.TransformerEncoder(layer, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        return self.encoder(self.embedding(tokens), mask=torch.ones(length, length, dtype=torch.bool).tril())


def test_nan_of_the_fused_path_alone_is_found_in_its_module() -> None:
    # The last row hides all keys: NaN in the fused path, zeros in the other, which alone can be recorded.
    report = check(Encoder().eval(), tokens(), causal=True)
    found = report["finite values"]
    assert (found.verdict, found.module) == ("leak", "encoder.layers.0.self_attn")
    assert "in torch's fused path alone" in found.cause
    assert report["training mode, future tokens"].cause.startswith("the causal mask is inverted")


class Tied(nn.Module):
    """Two layers whose attentions share weights, the second with an inverted mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(E, 4, 2 * E, dropout=0.0, batch_first=True) for _ in range(2))
        first, second = (layer.get_submodule("self_attn") for layer in self.layers)
        for name in ("in_proj_weight", "in_proj_bias"):
            setattr(second, name, getattr(first, name))

    def forward(self, x: Tensor) -> Tensor:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.layers[1](self.layers[0](x, src_mask=later), src_mask=~later)


def test_nan_of_the_fused_path_is_placed_in_the_layer_whose_turn_it_is() -> None:
    assert check(Model(Tied()).eval(), tokens(), causal=True)["finite values"].module == "layer.layers.1.self_attn"


class Simultaneous(nn.Module):
    """A decoder whose first target position reads the first source position alone; `diagonal` 0 hides each target from itself."""

    def __init__(self, diagonal: int) -> None:
        super().__init__()
        self.embed, self.positions, self.diagonal = nn.Embedding(V, E), nn.Embedding(64, E), diagonal
        self.own = nn.MultiheadAttention(E, 2, batch_first=True, add_zero_attn=True)
        self.cross = nn.MultiheadAttention(E, 2, batch_first=True)
        self.head = nn.Linear(E, V)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        x, y = (self.embed(side) + self.positions(torch.arange(side.shape[1])) for side in (src, tgt))
        whole = torch.ones(tgt.shape[1], max(tgt.shape[1], src.shape[1]), dtype=torch.bool)
        y = y + self.own(y, y, y, attn_mask=whole[:, : tgt.shape[1]].triu(self.diagonal))[0]
        return self.head(y + self.cross(y, x, x, attn_mask=whole[:, : src.shape[1]].triu(1))[0])


@pytest.mark.parametrize("diagonal", [0, 1])
def test_a_query_of_another_sequence_need_not_count(diagonal: int) -> None:
    found = check(Simultaneous(diagonal), {"src": tokens(), "tgt": tokens()[:, :6].flip(1)}, causal=True)
    assert found.ok == bool(diagonal)
    assert found["own token: tgt"].module == (None if diagonal else "own")
