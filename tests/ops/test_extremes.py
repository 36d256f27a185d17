"""Finite but extreme numbers, on every path: what is hidden has no effect, and scores of any finite size are a softmax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.ops import reference
from regard.ops.kernels import native
from regard.ops.materialized_areas import LEARNED_KEY_MODES
from tests.ops.targets import TARGETS, instructions

HELD = (torch.nan, torch.inf, -torch.inf, 1e20, -1e20, 3e38, -3e38)
SCORES = (1e6, 1e9, 1e20, 1e29, 1e30, 1e35, 3e38)
AREAS: dict[str, dict[str, Any]] = {
    "items": {"max_area": 1},
    "areas": {"max_area": 3},
    "areas of a size of no loop of its own": {"max_area": 7},
    "means of values": {"max_area": 3, "value_mode": "mean"},
    "grid": {"max_area": (2, 2), "grid": (3, 3)},
    "features": {"max_area": 3, "key_mode": "features"},
    "concat": {"max_area": 3, "key_mode": "concat"},
    "max": {"max_area": 2, "key_mode": "max", "value_mode": "max"},
    "top": {"max_area": 3, "top_k": 4},
}
T, S, D = 5, 9, 16


@pytest.fixture(params=[*TARGETS, "torch", "reference"], ids=str)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if isinstance(request.param, str):
        monkeypatch.setenv("REGARD_KERNELS", request.param)
        yield request.param
        return
    with instructions(request.param):
        yield "cpu"


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape) + shape[-1]))


def options(name: str) -> dict[str, Any]:
    found = dict(AREAS[name])
    if found.get("key_mode") in LEARNED_KEY_MODES:
        tables, biases = (drawn(1, 8), drawn(3, 8)), (drawn(D), drawn(D))
        weights = ops.AreaWeights(*tables, drawn(D, 3 * D) * 0.2, drawn(D, D) * 0.2, *(biases if found["key_mode"] == "concat" else ()))
        for part in leaves_of({"key_weights": weights}):
            part.requires_grad_()
        found["key_weights"] = weights
    return found


def leaves_of(found: dict[str, Any]) -> list[Tensor]:
    return [x for x in found.get("key_weights") or () if x is not None]


def masks() -> dict[str, Tensor]:
    """Which queries see the last items: none; only the last query; the first query sees nothing at all in both."""
    padded = torch.ones(1, 1, T, S, dtype=torch.bool)
    padded[..., S - 2 :] = False
    padded[..., 0, :] = False
    some = padded.clone()
    some[..., T - 1, :] = True
    return {"hidden from all": padded, "seen by the last query": some}


@pytest.mark.parametrize("seen", masks())
@pytest.mark.parametrize("name", AREAS)
def test_what_is_hidden_has_no_effect_whatever_it_holds(name: str, seen: str, way: str) -> None:
    if way == "torch" and name in ("concat", "max"):
        pytest.skip("only the reference supports these areas")
    mask, found = masks()[seen], options(name)
    query, key, value = drawn(2, 1, T, D), drawn(2, 1, S, D, seed=1), drawn(2, 1, S, D, seed=2)

    def results(held: float, what: str) -> list[Tensor]:
        leaves = [x.clone() for x in (query, key, value)]
        for number, part in enumerate(("key", "value"), 1):
            if part in what:
                leaves[number][..., S - 1, :] = held
        leaves = [x.requires_grad_() for x in leaves]
        context = ops.area_attention(*leaves, mask=mask, **found)
        assert isinstance(context, Tensor)
        # Only of queries that do not see it.
        grads = torch.autograd.grad(context[..., : T - 1, :].square().sum(), [*leaves, *leaves_of(found)], materialize_grads=True)
        return [context[..., : T - 1, :].detach(), *grads]

    expected = results(0.0, "both")
    assert all(x.isfinite().all() for x in expected)
    assert expected[0][:, :, 0].eq(0).all()  # the first query sees nothing
    for held in HELD:
        for what in ("key", "value", "key and value"):
            if seen != "hidden from all" and abs(held) == 3e38 and what != "value":
                continue  # the score of the query that sees it is beyond float32
            for number, (mine, right) in enumerate(zip(results(held, what), expected, strict=True)):
                torch.testing.assert_close(mine, right, msg=lambda m, n=number, h=held, w=what: f"{h} in {w}, result {n}: {m}")
                if number in (2, 3):
                    assert mine[..., S - 1, :].eq(0).all(), (held, what)


@pytest.mark.parametrize("size", SCORES)
@pytest.mark.parametrize("shift", [-1, 0, 1])
@pytest.mark.parametrize("name", [name for name in AREAS if name not in ("features", "concat")])
def test_scores_of_any_finite_size_are_a_softmax(name: str, shift: int, size: float, way: str) -> None:
    """Scores around -size, 0 and +size, with items that tie."""
    if way == "torch" and name == "max":
        pytest.skip("only the reference supports these areas")
    key = torch.tensor([1.0, 1, 0.5, 0.75, 1, 1, 0.25, 1, 0.5])[:, None] * (0.5 if shift == 0 else 1.0)
    if shift == 0:
        key[::2] *= -1
    query = torch.full((1, 1, 1, 1), size * (shift or 1))
    if way == "reference" and size > 1e38 and AREAS[name]["max_area"] != 1 and name != "max":
        pytest.skip("the reference adds up keys")
    value, mask = drawn(1, 1, S, 3), torch.arange(S) != 3
    args = {"mask": mask, "scale": 1.0, **AREAS[name]}
    leaves = [query, key[None, None].clone(), value]
    exact = reference.area_attention(*(x.double() for x in leaves), **args).context
    context = ops.area_attention(leaves[0], leaves[1], leaves[2], **args)
    assert isinstance(context, Tensor)
    torch.testing.assert_close(context.double(), exact, rtol=1e-5, atol=1e-5)
    leaves = [x.requires_grad_() for x in leaves]
    context = ops.area_attention(leaves[0], leaves[1], leaves[2], **args)
    assert isinstance(context, Tensor)
    assert all(x.isfinite().all() for x in torch.autograd.grad(context.sum(), leaves[2]))


@pytest.mark.parametrize("name", AREAS)
def test_without_features_all_scores_are_0_and_weights_uniform(name: str, way: str) -> None:
    if name in ("features", "concat") or (way == "torch" and name == "max"):
        pytest.skip("learned keys have a size; only the reference makes areas of maxima")
    query, key = (torch.zeros(2, 1, n, 0, requires_grad=True) for n in (T, S))
    value = drawn(2, 1, S, 3).requires_grad_()
    mask = masks()["hidden from all"]
    args = {key: part for key, part in AREAS[name].items() if key != "key_mode"}
    context = ops.area_attention(query, key, value, mask=mask, **args)
    zeros = [torch.zeros(2, 1, n, 1, dtype=torch.float64) for n in (T, S)]
    expected = reference.area_attention(zeros[0], zeros[1], value.double(), mask=mask, **args).context
    assert isinstance(context, Tensor)
    torch.testing.assert_close(context.double(), expected)
    assert context[:, :, 1:].abs().amax() > 0
    grads = torch.autograd.grad(context.sum(), [query, key, value])
    assert [x.shape for x in grads] == [query.shape, key.shape, value.shape]
    wanted = torch.autograd.grad(expected.sum(), value)
    torch.testing.assert_close(grads[2], wanted[0])


@pytest.mark.parametrize("size", SCORES)
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("longest", [1, 2, 5])
@pytest.mark.parametrize("target", TARGETS)
def test_scattered_items_with_scores_of_any_size_are_a_softmax(target: int, longest: int, sign: int, size: float) -> None:
    keys = torch.tensor([1.0, 1, 0.5, 0.75, 1, 1, 0.25, 1, 0.5])[:, None, None] * sign
    values, places = drawn(S, 1, 3)[..., :1], torch.tensor([[3, 1, 4, 0, 5, 8, 2]])
    query = torch.full((1, 1, 1, 1), size)
    with torch.no_grad(), instructions(target):
        mine = ops.cached_attention(query, keys, values, places, scale=1.0, max_area=longest, need_weights=True)
    wide = [x.double() for x in (query, keys, values)]
    exact = ops.cached_attention(wide[0], wide[1], wide[2], places, scale=1.0, max_area=longest, need_weights=True)
    for a, b in zip(mine, exact, strict=True):
        assert a is not None
        assert b is not None
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_lowest_number_is_a_score_and_not_a_mask(dtype: torch.dtype) -> None:
    low = torch.finfo(dtype).min
    scores = torch.tensor([[low, low, 5.0, low], [low, 0.0, 1.0, low]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[True, True, False, False], [False, False, False, False]])
    weights = ops.masked_softmax(scores, mask)
    assert weights.tolist() == [[0.5, 0.5, 0.0, 0.0], [0.0] * 4]
    with torch.autograd.detect_anomaly(check_nan=True):
        gradient = torch.autograd.grad(ops.masked_softmax(scores, mask)[:, 0].sum(), scores)[0]
    assert gradient.tolist() == [[0.25, -0.25, 0.0, 0.0], [0.0] * 4]


@pytest.mark.skipif(native.library() is None, reason="no native library here")
def test_the_paths_are_the_native_ones() -> None:
    x = torch.zeros(1, 1, S, D)
    for name in ("items", "areas", "areas of a size of no loop of its own", "means of values", "grid", "features"):
        modes = AREAS[name].get("key_mode", "mean"), AREAS[name].get("value_mode", "sum")
        assert ops.area_path(x, x, x, max_area=AREAS[name]["max_area"], grid=AREAS[name].get("grid"), modes=modes)[0] == "cpu"
