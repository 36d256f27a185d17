"""Every way of computing area attention against materialized areas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

from regard import ops
from regard.errors import ConfigError, ShapeError
from regard.ops import reference
from regard.ops.kernels import area_torch, native
from tests.ops.error_rule import FLOOR, Errors, assert_rule
from tests.ops.targets import instructions

SEQUENCES = [1, 2, 3, 4, 5, 7, 8, 11, 16, 37, 64]
RECTANGLES = [(1, 1), (2, 2), (3, 3), (2, 3), (4, 1), (4, 4), (1, 3)]
# In float64 the oracle is no more exact than what it judges: logits of 1e4 leave about 1e-12 of a weight.
DOUBLE_ROOM = 1e-10

needs_library = pytest.mark.skipif(native._LIBRARY is None, reason="no native library here")


class Case(NamedTuple):
    tensors: tuple[Tensor, Tensor, Tensor]
    grad: Tensor
    options: dict[str, Any]


def pick(generator: torch.Generator, *choices: Any) -> Any:
    return choices[int(torch.randint(len(choices), (), generator=generator))]


def masked(generator: torch.Generator, shape: tuple[int, int, int, int]) -> Tensor | None:
    batch, _, target, source = shape
    kind = pick(generator, "none", "keys", "rows", "all", "causal", "queries")
    if kind == "none":
        return None
    if kind == "causal":
        return ops.causal_mask(target, source)[None, None]
    size = {"keys": (batch, 1, 1, source), "rows": (1, 1, target, source), "all": shape, "queries": (batch, 1, target, 1)}[kind]
    mask = torch.rand(size, generator=generator) < pick(generator, 0.5, 0.9)
    if kind == "all" and target:
        mask[:, :, 0] = False  # a row with nothing to attend to
    return mask


def laid_out(generator: torch.Generator, x: Tensor, *, poisoned: bool) -> Tensor:
    """Return equal numbers in another layout; where one head's poison must not show in another's place, without expanding."""
    kind = pick(generator, "is_plain", "heads inside", "strided", "is_plain" if poisoned else "expanded")
    if kind == "heads inside":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "strided":
        return torch.stack([x, x], dim=-1)[..., 0]
    return x[:, :1].expand_as(x) if kind == "expanded" else x


def make_case(seed: int, dtype: torch.dtype) -> Case:
    generator = torch.Generator().manual_seed(seed)
    grid = pick(generator, None, None, (5, 7), (3, 11), (13, 1), (1, 17))
    area = pick(generator, *SEQUENCES) if grid is None else pick(generator, *RECTANGLES)
    source = math.prod(grid) if grid else pick(generator, 1, 2, 13, 31, 127, 131, 257)
    target, size, value_size = pick(generator, 1, 3, 31, 67), pick(generator, 1, 5, 16, 64), pick(generator, 1, 7, 32, 64)
    shapes = [(2, 3, n, d) for n, d in ((target, size), (source, size), (source, value_size), (target, value_size))]
    query, key, value, grad = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    query = query * pick(generator, 1, 1, 1, 10, 2e3)  # logits up to some 1e4; beyond them: test_extremes.py
    mask = masked(generator, (2, 3, target, source))
    poisoned = mask is not None and pick(generator, True, False)
    if mask is not None and poisoned:  # what is hidden from everybody may hold anything
        hidden = ~mask.expand(2, 3, target, source).any(2).unsqueeze(-1)
        key, value = (
            key.masked_fill(hidden, pick(generator, math.nan, math.inf, 1e20, -1e30, 3e38)),
            value.masked_fill(hidden, pick(generator, math.nan, 3e38)),
        )
    tensors = tuple(laid_out(generator, x.to(dtype), poisoned=poisoned) for x in (query, key, value))
    causal, value_mode = pick(generator, True, False), pick(generator, "sum", "sum", "mean")
    options = {"max_area": area, "grid": grid, "mask": mask, "causal": causal, "value_mode": value_mode}
    return Case((tensors[0], tensors[1], tensors[2]), grad.to(dtype), options)


def results(attend: Callable[..., Any], case: Case, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return context and gradients; the case's own type, or another."""
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in case.tensors]
    out = attend(*leaves, **case.options)
    context = out if isinstance(out, Tensor) else out.context
    return [context.detach(), *torch.autograd.grad(context, leaves, case.grad.to(dtype or context.dtype))]


def error(found: Tensor, exact: Tensor) -> float:
    assert torch.equal(found.isnan(), exact.isnan())
    return float((found.double() - exact).nan_to_num().abs().max()) if exact.numel() else 0.0


def flipped(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Compute the same plainly with the features in the opposite order: a rounding error that is small by luck is then seldom so twice."""
    return reference.area_attention(query.flip(-1), key.flip(-1), value.flip(-1), **options).context.flip(-1)


def errors(case: Case) -> list[Errors]:
    """Return of context and gradients the fast result's error against float64, the plain computation's, and what is mere rounding."""
    exact = results(reference.area_attention, case, torch.float64)
    plains = [results(way, case) for way in (reference.area_attention, flipped)]
    found = []
    for e, f, *plain in zip(exact, results(ops.area_attention, case), *plains, strict=True):
        unit = DOUBLE_ROOM if f.dtype == torch.float64 else FLOOR * torch.finfo(f.dtype).eps
        room = unit * max(1.0, float(e.nan_to_num().abs().max()) if e.numel() else 0.0)
        found.append(Errors(error(f, e), max(error(p, e) for p in plain), room))
    return found


def assert_error_rule(case: Case) -> None:
    """Hold area attention to the error rule. A case's neighbours have queries a little longer each time."""
    query, key, value = case.tensors
    assert_rule(errors, case, (case._replace(tensors=((query * (1 + n / 64)).to(query.dtype), key, value)) for n in range(1, 9)))


def random_cases(count: int, start: int = 0) -> Iterator[Case]:
    for seed in range(start, start + count):
        yield make_case(seed, (torch.float32, torch.float32, torch.bfloat16, torch.float64)[seed % 4])


@pytest.mark.parametrize("group", range(15))
def test_the_default_way_obeys_the_error_rule(group: int) -> None:
    for case in random_cases(10, 10 * group):
        assert_error_rule(case)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "group"), [("cpu", group) for group in range(80)] + [("torch", group) for group in range(20)])
def test_every_way_obeys_the_error_rule_over_two_thousand_cases(way: str, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "cpu" and native.library() is None:
        pytest.skip("no native library here")
    monkeypatch.setenv("REGARD_KERNELS", way)
    for case in random_cases(25, 1000 + 25 * group):
        assert_error_rule(case)


@pytest.mark.parametrize("seed", range(20))
def test_pytorch_alone_obeys_the_error_rule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_KERNELS", "torch")
    assert_error_rule(make_case(5000 + seed, torch.float32))


@pytest.mark.parametrize("seed", range(10))
def test_a_batch_in_pieces_is_the_batch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_KERNELS", "torch")
    case = make_case(7000 + seed, torch.float64)
    pieces: list[int] = []
    attend = area_torch.attend
    monkeypatch.setattr(area_torch, "attend", lambda query, *rest: pieces.append(len(query)) or attend(query, *rest))
    whole = results(ops.area_attention, case)
    assert pieces == [2]
    monkeypatch.setattr(area_torch, "PIECE", 1)
    for found, expected in zip(results(ops.area_attention, case), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert pieces == [2, 1, 1]


@needs_library
@pytest.mark.parametrize("target", range(3))
def test_every_instruction_set_obeys_the_error_rule(target: int) -> None:
    with instructions(target):
        for case in random_cases(24, 7000):
            assert_error_rule(case)


@needs_library
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3)])
def test_250_repeats_are_bitwise_equal(threads: int, shape: tuple[int, int]) -> None:
    parts = [torch.randn(*shape, size, 16, requires_grad=True) for size in (127, 131, 131)]

    def once() -> list[Tensor]:
        out = ops.area_attention(parts[0], parts[1], parts[2], max_area=5, causal=True)
        return [out, *torch.autograd.grad(out.sum(), parts)]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first = once()
        for _ in range(250):
            assert all(torch.equal(a, b) for a, b in zip(first, once(), strict=True))
    finally:
        torch.set_num_threads(before)


def plain_parts(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(2, 3, size, width, dtype=dtype, requires_grad=True) for size, width in ((7, 5), (11, 5), (11, 13))]


@pytest.mark.parametrize("way", ["cpu", "torch", "reference"])
def test_what_is_hidden_changes_nothing_bitwise(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "cpu" and native.library() is None:
        pytest.skip("no native library here")
    monkeypatch.setenv("REGARD_KERNELS", way)
    query, key, value = (x.detach() for x in plain_parts())
    mask = torch.ones(2, 1, 7, 11, dtype=torch.bool)
    mask[:, :, :, 4] = False
    mask[1, :, 2] = False

    def run(key: Tensor, value: Tensor) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        out = ops.area_attention(leaves[0], leaves[1], leaves[2], max_area=3, mask=mask)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    clean = run(key, value)
    for bad in (math.nan, math.inf, -math.inf, 3e38):
        other_key, other_value = key.clone(), value.clone()
        other_key[:, :, 4], other_value[:, :, 4] = bad, bad
        assert all(torch.equal(a, b) for a, b in zip(clean, run(other_key, other_value), strict=True))
    assert (clean[0][1, :, 2] == 0).all()
    assert (clean[1][1, :, 2] == 0).all()
    assert (clean[2][:, :, 4] == 0).all()
    assert (clean[3][:, :, 4] == 0).all()


@pytest.mark.parametrize("way", ["cpu", "torch"])
def test_a_query_that_may_attend_a_bad_item_is_loud(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "cpu" and native.library() is None:
        pytest.skip("no native library here")
    monkeypatch.setenv("REGARD_KERNELS", way)
    query, key, value = (x.detach() for x in plain_parts())
    value[0, 1, 6, 2] = math.nan
    out = ops.area_attention(query, key, value, max_area=3, mask=ops.causal_mask(7, 11)[None, None])  # query t sees up to t + 4
    bad = torch.zeros(2, 3, 7, dtype=torch.bool)
    bad[0, 1, 2:] = True
    assert torch.equal(out.isnan().all(-1), bad)
    assert torch.equal(out.isnan().any(-1), bad)


@needs_library
def test_a_query_that_is_not_finite_is_loud() -> None:
    query, key, value = (x.detach() for x in plain_parts())
    query[1, 2, 3, 0] = math.nan
    out = ops.area_attention(query, key, value, max_area=3)
    assert out[1, 2, 3].isnan().all()
    assert int(out.isnan().any(-1).sum()) == 1


@pytest.mark.parametrize("need", [True, "areas"])
@pytest.mark.parametrize("grid", [None, (3, 5)])
def test_weights_on_request_are_the_reference_s(need: bool | str, grid: tuple[int, int] | None) -> None:
    query, key, value = (torch.randn(2, 3, size, 7, dtype=torch.float64) for size in (5, 15, 15))
    options: dict[str, Any] = {"max_area": 4 if grid is None else (2, 3), "grid": grid, "mask": torch.rand(2, 1, 5, 15) < 0.8}
    expected = reference.area_attention(query, key, value, **options)
    context, weights = ops.area_attention(query, key, value, need_weights=need, **options)
    torch.testing.assert_close(context, expected.context)
    torch.testing.assert_close(weights, expected.area_weights if need == "areas" else expected.item_weights)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 3},
        {"temperature": 2.5},
        {"scale": 0.3},
        {"key_mode": "max"},
        {"value_mode": "max"},
        {"value_mode": "mean", "top_k": 2},
        {"key_mode": "sample", "temperature": 0.7},
    ],
)
def test_the_other_options_are_the_reference_s(options: dict[str, Any]) -> None:
    parts = plain_parts(torch.float64)
    found = ops.area_attention(parts[0], parts[1], parts[2], max_area=3, **options)
    torch.testing.assert_close(found, reference.area_attention(parts[0], parts[1], parts[2], max_area=3, **options).context)


def test_dropout_drops_whole_areas_and_keeps_the_mean() -> None:
    query, key = torch.zeros(1, 1, 20011, 1), torch.zeros(1, 1, 3, 1)
    out = ops.area_attention(query, key, torch.eye(3).reshape(1, 1, 3, 3), max_area=2, dropout=0.5)  # areas 1, 2, 3, 12, 23
    torch.testing.assert_close(out.mean(2).flatten(), torch.tensor([0.4, 0.6, 0.4]), atol=0.01, rtol=0)
    assert set(out[0, 0, :, 0].mul(5).round().unique().tolist()) == {0.0, 2.0, 4.0}


def test_areas_of_one_item_are_ordinary_attention() -> None:
    parts = plain_parts(torch.float64)
    found = ops.area_attention(parts[0], parts[1], parts[2], max_area=1)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2]))


@pytest.mark.parametrize("sizes", [(0, 3, 7, 11), (2, 0, 7, 11), (2, 3, 0, 11), (2, 3, 7, 0)])
def test_empty_axes_give_zeros_or_nothing(sizes: tuple[int, int, int, int]) -> None:
    batch, heads, target, source = sizes
    parts = [torch.randn(batch, heads, n, 5, requires_grad=True) for n in (target, source, source)]
    out = ops.area_attention(parts[0], parts[1], parts[2], max_area=3)
    assert torch.equal(out, torch.zeros(batch, heads, target, 5))
    assert all(torch.equal(g, torch.zeros_like(p)) for g, p in zip(torch.autograd.grad(out.sum(), parts), parts, strict=True))


def test_a_gradient_of_the_gradient_is_right() -> None:
    parts = [torch.randn(1, 1, n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 5, 5)]
    assert torch.autograd.gradgradcheck(lambda q, k, v: ops.area_attention(q, k, v, max_area=2, causal=True), parts)


def test_autocast_computes_in_its_type() -> None:
    parts = [x.detach() for x in plain_parts()]
    with torch.autocast("cpu", torch.bfloat16):
        out = ops.area_attention(parts[0], parts[1].bfloat16(), parts[2], max_area=3)
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        (((2, 3, 7, 5), (2, 3, 11, 4), (2, 3, 11, 13)), "D of query and key differs"),
        (((2, 3, 7, 5), (2, 3, 11, 5), (2, 3, 12, 13)), "S of key and value differs"),
        (((2, 3, 7, 5), (2, 4, 11, 5), (2, 4, 11, 13)), "B and H differ"),
        (((2, 7, 5), (2, 11, 5), (2, 11, 13)), "must be"),
    ],
)
def test_wrong_shapes_are_named(shapes: tuple[tuple[int, ...], ...], found: str) -> None:
    query, key, value = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ShapeError, match=found) as caught:
        ops.area_attention(query, key, value, max_area=3)
    assert all(str(shape) in str(caught.value) for shape in shapes)


def test_a_wrong_mask_grid_or_type_is_named() -> None:
    query, key, value = plain_parts()
    with pytest.raises(ShapeError, match=r"\(1, 1, 7, 12\).*\(2, 3, 7, 11\)"):
        ops.area_attention(query, key, value, max_area=3, mask=torch.ones(1, 1, 7, 12, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"\(3, 4\)"):
        ops.area_attention(query, key, value, max_area=(2, 2), grid=(3, 4))
    with pytest.raises(ConfigError, match="max_area"):
        ops.area_attention(query, key, value, max_area=(2, 2))
    with pytest.raises(ShapeError, match=r"torch\.float64"):
        ops.area_attention(query, key.double(), value, max_area=2)
    with pytest.raises(ConfigError, match="key_mode"):
        ops.area_attention(query, key, value, max_area=2, key_mode="median")


def test_the_environment_forces_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = plain_parts()
    seen = []
    for way in ("reference", "torch"):
        monkeypatch.setenv("REGARD_KERNELS", way)
        assert ops.area_path(query, key, value, max_area=3) == (way, "forced by REGARD_KERNELS")
        seen.append(ops.area_attention(query, key, value, max_area=3))
    torch.testing.assert_close(seen[0], seen[1])
    monkeypatch.setenv("REGARD_KERNELS", "cuda")
    with pytest.raises(ConfigError, match="expected one of reference, torch, cpu, triton, found 'cuda'"):
        ops.area_attention(query, key, value, max_area=3)


@pytest.mark.parametrize(
    ("way", "options", "reason"),
    [
        ("torch", {"key_mode": "max"}, "only the reference"),
        ("cpu", {"need_weights": True}, "no weights"),
        ("cpu", {"max_area": 65}, "up to 64"),
        ("cpu", {"max_area": (5, 1), "grid": (5, 23)}, "up to 4 x 4"),
        ("triton", {}, "(CUDA|the package triton is not installed)"),
    ],
)
@needs_library
def test_a_way_that_cannot_is_an_error_that_says_why(
    way: str, options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_KERNELS", way)
    query, key = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 115, 2)
    with pytest.raises(ConfigError, match=f"REGARD_KERNELS={way}: .*{reason}"):
        ops.area_attention(query, key, key, **{"max_area": 3, **options})


def test_without_the_library_pytorch_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = plain_parts()
    expected = ops.area_attention(query, key, value, max_area=3)
    monkeypatch.setattr(native, "_LIBRARY", None)
    monkeypatch.setattr(native, "_REASON", "not built")
    assert ops.area_path(query, key, value, max_area=3) == ("torch", "not built")
    torch.testing.assert_close(ops.area_attention(query, key, value, max_area=3), expected)
    monkeypatch.setenv("REGARD_KERNELS", "cpu")
    with pytest.raises(ConfigError, match="REGARD_KERNELS=cpu: not built"):
        ops.area_attention(query, key, value, max_area=3)


@needs_library
@pytest.mark.parametrize("mask", [None, torch.ones(7, 11, dtype=torch.bool).tril(4)[None, None]])
def test_the_operators_keep_their_contract(mask: Tensor | None) -> None:
    query, key, value = plain_parts()
    settings = (None, None, None, None, mask, [3], [], False, False, 0.3)
    torch.library.opcheck(torch.ops.regard.area_attention.default, (query, key, value, *settings))
    out, lse = torch.ops.regard.area_attention(query, key, value, *settings)
    parts = [x.detach() for x in (query, key, value)]
    torch.library.opcheck(torch.ops.regard.area_attention_backward.default, (torch.ones_like(out).detach(), None, [lse], *parts, *settings))


def test_it_compiles_without_a_break() -> None:
    torch._dynamo.reset()
    parts = plain_parts()

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ops.area_attention(query, key, value, max_area=3, causal=True).square()

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for size in (7, 9):  # the second time with symbolic sizes
        query = torch.randn(2, 3, size, 5, requires_grad=True)
        plain, fast = attend(query, parts[1], parts[2]), compiled(query, parts[1], parts[2])
        assert torch.equal(plain, fast)
        leaves = (query, parts[1], parts[2])
        grads = zip(torch.autograd.grad(plain.sum(), leaves), torch.autograd.grad(fast.sum(), leaves), strict=True)
        assert all(torch.equal(a, b) for a, b in grads)


def test_it_exports_with_free_lengths() -> None:
    class Module(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            out = ops.area_attention(query, key, value, max_area=3, causal=True)
            assert isinstance(out, Tensor)
            return out

    target, source = torch.export.Dim("target"), torch.export.Dim("source")
    sizes = {"query": {2: target}, "key": {2: source}, "value": {2: source}}
    parts = tuple(x.detach() for x in plain_parts())
    program = torch.export.export(Module(), parts, dynamic_shapes=sizes).module()
    other = [torch.randn(2, 3, n, d) for n, d in ((17, 5), (2, 5), (2, 13))]
    assert torch.equal(program(*other), Module()(*other))


def test_activation_checkpointing_gives_the_same_gradients() -> None:
    parts = [part.detach().requires_grad_() for part in plain_parts()]

    def attend(*given: Tensor) -> Tensor:
        found = ops.area_attention(*given, max_area=3)
        assert isinstance(found, Tensor)
        return found

    expected = torch.autograd.grad(attend(*parts).square().sum(), parts)
    again = torch.utils.checkpoint.checkpoint(attend, *parts, use_reentrant=False)
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(again.square().sum(), parts), expected, strict=True))
