"""Attention that people write themselves: seen where its softmax multiplies values, named where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.errors import ConfigError
from tests.observe import tutorials
from tests.observe.tutorials import GPT, DecoderBlock, EinsumAttention, Lecture, MultiHeadedAttention, PartedAttention, RecurrentDecoder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("logarithm", [True, False])
def test_weights_in_half_precision_are_seen(dtype: torch.dtype, logarithm: bool) -> None:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.Linear(16, 48)

        def forward(self, states: Tensor) -> Tensor:
            query, key, value = self.parts(states).chunk(3, -1)
            scores = query @ key.transpose(-1, -2) / 4
            if logarithm:
                return scores.log_softmax(-1).exp() @ value
            powers = (scores - scores.amax(-1, keepdim=True)).exp()
            return (powers / powers.sum(-1, keepdim=True)) @ value

    torch.manual_seed(0)
    model = Mixer().to(dtype).eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model((3 * torch.randn(2, 40, 16)).to(dtype))
    assert [tuple(call.weights.shape) for call in seen] == [(2, 1, 40, 40)]


@pytest.mark.parametrize("training", [True, False])
def test_a_small_gpt_shows_the_same_by_hand_as_through_the_kernel(training: bool) -> None:
    by_hand, kernel, ids = GPT(flash=False, dropout=0.3), GPT(flash=True), torch.randint(37, (2, 7))
    kernel.load_state_dict(by_hand.state_dict())
    by_hand.train(training)
    with regard.watch(by_hand) as seen:
        by_hand(ids)
    with regard.watch(kernel.eval()) as expected:
        kernel(ids)
    assert [(call.layer, call.kind, tuple(call.weights.shape)) for call in seen] == [(f"h.{n}", "self", (2, 3, 7, 7)) for n in range(2)]
    # The first layer's, for what a layer drops reaches the next.
    torch.testing.assert_close(seen[0].weights, expected[0].weights, atol=1e-6, rtol=1e-6)
    assert torch.allclose(seen[1].weights, expected[1].weights, atol=1e-6) != training


def test_a_head_that_does_not_say_what_it_is_is_seen() -> None:
    with regard.watch(Lecture().train()) as seen:
        seen_model = Lecture()
        seen_model(torch.randn(2, 5, 12))
    assert len(seen) == 0  # another model than the one that is watched
    model = Lecture().train()
    with regard.watch(model) as seen:
        model(torch.randn(2, 5, 12))
    assert [(call.layer, tuple(call.weights.shape)) for call in seen] == [(f"heads.{n}", (2, 1, 5, 5)) for n in range(3)]
    torch.testing.assert_close(seen[2].weights.sum(-1), torch.ones(2, 1, 5))  # before dropout


@pytest.mark.parametrize("kind", [MultiHeadedAttention, PartedAttention, EinsumAttention])
def test_the_classes_of_tutorials_are_told_apart_by_what_they_are_called_with(kind: type) -> None:
    block = DecoderBlock(kind, 3, 12).eval()
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 5, 12)  # of one length: only the arguments tell
    with regard.watch(block) as seen:
        block(x, memory, torch.ones(5, 5).tril())
    inner = ".attention" if kind is PartedAttention else ""
    assert [(call.layer, call.kind, tuple(call.weights.shape)) for call in seen] == [
        (f"self_attn{inner}", "self", (2, 3, 5, 5)),
        (f"src_attn{inner}", "cross", (2, 3, 5, 5)),
    ]
    assert seen[0].weights.triu(1).max() < 1e-6
    if kind is MultiHeadedAttention:
        assert torch.equal(seen[1].weights, block.src_attn.attn)


def test_weights_that_another_module_multiplies_belong_to_the_one_that_made_them() -> None:
    model = RecurrentDecoder(6)
    with regard.watch(model) as seen:
        model(torch.randn(2, 4, 6), torch.randn(2, 7, 6))
    assert [(call.layer, call.kind, tuple(call.weights.shape)) for call in seen] == [("attention", "cross", (2, 1, 1, 7))] * 4
    assert seen.map("attention").weights.shape == (2, 1, 4, 7)  # a row for each step


class SelfAttention(nn.Module):
    """What stands between the scores and the output is given."""

    def __init__(self, attend: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x @ x.mT, x)


def half(weights: Tensor) -> Tensor:
    return weights * torch.tensor([0.5, 1.0, 1.0, 1.0, 0.0])


def normed(scores: Tensor, turn: Callable[[Tensor], Tensor] = lambda e: e) -> Tensor:
    exponents = torch.exp(scores - scores.amax(-1, keepdim=True))
    return turn(exponents) / exponents.sum(dim=-1, keepdim=True)


def divided_behind(scores: Tensor, values: Tensor) -> Tensor:
    exponents = (scores - scores.amax(-1, keepdim=True)).exp_()
    return (exponents @ values) / exponents.sum(-1, keepdim=True)


SEEN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "sum of exponents": (lambda s, v: s.exp() / s.exp().sum(-1, keepdim=True) @ v, lambda w: w),
    "largest taken away": (lambda s, v: normed(s) @ v, lambda w: w),
    "sum of exponents, dropout": (lambda s, v: F.dropout(normed(s), 0.5) @ v, lambda w: w),
    "masked sum of exponents": (
        lambda s, v: F.normalize(torch.exp(s - s.amax()) * torch.ones(5, 5).tril(), p=1, dim=-1) @ v,
        lambda w: F.normalize(w.tril(), p=1, dim=-1),
    ),
    "divided behind": (divided_behind, lambda w: w),
    "logarithm": (lambda s, v: F.log_softmax(s, -1).exp() @ v, lambda w: w),
    "logarithm of the sum": (lambda s, v: torch.einsum("bts,bsd->btd", (s - s.logsumexp(-1, keepdim=True)).exp(), v), lambda w: w),
    "module": (lambda s, v: nn.Softmax(dim=-1)(s) @ v, lambda w: w),
    "special": (lambda s, v: torch.special.softmax(s, -1) @ v, lambda w: w),
    "bmm": (lambda s, v: torch.bmm(s.softmax(2), v), lambda w: w),
    "merged": (lambda s, v: torch.bmm(s.view(-1, 5, 5).softmax(-1), v.view(-1, 5, 6)), lambda w: w),
    "type": (lambda s, v: F.softmax(s, -1, dtype=torch.float64).to(s.dtype) @ v, lambda w: w),
    "type as": (lambda s, v: F.softmax(s.double(), dim=-1).type_as(s).contiguous() @ v, lambda w: w),
    "factor": (lambda s, v: half(s.softmax(-1)) @ v, half),
    "mask behind": (lambda s, v: s.softmax(-1).masked_fill(torch.eye(5).bool(), 0.0) @ v, lambda w: w * (1 - torch.eye(5))),
    "in place": (lambda s, v: F.dropout(s.softmax(-1), 0.5, True, True) @ v, lambda w: w),
    "factor, dropout": (lambda s, v: half(F.dropout(s.softmax(-1), 0.5)) @ v, half),
    "sink": (lambda s, v: F.pad(s, (0, 1)).softmax(-1)[..., :-1] @ v, lambda w: None),
    "axes": (lambda s, v: s.softmax(-1).unsqueeze(1).transpose(0, 1).squeeze(0) @ v, lambda w: w),
    "permuted": (lambda s, v: s.softmax(-1).unsqueeze(0).permute(1, 0, 2, 3) @ v.unsqueeze(1), lambda w: w),
    "named": (lambda s, v: torch.matmul(input=s.softmax(-1), other=v), lambda w: w),
    "linalg": (lambda s, v: torch.linalg.matmul(s.softmax(-1), v), lambda w: w),
    "added": (lambda s, v: torch.baddbmm(torch.zeros(1), s.softmax(-1), v), lambda w: w),
    "mask in place": (
        lambda s, v: F.dropout(s.softmax(-1), 0.5).masked_fill_(torch.eye(5).bool(), 0.0) @ v,
        lambda w: w * (1 - torch.eye(5)),
    ),
    "einsum": (lambda s, v: torch.einsum("...ts,...sd->...td", s.softmax(-1), v), lambda w: w),
}


@pytest.mark.parametrize("case", [case for case in SEEN if "sum" in case or case in ("divided behind", "logarithm")])
def test_a_softmax_by_hand_is_seen_in_a_class_of_any_name(case: str) -> None:
    class Mixer(SelfAttention):
        pass

    model, x = nn.Sequential(tutorials.Head(6, 6), Mixer(SEEN[case][0])), torch.randn(3, 5, 6)
    with regard.watch(model) as seen:
        model(x)
    assert [(call.layer, tuple(call.weights.shape)) for call in seen] == [(str(n), (3, 1, 5, 5)) for n in range(2)]


def test_exponents_that_are_no_weights_are_no_attention() -> None:
    class Decay(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (-torch.arange(5.0) * x.abs().amax(-1, keepdim=True)).exp() @ x / 2

    model = nn.Sequential(tutorials.Head(6, 6), Decay())
    with regard.watch(model) as seen:
        model(torch.randn(3, 5, 6))
    assert (len(seen), seen.unseen) == (1, [])


@pytest.mark.parametrize("case", SEEN)
def test_weights_are_followed_from_the_softmax_to_the_values(case: str) -> None:
    attend, expected = SEEN[case]
    model, x = SelfAttention(attend), torch.randn(3, 5, 6)
    with regard.watch(model) as seen:
        model(x)
    assert [(call.layer, call.kind) for call in seen] == [("SelfAttention", "self")]
    weights = expected((x @ x.mT).softmax(-1))
    if weights is None:
        weights = F.pad(x @ x.mT, (0, 1)).softmax(-1)[..., :-1]
    torch.testing.assert_close(seen[0].weights, weights.view(3, 1, 5, 5), atol=1e-6, rtol=1e-6)


class Hidden(torch.autograd.Function):
    """A kernel from elsewhere: nothing of it is a function of torch."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: Tensor) -> Tensor:
        return torch.from_numpy(scores.detach().exp().numpy() @ value.detach().numpy())


class Folded(nn.Module):
    """Heads within the batch, head by head of each example: BLOOM, XGLM, and fairseq, where time comes first."""

    def __init__(self, softmax: str, *, time_first: bool = False) -> None:
        super().__init__()
        self.softmax, self.time_first = softmax, time_first
        self.expected = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1) if self.time_first else x
        batch, length, width = x.shape
        q = x.view(batch, length, 3, width // 3).transpose(1, 2).flatten(0, 1)
        scores = torch.bmm(q, q.mT)
        if self.softmax == "of four axes":
            weights = scores.view(batch, 3, length, length).softmax(-1).view(batch * 3, length, length)
        else:
            weights = F.dropout(scores.softmax(-1), 0.1, self.training)
        self.expected = scores.softmax(-1).view(batch, 3, length, length).detach()
        return torch.bmm(weights, q).view(batch, 3, length, -1).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("time_first", [False, True])
@pytest.mark.parametrize("softmax", ["of four axes", "of three axes"])
def test_heads_folded_into_the_batch_are_heads(softmax: str, time_first: bool) -> None:
    model = Folded(softmax, time_first=time_first)
    with regard.watch(model) as seen:
        model(torch.randn(5, 2, 6) if time_first else torch.randn(2, 5, 6))
    torch.testing.assert_close(seen[0].weights, model.expected)
    assert seen[0].weights.shape == (2, 3, 5, 5)
    assert len(seen.records([list("abcde")] * 2)) == 2
    with regard.watch(model, heads=[2]) as seen:
        model(torch.randn(5, 2, 6) if time_first else torch.randn(2, 5, 6))
    assert seen[0].weights.shape == (2, 1, 5, 5)


def unfolded(way: str, context: Tensor, batch: int, heads: int) -> Tensor:
    """Give heads back that lie in the first axis; the words before the comma say in which order."""
    match way:
        case "examples first, view":
            return context.view(batch, heads, *context.shape[1:]).transpose(1, 2).flatten(2)
        case "examples first, time first":
            return context.transpose(0, 1).contiguous().view(context.shape[1] * batch, -1).view(-1, batch, 6).transpose(0, 1)
        case "examples first, split":
            return torch.stack([part.transpose(0, 1).flatten(1) for part in context.split(heads)])
        case "heads first, view":
            return context.reshape(heads, batch, *context.shape[1:]).permute(1, 2, 0, 3).flatten(2)
        case "heads first, chunk":
            return torch.cat(context.chunk(heads), -1)
        case "heads first, dropout":
            return torch.cat(torch.split(F.dropout(context, 0.1), batch, dim=0), -1)
    raise ValueError(way)


class FoldedEitherWay(nn.Module):
    def __init__(self, way: str, heads: int) -> None:
        super().__init__()
        self.way, self.heads = way, heads

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(self.heads, -1)
        q = torch.cat(parts) if self.way.startswith("heads") else torch.stack(parts, 1).flatten(0, 1)
        weights = torch.bmm(q, q.mT).softmax(-1)
        return unfolded(self.way, torch.bmm(weights, q), len(x), self.heads)


WAYS = [f"examples first, {way}" for way in ("view", "time first", "split")] + [
    f"heads first, {way}" for way in ("view", "chunk", "dropout")
]


@pytest.mark.parametrize("heads", [2, 3])  # as many as examples, and more
@pytest.mark.parametrize("way", WAYS)
def test_the_order_of_folded_heads_is_told_by_what_becomes_of_them(way: str, heads: int) -> None:
    x = torch.randn(2, 5, 6)
    parts = torch.stack(x.chunk(heads, -1), 1)
    model = FoldedEitherWay(way, heads)
    with regard.watch(model) as seen:
        model(x)
    torch.testing.assert_close(seen[0].weights, (parts @ parts.mT).softmax(-1))


def test_an_order_of_folded_heads_that_does_not_show_is_named() -> None:
    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = x.view(2, 5, 3, 2).transpose(1, 2).flatten(0, 1)
            return torch.bmm(torch.bmm(q, q.mT).softmax(-1), q).relu()

    model = nn.Sequential(tutorials.Head(6, 6), Mixed())
    expected = r"the attention of 1 was not seen .*in an order that does not show; a batch of one"
    with pytest.raises(ConfigError, match=expected), regard.watch(model):
        model(torch.randn(2, 5, 6))


class ScaledAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)


class OuterAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ScaledAttention()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, k = (states.unflatten(-1, (3, -1)).transpose(1, 2).flatten(0, 1) for states in (x, memory))
        return self.inner(q, k, k.clone()).view(2, 3, 5, -1).transpose(1, 2).flatten(2)


def test_the_module_around_a_part_that_is_given_folded_states_tells_their_batch() -> None:
    model = OuterAttention()
    with regard.watch(model) as seen:
        model(torch.randn(2, 5, 6), torch.randn(2, 7, 6))
    assert [(call.kind, tuple(call.weights.shape)) for call in seen] == [("cross", (2, 3, 5, 7))]


def in_blocks(scores: Tensor, values: Tensor) -> Tensor:
    return torch.cat([scores[:, rows].softmax(-1) @ values for rows in (slice(2), slice(2, 4), slice(4, 5))], 1)


UNSEEN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "second factor": (lambda s, v: (v.mT @ s.softmax(-1)).mT, "matmul sums its weights over another axis than their softmax runs over"),
    "turned": (lambda s, v: s.softmax(-1).transpose(1, 2) @ v, "matmul sums its weights over another axis"),
    "blocks": (in_blocks, "it computes its attention in 3 parts, which make no map"),
    "kernel": (Hidden.apply, "no scaled_dot_product_attention"),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_what_cannot_be_seen_is_named_with_what_to_do(case: str) -> None:
    attend, reason = UNSEEN[case]
    model, x = nn.Sequential(SelfAttention(attend), tutorials.Head(6, 6)), torch.randn(3, 5, 6)
    message = (
        rf"1 calls were recorded, but the attention of 0 was not seen \(SelfAttention: .*{reason}.*call F\.scaled_dot_product_attention"
    )
    with pytest.raises(ConfigError, match=message), regard.watch(model):
        model(x)
    with regard.watch(model, strict=False) as seen:
        model(x)
    assert [unseen.layer for unseen in seen.unseen] == ["0"]
    assert reason in seen.unseen[0].reason
    assert repr(seen) == "<1 call of Sequential in 1 layer, 1 not seen>"


@pytest.mark.parametrize("case", ["second factor", "turned"])
def test_a_softmax_that_is_lost_is_named_in_a_class_of_any_name(case: str) -> None:
    class Mixer(SelfAttention):
        pass

    attend, reason = UNSEEN[case]
    model, x = nn.Sequential(Mixer(attend), tutorials.Head(6, 6)), torch.randn(3, 5, 6)
    with pytest.raises(ConfigError, match=f"the attention of 0 was not seen .*{reason}"), regard.watch(model):
        model(x)


def test_a_softmax_over_another_axis_that_multiplies_nothing_is_no_attention() -> None:
    model = nn.Sequential(tutorials.Head(6, 6), nn.Linear(6, 6), nn.Sequential(nn.Softmax(dim=1), nn.Linear(6, 2)))
    with regard.watch(model) as seen:
        model(torch.randn(3, 5, 6))
    assert (len(seen), seen.unseen) == (1, [])


@pytest.mark.parametrize(
    "equation",
    ["bqhk,bkhd->bqhd", "...qhk,...khd->...qhd", "qbhk,bkhd->bqhd", "bhqk,bkhd->bqd"],  # the last sums over heads, too
)
def test_an_einsum_says_which_axis_is_that_of_the_queries(equation: str) -> None:
    kept: list[Tensor] = []
    axes = equation.split(",")[0].replace("...", "b")

    def attend(scores: Tensor, x: Tensor) -> Tensor:
        parts = x.unflatten(-1, (2, 3))
        kept.append(torch.einsum(f"bqhd,bkhd->{axes}", parts, parts).softmax(-1))
        return torch.einsum(equation, kept[0], parts)

    model = SelfAttention(attend)
    with regard.watch(model) as seen:
        model(torch.randn(7, 5, 6))
    expected = torch.einsum(f"{axes}->bhqk", kept[0])
    assert torch.equal(seen[0].weights, expected)
    assert expected.shape == (7, 2, 5, 5)


def test_an_einsum_of_one_query_has_its_axis() -> None:
    model = SelfAttention(lambda s, v: torch.einsum("bhk,bkhd->bhd", s[:, :2].softmax(-1), v.unflatten(-1, (2, 3))))
    with regard.watch(model) as seen:
        model(torch.randn(7, 5, 6))
    assert seen[0].weights.shape == (7, 2, 1, 5)


def test_a_function_in_place_behind_a_dropout_changes_nothing_of_the_model() -> None:
    class Returning(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            weights = (x @ x.mT).softmax(-1)
            dropped = F.dropout(weights, 0.5).masked_fill_(torch.ones(5, 5).triu(1).bool(), 0.0)
            dropped = torch.mul(dropped.detach(), 2.0, out=torch.empty(2, 5, 5)) if not x.requires_grad else dropped
            return dropped @ x, weights

    for learn in (True, False):
        x = torch.randn(2, 5, 6, requires_grad=learn)
        expected = Returning()(x)[1]
        with regard.watch(model := Returning()) as seen:
            output, weights = model(x)
        assert torch.equal(weights, expected)
        torch.testing.assert_close(seen[0].weights[:, 0], expected.tril() * (1 if learn else 2))
        if learn:
            output.sum().backward()


def test_a_softmax_that_weighs_nothing_is_no_attention() -> None:
    model = nn.Sequential(nn.Linear(6, 11), nn.Softmax(dim=-1))
    with pytest.raises(ConfigError, match="Sequential ran, and no attention was seen in it"), regard.watch(model):
        model(torch.randn(3, 5, 6))
    with regard.watch(model, strict=False) as seen:
        model(torch.randn(3, 5, 6))
    assert (len(seen), seen.unseen) == (0, [])


def test_layers_that_attend_to_nothing_are_told_which_modules_do() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 6)), nn.MultiheadAttention(6, 3), nn.Identity())
    message = r"no attention was seen in layers='0', the only modules watched; modules that attend: 1$"
    with pytest.raises(ConfigError, match=message), regard.watch(model[:2], layers="0"):
        model[0](torch.randn(2, 5, 6))


def test_a_layer_is_found_by_its_name() -> None:
    model = nn.ModuleDict({"attend": tutorials.Head(6, 6)})
    with regard.watch(model) as seen:
        model["attend"](torch.randn(2, 5, 6))
    assert torch.equal(seen["attend"].weights, seen[0].weights)
    with pytest.raises(ConfigError, match="layer 'other': not recorded; recorded ones: attend"):
        seen["other"]


EMPTY: dict[str, nn.Module] = {
    "nn.MultiheadAttention": nn.MultiheadAttention(6, 2, batch_first=True),
    "matmul": SelfAttention(lambda s, v: s.softmax(-1) @ v),
    "einsum, dropout": SelfAttention(lambda s, v: torch.einsum("bts,bsd->btd", F.dropout(s.softmax(-1), 0.5), v)),
    "products": SelfAttention(lambda s, v: (s.softmax(-1).unsqueeze(-1) * v.unsqueeze(1)).sum(2)),
    "kernel": SelfAttention(lambda s, v: F.scaled_dot_product_attention(v, v, v)),
}


@pytest.mark.parametrize("shape", [(0, 5, 6), (2, 0, 6), (0, 1, 6)])
@pytest.mark.parametrize("kind", ["nn.MultiheadAttention", "matmul", "einsum, dropout", "products", "kernel"])
def test_an_empty_batch_breaks_nothing(kind: str, shape: tuple[int, ...]) -> None:
    model, x = EMPTY[kind], torch.zeros(shape)
    given = (x, x, x) if kind == "nn.MultiheadAttention" else (x,)
    heads = 2 if kind == "nn.MultiheadAttention" else 1
    for training in (True, False):
        model.train(training)
        expected = model(*given)
        with regard.watch(model) as seen:
            output = model(*given)
        assert type(output) is type(expected)
        assert [tuple(call.weights.shape) for call in seen] == [(shape[0], heads, shape[1], shape[1])]


class Grouped(nn.Module):
    """Two groups of two heads, keys shared in a group, as five axes (B, group, head, T, S)."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.query, self.key, self.value = way, nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x).unflatten(-1, (2, 2, 4)).permute(0, 2, 3, 1, 4)
        k, v = (part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.key, self.value))
        if self.way == "one kernel, four axes":
            out = F.scaled_dot_product_attention(q.flatten(1, 2), k, v, enable_gqa=True).unflatten(1, (2, 2))
        elif self.way == "one kernel":
            out = F.scaled_dot_product_attention(q, k.unsqueeze(2), v.unsqueeze(2))
        elif self.way == "einsum":
            weights = (torch.einsum("bgrqd,bgkd->bgrqk", q, k) / 2).softmax(-1)
            out = torch.einsum("bgrqk,bgkd->bgrqd", weights, v)
        else:
            out = (q @ k.unsqueeze(2).mT / 2).softmax(-1) @ v.unsqueeze(2)
        return out.permute(0, 3, 1, 2, 4).flatten(2)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("way", ["one kernel", "einsum", "matmul"])
def test_groups_of_heads_are_heads_of_the_same_example(way: str, batch: int) -> None:
    x = torch.randn(batch, 5, 16)
    torch.manual_seed(2)
    expected = Grouped("one kernel, four axes")
    tried = Grouped(way)
    tried.load_state_dict(expected.state_dict())
    with regard.watch(expected) as first, regard.watch(tried) as second, torch.no_grad():
        torch.testing.assert_close(tried(x), expected(x))
    [wanted], [found] = first.calls, second.calls
    assert found.weights.shape == (batch, 4, 5, 5)
    torch.testing.assert_close(found.weights, wanted.weights)
    with regard.watch(tried, heads=[3]) as chosen, torch.no_grad():
        tried(x)
    torch.testing.assert_close(chosen.calls[0].weights, wanted.weights[:, 3:])
