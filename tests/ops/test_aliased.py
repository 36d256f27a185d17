"""Gradients of operations whose arguments are not independent: one tensor passed twice, views of one storage, one computed from another.

With `create_graph=True` an operation may take another way backward, which must give the same first gradients, and right second ones.
`gradgradcheck` cannot see it: it makes every argument a leaf of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import ops
from tests.ops.test_gradients import CASES as DIFFERENTIATED
from tests.ops.test_gradients import flex, holes

N, D = 6, 3  # a length and a size that all arguments share, so that each may stand in for another
PLACES = torch.tensor([[4, 0, 1], [2, 2, 3]])
Shape = tuple[int, ...]
Case = tuple[Callable[..., Any], list[Shape]]


def recurrent(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with ops.recurrent_steps():
        return ops.linear(torch.tanh(ops.linear(x, weight, bias)), weight, bias)


def area(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v: ops.area_attention(q, k, v, **options)


def learned(q: Tensor, k: Tensor, v: Tensor, *weights: Tensor) -> Any:
    return ops.area_attention(q, k, v, max_area=2, mask=holes(1, 1, N, N), key_mode="features", key_weights=ops.AreaWeights(*weights))


THREE: list[Shape] = [(2, N, D)] * 3
HEADS: list[Shape] = [(2, 1, N, D)] * 3
SOURCES = ops.copy_places(torch.tensor([[4, 900, 4, 5, 900, 700][:N]] * 2), N)
# Every operation of several tensors, by the names of test_gradients.py.
CASES: dict[str, Case] = {
    "additive_scores": (ops.additive_scores, [(2, N, D), (2, N, D), (D,)]),
    "area_attention": (area(max_area=2, mask=holes(1, 1, N, N)), HEADS),
    "area_attention, causal": (area(max_area=3, causal=True, value_mode="mean"), HEADS),
    "area_attention, grid": (area(max_area=(2, 2), grid=(2, 3), mask=holes(1, 1, N, N)), HEADS),
    "area_attention, weights": (area(max_area=2, mask=holes(1, 1, N, N), need_weights=True), HEADS),
    "area_attention, areas": (area(max_area=2, mask=holes(1, 1, N, N), need_weights="areas"), HEADS),
    "area_attention, modes": (area(max_area=2, key_mode="max", value_mode="max", top_k=3), HEADS),
    "area_attention, entmax15": (area(max_area=2, mask=holes(1, 1, N, N), normalizer="entmax15"), HEADS),
    "area_attention, features": (learned, [*[(1, 1, N, 16)] * 3, (2, 8), (2, 8), (16, 48), (16, 16)]),
    "attention": (flex(), [(1, 2, N, 11)] * 3 + [(2, 11)]),
    "attention, areas": (flex(max_area=2), [(1, 2, N, 11)] * 3 + [(2, 11)]),
    "attention, weights": (flex(need_weights=True), [(1, 2, N, 11)] * 3 + [(2, 11)]),
    "area_keys, learned": (
        lambda x, *w: ops.area_keys(x, 2, mode="features", weights=ops.AreaWeights(*w)),
        [(N, 2), (2, 1), (2, 1), (2, 6), (2, 2)],
    ),
    "consistent_cross_entropy": (
        lambda p, q, w, b: ops.consistent_cross_entropy(p, q, w, b, torch.tensor([0, 2, 1]), consistency=3.0, label_smoothing=0.1).loss,
        [(D, D), (D, D), (D, D), (D,)],
    ),
    "cosine_scores": (ops.cosine_scores, [(N, D), (N, D), ()]),
    "dot_scores": (ops.dot_scores, [(N, D)] * 2),
    "gru_gates": (ops.gru_gates, [(2, 9), (2, 9), (3,), (2, 3)]),
    "linear": (ops.linear, [(D, D), (D, D), (D,)]),
    "linear, in recurrent steps": (recurrent, [(D, D), (D, D), (D,)]),
    "linear_cross_entropy": (
        lambda h, w, b: ops.linear_cross_entropy(h, w, b, torch.tensor([0, 2, 1]), label_smoothing=0.1).loss,
        [(D, D), (D, D), (D,)],
    ),
    "cached_attention": (
        lambda q, k, v: ops.cached_attention(q[None].expand(2, -1, -1, -1), k, v, PLACES, lengths=torch.tensor([3, 2]))[0],
        [(N, 1, D)] * 3,
    ),
    "copy_log_probs": (
        lambda x, g, w: ops.copy_log_probs(x, g, w.softmax(-1), SOURCES)[..., :N],
        [(2, 2, N), (2, 2), (2, 2, N)],
    ),
    "copy_loss": (
        lambda x, g, w: ops.copy_loss(x, g, w.softmax(-1), SOURCES, SOURCES[:, :2], real=torch.ones(2, 2, dtype=torch.bool)).loss,
        [(2, 2, N), (2, 2), (2, 2, N)],
    ),
    "ngram_parts": (ops.ngram_parts, [(2, 1, 4)] * 2),
    "residual": (ops.residual, [(N, D), (N, D), (D,), (D,)]),
    "lstm_gates": (ops.lstm_gates, [(2, 12), (2, 3)]),
    "nonlocal_attention": (lambda q, k, v: ops.nonlocal_attention(q, k, v, mask=holes(1, N, N))[0], THREE),
    "nonlocal_attention, dot": (lambda q, k, v: ops.nonlocal_attention(q, k, v, form="dot")[0], THREE),
    "nonlocal_attention, concat": (
        lambda q, k, v, w: ops.nonlocal_attention(q, k, v, w, form="concat", mask=holes(1, N, N), need_weights=True),
        [*THREE, (2 * D,)],
    ),
    "scaled_dot_scores": (ops.scaled_dot_scores, [(N, D)] * 2),
    "score_function_loss": (
        lambda p, h: ops.score_function_loss(torch.ones(2, 1), p, h, mask=holes(2, N), entropy_weight=0.1),
        [(2, N)] * 2,
    ),
    "mask_nonfinite": (lambda k, v: ops.mask_nonfinite(k, v, holes(N, N))[:2], [(N, D)] * 2),
}
# In float32 these have gradients of their own, differentiable once.
ONCE_IN_FLOAT32 = {"gru_gates", "residual"}

Pattern = tuple[list[Tensor], Callable[[list[Tensor]], list[Tensor]]]


def patterns(shapes: list[Shape]) -> Iterator[tuple[str, Pattern]]:
    """Yield leaves, and how the arguments of an operation are made of them."""
    generator = torch.Generator().manual_seed(len(shapes))

    def leaves() -> list[Tensor]:
        return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]

    yield "independent", (leaves(), lambda x: x)
    for first, second in combinations(range(len(shapes)), 2):
        if shapes[first] == shapes[second]:
            yield f"{first} is {second}", (leaves(), lambda x, i=first, j=second: [x[i] if n == j else a for n, a in enumerate(x)])
            yield f"{second} views {first}", (leaves(), lambda x, i=first, j=second: [x[i][:] if n == j else a for n, a in enumerate(x)])
        for i, j in ((first, second), (second, first)):
            yield f"{j} of {i}", (leaves(), lambda x, i=i, j=j: [a + x[i].sin().mean() if n == j else a for n, a in enumerate(x)])
    alike = [n for n, shape in enumerate(shapes) if shape == shapes[0]]
    if len(alike) > 1:
        yield "all equal", (leaves(), lambda x: [x[0] if n in alike else a for n, a in enumerate(x)])
        yield "a chain", (leaves(), lambda x: [a if n not in alike else x[0] if not n else x[0].sin() * n for n, a in enumerate(x)])
        size = leaves()[0].numel()
        storage = torch.randn(size + len(alike), generator=generator, dtype=torch.float64)
        # Views that overlap, as windows over one sequence do.
        yield (
            "windows",
            (
                [storage, *leaves()],
                lambda x: [x[0][n : n + size].view(shapes[0]) if n in alike else a for n, a in enumerate(x[1:])],
            ),
        )


def total(outputs: list[Tensor], dtype: torch.dtype) -> Tensor:
    parts = [(x * torch.linspace(-1, 2, x.numel(), dtype=dtype).view_as(x)).sum() for x in outputs if x.requires_grad]
    return torch.stack(parts).sum()


def gradients(function: Callable[..., Any], pattern: Pattern, dtype: torch.dtype, twice: bool) -> list[list[Tensor]]:
    """Return the gradients of the leaves and, `twice`, those of their squares, by `create_graph`."""
    leaves = [x.to(dtype).requires_grad_() for x in pattern[0]]
    found = function(*pattern[1](leaves))
    outputs = [found] if isinstance(found, Tensor) else list(found)
    first = torch.autograd.grad(total(outputs, dtype), leaves, create_graph=twice, materialize_grads=True)
    second: tuple[Tensor, ...] = ()
    if twice and any(x.requires_grad for x in first):
        second = torch.autograd.grad(total([x.square() for x in first], dtype), leaves, materialize_grads=True)
    return [[x.detach() for x in first], list(second)]


def assert_near(found: list[Tensor], exact: list[Tensor], dtype: torch.dtype, what: str) -> None:
    assert len(found) == len(exact), what
    for number, (mine, right) in enumerate(zip(found, exact, strict=True)):
        error, size = float((mine.double() - right).abs().max()), max(1.0, float(right.abs().max()))
        assert error <= (1e-9 if dtype == torch.float64 else 1e-3) * size, f"{what}, leaf {number}: {error} of {size}"


def test_every_operation_of_several_tensors_is_in_the_table() -> None:
    several = {name for name, (_, make) in DIFFERENTIATED.items() if len(make()) > 1}
    assert set(CASES) == several | {"area_attention, features"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_aliased_arguments_have_the_reference_s_gradients(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shapes = CASES[name]
    twice = dtype != torch.float32 or name not in ONCE_IN_FLOAT32
    for what, pattern in patterns(shapes):
        with monkeypatch.context() as patch:
            patch.setenv("REGARD_KERNELS", "reference")
            exact = gradients(function, pattern, torch.float64, twice)
        assert_near(gradients(function, pattern, dtype, False)[0], exact[0], dtype, f"{what}, first")
        if twice:
            first, second = gradients(function, pattern, dtype, True)
            assert_near(first, exact[0], dtype, f"{what}, first with a graph")
            assert_near(second, exact[1], dtype, f"{what}, second")
