"""Area attention with every area made: the oracle of the fast paths, itself held against loops and an independent package."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from area_attention import AreaAttention
from hypothesis import given
from hypothesis import strategies as st

from regard import ops
from regard.errors import ConfigError, ShapeError
from regard.ops.materialized_areas import KEY_MODES, LEARNED_KEY_MODES, VALUE_MODES, AreaWeights
from regard.ops.reference import area_attention
from tests.reference import area as reference

B, H, T, S, D, DV = 2, 3, 5, 11, 7, 13
GRID = (3, 5)
SHAPES = {"sequence": (S, 3, None), "grid": (15, (2, 3), GRID)}
EVERY = pytest.mark.parametrize(("size", "max_area", "grid"), SHAPES.values(), ids=SHAPES)


def normal(*shape, dtype=torch.float64, seed=23):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(size=S, dtype=torch.float64, target=T):
    return tuple(normal(B, H, *shape, dtype=dtype, seed=seed) for seed, shape in enumerate(((target, D), (size, D), (size, DV))))


def masks(size):
    padding = ops.length_mask(torch.tensor([size, 4]), size)[:, None, None]
    scattered = normal(B, H, T, size, seed=5) > -0.7
    scattered[0, 1, 2] = False
    return {
        "none": None,
        "padding": padding,
        "scattered": scattered,
        "one row": normal(size, seed=3) > -1,
        "all": torch.ones(1, 1, 1, 1, dtype=torch.bool),
    }


def compare(found, tensors, mask, **settings):
    query, key, value = tensors
    full = torch.ones(B, H, query.shape[-2], key.shape[-2], dtype=torch.bool) if mask is None else mask.expand(B, H, query.shape[-2], -1)
    for b in range(B):
        for h in range(H):
            expected = reference.attend(query[b, h].numpy(), key[b, h].numpy(), value[b, h].numpy(), full[b, h].numpy(), **settings)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one[b, h].numpy(), other, rtol=1e-11, atol=1e-11)


@EVERY
@pytest.mark.parametrize("mode", VALUE_MODES)
@pytest.mark.parametrize("kind", ["none", "padding", "scattered", "one row", "all"])
def test_it_equals_the_loops(kind, mode, size, max_area, grid):
    tensors, mask = inputs(size), masks(size)[kind]
    found = area_attention(*tensors, max_area=max_area, grid=grid, mask=mask, value_mode=mode)
    compare(found, tensors, None if mask is None else mask.expand(*mask.shape[:-1], size), max_area=max_area, grid=grid, value_mode=mode)


@pytest.mark.parametrize("target", [5, 11, 13])
def test_causal_hides_what_stands_after_the_query(target):
    tensors, mask = inputs(target=target), normal(B, H, 1, S) > -1
    found = area_attention(*tensors, max_area=3, mask=mask, causal=True)
    compare(found, tensors, mask & ops.causal_mask(target, S), max_area=3)
    found = area_attention(*tensors, max_area=3, causal=True)
    compare(found, tensors, ops.causal_mask(target, S), max_area=3)


@EVERY
def test_top_k_and_temperature_equal_the_loops(size, max_area, grid):
    tensors, mask = inputs(size), masks(size)["scattered"]
    found = area_attention(*tensors, max_area=max_area, grid=grid, mask=mask, top_k=3, temperature=1.7)
    compare(found, tensors, mask, max_area=max_area, grid=grid, top_k=3, temperature=1.7)


def test_the_scale_replaces_one_over_the_root_of_the_size():
    query, key, value = inputs()
    found = area_attention(query, key, value, max_area=3, scale=0.3)
    torch.testing.assert_close(found, area_attention(query * (0.3 * math.sqrt(D)), key, value, max_area=3))


@pytest.mark.parametrize("kind", ["none", "padding", "scattered"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_areas_of_one_item_are_ordinary_attention_bitwise(dtype, kind):
    query, key, value = inputs(dtype=dtype)
    mask = masks(S)[kind]
    weights = ops.masked_softmax(ops.scaled_dot_scores(query, key), mask)
    for mode in VALUE_MODES:
        found = area_attention(query, key, value, max_area=1, mask=mask, value_mode=mode)
        assert torch.equal(found.context, weights @ value)
        assert torch.equal(found.area_weights, weights)
        assert torch.equal(found.item_weights, weights)


@EVERY
def test_scores_of_areas_are_means_of_scores_of_items(size, max_area, grid):
    query, key, value = inputs(size)
    scores = ops.scaled_dot_scores(query, key)
    weights = torch.softmax(ops.window_sums(scores.transpose(-1, -2), max_area, grid, mean=True).transpose(-1, -2), -1)
    context = ops.item_weights(weights, max_area, grid) @ value
    found = area_attention(query, key, value, max_area=max_area, grid=grid)
    torch.testing.assert_close(found.area_weights, weights)
    torch.testing.assert_close(found.context, context)


@EVERY
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 1e300])
def test_what_a_masked_item_holds_changes_nothing(poison, size, max_area, grid):
    mask = masks(size)["padding"]

    def run(key_value, key_mode, value_mode):
        query, key, value = (x.clone() for x in inputs(size))
        key[1, :, 4:], value[1, :, 4:] = key_value, key_value
        leaves = [x.requires_grad_() for x in (query, key, value)]
        weights = learned_weights(key_mode, max_area) if key_mode in LEARNED_KEY_MODES else None
        settings = {
            "max_area": max_area,
            "grid": grid,
            "mask": mask,
            "key_mode": key_mode,
            "value_mode": value_mode,
            "key_weights": weights,
        }
        found = area_attention(*leaves, **settings)
        found.context.square().sum().backward()
        return [*found, *(x.grad for x in leaves)]

    for key_mode in ("mean", "max", "features"):
        for value_mode in VALUE_MODES:
            clean, spoilt = run(0.5, key_mode, value_mode), run(poison, key_mode, value_mode)
            assert all(torch.equal(one, other) for one, other in zip(clean, spoilt, strict=True))
            assert spoilt[4][1, :, 4:].abs().max() == spoilt[5][1, :, 4:].abs().max() == 0


def test_a_bad_item_is_seen_by_those_who_may_attend_it_and_by_nobody_else():
    query, key, value = inputs(target=S)
    clean = area_attention(query, key, value, max_area=3, causal=True)
    spoilt = key.clone()
    spoilt[:, :, 6] = torch.nan
    found = area_attention(query, spoilt, value, max_area=3, causal=True)
    for one, other in zip(found, clean, strict=True):
        assert torch.equal(one[:, :, :6], other[:, :, :6])
        assert one[:, :, 6:].isnan().all()
    assert area_attention(query, spoilt, value, max_area=3).context.isnan().all()


def test_a_hidden_area_that_overflows_does_not_reach_the_query():
    query, key, value = inputs(target=S, dtype=torch.float16)
    clean = area_attention(query, key, value, max_area=3, causal=True).context
    value = value.clone()
    value[:, :, 6:] = 60000.0
    found = area_attention(query, key, value, max_area=3, causal=True).context
    assert torch.equal(found[:, :, :6], clean[:, :, :6])


@EVERY
@pytest.mark.parametrize("key_mode", KEY_MODES)
def test_a_row_with_nothing_to_attend_to_is_zero_with_zero_gradients(key_mode, size, max_area, grid):
    leaves = [x.requires_grad_() for x in inputs(size)]
    mask = torch.ones(B, 1, T, size, dtype=torch.bool)
    mask[:, :, 2] = False
    weights = learned_weights(key_mode, max_area) if key_mode in LEARNED_KEY_MODES else None
    found = area_attention(*leaves, max_area=max_area, grid=grid, mask=mask, key_mode=key_mode, key_weights=weights)
    assert all(part[:, :, 2].abs().max() == 0 for part in found)
    found.context.square().sum().backward()
    assert all(x.grad is not None for x in leaves)
    assert all(x.grad.isfinite().all() for x in leaves)
    assert leaves[0].grad[:, :, 2].abs().max() == 0


def test_a_row_that_allows_no_whole_area_but_single_items_uses_these():
    query, key, value = inputs()
    mask = torch.arange(S) % 2 == 0
    found = area_attention(query, key, value, max_area=3, mask=mask)
    assert found.area_weights[..., S:].abs().max() == 0
    torch.testing.assert_close(found.context, ops.masked_softmax(ops.scaled_dot_scores(query, key), mask) @ value)


@pytest.mark.parametrize(("batch", "target", "size"), [(0, T, S), (B, 0, S), (B, T, 0), (B, 1, 1), (B, 0, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_axes_of_length_0_and_1_work(causal, batch, target, size):
    query, key, value = normal(batch, H, target, D), normal(batch, H, size, D), normal(batch, H, size, DV)
    for max_area in (1, 3):
        for mask in (None, torch.ones(batch, 1, target, size, dtype=torch.bool)):
            found = area_attention(query, key, value, max_area=max_area, mask=mask, causal=causal, top_k=2)
            assert found.context.shape == (batch, H, target, DV)
            assert found.item_weights.shape == (batch, H, target, size)
            if size == 0:
                assert found.context.abs().sum() == 0


def test_dropout_drops_whole_areas_and_shows_the_weights_before_it():
    query, key, value = inputs()
    plain = area_attention(query, key, value, max_area=3)
    torch.default_generator.manual_seed(3)
    found = area_attention(query, key, value, max_area=3, dropout=0.5)
    assert torch.equal(found.area_weights, plain.area_weights)
    torch.default_generator.manual_seed(3)
    torch.testing.assert_close(found.context, F.dropout(plain.area_weights, 0.5) @ ops.area_values(value, 3))
    assert area_attention(query, key, value, max_area=3, dropout=1.0).context.abs().max() == 0


@EVERY
@pytest.mark.parametrize(("key_mode", "value_mode"), [("mean", "sum"), ("mean", "mean"), ("max", "max")])
def test_gradients_are_those_of_finite_differences(key_mode, value_mode, size, max_area, grid):
    query, key, value = (normal(1, 1, *shape, seed=seed).requires_grad_() for seed, shape in enumerate(((3, 2), (6, 2), (6, 3))))
    mask = torch.ones(1, 1, 3, 6, dtype=torch.bool).tril(2)
    mask[..., 0, 0] = False
    settings = {"max_area": max_area, "grid": grid and (2, 3), "mask": mask, "key_mode": key_mode, "value_mode": value_mode}

    def function(query, key, value):
        found = area_attention(query, key, value, **settings)
        return found.context, found.item_weights

    assert torch.autograd.gradcheck(function, (query, key, value))
    assert torch.autograd.gradgradcheck(lambda *x: function(*x)[0], (query, key, value))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@EVERY
def test_half_precision_is_at_most_twice_as_wrong_as_the_plain_computation(size, max_area, grid, dtype):
    tensors = inputs(size, dtype)
    exact = area_attention(*(x.double() for x in tensors), max_area=max_area, grid=grid).context
    query, key, value = tensors
    inside = [items for _, items in reference.areas(*reference.sized(size, max_area, grid))]
    keys = torch.stack([key[..., items, :].mean(-2) for items in inside], -2)
    values = torch.stack([value[..., items, :].sum(-2) for items in inside], -2)
    plain = torch.softmax(query @ keys.transpose(-1, -2) / math.sqrt(D), -1) @ values
    error = (area_attention(*tensors, max_area=max_area, grid=grid).context.double() - exact).abs()
    assert error.max() <= 2 * (plain.double() - exact).abs().max()


def test_expanded_and_transposed_inputs_give_what_their_copies_do():
    query, key, value = normal(B, T, H, D).transpose(1, 2), normal(B, 1, S, D).expand(B, H, S, D), normal(B, H, DV, S).mT
    found = area_attention(query, key, value, max_area=3)
    torch.testing.assert_close(found, area_attention(query.contiguous(), key.contiguous(), value.contiguous(), max_area=3))


def test_it_runs_under_autocast():
    tensors = inputs(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = area_attention(*tensors, max_area=3, causal=True).context
    torch.testing.assert_close(found.float(), area_attention(*tensors, max_area=3, causal=True).context, rtol=0.05, atol=0.05)


class Whole(torch.nn.Module):
    def forward(self, query, key, value, mask):
        return area_attention(query, key, value, max_area=3, mask=mask, causal=True, top_k=5)


def test_it_traces_as_one_graph_and_exports():
    arguments = (*inputs(), torch.ones(B, 1, 1, S, dtype=torch.bool))
    expected = Whole()(*arguments)
    torch.testing.assert_close(torch.compile(Whole(), fullgraph=True, backend="aot_eager")(*arguments), expected)
    batch = {0: torch.export.Dim("batch")}
    exported = torch.export.export(Whole(), arguments, dynamic_shapes=(batch, batch, batch, batch)).module()
    torch.testing.assert_close(exported(*arguments), expected)
    assert exported(*(x[:1].expand(5, *x.shape[1:]) for x in arguments))[0].shape == (5, H, T, DV)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"max_area": (2, 2), "grid": (3, 5)}, ShapeError, r"\(3, 5\) holds 15 items.* has 11"),
        ({"max_area": 3, "mask": torch.ones(S)}, ShapeError, "boolean.*float32"),
        ({"max_area": 3, "mask": torch.ones(3, dtype=torch.bool)}, ShapeError, r"\(3,\).*\(2, 3, 5, 11\)"),
        ({"max_area": 3, "key_mode": "sum"}, ConfigError, "'sum' has learned weights"),
        ({"max_area": 3, "value_mode": "median"}, ConfigError, "'median'"),
    ],
)
def test_an_error_names_what_was_found(change, error, message):
    with pytest.raises(error, match=message):
        area_attention(*inputs(), **change)


def test_heads_that_do_not_agree_are_refused():
    query, key, value = inputs()
    with pytest.raises(ShapeError, match=r"\(2, 3, 5, 7\).*\(2, 1, 11, 7\)"):
        area_attention(query, key[:, :1], value[:, :1], max_area=3)


@given(st.data())
def test_any_memory_mask_and_area_agree_with_the_loops(data):
    grid = data.draw(st.none() | st.tuples(st.integers(1, 3), st.integers(1, 4)))
    max_area = data.draw(st.integers(1, 5)) if grid is None else data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    size = data.draw(st.integers(0, 7)) if grid is None else grid[0] * grid[1]
    target, seed = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 99))
    query, key, value = normal(B, H, target, 3, seed=seed), normal(B, H, size, 3, seed=seed + 1), normal(B, H, size, 2, seed=seed + 2)
    mask = normal(B, H, target, size, seed=seed + 3) > data.draw(st.sampled_from([-9.0, -1.0, 0.0, 9.0]))
    mode = data.draw(st.sampled_from(VALUE_MODES))
    found = area_attention(query, key, value, max_area=max_area, grid=grid, mask=mask, value_mode=mode)
    compare(found, (query, key, value), mask, max_area=max_area, grid=grid, value_mode=mode)


# The package `area-attention` is a port of tensor2tensor's code to torch: the same modes, dense layers, embeddings and epsilon. It differs
# in dividing the scores by sqrt(D) itself (tensor2tensor scales the query outside and has a temperature), has no masks, and its keys must
# have even size. The paper has only "mean" and Eq. 9, which is "concat" without biases and with e = [e^w; e^h]. Compared in float64, for
# the package's deviations come from differences of tables: in float32 its noise differs from ours in the fourth digit.


@pytest.fixture
def _float64():
    torch.set_default_dtype(torch.float64)  # the package draws its noise in the default type
    yield
    torch.set_default_dtype(torch.float32)


def oracle(key_mode, value_mode, max_area, grid, top_k=0):
    height, width = (1, max_area) if grid is None else max_area
    rows, columns = grid or (1, S)
    torch.default_generator.manual_seed(11)
    module = AreaAttention(6, key_mode, value_mode, height, width, rows, columns, top_k_areas=top_k)
    if key_mode not in LEARNED_KEY_MODES:
        return module, None
    first, _, last = module.area_key_embedding
    tables = module.area_height_embedding.weight, module.area_width_embedding.weight
    return module, AreaWeights(*tables, first.weight, last.weight, first.bias, last.bias)


@pytest.mark.usefixtures("_float64")
@EVERY
@pytest.mark.parametrize("value_mode", VALUE_MODES)
@pytest.mark.parametrize("key_mode", [mode for mode in KEY_MODES if mode != "features"])
def test_every_mode_equals_that_of_an_independent_package(key_mode, value_mode, size, max_area, grid):
    query, key, value = normal(B, T, 6), normal(B, size, 6), normal(B, size, DV)
    for top_k, training in ((0, False), (3, False), (0, True)):
        module, weights = oracle(key_mode, value_mode, max_area, grid, top_k)
        module.train(training)
        torch.default_generator.manual_seed(13)  # the noise of the sampling modes is drawn in the same order
        expected = module(query, key, value)
        torch.default_generator.manual_seed(13)
        found = area_attention(
            query.unsqueeze(1),
            key.unsqueeze(1),
            value.unsqueeze(1),
            max_area=max_area,
            grid=grid,
            key_mode=key_mode,
            value_mode=value_mode,
            top_k=top_k or None,
            key_weights=weights,
            training=training,
        )
        torch.testing.assert_close(found.context.squeeze(1), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("_float64")
def test_equation_9_is_the_concat_mode_without_biases_and_with_the_embeddings_swapped():
    module, weights = oracle("concat", "sum", 3, None)
    assert weights is not None
    for bias in (weights.hidden_bias, weights.output_bias):
        bias.data.zero_()
    mean_std, of_height, of_width = weights.hidden.split([12, 3, 3], -1)
    swapped = weights._replace(hidden=torch.cat([mean_std, of_width, of_height], -1), hidden_bias=None, output_bias=None)
    query, key, value = normal(B, T, 6), normal(B, S, 6), normal(B, S, DV)
    found = area_attention(*(x.unsqueeze(1) for x in (query, key, value)), max_area=3, key_mode="features", key_weights=swapped)
    torch.testing.assert_close(found.context.squeeze(1), module(query, key, value), rtol=1e-9, atol=1e-9)


def learned_weights(mode, max_area):
    height, width = (1, max_area) if isinstance(max_area, int) else max_area
    bias = None if mode == "features" else normal(D, seed=7)
    parts = {"features": 3, "concat": 3, "max_concat": 2, "sample_concat": 2}.get(mode, 1)
    tables = normal(height, D // 2, seed=1), normal(width, D - D // 2, seed=2)
    return AreaWeights(*tables, normal(D, D * parts, seed=3), normal(D, D, seed=5), bias, bias)
