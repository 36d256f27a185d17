"""`ops.attention`: equal to FlexAttention and to all scores in memory, forward and backward, by tiles that skip and keep little."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask, flex_attention

from regard import ops
from regard.errors import ConfigError, ShapeError
from regard.ops import flex_attention as module
from regard.ops import flex_tiles, mod_calls, mods
from tests.ops.error_rule import FLOOR, Errors, assert_rule

B, H, T, S, D, E = 2, 3, 307, 521, 11, 7
LEARNED = torch.Generator().manual_seed(11)
SLOPES = torch.rand(H, generator=LEARNED)
TABLE = torch.randn(H, 59, generator=LEARNED)
FULL = torch.randn(H, T, S, generator=LEARNED)
DOCUMENTS, SOURCES = (torch.arange(n).div(71, rounding_mode="floor") + torch.arange(B)[:, None] for n in (T, S))

Mods = tuple[Any, Any]
NINE: dict[str, Mods] = {
    "none": (None, None),
    "causal": (None, mods.causal()),
    "sliding window": (None, mods.sliding_window(67, 5)),
    "documents": (None, mods.document(DOCUMENTS, SOURCES)),
    "prefix": (None, mods.prefix_lm(torch.tensor([13, 400]))),
    "alibi": (mods.alibi(SLOPES), mods.causal(S - T)),
    "relative bias": (mods.relative_bias(TABLE), None),
    "soft cap": (mods.soft_cap(1.5), mods.and_masks(mods.causal(), mods.document(DOCUMENTS, SOURCES))),
    "full bias": (
        lambda score, b, h, q, kv: score * 1.1 + FULL[h, q, kv],
        mods.or_masks(mods.causal(-3), mods.padding(torch.tensor([0, 17]))),
    ),
}


def inputs(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def heads(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return inputs((B, H, T, D), (B, H, S, D), (B, H, S, E), dtype=dtype)


def by_torch(query: Tensor, key: Tensor, value: Tensor, mod: Any, mask: Any, **options: Any) -> Any:
    """PyTorch's own, without compiler, which on a CPU has a forward pass only."""
    sizes = (*query.shape[:3], key.shape[2])
    block = None if mask is None else create_block_mask(mask, *sizes, device="cpu")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow without the compiler
        return flex_attention(query, key, value, mod, block, **options)


# The learned tensors of the others are in float32.
IN_DOUBLE = [name for name in NINE if name not in ("alibi", "relative bias", "full bias")]


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in NINE), *((name, torch.float64) for name in IN_DOUBLE)], ids=str
)
def test_forward_equals_flex_attention(name: str, dtype: torch.dtype) -> None:
    (mod, mask), parts = NINE[name], heads(dtype)
    near = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}  # both round float32
    expected = by_torch(*parts, mod, mask)
    torch.testing.assert_close(ops.attention(*parts, mod, mask_mod=mask), expected, **near)
    blocks = None if mask is None else create_block_mask(mask, B, H, T, S, device="cpu")
    torch.testing.assert_close(ops.attention(*parts, mod, blocks), expected, **near)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("name", NINE)
def test_tiles_equal_all_scores_in_memory(name: str, group: int) -> None:
    mod, mask = NINE[name]
    mod = mod if group == 1 or mod is None else lambda score, b, h, q, kv: NINE[name][0](score, b, h // group, q, kv)
    query, key, value = heads()
    leaves = [x.requires_grad_() for x in (query.repeat(1, group, 1, 1), key, value)]
    found = []
    for more in ({}, {"need_weights": True}):
        context, *_, lse = ops.attention(*leaves, mod, mask_mod=mask, enable_gqa=group > 1, return_lse=True, **more)
        parts = (context * inputs(context.shape)[0]).sum() + (lse.nan_to_num(neginf=0.0) * inputs(lse.shape)[0]).sum()
        found.append([context, lse, *torch.autograd.grad(parts, leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


LEARNERS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Any]]] = {
    "by distance": ((H, T + S), lambda x: lambda s, b, h, q, kv: s + x[h, kv - q + T]),
    "by buckets": ((H, 5), lambda x: lambda s, b, h, q, kv: s + x[h, (kv - q).abs().clamp(max=64) // 16]),
    "by scalars": ((H,), lambda x: lambda s, b, h, q, kv: s * x[h] + x.exp()[0]),
    "by query": ((B, H, T), lambda x: lambda s, b, h, q, kv: s * x[b, h, q].sigmoid()),
    "by pairs": ((T, S), lambda x: lambda s, b, h, q, kv: s + x[q, kv]),
    "row, then column": ((T, S), lambda x: lambda s, b, h, q, kv: s + x[q][kv]),
    "dot of features": ((S, 2), lambda x: lambda s, b, h, q, kv: s + (x[q] * x[kv]).sum()),
    "from a sum": ((H, 3), lambda x: lambda s, b, h, q, kv: s + torch.stack([x[h, 0], x[h, 2]]).sum(0) * (q > kv)),
    "unseen score": ((H, T + S), lambda x: lambda s, b, h, q, kv: x[h, q + kv]),
    "nothing learned after all": ((H,), lambda x: lambda s, b, h, q, kv: s + 0 * x.shape[0]),
    "the tensor itself": ((), lambda x: lambda s, b, h, q, kv: x),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_what_a_score_mod_captures_gets_its_gradient(name: str) -> None:
    shape, make = LEARNERS[name]
    parts = [*heads(), *inputs(shape, seed=5)]
    found = []
    for more in ({}, {"need_weights": True}):
        leaves = [x.clone().requires_grad_() for x in parts]
        context = ops.attention(*leaves[:3], make(leaves[3]), mask_mod=mods.causal(), **more)
        context = context if isinstance(context, Tensor) else context[0]
        grads = torch.autograd.grad(context, leaves, inputs(context.shape)[0], allow_unused=True, materialize_grads=True)
        found.append([context, *grads])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


SHORT: dict[str, Any] = {
    "none": None,
    "causal": mods.causal(),
    "window": mods.sliding_window(67, 5),
    "keys alone": lambda b, h, q, kv: kv % 3 > 0,
    "queries alone": lambda b, h, q, kv: q % 3 > 0,
    "empty rows": lambda b, h, q, kv: (q % 5 > 0) & (kv <= q),
}


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("name", SHORT)
def test_a_short_call_is_the_same_by_the_fused_kernel(name: str, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = [x.requires_grad_() for x in inputs((B, H * group, T, D), (B, H, S, D), (B, H, S, D))]
    calls, fused = [], flex_tiles._fused
    monkeypatch.setattr(flex_tiles, "_fused", lambda *given: calls.append(given) or fused(*given))
    found = []
    for limit in (flex_tiles.FUSED, 0):
        monkeypatch.setattr(flex_tiles, "FUSED", limit)
        context, lse = ops.attention(*leaves, mask_mod=SHORT[name], enable_gqa=group > 1, return_lse=True)
        loss = (context * inputs(context.shape)[0]).sum() + (lse.nan_to_num(neginf=0.0) * inputs(lse.shape)[0]).sum()
        found.append([context, lse, *torch.autograd.grad(loss, leaves)])
    assert len(calls) == 1
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_block_mask_decides_for_the_fused_kernel_too() -> None:
    parts = inputs((B, H, 256, D), (B, H, 256, D), (B, H, 256, D))
    kinds = torch.tensor([[[[2, 0], [1, 2]]]])
    partial, full = ([(kinds == kind).sum(-1).int(), (kinds != kind).int().argsort(dim=-1, stable=True).int()] for kind in (1, 2))
    mask = BlockMask.from_kv_blocks(*partial, *full, BLOCK_SIZE=128, mask_mod=lambda b, h, q, kv: (q + kv) % 3 > 0, seq_lengths=(256, 256))
    for more in ({}, {"scale": 0.3}):
        torch.testing.assert_close(
            ops.attention(*parts, block_mask=mask, **more), ops.attention(*parts, block_mask=mask, need_weights=True, **more)[0]
        )


@pytest.mark.parametrize("hold", [torch.nan, torch.inf, 1e200])
def test_scores_that_are_not_finite_are_left_to_the_tiles(hold: float) -> None:
    query, key, value = inputs((B, H, T, D), (B, H, S, D), (B, H, S, D))
    query[0, 1, 5], key[0, 1, 3] = hold, 1e200
    leaves = [query.requires_grad_(), key.requires_grad_(), value.requires_grad_()]
    context = ops.attention(*leaves, mask_mod=mods.causal())
    assert context[0, 1, 5].isnan().all()
    assert context[0, 0].isfinite().all()
    dv = torch.autograd.grad(context, leaves, torch.ones_like(context))[2]
    assert dv[0, 0].isfinite().all()


def test_a_captured_tensor_that_was_computed_from_another_is_not_counted_twice() -> None:
    query, key, value = heads()
    logs = inputs((H,), seed=5)[0].requires_grad_()

    def gradient(create_graph: bool, **more: Any) -> Tensor:
        slopes = logs.exp()
        mod = lambda s, b, h, q, kv: s - slopes[h] * (q - kv) * 0.1 + logs[h] * (q + kv) * 0.01  # noqa: E731
        found = ops.attention(query, key, value, mod, **more)
        context = found if isinstance(found, Tensor) else found[0]
        return torch.autograd.grad(context.square().sum(), logs, create_graph=create_graph)[0]

    expected = gradient(False, need_weights=True)
    for create_graph in (False, True):
        torch.testing.assert_close(gradient(create_graph), expected, rtol=1e-9, atol=1e-11)


def test_gradients_equal_finite_differences_across_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_tiles, "ROWS", 16)
    monkeypatch.setattr(flex_tiles, "COLUMNS", 5)
    monkeypatch.setattr(module, "BLOCK", 3)
    leaves = [x.requires_grad_() for x in inputs((1, 2, 19, 3), (1, 1, 11, 3), (1, 1, 11, 2), (2, 32))]

    def call(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return torch.tanh(score + table[h, kv - q + 18]) * 2

        found = ops.attention(
            query, key, value, score_mod, mask_mod=lambda b, h, q, kv: (q - kv < 5) & (q != 7), enable_gqa=True, return_lse=True
        )
        return found[0], found[1].nan_to_num(neginf=0.0)

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


def test_one_tensor_as_query_key_and_value_has_the_same_gradients_with_and_without_a_graph() -> None:
    x = inputs((B, H, S, D))[0].requires_grad_()

    def first(create_graph: bool, **more: Any) -> Tensor:
        found = ops.attention(x, x, x, mods.soft_cap(2.0), mask_mod=mods.sliding_window(50), **more)
        context = found if isinstance(found, Tensor) else found[0]
        return torch.autograd.grad(context.square().sum(), x, create_graph=create_graph)[0]

    expected = first(False, need_weights=True)
    for create_graph in (False, True):
        torch.testing.assert_close(first(create_graph), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("hold", [torch.nan, torch.inf, 1e30])
def test_what_a_hidden_key_holds_changes_nothing(hold: float) -> None:
    def run(filler: float) -> list[Tensor]:
        query, key, value = heads()
        key[:, :, 300:], value[:, 1, 290:] = filler, filler
        leaves = [query.requires_grad_(), key.requires_grad_(), value.requires_grad_()]
        context = ops.attention(*leaves, lambda s, b, h, q, kv: torch.where(kv < 290, s, -torch.inf), mask_mod=mods.sliding_window(40, 9))
        return [context, *torch.autograd.grad(context, leaves, torch.ones_like(context))]

    found = run(hold)
    for one, other in zip(found, run(0.0), strict=True):
        torch.testing.assert_close(one, other)
    assert found[2][:, :, 290:].eq(0).all()


def test_a_query_of_nan_gives_hidden_values_no_gradient() -> None:
    query, key, value = heads()
    query[0, 1, 5] = torch.nan
    leaves = [query.requires_grad_(), key.requires_grad_(), value.requires_grad_()]
    context = ops.attention(*leaves, mask_mod=mods.sliding_window(40, 9))
    assert torch.equal(context.isnan().any(-1).nonzero(), torch.tensor([[0, 1, 5]]))
    dv = torch.autograd.grad(context, leaves, torch.ones_like(context))[2]
    assert dv[0, 1, :15].isnan().any(-1).all()
    assert dv[0, 1, 15:].isfinite().all()


def test_a_query_that_sees_a_bad_key_gets_nan_and_the_others_do_not() -> None:
    query, key, value = heads()
    key[0, 1, 100, 3] = torch.inf
    leaves = [query.requires_grad_(), key.requires_grad_(), value.requires_grad_()]
    context = ops.attention(*leaves, mask_mod=mods.causal())
    seen = torch.zeros(B, H, T, dtype=torch.bool)
    seen[0, 1, 100:] = True
    assert torch.equal(context.isnan().all(-1), seen)
    assert torch.equal(context.isnan().any(-1), seen)
    _, dk, dv = torch.autograd.grad(context, leaves, torch.ones_like(context))
    for part in (dk, dv):
        assert part[0, 0].isfinite().all()
        assert part[:, :, T:].eq(0).all()


def test_a_query_with_nothing_to_attend_gives_zeros() -> None:
    query, key, value = (x.requires_grad_() for x in heads())
    context, lse = ops.attention(query, key, value, mask_mod=lambda b, h, q, kv: (q % 3 > 0) & (q < 300) & (kv != q), return_lse=True)
    empty = (torch.arange(T) % 3 == 0) | (torch.arange(T) >= 300)
    assert context[:, :, empty].eq(0).all()
    assert torch.equal(lse.isneginf(), empty.expand(B, H, T))
    grads = torch.autograd.grad(context.sum(), (query, key, value))
    assert all(x.isfinite().all() for x in grads)
    assert grads[0][:, :, empty].eq(0).all()


def test_lengths_of_zero_give_empty_results() -> None:
    for shape in ((0, H, T, D), (B, 0, T, D), (B, H, 0, D), (B, H, T, D)):
        query = torch.ones(shape)
        key = torch.ones(*shape[:2], 0 if shape == (B, H, T, D) else S, D)
        context = ops.attention(query, key, key, mask_mod=mods.causal())
        assert context.shape == shape
        assert context.eq(0).all()


@pytest.mark.parametrize("shapes", [((B, H, 0, D), (B, H, S, D), (B, H, S, E)), ((B, H, T, D), (B, H, 0, D), (B, H, 0, E))], ids=("T", "S"))
@pytest.mark.parametrize("more", [{}, {"need_weights": True}, {"max_area": 3}, {"return_lse": True}], ids=str)
def test_functions_of_all_kinds_take_an_empty_axis(shapes: tuple[tuple[int, ...], ...], more: dict[str, Any]) -> None:
    leaves = [x.requires_grad_() for x in inputs(*shapes)]
    target, source = shapes[0][2], shapes[1][2]
    documents = mods.document(torch.zeros(B, target), torch.zeros(B, source))
    own = lambda b, h, q, kv: (q > kv) | (b == 0)  # noqa: E731 - one that nothing is known of
    for mod in (None, mods.soft_cap(2.0), mods.alibi(SLOPES), lambda score, b, h, q, kv: score * 2):
        for mask in (None, mods.causal(), documents, own):
            found = ops.attention(*leaves, mod, mask_mod=mask, **more)
            context = found if isinstance(found, Tensor) else found[0]
            assert context.shape == (B, H, target, E)
            assert context.eq(0).all()
            assert all(x.eq(0).all() for x in torch.autograd.grad(context.sum(), leaves, materialize_grads=True))


@pytest.mark.parametrize(("features", "own"), [(0, E), (D, 0), (0, 0)])
def test_vectors_without_features_are_taken(features: int, own: int) -> None:
    parts = [x.requires_grad_() for x in inputs((B, H, T, features), (B, H, S, features), (B, H, S, own))]
    both = [ops.attention(*parts, mask_mod=mods.causal(3), **more) for more in ({}, {"need_weights": True})]
    torch.testing.assert_close(both[0], both[1][0])
    assert torch.autograd.grad(both[0].sum(), parts)[2].shape == (B, H, S, own)


@pytest.mark.parametrize("shape", [(), (1,), (H, 1, 1), (B, 1, T, 1)], ids=str)
def test_a_scale_that_is_a_tensor_gets_its_gradient(shape: tuple[int, ...]) -> None:
    parts, scale = heads(), inputs(shape, seed=5)[0].requires_grad_()
    scores = (parts[0] * scale) @ parts[1].mT
    expected = torch.softmax(torch.tanh(scores) * 2, -1) @ parts[2]
    grads = [torch.autograd.grad(expected.square().sum(), scale)[0]]
    for more in ({}, {"need_weights": True}, {"max_area": 1}):
        found = ops.attention(*parts, lambda s, b, h, q, kv: torch.tanh(s) * 2, scale=scale, **more)
        context = found if isinstance(found, Tensor) else found[0]
        torch.testing.assert_close(context, expected)
        grads.append(torch.autograd.grad(context.square().sum(), scale)[0])
    for grad in grads[1:]:
        torch.testing.assert_close(grad, grads[0])


def test_a_learned_scale_and_temperature_of_areas_get_their_gradients() -> None:
    query, key, value = heads()
    scale, temperature = (x.requires_grad_() for x in (inputs((H, 1, 1), seed=5)[0], torch.tensor(1.7, dtype=torch.float64)))
    found = ops.area_attention(query, key, value, max_area=2, scale=scale, temperature=temperature)
    expected = ops.area_attention(query * scale / temperature, key, value, max_area=2, scale=1.0)
    grads = [torch.autograd.grad(x.square().sum(), (scale, temperature)) for x in (found, expected)]
    torch.testing.assert_close(*grads)
    slots, places = key.transpose(1, 2).flatten(0, 1), torch.arange(B * S).view(B, S)
    states = query.transpose(1, 2)
    context, _ = ops.cached_attention(states, slots, slots, places, scale=scale.view(H, 1))
    expected, _ = ops.cached_attention(states * scale.view(H, 1), slots, slots, places, scale=1.0)
    torch.testing.assert_close(*(torch.autograd.grad(x.square().sum(), scale)[0] for x in (context, expected)))


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.ones(H), rf"attention: a scale that is a tensor must broadcast to \({B}, {H}, {T}, 1\).*found scale \({H},\)"),
        (torch.ones(1, 1, 1, 1, 1), "must broadcast"),
        (torch.ones((), dtype=torch.int64), "scale must hold floating-point numbers, found torch.int64"),
    ],
)
def test_a_scale_that_does_not_fit_is_refused(scale: Tensor, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        ops.attention(*heads(), scale=scale)
    with pytest.raises(ShapeError, match="temperature that is a tensor must hold one number"):
        ops.area_attention(*heads(), max_area=2, temperature=torch.ones(2))


@pytest.mark.parametrize("scale", [math.nan, math.inf, 1e39, "1"])
def test_a_scale_that_is_not_finite_is_refused(scale: Any) -> None:
    # Of scores that are NaN the context was 0, as of an empty row.
    for call in (ops.attention, partial(ops.area_attention, max_area=2)):
        with pytest.raises(ConfigError, match=r"attention: scale must be (a number|finite in float32)"):
            call(*heads(), scale=scale)


@pytest.mark.parametrize(
    ("mod", "mask", "message"),
    [
        (
            mods.alibi(torch.ones(H + 2)),
            None,
            rf"attention: alibi was given slopes of \(5,\), but this call has H = {H}; expected \({H},\)",
        ),
        (mods.alibi(torch.ones(1)), None, "slopes"),
        (mods.in_order(mods.soft_cap(2.0), mods.relative_bias(torch.ones(H + 2, 7))), None, r"relative_bias was given table of \(5, 7\)"),
        (None, mods.document(DOCUMENTS[:1], SOURCES), rf"targets of \(1, {T}\), but this call has B = {B}; expected \({B}, {T}\)"),
        (None, mods.document(DOCUMENTS), rf"sources of \({B}, {T}\), but this call has S = {S}"),
        (None, mods.and_masks(mods.causal(), mods.document(torch.ones(B, T + 1), SOURCES)), f"T = {T}"),
        (None, mods.or_masks(mods.causal(), mods.padding(torch.ones(B + 1))), "padding was given lengths"),
        (None, and_masks(mods.causal(), mods.prefix_lm(torch.ones(B + 1))), "prefix_lm was given lengths"),
    ],
)
def test_a_ready_function_of_other_sizes_is_refused(mod: Any, mask: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        ops.attention(*heads(), mod, mask_mod=mask)
    if mask is not None:
        with pytest.raises(ShapeError, match="attention_blocks: .*" + message.removeprefix("attention: ")):
            ops.attention_blocks(mask, B, H, T, S)


def test_areas_equal_area_attention() -> None:
    leaves = [x.requires_grad_() for x in heads()]
    window = (torch.arange(S) - torch.arange(T)[:, None]).abs() <= 30
    found = ops.attention(*leaves, mask_mod=mods.sliding_window(30, 30), max_area=3)
    expected = ops.area_attention(*leaves, mask=window[None, None], max_area=3)
    assert isinstance(found, Tensor)
    assert isinstance(expected, Tensor)
    grad = inputs(found.shape)[0]
    both = [[x, *torch.autograd.grad(x, leaves, grad)] for x in (found, expected)]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    single = ops.attention(*leaves, mods.alibi(SLOPES.double()), mask_mod=mods.causal(), max_area=1)
    torch.testing.assert_close(single, ops.attention(*leaves, mods.alibi(SLOPES.double()), mask_mod=mods.causal()), rtol=1e-9, atol=1e-11)


def test_weights_are_those_of_the_context() -> None:
    parts = heads()
    for more in ({}, {"max_area": 3}):
        context, weights = ops.attention(*parts, mods.soft_cap(3.0), mask_mod=mods.causal(), need_weights=True, **more)
        torch.testing.assert_close(weights @ parts[2], context)
        assert weights[..., 1, 2:].eq(0).all()
        torch.testing.assert_close(context, ops.attention(*parts, mods.soft_cap(3.0), mask_mod=mods.causal(), **more))


@pytest.mark.parametrize(
    ("mask", "share"),
    [
        (mods.causal(), 0.6),
        (mods.sliding_window(100), 0.25),
        (lambda b, h, q, kv: (q < 128) & (kv >= 1024), 0.1),
        (lambda b, h, q, kv: q < -1, 0),
    ],
)
def test_blocks_in_which_nothing_is_allowed_are_skipped(mask: Any, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    computed, scores = [], flex_tiles._scores

    def counted(*given: Any) -> Tensor:
        found = scores(*given)
        computed.append(found.numel())
        return found

    monkeypatch.setattr(flex_tiles, "_scores", counted)
    parts = [x.requires_grad_() for x in inputs((1, 1, 2048, D), (1, 1, 2048, D), (1, 1, 2048, E))]
    context = ops.attention(*parts, mask_mod=mask)
    forward = sum(computed)
    assert forward <= share * 2048**2
    assert forward > 0 or not share
    torch.autograd.grad(context.sum(), parts)
    assert sum(computed) == 2 * forward
    expected, _ = ops.attention(*parts, mask_mod=mask, need_weights=True)
    torch.testing.assert_close(context, expected)


def test_a_block_mask_decides_in_its_empty_and_full_blocks_whatever_its_function_says() -> None:
    counts, indices = (
        torch.tensor([[[1, 0, 2, 1, 1]]], dtype=torch.int32),
        torch.tensor([[[[2, 0, 1], [0, 1, 2], [1, 0, 2], [0, 1, 2], [2, 1, 0]]]]),
    )
    full, where = (
        torch.tensor([[[0, 2, 0, 1, 0]]], dtype=torch.int32),
        torch.tensor([[[[2, 0, 1], [1, 2, 0], [1, 0, 2], [1, 2, 0], [0, 1, 2]]]]),
    )
    mask = BlockMask.from_kv_blocks(
        counts, indices.int(), full, where.int(), BLOCK_SIZE=(64, 192), mask_mod=lambda b, h, q, kv: (q + kv) % 3 > 0, seq_lengths=(T, S)
    )
    parts = heads()
    expected = by_torch_blocks(*parts, mask)
    torch.testing.assert_close(ops.attention(*parts, block_mask=mask), expected)
    torch.testing.assert_close(ops.attention(*parts, block_mask=mask, need_weights=True)[0], expected)


def by_torch_blocks(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask) -> Tensor:
    kinds = mask.to_dense().repeat_interleave(64, -2)[..., :T, :].repeat_interleave(192, -1)[..., :S].bool()
    full = torch.zeros(5, 3, dtype=torch.bool)
    full[1, 1] = full[1, 2] = full[3, 1] = True
    full = full.repeat_interleave(64, 0)[:T].repeat_interleave(192, 1)[:, :S]
    asked = (torch.arange(T)[:, None] + torch.arange(S)) % 3 > 0
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=(kinds & asked) | full)


def test_blocks_are_those_of_torch() -> None:
    documents = mods.document(DOCUMENTS[:, :256], SOURCES[:, :512])
    shorter = {"documents": documents, "soft cap": mods.and_masks(mods.causal(), documents)}
    for name, mask in {name: shorter.get(name, mask) for name, (_, mask) in NINE.items()}.items():
        if mask is None:
            continue
        mine, theirs = ops.attention_blocks(mask, B, H, 256, 512), create_block_mask(mask, B, H, 256, 512, device="cpu")
        assert torch.equal(mine.to_dense().expand(B, H, -1, -1), theirs.to_dense()), name
        assert mine.full_kv_num_blocks is not None
        assert theirs.full_kv_num_blocks is not None
        assert torch.equal(mine.full_kv_num_blocks.expand(B, H, -1), theirs.full_kv_num_blocks), name


PEAK = """
import resource, sys
from pathlib import Path
import torch
from regard import ops
from regard.ops import mods
torch.set_num_threads(1)
length, weights = int(sys.argv[1]), sys.argv[2] == "all"
query, key, value = (torch.randn(1, 2, length, 32, requires_grad=True) for _ in range(3))
slopes = torch.ones(2, requires_grad=True)
small = [x[:, :, :64] for x in (query, key, value)]
ops.attention(*small, mods.alibi(slopes), mask_mod=mods.causal()).sum().backward()
Path("/proc/self/clear_refs").write_text("5")
before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
found = ops.attention(query, key, value, mods.alibi(slopes), mask_mod=mods.causal(), need_weights=weights)
(found[0] if weights else found).sum().backward()
peak = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")) * 1024
print(peak - before)
"""


def peak(length: int, which: str) -> int:
    done = subprocess.run([sys.executable, "-c", PEAK, str(length), which], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("length", [2048, pytest.param(8192, marks=pytest.mark.slow)])
def test_memory_is_at_most_a_tenth_of_that_of_all_scores(length: int) -> None:
    share = {2048: 0.2, 8192: 0.1}[length]  # at 2,048 what does not grow with the length, 10 MiB, still counts
    assert peak(length, "tiles") <= share * peak(length, "all")


@pytest.mark.parametrize("name", ["causal", "alibi", "relative bias", "soft cap"])
def test_bfloat16_keeps_the_error_rule(name: str) -> None:
    mod, mask = NINE[name]

    def errors(seed: int) -> list[Errors]:
        parts = inputs((B, H, T, D), (B, H, S, D), (B, H, S, E), dtype=torch.bfloat16, seed=seed)
        found = []
        for dtype, plain in ((torch.bfloat16, False), (torch.bfloat16, True), (torch.float64, False)):
            leaves = [x.to(dtype).requires_grad_() for x in parts]
            context = in_full(*leaves, mod, mask) if plain else ops.attention(*leaves, mod, mask_mod=mask)
            grad = inputs(context.shape, dtype=torch.bfloat16)[0].to(dtype)
            found.append([context.detach(), *torch.autograd.grad(context, leaves, grad)])
        room = FLOOR * torch.finfo(torch.bfloat16).eps
        return [
            Errors(float((fast - right).abs().max()), float((plain - right).abs().max()), room * float(right.abs().max()))
            for fast, plain, right in zip(*found, strict=True)
        ]

    assert_rule(errors, 3, range(4, 12))


def in_full(query: Tensor, key: Tensor, value: Tensor, mod: Any, mask: Any) -> Tensor:
    """All of it in the type of the tensors."""
    b, h = torch.arange(B)[:, None, None, None], torch.arange(H)[:, None, None]
    q, kv = torch.arange(T)[:, None], torch.arange(S)
    scores = (query * D**-0.5) @ key.mT
    scores = scores if mod is None else mod(scores, b, h, q, kv).to(scores.dtype)
    return ops.masked_softmax(scores, None if mask is None else mask(b, h, q, kv).expand(scores.shape)) @ value


def test_autocast_decides_the_type() -> None:
    parts = heads(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.attention(*parts).dtype == torch.bfloat16  # type: ignore[union-attr]
        assert ops.attention(*(x.double() for x in parts)).dtype == torch.float64  # type: ignore[union-attr]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    "more", [{}, {"mask_mod": mods.causal()}, {"mask_mod": mods.causal(), "max_area": 3}], ids=["all", "causal", "areas"]
)
def test_autocast_computes_what_half_precision_does(more: dict[str, Any], inside: bool) -> None:
    def run(kind: torch.dtype, autocast: bool) -> list[Tensor]:
        parts = [x.to(torch.bfloat16).to(kind).requires_grad_() for x in heads(torch.float32)]
        table = TABLE.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = ops.attention(*parts, lambda s, b, h, q, kv: s + table[h, (kv - q).clamp(-29, 29) + 29], **more)
            loss = out.float().square().sum()  # type: ignore[union-attr]
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return [out.detach(), *(x.grad.float() for x in (*parts, table) if x.grad is not None)]  # type: ignore[union-attr]

    for found, wanted in zip(run(torch.float32, True), run(torch.bfloat16, False), strict=True):
        assert found.dtype == wanted.dtype
        assert (found.float() - wanted.float()).norm() < 0.01 * wanted.float().norm()


LOOKS: dict[str, Callable[..., Tensor]] = {
    "index": lambda table, i, h: table[i, h],
    "row": lambda table, i, h: table[i][h],
    "embedding": lambda table, i, h: F.embedding(i, table)[h],
    "gather": lambda table, i, h: table.gather(0, i.long().expand(1, 2))[0, h],
    "index_select": lambda table, i, h: torch.index_select(table, 0, i.reshape(1))[0, h],
}
OPTIONS: list[dict[str, Any]] = [{"need_weights": True}, {"max_area": 1}, {"max_area": 2}]
LOOKED: list[tuple[str, dict[str, Any]]] = [*((look, {}) for look in LOOKS), *(("index", more) for more in OPTIONS), ("gather", OPTIONS[0])]


@pytest.mark.parametrize(("look", "more"), LOOKED)
def test_gradients_of_a_table_in_half_precision_are_summed_in_float32(
    look: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AREA_SCORES", 2**16)  # several strips
    out_grad = torch.randn(1, 2, 509, D, generator=torch.Generator().manual_seed(5))
    held = inputs((1, 2, 509, D), (11, 2), dtype=torch.bfloat16)

    def run(kind: torch.dtype) -> Tensor:
        x, table = (part.to(kind) for part in held)
        table.requires_grad_()
        found = ops.attention(x, x, x, lambda s, b, h, q, kv: s + LOOKS[look](table, (kv - q).clamp(-5, 5) + 5, h), **more)
        context = found[0] if isinstance(found, tuple) else found
        (context.double() * out_grad).sum().backward()
        assert table.grad is not None
        return table.grad.double()

    wanted = run(torch.float64)
    assert (run(torch.bfloat16) - wanted).norm() < 0.02 * wanted.norm()


def test_several_gradients_at_once() -> None:
    parts = [x.requires_grad_() for x in inputs((1, 2, 13, D), (1, 2, 17, D), (1, 2, 17, E))]
    slope = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    context = ops.attention(*parts, lambda s, b, h, q, kv: s - slope * (q - kv), mask_mod=mods.causal(4))
    assert isinstance(context, Tensor)
    grads = inputs((5, *context.shape))[0]
    together = torch.autograd.grad(context, [*parts, slope], grads, is_grads_batched=True, retain_graph=True)
    for n, grad in enumerate(grads):
        one = torch.autograd.grad(context, [*parts, slope], grad, retain_graph=True)
        for found, wanted in zip(together, one, strict=True):
            torch.testing.assert_close(found[n], wanted)


def test_a_tensor_that_cannot_be_found_is_refused() -> None:
    class Twice(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0] * 2

    slope = torch.ones((), requires_grad=True)
    with pytest.raises(ConfigError, match=r"inside a torch.autograd.Function"):
        ops.attention(*heads(torch.float32), lambda s, b, h, q, kv: s + Twice.apply(slope))


def test_a_function_is_tried_once_for_each_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mod_calls, "_KNOWN", {})
    calls = []
    monkeypatch.setattr(mod_calls, "_vmapped", lambda mod, name: calls.append(name) or mod)
    for slope in (0.5, 0.5, 0.25, 0.25):
        ops.attention(*heads(torch.float32), lambda s, b, h, q, kv, slope=slope: s + slope * q)
    assert calls == ["score_mod"] * 2
    for _ in range(2):
        ops.attention(*heads(torch.float32), mods.in_order(mods.soft_cap(2.0)))
    assert calls == ["score_mod"] * 3
    for _ in range(2):  # with a table also at other values
        ops.attention(*heads(torch.float32), mods.in_order(mods.alibi(SLOPES)))
    assert calls == ["score_mod"] * 5


def gate_helper(h: Tensor) -> Tensor:
    return GATE[h, 0]


def by_gate_helper(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return score * gate_helper(h)


GATE = torch.rand(H, 5, generator=LEARNED)


def assert_scaled_by_norms(mod: Any, gate: Tensor) -> None:
    query, key, value = inputs((1, H, 13, D), (1, H, 17, D), (1, H, 17, E), dtype=torch.float32)
    found = ops.attention(query, key, value, mod)
    torch.testing.assert_close(found, ops.attention(query * gate.norm(dim=-1)[:, None, None], key, value))


def run_small(mod: Any, size: int = H) -> Any:
    return ops.attention(*inputs((1, size, 13, D), (1, size, 17, D), (1, size, 17, E), dtype=torch.float32), mod)


def test_a_function_with_another_value_inside_is_tried_anew() -> None:
    def make(norm: bool) -> Any:
        return lambda score, b, h, q, kv: score * (GATE[h].norm() if norm else GATE[h, 0])

    run_small(make(False))
    assert_scaled_by_norms(make(True), GATE)


def test_a_function_whose_helper_is_defined_anew_is_tried_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    run_small(by_gate_helper)
    monkeypatch.setitem(globals(), "gate_helper", lambda h: GATE[h].norm())
    assert_scaled_by_norms(by_gate_helper, GATE)


def test_a_table_of_zeros_or_a_single_head_tells_nothing_of_others() -> None:
    def make(gate: Tensor) -> Any:
        return lambda score, b, h, q, kv: score * gate[h].norm()

    run_small(make(torch.zeros(H, 5)))
    assert_scaled_by_norms(make(GATE), GATE)

    def by_last(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return score * GATE[h.max()].norm()

    run_small(by_last, size=1)
    assert_scaled_by_norms(by_last, GATE)


def test_functions_that_call_each_other_or_hold_unknown_things_are_described_or_not() -> None:
    def again(score: Tensor, depth: int = 0) -> Tensor:
        return score if depth else again(score, 1)

    def key(thing: Any) -> object:
        return mod_calls._key(thing, (2, 3, 5, 7), torch.float32)

    assert key(again) == key(again) is not None
    assert key(lambda score: torch.where(score > 0, min(1, 2), score)) is not None
    for unknown in (object(), [].append, torch.nn.Identity(), warnings):
        assert key(lambda score, held=unknown: score) is None
    assert key(lambda score, n=1: n) != key(lambda score, n=True: n)


def test_tables_are_looked_up_along_diagonals() -> None:
    table, (q, kv) = torch.randn(3, 40), (torch.arange(7)[:, None], torch.arange(11))
    h = torch.tensor([[[1]], [[2]]])
    for index in ((h, kv - q + 9), (h, (kv - q).clamp(-2, 3) + 5), (h, q + kv), (h, q), (torch.tensor(1), kv), (h, torch.tensor(3))):
        found = mod_calls.Captured({}, None).run(lambda i=index: table[i])
        assert torch.equal(found, table[index])
    assert mod_calls._diagonals(kv - q) is not None
    assert mod_calls._diagonals(kv + q) is None


class Cuda:
    """Stands for PyTorch's kernels, and keeps what it was given."""

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        self.given, self.options = tensors, options
        found = by_torch(*tensors[:3], tensors[3], tensors[4] and tensors[4].mask_mod, **options)
        return found


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    stand_in = Cuda()
    monkeypatch.setattr(module, "_is_fused", lambda query: True)
    monkeypatch.setattr(module, "_flex_attention", lambda: stand_in)
    return stand_in


def test_a_gpu_is_handed_over_to_flex_attention(cuda: Cuda) -> None:
    parts, mod = heads(torch.float32), mods.soft_cap(2.0)
    context, lse = ops.attention(*parts, mod, mask_mod=mods.causal(), scale=0.5, return_lse=True)
    assert isinstance(cuda.given[4], BlockMask)
    assert cuda.given[3] is mod
    assert cuda.options["scale"] == 0.5
    monkey = ops.attention(*parts, mod, mask_mod=mods.causal(), scale=0.5, return_lse=True, need_weights=True)
    torch.testing.assert_close((context, lse), (monkey[0], monkey[2]))
    torch.testing.assert_close(ops.attention(*parts), ops.attention(*parts, need_weights=True)[0])


@pytest.mark.parametrize("sizes", [(0, 2, 3, 3), (2, 2, 0, 3), (2, 2, 3, 0)])
def test_a_gpu_takes_empty_batches_and_lengths(cuda: Cuda, sizes: tuple[int, ...]) -> None:
    batch, heads, target, source = sizes
    query, key = torch.randn(batch, heads, target, 4), torch.randn(batch, heads, source, 4)
    context = ops.attention(query, key, key, mask_mod=mods.causal())
    assert torch.equal(context, torch.zeros(batch, heads, target, 4))
    assert not hasattr(cuda, "given")  # a block mask needs sizes of at least 1


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # by torch.compile itself
def test_a_gpu_computes_and_trains() -> None:
    parts = [x.to("cuda", torch.float32).requires_grad_() for x in inputs((B, H, 256, 32), (B, H, 256, 32), (B, H, 256, 32))]
    slopes = mods.alibi_slopes(H, device="cuda")
    context = ops.attention(*parts, mods.alibi(slopes), mask_mod=mods.causal())
    expected, _ = ops.attention(*parts, mods.alibi(slopes), mask_mod=mods.causal(), need_weights=True)
    torch.testing.assert_close(context, expected, rtol=1e-2, atol=1e-2)  # TF32
    grads = [torch.autograd.grad(x.square().sum(), parts) for x in (context, expected)]
    torch.testing.assert_close(*grads, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mods.alibi(torch.ones(2, 2)), r"slopes must be \(H,\), found \(2, 2\)"),
        (lambda: mods.alibi_slopes(0), "num_heads must be at least 1"),
        (lambda: mods.relative_bias(torch.ones(2, 4)), "an odd number of distances"),
        (lambda: mods.soft_cap(0.0), "cap must be a number above 0"),
        (lambda: mods.sliding_window(-1), "must be at least 0"),
        (lambda: mods.document(torch.ones(3)), r"targets must be \(B, T\)"),
        (lambda: mods.prefix_lm(torch.ones(3, 1)), r"lengths must be \(B,\)"),
        (lambda: mods.padding(torch.ones(3, 1)), r"lengths must be \(B,\)"),
        (mods.and_masks, "at least one mask"),
        (mods.or_masks, "at least one mask"),
        (lambda: mods.alibi([0.5]), r"slopes must be a tensor \(H,\), found list"),
        (lambda: mods.document([[0, 0]]), r"targets must be a tensor \(B, T\), found list"),
        (lambda: mods.alibi_slopes(1.5), "num_heads must be a whole number, found 1.5"),
        (lambda: mods.soft_cap("2"), "cap must be a number above 0, found '2'"),
        (lambda: mods.soft_cap(None), "cap must be a number above 0, found None"),
        (lambda: mods.causal(0.5), "offset must be a whole number, found 0.5"),
        (lambda: mods.sliding_window(2, None), "right must be a whole number, found None"),
        (lambda: mods.and_masks(mods.causal(), 3), "and_masks: expected functions, found int"),
        (lambda: mods.in_order(None), "in_order: expected functions, found NoneType"),
        (mods.in_order, "at least one change of scores"),
        (lambda: ops.attention_blocks(None, 1, 1, 2, 2), "mask_mod must be a function .* found NoneType"),
        (lambda: ops.attention_blocks(mods.causal(), 1, 1, 2, 2, device="nowhere"), "device 'nowhere' cannot be used"),
    ],
)
def test_a_ready_function_refuses_what_means_nothing(call: Any, message: str) -> None:
    with pytest.raises((ConfigError, ShapeError), match=message):
        call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": None}, "query must be a tensor, found NoneType"),
        ({"key": torch.eye(3).to_sparse()}, "key must be a dense tensor, found a sparse one"),
        ({"value": torch.nested.nested_tensor([torch.ones(3)], layout=torch.jagged)}, "value must be a dense tensor, found a nested one"),
        ({"query": torch.ones(1, 1, 2, 3).to(torch.float8_e4m3fn)}, "query holds torch.float8_e4m3fn"),
        ({"scale": "2"}, "scale must be a number or a tensor, found '2'"),
        ({"scale": True}, "scale must be a number or a tensor, found True"),
    ],
)
def test_what_is_no_dense_tensor_or_no_number_is_named(change: dict[str, Any], message: str) -> None:
    x = torch.ones(1, 1, 2, 3)
    with pytest.raises((ConfigError, ShapeError), match=message):
        ops.attention(**{"query": x, "key": x, "value": x, **change})


def test_a_call_on_the_meta_device_gives_its_shape() -> None:
    query, key, value = (torch.empty(2, 3, *rest, device="meta") for rest in ((7, 5), (11, 5), (11, 13)))
    found = ops.attention(query, key, value, mods.soft_cap(2.0), mask_mod=mods.causal())
    assert (found.shape, found.is_meta) == ((2, 3, 7, 13), True)


def test_slopes_are_those_of_the_published_code() -> None:
    assert mods.alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert mods.alibi_slopes(12).tolist() == pytest.approx([2.0**-n for n in range(1, 9)] + [2.0 ** (-n / 2) for n in (1, 3, 5, 7)])


def _loop_gradients(attend: Callable[..., Any], biases: list[torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    y = x
    for bias in biases:
        y = attend(y, y, y, lambda score, _, h, i, j: score + bias[h, i - j + 5])  # noqa: B023 - what is tested
    return list(torch.autograd.grad(y.square().sum(), [x, *biases]))


def test_a_variable_of_a_loop_is_the_one_of_its_turn_in_the_backward_pass_too() -> None:
    x = torch.randn(1, 2, 6, 4, dtype=torch.float64, requires_grad=True)
    biases = [torch.randn(2, 11, dtype=torch.float64, requires_grad=True) for _ in range(2)]

    def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Callable[..., torch.Tensor]) -> torch.Tensor:
        i, j = torch.arange(6)[:, None], torch.arange(6)
        return torch.softmax(mod(q @ k.mT / 2, 0, torch.arange(2)[:, None, None], i, j), -1) @ v

    for found, expected in zip(_loop_gradients(ops.attention, biases, x), _loop_gradients(whole, biases, x), strict=True):
        torch.testing.assert_close(found, expected)


def test_what_changes_before_the_backward_pass_is_an_error_and_no_wrong_gradient() -> None:
    class Scaled:
        factor = 0.1

        def __call__(self, score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            return score * self.factor

    mod, x = Scaled(), torch.randn(1, 2, 6, 4, requires_grad=True)
    out = ops.attention(x, x, x, mod)
    mod.factor = 3.0
    with pytest.raises(ConfigError, match="gives other scores in the backward pass than in the forward pass"):
        out.sum().backward()
    mod.factor = 0.1
    ops.attention(1e5 * x, x, x, mod).sum().backward()  # sums of rounded weights far from 1 are no such error


def test_what_changes_before_the_backward_pass_of_areas_is_an_error_too() -> None:
    x, factors = torch.randn(1, 2, 6, 4, requires_grad=True), {"all": 1.0}

    def mod(score: Tensor, *_: Tensor) -> Tensor:
        return torch.where(score > 1e9, -torch.inf, score * factors["all"])

    ops.attention(x, x, x, mod, mask_mod=mods.causal(), max_area=2).sum().backward()
    out = ops.attention(x, x, x, mod, mask_mod=mods.causal(), max_area=2)
    factors["all"] = 2.0
    with pytest.raises(ConfigError, match="gives other scores in the backward pass than in the forward pass"):
        out.sum().backward()


@pytest.mark.parametrize("sizes", [(None, None, 5, 5), (2, 3, "5", 5), (2, 3, 5, 2.5), (0, 1, 5, 5)], ids=str)
def test_sizes_of_a_block_mask_are_whole_numbers(sizes: Any) -> None:
    with pytest.raises(ConfigError, match="attention_blocks: sizes must be whole numbers of at least 1, found"):
        ops.attention_blocks(mods.causal(), *sizes)


@pytest.mark.filterwarnings("ignore")
def test_a_function_that_was_never_tried_is_refused_in_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mod_calls, "_KNOWN", {})
    query = torch.randn(1, 2, 3, 5)

    def call(query: Tensor) -> Tensor:
        return ops.attention(query, query, query, lambda score, b, h, q, kv: score + q - kv)

    with pytest.raises(ConfigError, match=r"score_mod cannot be tried under torch\.jit\.trace; call attention with it once before"):
        torch.jit.trace(call, (query,), check_trace=False)
    call(query)
    program = torch.jit.trace(call, (query,), check_trace=False)
    torch.testing.assert_close(program(2 * query), call(2 * query))


@pytest.mark.parametrize(("heads", "length"), [((1, 4), 1024), ((3, 4), 128), ((1, 9), 128), ((4, 8), 100)])
@pytest.mark.parametrize("own", [False, True], ids=["one mask", "a mask for each head"])
def test_blocks_of_each_head_are_those_of_that_head(heads: tuple[int, int], length: int, own: bool) -> None:
    count = -(-length // 128)
    kept = torch.rand(*heads, count, count, generator=torch.Generator().manual_seed(3)) < 0.5
    kept |= torch.eye(count, dtype=torch.bool)
    order = kept.int().argsort(dim=-1, descending=True, stable=True).int()
    blocks = BlockMask.from_kv_blocks(kept.sum(-1).int(), order, BLOCK_SIZE=128, seq_lengths=(length, length))
    if not own:
        blocks = create_block_mask(lambda b, h, q, kv: q >= kv, *heads, length, length, device="cpu")
    given = [x.requires_grad_() for x in inputs(*[(*heads, length, 5)] * 3, dtype=torch.float32)]
    allowed = kept.repeat_interleave(128, -1).repeat_interleave(128, -2)[..., :length, :length] if own else ops.causal_mask(length, length)
    expected = F.scaled_dot_product_attention(*given, attn_mask=allowed)
    found = ops.attention(*given, block_mask=blocks)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    gradients = [torch.autograd.grad(out.square().sum(), given) for out in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)
