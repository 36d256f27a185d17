"""The cause that is named: one where it is known, several where several fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.mask_check import Adapter, Sequence, check

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


class Rolled(Model):
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.attention(x)
        return self.head(x + x.roll(1, 1))


@pytest.mark.parametrize("length", [T, 41])
def test_what_wraps_around_is_not_said_to_lack_a_mask(length: int) -> None:
    given = torch.randint(1, V, (4, length), generator=torch.Generator().manual_seed(3))
    result = check(Rolled(""), given, causal=True)["future tokens"]
    assert (result.verdict, result.positions) == ("leak", (0,))
    assert "position 0 alone" in result.cause
    assert "as torch.roll does" in result.cause
    assert "no causal mask" not in result.cause


def test_a_mean_over_all_positions_is_not_said_to_be_a_mask_alone() -> None:
    class Mean(Model):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens)
            return self.head(x - x.mean(1, keepdim=True))

    assert "a mean, a norm or a sort" in check(Mean(""), tokens(), causal=True)["future tokens"].cause


def test_a_mask_of_one_row_for_all_is_named() -> None:
    class First(Model):
        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            x = self.embedding(tokens)
            return self.head(x + self.attention(x, mask[:1]))

    mask = torch.arange(T) < torch.tensor([[11], [9], [7], [5]])
    model = First("wrong pad")
    model.attention = Bidirectional()
    found = check(model, {"tokens": tokens() * mask, "mask": mask}, causal=False)["padding content"]
    assert found.module == "attention"
    assert "one mask arrives (mask, bool (1, 9)) for all 3 rows and cannot hold the padding of each" in found.cause


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [("positions", "positions do not continue from the cache"), ("oldest", "the cache is 1 key short: a step does not see the oldest")],
)
def test_the_fault_of_a_cache_is_named(fault: str, cause: str, *, whole: bool) -> None:
    class Cached(Model):
        def __init__(self) -> None:
            super().__init__("")
            self.body = Body()

        def forward(self, tokens: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:  # pyright: ignore
            x, past = self.body(tokens, past)
            return self.head(x), past

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.key = nn.Embedding(V, E), nn.Embedding(32, E), nn.Linear(E, E)
            self.norm = nn.LayerNorm(E)

        def forward(self, ids: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
            start = 0 if past is None else past.shape[1] - (fault == "positions")
            x = self.norm(self.words(ids) + self.places(start + torch.arange(ids.shape[1])))
            past = x if past is None else torch.cat([past, x], 1)
            hidden = torch.ones(x.shape[1], past.shape[1], dtype=torch.bool).triu(1 + past.shape[1] - x.shape[1])
            hidden[:, 0] |= start > 5 and fault == "oldest"
            return x + (self.key(x) @ past.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ past, past

    adapter = Adapter(
        (Sequence("tokens", causal=True),),
        call=lambda model, batch: model(batch["tokens"])[0],
        start=lambda model, batch: None,
        step=lambda model, token, past: model(token, past),
    )
    result = check(Body() if whole else Cached(), {"tokens": tokens()}, adapter=adapter)["cache"]
    assert (result.verdict, result.module) == ("leak", "" if whole else "body")
    assert result.cause.startswith(cause)


def test_a_layer_that_has_the_batch_first_is_not_told_to_have_it() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.attention = nn.Embedding(V, E), nn.MultiheadAttention(E, 2, batch_first=True)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            x, padding = self.words(tokens), ~mask
            return self.attention(x, x, x, key_padding_mask=padding[:1].expand_as(padding))[0]

    mask = torch.arange(6) < torch.tensor([[3], [6], [5]])
    causes = [leak.cause for leak in check(Rows(), {"tokens": tokens()[:3, :6] * mask, "mask": mask}, causal=False).leaks]
    assert not [cause for cause in causes if "set batch_first=True" in cause]
    assert [cause for cause in causes if cause.startswith("rows attend to each other: it gets (T, B, E) although batch_first=True")]


def test_an_output_is_named_by_its_number() -> None:
    class Pair(Model):
        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
            out = super().forward(tokens)
            return out, out.flip(1)

    assert "changes    output 1 at positions" in str(check(Pair(""), tokens(), causal=True)["future tokens"])


class Packed(nn.Module):
    """A bidirectional network over packed sequences, sorted by length or not."""

    def __init__(self, *, enforce_sorted: bool) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(23, 5), nn.GRU(5, 7, batch_first=True, bidirectional=True)
        self.head, self.enforce_sorted = nn.Linear(14, 3), enforce_sorted

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        x = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=self.enforce_sorted)
        return self.head(pad_packed_sequence(self.rnn(x)[0], batch_first=True, total_length=tokens.shape[1])[0])


@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_a_packed_network_is_the_first_module_that_sees_later_tokens(enforce_sorted: bool) -> None:
    lengths = torch.tensor([11, 8, 6, 4]) if enforce_sorted else torch.tensor([6, 11, 4, 8])
    tokens = torch.randint(1, 23, (4, 11), generator=torch.Generator().manual_seed(3)) * (torch.arange(11) < lengths[:, None])
    found = check(Packed(enforce_sorted=enforce_sorted), {"tokens": tokens, "lengths": lengths}, causal=True)["future tokens"]
    assert (found.module, "bidirectional=True" in found.cause) == ("rnn", True), str(found)


def test_parameters_that_are_nan_are_named() -> None:
    model = nn.Sequential(nn.Embedding(23, 5), nn.Linear(5, 23))
    with torch.no_grad():
        model[1].bias[3] = torch.nan
    found = check(model, torch.randint(23, (4, 7), generator=torch.Generator().manual_seed(3)), causal=True)["finite values"]
    assert (found.module, found.cause) == ("1", "the model itself holds NaN, in 1.bias; load or initialise it again")


@pytest.mark.parametrize(
    ("axis", "told"), [(-1, "there is no causal mask here"), (2, "there is no causal mask here"), (1, "which is not the key axis")]
)
def test_a_softmax_that_is_a_module_is_to_blame_for_its_axis_alone(axis: int, told: str) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.softmax = nn.Linear(E, 3 * E), nn.Softmax(axis)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.softmax(q @ k.mT) @ v

    torch.manual_seed(3)
    report = check(nn.Sequential(nn.Embedding(V, E), Attends(), nn.Linear(E, V)), torch.randint(1, V, (3, T)), causal=True)
    assert report["future tokens"].module == "1.softmax"
    assert told in report["future tokens"].cause
