"""Sparsemax and 1.5-entmax against a bisection, at their limits, and under second derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from regard import ops
from regard.errors import ConfigError
from tests.reference.attention import NORMALIZERS

SPARSE = {"sparsemax": ops.sparsemax, "entmax15": ops.entmax15}
EACH = pytest.mark.parametrize("name", SPARSE)
T, S = 13, 17


def scores(scale: float = 1.5) -> Tensor:
    return scale * torch.randn(3, T, S, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def mask() -> Tensor:
    allowed = torch.rand(3, T, S, generator=torch.Generator().manual_seed(5)) < 0.6
    allowed[0, 1] = False
    return allowed


def loops(name: str, table: Tensor, allowed: Tensor) -> Tensor:
    return torch.from_numpy(np.stack([NORMALIZERS[name](*pair) for pair in zip(table.numpy(), allowed.numpy(), strict=True)]))


@EACH
@pytest.mark.parametrize("scale", [1e-6, 0.3, 1.5, 30.0, 1e6])
def test_weights_are_those_of_a_bisection(name, scale):
    found = SPARSE[name](scores(scale), mask())
    torch.testing.assert_close(found, loops(name, scores(scale), mask()), atol=1e-9 if scale < 1e6 else 1e-8, rtol=0)
    torch.testing.assert_close(found.sum(-1), mask().any(-1).double(), atol=1e-12, rtol=0)


@EACH
def test_many_weights_are_exactly_zero_and_sparsemax_has_more_of_them(name):
    counts = {other: (function(scores()) > 0).sum(-1) for other, function in SPARSE.items()}
    assert (counts[name].double().mean() < 0.5 * S).item()
    assert (counts["sparsemax"] <= counts["entmax15"]).all()


@EACH
def test_the_gradient_is_the_closed_form_of_the_paper(name):
    """J = diag(u) - u u^T / sum u with u the support (Martins and Astudillo, Eq. 11) or sqrt p (Peters et al., Prop. 2)."""
    row = scores()[0, 0]
    weights = SPARSE[name](row)
    u = (weights > 0).double() if name == "sparsemax" else weights.sqrt()
    torch.testing.assert_close(torch.func.jacrev(SPARSE[name])(row), torch.diag(u) - torch.outer(u, u) / u.sum())


@EACH
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # forward mode imports it
def test_gradients_once_and_twice_equal_finite_differences_under_a_mask(name):
    table, allowed = scores()[:, :3, :7].clone().requires_grad_(), mask()[:, :3, :7]
    assert torch.autograd.gradcheck(lambda x: SPARSE[name](x, allowed), table, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: SPARSE[name](x, allowed), table)


@EACH
def test_a_single_winner_takes_exactly_all(name):
    for best in (1.0, 2.0, 1e30):
        table = torch.tensor([[0.0, best + 1.0, 0.0, -1e30, -3.0]], requires_grad=True)
        weights = SPARSE[name](table)
        assert weights.tolist() == [[0.0, 1.0, 0.0, 0.0, 0.0]]
        assert torch.autograd.grad(weights.square().sum(), table)[0].tolist() == [[0.0] * 5]


@EACH
def test_equal_scores_share_equally(name):
    for size in (1, 2, 11, 1000):
        torch.testing.assert_close(SPARSE[name](torch.full((2, size), 7.0)), torch.full((2, size), 1 / size), atol=1e-7, rtol=1e-4)


@EACH
def test_a_bad_score_is_seen_in_its_row_and_not_at_all_where_masked(name):
    table = torch.tensor([[math.nan, 1.0, 2.0], [math.inf, 0.0, 1.0], [1.0, 2.0, -math.inf], [-math.inf] * 3], requires_grad=True)
    weights = SPARSE[name](table)
    assert weights[:2].isnan().all()
    assert torch.equal(weights[2:].detach(), SPARSE[name](table.detach()[2:]))
    assert weights[3].tolist() == [0.0] * 3
    hidden = torch.tensor([False, True, True])
    weights = SPARSE[name](table, hidden)
    clean = SPARSE[name](table.detach()[:, 1:])
    assert torch.equal(weights.detach(), torch.cat([torch.zeros(4, 1), clean], 1))
    assert torch.autograd.grad(weights.square().sum(), table)[0][:, 0].tolist() == [0.0] * 4


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_precision_errs_by_its_own_rounding_only(name, dtype):
    table = scores().to(dtype).requires_grad_()
    weights = SPARSE[name](table, mask())
    assert weights.dtype == dtype
    exact = SPARSE[name](table.detach().double(), mask())
    assert (weights.double() - exact).abs().max() <= 4 * torch.finfo(dtype).eps  # a few roundings of a few sums
    assert torch.autograd.grad(weights.sum(), table)[0].dtype == dtype


@EACH
def test_no_key_gives_no_weight_and_rows_may_be_absent(name):
    assert SPARSE[name](torch.zeros(3, 0)).shape == (3, 0)
    assert SPARSE[name](torch.zeros(0, 3)).shape == (0, 3)


def test_normalize_takes_each_name_and_refuses_others_by_name():
    for name in NORMALIZERS:
        torch.testing.assert_close(ops.normalize(scores(), mask(), normalizer=name), loops(name, scores(), mask()))
    with pytest.raises(ConfigError, match="normalizer: expected one of softmax, sparsemax, entmax15, found 'max'"):
        ops.normalize(scores(), normalizer="max")


@pytest.mark.parametrize("normalizer", SPARSE)
def test_kernels_that_know_only_the_softmax_are_not_asked(normalizer, monkeypatch):
    query, key, value = (torch.randn(1, 2, 5, 16, generator=torch.Generator().manual_seed(n)) for n in range(3))
    settings = {"max_area": 2, "normalizer": normalizer}
    found = ops.area_attention(query, key, value, **settings)
    assert (found - ops.area_attention(query, key, value, max_area=2)).abs().max() > 1e-3
    with monkeypatch.context() as patch:
        patch.setenv("REGARD_KERNELS", "reference")
        torch.testing.assert_close(found, ops.area_attention(query, key, value, **settings))
        patch.setenv("REGARD_KERNELS", "cpu")
        with pytest.raises(ConfigError, match="softmax only"):
            ops.area_attention(query, key, value, **settings)
    places = torch.arange(5)[None]
    cached = ops.cached_attention(query.transpose(1, 2), key[0].transpose(0, 1), value[0].transpose(0, 1), places, **settings)[0]
    torch.testing.assert_close(cached, found.transpose(1, 2))
    single = ops.cached_attention(query.transpose(1, 2), *(x[0].transpose(0, 1) for x in (key, value)), places, normalizer=normalizer)[0]
    torch.testing.assert_close(single, (ops.normalize(query @ key.mT / 4, normalizer=normalizer) @ value).transpose(1, 2))


def test_forms_without_a_softmax_refuse_another_normalizer():
    x = torch.zeros(1, 3, 2)
    with pytest.raises(ConfigError, match=r"form='dot'.*'sparsemax'"):
        ops.nonlocal_attention(x, x, x, form="dot", normalizer="sparsemax")
