"""A decoder's step by the native library: the same as layer by layer, whoever is in the batch; and what it does not do."""

from __future__ import annotations

import pytest
import torch

from regard import ops
from regard.attention import record_weights
from regard.config import AreaConfig, CrossedConfig, TransformerConfig
from regard.models import build
from regard.models.transformer_native_step import plan_of
from regard.ops.kernels import native
from regard.ops.kernels.decoder_cpu import DecoderPlan

needs_library = pytest.mark.skipif(native.library() is None, reason="the native library is not built")
SIZES = {
    "odd": {"embed_dim": 10, "ff_dim": 11, "num_heads": 2},
    "two panels": {"embed_dim": 48, "ff_dim": 67, "num_heads": 3},
    "usual": {"embed_dim": 64, "ff_dim": 128, "num_heads": 4},
}


AREAS = {
    "items": None,
    "means": {"max_area": 2, "layers": 2},
    "long means": {"max_area": 20, "layers": 3},
    "learned": {"max_area": 3, "layers": 2, "key_mode": "features"},
    "learned below": {"max_area": 2, "layers": 1, "key_mode": "features"},
    "long learned": {"max_area": 20, "layers": 3, "key_mode": "features"},
}


def model_of(config=TransformerConfig, **changes):
    torch.manual_seed(7)
    settings = {"encoder_layers": 1, "decoder_layers": 3, **SIZES["odd"], **changes}
    model = build(config(**settings), source_size=19, target_size=19).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def sources(count):
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, 12, (count,), generator=generator)
    return torch.randint(4, 19, (count, 11), generator=generator), lengths


def walk(model, count, *, beam_size=3, steps=6, rows=None, start=None):
    """Take a few steps as a search would, all sentences or some `rows`: hypotheses are reordered, and of all sentences some leave."""
    found = []
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        state = model.start(*sources(count)) if start is None else start
        chosen = torch.arange(count) if rows is None else torch.tensor(rows)
        state = state.select(chosen, torch.zeros(len(chosen), beam_size, dtype=torch.long))
        left = len(chosen)
        for step in range(steps):
            tokens = (torch.arange(left * beam_size).view(left, beam_size) * 5 + step) % 15 + 4
            if rows is not None:
                tokens = (torch.tensor(rows)[:, None] * beam_size + torch.arange(beam_size)) * 5 % 15 + 4
            logits, weights, state = model.step(tokens, state)
            found.append((logits, weights))
            keep = torch.arange(left)
            if rows is None and step == 2 and left > 2:
                keep = keep[1:]
            beams = (
                torch.randint(beam_size, (len(keep), beam_size), generator=generator)
                if rows is None
                else torch.zeros(len(keep), beam_size).long()
            )
            state, left = state.select(keep, beams), len(keep)
    return found


@needs_library
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 5, 43])  # 129 rows: three tasks, the last of one row
@pytest.mark.parametrize("area", AREAS)
def test_it_equals_the_step_layer_by_layer(norm, size, count, area, monkeypatch):
    model = model_of(norm=norm, alignment_layer=1, area=None if AREAS[area] is None else AreaConfig(**AREAS[area]), **SIZES[size])
    expected = walk(model, count)
    calls = []
    step = DecoderPlan.step
    monkeypatch.setattr(DecoderPlan, "step", lambda self, *given: calls.append(1) or step(self, *given))
    with ops.packed_weights():
        found = walk(model, count)
    assert len(calls) == len(found)
    for (logits, weights), (right, shares) in zip(found, expected, strict=True):
        torch.testing.assert_close(logits, right, rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(weights, shares, rtol=1e-4, atol=1e-5)


@needs_library
@pytest.mark.parametrize("area", ["items", "learned"])
def test_a_sentence_is_not_changed_by_the_others(area):
    # The decoder alone: the products of the encoder and the output layer come from a library that rounds by the size of the batch.
    model = model_of(area=None if AREAS[area] is None else AreaConfig(**AREAS[area]), **SIZES["usual"])
    model.logits = lambda readout: readout
    with torch.no_grad(), ops.packed_weights():
        start = model.start(*sources(9))
        together = walk(model, 9, rows=list(range(9)), start=start)
        for row in range(9):
            for (mine, weights), (all_, shares) in zip(walk(model, 9, rows=[row], start=start), together, strict=True):
                assert torch.equal(weights[0], shares[row])
                assert torch.equal(mine[0], all_[row])


@needs_library
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("area", ["items", "learned"])
def test_threads_do_not_matter(area, threads):
    model = model_of(area=None if AREAS[area] is None else AreaConfig(**AREAS[area]), **SIZES["usual"])
    model.logits = lambda readout: readout
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with torch.no_grad(), ops.packed_weights():
            start = model.start(*sources(67))
            expected = walk(model, 67, start=start)
        torch.set_num_threads(threads)
        with ops.packed_weights():
            found = walk(model, 67, start=start)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True))


@needs_library
@pytest.mark.parametrize("area", [None, AreaConfig(max_area=3, key_mode="features", layers=1)])
def test_a_state_that_is_continued_twice_gives_the_same_both_times(area):
    model = model_of(area=area)
    with torch.no_grad(), ops.packed_weights():
        _, _, first = model.step(torch.full((5, 1), 4), model.start(*sources(5)))
        left, _, _ = model.step(torch.full((5, 1), 5), first)
        model.step(torch.full((5, 1), 6), first)
        again, _, _ = model.step(torch.full((5, 1), 5), first)
    assert torch.equal(left, again)


@needs_library
@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (TransformerConfig, {"area": AreaConfig(max_area=2, key_mode="max")}),
        (TransformerConfig, {"area": AreaConfig(max_area=2, key_mode="features", value_mode="mean")}),
        (TransformerConfig, {"area": AreaConfig(max_area=2, key_mode="features", top_k=2)}),
        (TransformerConfig, {"area": AreaConfig(max_area=2, key_mode="features", temperature=2.0)}),
        (TransformerConfig, {"area": AreaConfig(max_area=2, temperature=2.0)}),
        (TransformerConfig, {"activation": "gelu"}),
        (CrossedConfig, {}),
    ],
    ids=["largest keys", "mean values", "best areas", "temperature of learned", "temperature", "gelu", "crossed"],
)
def test_what_it_does_not_do_is_done_layer_by_layer(config, changes):
    model = model_of(config, **changes)
    expected = walk(model, 3)
    decoder = model.decoder
    assert plan_of(list(decoder.layers), decoder.norm, 0) is None
    with ops.packed_weights():
        found = walk(model, 3)
    for (logits, weights), (right, shares) in zip(found, expected, strict=True):
        torch.testing.assert_close(logits, right, rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(weights, shares, rtol=1e-4, atol=1e-5)


@needs_library
def test_what_was_begun_in_native_code_goes_on_without():
    model = model_of(area=AreaConfig(max_area=3, key_mode="features"))
    tokens = [torch.full((5, 1), token) for token in (4, 5, 6)]
    with torch.no_grad():
        with ops.packed_weights():
            _, _, native_state = model.step(tokens[0], model.start(*sources(5)))
        _, _, state = model.step(tokens[0], model.start(*sources(5)))
        for token in tokens[1:]:
            found, weights, native_state = model.step(token, native_state)
            expected, shares, state = model.step(token, state)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
            torch.testing.assert_close(weights, shares, rtol=1e-4, atol=1e-5)


def test_there_is_no_plan_in_training_or_in_double_precision():
    layers = list(model_of().decoder.layers)
    assert plan_of(list(model_of().train().decoder.layers), None, 0) is None
    assert plan_of(list(model_of().double().decoder.layers), None, 0) is None
    assert (plan_of(layers, None, 0) is None) == (native.library() is None)


@needs_library
def test_who_watches_sees_every_layer():
    model = model_of()
    with torch.no_grad(), ops.packed_weights(), record_weights():
        assert ops.cached_by_owner(model.decoder, lambda _: []) == []  # nothing prepared yet
        _, weights, _ = model.step(torch.full((2, 1), 4), model.start(*sources(2)))
    assert weights.shape == (2, 1, 11)
