"""The cause that is named: one where it is known, several where several fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.mask_check import check

V, E, T = 23, 12, 11


class Attention(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.qkv, self.out, self.fault = nn.Linear(E, 3 * E), nn.Linear(E, E), fault

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)  # (B, T, D)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = q @ k.mT if mask is None else (q @ k.mT).masked_fill(~mask[:, None], -torch.inf)
        if self.fault == "soft":
            y = scores.masked_fill(hidden, -10.0).softmax(-1) @ v
        elif self.fault == "after":
            y = scores.softmax(-1).masked_fill(hidden, -1e9) @ v
        else:
            y = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return self.out(y.reshape(len(y), E, -1).mT if self.fault == "view" else y)


class Model(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.attention, self.head = nn.Embedding(V, E), Attention(fault), nn.Linear(E, V)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.head(x + self.attention(x, tokens != -1 if self.attention.fault == "wrong pad" else None))


def tokens() -> Tensor:
    return torch.randint(1, V, (4, T), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        ("soft", ["scores are filled with too weak a value, such as -10 instead of -inf"]),
        ("view", ["a view or reshape stands where a transpose is needed"]),
        ("after", ["the mask is applied after the softmax"]),
    ],
)
def test_the_causes_that_fit_a_causal_leak_are_named(fault: str, causes: list[str]) -> None:
    result = check(Model(fault), tokens(), causal=True)["future tokens"]
    assert (result.verdict, result.module) == ("leak", "attention")
    assert all(cause in result.cause for cause in causes), result.cause
    assert "inverted" not in result.cause


def test_a_mask_of_another_pad_token_is_said_to_mark_nothing() -> None:
    padded = tokens() * (torch.arange(T) < torch.tensor([[11], [9], [7], [5]]))
    model = Model("wrong pad")
    result = check(model, {"tokens": padded}, causal=True, pad=0, call=lambda model, batch: model(batch["tokens"]))
    assert result.ok  # a causal mask hides padding on the right
    bidirectional = Model("wrong pad")
    bidirectional.attention = Bidirectional()
    found = check(bidirectional, {"tokens": padded}, causal=False, pad=0, call=lambda model, batch: model(batch["tokens"]))[
        "padding amount"
    ]
    assert (found.verdict, found.module) == ("leak", "attention")
    assert "(mask, bool (3, 9)) but marks nothing as padding: it is True everywhere" in found.cause


class Bidirectional(Attention):
    def __init__(self) -> None:
        super().__init__("wrong pad")

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.mT).masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ v)


def test_an_output_is_named_by_its_number() -> None:
    class Pair(Model):
        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
            out = super().forward(tokens)
            return out, out.flip(1)

    assert "changes    output 1 at positions" in str(check(Pair(""), tokens(), causal=True)["future tokens"])
