"""Areas: which there are, what is summed over them, and the tables of the paper beside the sums that attention uses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import ops
from regard.errors import ConfigError, ShapeError
from regard.ops.materialized_areas import KEY_MODES, LEARNED_KEY_MODES, VALUE_MODES, AreaWeights, hidden_parts
from tests.reference import area as reference

D = 5
SHAPES = {
    "sequence": (7, 3, None),
    "all of it": (5, 11, None),
    "grid": (15, (2, 3), (3, 5)),
    "clipped grid": (6, (5, 2), (2, 3)),
    "items": (7, 1, None),
}
EVERY = pytest.mark.parametrize(("size", "max_area", "grid"), SHAPES.values(), ids=SHAPES)
HALVES = [torch.float16, torch.bfloat16]


def normal(*shape, dtype=torch.float64, seed=23):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def weights_for(mode, max_area, dim=D, dtype=torch.float64):
    height, width = (1, max_area) if isinstance(max_area, int) else max_area
    bias = None if mode == "features" else normal(dim, dtype=dtype, seed=7)
    hidden, output = normal(dim, dim * hidden_parts(mode), dtype=dtype, seed=3), normal(dim, dim, dtype=dtype, seed=5)
    return AreaWeights(
        normal(height, dim // 2, dtype=dtype, seed=1), normal(width, dim - dim // 2, dtype=dtype, seed=2), hidden, output, bias, bias
    )


def as_numpy(weights):
    names = ["height", "width", "hidden.weight", "output.weight", "hidden.bias", "output.bias"]
    return {name: None if weight is None else weight.double().numpy() for name, weight in zip(names, weights, strict=True)}


def close(found, expected, tolerance=1e-12):
    np.testing.assert_allclose(found.detach().double().numpy(), expected, rtol=tolerance, atol=tolerance)


@EVERY
def test_areas_are_ordered_by_height_then_width_then_raster(size, max_area, grid):
    spans = [span for span, _ in reference.areas(*reference.sized(size, max_area, grid))]
    expected = spans if grid else [(x, width) for _, x, _, width in spans]
    assert ops.area_spans(grid or size, max_area).tolist() == [list(span) for span in expected]
    assert ops.area_count(grid or size, max_area) == len(expected)


def test_the_number_of_areas_is_the_papers_formula():
    assert ops.area_count(101, 5) == 101 + 100 + 99 + 98 + 97
    assert ops.area_count((13, 11), (3, 2)) == sum((13 - h + 1) * (11 - w + 1) for h in (1, 2, 3) for w in (1, 2))


def test_an_empty_memory_has_no_areas():
    assert ops.area_count(10**12, 10**12) == 10**12 * (10**12 + 1) // 2  # at once
    for size in (5.5, -1, "5", True):
        with pytest.raises(ConfigError, match="size must be a whole number of at least 0"):
            ops.area_count(size, 3)
    assert ops.area_count(0, 3) == ops.area_count((0, 5), (2, 2)) == ops.area_count((5, 0), (2, 2)) == 0
    assert ops.area_spans(0, 3).shape == (0, 2)
    assert ops.area_spans((0, 5), (2, 2)).shape == (0, 4)
    for grid, max_area in ((None, 3), ((0, 5), (2, 2)), ((5, 0), (2, 2))):
        for function in (ops.area_sums, ops.window_sums, ops.window_maxima, ops.area_values):
            assert function(torch.ones(2, 0, 3), max_area, grid).shape == (2, 0, 3)
        assert ops.area_features(torch.ones(2, 0, 3), max_area, grid).std.shape == (2, 0, 3)
        assert ops.area_mask(torch.ones(2, 0, dtype=torch.bool), max_area, grid).shape == (2, 0)
        assert ops.item_weights(torch.ones(2, 0), max_area, grid).shape == (2, 0)
        for mode in KEY_MODES:
            weights = weights_for(mode, max_area) if mode in LEARNED_KEY_MODES else None
            assert ops.area_keys(normal(2, 0, D), max_area, grid, mode=mode, weights=weights).shape == (2, 0, D)


@EVERY
def test_sums_means_deviations_and_maxima_equal_the_loops(size, max_area, grid):
    x = normal(2, size, D)
    features = ops.area_features(x, max_area, grid, epsilon=0.0)
    mean, std = ops.window_moments(x, max_area, grid, epsilon=0.0)
    for b in range(2):
        expected = {name: reference.over_areas(x[b].numpy(), max_area, grid, name) for name in ("mean", "std", "sum", "max")}
        for found, name in (
            (ops.area_sums(x, max_area, grid), "sum"),
            (ops.window_sums(x, max_area, grid), "sum"),
            (ops.window_sums(x, max_area, grid, mean=True), "mean"),
            (ops.window_maxima(x, max_area, grid), "max"),
            (features.sum, "sum"),
            (features.mean, "mean"),
            (mean, "mean"),
            (std, "std"),
        ):
            close(found[b], expected[name])
        close(features.std[b], expected["std"], 1e-7)  # the root of a difference near zero
        close(features.std[b] ** 2, expected["std"] ** 2)
    spans = [span for span, _ in reference.areas(*reference.sized(size, max_area, grid))]
    assert features.height.tolist() == [height for _, _, height, _ in spans]
    assert features.width.tolist() == [width for _, _, _, width in spans]


def test_a_summed_area_table_holds_what_is_above_and_to_the_left():
    x = normal(2, 15, D)
    table = ops.summed_area_table(x, (3, 5))
    assert table.shape == (2, 4, 6, D)
    for y in range(4):
        for c in range(6):
            close(table[1, y, c], x[1].unflatten(0, (3, 5))[:y, :c].sum((0, 1)).numpy())


def test_tables_accumulate_half_precision_in_float32():
    for dtype in HALVES:
        x = normal(1021, D).to(dtype) + 1
        assert ops.summed_area_table(x).dtype == torch.float32
        for function in (ops.area_sums, ops.window_sums):
            found, exact = function(x, 3), function(x.double(), 3)
            assert found.dtype == dtype
            # Half a unit in the last place of the result, plus what float32 makes of a sum of a thousand.
            assert ((found.double() - exact).abs() <= torch.finfo(dtype).eps * exact.abs() + 1e-3).all()


def test_deviations_survive_a_large_common_offset():
    x = normal(2, 211, 3, dtype=torch.float32) * 0.01
    exact = ops.window_moments(x.double(), 5, epsilon=0.0)[1][:, 211:]
    for shift in (0.0, 64.0, -1024.0):
        shifted = x + shift
        truth = ops.window_moments(shifted.double(), 5, epsilon=0.0)[1][:, 211:]
        assert (ops.window_moments(shifted, 5, epsilon=0.0)[1][:, 211:] - truth).abs().max() < 1e-5 * exact.max() * max(1.0, abs(shift))
        table = ops.area_features(shifted, 5, epsilon=0.0).std
        assert (table >= 0).all()
        assert (table[:, 211:] - truth).abs().max() < 5e-3 * exact.max() * max(1.0, abs(shift) / 16)


def test_a_variance_that_rounding_makes_negative_counts_as_zero():
    half = normal(101, 3, dtype=torch.float32) * 0.01
    x = torch.cat([half + 1000, half - 1000])  # centring cannot help here: the squares are a million, the variance 0.0001
    std = ops.area_features(x, 3, epsilon=1e-6).std
    assert (std >= 0.99e-3).all()
    exact = ops.window_moments(x.double(), 3)[1]
    torch.testing.assert_close(ops.window_moments(x, 3)[1].double(), exact, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_the_gradient_of_a_deviation_is_finite_where_the_area_is_constant(epsilon):
    for deviation in (lambda x: ops.area_features(x, 3, epsilon=epsilon).std, lambda x: ops.window_moments(x, 3, epsilon=epsilon)[1]):
        x = torch.full((7, 2), 3.0, requires_grad=True)
        std = deviation(x)
        std.sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
        torch.testing.assert_close(std, torch.full_like(std, epsilon**0.5))


def test_a_window_does_not_depend_on_items_outside_but_a_table_does():
    x = normal(11, 3, dtype=torch.float32)
    spoilt = x.clone()
    spoilt[2], spoilt[3] = 1e30, torch.nan
    away = [n for n, (start, length) in enumerate(ops.area_spans(11, 3).tolist()) if not set(range(start, start + length)) & {2, 3}]
    for function in (ops.window_sums, ops.window_maxima, lambda x, a: ops.window_moments(x, a)[1]):
        assert torch.equal(function(x, 3)[away], function(spoilt, 3)[away])
    assert ops.area_sums(spoilt, 3)[away].isnan().any()


@EVERY
@pytest.mark.parametrize("mode", KEY_MODES)
def test_keys_equal_the_loops(mode, size, max_area, grid):
    weights = weights_for(mode, max_area) if mode in LEARNED_KEY_MODES else None
    x = normal(2, 3, size, D)
    found = ops.area_keys(x, max_area, grid, mode=mode, weights=weights)
    for b in range(2):
        for h in range(3):
            close(found[b, h], reference.keys(x[b, h].numpy(), max_area, grid, mode, as_numpy(weights) if weights else None), 1e-11)


@pytest.mark.parametrize("mode", ["sample", "sample_concat", "sample_sum"])
def test_sampled_keys_are_noisy_only_while_training(mode):
    weights = weights_for(mode, 3) if mode in LEARNED_KEY_MODES else None
    x = normal(7, D)

    def keys(training, seed=None):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return ops.area_keys(x, 3, mode=mode, weights=weights, training=training, generator=generator)

    assert torch.equal(keys(False), keys(False, 3))
    assert torch.equal(keys(True, 3), keys(True, 3))
    assert not torch.equal(keys(True, 3), keys(True, 5))
    assert not torch.equal(keys(True), keys(True))


def test_the_noise_of_sampled_keys_has_the_deviation_of_the_area():
    x = normal(3, 2)
    mean, std = ops.window_moments(x, 3)
    many = ops.area_keys(x.expand(20011, 3, 2), 3, mode="sample", training=True, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(many.mean(0), mean, rtol=0, atol=0.03)
    torch.testing.assert_close(many.std(0), std, rtol=0.03, atol=1e-3)


@EVERY
@pytest.mark.parametrize("mode", VALUE_MODES)
def test_values_equal_the_loops(mode, size, max_area, grid):
    x = normal(size, D)
    close(ops.area_values(x, max_area, grid, mode=mode), reference.over_areas(x.numpy(), max_area, grid, mode))


@pytest.mark.parametrize("starts", [1, 2, 100])
@EVERY
def test_areas_that_start_early_are_some_of_all(size, max_area, grid, starts):
    x = normal(2, size, D)
    columns = ops.area_spans(grid or size, max_area)[:, 1 if grid else 0]
    some = columns < starts
    for mode in KEY_MODES:
        weights = weights_for(mode, max_area) if mode in LEARNED_KEY_MODES else None
        found, every = (ops.area_keys(x, max_area, grid, mode=mode, weights=weights, starts=each) for each in (starts, None))
        torch.testing.assert_close(found, every[:, some])
    for mode in VALUE_MODES:
        found, every = (ops.area_values(x, max_area, grid, mode=mode, starts=each) for each in (starts, None))
        torch.testing.assert_close(found, every[:, some])
    with pytest.raises(ConfigError, match="starts must be a whole number of at least 1, found 0"):
        ops.area_values(x, max_area, grid, starts=0)


@EVERY
def test_an_area_is_allowed_when_all_its_items_are(size, max_area, grid):
    mask = normal(2, 3, size) > -0.7
    inside = [items for _, items in reference.areas(*reference.sized(size, max_area, grid))]
    expected = torch.stack([mask[..., items].all(-1) for items in inside], -1)
    assert torch.equal(ops.area_mask(mask, max_area, grid), expected)


def test_a_causal_area_ends_at_the_query_or_before():
    spans = ops.area_spans(7, 3)
    expected = (spans[:, 0] + spans[:, 1] - 1) <= torch.arange(7).unsqueeze(-1)
    assert torch.equal(ops.area_mask(ops.causal_mask(7, 7), 3), expected)


@EVERY
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_item_weights_times_values_are_the_context(mode, size, max_area, grid):
    value = normal(size, D)
    values = ops.area_values(value, max_area, grid, mode=mode)
    weights = torch.softmax(normal(2, 3, values.shape[0]), -1)
    items = ops.item_weights(weights, max_area, grid, value_mode=mode)
    torch.testing.assert_close(items @ value, weights @ values)
    torch.testing.assert_close(ops.item_weights(weights, max_area, grid, value_mode="mean").sum(-1), torch.ones(2, 3, dtype=torch.float64))


def test_the_size_of_a_sequence_follows_from_its_number_of_areas():
    for max_area in (1, 2, 3, 5, 7):
        for size in range(17):
            assert ops.item_weights(torch.ones(ops.area_count(size, max_area)), max_area).shape == (size,)


def test_a_temperature_divides_the_scores_and_top_k_keeps_the_best():
    scores, mask = normal(3, 11), normal(3, 11, seed=5) > -0.5
    torch.testing.assert_close(ops.area_softmax(scores, mask, temperature=2.0), ops.masked_softmax(scores / 2, mask))
    kept = ops.area_softmax(scores, mask, top_k=2)
    best = scores.masked_fill(~mask, -torch.inf).topk(2).indices
    assert torch.equal(kept, ops.masked_softmax(scores, torch.zeros_like(mask).scatter(-1, best, True)))
    for k in (11, 13):
        assert torch.equal(ops.area_softmax(scores, mask, top_k=k), ops.masked_softmax(scores, mask))
    few = torch.arange(11) < 1
    assert torch.equal(ops.area_softmax(scores, few, top_k=3), ops.masked_softmax(scores, few))
    assert ops.area_softmax(scores, torch.zeros(3, 1, dtype=torch.bool), top_k=3).abs().sum() == 0
    assert ops.area_softmax(scores.index_fill(-1, torch.tensor([2]), torch.nan), top_k=2).isnan().any(-1).all()
    assert ops.area_softmax(normal(3, 0), top_k=2).shape == (3, 0)


@pytest.mark.parametrize("top_k", [None, 1])
@pytest.mark.parametrize(
    "scores", [torch.tensor([[1, 2, 3]]), torch.tensor([[True]]), torch.tensor(1.0)], ids=["integers", "booleans", "no axis"]
)
def test_area_scores_are_floating_and_have_an_axis(scores, top_k):
    with pytest.raises(ShapeError, match=r"^area_softmax: scores must be floating and have an axis, found "):
        ops.area_softmax(scores, top_k=top_k)


DIFFERENTIABLE = {
    "table": lambda x, a, g: ops.summed_area_table(x, g),
    "area_sums": ops.area_sums,
    "area_features": lambda x, a, g: ops.area_features(x, a, g)[:3],
    "window_sums": ops.window_sums,
    "window_maxima": ops.window_maxima,
    "window_moments": ops.window_moments,
    "item_weights": lambda x, a, g: ops.item_weights(ops.area_softmax(ops.window_sums(x, a, g).transpose(-1, -2), top_k=5), a, g),
} | {f"keys: {mode}": lambda x, a, g, m=mode: ops.area_keys(x, a, g, mode=m, weights=weights_for(m, a, x.shape[-1])) for mode in KEY_MODES}


@pytest.mark.parametrize(("size", "max_area", "grid"), [(5, 3, None), (6, (2, 2), (2, 3))], ids=["sequence", "grid"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_finite_differences(name, size, max_area, grid):
    x = normal(size, 2).requires_grad_()

    def function(x):
        return DIFFERENTIABLE[name](x, max_area, grid)

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("mode", LEARNED_KEY_MODES)
def test_learned_weights_have_the_gradients_of_finite_differences(mode):
    x, weights = normal(3, 3), weights_for(mode, 2, 3)
    leaves = [weight.requires_grad_() for weight in weights if weight is not None]
    assert torch.autograd.gradcheck(lambda *w: ops.area_keys(x, 2, mode=mode, weights=AreaWeights(*w)), leaves)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.area_sums(torch.ones(7, 1), 0), ConfigError, "at least 1 item.*found 0"),
        (lambda: ops.area_sums(torch.ones(6, 1), (2, 0), (2, 3)), ConfigError, r"found \(2, 0\)"),
        (lambda: ops.area_sums(torch.ones(6, 1), 2, (2, 3)), ConfigError, r"found 2 with grid \(2, 3\)"),
        (lambda: ops.area_sums(torch.ones(6, 1), (2, 2)), ConfigError, r"found \(2, 2\) with grid None"),
        (lambda: ops.area_sums(torch.ones(7, 1), (2, 2), (2, 3)), ShapeError, r"grid \(2, 3\) holds 6 items.*has 7"),
        (lambda: ops.area_mask(torch.ones(7), 2), ShapeError, "boolean.*float32"),
        (lambda: ops.item_weights(torch.ones(4), 2), ShapeError, r"\(N\) is 4"),
        (lambda: ops.item_weights(torch.ones(4), (2, 2), (2, 3)), ShapeError, r"\(N\) is 4.*grid \(2, 3\)"),
        (lambda: ops.area_keys(torch.ones(7, 1), 2, mode="median"), ConfigError, "'median' is none of mean, max"),
        (lambda: ops.area_values(torch.ones(7, 1), 2, mode="median"), ConfigError, "'median' is none of sum, mean, max"),
        (lambda: ops.area_keys(torch.ones(7, 1), 2, mode="concat"), ConfigError, "'concat' has learned weights"),
        (lambda: ops.area_keys(normal(7, D), 3, mode="sum", weights=weights_for("sum", 2)), ShapeError, r"\(1, 2\).*\(1, 3\)"),
    ],
)
def test_an_error_names_what_was_found(call, error, message):
    with pytest.raises(error, match=message):
        call()


@given(st.data())
def test_any_grid_and_any_area_agree_with_the_loops(data):
    grid = data.draw(st.tuples(st.integers(0, 4), st.integers(0, 5)))
    max_area = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 6)))
    x = normal(grid[0] * grid[1], 2, seed=data.draw(st.integers(0, 99)))
    expected = reference.over_areas(x.numpy(), max_area, grid, "sum")
    close(ops.area_sums(x, max_area, grid), expected)
    close(ops.window_sums(x, max_area, grid), expected)
    close(ops.window_moments(x, max_area, grid, epsilon=0.0)[1], reference.over_areas(x.numpy(), max_area, grid, "std"))
    found = ops.item_weights(torch.ones(len(expected)), max_area, grid)
    counts = [sum(i in inside for _, inside in reference.areas(grid, max_area)) for i in range(len(x))]
    assert found.tolist() == counts
