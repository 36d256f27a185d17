"""One contract for every score with every window: the scores an attention can have, its weights, its masks, its memory."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch

from regard import ops
from regard.attention import (
    AdditiveScore,
    Areas,
    Attention,
    AttentionOutput,
    ConcatScore,
    CosineScore,
    DotScore,
    GeneralScore,
    HardChoice,
    HardOutput,
    LocationScore,
    MonotonicWindow,
    PredictiveWindow,
)
from regard.errors import ConfigError, RangeError, ShapeError
from tests.reference import attention as reference

B, T, S, D, A, RADIUS = 2, 3, 7, 5, 11, 2
SCORES = {
    "additive": lambda: AdditiveScore(D, D, A),
    "concat": lambda: ConcatScore(D, D, A),
    "dot": DotScore,
    "scaled_dot": lambda: DotScore(scaled=True),
    "general": lambda: GeneralScore(D, D),
    "cosine": CosineScore,
    "fixed cosine": lambda: CosineScore(1.7),
    "location": lambda: LocationScore(D, S),
    "short location": lambda: LocationScore(D, 3),
}
WINDOWS = {"global": lambda: None, "local_m": lambda: MonotonicWindow(RADIUS), "local_p": lambda: PredictiveWindow(D, RADIUS)}
EVERY = pytest.mark.parametrize(("score", "window"), [(s, w) for s in SCORES for w in WINDOWS])


def build(score, window, dtype=torch.float64):
    torch.default_generator.manual_seed(19)
    return Attention(SCORES[score](), window=WINDOWS[window]()).to(dtype)


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(23)
    query = torch.randn(B, T, D, generator=generator, dtype=torch.float64).to(dtype)
    source = torch.randn(B, S, D, generator=generator, dtype=torch.float64).to(dtype)
    return query, source, torch.tensor([S, 4])


def read(attention, query, source, lengths, **keywords):
    """Attend to a source of these lengths and show the weights."""
    memory = attention.memory(source, key_mask=ops.length_mask(lengths, source.shape[1]))
    return attention.attend(query, memory, need_weights=True, **keywords)


def parameters(attention):
    return {name: value.detach().double().numpy() for name, value in attention.named_parameters()}


def expected_scores(kind, attention, query, key):
    p = parameters(attention)
    if kind == "additive":
        return reference.scores(
            "additive", query, key, W=p["score.query.weight"], U=p["score.key.weight"], b=p["score.key.bias"], v=p["score.vector"]
        )
    if kind == "concat":
        return reference.scores("concat", query, key, W=p["score.weight"], v=p["score.vector"])
    if kind == "general":
        return reference.scores("general", query, key, W=p["score.key.weight"])
    if kind == "fixed cosine":
        return reference.scores("cosine", query, key, beta=1.7)
    if kind == "cosine":
        return reference.scores("cosine", query, key, beta=np.log1p(np.exp(p["score.sharpness"])))
    if kind.endswith("location"):
        return reference.scores("location", query, key, W=p["score.query.weight"])
    return reference.scores(kind, query, key)


@EVERY
def test_context_and_weights_equal_the_loops(score, window):
    attention = build(score, window)
    query, source, lengths = inputs()
    positions = torch.arange(T)
    context, weights = read(attention, query, source, lengths, position=positions)
    for b in range(B):
        table = expected_scores(score, attention, query[b].numpy(), source[b].numpy())
        allowed = [[s < lengths[b] for s in range(S)] for _ in range(T)]
        if window == "global":
            expected = reference.softmax(table, allowed)
        elif window == "local_m":
            expected = reference.softmax(table, [[allowed[t][s] and abs(s - t) <= RADIUS for s in range(S)] for t in range(T)])
        else:
            p = parameters(attention)
            hidden = np.tanh(query[b].numpy() @ p["window.hidden.weight"].T)
            # float32, as the module computes positions
            centers = lengths[b].item() * reference.sigmoid((hidden @ p["window.position.weight"].T)[:, 0])
            expected = reference.local_p(table, allowed, centers, RADIUS)
        torch.testing.assert_close(weights[b], torch.tensor(expected), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(context[b], torch.tensor(expected) @ source[b], rtol=1e-5, atol=1e-6)


@EVERY
def test_what_is_masked_changes_nothing_and_gets_no_gradient(score, window):
    attention = build(score, window)
    query, source, lengths = inputs()
    clean = read(attention, query, source, lengths)
    for poison in (float("nan"), float("inf"), 1e30):
        spoiled = source.clone()
        spoiled[1, 4:] = poison
        spoiled.requires_grad_()
        found = read(attention, query, spoiled, lengths)
        assert torch.equal(found.context, clean.context)
        assert torch.equal(found.weights, clean.weights)
        assert (found.weights[1, :, 4:] == 0).all()
        (gradient,) = torch.autograd.grad(found.context.sum(), spoiled)
        assert (gradient[1, 4:] == 0).all()
        assert gradient.isfinite().all()


@EVERY
def test_a_source_of_length_zero_gives_zeros_and_finite_gradients(score, window):
    attention = build(score, window)
    query, source, _ = inputs()
    source.requires_grad_()
    context, weights = read(attention, query, source, torch.tensor([S, 0]))
    assert (context[1] == 0).all()
    assert (weights[1] == 0).all()
    (gradient,) = torch.autograd.grad(context.sum() + weights.sum(), source)
    assert (gradient[1] == 0).all()
    assert gradient.isfinite().all()


@EVERY
def test_padding_a_sentence_changes_nothing(score, window):
    attention = build(score, window)
    query, source, _ = inputs()
    alone = read(attention, query[1:], source[1:, :4], torch.tensor([4]))
    padded = read(attention, query, source, torch.tensor([S, 4]))
    torch.testing.assert_close(padded.context[1], alone.context[0])
    torch.testing.assert_close(padded.weights[1, :, :4], alone.weights[0])


@EVERY
def test_gradients_equal_finite_differences(score, window):
    attention = build(score, window)
    query, source, lengths = inputs()

    def context(q, s):
        return read(attention, q, s, lengths).context

    assert torch.autograd.gradcheck(context, (query.requires_grad_(), source.requires_grad_()))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_stays_close_to_float64(score, window, dtype):
    query, source, lengths = inputs()
    exact = build(score, window)
    rough = build(score, window, dtype)
    expected = read(exact, query, source, lengths).context
    found = read(rough, query.to(dtype), source.to(dtype), lengths).context
    assert found.dtype == dtype
    if window != "local_p":  # a position near a window's edge may round to its other side
        # scores of size about 5 are rounded to 2**-8 (bfloat16) of themselves before the exponential
        torch.testing.assert_close(found.double(), expected, atol={torch.float32: 1e-5}.get(dtype, 0.15), rtol=0)


def test_predicted_positions_learn():
    attention = build("dot", "local_p")
    query, source, lengths = inputs()
    context, _ = read(attention, query, source, lengths)
    context.square().sum().backward()
    gradient = attention.window.position.weight.grad
    assert gradient is not None
    assert (gradient != 0).any()


def test_hypotheses_of_one_sentence_are_queries_on_one_source():
    attention = build("additive", "local_m")
    query, source, lengths = inputs()
    together = read(attention, query, source, lengths, position=2)
    for k in range(T):
        alone = read(attention, query[:, k : k + 1], source, lengths, position=2)
        torch.testing.assert_close(alone.weights[:, 0], together.weights[:, k])


def test_keeping_rows_of_a_memory_keeps_their_attention():
    attention = build("general", "local_p")
    query, source, lengths = inputs()
    memory = attention.memory(source, key_mask=ops.length_mask(lengths, S))
    whole = attention.attend(query, memory).context
    kept = attention.attend(query[1:], memory.rows(torch.tensor([1]))).context
    torch.testing.assert_close(kept[0], whole[1])


def test_concat_equals_additive_with_the_same_matrices():
    concat, additive = build("concat", "global"), build("additive", "global")
    with torch.no_grad():
        additive.score.query.weight.copy_(concat.score.weight[:, :D])
        additive.score.key.weight.copy_(concat.score.weight[:, D:])
        additive.score.key.bias.zero_()
        additive.score.vector.copy_(concat.score.vector)
    query, source, lengths = inputs()
    torch.testing.assert_close(read(concat, query, source, lengths), read(additive, query, source, lengths))


def test_general_with_the_identity_equals_dot():
    general, dot = build("general", "global"), build("dot", "global")
    with torch.no_grad():
        general.score.key.weight.copy_(torch.eye(D))
    query, source, lengths = inputs()
    torch.testing.assert_close(read(general, query, source, lengths), read(dot, query, source, lengths))


@pytest.mark.parametrize("score", SCORES)
def test_a_window_as_wide_as_the_source_is_global(score):
    wide = Attention(SCORES[score](), window=MonotonicWindow(S)).double()
    whole = Attention(wide.score)
    query, source, lengths = inputs()
    expected = read(whole, query, source, lengths)
    assert torch.equal(read(wide, query, source, lengths).context, expected.context)
    # and so is a predicted one whose Gaussian has no end in sight
    flat = Attention(wide.score, window=PredictiveWindow(D, 10**6).double())
    torch.testing.assert_close(read(flat, query, source, lengths), expected)


def test_permuting_the_source_permutes_the_weights_and_leaves_the_context():
    order = torch.tensor([3, 1, 0, 2, 6, 5, 4])
    for score in ("additive", "concat", "dot", "scaled_dot", "general", "cosine"):
        attention = build(score, "global")
        query, source, _ = inputs()
        full = torch.tensor([S, S])
        plain = read(attention, query, source, full)
        moved = read(attention, query, source[:, order], full)
        torch.testing.assert_close(moved.weights, plain.weights[..., order])
        torch.testing.assert_close(moved.context, plain.context)


def test_parameter_names_are_frozen():
    found = {score: sorted(dict(build(score, "local_p").named_parameters())) for score in SCORES}
    window = ["window.hidden.weight", "window.position.weight"]
    assert found == {
        "additive": ["score.key.bias", "score.key.weight", "score.query.weight", "score.vector", *window],
        "concat": ["score.vector", "score.weight", *window],
        "dot": window,
        "scaled_dot": window,
        "general": ["score.key.weight", *window],
        "cosine": ["score.sharpness", *window],
        "fixed cosine": window,
        "location": ["score.query.weight", *window],
        "short location": ["score.query.weight", *window],
    }


def test_empty_masks_of_ops_and_windows_agree():
    mask = ops.window_mask(torch.tensor([20.0]), S, RADIUS)
    assert not mask.any()
    attention = build("dot", "local_m")
    query, source, lengths = inputs()
    context, weights = read(attention, query, source, lengths, position=20)
    assert (context == 0).all()
    assert (weights == 0).all()


# Masks for each query.

MASK_SHAPES = {"(S,)": (S,), "(1, T, S)": (1, T, S), "(B, 1, S)": (B, 1, S), "(B, T, S)": (B, T, S)}


def mask_of(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(29)) < 0.6
    mask[..., 1] = True
    return mask


def separate():
    """Keys and values that are not the same, and sizes that tell them apart."""
    query, key, _ = inputs()
    return query, key, torch.randn(B, S, 13, generator=torch.Generator().manual_seed(31), dtype=torch.float64)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("shape", MASK_SHAPES.values(), ids=MASK_SHAPES)
def test_a_mask_of_any_shape_equals_the_loops(score, shape):
    attention = build(score, "global")
    query, key, value = separate()
    mask = mask_of(shape)
    if shape == (B, T, S):
        mask[1, 2] = False
    context, weights = attention(query, key, value, mask=mask, need_weights=True)
    for b in range(B):
        expected = reference.softmax(expected_scores(score, attention, query[b].numpy(), key[b].numpy()), mask.expand(B, T, S)[b].tolist())
        torch.testing.assert_close(weights[b], torch.tensor(expected))
        torch.testing.assert_close(context[b], torch.tensor(expected) @ value[b])


@EVERY
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_what_one_query_may_not_see_changes_nothing_for_it(score, window, poison):
    attention = build(score, window)
    query, key, value = separate()
    mask = torch.ones(B, T, S, dtype=torch.bool)
    mask[:, :2, 1] = False  # the last query may see it
    clean = attention(query, key, value, mask=mask, position=torch.arange(T), need_weights=True)
    parts = [part.clone().requires_grad_() for part in (query, key, value)]
    with torch.no_grad():
        parts[1][:, 1] = parts[2][:, 1] = poison
    found = attention(*parts, mask=mask, position=torch.arange(T), need_weights=True)
    assert torch.equal(found.context[:, :2], clean.context[:, :2])
    assert torch.equal(found.weights[:, :2], clean.weights[:, :2])
    assert (found.weights[:, :2, 1] == 0).all()
    if poison != 1e30:
        loud = found.context[:, 2].isnan().all(-1)
        # unless it lies outside of the window's reach
        reached = (clean.weights[:, 2, 1] != 0) | torch.tensor(score.endswith("location") and window == "global")
        assert torch.equal(loud, reached)
        assert torch.equal(found.weights[:, 2].isnan().all(-1), reached)
    gradients = torch.autograd.grad(
        found.context[:, :2].sum(), [*parts, *attention.parameters()], allow_unused=True, materialize_grads=True
    )
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[1][:, 1] == 0).all()
    assert (gradients[2][:, 1] == 0).all()


@pytest.mark.parametrize("grad", [False, True])
def test_bad_numbers_without_a_mask_are_loud(grad):
    attention = build("additive", "global")
    query, key, value = separate()
    key[0, 3, 2] = torch.nan
    value[1, 3, 2] = torch.inf
    with torch.set_grad_enabled(grad):
        context = attention(query, key, value).context
    assert context[0].isnan().all()
    assert not context[1].isfinite().all()


def test_padding_that_is_query_and_key_sends_no_bad_gradient():
    attention = build("additive", "global")
    states = inputs()[1].requires_grad_()
    mask = ops.length_mask(torch.tensor([S, 4]), S)
    spoiled = states.masked_fill(~mask.unsqueeze(-1), torch.nan)
    context = attention(spoiled, spoiled, spoiled, mask=mask.unsqueeze(1)).context
    assert torch.equal(context.isnan().all(-1), ~mask)
    gradients = torch.autograd.grad(context[mask].sum(), [states, *attention.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)


@EVERY
def test_all_at_once_equals_memory_and_attend(score, window):
    attention = build(score, window)
    query, source, lengths = inputs()
    padding = ops.length_mask(lengths, S)
    expected = read(attention, query, source, lengths, position=torch.arange(2, 2 + T))
    for position in (2, torch.arange(2, 2 + T)):
        direct = attention(query, source, source, mask=padding.unsqueeze(1), position=position, need_weights=True)
        assert all(torch.equal(one, other) for one, other in zip(direct, expected, strict=True))


def test_a_monotonic_window_follows_the_queries():
    attention, x = Attention(DotScore(), window=MonotonicWindow(1)), torch.randn(1, 5, 4)
    near = torch.tensor([[abs(t - s) <= 1 for s in range(5)] for t in range(5)])
    assert torch.equal(attention(x, x, x, need_weights=True).weights[0] > 0, near)
    seen = attention(x[:, 2:], x, x, causal=True, need_weights=True).weights[0] > 0  # the last query is the last position
    assert torch.equal(seen, (near & torch.ones(5, 5).tril().bool())[2:])
    with pytest.raises(ShapeError, match=r"position must be one number or \(T,\) = \(5,\), found \(3,\)"):
        attention(x, x, x, position=torch.arange(3))
    first = attention(x, x, x, position=1).context
    assert torch.equal(first, attention(x, x, x, position=torch.tensor(1)).context)
    for wrong in (-1, 1.5, "1"):
        with pytest.raises(ConfigError, match="Attention: position must be a whole number of at least 0"):
            attention(x, x, x, position=wrong)


def test_a_source_reaches_to_its_last_allowed_position():
    attention = build("dot", "global")
    mask = torch.tensor([[1, 0, 1, 0, 0, 0, 0], [0] * 7, [1] * 7, [0, 0, 0, 0, 0, 0, 1]]).bool()
    assert attention.memory(torch.zeros(4, S, D).double(), key_mask=mask).lengths.tolist() == [3, 0, 7, 7]


def test_steps_on_a_memory_never_search_it_for_bad_numbers(monkeypatch):
    attention = build("additive", "local_p")
    query, source, lengths = inputs()
    memory = attention.memory(source, key_mask=ops.length_mask(lengths, S))
    monkeypatch.setattr(ops, "mask_nonfinite", None)
    assert attention.attend(query, memory).context.isfinite().all()


def test_weights_come_on_request_only():
    attention = build("dot", "global")
    query, key, value = separate()
    assert attention(query, key, value).weights is None
    assert attention(query, key, value, need_weights=True).weights.shape == (B, T, S)


def test_dropout_drops_weights_in_training_and_shows_them_undropped():
    attention = Attention(DotScore(scaled=True), dropout=0.5).double()
    query, key, _ = separate()
    value = torch.eye(S, dtype=torch.float64).expand(B, S, S)
    torch.default_generator.manual_seed(37)
    dropped, weights = attention(query, key, value, need_weights=True)
    still, same = attention.eval()(query, key, value, need_weights=True)
    assert torch.equal(weights, same)
    torch.testing.assert_close(still, weights)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(dropped[kept], 2 * weights[kept])


# Areas.

MAX_AREA = 3
SPANS = [(start, length) for length in range(1, MAX_AREA + 1) for start in range(S - length + 1)]
AREA_SCORES = [score for score in SCORES if not score.endswith("location")]


def build_areas(score, window, choice=None):
    torch.default_generator.manual_seed(19)
    return Attention(SCORES[score](), window=WINDOWS[window](), areas=Areas(MAX_AREA), choice=choice).double()


def over_areas(allowed):
    return [all(allowed[start : start + length]) for start, length in SPANS]


@pytest.mark.parametrize("score", AREA_SCORES)
@pytest.mark.parametrize("window", WINDOWS)
def test_any_score_with_any_window_attends_to_areas_as_the_loops_do(score, window):
    attention = build_areas(score, window)
    query, source, lengths = inputs()
    context, weights = read(attention, query, source, lengths, position=torch.arange(T))
    memory = attention.memory(source, key_mask=ops.length_mask(lengths, S))
    by_area = attention.attend(query, memory, position=torch.arange(T), need_weights="areas").weights
    for b in range(B):
        keys = np.stack([source[b, i : i + n].mean(0).numpy() for i, n in SPANS])
        values = torch.stack([source[b, i : i + n].sum(0) for i, n in SPANS])
        table = expected_scores(score, attention, query[b].numpy(), keys)
        centers = np.zeros(T)
        items = [[s < lengths[b] for s in range(S)] for _ in range(T)]
        if window == "local_m":
            items = [[items[t][s] and abs(s - t) <= RADIUS for s in range(S)] for t in range(T)]
        elif window == "local_p":
            p = parameters(attention)
            hidden = np.tanh(query[b].numpy() @ p["window.hidden.weight"].T)
            centers = lengths[b].item() * reference.sigmoid((hidden @ p["window.position.weight"].T)[:, 0])
            items = [[items[t][s] and abs(s - centers[t]) <= RADIUS for s in range(S)] for t in range(T)]
        expected = reference.softmax(table, [over_areas(row) for row in items])
        if window == "local_p":
            middle = np.array([i + (n - 1) / 2 for i, n in SPANS])
            expected = expected * np.exp(-((middle - centers[:, None]) ** 2) / (2 * (RADIUS / 2) ** 2))
        expected = torch.tensor(expected)
        shares = torch.tensor([[i <= s < i + n for s in range(S)] for i, n in SPANS]).double()
        torch.testing.assert_close(by_area[b], expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(weights[b], expected @ shares, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(context[b], expected @ values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("score", AREA_SCORES)
@pytest.mark.parametrize("window", WINDOWS)
def test_areas_of_one_item_are_the_items(score, window):
    attention = build(score, window)
    single = Attention(attention.score, window=attention.window, areas=Areas(1)).double()
    query, source, lengths = inputs()
    torch.testing.assert_close(read(single, query, source, lengths), read(attention, query, source, lengths))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("areas", [{}, {"key_mode": "features", "dim": D}, {"value_mode": "max"}], ids=str)
def test_an_area_with_a_bad_item_is_seen_by_nobody_who_may_not_see_the_item(areas, poison):
    torch.default_generator.manual_seed(19)
    attention = Attention(AdditiveScore(D, D, A), areas=Areas(MAX_AREA, **areas)).double()
    query, key, value = separate()
    mask = torch.ones(B, T, S, dtype=torch.bool)
    mask[:, :2, 2] = False
    clean = attention(query, key, value, mask=mask, need_weights=True)
    parts = [part.clone().requires_grad_() for part in (query, key, value)]
    with torch.no_grad():
        parts[1][0, 2] = parts[2][1, 2] = poison
    found = attention(*parts, mask=mask, need_weights=True)
    assert torch.equal(found.context[:, :2], clean.context[:, :2])
    assert torch.equal(found.weights[:, :2], clean.weights[:, :2])
    assert found.context[:, 2].isnan().all()
    gradients = torch.autograd.grad(found.context[:, :2].sum(), [*parts, *attention.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_settings_of_the_areas_reach_the_weights():
    query, source, lengths = inputs()
    flat, sharp = (Attention(DotScore(), areas=Areas(2, temperature=t, top_k=4)).double() for t in (50.0, 0.5))
    memory = flat.memory(source, key_mask=ops.length_mask(lengths, S))
    blurred, peaked = (one.attend(query, memory, need_weights="areas").weights for one in (flat, sharp))
    assert ((blurred > 0).sum(-1) == 4).all()
    assert (blurred.amax(-1) < peaked.amax(-1)).all()


def test_areas_of_a_grid_work_without_a_window():
    attention = Attention(AdditiveScore(D, D, A), areas=Areas((2, 2), (2, 3))).double()
    context, weights = attention(inputs()[0], *[inputs()[1][:, :6]] * 2, need_weights="areas")
    assert weights.shape == (B, T, 6 + 4 + 3 + 2)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, T).double())
    assert context.shape == (B, T, D)


# What the mathematics forbids.


def test_a_window_over_the_areas_of_a_grid_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"MonotonicWindow.*areas of a grid \(2, 3\).*raster order"):
        Attention(DotScore(), window=MonotonicWindow(1), areas=Areas((2, 2), (2, 3)))


def test_location_scores_over_areas_are_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"LocationScore.*without their keys.*areas"):
        Attention(LocationScore(D, S), areas=Areas(2))


def test_weights_of_areas_that_are_not_there_are_refused():
    query, key, value = separate()
    with pytest.raises(ConfigError, match='need_weights="areas"'):
        build("dot", "global")(query, key, value, need_weights="areas")


def test_soft_examples_without_a_choice_are_refused():
    query, key, value = separate()
    with pytest.raises(ConfigError, match="no choice"):
        build("dot", "global")(query, key, value, soft=torch.tensor([True, False]))


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda a, q, k: a.memory(k, k[:, :3]), ["(2, 3, 5)", "(2, 7, 5)"]),
        (lambda a, q, k: a.memory(k, key_mask=torch.ones(2, 3).bool()), ["(2, 3)", "(2, 7)"]),
        (lambda a, q, k: a.memory(k, key_mask=torch.ones(2, 7)), ["torch.float32"]),
        (lambda a, q, k: a(q, k, k, mask=torch.ones(2, 7, 3).bool()), ["(2, 7, 3)", "(2, 3, 7)"]),
        (lambda a, q, k: a.attend(q, a.memory(k), mask=torch.ones(1, 3, 5).bool()), ["(1, 3, 5)", "(2, 3, 7)"]),
        (lambda a, q, k: a(q[:1], k, k), ["(1, 3, 5)", "(2, 7, 5)"]),
        (lambda a, q, k: a(q[..., :3], k, k), ["(2, 3, 3)", "(2, 7, 5)"]),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_both(call, shapes):
    query, key, _ = separate()
    with pytest.raises(ShapeError) as error:
        call(build("dot", "global"), query, key)
    assert all(shape in str(error.value) for shape in shapes)


@pytest.mark.parametrize(
    ("score", "key_size"),
    [
        (lambda: AdditiveScore(7, D, A), D),
        (lambda: ConcatScore(7, D, A), D),
        (lambda: GeneralScore(7, D), D),
        (lambda: LocationScore(7, S), None),
    ],
)
@pytest.mark.parametrize("areas", [False, True])
def test_a_query_or_key_of_another_size_than_the_score_takes_is_named(score, key_size, areas):
    attention = Attention(score(), areas=Areas(2) if areas and key_size is not None else None)  # a location score has no areas
    query, source = torch.randn(B, T, 7), torch.randn(B, S, D)
    for call in (lambda q, k: attention(q, k, k), lambda q, k: attention.attend(q, attention.memory(k))):
        with pytest.raises(ShapeError, match=rf"^Attention: query must be \(B, T, 7\), found \({B}, {T}, 8\)$"):
            call(torch.randn(B, T, 8), source)
        if key_size is not None:
            with pytest.raises(ShapeError, match=rf"^Attention: key must be \(B, S, {D}\), found \({B}, {S}, 6\)$"):
                call(query, torch.randn(B, S, 6))
        assert call(query, source).context.shape == (B, T, D)


# Hard attention.


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("areas", [False, True])
def test_the_greedy_choice_takes_the_value_with_the_largest_weight(window, areas):
    soft = build_areas("additive", window) if areas else build("additive", window)
    hard = Attention(soft.score, window=soft.window, areas=soft.areas, choice=HardChoice("argmax")).double().eval()
    query, source, lengths = inputs()
    memory = soft.memory(source, key_mask=ops.length_mask(lengths, S))
    kind = "areas" if areas else True
    weights = soft.attend(query, memory, need_weights=kind).weights
    found = hard.attend(query, memory, need_weights=kind)
    assert isinstance(found, HardOutput)
    best = weights.argmax(-1)
    assert torch.equal(found.weights.argmax(-1), best)
    assert torch.equal(found.weights.sum(-1), torch.ones(B, T).double())
    for b in range(B):
        assert torch.equal(found.context[b], memory.value[b][best[b]])
    # the probability is that of the normalized weights, also where a Gaussian left them below a sum of 1
    expected = (weights.amax(-1) / weights.sum(-1)).log()
    torch.testing.assert_close(found.log_prob, expected)
    assert not found.sampled.any()
    items = hard.attend(query, memory, need_weights=True).weights
    torch.testing.assert_close(
        items @ memory.value if not areas else items @ source.masked_fill(~memory.mask.unsqueeze(-1), 0), found.context
    )


def test_in_training_places_are_sampled_but_for_soft_examples():
    attention = Attention(DotScore(scaled=True), choice=HardChoice())
    query, source, lengths = inputs(torch.float32)
    torch.default_generator.manual_seed(41)
    found = read(attention, query, source, lengths, soft=torch.tensor([True, False]))
    soft = read(Attention(attention.score), query, source, lengths)
    torch.testing.assert_close(found.weights[0], soft.weights[0])
    assert found.sampled.tolist() == [[False] * T, [True] * T]
    assert sorted(set(found.weights[1].flatten().tolist())) == [0.0, 1.0]
    assert (found.weights[1, :, 4:] == 0).all()
    drawn = soft.weights[1].gather(-1, found.weights[1].argmax(-1, keepdim=True)).squeeze(-1)
    torch.testing.assert_close(found.log_prob[1], drawn.log())


def test_a_choice_that_may_see_a_bad_number_is_loud():
    attention = Attention(DotScore(), choice=HardChoice()).double().eval()
    query, key, value = separate()
    value[:, 3] = torch.nan
    mask = torch.ones(B, T, S, dtype=torch.bool)
    mask[:, 0, 3] = False
    found = attention(query, key, value, mask=mask)
    for part in (found.context.sum(-1), found.log_prob, found.entropy):
        assert torch.equal(part.isnan(), torch.tensor([[False, True, True]] * B))


# Sizes, layouts, dtypes, tracing.


@EVERY
@pytest.mark.parametrize("sizes", [(0, T, S), (B, 0, S), (B, T, 0), (1, 1, 1), (B, 0, 0)])
def test_sizes_of_zero_and_one_work(score, window, sizes):
    batch, target, source = sizes
    attention = build(score, window)
    query, key = torch.ones(batch, target, D).double(), torch.ones(batch, source, D).double()
    for mask in (None, torch.ones(batch, target, source, dtype=torch.bool)):
        context, weights = attention(query, key, key, mask=mask, need_weights=True)
        assert context.shape == (batch, target, D)
        assert weights.shape == (batch, target, source)
        assert source or not context.any()


@EVERY
def test_layout_in_memory_changes_nothing(score, window):
    attention = build(score, window)
    query, key, value = separate()
    straight = attention(query, key[:1].expand(B, -1, -1).contiguous(), value, need_weights=True)
    crooked = attention(query.mT.contiguous().mT, key[:1].expand(B, -1, -1), value.flip(0).flip(0).mT.contiguous().mT, need_weights=True)
    torch.testing.assert_close(crooked, straight)


@pytest.mark.parametrize("window", WINDOWS)
def test_autocast_stays_close(window):
    attention = build("additive", window, torch.float32)
    query, source, lengths = inputs(torch.float32)
    exact = read(attention, query, source, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        rough = read(attention, query, source, lengths)
    torch.testing.assert_close(rough.context.float(), exact.context, atol=0.1, rtol=0)


TRACED = {
    "additive": lambda: Attention(AdditiveScore(D, D, A), dropout=0.1),
    "local_p": lambda: Attention(GeneralScore(D, D), window=PredictiveWindow(D, RADIUS)),
    "areas": lambda: Attention(CosineScore(), window=MonotonicWindow(RADIUS), areas=Areas(2)),
    "hard": lambda: Attention(LocationScore(D, S), choice=HardChoice()),
}


@pytest.mark.parametrize("kind", TRACED)
def test_every_kind_traces_into_one_graph(kind):
    attention = TRACED[kind]().eval()
    query, source, lengths = inputs(torch.float32)
    mask = ops.length_mask(lengths, S).unsqueeze(1) & mask_of((1, T, S))
    expected = attention(query, source, source, mask=mask, need_weights=True)
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    torch.testing.assert_close(tuple(compiled(query, source, source, mask=mask, need_weights=True)), tuple(expected))
    program = torch.export.export(attention, (query, source, source), {"mask": mask, "need_weights": True})
    torch.testing.assert_close(tuple(program.module()(query, source, source, mask=mask, need_weights=True)), tuple(expected))


def test_the_output_unpacks_into_context_and_weights():
    found = build("dot", "global")(*separate())
    assert isinstance(found, AttentionOutput)
    assert found._fields == ("context", "weights")


def test_settings_are_shown():
    shown = repr(Attention(CosineScore(2.5), window=MonotonicWindow(3), areas=Areas(2), choice=HardChoice("argmax"), dropout=0.1))
    for part in ("sharpness=2.5", "radius=3", "max_area=2", "mode='argmax'", "p=0.1"):
        assert part in shown


def test_a_query_without_an_axis_of_targets_is_refused_and_told_how_to_have_one() -> None:
    attention = Attention(AdditiveScore(7, 5, 3))
    source, state = torch.randn(B, S, 5), torch.randn(B, 7)
    memory = attention.memory(source)
    for call in (lambda: attention(state, source, source), lambda: attention.attend(state, memory)):
        with pytest.raises(
            ShapeError, match=rf"Attention: query must be \(B, T, 7\), found \({B}, 7\); query.unsqueeze\(1\) makes one of each"
        ):
            call()
    with pytest.raises(ShapeError, match=r"Attention: key must be \(B, S, 5\), found \(5,\)"):
        attention.memory(source[0, 0])
    with pytest.raises(ShapeError, match=r"Attention: value must be \(B, S, Dv\), found "):
        attention(state.unsqueeze(1), source, source[0])
    assert attention(state.unsqueeze(1), source, source).context.shape == (B, 1, 5)


@pytest.mark.parametrize(
    ("position", "error", "message"),
    [
        (torch.full((4,), math.nan), RangeError, "position must be finite and at least 0, found nan"),
        (torch.tensor(-3), RangeError, "found -3"),
        (torch.tensor([0.0, 1.5, math.inf, 2.0]), RangeError, "found inf"),
        (torch.ones(4, dtype=torch.bool), ShapeError, "position must hold numbers, found torch.bool"),
        (10**30, ConfigError, r"position must be below 2\*\*63"),
        (True, ConfigError, "position must be a whole number of at least 0, found True"),
        (torch.tensor(True), ShapeError, "position must hold numbers, found torch.bool"),
    ],
)
def test_what_is_no_position_is_refused(position: Any, error: type[Exception], message: str) -> None:
    x = torch.randn(1, 4, 8)
    with pytest.raises(error, match=message):
        Attention(DotScore(), window=MonotonicWindow(2))(x, x, x, position=position)


def test_attend_refuses_no_position_beside_a_window_of_it() -> None:
    x, attention = torch.randn(1, 4, 8), Attention(DotScore(), window=MonotonicWindow(2))
    with pytest.raises(ConfigError, match="position must be a whole number of at least 0, found None"):
        attention.attend(x, attention.memory(x, x), position=cast("Any", None))


@pytest.mark.parametrize("score", [DotScore(), LocationScore(8, 4), AdditiveScore(8, 8, 5), CosineScore()])
def test_inputs_of_another_dtype_are_named(score: Any) -> None:
    x = torch.randn(1, 4, 8)
    with pytest.raises(ShapeError, match=r"expected one dtype|must be torch.float16, the dtype of query"):
        Attention(score)(x.half(), x, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert Attention(score)(x.bfloat16(), x, x).context.isfinite().all()


@pytest.mark.parametrize("sharpness", [math.nan, math.inf, "1"])
def test_a_sharpness_that_is_no_finite_number_is_refused(sharpness: Any) -> None:
    with pytest.raises(ConfigError, match=r"CosineScore: sharpness should be a (finite|valid) number"):
        CosineScore(sharpness)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_predicted_window_of_half_precision_is_that_of_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    half = PredictiveWindow(64, 5).to(dtype)
    query, lengths = torch.randn(8, 3, 64, dtype=dtype), torch.full((8,), 20_000)
    whole = PredictiveWindow(64, 5)
    whole.load_state_dict({name: 4 * weight.float() for name, weight in half.state_dict().items()})
    half.load_state_dict(whole.state_dict())  # far from the middle
    expected = whole(query.float(), lengths, 20_000, 0)
    for found in (half(query, lengths, 20_000, 0), _under_autocast(whole, query.float(), lengths)):
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


def _under_autocast(window: PredictiveWindow, query: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        return window(query, lengths, int(lengths.max()), 0)
