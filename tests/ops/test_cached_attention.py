"""Attention to scattered items: against attention to copies of them, in the native library and in PyTorch."""

from __future__ import annotations

import pytest
import torch

from regard import ops
from regard.attention import AdditiveScore, Areas, IndexedMemory, MultiHeadAttention, index_sources
from regard.errors import ConfigError, ShapeError
from regard.ops.kernels import indexed_cpu, native

WAYS = ("cpu", "torch")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu" and native.library() is None:
        pytest.skip("the native library is not built")
    monkeypatch.setenv("REGARD_KERNELS", request.param)
    return request.param


def inputs(groups, share, heads, size, length, items=23, *, dtype=torch.float32, spread=1.0):
    generator = torch.Generator().manual_seed(groups + 10 * size)
    query = torch.randn(groups, share, heads, size, generator=generator, dtype=torch.float64).mul(spread).to(dtype)
    key, value = (torch.randn(items, heads, size, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    return query, key, value, torch.randint(items, (groups, length), generator=generator)


def plain(query, key, value, places, lengths=None, scale=None):
    """Copy the items of each group, then attend as the equation says."""
    key, value = key[places], value[places]
    scores = torch.einsum("gkhd,glhd->gkhl", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if lengths is not None:
        past = torch.arange(places.shape[1]) >= lengths.unsqueeze(1)
        scores = scores.masked_fill(past[:, None, None], -torch.inf)
    weights = scores.softmax(-1).nan_to_num()
    return torch.einsum("gkhl,glhd->gkhd", weights, value), weights


@pytest.mark.parametrize(
    "shape", [(3, 5, 2, 7, 11), (2, 1, 3, 64, 19), (5, 3, 1, 128, 17), (1, 1, 1, 1, 1), (2, 3, 4, 37, 50), (3, 2, 2, 16, 0)]
)
@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_it_equals_attention_to_copies(way, shape, spread):
    query, key, value, places = inputs(*shape, spread=spread)
    context, weights = ops.cached_attention(query, key, value, places, need_weights=True)
    exact, expected = plain(*(part.double() for part in (query, key, value)), places)
    usual, _ = plain(query, key, value, places)
    floor = 2e-6 * spread
    assert (context.double() - exact).abs().max() <= 2 * (usual.double() - exact).abs().max() + floor
    assert weights.shape == expected.shape
    if weights.numel():
        assert (weights.double() - expected).abs().max() <= 1e-5 * spread
    assert ops.cached_attention(query, key, value, places)[1] is None


def test_places_past_a_length_do_not_count(way):
    query, key, value, places = inputs(4, 3, 2, 19, 13)
    lengths = torch.tensor([13, 1, 0, 7])
    context, weights = ops.cached_attention(query, key, value, places, lengths=lengths, scale=0.3, need_weights=True)
    expected, share = plain(query, key, value, places, lengths, 0.3)
    torch.testing.assert_close(context, expected)
    torch.testing.assert_close(weights, share)
    assert not context[2].any()
    assert not weights[1, :, :, 1:].any()


def by_areas(query, key, value, places, lengths, max_area, scale):
    """Write all areas of each group out, then attend as the equation says."""
    contexts, weights = [], torch.zeros(*query.shape[:3], places.shape[1], dtype=query.dtype)
    for group, table in enumerate(places):
        length = places.shape[1] if lengths is None else int(lengths[group])
        spans = [(start, end) for end in range(1, length + 1) for start in range(max(0, end - max_area), end)]
        if not spans:
            contexts.append(torch.zeros_like(query[group]))
            continue
        keys = torch.stack([key[table[start:end]].mean(0) for start, end in spans])
        values = torch.stack([value[table[start:end]].sum(0) for start, end in spans])
        shares = (torch.einsum("khd,ahd->kha", query[group], keys) * scale).softmax(-1)
        contexts.append(torch.einsum("kha,ahd->khd", shares, values))
        for number, (start, end) in enumerate(spans):
            weights[group, :, :, start:end] += shares[:, :, number, None]
    return torch.stack(contexts), weights


@pytest.mark.parametrize("max_area", [2, 3, 5, 2**62])
@pytest.mark.parametrize(
    "shape", [(3, 5, 2, 7, 11), (2, 1, 3, 64, 19), (5, 3, 1, 128, 33), (1, 1, 1, 1, 1), (2, 3, 4, 37, 50), (3, 2, 2, 16, 0)]
)
def test_areas_of_items_that_are_next_to_each_other(way, shape, max_area):
    query, key, value, places = inputs(*shape)
    exact, shares = by_areas(*(part.double() for part in (query, key, value)), places, None, max_area, 0.3)
    context, weights = ops.cached_attention(query, key, value, places, scale=0.3, max_area=max_area, need_weights=True)
    torch.testing.assert_close(context.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights.double(), shares, rtol=1e-5, atol=1e-6)
    assert torch.equal(ops.cached_attention(query, key, value, places, scale=0.3, max_area=max_area)[0], context) or way == "torch"


def test_an_area_ends_where_a_length_does_and_great_scores_do_no_harm(way):
    query, key, value, _ = inputs(4, 3, 2, 19, 13, items=52, spread=100.0)
    places, lengths = torch.randperm(52, generator=torch.Generator().manual_seed(1)).view(4, 13), torch.tensor([13, 1, 0, 7])
    for group, length in enumerate(lengths):
        key[places[group, length:]] = value[places[group, length:]] = torch.nan
    context, weights = ops.cached_attention(query, key, value, places, lengths=lengths, max_area=4, need_weights=True)
    exact, shares = by_areas(*(part.double() for part in (query, key, value)), places, lengths, 4, 19**-0.5)
    torch.testing.assert_close(context.double(), exact, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(weights.double(), shares, rtol=1e-3, atol=1e-4)
    for group, length in enumerate(lengths):
        assert not weights[group, :, :, length:].any()


def test_an_area_without_items_is_refused():
    with pytest.raises(ConfigError, match="max_area"):
        ops.cached_attention(*inputs(1, 1, 1, 2, 3), max_area=0)


def test_a_group_does_not_see_the_others(way):
    query, key, value, places = inputs(5, 3, 2, 19, 13)
    together = ops.cached_attention(query, key, value, places)[0]
    for group in range(5):
        alone = ops.cached_attention(query[group : group + 1], key, value, places[group : group + 1])[0][0]
        # Batched products of PyTorch round by the size of the batch; the native library never does.
        torch.testing.assert_close(alone, together[group], rtol=0, atol=0 if way == "cpu" else 1e-6)


def test_other_dtypes_and_gradients_are_computed_by_pytorch():
    query, key, value, places = inputs(2, 3, 2, 5, 7, dtype=torch.float64)
    torch.testing.assert_close(ops.cached_attention(query, key, value, places)[0], plain(query, key, value, places)[0])
    table = indexed_cpu.SlotTable(places, None)
    assert not indexed_cpu.supports(query, key, value, table)
    query = query.float().requires_grad_()
    assert not indexed_cpu.supports(query, key.float(), value.float(), table)
    ops.cached_attention(query, key.float(), value.float(), places)[0].sum().backward()
    assert query.grad is not None
    assert query.grad.any()


def test_scores_that_fit_half_precision_do_not_overflow_before_they_are_scaled() -> None:
    query = torch.full((1, 1, 1, 64), 60.0, dtype=torch.float16)  # 64 * 60 * 60 does not fit, an eighth of it does
    keys = torch.stack([query[0, 0], -query[0, 0]])
    values = torch.tensor([1.0, 2.0]).half().view(2, 1, 1).expand(2, 1, 64)
    for max_area in (1, 2):
        context, _ = ops.cached_attention(query, keys, values, torch.tensor([[0, 1]]), max_area=max_area, need_weights=True)
        assert torch.equal(context.flatten(), torch.ones(64).half())


def test_shapes_that_do_not_agree_are_refused():
    query, key, value, places = inputs(2, 3, 2, 5, 7)
    for wrong in ((query, key, value[1:], places), (query, key, value, places[1:]), (query[..., 1:], key, value, places)):
        with pytest.raises(ShapeError, match="cached_attention: expected query"):
            ops.cached_attention(*wrong)


def test_a_memory_of_items_equals_one_of_heads():
    torch.manual_seed(3)
    attention = MultiHeadAttention(14, 2)
    states, query = torch.randn(3, 11, 14), torch.randn(3, 5, 14)
    mask = torch.arange(11) < torch.tensor([11, 4, 7]).unsqueeze(1)
    mask[2, 1] = False
    with torch.no_grad():
        expected = attention.attend(query, attention.memory(states, states, key_mask=mask), need_weights=True)
        memory = attention.items(states, mask)
        found = attention.attend_items(query, memory, need_weights=True)
    torch.testing.assert_close(found.context, expected.context)
    # The weights of the third sentence stand in the order of its table.
    torch.testing.assert_close(found.weights[:2], expected.weights[:2])
    assert memory.batch == 3
    kept = memory.rows(torch.tensor([2, 0]))
    with torch.no_grad():
        torch.testing.assert_close(attention.attend_items(query[[2, 0]], kept).context, found.context[[2, 0]])


def test_everything_may_be_attended_to_without_a_mask():
    key = torch.randn(2, 3, 1, 5)
    memory = index_sources(key, key, None)
    assert memory.lengths is None
    assert torch.equal(memory.key[memory.places], key)
    assert IndexedMemory(memory.key, memory.value, memory.places).batch == 2


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6}, {"top_k": 3}, {"key_mode": "max", "value_mode": "max"}])
@pytest.mark.parametrize("masked", [False, True])
def test_a_store_of_areas_equals_the_areas_of_a_memory(settings, masked):
    torch.manual_seed(5)
    attention = MultiHeadAttention(14, 2, areas=Areas(3, **settings))
    states, query = torch.randn(3, 11, 14), torch.randn(3, 5, 14)
    mask = torch.arange(11) < torch.tensor([11, 4, 7]).unsqueeze(1) if masked else None
    with torch.no_grad():
        memory = attention.areas_of(attention.memory(states, states, key_mask=mask))
        expected = attention.attend(query, memory, need_weights="areas")
        store = index_sources(memory.key.transpose(1, 2), memory.value.transpose(1, 2), memory.mask)._replace(of_areas=True)
        found = attention.attend_items(query, store, need_weights=True)
    torch.testing.assert_close(found.context, expected.context)
    in_order = expected.weights.gather(3, (store.places - 30 * torch.arange(3).unsqueeze(1))[:, None, None].expand_as(expected.weights))
    torch.testing.assert_close(found.weights, in_order)


def test_what_a_store_holds_and_what_an_attention_wants_must_agree():
    with pytest.raises(ConfigError, match="items: a key-value cache needs scaled dot products"):
        MultiHeadAttention(6, 2, score=AdditiveScore(3, 3, 4)).items(torch.ones(1, 3, 6))
    with_areas, without = MultiHeadAttention(6, 2, areas=Areas(2, key_mode="max")), MultiHeadAttention(6, 2)
    items = with_areas.items(torch.ones(1, 3, 6))
    with pytest.raises(ConfigError, match="the store is one of items"):
        with_areas.attend_items(torch.ones(1, 2, 6), items)
    with pytest.raises(ConfigError, match="the store is one of areas"):
        without.attend_items(torch.ones(1, 2, 6), items._replace(of_areas=True))
