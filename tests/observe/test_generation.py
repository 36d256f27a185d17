"""Generation with a cache: the steps of a layer become the map that one forward pass over the whole output gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.errors import ConfigError, DataError, ShapeError
from regard.observe import AttentionCall, Recording, stitched
from tests.integrations import tiny

LAYERS = {"gpt2": "transformer.h.{}.attn", "llama": "model.layers.{}.self_attn", "gemma2": "model.layers.{}.self_attn"}
IMPLEMENTATIONS = {"gpt2": ("sdpa", "eager"), "llama": ("sdpa", "eager"), "gemma2": ("eager",)}


def left_padded(rows: int, length: int) -> dict[str, Tensor]:
    mask = torch.arange(length) >= torch.arange(rows).unsqueeze(1)
    return {"input_ids": tiny.tokens(rows, length).masked_fill(~mask, 0), "attention_mask": mask.long()}


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)  # a cache adds in another order


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(("name", "implementation"), [(name, each) for name, all_ in IMPLEMENTATIONS.items() for each in all_])
def test_a_decoder_only_model_has_one_map_a_layer(name: str, implementation: str, cache: str) -> None:
    model, given = getattr(tiny, name)(attn_implementation=implementation), left_padded(2, 5)
    options: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    if cache == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    expected = model.generate(**given, **options)
    with regard.watch(model) as seen:
        output = model.generate(**given, **options)
    assert torch.equal(output, expected)
    assert len(seen) == 2 * 4
    mask = torch.cat([given["attention_mask"], torch.ones(2, 3, dtype=torch.long)], 1)
    with regard.watch(model) as whole:
        model(input_ids=output[:, :-1], attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0))
    maps = seen.maps()
    assert [found.layer for found in maps] == [LAYERS[name].format(layer) for layer in range(2)]
    for found, other in zip(maps, whole, strict=True):
        kept = found.weights[..., : other.weights.shape[-1]]
        assert found.weights[..., other.weights.shape[-1] :].eq(0).all()  # places of a static cache that nothing was written to
        real = mask.bool()[:, None, :, None]  # what padding attends to depends on how it is masked
        close(kept * real, other.weights * real)


def test_grouped_heads_that_are_folded_into_queries_are_unfolded() -> None:
    model, given = tiny.llama(attn_implementation="sdpa"), left_padded(2, 5)
    shapes: list[tuple[int, ...]] = []
    original = torch.nn.functional.scaled_dot_product_attention

    def kernel(query: Tensor, *args: Any, **options: Any) -> Tensor:
        shapes.append(tuple(query.shape[1:3]))
        return original(query, *args, **options)

    with pytest.MonkeyPatch.context() as patch, regard.watch(model, heads=[5, 1]) as seen:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
        model.generate(**given, max_new_tokens=2, min_new_tokens=2, do_sample=False)
    assert (2, 3) in shapes  # 6 heads of a single query as 2 groups of 3
    assert [tuple(call.weights.shape) for call in seen] == [(2, 2, 5, 5)] * 2 + [(2, 2, 1, 6)] * 2
    assert seen[0].heads == (5, 1)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_an_encoder_decoder_has_maps_of_both_and_of_what_is_between(implementation: str) -> None:
    model, source = tiny.marian(attn_implementation=implementation), tiny.tokens(2, 7)
    with regard.watch(model) as seen:
        output = model.generate(source, max_new_tokens=4, min_new_tokens=4, num_beams=1)
    with regard.watch(model) as whole:
        model(input_ids=source, decoder_input_ids=output[:, :-1])
    maps = {found.layer: found for found in seen.maps()}
    assert maps.keys() == {call.layer for call in whole}
    for call in whole:
        assert maps[call.layer].kind == call.kind
        close(maps[call.layer].weights, call.weights)


def test_two_generations_in_one_block_are_two_maps() -> None:
    model = tiny.marian()
    with regard.watch(model) as seen:
        for length in (7, 7):
            model.generate(tiny.tokens(1, length), max_new_tokens=3, min_new_tokens=3, num_beams=1)
    assert [tuple(found.weights.shape[2:]) for found in seen.maps() if found.layer.endswith("decoder.layers.0.encoder_attn")] == [
        (3, 7)
    ] * 2
    assert [tuple(found.weights.shape[2:]) for found in seen.maps() if found.layer.endswith("decoder.layers.1.self_attn")] == [(3, 3)] * 2
    with pytest.raises(ConfigError, match=r"layer 'model\.encoder\.layers\.0\.self_attn': it ran 2 times; choose among its `maps\(\)`"):
        seen.map("model.encoder.layers.0.self_attn")


def test_the_outputs_of_a_beam_search_get_the_rows_that_they_came_from() -> None:
    model, source = tiny.marian(), tiny.tokens(2, 7)
    with regard.watch(model) as seen:
        found = model.generate(
            source,
            max_new_tokens=5,
            min_new_tokens=5,
            num_beams=3,
            num_return_sequences=2,
            return_dict_in_generate=True,
            output_scores=True,
        )
    beams = found.beam_indices
    assert len({tuple(row) for row in beams.tolist()}) > 1
    assert any(len(set(row)) > 1 for row in beams.tolist())  # a hypothesis that changed its row: the test would not see a plain stitch fail
    maps = {each.layer: each for each in seen.of_beams(beams)}
    with regard.watch(model) as whole:
        model(input_ids=source.repeat_interleave(2, 0), decoder_input_ids=found.sequences[:, :-1])
    for call in whole:
        own = maps[call.layer].weights
        if "decoder" in call.layer:
            close(own, call.weights)
        else:
            close(own, call.weights[::2])  # of each source once
    with pytest.raises(
        ShapeError, match=r"beams: expected \(outputs, steps\) with 5 steps for model.decoder.layers.0.self_attn, found \(4, 2\)"
    ):
        seen.of_beams(beams[:, :2])


@pytest.mark.parametrize("name", ["gpt2", "llama", "marian"])
def test_a_generation_without_a_cache_has_the_map_of_its_last_step(name: str) -> None:
    model, prompt = getattr(tiny, name)(), tiny.tokens(2, 5)
    options: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "num_beams": 1}
    with regard.watch(model) as seen:
        output = model.generate(prompt, **options, use_cache=False)
    with regard.watch(model) as cached:
        assert torch.equal(output, model.generate(prompt, **options))
    assert [found.layer for found in seen.maps()] == [found.layer for found in cached.maps()]
    for found, expected in zip(seen.maps(), cached.maps(), strict=True):
        close(found.weights, expected.weights)
    words = [[str(token) for token in row] for row in output[:, :-1].tolist()]
    source = [[str(token) for token in row] for row in prompt.tolist()]
    tokens = (source, words) if name == "marian" else (words, None)
    for one, other in zip(seen.records(*tokens), cached.records(*tokens), strict=True):
        assert [(found.name, found.layer) for found in one.maps] == [(found.name, found.layer) for found in other.maps]
    assert "</html>" in regard.view(seen, *tokens).html


def test_passes_over_texts_that_differ_stay_two_maps_and_a_view_of_one_says_so() -> None:
    model = tiny.gpt2()
    with regard.watch(model) as seen, torch.no_grad():
        model(tiny.tokens(1, 5))
        model(tiny.tokens(1, 6).flip(1))
    assert [tuple(found.weights.shape[2:]) for found in seen.maps()] == [(5, 5), (5, 5), (6, 6), (6, 6)]
    with pytest.raises(
        DataError, match=r"attn #1: 6 key_tokens, but the model attended with 5; the layer ran 2 times, with 5, 6 keys: .*use_cache=True"
    ):
        regard.view(seen, list("abcdef"))


def test_a_beam_search_without_a_cache_is_named() -> None:
    model = tiny.marian()
    with regard.watch(model) as seen:
        found = model.generate(
            tiny.tokens(2, 7), max_new_tokens=3, num_beams=2, use_cache=False, return_dict_in_generate=True, output_scores=True
        )
    with pytest.raises(ConfigError, match=r"beams: model\.decoder\.layers\.0\.self_attn ran without a cache, .*use_cache=True"):
        seen.of_beams(found.beam_indices)


def call(kind: str, *shape: int, layer: str = "0", value: float = 1.0) -> AttentionCall:
    return AttentionCall(layer, kind, torch.full(shape, value))


def slots(done: int, queries: int) -> AttentionCall:
    """Queries that fill the next of 11 slots of a static cache and attend to all that are filled."""
    weights = torch.ones(queries, 11).tril(done)
    return AttentionCall("0", "self", (weights / weights.sum(-1, keepdim=True)).expand(2, 3, -1, -1))


def shapes(*calls: AttentionCall) -> list[tuple[int, ...]]:
    return [tuple(found.weights.shape) for found in stitched(calls)]


def test_calls_are_put_together_only_where_one_goes_on_from_the_other() -> None:
    whole = call("self", 2, 3, 5, 5)
    assert shapes(whole, whole) == [(2, 3, 5, 5)] * 2  # two passes, or a layer that is used twice in one
    assert shapes(whole, call("self", 2, 3, 1, 6), call("self", 2, 3, 1, 7)) == [(2, 3, 7, 7)]
    assert shapes(whole, call("self", 2, 3, 2, 7)) == [(2, 3, 7, 7)]  # a chunk of two
    assert shapes(whole, call("self", 1, 3, 1, 6)) == [(2, 3, 5, 5), (1, 3, 1, 6)]  # another batch
    more = call("self", 2, 3, 5, 6)  # a key that is no query's, as nn.MultiheadAttention(add_zero_attn=True) has
    assert shapes(more, more) == [(2, 3, 5, 6)] * 2
    assert shapes(slots(0, 5), slots(5, 5), slots(10, 1)) == [(2, 3, 11, 11)]  # two chunks of a prompt and a step
    assert shapes(slots(0, 4), slots(4, 1), slots(0, 4), slots(4, 1)) == [(2, 3, 5, 11)] * 2  # two generations, with slots left
    assert shapes(slots(0, 4), slots(4, 1), slots(0, 1), slots(1, 1)) == [(2, 3, 5, 11), (2, 3, 2, 11)]
    assert shapes(slots(0, 4), slots(4, 1), slots(0, 8), slots(8, 1)) == [(2, 3, 5, 11), (2, 3, 9, 11)]  # the second prompt is longer
    ended = slots(5, 1).weights.clone()
    ended[0, :, :, 4:] = 0.0  # an example that has ended, whose later slots are masked
    assert shapes(slots(0, 4), slots(4, 1), AttentionCall("0", "self", ended)) == [(2, 3, 6, 11)]
    prefix = call("self", 2, 3, 4, 11)  # learned keys before those of the queries
    assert shapes(prefix, prefix) == [(2, 3, 4, 11)] * 2
    with pytest.raises(ConfigError, match="two calls each fill slots 4 and 5 of a static cache: it runs several times in a step"):
        stitched([slots(0, 4), slots(0, 4), *[slots(4, 1)] * 2, *[slots(5, 1)] * 2])
    steps = [call("self", 2, 3, 1, 1), call("self", 2, 3, 1, 2, layer="1"), call("self", 2, 3, 1, 2)]
    assert shapes(*steps) == [(2, 3, 2, 2), (2, 3, 1, 2)]
    crossed = call("cross", 2, 3, 4, 9)
    assert shapes(crossed, crossed) == [(2, 3, 4, 9)] * 2
    step = call("cross", 2, 3, 1, 9)
    assert shapes(step, step, step) == [(2, 3, 3, 9)]
    anew = call("self", 2, 3, 1, 1, layer="own")
    assert shapes(anew, step, anew, step) == [(2, 3, 1, 1), (2, 3, 1, 9)] * 2


def test_a_layer_that_runs_twice_in_a_step_is_named() -> None:
    whole, steps = call("self", 2, 3, 5, 5), [call("self", 2, 3, 1, count) for count in (6, 6, 7, 7)]
    with pytest.raises(ConfigError, match="the steps of this generation have 6, 6 and 7 keys: it runs several times in a step"):
        stitched([whole, whole, *steps])
    sliding = [call("self", 2, 3, 1, count) for count in (6, 7, 7, 7)]
    assert shapes(whole, *sliding) == [(2, 3, 9, 9)]


def test_pooling_over_sentences_of_any_lengths_is_no_generation() -> None:
    for lengths in ((5, 3, 4), (5, 5, 5), (4, 5, 6), (3, 2), (1, 1)):
        assert shapes(*(call("self", 1, 2, 1, length) for length in lengths)) == [(1, 2, 1, length) for length in lengths]

    class Pooling(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.mean(1, keepdim=True) @ x.mT).softmax(-1) @ x

    with regard.watch(pooling := Pooling()) as seen:
        for length in (5, 3, 4):
            pooling(torch.randn(1, length, 7))
    assert [tuple(each.weights.shape) for each in seen.maps()] == [(1, 1, 1, 5), (1, 1, 1, 3), (1, 1, 1, 4)]


def test_a_static_cache_is_told_by_its_empty_slots() -> None:
    def step(*size: int, used: int) -> AttentionCall:
        return call("self", 1, 1, *size)._replace(weights=torch.arange(size[1]).lt(used).float().expand(1, 1, *size))

    prompt = call("self", 1, 1, 5, 5)
    assert shapes(prompt, step(1, 9, used=6), step(1, 9, used=7)) == [(1, 1, 7, 9)]  # the kernel gets the prompt without slots
    assert shapes(prompt, step(1, 9, used=9)) == [(1, 1, 5, 5), (1, 1, 1, 9)]
    assert shapes(step(1, 9, used=1), step(1, 9, used=2), step(1, 9, used=3)) == [(1, 1, 3, 9)]


def test_a_cache_that_forgets_keeps_the_last_keys() -> None:
    (found,) = stitched([call("self", 1, 1, 2, 2), *(call("self", 1, 1, 1, 3, value=step + 2.0) for step in range(3))])
    assert found.weights[0, 0].tolist() == [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [2, 2, 2, 0, 0], [0, 3, 3, 3, 0], [0, 0, 4, 4, 4]]


def test_areas_of_steps_are_kept_where_their_keys_stay() -> None:
    crossed = [AttentionCall("0", "cross", torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 7)) for _ in range(3)]
    (found,) = stitched(crossed)
    assert found.areas is not None
    assert found.areas.shape == (1, 1, 3, 7)
    assert Recording("model", crossed).layers == ["0"]


def test_steps_with_rejected_tokens_are_refused_and_the_cache_is_restored() -> None:
    from transformers.cache_utils import Cache

    model, given, crop = tiny.gpt2(), {"input_ids": torch.tensor([[7, 9, 4, 5, 7, 9, 4]])}, Cache.crop
    with regard.watch(model) as seen:
        model.generate(**given, prompt_lookup_num_tokens=3, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    assert len(seen) > 2  # the calls themselves remain
    with pytest.raises(ConfigError, match="speculative decoding"):
        seen.maps()
    assert Cache.crop is crop
