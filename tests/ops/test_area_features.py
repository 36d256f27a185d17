"""The keys of Eq. 9 by the native library and by PyTorch alone, against the form that makes every key."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.errors import ConfigError, ShapeError
from regard.ops import reference
from regard.ops.area_windows import AreaSpec
from regard.ops.kernels import area_cpu, area_torch, native
from tests.ops.error_rule import FLOOR, Errors, assert_rule
from tests.ops.targets import instructions

WAYS = ["cpu", "torch"]


class Case(NamedTuple):
    leaves: list[Tensor]
    grad: Tensor
    options: dict[str, Any]


def make_case(seed: int, dtype: torch.dtype = torch.float64, size: int = 16, *, grid: bool = False) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def number(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    area, target, source, value_size = number(1, 2, 3, 5, 7, 16), number(1, 7, 37), number(1, 5, 31, 67, 131), number(3, 16)
    places: dict[str, Any] = {"max_area": area}
    heights = 1
    if grid:
        heights, area = number((2, 2), (3, 3), (3, 2), (1, 3), (4, 4))
        rows, columns = number((2, 3), (3, 5), (7, 11), (1, 7), (5, 1), (13, 10))
        places, source = {"max_area": (heights, area), "grid": (rows, columns)}, rows * columns
    shapes = [(2, 3, target, size), (2, 3, source, size), (2, 3, source, value_size)]
    weights = [(heights, size // 2), (area + 1, size - size // 2), (size, 3 * size), (size, size)]
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    leaves += [torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3 for shape in weights]
    mask = number(None, torch.rand(2, 1, 1, source, generator=generator) < 0.7, torch.rand(2, 1, target, source, generator=generator) < 0.8)
    if mask is not None and number(True, False):
        hidden = ~mask.expand(2, 3, target, source).any(2).unsqueeze(-1)
        leaves[1], leaves[2] = leaves[1].masked_fill(hidden, number(math.nan, 1e20, -1e30, 3e38)), leaves[2].masked_fill(hidden, math.nan)
    grad = torch.randn(2, 3, target, value_size, generator=generator, dtype=torch.float64)
    options = {**places, "mask": mask, "causal": number(True, False), "value_mode": number("sum", "mean")}
    return Case([x.to(dtype) for x in leaves], grad.to(dtype), options)


def results(attend: Any, case: Case, dtype: torch.dtype) -> list[Tensor]:
    leaves = [x.to(dtype).requires_grad_() for x in case.leaves]
    weights = ops.AreaWeights(*leaves[3:])
    out = attend(*leaves[:3], key_mode="features", key_weights=weights, **case.options)
    context = out if isinstance(out, Tensor) else out.context
    return [context.detach(), *torch.autograd.grad(context, leaves, case.grad.to(dtype))]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu" and native.library() is None:
        pytest.skip("no native library here")
    monkeypatch.setenv("REGARD_KERNELS", request.param)
    return request.param


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_in_double_precision_it_is_the_form_that_makes_every_key(seed: int, way: str, grid: bool) -> None:
    case = make_case(seed, grid=grid)
    for found, expected in zip(
        results(ops.area_attention, case, torch.float64), results(reference.area_attention, case, torch.float64), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_batch_in_pieces_is_the_batch(seed: int, grid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_KERNELS", "torch")
    monkeypatch.setattr(area_torch, "PIECE", 1)
    case = make_case(300 + seed, grid=grid)
    for found, expected in zip(
        results(ops.area_attention, case, torch.float64), results(reference.area_attention, case, torch.float64), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def errors(case: Case) -> list[Errors]:
    """Return of context and gradients the fast result's error against float64, the plain computation's, and what is mere rounding."""
    exact, plain, fast = (
        results(attend, case, dtype)
        for attend, dtype in (
            (reference.area_attention, torch.float64),
            (reference.area_attention, torch.float32),
            (ops.area_attention, torch.float32),
        )
    )
    unit = FLOOR * torch.finfo(torch.float32).eps
    return [
        Errors(float((f - e).abs().max()), float((p - e).abs().max()), unit * max(1.0, float(e.abs().max())))
        for e, p, f in zip(exact, plain, fast, strict=True)
    ]


def assert_error_rule(case: Case) -> None:
    """Hold learned keys to the error rule. A case's neighbours have queries and items a little longer each time."""
    query, key, *rest = case.leaves
    assert_rule(errors, case, (case._replace(leaves=[query * (1 + n / 64), key * (1 + n / 64), *rest]) for n in range(1, 9)))


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("seed", range(100, 120))
def test_in_single_precision_it_obeys_the_error_rule(seed: int, way: str, grid: bool) -> None:
    assert_error_rule(make_case(seed, torch.float32, grid=grid))


@pytest.mark.skipif(native.library() is None, reason="no native library here")
@pytest.mark.parametrize("grid", [False, True])
def test_repeats_are_bitwise_equal(grid: bool) -> None:
    case = make_case(3, torch.float32, grid=grid)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        first = results(ops.area_attention, case, torch.float32)
        for _ in range(50):
            assert all(torch.equal(a, b) for a, b in zip(first, results(ops.area_attention, case, torch.float32), strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.fixture(params=range(len(native.TARGETS)), ids=native.TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[int]:
    with instructions(request.param):
        yield request.param


@pytest.mark.parametrize("seed", [1, 3, 13])
@pytest.mark.parametrize("size", [16, 48])
@pytest.mark.parametrize("grid", [False, True])
def test_every_instruction_set_obeys_the_error_rule(seed: int, size: int, grid: bool, target: int) -> None:
    case = make_case(seed, size=size, grid=grid)
    found, expected = (results(attend, case, torch.float64) for attend in (ops.area_attention, reference.area_attention))
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-10, atol=1e-10)
    assert_error_rule(make_case(seed, torch.float32, size, grid=grid))


@pytest.mark.skipif(native.library() is None, reason="no native library here")
@pytest.mark.parametrize("places", [{"max_area": 5}, {"max_area": (3, 5), "grid": (7, 11)}, {"max_area": (3, 2), "grid": (7, 11)}])
@pytest.mark.parametrize("threads", [1, 17])
def test_several_tiles_of_queries_may_be_shared_among_threads(threads: int, places: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(threads)
    leaves = [torch.randn(2, 3, n, 16, generator=generator, dtype=torch.float64) for n in (79, 77, 77)]
    leaves += [torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3 for shape in ((3, 8), (5, 8), (16, 48), (16, 16))]
    mask = torch.rand(2, 1, 79, 77, generator=generator) < 0.8
    case = Case(leaves, torch.randn(2, 3, 79, 16, generator=generator, dtype=torch.float64), {**places, "mask": mask})
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = results(ops.area_attention, case, torch.float64)
    finally:
        torch.set_num_threads(before)
    for f, e in zip(found, results(reference.area_attention, case, torch.float64), strict=True):
        torch.testing.assert_close(f, e, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(native.library() is None, reason="no native library here")
def test_weights_are_summed_over_more_heads_than_one_task_takes() -> None:
    generator = torch.Generator().manual_seed(13)
    leaves = [torch.randn(53, 5, n, 16, generator=generator, dtype=torch.float64) for n in (3, 7, 7)]
    leaves += [torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3 for shape in ((1, 8), (3, 8), (16, 48), (16, 16))]
    case = Case(leaves, torch.randn(53, 5, 3, 16, generator=generator, dtype=torch.float64), {"max_area": 3, "causal": True})
    for f, e in zip(results(ops.area_attention, case, torch.float64), results(reference.area_attention, case, torch.float64), strict=True):
        torch.testing.assert_close(f, e, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(native.library() is None, reason="no native library here")
def test_gradients_lie_as_what_they_belong_to() -> None:
    x = torch.randn(2, 7, 3, 16).transpose(1, 2).requires_grad_()
    table = torch.randn(3, 8)
    weights = ops.AreaWeights(table, table, torch.randn(16, 48), torch.randn(16, 16))
    out = ops.area_attention(x, x * 1, x * 1, max_area=3, key_mode="features", key_weights=weights)
    assert isinstance(out, Tensor)
    assert torch.autograd.grad(out.sum(), x)[0].stride() == x.stride()


@pytest.mark.skipif(native.library() is None, reason="no native library here")
def test_the_operators_keep_their_contract() -> None:
    case = make_case(1, torch.float32)
    query, key, value, _, _, hidden, output = (x.nan_to_num(posinf=0.0).clamp(-3, 3).requires_grad_() for x in case.leaves)
    mean, deviation = (x.detach().contiguous().requires_grad_() for x in hidden.split(16, dim=-1)[:2])
    shape = torch.randn(3, 16, requires_grad=True)
    settings = (None, [3], [], True, False, 0.25)
    torch.library.opcheck(torch.ops.regard.area_attention.default, (query, key, value, mean, deviation, output, shape, *settings))


def test_it_compiles_without_a_break() -> None:
    torch._dynamo.reset()
    case = make_case(1, torch.float32)
    compiled = torch.compile(ops.area_attention, fullgraph=True, backend="aot_eager")
    plain, fast = results(ops.area_attention, case, torch.float32), results(compiled, case, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(plain, fast, strict=True))


def test_what_the_kernel_cannot_is_left_to_pytorch_alone() -> None:
    query = torch.zeros(1, 1, 3, 5)
    path, reason = ops.area_path(query, query, query, max_area=2, modes=("features", "sum"))
    assert path == "torch"
    assert native.library() is None or "multiples of 16, not 5" in reason
    wide = torch.zeros(1, 1, 35, 16)
    assert ops.area_path(wide, wide, wide, max_area=(2, 5), grid=(5, 7), modes=("features", "sum"))[0] == "torch"
    if native.library() is not None:
        assert ops.area_path(wide, wide, wide, max_area=2, modes=("features", "sum"))[0] == "cpu"
        assert ops.area_path(wide, wide, wide, max_area=(2, 4), grid=(5, 7), modes=("features", "sum"))[0] == "cpu"
        assert ops.area_path(wide, wide, wide, max_area=(2, 5), grid=(1, 35), modes=("features", "sum"))[0] == "cpu"


def test_an_odd_head_size_and_a_grid_are_the_reference_s() -> None:
    leaves = [torch.randn(2, 3, n, 5, dtype=torch.float64) for n in (7, 6, 6)]
    shapes = ((2, 2), (3, 3), (5, 15), (5, 5))
    weights = ops.AreaWeights(*(torch.randn(shape, dtype=torch.float64) for shape in shapes))
    options: dict[str, Any] = {"max_area": (2, 3), "grid": (2, 3), "key_mode": "features", "key_weights": weights}
    expected = reference.area_attention(leaves[0], leaves[1], leaves[2], **options)
    torch.testing.assert_close(ops.area_attention(leaves[0], leaves[1], leaves[2], **options), expected.context)


def test_half_precision_is_computed_in_single(way: str) -> None:
    case = make_case(2, torch.bfloat16)
    wide = Case([x.float() for x in case.leaves], case.grad.float(), case.options)
    found, expected = results(ops.area_attention, case, torch.bfloat16)[0], results(reference.area_attention, wide, torch.float32)[0]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.05 * float(expected.abs().max()), rtol=0)


def test_missing_or_wrong_weights_are_named() -> None:
    x = torch.zeros(1, 1, 3, 16)
    with pytest.raises(ConfigError, match="AreaWeights"):
        ops.area_attention(x, x, x, max_area=2, key_mode="features")
    small = ops.AreaWeights(torch.zeros(1, 4), torch.zeros(2, 4), torch.zeros(8, 24), torch.zeros(8, 8))
    with pytest.raises(ShapeError, match=r"\(1, 1, 3, 16\).*\(8, 8\)"):
        ops.area_attention(x, x, x, max_area=2, key_mode="features", key_weights=small)
    short = ops.AreaWeights(torch.zeros(1, 8), torch.zeros(2, 8), torch.zeros(16, 48), torch.zeros(16, 16))
    with pytest.raises(ShapeError, match="embeddings for areas up to"):
        ops.area_attention(x, x, x, max_area=3, key_mode="features", key_weights=short)


def test_the_native_code_of_features_takes_areas_of_up_to_16() -> None:
    query = torch.zeros(1, 1, 3, 16)
    assert "up to 16 items, not 17" in str(area_cpu.unsupported(query, 31, AreaSpec(17, key_mode="features")))
    assert "up to 16" not in str(area_cpu.unsupported(query, 31, AreaSpec(16, key_mode="features")))
