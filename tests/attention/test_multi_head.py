"""Multi-head attention: equal to torch's, to the loops, to itself step by step; nothing masked leaks."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard import ops
from regard.attention import AdditiveScore, Areas, CosineScore, DotScore, GeneralScore, HeadMemory, LocationScore, MultiHeadAttention
from regard.errors import ConfigError, ShapeError

B, T, S, H, D = 2, 5, 7, 3, 11
E, M = H * D, 13
MASKS = {"none": None, "(S,)": (S,), "(1, T, S)": (1, T, S), "(B, 1, S)": (B, 1, S), "(B, T, S)": (B, T, S), "(B, H, T, S)": (B, H, T, S)}


def build(**keywords):
    torch.default_generator.manual_seed(17)
    attention = MultiHeadAttention(E, H, memory_dim=M, **keywords).double()
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return attention


def inputs(target=T, source=S):
    generator = torch.Generator().manual_seed(19)
    shapes = ((B, target, E), (B, source, M), (B, source, M))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def mask_of(shape):
    if shape is None:
        return None
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(23)) < 0.6
    if len(shape) > 1 and shape[-2] == T:
        mask[..., 1, :] = False  # a query with nothing to attend to
    return mask


def full(mask, target=T, source=S, causal=False):
    """The mask as (B, H, T, S)."""
    if mask is None:
        mask = torch.ones(1, dtype=torch.bool)
    mask = (mask.unsqueeze(1) if mask.dim() == 3 else mask).expand(B, H, target, source)
    return mask & ops.causal_mask(target, source) if causal else mask


def by_loops(attention, query, key, value, allowed):
    """Context and weights (B, H, T, S), one head and one query at a time."""
    q, k, v = (part(x) for part, x in ((attention.query, query), (attention.key, key), (attention.value, value)))
    joined, table = torch.zeros(*q.shape, dtype=q.dtype), torch.zeros(allowed.shape, dtype=q.dtype)
    for b in range(query.shape[0]):
        for h in range(H):
            part = slice(h * D, (h + 1) * D)
            for t in range(query.shape[1]):
                seen = [s for s in range(key.shape[1]) if allowed[b, h, t, s]]
                if seen:
                    table[b, h, t, seen] = torch.stack([q[b, t, part] @ k[b, s, part] / math.sqrt(D) for s in seen]).softmax(0)
                    joined[b, t, part] = sum(table[b, h, t, s] * v[b, s, part] for s in seen)
    return attention.output(joined), table


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("target", "source"), [(T, S), (S, S), (S, T), (1, S)])
def test_fused_plain_and_the_loops_agree(shape, causal, target, source):
    attention = build()
    query, key, value = inputs(target, source)
    mask = mask_of(shape)
    if mask is not None:
        mask = mask[..., :source] if shape[-2:] != (T, S) else mask[..., :1, :source].expand(*mask.shape[:-2], target, source)
    context, weights = by_loops(attention, query, key, value, full(mask, target, source, causal))
    fused = attention(query, key, value, mask=mask, causal=causal)
    plain = attention(query, key, value, mask=mask, causal=causal, need_weights=True)
    torch.testing.assert_close(plain.context, context)
    torch.testing.assert_close(plain.weights, weights)
    torch.testing.assert_close(fused.context, context)
    assert fused.weights is None


def theirs_and_ours(dropout=0.0):
    torch.default_generator.manual_seed(29)
    theirs = nn.MultiheadAttention(E, H, dropout=dropout, batch_first=True).double()
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    return theirs, MultiHeadAttention.from_torch(theirs)


PADDING = torch.tensor([[True] * S, [True] * 4 + [False] * 3])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_it_equals_torch_with_the_same_weights(padded, causal):
    theirs, ours = theirs_and_ours()
    states = torch.randn(B, S, E, dtype=torch.float64, generator=torch.Generator().manual_seed(31))
    hidden = {"key_padding_mask": ~PADDING if padded else None, "attn_mask": ~ops.causal_mask(S, S) if causal else None}
    mask = PADDING.unsqueeze(1) if padded else None
    expected, per_head = theirs(states, states, states, **hidden, average_attn_weights=False)
    _, averaged = theirs(states, states, states, **hidden)
    found = ours(states, states, states, mask=mask, causal=causal, need_weights=True)
    torch.testing.assert_close(found.context, expected)
    torch.testing.assert_close(found.weights, per_head)
    torch.testing.assert_close(found.weights.mean(1), averaged)
    torch.testing.assert_close(ours(states, states, states, mask=mask, causal=causal).context, expected)


def test_a_query_with_nothing_to_attend_to_is_finite_where_torch_returns_nan():
    theirs, ours = theirs_and_ours()
    states = torch.randn(B, S, E, dtype=torch.float64)
    nobody = torch.tensor([[False] * S, [True] * S])
    assert theirs(states, states, states, key_padding_mask=~nobody)[0][0].isnan().all()
    for need_weights in (False, True):
        found = ours(states, states, states, mask=nobody.unsqueeze(1), need_weights=need_weights)
        torch.testing.assert_close(found.context[0], ours.output.bias.expand(S, E))
    assert (found.weights[0] == 0).all()


def test_without_projections_it_is_torchs_scaled_dot_product():
    attention = MultiHeadAttention(E, H, bias=False).double()
    for part in (attention.query, attention.key, attention.value, attention.output):
        nn.init.eye_(part.weight)
    query, states = torch.randn(B, T, E).double(), torch.randn(B, S, E).double()
    mask = torch.rand(B, T, S) < 0.6
    mask[..., 0] = True

    def heads(x):
        return x.unflatten(-1, (H, D)).transpose(1, 2)

    expected = F.scaled_dot_product_attention(heads(query), heads(states), heads(states), attn_mask=mask.unsqueeze(1))
    found = attention(query, states, states, mask=mask).context
    torch.testing.assert_close(found, expected.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("shape", list(MASKS.values())[1:], ids=list(MASKS)[1:])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e300])
def test_what_is_masked_changes_nothing_and_gets_no_gradient(need_weights, shape, poison):
    attention = build()
    mask = mask_of(shape)
    mask[..., 3] = False
    query, key, value = inputs()
    clean = attention(query, key, value, mask=mask, need_weights=need_weights)
    parts = [part.requires_grad_() for part in (query, key.clone(), value.clone())]
    with torch.no_grad():
        parts[1][:, 3] = parts[2][:, 3] = poison
    found = attention(*parts, mask=mask, need_weights=need_weights)
    assert torch.equal(found.context, clean.context)
    assert not need_weights or torch.equal(found.weights, clean.weights)
    gradients = torch.autograd.grad(found.context.sum(), [*parts, *attention.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[1][:, 3] == 0).all()
    assert (gradients[2][:, 3] == 0).all()


@pytest.mark.parametrize("kind", ["fused", "is_plain", "areas", "additive"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_future_changes_nothing_and_a_bad_past_is_loud(kind, masked):
    torch.default_generator.manual_seed(37)
    extra = {"areas": {"areas": Areas(3)}, "additive": {"score": AdditiveScore(D, D, 5)}}.get(kind, {})
    attention = MultiHeadAttention(E, H, **extra).double()
    states = torch.randn(B, S, E, dtype=torch.float64)
    settings = {"causal": True, "need_weights": kind == "is_plain", "mask": torch.ones(1, S, S, dtype=torch.bool) if masked else None}
    clean = attention(states, states, states, **settings).context
    for poison in (torch.nan, torch.inf, 1e3):
        spoiled = states.clone()
        spoiled[:, 4] = poison
        spoiled.requires_grad_()
        context = attention(spoiled, spoiled, spoiled, **settings).context
        assert torch.equal(context[:, :4], clean[:, :4])
        assert poison == 1e3 or context[:, 4:].isnan().all()
        gradients = torch.autograd.grad(context[:, :4].sum(), [spoiled, *attention.parameters()])
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert (gradients[0][:, 4:] == 0).all()


@pytest.mark.parametrize("need_weights", [False, True])
def test_an_empty_row_is_the_bias_with_zero_finite_gradients(need_weights):
    attention = build()
    parts = [part.requires_grad_() for part in inputs()]
    mask = torch.ones(B, T, S, dtype=torch.bool)
    mask[1] = False
    context, weights = attention(*parts, mask=mask, need_weights=need_weights)
    assert torch.equal(context[1], attention.output.bias.expand(T, E))
    assert not need_weights or (weights[1] == 0).all()
    gradients = torch.autograd.grad(context.sum(), parts)
    assert all((gradient[1] == 0).all() and gradient.isfinite().all() for gradient in gradients)


KINDS = {
    "is_plain": dict,
    "additive": lambda: {"score": AdditiveScore(D, D, 5)},
    "areas": lambda: {"areas": Areas(3)},
    "mean areas": lambda: {"areas": Areas(2, value_mode="mean", temperature=2.0)},
    "area features": lambda: {"areas": Areas(3, key_mode="features", dim=D)},
    "few areas": lambda: {"areas": Areas(3, top_k=2)},
    "scored areas": lambda: {"score": GeneralScore(D, D), "areas": Areas(3)},
    "each its own": lambda: {"score": [AdditiveScore(D, D, 5), CosineScore(), DotScore(scaled=True)]},
}
EVERY = pytest.mark.parametrize("kind", KINDS)


@EVERY
@pytest.mark.parametrize("chunks", [[1] * S, [3, 4], [2, 1, 4]])
def test_step_by_step_equals_all_at_once(kind, chunks):
    torch.default_generator.manual_seed(41)
    attention = MultiHeadAttention(E, H, **KINDS[kind]()).double()
    states = torch.randn(B, S, E, dtype=torch.float64)
    padding = torch.tensor([[True] * S, [False, False] + [True] * (S - 2)])
    for mask in (None, padding):
        whole = attention(states, states, states, mask=None if mask is None else mask.unsqueeze(1), causal=True).context
        memory, steps, read = None, [], 0
        for size in chunks:
            new = slice(read, read + size)
            latest = attention.memory(states[:, new], states[:, new], key_mask=None if mask is None else mask[:, new])
            memory = latest if memory is None else memory.append(latest)
            steps.append(attention.attend(states[:, new], memory, causal=True).context)
            read += size
        torch.testing.assert_close(torch.cat(steps, 1), whole)


@EVERY
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_a_memory_attends_as_the_source_itself(kind, shape):
    attention = build(**KINDS[kind]())
    query, key, value = inputs()
    mask = mask_of(shape)
    expected = attention(query, key, value, mask=mask, need_weights=True)
    found = attention.attend(query, attention.memory(key, value), mask=mask, need_weights=True)
    torch.testing.assert_close(found, expected)
    fused = attention(query, key, value, mask=mask)
    torch.testing.assert_close(fused.context, expected.context)
    # padding that the memory knows
    known = attention.attend(query, attention.memory(key, value, key_mask=PADDING), mask=mask).context
    padded = full(mask) & PADDING[:, None, None]
    torch.testing.assert_close(known, attention(query, key, value, mask=padded).context)


@pytest.mark.parametrize("grad", [False, True])
def test_what_a_memorys_mask_hides_changes_nothing_and_other_bad_numbers_are_loud(grad):
    attention = build()
    query, key, value = inputs()
    clean = attention.attend(query, attention.memory(key, value, key_mask=PADDING)).context
    key[1, 4:] = value[1, 4:] = torch.nan
    with torch.set_grad_enabled(grad):
        assert torch.equal(attention.attend(query, attention.memory(key, value, key_mask=PADDING)).context, clean)
        assert attention.attend(query, attention.memory(key, value)).context[1].isnan().all()
        hidden = attention.attend(query, attention.memory(key, value), mask=PADDING.unsqueeze(1)).context
    torch.testing.assert_close(hidden, clean)
    if grad:
        assert all(g.isfinite().all() for g in torch.autograd.grad(hidden.sum(), tuple(attention.parameters())))


def test_a_query_is_loud_if_one_of_its_heads_may_see_a_bad_number():
    attention = build()
    query, key, value = inputs()
    value[0, 3] = torch.nan
    mask = torch.ones(B, H, T, S, dtype=torch.bool)
    mask[..., 3] = False
    mask[0, 1, 2, 3] = True
    expected = torch.zeros(B, T, dtype=torch.bool)
    expected[0, 2] = True
    for found in (attention(query, key, value, mask=mask), attention.attend(query, attention.memory(key, value), mask=mask)):
        assert torch.equal(found.context.isnan().any(-1), expected)
        assert found.context[0, 2].isnan().all()


def test_memories_know_padding_only_where_there_is_some():
    attention = build()
    _, key, value = inputs()
    plain, padded = attention.memory(key, value), attention.memory(key, value, key_mask=PADDING)
    assert plain.append(plain).mask is None
    assert torch.equal(plain.append(padded).mask, torch.cat([torch.ones(B, S, dtype=torch.bool), PADDING], 1))
    assert torch.equal(padded.append(plain).mask, torch.cat([PADDING, torch.ones(B, S, dtype=torch.bool)], 1))
    last = torch.tensor([1])
    assert all(torch.equal(one, other[1:]) for one, other in zip(padded.rows(last)[:3], padded[:3], strict=True))
    assert plain.rows(last).mask is None
    assert isinstance(plain, HeadMemory)


def test_scores_of_each_head_are_those_of_the_score():
    scores = [AdditiveScore(D, D, 5), GeneralScore(D, D), LocationScore(D, S)]
    attention = build(score=scores)
    query, key, value = inputs()
    weights = attention(query, key, value, need_weights=True).weights
    for h, score in enumerate(scores):
        part = slice(h * D, (h + 1) * D)
        table = score(attention.query(query)[..., part], score.project(attention.key(key)[..., part]))
        torch.testing.assert_close(weights[:, h], table.softmax(-1))


def test_one_scaled_dot_score_is_the_default():
    plain, scored = build(), build(score=DotScore(scaled=True))
    parts = inputs()
    torch.testing.assert_close(scored(*parts, need_weights=True), plain(*parts, need_weights=True))


@pytest.mark.parametrize("areas", [{}, {"value_mode": "mean", "temperature": 1.5}, {"top_k": 3}, {"key_mode": "max", "value_mode": "max"}])
@pytest.mark.parametrize("causal", [False, True])
def test_areas_equal_the_readable_reference(areas, causal):
    attention = build(areas=Areas(3, **areas))
    query, key, value = inputs()
    mask = mask_of((B, T, S))
    heads = [
        part(x).unflatten(-1, (H, D)).transpose(1, 2)
        for part, x in zip((attention.query, attention.key, attention.value), (query, key, value), strict=True)
    ]
    expected = attention.areas(*heads, mask=mask.unsqueeze(1), causal=causal)
    items = attention(query, key, value, mask=mask, causal=causal, need_weights=True)
    by_area = attention(query, key, value, mask=mask, causal=causal, need_weights="areas")
    context = attention.output(expected.context.transpose(1, 2).flatten(2))
    torch.testing.assert_close(items.context, context)
    torch.testing.assert_close(by_area.context, context)
    torch.testing.assert_close(items.weights, expected.item_weights)
    torch.testing.assert_close(by_area.weights, expected.area_weights)


def test_areas_of_one_item_are_the_items():
    plain, single = build(), build(areas=Areas(1))
    parts = inputs()
    torch.testing.assert_close(single(*parts, causal=True, need_weights=True), plain(*parts, causal=True, need_weights=True))


def test_dropout_is_for_training_only_and_leaves_the_shown_weights():
    attention = build(dropout=0.5)
    parts = inputs()
    torch.default_generator.manual_seed(43)
    first, second = attention(*parts).context, attention(*parts).context
    assert not torch.equal(first, second)
    shown = attention(*parts, need_weights=True)
    still = attention.eval()(*parts, need_weights=True)
    assert not torch.equal(shown.context, still.context)
    assert torch.equal(shown.weights, still.weights)
    torch.testing.assert_close(attention(*parts).context, still.context)


@EVERY
def test_gradients_equal_finite_differences(kind):
    torch.default_generator.manual_seed(47)
    attention = MultiHeadAttention(
        4, 2, memory_dim=3, **(KINDS[kind]() if kind == "is_plain" else {"areas": Areas(2)} if kind == "areas" else {})
    ).double()
    parts = [torch.randn(2, size, dim, dtype=torch.float64, requires_grad=True) for size, dim in ((2, 4), (3, 3), (3, 3))]
    mask = torch.tensor([[[True, False, True], [False, False, False]]])
    for need_weights in (False, True):
        assert torch.autograd.gradcheck(lambda *x: attention(*x, mask=mask, need_weights=need_weights).context, parts)  # noqa: B023


@EVERY
@pytest.mark.parametrize("sizes", [(0, T, S), (B, 0, S), (B, T, 0), (1, 1, 1), (B, 0, 0)])
@pytest.mark.parametrize("need_weights", [False, True])
def test_sizes_of_zero_and_one_work(kind, sizes, need_weights):
    batch, target, source = sizes
    attention = build(**KINDS[kind]())
    query, key = torch.ones(batch, target, E).double(), torch.ones(batch, source, M).double()
    for mask in (None, torch.ones(batch, target, source, dtype=torch.bool)):
        context, weights = attention(query, key, key, mask=mask, causal=mask is None, need_weights=need_weights)
        assert context.shape == (batch, target, E)
        assert weights is None or weights.shape == (batch, H, target, source)
        assert source or torch.equal(context, attention.output.bias.expand(batch, target, E))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("need_weights", [False, True])
def test_lower_precision_stays_close_to_float64(dtype, need_weights):
    parts = inputs()
    exact = build()(*parts, mask=mask_of((B, T, S)), causal=True).context
    found = build().to(dtype)(*[part.to(dtype) for part in parts], mask=mask_of((B, T, S)), causal=True, need_weights=need_weights).context
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, atol={torch.float32: 1e-5}.get(dtype, 0.05), rtol=0)


@EVERY
def test_autocast_stays_close(kind):
    attention = build(**KINDS[kind]()).float()
    parts = [part.float() for part in inputs()]
    exact = attention(*parts, mask=mask_of((B, T, S))).context
    with torch.autocast("cpu", torch.bfloat16):
        rough = attention(*parts, mask=mask_of((B, T, S))).context
    if kind != "few areas":  # rounding may choose other ones
        torch.testing.assert_close(rough.float(), exact, atol=0.1, rtol=0)


def test_layout_in_memory_changes_nothing():
    attention = build()
    query, key, _ = inputs()
    mask = mask_of((1, 1, S)).expand(B, T, S)
    straight = attention(query, key[:1].expand(B, -1, -1).contiguous(), key, mask=mask.contiguous()).context
    crooked = attention(
        query.mT.contiguous().mT, key[:1].expand(B, -1, -1), key.transpose(0, 1).contiguous().transpose(0, 1), mask=mask
    ).context
    torch.testing.assert_close(crooked, straight)


@EVERY
@pytest.mark.parametrize("need_weights", [False, True])
def test_every_kind_traces_into_one_graph(kind, need_weights):
    attention = build(**KINDS[kind]()).eval()
    parts, mask = inputs(), mask_of((B, T, S))
    settings = {"mask": mask, "causal": True, "need_weights": need_weights}
    expected = attention(*parts, **settings)
    torch._dynamo.reset()
    torch.testing.assert_close(tuple(torch.compile(attention, fullgraph=True, backend="eager")(*parts, **settings)), tuple(expected))
    torch.testing.assert_close(tuple(torch.export.export(attention, tuple(parts), settings).module()(*parts, **settings)), tuple(expected))


def test_a_step_traces_with_its_memory_as_a_value():
    attention = build()
    query, key, value = inputs(target=1)

    def step(query, key, value, memory):
        memory = memory.append(attention.memory(key, value))
        return attention.attend(query, memory, causal=True).context, memory

    with torch.no_grad():
        memory = attention.memory(key, value)
    torch._dynamo.reset()
    found = torch.compile(step, fullgraph=True, backend="eager")(query, key[:, :1], value[:, :1], memory)
    torch.testing.assert_close(found[0], step(query, key[:, :1], value[:, :1], memory)[0])


def test_parameter_names_and_shapes_are_frozen():
    names = ["query", "key", "value", "output"]
    shapes = {name: tuple(value.shape) for name, value in build().state_dict().items()}
    dims = {"query": (E, E), "key": (E, M), "value": (E, M), "output": (E, E)}
    assert shapes == {f"{n}.weight": dims[n] for n in names} | {f"{n}.bias": (E,) for n in names}
    assert sorted(build(bias=False).state_dict()) == sorted(f"{n}.weight" for n in names)
    wide = MultiHeadAttention(10, 3, head_dim=7).state_dict()
    assert wide["query.weight"].shape == (21, 10)
    assert wide["output.weight"].shape == (10, 21)
    assert "score.weight" not in build(score=AdditiveScore(D, D, 5)).state_dict()
    assert "score.vector" in build(score=AdditiveScore(D, D, 5)).state_dict()
    assert "score.0.vector" in build(**KINDS["each its own"]()).state_dict()
    assert "areas.hidden.weight" in build(**KINDS["area features"]()).state_dict()


def test_weights_start_in_torchs_range():
    torch.default_generator.manual_seed(59)
    ours, theirs = MultiHeadAttention(64, 4), nn.MultiheadAttention(64, 4)
    for part in (ours.query, ours.key, ours.value):
        assert math.isclose(part.weight.std().item(), theirs.in_proj_weight.std().item(), rel_tol=0.05)
        assert (part.bias == 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiHeadAttention(10, 3), r"embed_dim 10 .* num_heads 3"),
        (lambda: MultiHeadAttention(6, 3, score=[DotScore(), DotScore()]), r"2 scores for 3 heads"),
        (lambda: MultiHeadAttention(6, 3, score=LocationScore(2, 5), areas=Areas(2)), r"LocationScore.*areas"),
        (lambda: MultiHeadAttention(6, 2, score=[DotScore(), LocationScore(3, 5)], areas=Areas(2)), r"LocationScore.*areas"),
        (lambda: build()(*inputs(), need_weights="areas"), r'need_weights="areas"'),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda a, q, k, v: a(q, k, v[:, :3]), [(B, S, M), (B, 3, M)]),
        (lambda a, q, k, v: a(q[:1], k, v), [(1, T, E), (B, S, M)]),
        (lambda a, q, k, v: a(q, k, v, mask=torch.ones(B, S, T).bool()), [(B, S, T), (B, T, S)]),
        (lambda a, q, k, v: a(q, k, v, mask=torch.ones(B, T, T, S).bool()), [(B, T, T, S), (B, H, T, S)]),
        (lambda a, q, k, v: a.memory(k, v, key_mask=torch.ones(B, T).bool()), [(B, T), (B, S)]),
        (lambda a, q, k, v: a.attend(q, a.memory(k, v), mask=torch.ones(3).bool()), [(3,), (B, T, S)]),
        (lambda a, q, k, v: a.attend(q[:1], a.memory(k, v)), [(1, T, E), (B, H, S, D)]),
        (lambda a, q, k, v: a(q, k, v, mask=torch.ones(T, S)), ["torch.float32"]),
        (lambda a, q, k, v: a(k, k, v), ["query", f"(B, T, {E})", (B, S, M)]),
        (lambda a, q, k, v: a.memory(k, q), ["value", f"(B, S, {M})", (B, T, E)]),
        (lambda a, q, k, v: a(q[0], k, v), ["query", f"(B, T, {E})", (T, E)]),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_both(call, shapes):
    with pytest.raises(ShapeError) as error:
        call(build(), *inputs())
    assert all(str(shape) in str(error.value) for shape in shapes)


def test_settings_are_shown():
    shown = repr(build(dropout=0.1, areas=Areas(3), score=CosineScore(2.5)))
    for part in ("num_heads=3", "head_dim=11", "dropout=0.1", "max_area=3", "sharpness=2.5"):
        assert part in shown


GAP = torch.ones(2, 7, dtype=torch.bool).index_fill(1, torch.tensor([3]), False)


@pytest.mark.parametrize("padding", [(0, 0), (2, 0), (0, 2), (7, 0)], ids=str)
def test_a_cache_of_items_forms_the_areas_of_the_sequence(padding: tuple[int, int]) -> None:
    attention, x = MultiHeadAttention(10, 2, areas=Areas(3)).eval(), torch.randn(2, 7, 10)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, : padding[0]] = mask[0, 7 - padding[1] :] = False
    found = attention.attend_items(x, attention.items(x, mask)).context
    torch.testing.assert_close(found, attention(x, x, x, key_mask=mask).context)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda plain, areas, scored, x: scored.items(x), "needs scaled dot products"),
        (lambda plain, areas, scored, x: areas.items(x, GAP), "without a gap"),
        (lambda plain, areas, scored, x: areas.attend_items(x, plain.items(x)), "the store is one of items"),
        (lambda plain, areas, scored, x: plain.attend_items(x, plain.items(x)._replace(of_areas=True)), "the store is one of areas"),
        (lambda plain, areas, scored, x: plain.areas_of(plain.memory(x, x)), "an attention with areas"),
        (lambda plain, areas, scored, x: areas.areas_of(areas.areas_of(areas.memory(x, x))), "a memory of items"),
        (lambda plain, areas, scored, x: areas.attend(x, areas.areas_of(areas.memory(x, x)), causal=True), "is masked as it is made"),
    ],
)
def test_a_memory_of_the_wrong_kind_is_refused(wrong: Callable[..., object], said: str) -> None:
    plain, scored = MultiHeadAttention(10, 2), MultiHeadAttention(10, 2, score=DotScore())
    areas = MultiHeadAttention(10, 2, areas=Areas(3, key_mode="max"))
    with pytest.raises(ConfigError, match=said):
        wrong(plain, areas, scored, torch.randn(2, 7, 10))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bad", ["key", "value"])
@pytest.mark.parametrize("keys", [1, 3])
def test_a_nan_that_may_be_attended_shows_in_every_precision(dtype: torch.dtype, bad: str, keys: int) -> None:
    attention = MultiHeadAttention(8, 2).to(dtype).eval()
    given = {name: torch.randn(1, keys, 8).to(dtype) for name in ("key", "value")}
    given[bad][:] = float("nan")
    with torch.no_grad():
        assert attention(torch.randn(1, 2, 8).to(dtype), **given).context.isnan().all()
