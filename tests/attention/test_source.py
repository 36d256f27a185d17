"""One contract for every score with every window: the scores a source attention can have, its weights, its masks, its memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard import ops
from regard.attention import (
    AdditiveScore,
    ConcatScore,
    CosineScore,
    DotScore,
    GeneralScore,
    LocationScore,
    MonotonicWindow,
    PredictiveWindow,
    SourceAttention,
)
from regard.errors import ShapeError
from tests.reference import attention as reference

B, T, S, D, A, RADIUS = 2, 3, 7, 5, 11, 2
SCORES = {
    "additive": lambda: AdditiveScore(D, D, A),
    "concat": lambda: ConcatScore(D, D, A),
    "dot": DotScore,
    "scaled_dot": lambda: DotScore(scaled=True),
    "general": lambda: GeneralScore(D, D),
    "cosine": CosineScore,
    "location": lambda: LocationScore(D, S),
    "short location": lambda: LocationScore(D, 3),
}
WINDOWS = {"global": lambda: None, "local_m": lambda: MonotonicWindow(RADIUS), "local_p": lambda: PredictiveWindow(D, RADIUS)}
EVERY = pytest.mark.parametrize(("score", "window"), [(s, w) for s in SCORES for w in WINDOWS])


def build(score, window, dtype=torch.float64):
    torch.manual_seed(19)
    return SourceAttention(SCORES[score](), WINDOWS[window]()).to(dtype)


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(23)
    query = torch.randn(B, T, D, generator=generator, dtype=torch.float64).to(dtype)
    source = torch.randn(B, S, D, generator=generator, dtype=torch.float64).to(dtype)
    return query, source, torch.tensor([S, 4])


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
    context, weights = attention(query, attention.memory(source, lengths), position=positions)
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
    clean = attention(query, attention.memory(source, lengths))
    for poison in (float("nan"), float("inf"), 1e30):
        spoiled = source.clone()
        spoiled[1, 4:] = poison
        spoiled.requires_grad_()
        found = attention(query, attention.memory(spoiled, lengths))
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
    context, weights = attention(query, attention.memory(source, torch.tensor([S, 0])))
    assert (context[1] == 0).all()
    assert (weights[1] == 0).all()
    (gradient,) = torch.autograd.grad(context.sum() + weights.sum(), source)
    assert (gradient[1] == 0).all()
    assert gradient.isfinite().all()


@EVERY
def test_padding_a_sentence_changes_nothing(score, window):
    attention = build(score, window)
    query, source, _ = inputs()
    alone = attention(query[1:], attention.memory(source[1:, :4], torch.tensor([4])))
    padded = attention(query, attention.memory(source, torch.tensor([S, 4])))
    torch.testing.assert_close(padded.context[1], alone.context[0])
    torch.testing.assert_close(padded.weights[1, :, :4], alone.weights[0])


@EVERY
def test_gradients_equal_finite_differences(score, window):
    if window == "local_p":
        pytest.skip("positions are float32 by design, too coarse for finite differences in float64; ops.gaussian_window is checked alone")
    attention = build(score, window)
    query, source, lengths = inputs()

    def context(q, s):
        return attention(q, attention.memory(s, lengths)).context

    assert torch.autograd.gradcheck(context, (query.requires_grad_(), source.requires_grad_()))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_stays_close_to_float64(score, window, dtype):
    query, source, lengths = inputs()
    exact = build(score, window)
    rough = build(score, window, dtype)
    expected = exact(query, exact.memory(source, lengths)).context
    found = rough(query.to(dtype), rough.memory(source.to(dtype), lengths)).context
    assert found.dtype == dtype
    if window != "local_p":  # a position near a window's edge may round to its other side
        # scores of size about 5 are rounded to 2**-8 (bfloat16) of themselves before the exponential
        torch.testing.assert_close(found.double(), expected, atol={torch.float32: 1e-5}.get(dtype, 0.15), rtol=0)


def test_predicted_positions_learn():
    attention = build("dot", "local_p")
    query, source, lengths = inputs()
    context, _ = attention(query, attention.memory(source, lengths))
    context.square().sum().backward()
    gradient = attention.window.position.weight.grad
    assert gradient is not None
    assert (gradient != 0).any()


def test_hypotheses_of_one_sentence_are_queries_on_one_source():
    attention = build("additive", "local_m")
    query, source, lengths = inputs()
    together = attention(query, attention.memory(source, lengths), position=2)
    for k in range(T):
        alone = attention(query[:, k : k + 1], attention.memory(source, lengths), position=2)
        torch.testing.assert_close(alone.weights[:, 0], together.weights[:, k])


def test_keeping_rows_of_a_memory_keeps_their_attention():
    attention = build("general", "local_p")
    query, source, lengths = inputs()
    memory = attention.memory(source, lengths)
    whole = attention(query, memory).context
    kept = attention(query[1:], memory.rows(torch.tensor([1]))).context
    torch.testing.assert_close(kept[0], whole[1])


def test_concat_equals_additive_with_the_same_matrices():
    concat, additive = build("concat", "global"), build("additive", "global")
    with torch.no_grad():
        additive.score.query.weight.copy_(concat.score.weight[:, :D])
        additive.score.key.weight.copy_(concat.score.weight[:, D:])
        additive.score.key.bias.zero_()
        additive.score.vector.copy_(concat.score.vector)
    query, source, lengths = inputs()
    torch.testing.assert_close(concat(query, concat.memory(source, lengths)), additive(query, additive.memory(source, lengths)))


def test_general_with_the_identity_equals_dot():
    general, dot = build("general", "global"), build("dot", "global")
    with torch.no_grad():
        general.score.key.weight.copy_(torch.eye(D))
    query, source, lengths = inputs()
    torch.testing.assert_close(general(query, general.memory(source, lengths)), dot(query, dot.memory(source, lengths)))


@pytest.mark.parametrize("score", SCORES)
def test_a_window_as_wide_as_the_source_is_global(score):
    wide = SourceAttention(SCORES[score](), MonotonicWindow(S)).double()
    whole = SourceAttention(wide.score)
    query, source, lengths = inputs()
    assert torch.equal(wide(query, wide.memory(source, lengths)).context, whole(query, whole.memory(source, lengths)).context)


def test_permuting_the_source_permutes_the_weights_and_leaves_the_context():
    order = torch.tensor([3, 1, 0, 2, 6, 5, 4])
    for score in ("additive", "concat", "dot", "scaled_dot", "general", "cosine"):
        attention = build(score, "global")
        query, source, _ = inputs()
        full = torch.tensor([S, S])
        plain = attention(query, attention.memory(source, full))
        moved = attention(query, attention.memory(source[:, order], full))
        torch.testing.assert_close(moved.weights, plain.weights[..., order])
        torch.testing.assert_close(moved.context, plain.context)


def test_lengths_of_another_batch_size_are_refused_with_both():
    with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
        build("dot", "global").memory(torch.zeros(2, S, D), torch.tensor([1, 2, 3]))


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
        "location": ["score.query.weight", *window],
        "short location": ["score.query.weight", *window],
    }


def test_empty_masks_of_ops_and_windows_agree():
    mask = ops.window_mask(torch.tensor([20.0]), S, RADIUS)
    assert not mask.any()
    attention = build("dot", "local_m")
    query, source, lengths = inputs()
    context, weights = attention(query, attention.memory(source, lengths), position=20)
    assert (context == 0).all()
    assert (weights == 0).all()
