"""Models of Hugging Face: every family and attention function, areas, generation, and the model as it was afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import regard
from regard.errors import ConfigError
from regard.integrations import transformers as hf
from regard.integrations.families import implementations
from regard.observe import AttentionCall
from tests.integrations import tiny
from tests.integrations.tiny import MODELS, inputs, output


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["marian", "bert", "llama", "vit", "t5"])
def test_trap_9_weights_are_recorded_whatever_the_default_and_are_those_of_eager(name: str, implementation: str) -> None:
    model, given = MODELS[name](), inputs(name)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(**given, output_attentions=True)
    model.set_attn_implementation(implementation)
    with regard.watch(model) as records:
        found = output(model, **given)
    assert model.config._attn_implementation == implementation
    torch.testing.assert_close(found, eager[0], atol=1e-5, rtol=1e-5)
    if name in ("marian", "t5"):  # a decoder calls its two kinds in turns
        crossed = [w for pair in zip(eager.decoder_attentions, eager.cross_attentions, strict=True) for w in pair]
        expected, kinds = [*eager.encoder_attentions, *crossed], ["self", "self", "self", "cross", "self", "cross"]
    else:
        expected, kinds = eager.attentions, ["self", "self"]
    assert [record.kind for record in records] == kinds
    for record, weights in zip(records, expected, strict=True):
        torch.testing.assert_close(record.weights, weights, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (transformers.BloomConfig(vocab_size=37, hidden_size=6, n_layer=1, n_head=3), transformers.BloomModel),
        (
            transformers.DebertaV2Config(
                vocab_size=37, hidden_size=6, num_hidden_layers=1, num_attention_heads=3, intermediate_size=7, pos_att_type=["c2p", "p2c"],
                relative_attention=True,
            ),
            transformers.DebertaV2Model,
        ),
    ],
)  # fmt: skip
def test_models_that_fold_heads_into_the_batch_show_them(config: Any, model: Any) -> None:
    config._attn_implementation = "eager"
    made, ids = model(config).eval(), torch.randint(3, 37, (2, 5))
    with torch.no_grad(), regard.watch(made) as seen:
        expected = made(input_ids=ids, output_attentions=True).attentions
    assert (seen[0].kind, tuple(seen[0].weights.shape)) == ("self", (2, 3, 5, 5))
    torch.testing.assert_close(seen[0].weights, expected[0].view(2, 3, 5, 5), atol=1e-6, rtol=1e-6)


def test_the_cache_steps_of_a_model_that_folds_heads_are_joined() -> None:
    config = transformers.BloomConfig(vocab_size=37, hidden_size=6, n_layer=1, n_head=3, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model, ids = transformers.BloomForCausalLM(config).eval(), torch.randint(3, 37, (2, 5))
    with regard.watch(model) as seen:
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert [tuple(call.weights.shape) for call in seen.maps()] == [(2, 3, 7, 7)]


def test_state_spaces_are_no_attention() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    states = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8, "attn_layer_indices": [1]}
    config = transformers.BambaConfig(vocab_size=37, **sizes, **states, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    torch.manual_seed(0)
    model = transformers.BambaForCausalLM(config).eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randint(3, 37, (2, 7)))
    assert seen.layers == ["model.layers.1.self_attn"]


def test_xlnet_attends_to_itself() -> None:
    config = transformers.XLNetConfig(vocab_size=37, d_model=8, n_layer=1, n_head=2, d_inner=8)
    model = transformers.XLNetModel(config).eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randint(3, 37, (1, 7)))
    assert [call.kind for call in seen] == ["self"]


def test_the_records_name_layer_and_kind_in_the_order_of_the_calls() -> None:
    model = tiny.bert(is_decoder=True, add_cross_attention=True)
    states = torch.randn(3, 5, 15)
    with regard.watch(model) as records:
        output(model, **inputs("bert"), encoder_hidden_states=states)
    assert [(record.layer, record.kind, tuple(record.weights.shape)) for record in records] == [
        ("encoder.layer.0.attention.self", "self", (3, 3, 7, 7)),
        ("encoder.layer.0.crossattention.self", "cross", (3, 3, 7, 5)),
        ("encoder.layer.1.attention.self", "self", (3, 3, 7, 7)),
        ("encoder.layer.1.crossattention.self", "cross", (3, 3, 7, 5)),
    ]
    assert isinstance(records[0], AttentionCall)


@pytest.mark.parametrize("name", MODELS)
def test_recording_a_model_with_areas_changes_nothing_and_gives_both_weights(name: str) -> None:
    model, given = MODELS[name](), inputs(name)
    hf.enable_area(model, max_area=(2, 3) if name in ("vit", "registers") else 3, key_mode="features")
    expected = output(model, **given)
    with regard.watch(model, areas=True) as records:
        torch.testing.assert_close(output(model, **given), expected, atol=1e-5, rtol=1e-5)
    with regard.watch(model) as plain:
        output(model, **given)
    assert torch.equal(output(model, **given), expected)
    for record, other in zip(records, plain, strict=True):
        assert record.areas is not None
        assert other.areas is None
        assert torch.equal(record.weights, other.weights)
        assert record.areas.shape[-1] > record.weights.shape[-1]
        assert record.areas.sum(-1).le(1 + 1e-5).all()


def test_recording_works_around_generation() -> None:
    model, ids = tiny.marian(), tiny.tokens(2, 7)
    expected = model.generate(ids, max_new_tokens=4, num_beams=3)
    with regard.watch(model) as records:
        found = model.generate(ids, max_new_tokens=4, num_beams=3)
    assert torch.equal(found, expected)
    crossed = [record for record in records if record.layer == "model.decoder.layers.0.encoder_attn"]
    assert len(crossed) >= 3
    assert {(record.kind, tuple(record.weights.shape)) for record in crossed} == {("cross", (6, 3, 1, 7))}


def test_the_attention_function_comes_back_after_an_error_too() -> None:
    model, given = tiny.bert(), inputs("bert")
    before = output(model, **given)
    with pytest.raises(RuntimeError, match="stop"), regard.watch(model):
        raise RuntimeError("stop")
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(output(model, **given), before)
    assert not model.encoder.layer[0].attention.self._forward_pre_hooks


def test_every_part_of_a_model_gets_its_own_function_back() -> None:
    sizes: dict[str, Any] = {"hidden_size": 15, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 11}
    config = transformers.CLIPConfig(
        text_config={**sizes, "vocab_size": tiny.VOCABULARY, "eos_token_id": 1},
        vision_config={**sizes, "image_size": 6, "patch_size": 2},
        projection_dim=7,
    )
    model = transformers.CLIPModel(config).eval()
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    before = [name for _, name in implementations(model)]
    assert {"eager", "sdpa"} <= set(before)
    with regard.watch(model) as records:
        output(model, input_ids=tiny.tokens(2, 5), pixel_values=torch.randn(2, 3, 6, 6))
    assert [name for _, name in implementations(model)] == before
    assert {record.layer.split(".")[0] for record in records} == {"text_model", "vision_model"}


def test_one_model_is_recorded_once_at_a_time_and_two_models_side_by_side() -> None:
    model, other, given = tiny.bert(), tiny.bert(), inputs("bert")
    with regard.watch(model) as records, regard.watch(other) as others:
        output(other, **given)
        with pytest.raises(ConfigError, match="being watched already"), regard.watch(model):
            pass
        output(model, **given)
    assert len(records) == len(others) == tiny.LAYERS
    assert not torch.equal(records[0].weights, others[0].weights)


def test_records_are_copies_in_float32_without_gradients() -> None:
    model, given = tiny.bert().to(torch.bfloat16), inputs("bert")
    with regard.watch(model) as records:
        model(**given)
    assert {record.weights.dtype for record in records} == {torch.float32}
    assert not any(record.weights.requires_grad for record in records)


def test_a_model_with_areas_that_was_set_to_another_attention_is_recorded_as_it_runs() -> None:
    model, given = tiny.bert(), inputs("bert")
    with regard.watch(model) as plain:
        output(model, **given)
    hf.enable_area(model, max_area=3)
    model.set_attn_implementation("eager")
    with regard.watch(model, areas=True) as records:
        output(model, **given)
    assert all(record.areas is None for record in records)
    torch.testing.assert_close(records[0].weights, plain[0].weights, atol=1e-6, rtol=1e-6)


def test_nothing_run_is_nothing_recorded() -> None:
    with regard.watch(tiny.bert()) as records:
        pass
    assert len(records) == 0
    assert records.maps() == []
