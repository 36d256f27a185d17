"""The areas module: its settings, the names of its weights, and what it makes of keys, values, masks and weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard import ops
from regard.attention import Areas
from regard.errors import ConfigError, ShapeError
from regard.ops.materialized_areas import KEY_MODES, LEARNED_KEY_MODES, VALUE_MODES, shape_features
from regard.ops.reference import area_attention
from tests.reference import area as reference

B, H, T, S, D, DV = 2, 3, 5, 11, 7, 13
SHAPES = {"sequence": (S, 3, None), "grid": (15, (2, 3), (3, 5))}
EVERY = pytest.mark.parametrize(("size", "max_area", "grid"), SHAPES.values(), ids=SHAPES)


def normal(*shape, dtype=torch.float64, seed=23):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(size=S, dtype=torch.float64):
    return normal(B, H, T, D, dtype=dtype, seed=1), normal(B, H, size, D, dtype=dtype, seed=2), normal(B, H, size, DV, dtype=dtype, seed=3)


@pytest.mark.parametrize("mode", KEY_MODES)
def test_parameter_names_and_shapes_are_frozen(mode):
    parts = {"features": 3, "concat": 3, "max_concat": 2, "sample_concat": 2, "sum": 1, "sample_sum": 1}
    expected = {}
    if mode in LEARNED_KEY_MODES:
        expected = {"width": (3, 4), "height": (2, 3), "hidden.weight": (D, D * parts[mode]), "output.weight": (D, D)}
    if mode in LEARNED_KEY_MODES and mode != "features":
        expected |= {"hidden.bias": (D,), "output.bias": (D,)}
    areas = Areas((2, 3), (3, 5), key_mode=mode, dim=D)
    assert {name: tuple(value.shape) for name, value in areas.state_dict().items()} == expected


@EVERY
@pytest.mark.parametrize("mode", KEY_MODES)
def test_keys_of_all_heads_equal_the_loops(mode, size, max_area, grid):
    areas = Areas(max_area, grid, key_mode=mode, dim=D).double().eval()
    weights = {name: value.detach().numpy() for name, value in areas.named_parameters()}
    key = inputs(size)[1]
    found = areas.keys(key)
    assert found.shape == (B, H, areas.count(size), D)
    for b in range(B):
        for h in range(H):
            expected = reference.keys(key[b, h].numpy(), max_area, grid, mode, weights)
            np.testing.assert_allclose(found[b, h].detach().numpy(), expected, rtol=1e-11, atol=1e-11)


@EVERY
@pytest.mark.parametrize("key_mode", KEY_MODES)
def test_attending_equals_the_loops_and_every_weight_learns(key_mode, size, max_area, grid):
    areas = Areas(max_area, grid, key_mode=key_mode, value_mode="mean", dim=D, top_k=5, temperature=1.3).double().eval()
    query, key, value = inputs(size)
    mask = normal(B, H, T, size) > -1
    found = areas(query, key, value, mask=mask)
    keys = areas.keys(key).detach().numpy()
    for b in range(B):
        for h in range(H):
            tensors = (query[b, h].numpy(), key[b, h].numpy(), value[b, h].numpy(), mask[b, h].numpy(), max_area, grid, "mean")
            expected = reference.attend(*tensors, area_keys=keys[b, h], top_k=5, temperature=1.3)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one[b, h].detach().numpy(), other, rtol=1e-10, atol=1e-10)
    if not areas.learned:
        return
    found.context.square().sum().backward()
    # The output's bias shifts all scores of a query alike.
    still = [name for name, weight in areas.named_parameters() if weight.grad is None or weight.grad.abs().max() < 1e-9]
    assert still in ([], ["output.bias"])


@EVERY
def test_the_parts_put_together_are_the_whole(size, max_area, grid):
    query, key, value = inputs(size)
    mask = normal(B, H, T, size) > -1
    areas = Areas(max_area, grid, value_mode="mean", top_k=3, temperature=0.7)
    weights = areas.weights(ops.scaled_dot_scores(query, areas.keys(key)), areas.mask(mask))
    whole = areas(query, key, value, mask=mask)
    torch.testing.assert_close(weights, whole.area_weights)
    torch.testing.assert_close(weights @ areas.values(value), whole.context)
    torch.testing.assert_close(areas.project(weights), whole.item_weights)
    torch.testing.assert_close(areas.project(weights) @ value, whole.context)


def test_forward_passes_on_what_it_is_given():
    query, key, value = inputs()
    settings = {"causal": True, "scale": 0.3, "dropout": 0.5}
    torch.default_generator.manual_seed(3)
    expected = area_attention(query, key, value, max_area=3, **settings)
    torch.default_generator.manual_seed(3)
    torch.testing.assert_close(Areas(3)(query, key, value, **settings), expected)


@pytest.mark.parametrize("mode", ["sample", "sample_concat", "sample_sum"])
def test_only_a_module_that_trains_samples(mode):
    key = inputs()[1]
    areas = Areas(3, key_mode=mode, dim=D).double()
    assert not torch.equal(areas.keys(key), areas.keys(key))
    areas.eval()
    assert torch.equal(areas.keys(key), areas.keys(key))


def test_only_plain_areas_can_be_fused():
    fused = {(key, value) for key in KEY_MODES for value in VALUE_MODES if Areas(3, key_mode=key, value_mode=value, dim=D).fused}
    assert fused == {("mean", "sum"), ("mean", "mean")}
    assert Areas(3, temperature=2.0).fused
    assert not Areas(3, top_k=2).fused


def test_centres_are_the_middles_of_the_areas():
    areas = Areas(3)
    assert areas.center(4).tolist() == [0, 1, 2, 3, 0.5, 1.5, 2.5, 1, 2]
    assert areas.center(0).shape == (0,)
    with pytest.raises(ConfigError, match=r"grid \(3, 5\)"):
        Areas((2, 3), (3, 5)).center(15)


def test_in_a_sequence_the_height_is_one_vector_that_all_areas_share():
    areas = Areas(3, key_mode="features", dim=D)
    shapes = shape_features(areas.key_weights, ((1, S), (1, 3)))
    assert shapes.shape == (30, D)
    assert (shapes[:, 4:] == areas.height).all()
    assert (shapes[:11, :4] == areas.width[0]).all()
    assert (shapes[21:, :4] == areas.width[2]).all()


@pytest.mark.parametrize("mode", LEARNED_KEY_MODES)
@pytest.mark.parametrize("dim", [1, 2])
def test_small_keys_and_memories_smaller_than_an_area_work(dim, mode):
    areas = Areas(5, key_mode=mode, dim=dim)
    for size in (0, 1, 3):
        assert areas.keys(torch.ones(B, size, dim)).shape == (B, size * (size + 1) // 2, dim)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_at_most_twice_as_wrong_as_the_plain_computation(dtype):
    areas = Areas(3, key_mode="features", dim=D).to(dtype)
    key = inputs(dtype=dtype)[1]
    found = areas.keys(key)
    weights = {name: value.detach() for name, value in areas.named_parameters()}
    plain = features_one_by_one(key, weights)
    exact = features_one_by_one(key.double(), {name: weight.double() for name, weight in weights.items()})
    assert found.dtype == dtype
    assert (found.double() - exact).abs().max() <= 2 * (plain.double() - exact).abs().max()


def features_one_by_one(key, weights):
    windows = [key[..., i : i + s, :] for s in (1, 2, 3) for i in range(S - s + 1)]
    mean = torch.stack([window.mean(-2) for window in windows], -2)
    std = torch.stack([(window.var(-2, correction=0) + 1e-6).sqrt() for window in windows], -2)
    shape = torch.stack([torch.cat([weights["width"][w.shape[-2] - 1], weights["height"][0]]) for w in windows]).expand_as(mean)
    return torch.relu(torch.cat([mean, std, shape], -1) @ weights["hidden.weight"].T) @ weights["output.weight"].T


def test_learned_areas_trace_as_one_graph_export_and_run_under_autocast():
    areas = Areas(3, key_mode="features", dim=D)
    arguments = inputs(dtype=torch.float32)
    expected = areas(*arguments, causal=True)
    torch.testing.assert_close(torch.compile(areas, fullgraph=True, backend="aot_eager")(*arguments, causal=True), expected)
    torch.testing.assert_close(torch.export.export(areas, arguments, {"causal": True}).module()(*arguments, causal=True), expected)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(areas(*arguments, causal=True).context.float(), expected.context, rtol=0.1, atol=0.1)


def test_the_settings_are_shown():
    shown = repr(Areas((2, 3), (3, 5), key_mode="max", value_mode="mean", top_k=2, temperature=0.5))
    assert shown == "Areas(max_area=(2, 3), grid=(3, 5), key_mode='max', value_mode='mean', top_k=2, temperature=0.5)"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_area": 0}, "found 0"),
        ({"max_area": (2, 2)}, "grid None"),
        ({"max_area": 2, "grid": (2, 3)}, r"grid \(2, 3\)"),
        ({"max_area": 2, "key_mode": "median"}, "key_mode: 'median'"),
        ({"max_area": 2, "value_mode": "median"}, "value_mode: 'median'"),
        ({"max_area": 2, "key_mode": "features"}, "dim: key_mode 'features'"),
        ({"max_area": 2, "top_k": 0}, "top_k.*found 0"),
        ({"max_area": 2, "temperature": 0.0}, "temperature.*found 0.0"),
        ({"max_area": 2, "temperature": float("nan")}, "temperature.*found nan"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Areas(**settings)


def test_a_memory_that_is_not_the_grid_is_refused():
    with pytest.raises(ShapeError, match=r"\(3, 5\) holds 15 items.* has 11"):
        Areas((2, 3), (3, 5)).keys(torch.ones(B, S, D))
