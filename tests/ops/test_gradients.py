"""First and second gradients of every public operation against finite differences: one table, compared with what `regard.ops` offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from regard import ops
from regard.errors import ConfigError
from regard.ops.kernels import native

B, H, T, S, D, A = 2, 2, 3, 5, 3, 2
GRID = (2, 3)

# Names without a gradient, each with its reason.
NOT_DIFFERENTIABLE = {
    **dict.fromkeys(
        ("AreaFeatures", "AreaResult", "AreaWeights", "NonLocalResult", "SequenceLoss", "FiniteKeyValue", "TopLogProbs"), "a record"
    ),
    **dict.fromkeys(("RunningTotals", "LazyLogits", "OutputShortlist", "lazy_logits"), "for decoding, under inference_mode"),
    "attention_blocks": "a record",
    **dict.fromkeys(("area_mask", "block_mask", "causal_mask", "length_mask", "window_mask"), "a boolean mask"),
    **dict.fromkeys(("area_count", "area_spans"), "whole numbers"),
    **dict.fromkeys(("area_path", "bfloat16_path", "matmul_path", "native_takes_items"), "the name of a path"),
    "Dropout": "a module around dropout",
    "Linear": "a module around linear",
    "dropout": "a draw; tests/ops/test_residual.py finds the gradient where nothing was dropped",
    "joint_linear": "several calls of linear",
    "greedy_positions": "a choice",
    "copy_goals": "whole numbers",
    "copy_places": "whole numbers",
    "packed_weights": "a context",
    "cached_by_owner": "anything, made once within a context",
    "recurrent_steps": "a context; linear inside of it is below",
    "sample_positions": "a draw; its gradient goes through position_log_prob",
    "top_log_probs": "for decoding, detached",
    "top_tokens": "a choice",
}


def draw(*shape: int, positive: bool = False) -> Tensor:
    """Numbers in float64, different at every call; positive ones lie between 0.1 and 1."""
    return torch.rand(shape, dtype=torch.float64) * 0.9 + 0.1 if positive else torch.randn(shape, dtype=torch.float64)


_HOLES: dict[tuple[int, ...], Tensor] = {}


def holes(*shape: int) -> Tensor:
    """A mask, with an empty row if it has at least two; the same tensor every time, a constant for what traces."""
    if shape not in _HOLES:
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.7
        if len(shape) > 1:
            mask[..., 1, :] = False
        _HOLES[shape] = mask
    return _HOLES[shape]


def recurrent(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with ops.recurrent_steps():
        return ops.linear(torch.tanh(ops.linear(x, weight, bias)), weight, bias)


Case = tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]


def row() -> tuple[Tensor]:
    return (draw(T, S, positive=True),)


def three() -> tuple[Tensor, ...]:
    return draw(B, T, D), draw(B, S, D), draw(B, S, 2)


def heads() -> tuple[Tensor, ...]:
    return draw(1, H, T, D), draw(1, H, 6, D), draw(1, H, 6, 2)


def hidden(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """A mask with an empty row."""
    return (q != 1) & ((q + 2 * kv) % 3 > 0)


def flex(**options: Any) -> Callable[..., Any]:
    """Attention with a learned bias, which the `score_mod` captures."""
    return lambda q, k, v, table: ops.attention(q, k, v, lambda s, b, h, i, j: s + table[h, j - i + 5], mask_mod=hidden, **options)


def flexed() -> tuple[Tensor, ...]:
    return *heads(), draw(H, 11)


def learned() -> tuple[Tensor, ...]:
    """Keys, and the weights of Eq. 9."""
    return draw(S, 2), draw(1, 1), draw(A, 1), draw(2, 6), draw(2, 2)


COPIED = ops.copy_places(torch.tensor([[4, 900, 4, 5, 900, 700, 2, 1][:S]] * B), 6)
CASES: dict[str, Case] = {
    "additive_scores": (ops.additive_scores, lambda: (draw(B, T, D), draw(B, S, D), draw(D))),
    "area_attention": (lambda q, k, v: ops.area_attention(q, k, v, max_area=A, mask=holes(1, 1, T, 6)), heads),
    "attention": (flex(), flexed),
    "attention, areas": (flex(max_area=A), flexed),
    "attention, weights": (flex(need_weights=True), flexed),
    "area_attention, causal": (lambda q, k, v: ops.area_attention(q, k, v, max_area=3, causal=True, value_mode="mean"), heads),
    "area_attention, grid": (lambda q, k, v: ops.area_attention(q, k, v, max_area=(2, 2), grid=GRID, mask=holes(1, 1, T, 6)), heads),
    "area_attention, weights": (lambda q, k, v: ops.area_attention(q, k, v, max_area=A, mask=holes(1, 1, T, 6), need_weights=True), heads),
    "area_attention, areas": (lambda q, k, v: ops.area_attention(q, k, v, max_area=A, mask=holes(1, 1, T, 6), need_weights="areas"), heads),
    "area_attention, modes": (lambda q, k, v: ops.area_attention(q, k, v, max_area=A, key_mode="max", value_mode="max", top_k=3), heads),
    "area_features": (lambda x: ops.area_features(x, A)[:3], lambda: (draw(S, 2),)),
    "area_keys": (lambda x: ops.area_keys(x, A), lambda: (draw(S, 2),)),
    "area_keys, learned": (lambda x, *w: ops.area_keys(x, A, mode="features", weights=ops.AreaWeights(*w)), learned),
    "area_softmax": (lambda x: ops.area_softmax(x, holes(T, S), top_k=2, temperature=2.0), lambda: (draw(T, S),)),
    "area_sums": (lambda x: ops.area_sums(x, (2, 2), GRID), lambda: (draw(6, 2),)),
    "area_values": (lambda x: ops.area_values(x, A), lambda: (draw(S, 2),)),
    "consistent_cross_entropy": (
        lambda p, q, w, b: ops.consistent_cross_entropy(p, q, w, b, torch.tensor([0, 4, 1]), consistency=3.0, label_smoothing=0.1).loss,
        lambda: (draw(T, D), draw(T, D), draw(5, D), draw(5)),
    ),
    "cosine_scores": (ops.cosine_scores, lambda: (draw(T, D), draw(S, D), draw())),
    "dot_scores": (ops.dot_scores, lambda: (draw(T, D), draw(S, D))),
    "doubly_stochastic_penalty": (
        lambda w: ops.doubly_stochastic_penalty(w, query_mask=holes(B, T), key_mask=holes(B, S)),
        lambda: (draw(B, T, S),),
    ),
    "gaussian_window": (lambda center: ops.gaussian_window(center, S, 2), lambda: (draw(T),)),
    "gru_gates": (ops.gru_gates, lambda: (draw(B, 9), draw(B, 9), draw(3), draw(B, 3))),
    "item_weights": (lambda w: ops.item_weights(w, A), lambda: (draw(T, 9),)),
    "linear": (ops.linear, lambda: (draw(T, D), draw(2, D), draw(2))),
    "linear, in recurrent steps": (recurrent, lambda: (draw(T, D), draw(D, D), draw(D))),
    "linear_cross_entropy": (
        lambda h, w, b: ops.linear_cross_entropy(h, w, b, torch.tensor([0, 4, 1]), label_smoothing=0.1).loss,
        lambda: (draw(T, D), draw(5, D), draw(5)),
    ),
    "location_scores": (lambda x: ops.location_scores(x, 2), lambda: (draw(T, 3),)),
    "cached_attention": (
        lambda q, k, v: ops.cached_attention(q, k, v, torch.tensor([[4, 0, 1], [2, 2, 3]]), lengths=torch.tensor([3, 2]))[0],
        lambda: (draw(2, T, 1, D), draw(5, 1, D), draw(5, 1, D)),
    ),
    "residual": (ops.residual, lambda: (draw(T, D), draw(T, D), draw(D), draw(D))),
    "lstm_gates": (ops.lstm_gates, lambda: (draw(B, 12), draw(B, 3))),
    "masked_softmax": (lambda x: ops.masked_softmax(x, holes(T, S)), lambda: (draw(T, S),)),
    "copy_log_probs": (
        lambda x, g, w: ops.copy_log_probs(x, g, w.softmax(-1), COPIED)[..., :6],
        lambda: (draw(B, T, 6), draw(B, T), draw(B, T, S)),
    ),
    "copy_loss": (
        lambda x, g, w: ops.copy_loss(x, g, w.softmax(-1), COPIED, COPIED[:, :T], real=torch.ones(B, T, dtype=torch.bool)).loss,
        lambda: (draw(B, T, 6), draw(B, T), draw(B, T, S)),
    ),
    "coverage_loss": (lambda w: ops.coverage_loss(w.softmax(-1), query_mask=holes(B, T)), lambda: (draw(B, T, S),)),
    "link_loss": (
        lambda w: ops.link_loss(w.softmax(-1), torch.tensor([[0, 0, 1], [0, 0, 4], [1, 2, 0]])),
        lambda: (draw(B, T, S),),
    ),
    "ngram_parts": (ops.ngram_parts, lambda: (draw(B, T, 6), draw(B, 1, 6))),
    "sparsemax": (lambda x: ops.sparsemax(x, holes(T, S)), lambda: (draw(T, S),)),
    "entmax15": (lambda x: ops.entmax15(x, holes(T, S)), lambda: (draw(T, S),)),
    "normalize": (lambda x: ops.normalize(x, holes(T, S), normalizer="entmax15"), lambda: (draw(T, S),)),
    "area_attention, entmax15": (
        lambda q, k, v: ops.area_attention(q, k, v, max_area=A, mask=holes(1, 1, T, 6), normalizer="entmax15"),
        heads,
    ),
    "nonlocal_attention": (lambda q, k, v: ops.nonlocal_attention(q, k, v, mask=holes(1, T, S))[0], three),
    "nonlocal_attention, dot": (lambda q, k, v: ops.nonlocal_attention(q, k, v, form="dot")[0], three),
    "nonlocal_attention, concat": (
        lambda q, k, v, w: ops.nonlocal_attention(q, k, v, w, form="concat", mask=holes(1, T, S), need_weights=True),
        lambda: (*three(), draw(2 * D)),
    ),
    "normalized_weights": (ops.normalized_weights, row),
    "position_log_prob": (lambda w: ops.position_log_prob(w, torch.tensor([1, -1, 4])), row),
    "redundancy_penalty": (ops.redundancy_penalty, lambda: (draw(B, T, S),)),
    "scaled_dot_scores": (ops.scaled_dot_scores, lambda: (draw(T, D), draw(S, D))),
    "score_function_loss": (
        lambda p, h: ops.score_function_loss(torch.ones(B, 1), p, h, mask=holes(B, T), entropy_weight=0.1),
        lambda: (draw(B, T), draw(B, T)),
    ),
    "mask_nonfinite": (lambda k, v: ops.mask_nonfinite(k, v, holes(T, S))[:2], lambda: (draw(S, D), draw(S, 2))),
    "summed_area_table": (lambda x: ops.summed_area_table(x, GRID), lambda: (draw(6, 2),)),
    "weights_entropy": (ops.weights_entropy, row),
    "window_maxima": (lambda x: ops.window_maxima(x, A), lambda: (draw(S, 2),)),
    "window_moments": (lambda x: ops.window_moments(x, A), lambda: (draw(S, 2),)),
    "window_sums": (lambda x: ops.window_sums(x, A), lambda: (draw(S, 2),)),
}


def test_every_public_operation_is_differentiated_or_says_why_not():
    differentiated = {name.split(",")[0] for name in CASES}
    assert differentiated.isdisjoint(NOT_DIFFERENTIABLE)
    assert differentiated | set(NOT_DIFFERENTIABLE) == set(ops.__all__)


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_gradients_equal_finite_differences(name):
    function, make = CASES[name]
    leaves = [x.requires_grad_() for x in make()]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


@pytest.mark.skipif(native.library() is None, reason="no native library")
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (ops.residual, [(T, D), (T, D), (D,), (D,)]),
        (ops.gru_gates, [(B, 9), (B, 9), (3,), (B, 3)]),
    ],
)
def test_what_is_fast_in_float32_alone_refuses_second_derivatives_and_says_what_has_them(
    function: Callable[..., Tensor], shapes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
):
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    out = function(*leaves).sum()
    with pytest.raises(ConfigError, match=r"differentiable once; float64 tensors or REGARD_KERNELS=torch have second derivatives"):
        torch.autograd.grad(out, leaves, create_graph=True)
    monkeypatch.setenv("REGARD_KERNELS", "torch")
    first = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
    assert all(part.requires_grad for part in first)


def test_a_gradient_that_is_wrong_is_found():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0] * 3

    with pytest.raises(GradcheckError):
        torch.autograd.gradcheck(Wrong.apply, (draw(3).requires_grad_(),))
