"""Causes that follow from the functions a module calls: random draws, attention without weights, reductions over the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import ConfigError, DataError
from regard.mask_check import check

V, E, T = 23, 19, 11


class Model(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.layers, self.head = nn.Embedding(V, E), nn.ModuleList(layers), nn.Linear(E, V)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + (layer(x) if mask is None else layer(x, mask))
        return self.head(x)


def tokens() -> Tensor:
    return torch.randint(1, V, (4, T), generator=torch.Generator().manual_seed(3))


class Sampling(nn.Module):
    """Draws positions and keeps each drawn one once, so that the length of its output is random (Fayyaz et al. 2022)."""

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.zeros(*x.shape[:2], 9).uniform_()
        drawn = (x.mean(-1, keepdim=True) - (-noise.clamp(min=1e-9).log()).log()).argmax(1)  # (B, 9)
        return nn.utils.rnn.pad_sequence([row[one.unique()] for row, one in zip(x, drawn, strict=True)], batch_first=True)


class Pooled(nn.Module):
    """Two rounds of sampling, then one vector per row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.first, self.second, self.head = nn.Embedding(V, E), Sampling(), Sampling(), nn.Linear(E, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.second(self.first(self.embedding(tokens))).mean(1))


def test_a_random_draw_is_placed_where_it_is_first_made_even_if_it_changes_lengths() -> None:
    report = check(Pooled(), tokens(), causal=False)
    found = report["repeated run"]
    assert (found.verdict, found.module) == ("leak", "first"), str(report)
    assert found.cause.startswith("uniform_ draws at random in evaluation")
    assert [result.check for result in report.leaks] == ["repeated run"]
    for name in ("row order", "row alone"):  # the rows get the random numbers of others
        assert (report[name].verdict, report[name].cause) == ("not checked", "see repeated run")


class LinearAttention(nn.Module):
    """Sums keys and values over all positions (Katharopoulos et al. 2020, Eq. 5), or up to each (Eq. 9)."""

    def __init__(self, fault: str = "not causal") -> None:
        super().__init__()
        self.qkv, self.fault = nn.Linear(E, 3 * E), fault

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if mask is not None and self.fault != "keys of padding":
            k = k * mask.unsqueeze(-1)
        if mask is not None:
            v = v * mask.unsqueeze(-1)
        if self.fault == "":
            return (q.unsqueeze(-2) @ (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(1)).squeeze(-2) / (q * k.cumsum(1)).sum(-1, keepdim=True)
        return q @ (k.mT @ v) / (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True)


class LandmarkAttention(nn.Module):
    """Three softmaxes of at most 4 landmarks, whose inverse starts from a maximum over the batch or a row (Xiong et al. 2021)."""

    def __init__(self, *, of_rows: bool) -> None:
        super().__init__()
        self.qkv, self.of_rows = nn.Linear(E, 3 * E), of_rows

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(F.pad(x, (0, 0, -x.shape[1] % 4, 0))).chunk(3, -1)
        few_q, few_k = (y.unflatten(1, (4, -1)).mean(2) for y in (q, k))
        first, middle, last = (q @ few_k.mT).softmax(-1), (few_q @ few_k.mT).softmax(-1), (few_q @ k.mT).softmax(-1)
        scale = middle.sum(-2).amax(-1)[:, None, None] if self.of_rows else middle.sum(-2).max()
        return (first @ (middle.mT / scale) @ (last @ v))[:, -x.shape[1] :]


class ProjectedAttention(nn.Module):
    """Projects the keys of all positions to three (Wang et al. 2020, Eq. 7)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.few = nn.Linear(E, 3 * E), nn.Parameter(torch.randn(3, 64, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        few = self.few[:, : x.shape[1]]
        return (q @ (few @ k).mT).softmax(-1) @ (few @ v)


class WindowAttention(nn.Module):
    """Windows of three positions, each without a causal mask."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(x, (0, 0, 0, -x.shape[1] % 3)).unflatten(1, (-1, 3))
        return ((y @ y.mT).softmax(-1) @ y).flatten(1, 2)[:, : x.shape[1]]


class FullAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1) @ x


@pytest.mark.parametrize(
    "layer", [LinearAttention(), LandmarkAttention(of_rows=True), ProjectedAttention()], ids=lambda layer: type(layer).__name__
)
def test_attention_without_weights_is_said_to_be_beyond_a_mask(layer: nn.Module) -> None:
    report = check(Model(layer), tokens(), causal=True)
    found = report["future tokens"]
    assert (found.verdict, found.module) == ("leak", "layers.0")
    assert "has no weight for each pair of query and key" in found.cause
    assert "cumsum" in found.cause


@pytest.mark.parametrize("layer", [WindowAttention(), FullAttention()], ids=lambda layer: type(layer).__name__)
def test_attention_with_weights_is_not_said_to_have_none(layer: nn.Module) -> None:
    found = check(Model(layer), tokens(), causal=True)["future tokens"]
    assert (found.verdict, found.module) == ("leak", "layers.0")
    assert "no weight" not in found.cause


def test_linear_attention_that_sums_up_to_each_position_raises_no_alarm() -> None:
    assert check(Model(LinearAttention("")), tokens(), causal=True).ok


def test_padding_in_the_sums_of_linear_attention_is_told() -> None:
    mask = torch.arange(T) < torch.tensor([[11], [9], [7], [5]])
    batch = {"tokens": tokens() * mask, "mask": mask}
    assert check(Model(LinearAttention()), batch, causal=False).ok
    found = check(Model(LinearAttention("keys of padding")), batch, causal=False)["padding content"]
    assert (found.verdict, found.module) == ("leak", "layers.0")
    assert "set those of the padding to zero before" in found.cause


def test_a_maximum_over_the_batch_is_named() -> None:
    found = check(Model(LandmarkAttention(of_rows=False)), tokens(), causal=False)["other rows"]
    assert (found.verdict, found.module) == ("leak", "layers.0")
    assert found.cause == "max without dim= runs over all rows of the batch here; give it the axes of one row"
    assert check(Model(LandmarkAttention(of_rows=True)), tokens(), causal=False)["other rows"].verdict == "ok"


class Crossing(nn.Module):
    """Attends from one sequence to another, and forgets the mask of the padding."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return (x @ memory.transpose(1, 2) / E**0.5).softmax(-1) @ memory


class TwoSequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.attention, self.head = nn.Embedding(V, E), Crossing(), nn.Linear(E, V)

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor) -> Tensor:
        x = self.embedding(target)
        return self.head(x + self.attention(x, self.embedding(source)))


@pytest.mark.parametrize("length", [5, 13])
def test_weights_of_two_lengths_are_not_taken_for_sums(length: int) -> None:
    mask = torch.arange(7) < torch.tensor([[7], [5], [4], [3]])
    batch = {"source": torch.randint(1, V, (4, 7)) * mask, "target": torch.randint(1, V, (4, length)), "source_mask": mask}
    found = check(TwoSequences(), batch, causal=True)["padding content: source"]
    assert (found.module, "no padding mask is applied" in found.cause, "sums keys" in found.cause) == ("attention", True, False)


def test_a_model_that_keeps_its_activations_can_be_checked_after_a_pass() -> None:
    model = Model()
    model.kept = [model(tokens()), {"weights": (model(tokens()).softmax(-1),)}]
    assert check(model, tokens(), causal=True).ok
    assert model.kept[0].requires_grad


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pad": "0"}, "pad: expected the number"),
        ({"pad": True}, "pad: expected the number"),
        ({"dtype": "float32"}, "dtype: expected a floating"),
    ],
)
def test_a_wrong_number_is_named(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(Model(), tokens(), causal=True, **given)


def test_a_batch_of_nan_is_no_fault_of_the_model() -> None:
    with pytest.raises(DataError, match="holds NaN"):
        check(nn.Linear(E, E), torch.full((4, T, E), float("nan")), causal=True)
