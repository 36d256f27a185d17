"""Regard's own modules and models: through what they tell themselves, once, under their names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention import (
    AdditiveScore,
    Areas,
    Attention,
    DotScore,
    HardChoice,
    KeyValueAttention,
    MultiHeadAttention,
    NonLocal,
    StructuredAttention,
    record_weights,
)
from regard.errors import ConfigError
from regard.integrations.torch import replace_attention
from regard.ops import length_mask
from tests.models.test_attention_maps import MODELS, batch_of, model_of

LENGTHS = torch.tensor([7, 4, 6])


def states(size: int = 10, length: int = 7) -> Tensor:
    return torch.randn(3, length, size)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("areas", [None, 3])
def test_heads_are_seen_once_whatever_computes_them(areas: int | None, training: bool) -> None:
    attention = MultiHeadAttention(10, 2, dropout=0.3, areas=None if areas is None else Areas(areas)).train(training)
    x, mask = states(), length_mask(LENGTHS, 7)
    torch.manual_seed(3)
    expected, after = attention(x, x, x, key_mask=mask).context, torch.get_rng_state()
    torch.manual_seed(3)
    with regard.watch(attention, areas=True) as seen:
        output = attention(x, x, x, key_mask=mask).context
    assert torch.equal(output, expected)
    assert torch.equal(torch.get_rng_state(), after)
    (call,) = seen
    assert (call.layer, call.kind) == ("MultiHeadAttention", "self")
    weights = attention.eval()(x, x, x, key_mask=mask, need_weights=True).weights
    assert weights is not None
    torch.testing.assert_close(call.weights, weights, atol=1e-6, rtol=1e-6)
    assert (call.areas is None) == (areas is None)


MODULES: dict[str, tuple[nn.Module, Any, str, tuple[int, ...]]] = {
    "additive": (Attention(AdditiveScore(10, 6, 5)), lambda m: m(states(), states(6, 4), states(6, 4)), "cross", (3, 1, 7, 4)),
    "key value": (KeyValueAttention(10, 3), lambda m: m(states()), "self", (3, 1, 7, 7)),
    "structured": (StructuredAttention(10, 5, 2), lambda m: m(states()), "self", (3, 1, 2, 7)),
    "non-local": (NonLocal(10), lambda m: m(states()), "self", (3, 1, 7, 7)),
    "non-local, other": (NonLocal(10), lambda m: m(states(), states(10, 4)), "cross", (3, 1, 7, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_every_module_tells_of_itself(name: str) -> None:
    module, run, kind, shape = MODULES[name]
    with regard.watch(nn.ModuleDict({"own": module})) as seen:
        run(module)
    assert [(call.layer, call.kind, tuple(call.weights.shape)) for call in seen] == [("own", kind, shape)]
    torch.testing.assert_close(seen[0].weights[:, :, 1:].sum(-1), torch.ones_like(seen[0].weights[:, :, 1:, 0]))


def test_a_hard_choice_in_training_is_told_as_it_was_drawn_and_counts_once() -> None:
    attention = Attention(DotScore(), choice=HardChoice(soft_batches=3)).train()
    assert attention.choice is not None
    keys, query = states(6, 5), states(6, 2)
    for soft in (None, torch.zeros(3, dtype=torch.bool)):
        tossed = attention.choice.tossed.clone()
        torch.manual_seed(5)
        with regard.watch(attention) as seen:
            output = attention(query, keys, keys, soft=soft)
        assert attention.choice.tossed == tossed + (soft is None)
        torch.testing.assert_close(seen[0].weights[:, 0] @ keys, output.context)
    assert set(seen[0].weights.unique().tolist()) == {0.0, 1.0}


def test_steps_of_key_value_attention_become_one_map() -> None:
    attention, x = KeyValueAttention(10, 3), states()
    with regard.watch(attention) as seen:
        attention(x)
    with regard.watch(attention) as steps:
        memory = attention.memory(x[:, :0])
        for place in range(7):
            _, memory = attention.step(x[:, place : place + 1], memory)
    whole, stepped = seen[0].weights, steps.map("KeyValueAttention").weights
    torch.testing.assert_close(stepped, whole, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_models_show_what_look_shows_under_the_same_names(name: str) -> None:
    model, batch = model_of(name), batch_of((0, 1, 2))
    expected = model.decode(*batch[:3])
    with regard.watch(model, areas=True) as seen:
        found = model.decode(*batch[:3])
    assert torch.equal(found.readout, expected.readout)
    maps = {each.layer: each for each in seen.maps()}
    looked = model.attention_maps(*batch[:3], areas=True)
    assert list(maps) == [each.name for each in sorted(looked, key=lambda each: [call.layer for call in seen].index(each.name))]
    for each in looked:
        assert maps[each.name].kind == ("self" if each.kind == "self" else "cross")
        rows = each.weights.sum(-1, keepdim=True) > 0  # what padding asks is zeros there
        torch.testing.assert_close(maps[each.name].weights * rows, each.weights.float() * rows, atol=1e-6, rtol=1e-6)
        assert (maps[each.name].areas is None) == (each.area_weights is None)


def test_only_the_layers_asked_for_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of("regular"), batch_of((0, 1))
    called: list[bool] = []
    original = MultiHeadAttention._weigh

    def count(self: MultiHeadAttention, *args: Any) -> Any:
        called.append(True)
        return original(self, *args)

    monkeypatch.setattr(MultiHeadAttention, "_weigh", count)
    with regard.watch(model, layers="decoder.layers.2.cross_attention", heads=1) as seen:
        model.decode(*batch[:3], need_weights=False)
    assert [(call.layer, call.weights.shape[1]) for call in seen] == [("decoder.layers.2.cross_attention.attention", 1)]
    assert len(called) == 1


def test_regards_attention_in_torchs_layers_and_beside_them_is_seen_once() -> None:
    torch.manual_seed(2)
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(10, 2, 7, batch_first=True), 2, enable_nested_tensor=False).eval()
    theirs, x = layers.layers[1], states()
    layers.layers[0] = replace_attention(layers.layers[0], areas=lambda: Areas(2))
    with torch.no_grad(), regard.watch(layers) as seen, record_weights() as sights:
        layers(x)
    assert [call.layer for call in seen] == ["layers.0.self_attn.attention", "layers.1.self_attn"]
    assert len(sights) == 1  # both blocks are told
    assert isinstance(theirs, nn.TransformerEncoderLayer)


def test_a_block_in_another_goes_on_when_that_ends() -> None:
    attention, x = MultiHeadAttention(10, 2), states()
    with record_weights() as outer:
        with regard.watch(attention) as inner:
            attention(x, x, x)
        attention(x, x, x)
    assert (len(outer), len(inner)) == (2, 1)


def test_what_is_loaded_as_a_run_is_no_module() -> None:
    with pytest.raises(ConfigError, match=r"expected a torch\.nn\.Module, found dict"), regard.watch({}):  # type: ignore[arg-type]
        pass
