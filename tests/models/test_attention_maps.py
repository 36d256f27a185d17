"""Looking at every attention of a model: what is shown is what was weighed, and looking changes nothing."""

from __future__ import annotations

import pytest
import torch

from regard import ops
from regard.attention import MultiHeadAttention, record_weights
from regard.attention.recorder import is_recording
from regard.config import AreaConfig, AreaSettings, AttentionConfig, CrossedConfig, RNNConfig, TransformerConfig
from regard.data.batching import collate
from regard.errors import ConfigError
from regard.models import Ensemble, build
from regard.models.attention_maps import attention_site
from tests.reference import area as reference

SIZE = 19
PAIRS = ([[4, 5, 6, 7, 8, 9, 4], [9, 10], [11, 4, 5]], [[4, 5, 6, 11, 6, 7], [7], [8, 9, 10, 11]])
SMALL = {"embed_dim": 10, "ff_dim": 11, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 3, "dropout": 0.0}
RECURRENT = {"cell": "lstm", "embed_dim": 6, "encoder_dim": 7, "decoder_dim": 14, "readout_dim": 10, "dropout": 0.0}
HEADS = {"score": "scaled_dot", "num_heads": 2, "query_state": "current"}
MODELS = {
    "regular": TransformerConfig(**SMALL),
    "area mean": TransformerConfig(**SMALL, area=AreaConfig(max_area=3)),
    "area features": TransformerConfig(**SMALL, area=AreaConfig(max_area=2, key_mode="features", layers=1), norm="pre"),
    "crossed": CrossedConfig(**SMALL),
    "crossed area": CrossedConfig(**SMALL, area=AreaConfig(max_area=2), residual="asking"),
    "bahdanau": RNNConfig(**RECURRENT, attention=AttentionConfig(attention_dim=5)),
    "areas": RNNConfig(**RECURRENT, attention=AttentionConfig(score="dot", query_state="current", area=AreaSettings(max_area=3))),
    "area heads": RNNConfig(**RECURRENT, attention=AttentionConfig(**HEADS, area=AreaSettings(max_area=2))),
    "heads fed": RNNConfig(**RECURRENT, attention=AttentionConfig(**HEADS, input_feeding=True)),
    "area mean heads fed": RNNConfig(**RECURRENT, attention=AttentionConfig(**HEADS, input_feeding=True, area=AreaSettings(max_area=2))),
    "area heads fed": RNNConfig(
        **RECURRENT, attention=AttentionConfig(**HEADS, input_feeding=True, area=AreaSettings(max_area=2, key_mode="features"))
    ),
}
FAMILY = [name for name, config in MODELS.items() if not isinstance(config, RNNConfig)]


def model_of(name):
    torch.manual_seed(29)
    return build(MODELS[name], source_size=SIZE, target_size=SIZE).eval().double()


def batch_of(indices):
    return collate(*PAIRS, indices)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def listen(monkeypatch):
    """Return a list that the calls of all attentions with heads go to: module, query, key (B, H, N, D), allowed (B, T, S)."""
    calls = []
    forward, attend = MultiHeadAttention.forward, MultiHeadAttention.attend

    def allowed_of(query, size, mask, causal):
        allowed = torch.ones(query.shape[0], query.shape[1], size, dtype=torch.bool)
        allowed = allowed if mask is None else allowed & mask.unsqueeze(1)
        return allowed.tril(size - query.shape[1]) if causal else allowed

    def heads(module, x):
        return x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2)

    def hear_forward(self, query, key, value, *, key_mask=None, causal=False, **options):
        found = heads(self, self.query(query)), heads(self, self.key(key))
        calls.append((self, *found, allowed_of(query, key.shape[1], key_mask, causal)))
        return forward(self, query, key, value, key_mask=key_mask, causal=causal, **options)

    def hear_attend(self, query, memory, **options):
        calls.append((self, heads(self, self.query(query)), memory.key, allowed_of(query, memory.key.shape[2], memory.mask, False)))
        return attend(self, query, memory, **options)

    monkeypatch.setattr(MultiHeadAttention, "forward", hear_forward)
    monkeypatch.setattr(MultiHeadAttention, "attend", hear_attend)
    return calls


def by_loops(module, query, key, allowed):
    """Weights of items (B, H, T, S) and of areas (B, H, T, N), by loops."""
    areas = module.areas
    length = 1 if areas is None else areas.max_area
    weights = None if areas is None or not areas.learned else {name: p.numpy() for name, p in areas.named_parameters()}
    mode = "mean" if areas is None else areas.key_mode
    items, of_areas = [], []
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            own = key[b, h].numpy()
            made = reference.keys(own, length, None, mode, weights)
            _, per_item, per_area = reference.attend(query[b, h].numpy(), own, own, allowed[b].numpy(), length, area_keys=made)
            items.append(torch.from_numpy(per_item))
            of_areas.append(torch.from_numpy(per_area))
    return torch.stack(items).unflatten(0, query.shape[:2]), torch.stack(of_areas).unflatten(0, query.shape[:2])


@pytest.mark.parametrize("name", [*FAMILY, "area heads"])
def test_every_map_is_what_loops_over_queries_and_areas_give(name, monkeypatch):
    model, batch = model_of(name), batch_of((0, 1, 2))
    with torch.no_grad():
        calls = listen(monkeypatch)
        model.decode(*batch[:3], need_weights=False)
        monkeypatch.undo()
        found = {one.name: one for one in model.attention_maps(*batch[:3], areas=True)}
        heads = {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
        assert set(found) == set(heads)
        assert len(calls) == len(heads)
        for module, *call in calls:
            one = next(found[key] for key, value in heads.items() if value is module)
            items, of_areas = by_loops(module, *call)
            if one.query == "source":
                items[~ops.length_mask(batch.source_lengths, items.shape[2])[:, None].expand(items.shape[:3])] = 0
                of_areas[~ops.length_mask(batch.source_lengths, items.shape[2])[:, None].expand(items.shape[:3])] = 0
            close(one.weights, items)
            assert (one.area_weights is None) == (module.areas is None)
            assert one.max_area == (None if module.areas is None else module.areas.max_area)
            if one.area_weights is not None:
                close(one.area_weights, of_areas)


@pytest.mark.parametrize("name", MODELS)
def test_weights_add_up_to_one_over_what_may_be_attended_to(name):
    batch = batch_of((0, 1, 2))
    real = {"source": ops.length_mask(batch.source_lengths, 8), "target": torch.ones(3, 7, dtype=torch.bool)}
    for one in model_of(name).attention_maps(*batch[:3], areas=True):
        weights = one.weights if one.area_weights is None else one.area_weights
        close(weights.sum(-1), real[one.query][:, None].expand(weights.shape[:3]).double())
        assert one.weights.shape == (3, one.weights.shape[1], real[one.query].shape[1], real[one.key].shape[1])
        hidden = ~real[one.key][:, None, None].expand(one.weights.shape)
        if one.key == one.query == "target":
            hidden = hidden | torch.ones(7, 7).triu(1).bool()
        assert (one.weights[hidden] == 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_padded_batch_shows_what_single_sentences_show(name):
    model = model_of(name)
    together = model.attention_maps(*batch_of((0, 1, 2))[:3])
    for row in range(3):
        for one, alone in zip(together, model.attention_maps(*batch_of((row,))[:3]), strict=True):
            assert one[:5] == alone[:5]
            *_, queries, keys = alone.weights.shape
            close(one.weights[row, :, :queries, :keys], alone.weights[0])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("areas", [False, True])
def test_looking_changes_nothing(name, areas):
    model, batch = model_of(name), batch_of((0, 1, 2))
    plain = model.decode(*batch[:3])
    with record_weights(areas=areas) as recorded:
        watched = model.decode(*batch[:3])
    assert torch.equal(plain.readout, watched.readout)
    assert torch.equal(plain.weights, watched.weights)
    assert recorded
    assert not is_recording()
    count = len(recorded)
    model.decode(*batch[:3])
    assert len(recorded) == count


def test_weights_of_areas_are_for_those_who_ask():
    model, batch = model_of("area mean"), batch_of((0, 1))
    assert all(one.area_weights is None for one in model.attention_maps(*batch[:3]))
    asked = model.attention_maps(*batch[:3], areas=True)
    assert [one.area_weights is not None for one in asked] == [one.layer < 2 for one in asked]
    for one, other in zip(asked, model.attention_maps(*batch[:3]), strict=True):
        close(one.weights, other.weights)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in FAMILY])
def test_an_alignment_is_the_one_that_is_shown(name):
    model, batch = model_of(name), batch_of((0, 1, 2))
    (one,) = model.attention_maps(*batch[:3])
    assert one[:5] == ("decoder.attention", "alignment", "target", "source", None)
    assert one.weights.shape[1] == (2 if "heads" in name else 1)
    mean = one.weights.mean(1)
    close(mean / mean.sum(-1, keepdim=True), model.decode(*batch[:3]).weights)


def test_names_and_places_tell_the_layers_apart():
    found = model_of("crossed").attention_maps(*batch_of((0,))[:3])
    sides = [f"encoder.layers.{layer}.attention.{side}" for layer in range(2) for side in ("left", "right")]
    expected = [(name, "co-attention", "source", "source", int(name.split(".")[2])) for name in sides]
    for layer in range(3):
        expected.append((f"decoder.layers.{layer}.attention", "self", "target", "target", layer))
        expected += [(f"decoder.layers.{layer}.cross_attention.{side}", "cross", "target", "source", layer) for side in ("left", "right")]
    assert [one[:5] for one in found] == expected
    assert attention_site("encoder.layers.1.attention") == ("self", "source", "source", 1)
    assert attention_site("decoder.layers.1.cross_attention.attention") == ("cross", "target", "source", 1)
    with pytest.raises(ConfigError, match=r"the attention encoder\.pool"):
        attention_site("encoder.pool")


def test_a_model_without_attention_shows_nothing():
    model = build(RNNConfig(**RECURRENT, attention=None), source_size=SIZE, target_size=SIZE)
    assert model.attention_maps(*batch_of((0,))[:3]) == []


def test_an_ensemble_shows_the_attentions_of_each_model():
    models, batch = [model_of("bahdanau"), model_of("regular")], batch_of((0, 1))
    found = Ensemble(models).attention_maps(*batch[:3])
    own = [
        one._replace(name=f"models.{number}.{one.name}") for number, model in enumerate(models) for one in model.attention_maps(*batch[:3])
    ]
    assert [one[:5] for one in found] == [one[:5] for one in own]
    assert all(torch.equal(one.weights, other.weights) for one, other in zip(found, own, strict=True))


def test_compiled_code_takes_no_notice():
    torch._dynamo.reset()
    attention, source = MultiHeadAttention(6, 2), torch.randn(3, 5, 6)
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    with record_weights() as recorded:
        torch.testing.assert_close(compiled(source, source, source).context, attention(source, source, source).context)
    assert len(recorded) == 1
