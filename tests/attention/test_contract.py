"""What every mechanism promises, held against one table of all of them (`tests.attention.mechanisms`).

That two ways to write the same thing agree is tested beside the mechanisms: areas of one item are the items (test_attention,
test_multihead, tests/ops/test_reference); additive is concat, general with the identity is dot, a window as wide as the source or a
Gaussian without end is global (test_attention); one hop is self-attention pooling (test_structured); co-attention of an input with itself
is self-attention (test_nonlocal, test_crossed).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import regard.attention
from regard import ops
from regard.attention import (
    AdditiveScore,
    Areas,
    Attention,
    HardChoice,
    HardOutput,
    LocationScore,
    MultiHeadAttention,
    ScoreFunctionEstimator,
)
from regard.errors import ConfigError, ShapeError
from tests.attention.mechanisms import (
    DK,
    DQ,
    GRID,
    MAX_AREA,
    MAX_GRID_AREA,
    MECHANISMS,
    SCORES,
    A,
    B,
    D,
    H,
    Mechanism,
    Uniform,
    attention,
    build,
    expected,
    inputs,
)
from tests.reference import mechanisms as reference

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS = ("none", "padding", "causal", "queries", "empty rows", "nothing")
OF_KEYS = ("none", "padding", "nothing")
POISON = (math.nan, math.inf, -math.inf)


def cases(*kinds: str) -> Any:
    """Every mechanism with every kind of mask that it takes."""
    found = [(name, kind) for name, row in MECHANISMS.items() for kind in kinds if kind in OF_KEYS or not row.padding_only]
    return pytest.mark.parametrize(("name", "kind"), found, ids=[f"{name}-{kind.replace(' ', '_')}" for name, kind in found])


EVERY = pytest.mark.parametrize("name", MECHANISMS)


def masked(kind: str, mechanism: Mechanism) -> tuple[Tensor | None, Tensor]:
    """The mask of a kind as it is passed, and as (B, T, S)."""
    target, source = mechanism.target or mechanism.source, mechanism.source
    full = (B, target, source)
    mask = None
    if kind == "padding":
        mask = ops.length_mask(torch.tensor([source, 4, 0]), source).unsqueeze(1)
    elif kind == "causal":
        mask = ops.causal_mask(target, source)[None]
    elif kind == "nothing":
        mask = torch.zeros(full if not mechanism.padding_only else (B, 1, source), dtype=torch.bool)
    elif kind in ("queries", "empty rows"):
        mask = torch.rand(full, generator=torch.Generator().manual_seed(41)) < 0.6
        mask[:, :, 1] = True
        mask[0, :, 2] = False  # a key that no query may look at
    if kind == "empty rows":
        assert mask is not None
        mask[0, 1], mask[1, 3], mask[2] = False, False, False
    return mask, (torch.ones(1, dtype=torch.bool) if mask is None else mask).expand(full)


class Run(NamedTuple):
    """What one call gave, and the gradients of inputs and parameters."""

    context: Tensor
    weights: Tensor | None
    gradients: dict[str, Tensor]


def run(module: Uniform, tensors: tuple[Tensor, ...], mask: Tensor | None, need: bool, rows: Tensor | None = None) -> Run:
    """Call, and send a fixed gradient back into context and weights; into the context of `rows` (B, T) only, if these are given."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    torch.default_generator.manual_seed(43)
    context, weights = module(*leaves, mask, need)
    outputs, gradients = [], []
    for output in (context,) if rows is not None or weights is None else (context, weights):
        if output.requires_grad:
            back = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view_as(output)
            outputs.append(output)
            gradients.append(back if rows is None else back.masked_fill(~rows.unsqueeze(-1), 0.0))
    names = ["query", "key", "value", *(name for name, _ in module.named_parameters())]
    sources = [*leaves, *module.parameters()]
    found = torch.autograd.grad(outputs, sources, gradients, allow_unused=True)
    found = [torch.zeros_like(x) if g is None else g for x, g in zip(sources, found, strict=True)]
    return Run(context.detach(), None if weights is None else weights.detach(), dict(zip(names, found, strict=True)))


@functools.cache
def made(name: str, dtype: torch.dtype) -> tuple[Uniform, tuple[Tensor, ...]]:
    """A mechanism and what it is called with; nobody changes either."""
    return build(MECHANISMS[name], dtype), inputs(MECHANISMS[name], dtype)


@functools.cache
def clean(name: str, kind: str, dtype: torch.dtype, need: bool) -> Run:
    """What a mechanism makes of finite numbers under a kind of mask."""
    return run(*made(name, dtype), masked(kind, MECHANISMS[name])[0], need)


def assert_same(found: Run, wanted: Run) -> None:
    """Bit for bit, in output, weights and gradients."""
    assert torch.equal(found.context, wanted.context)
    assert (found.weights is None) == (wanted.weights is None)
    if found.weights is not None and wanted.weights is not None:
        assert torch.equal(found.weights, wanted.weights)
    assert {name for name, g in found.gradients.items() if not torch.equal(g, wanted.gradients[name])} == set()


def poisoned(tensors: tuple[Tensor, ...], where: Tensor) -> tuple[Tensor, ...]:
    """Put NaN, inf and -inf in turn into the keys and values at `where` (B, S)."""
    query, key, value = (x.clone() for x in tensors)
    for n, (b, s) in enumerate(where.nonzero().tolist()):
        key[b, s] = value[b, s] = POISON[n % 3]
    return query, key, value


def over_heads(rows: Tensor, weights: Tensor) -> Tensor:
    """(B, T, ...) as an index for weights (B, T, S) or (B, H, T, S)."""
    return rows if weights.dim() == 3 else rows.unsqueeze(1).expand(weights.shape[:3] if rows.dim() == 2 else weights.shape)


@cases(*KINDS)
def test_weights_add_up_and_are_zero_where_masked_with_zero_gradients(name, kind):
    mechanism = MECHANISMS[name]
    mask, allowed = masked(kind, mechanism)
    within = allowed if mechanism.reach is None else allowed & mechanism.reach(*allowed.shape[1:])
    for dtype in DTYPES:
        module, tensors = made(name, dtype)
        found = clean(name, kind, dtype, True)
        weights = found.weights
        assert weights is not None
        assert (weights.dtype, found.context.dtype) == (dtype, dtype)
        assert weights.shape[-2:] == allowed.shape[1:]
        assert weights[over_heads(~within, weights)].count_nonzero() == 0
        hidden = ~allowed.any(1)
        for part in ("key", "value"):
            assert found.gradients[part][hidden].count_nonzero() == 0
        assert all(g.isfinite().all() for g in found.gradients.values())

        rows = over_heads(within.any(-1), weights).to(dtype)
        total, close = weights.sum(-1), {"atol": 8 * torch.finfo(dtype).eps, "rtol": 0}
        if mechanism.sums != "free":
            assert (weights >= 0).all()
        if mechanism.sums == "one":
            torch.testing.assert_close(total, rows, **close)
        elif mechanism.sums == "some":
            torch.testing.assert_close(total, rows * (total > 0.5), **close)
        elif mechanism.sums == "below":
            assert (total <= rows + close["atol"]).all()
            assert kind == "nothing" or (total < 0.99).logical_and(rows > 0).any()  # so that one may not take it for "one"
        elif mechanism.sums == "areas":
            with torch.no_grad():
                areas = module(*tensors, mask, "areas")[1]
            grid = (1, allowed.shape[-1]) if not mechanism.fixed else GRID
            size = ops.area_spans(grid, (1, MAX_AREA) if not mechanism.fixed else MAX_GRID_AREA)[:, 2:].prod(-1)
            torch.testing.assert_close(areas.sum(-1), rows, **close)
            torch.testing.assert_close(total, (areas * size.to(dtype)).sum(-1), atol=8 * close["atol"], rtol=0)


@cases("none", "padding", "causal", "empty rows", "nothing")
def test_what_nobody_may_see_changes_nothing_bit_for_bit(name, kind):
    mechanism = MECHANISMS[name]
    mask, allowed = masked(kind, mechanism)
    hidden = ~allowed.any(1)
    for dtype in DTYPES:
        module, tensors = made(name, dtype)
        for need in (False, True):
            # Where all is seen the same call twice: it is deterministic.
            assert_same(run(module, poisoned(tensors, hidden), mask, need), clean(name, kind, dtype, need))


@cases("none", "padding", "causal", "empty rows")
def test_a_bad_number_is_seen_by_those_who_may_see_it_and_by_nobody_else(name, kind):
    mechanism = MECHANISMS[name]
    mask, allowed = masked(kind, mechanism)
    within = allowed if mechanism.reach is None else allowed & mechanism.reach(*allowed.shape[1:])
    # One key of each sentence, hidden from some of its queries; where a mask cannot do that, one of the first sentence.
    bad, per_query = torch.zeros(B, mechanism.source, dtype=torch.bool), kind not in OF_KEYS
    for b in range(B if per_query else 1):
        some = allowed[b].any(0) & ~allowed[b].all(0) if per_query else allowed[b].any(0)
        bad[b, some.nonzero()[-1:].flatten()] = True
    assert bad.any()
    blind = ~(allowed & bad.unsqueeze(1)).any(-1)
    seeing = (within & bad.unsqueeze(1)).any(-1)
    if mechanism.alone:
        blind &= ~bad.any(-1, keepdim=True)  # it is a query as well
    for dtype in DTYPES:
        module, tensors = made(name, dtype)
        for need in (False, True):
            context, weights, gradients = run(module, poisoned(tensors, bad), mask, need, blind)
            wanted = clean(name, kind, dtype, need)
            assert torch.equal(context[blind], wanted.context[blind])
            if mechanism.sums not in ("below", "some"):  # a predicted window may have closed before the bad key
                assert context[seeing].isnan().all()
            if weights is not None and wanted.weights is not None:
                assert torch.equal(weights[over_heads(blind, weights)], wanted.weights[over_heads(blind, weights)])
            good = run(module, tensors, mask, need, blind).gradients
            if per_query:
                assert {name for name, g in gradients.items() if not torch.equal(g, good[name])} == set()
                assert gradients["key"][bad].count_nonzero() == gradients["value"][bad].count_nonzero() == 0
            else:
                assert [n for n in ("query", "key", "value") if not torch.equal(gradients[n][1:], good[n][1:])] == []


@cases("none", "padding", "causal", "empty rows")
def test_without_gradients_what_may_not_be_seen_changes_nothing_either(name, kind):
    """Code may go other ways where no gradient is wanted: keys that nobody may see, and one more, as above."""
    mechanism = MECHANISMS[name]
    mask, allowed = masked(kind, mechanism)
    bad = ~allowed.any(1)
    bad[0, 3] = True
    blind, seeing = ~(allowed & bad.unsqueeze(1)).any(-1), (allowed & bad.unsqueeze(1)).all(1).any(-1)
    if mechanism.alone:
        blind &= ~(bad & allowed.any(1)).any(-1, keepdim=True)
    module, tensors = made(name, torch.float32)
    for need in (False, True):
        with torch.no_grad():
            torch.default_generator.manual_seed(43)
            plain, _ = module(*tensors, mask, need)
            torch.default_generator.manual_seed(43)
            context, weights = module(*poisoned(tensors, bad), mask, need)
        torch.testing.assert_close(plain, clean(name, kind, torch.float32, need).context, atol=1e-5, rtol=1e-5)
        assert torch.equal(context[blind], plain[blind])
        assert (weights is not None) == need
        if mechanism.sums not in ("below", "some") and mechanism.reach is None:
            assert context[seeing].isnan().any(-1).any(-1).all()


@cases("padding", "empty rows", "nothing")
def test_a_row_with_nothing_to_attend_to_is_zero_with_zero_gradients(name, kind):
    mechanism = MECHANISMS[name]
    _, allowed = masked(kind, mechanism)
    rows, sentences = ~allowed.any(-1), ~allowed.flatten(1).any(-1)
    assert rows.any()
    assert sentences.any()
    for dtype in DTYPES:
        module, _ = made(name, dtype)
        offset = torch.zeros((), dtype=dtype) if mechanism.offset is None else module.module.get_parameter(mechanism.offset).detach()
        for need in (False, True):
            context, weights, gradients = clean(name, kind, dtype, need)
            assert torch.equal(context[rows], offset.expand_as(context[rows]))
            assert weights is None or weights[over_heads(rows, weights)].count_nonzero() == 0
            assert all(g.isfinite().all() for g in gradients.values())
            assert mechanism.alone or gradients["query"][rows].count_nonzero() == 0
            assert gradients["key"][sentences].count_nonzero() == gradients["value"][sentences].count_nonzero() == 0


def test_torchs_multi_head_attention_returns_nan_where_ours_returns_its_bias():
    """Asked for weights; torch's fused path, without them, is finite by grace of the kernel."""
    theirs = nn.MultiheadAttention(6, 2, batch_first=True)
    ours = MultiHeadAttention(6, 2)
    source = torch.randn(B, 5, 6)
    hidden = torch.arange(5) >= torch.tensor([5, 3, 0]).unsqueeze(1)
    context, weights = theirs(source, source, source, key_padding_mask=hidden, need_weights=True)
    assert weights[2].isnan().all()
    assert context[2].isnan().all()
    found = ours(source, source, source, key_mask=~hidden, need_weights=True)
    assert found.weights[2].count_nonzero() == 0
    assert torch.equal(found.context[2], ours.output.bias.expand(5, 6))


@cases("none", "padding", "causal", "empty rows", "nothing")
def test_without_weights_it_is_the_same_to_rounding_and_equals_the_float64_loops(name, kind):
    mechanism = MECHANISMS[name]
    mask, allowed = masked(kind, mechanism)
    for dtype in DTYPES:
        _, tensors = made(name, dtype)
        module = build(mechanism, dtype).double()
        exact = run(module, tuple(x.double() for x in tensors), mask, True)
        fused, plain = clean(name, kind, dtype, False), clean(name, kind, dtype, True)
        if mechanism.reference is not None and not (mechanism.rough and dtype.itemsize == 2):
            context, weights = expected(mechanism, module, *tensors, allowed)
            if dtype == torch.float64:
                torch.testing.assert_close(exact.context, context, atol=1e-12, rtol=1e-12)
                torch.testing.assert_close(exact.weights, weights, atol=1e-12, rtol=1e-12)
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(plain.context.double(), context, atol=64 * eps, rtol=8 * eps)
        if dtype == torch.float64:
            torch.testing.assert_close(fused.context, plain.context, atol=1e-12, rtol=1e-12)
            continue
        # The error against float64 is at most twice that of the plain computation. One rounding is granted: the plain one may be lucky.
        assert_no_worse(fused.context, plain.context, exact.context, 2)
        # Of the inputs only: the gradient of a bias on keys is zero but for rounding, and one rounding is no measure for another.
        exact = run(module, tuple(x.double() for x in tensors), mask, False)
        plain = run(made(name, dtype)[0], tensors, mask, True, torch.ones(allowed.shape[:2], dtype=torch.bool))
        for part in ("query", "key", "value"):
            assert_no_worse(fused.gradients[part], plain.gradients[part], exact.gradients[part], 3)


def assert_no_worse(fused: Tensor, plain: Tensor, exact: Tensor, factor: int) -> None:
    """Hold the largest error against `factor` times that of the plain computation."""
    if exact.numel() == 0:
        return
    allowed = factor * (plain.double() - exact).abs().max() + torch.finfo(plain.dtype).eps * exact.abs().max()
    assert (fused.double() - exact).abs().max() <= allowed


@pytest.mark.parametrize("name", [name for name, row in MECHANISMS.items() if row.reference])  # what is drawn depends on how much is
def test_padding_a_sentence_and_its_neighbours_change_nothing_but_rounding(name):
    """Bit for bit it cannot be: a product of another size may be summed in another order. It is within 8 units of the last place."""
    mechanism = MECHANISMS[name]
    module, tensors = made(name, torch.float64)
    mask, _ = masked("padding", mechanism)
    whole = clean(name, "padding", torch.float64, True)
    assert whole.weights is not None
    for b, length in enumerate((mechanism.source, mechanism.source if mechanism.fixed else 4)):
        query, key, value = (x[b : b + 1] for x in tensors)
        alone = run(module, (query, key[:, :length], value[:, :length]), mask[b : b + 1, :, :length], True)
        rows = slice(None) if mechanism.target else slice(length)
        assert alone.weights is not None
        close = {"atol": 8 * torch.finfo(torch.float64).eps, "rtol": 8 * torch.finfo(torch.float64).eps}
        torch.testing.assert_close(alone.context[0], whole.context[b, rows], **close)
        torch.testing.assert_close(alone.weights[0], whole.weights[b, ..., rows, :length], **close)


@pytest.mark.parametrize("name", [name for name, row in MECHANISMS.items() if not row.ordered])
def test_reordering_the_keys_reorders_the_weights_and_leaves_the_context(name):
    mechanism = MECHANISMS[name]
    module, (query, key, value) = made(name, torch.float64)
    order = torch.tensor([3, 1, 0, 2, 6, 5, 4])
    mask, _ = masked("padding" if mechanism.padding_only else "queries", mechanism)
    context, weights, _ = run(module, (query, key[:, order], value[:, order]), mask[..., order], True)
    plain = clean(name, "padding" if mechanism.padding_only else "queries", torch.float64, True)
    if mechanism.alone and mechanism.target is None:
        context, weights = context[:, order.argsort()], weights[:, order.argsort()]  # the keys were the queries
    torch.testing.assert_close(context, plain.context)
    torch.testing.assert_close(weights, plain.weights[..., order])


@pytest.mark.parametrize("name", [name for name, row in MECHANISMS.items() if not row.padding_only or row.reach is not None])
def test_under_a_causal_mask_nobody_peeks_ahead(name):
    """Of the last keys, which only as many queries may see, the queries before know nothing, bit for bit."""
    mechanism = MECHANISMS[name]
    module, (query, key, value) = made(name, torch.float32)
    mask = None if mechanism.padding_only else masked("causal", mechanism)[0]  # or its own window looks back only
    plain = clean(name, "none" if mechanism.padding_only else "causal", torch.float32, False).context
    key, value = key.clone(), value.clone()
    key[:, -2:] += 1
    value[:, -2:] += 1
    with torch.no_grad():
        torch.default_generator.manual_seed(43)
        context = module(query, key, value, mask, False)[0]
    assert torch.equal(context[:, :-2], plain[:, :-2])
    assert name == "location" or not torch.equal(context[:, -1], plain[:, -1])  # it cannot reach so far


@pytest.mark.parametrize("name", [name for name, row in MECHANISMS.items() if row.step is not None])
def test_step_by_step_on_a_cache_equals_all_at_once(name):
    mechanism = MECHANISMS[name]
    module, tensors = made(name, torch.float64)
    mask, _ = masked("padding", mechanism)
    with torch.no_grad():
        context, weights = mechanism.step(module.module, *tensors, mask)
    whole = clean(name, "padding", torch.float64, True)
    torch.testing.assert_close(context, whole.context)
    torch.testing.assert_close(weights, whole.weights)


@EVERY
def test_any_axis_may_be_empty_or_single(name):
    mechanism = MECHANISMS[name]
    module = made(name, torch.float32)[0]
    target, source = mechanism.target or mechanism.source, mechanism.source
    sizes = [(0, target, source), (1, 1, source), (B, 0, source)] + ([] if mechanism.fixed else [(B, target, 0), (1, 1, 1), (B, 0, 0)])
    for batch, count, sources in sizes:
        targets = sources if mechanism.target is None else count if not mechanism.alone else mechanism.target
        tensors = inputs(mechanism, torch.float32, (batch, targets, sources))
        for mask, need in ((None, False), (torch.ones(batch, 1, sources, dtype=torch.bool), True)):
            context, weights, gradients = run(module, tensors, mask, need)
            assert context.shape[:2] == (batch, targets)
            assert weights is None or (weights.shape[0], *weights.shape[-2:]) == (batch, targets, sources)
            assert sources or mechanism.offset or not context.any()
            assert all(part.isfinite().all() for part in (context, *gradients.values()))


@EVERY
def test_layout_in_memory_changes_nothing_but_rounding(name):
    mechanism = MECHANISMS[name]
    module, (query, key, value) = made(name, torch.float64)
    mask, _ = masked("padding" if mechanism.padding_only else "queries", mechanism)
    straight = run(module, (query, key[:1].expand_as(key).contiguous(), value), mask, True)
    crooked = [query.mT.contiguous().mT, key[:1].expand_as(key), torch.stack([value, value], -1)[..., 0]]
    torch.default_generator.manual_seed(43)
    found = module(*crooked, mask.mT.contiguous().mT, True)
    torch.testing.assert_close(found, (straight.context, straight.weights))


@EVERY
def test_gradients_equal_finite_differences_under_a_mask_with_empty_rows(name):
    mechanism = MECHANISMS[name]
    module, tensors = made(name, torch.float64)
    mask, _ = masked("padding" if mechanism.padding_only else "empty rows", mechanism)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        torch.default_generator.manual_seed(43)
        found = module(query, key, value, mask, True)
        return tuple(part for part in found if part.requires_grad)

    leaves = [x.clone().requires_grad_(x.numel() > 0) for x in tensors]
    assert torch.autograd.gradcheck(attend, leaves, fast_mode=True)


# Errors.


@EVERY
def test_a_mask_that_does_not_fit_is_refused_with_both_shapes_and_one_of_numbers_by_its_type(name):
    mechanism = MECHANISMS[name]
    module, tensors = made(name, torch.float32)
    for shape in ((B, 1, mechanism.source + 1), (B + 1, 1, mechanism.source)):
        with pytest.raises(ShapeError) as caught:
            module(*tensors, torch.ones(shape, dtype=torch.bool), False)
        assert f"{shape[0]}" in str(caught.value)
        assert f"{shape[-1]})" in str(caught.value)
        assert f"{B}" in str(caught.value)
        assert f"{mechanism.source}" in str(caught.value)
    with pytest.raises(ShapeError, match=r"bool.*float32"):
        module(*tensors, torch.ones(B, 1, mechanism.source), False)


@EVERY
def test_inputs_that_do_not_fit_are_refused_with_both_shapes(name):
    mechanism = MECHANISMS[name]
    module, (query, key, value) = made(name, torch.float32)
    wrong = {} if name == "location" else {"key": (query, key[..., :-2], value)}  # its scores ask how many keys there are, no more
    if not mechanism.alone:
        sentences = 2 if isinstance(module.module, nn.Identity) else 1  # a pure function broadcasts one to all, a module does not
        wrong |= {"query": (query[..., :-2], key, value), "batch": (query[:sentences], key, value)}
    if not mechanism.shared:
        wrong["value"] = (query, key, value[:, :-1])
    for what, tensors in wrong.items():
        with pytest.raises(ShapeError) as caught:
            module(*tensors, None, False)
        found, fitting = next((x.shape, y.shape) for x, y in zip(tensors, (query, key, value), strict=True) if x is not y)
        axis = next(n for n in range(3) if found[n] != fitting[n])
        numbers = {int(number) for number in re.findall(r"\d+", str(caught.value))}
        missing = {found[axis], fitting[axis]} - numbers
        # Where heads are split off, the message speaks of the size of a head.
        assert not missing or {size // H for size in missing} <= numbers, (what, str(caught.value))


# The table itself, and the file format.

NO_MECHANISM = {"ScoreFunctionEstimator": "a term of the loss", "NGramReadout": "weighs nothing; tests/attention/test_ngram.py"}
PARAMETERS = {
    "AdditiveScore": {"key.bias": (A,), "key.weight": (A, DK), "query.weight": (A, DQ), "vector": (A,)},
    "Areas": {},
    "Attention": {},
    "ConcatScore": {"vector": (A,), "weight": (A, DQ + DK)},
    "CosineScore": {"sharpness": ()},
    "CrossedAttention": {"left.score.key.weight": (DQ, DK), "right.score.key.weight": (DK, DQ)},
    "DotScore": {},
    "GeneralScore": {"key.weight": (DQ, DK)},
    "HardChoice": {},
    "KeyValueAttention": {
        **{f"{part}.weight": (DK, DK) for part in ("key", "predict", "query", "read")},
        "vector": (DK,),
    },
    "LocationScore": {"query.weight": (5, DQ)},
    "MonotonicWindow": {},
    "MultiHeadAttention": {
        **{f"{part}.bias": (H * D,) for part in ("key", "query", "value")},
        **{f"{part}.weight": (H * D, DK) for part in ("key", "value")},
        "query.weight": (H * D, DQ),
        "output.weight": (DQ, H * D),
        "output.bias": (DQ,),
    },
    "NGramReadout": {"output.weight": (2, 6)},
    "NonLocal": {"key.weight": (5, DQ), "output.weight": (DQ, 5), "query.weight": (5, DQ), "value.weight": (5, DQ), "vector": (10,)},
    "PredictiveWindow": {"hidden.weight": (DQ, DQ), "position.weight": (1, DQ)},
    "ScoreFunctionEstimator": {"baseline": ()},
    "StructuredAttention": {"first.weight": (A, DK), "second.weight": (2, A)},
}
BARE = {
    "Areas": lambda: Areas(2),
    "Attention": lambda: Attention(regard.attention.DotScore()),
    "CrossedAttention": MECHANISMS["crossed_left"].build,
    "DotScore": regard.attention.DotScore,
    "HardChoice": HardChoice,
    "KeyValueAttention": MECHANISMS["key_value"].build,
    "MonotonicWindow": lambda: regard.attention.MonotonicWindow(2),
    "MultiHeadAttention": MECHANISMS["multi_head"].build,
    "NGramReadout": lambda: regard.attention.NGramReadout(6, 4),
    "NonLocal": lambda: regard.attention.NonLocal(DQ, 5, form="concat"),
    "PredictiveWindow": lambda: regard.attention.PredictiveWindow(DQ, 2),
    "ScoreFunctionEstimator": ScoreFunctionEstimator,
    "StructuredAttention": MECHANISMS["structured"].build,
    **{type(make()).__name__: make for make, _ in SCORES.values()},
}


def modules() -> dict[str, type]:
    """The classes that regard.attention offers as modules."""
    things = {name: getattr(regard.attention, name) for name in regard.attention.__all__}
    return {name: thing for name, thing in things.items() if isinstance(thing, type) and issubclass(thing, nn.Module)}


def test_every_module_of_the_package_is_part_of_a_mechanism_of_the_table():
    used = {type(part).__name__ for name in MECHANISMS for part in made(name, torch.float64)[0].modules()}
    assert set(modules()) - used == set(NO_MECHANISM)


def test_parameter_names_and_shapes_are_those_of_the_file_format():
    """Those of the learned areas are in test_area."""
    found = {name: {key: tuple(value.shape) for key, value in BARE[name]().state_dict().items()} for name in modules()}
    assert found == PARAMETERS


# Every score with every window, over items and areas, soft and hard.

WINDOWS = {"global": None, "local_m": ("monotonic", 2), "local_p": ("predictive", 2)}
AREAS = {"items": None, "line": {"max_area": 3}, "grid": {"max_area": MAX_GRID_AREA, "grid": GRID}}
CHOICES = (None, "argmax", "expected")
COMBINATIONS = [(score, window, areas) for score in SCORES for window in WINDOWS for areas in AREAS]
REFUSED = {
    **{("location", window, areas): "LocationScore" for window in WINDOWS for areas in ("line", "grid")},
    **{(score, window, "grid"): "Window" for score in SCORES if score != "location" for window in ("local_m", "local_p")},
}


@pytest.mark.parametrize(("score", "window", "areas"), COMBINATIONS, ids=map("-".join, COMBINATIONS))
def test_any_score_any_window_any_areas_any_choice_work_together_or_are_refused_with_a_reason(score, window, areas):
    for choice in CHOICES:
        row = attention(score, window=WINDOWS[window], areas=AREAS[areas], choice=choice, source=10 if areas == "grid" else 7, target=2)
        if (score, window, areas) in REFUSED:
            with pytest.raises(ConfigError, match=REFUSED[score, window, areas]):
                row.build()
            continue
        module = build(row)
        query, key, value = (x[:2] for x in inputs(row))
        mask = masked("queries", row)[0][:2]
        mask[1, 0] = False
        context, weights, gradients = run(module, (query, key, value), mask, True)
        expected_context, expected_weights = expected(row, module, query, key, value, mask)
        torch.testing.assert_close(context, expected_context)
        torch.testing.assert_close(weights, expected_weights)
        assert weights[~mask].count_nonzero() == context[1, 0].count_nonzero() == gradients["query"][1, 0].count_nonzero() == 0
        if choice is None:
            continue
        # In training places are drawn, and what else a choice returns is finite where there is nothing to choose from.
        module.train()
        found = module.module(query, key, value, mask=mask, position=torch.arange(2), need_weights=True, soft=torch.tensor([False, True]))
        assert isinstance(found, HardOutput)
        assert all(part.isfinite().all() for part in found)
        assert found.context[1, 0].count_nonzero() == found.weights[~mask].count_nonzero() == 0
        assert found.log_prob[1, 0] == found.entropy[1, 0] == 0


@pytest.mark.parametrize("areas", [None, "line", "grid"])
@pytest.mark.parametrize("score", [None, *SCORES])
def test_any_score_works_in_heads_with_and_without_areas_or_is_refused_with_a_reason(score, areas):
    parts = {} if areas is None else {"areas": Areas(**AREAS[areas])}
    if score is not None:
        parts["score"] = {"general": lambda: regard.attention.GeneralScore(D, D), "additive": lambda: AdditiveScore(D, D, A)}.get(
            score,
            {"concat": lambda: regard.attention.ConcatScore(D, D, A), "location": lambda: LocationScore(D, 5)}.get(score, SCORES[score][0]),
        )()
    if score == "location" and areas is not None:
        with pytest.raises(ConfigError, match="LocationScore"):
            MultiHeadAttention(DQ, H, head_dim=D, memory_dim=DK, **parts)
        return
    settings = {"areas": AREAS[areas]} if areas else {}
    row = MECHANISMS["multi_head"]
    row = dataclasses.replace(
        row,
        build=lambda: MultiHeadAttention(DQ, H, head_dim=D, memory_dim=DK, **parts),
        source=10 if areas == "grid" else 7,
    )
    module, tensors = build(row), inputs(row)
    mask, allowed = masked("empty rows", row)
    context, weights, _ = run(module, tensors, mask, True)
    own = {name: parameter.detach().numpy() for name, parameter in module.module.named_parameters()}
    for b in range(B):
        query, key, value = (x[b].numpy() for x in tensors)
        wanted = reference.multi_head(query, key, value, allowed[b].numpy(), own, heads=H, score=score or "scaled_dot", **settings)
        torch.testing.assert_close(context[b], torch.from_numpy(wanted[0]))
        torch.testing.assert_close(weights[b], torch.from_numpy(wanted[1]))
