"""The shield: what a mask hides cannot leak, what it shows stays loud."""

from __future__ import annotations

import pytest
import torch

from regard import ops
from regard.ops.nonfinite import finite_rows

B, T, S, D, DV = 2, 3, 7, 5, 11
BAD = [float("nan"), float("inf"), -float("inf")]
MASKS = {"(S,)": (S,), "(B, T, S)": (B, T, S), "(B, 1, S)": (B, 1, S), "(1, T, S)": (1, T, S)}


def inputs():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(B, S, D, generator=generator), torch.randn(B, S, DV, generator=generator)


def mask_of(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(5)) < 0.6
    mask[..., 2] = False  # nobody may look here
    mask[..., 0] = True
    return mask


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_a_bad_row_is_zeros_in_both_and_taints_exactly_who_may_look(bad, where, shape):
    key, value = inputs()
    (key if where == "key" else value)[1, 4, 3] = bad
    mask = mask_of(shape)
    shielded = ops.mask_nonfinite(key, value, mask)
    full = mask.expand(B, T, S)
    for b in range(B):
        for s in range(S):
            gone = (b, s) == (1, 4) or not full[b, :, s].any()
            assert torch.equal(shielded.key[b, s], torch.zeros(D) if gone else key[b, s])
            assert torch.equal(shielded.value[b, s], torch.zeros(DV) if gone else value[b, s])
        assert shielded.tainted.expand(B, T)[b].tolist() == [b == 1 and bool(full[b, t, 4]) for t in range(T)]


def test_huge_numbers_that_nobody_may_see_are_gone_too():
    key, value = inputs()
    key[:, 2] = value[:, 2] = 3e38
    shielded = ops.mask_nonfinite(key, value, mask_of((1, T, S)))
    assert (shielded.key[:, 2] == 0).all()
    assert (shielded.value[:, 2] == 0).all()
    assert not shielded.tainted.any()


def test_without_a_mask_nothing_is_touched():
    key, value = inputs()
    key[0, 0] = torch.nan
    shielded = ops.mask_nonfinite(key, value, None)
    assert shielded.key is key
    assert shielded.value is value
    assert shielded.tainted is None


def test_bad_rows_get_no_gradient_and_the_others_theirs():
    key, value = inputs()
    key[0, 5] = torch.nan
    key.requires_grad_()
    value.requires_grad_()
    mask = torch.ones(1, T, S, dtype=torch.bool)
    shielded = ops.mask_nonfinite(key, value, mask)
    gradients = torch.autograd.grad(shielded.key.sum() + shielded.value.sum(), (key, value))
    for gradient in gradients:
        expected = torch.ones(B, S, 1)
        expected[0, 5] = 0
        assert torch.equal(gradient, expected.expand_as(gradient))


def test_one_tensor_for_keys_and_values_is_shielded_once():
    key, _ = inputs()
    key[1, 1] = torch.nan
    together = ops.mask_nonfinite(key, key, mask_of((1, T, S)))
    apart = ops.mask_nonfinite(key, key.clone(), mask_of((1, T, S)))
    assert together.value is together.key
    assert all(torch.equal(one, other) for one, other in zip(together, apart, strict=True))


def test_heads_and_a_mask_for_each_of_them_broadcast():
    key, value = (part.unsqueeze(1).expand(-1, 3, -1, -1).clone() for part in inputs())
    value[0, 2, 4] = torch.inf
    mask = torch.rand(B, 3, T, S, generator=torch.Generator().manual_seed(7)) < 0.5
    tainted = ops.mask_nonfinite(key, value, mask).tainted
    expected = torch.zeros(B, 3, T, dtype=torch.bool)
    expected[0, 2] = mask[0, 2, :, 4]
    assert expected.any()
    assert torch.equal(tainted, expected)


@pytest.mark.parametrize("sizes", [(0, S), (T, 0), (0, 0)])
def test_no_queries_or_no_keys_are_nothing_special(sizes):
    target, source = sizes
    shielded = ops.mask_nonfinite(torch.ones(B, source, D), torch.ones(B, source, DV), torch.ones(1, target, source, dtype=torch.bool))
    assert shielded.key.shape == (B, source, D)
    assert shielded.tainted.shape == (B, target)
    assert not shielded.tainted.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_row_of_the_largest_numbers_is_finite(dtype):
    largest = torch.finfo(dtype).max
    rows = torch.tensor([[largest, -largest], [0.0, -torch.inf], [torch.nan, torch.inf], [0.0, torch.nan]], dtype=dtype)
    assert finite_rows(rows).tolist() == [True, False, False, False]


PAYLOADS = [(torch.float32, torch.int32, bits) for bits in (0x7FC00000, 0x7FC00001, 0x7FC000FF, -1)]
PAYLOADS += [
    (torch.float64, torch.int64, bits) for bits in (0x7FF00000000007A2, 0x7FF8000000000001, -1)
]  # the first is NA of the language R


@pytest.mark.parametrize(("dtype", "numbers", "bits"), PAYLOADS)
def test_every_nan_stays_one_whatever_its_bits(dtype, numbers, bits):
    nan = torch.tensor([bits], dtype=numbers).view(dtype)[0]
    query, key = (torch.randn(1, 1, count, 16, dtype=dtype, generator=torch.Generator().manual_seed(count)) for count in (2, 5))
    query[0, 0, 0, 0] = nan
    for most in (1, 3):
        found = ops.area_attention(query, key, key, max_area=most)
        assert found[0, 0, 0].isnan().all()
        assert found[0, 0, 1].isfinite().all()
    logits = torch.randn(3, 40, dtype=dtype)
    logits[1, 7] = nan
    best = ops.top_log_probs(logits, 2)[0]
    assert best[1].isnan().any()
    assert best[::2].isfinite().all()
