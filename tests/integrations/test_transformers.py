"""Area attention inside Hugging Face models: the same as theirs with areas of one item, and every trap of the registry, shut."""

from __future__ import annotations

import copy
import inspect
import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

import regard
from regard.errors import CheckpointError, ConfigError, ShapeError
from regard.integrations import transformers as hf
from regard.integrations.calls import NOTICE, AreaLayer, attend_with_weights, read_call
from regard.integrations.families import check_family
from tests.integrations import tiny
from tests.integrations.tiny import MODELS, inputs, output

IMAGES = ("vit", "registers")


def areas_for(name: str, size: int) -> int | tuple[int, int]:
    return (size - 1, size) if name in IMAGES else size


@pytest.mark.parametrize("name", MODELS)
def test_areas_of_one_item_are_the_models_own_attention(name: str) -> None:
    model, given = MODELS[name](attn_implementation="eager"), inputs(name)
    expected = output(model, **given)
    handle = hf.enable_area(model, max_area=(1, 1) if name in IMAGES else 1)
    torch.testing.assert_close(output(model, **given), expected, atol=1e-5, rtol=1e-5)
    assert handle.reached == list(handle.layers)


@pytest.mark.parametrize("name", MODELS)
def test_larger_areas_change_the_output_and_removing_them_brings_it_back(name: str) -> None:
    model, given = MODELS[name](), inputs(name)
    before, keys = output(model, **given), list(model.state_dict())
    handle = hf.enable_area(model, max_area=areas_for(name, 3), key_mode="features")
    assert not torch.allclose(output(model, **given), before, atol=1e-2)
    assert list(model.state_dict()) != keys
    handle.remove()
    handle.remove()
    with pytest.raises(ConfigError, match="its areas were removed"):
        handle.check()
    assert torch.equal(output(model, **given), before)
    assert list(model.state_dict()) == keys
    assert "regard" not in model.config.to_json_string()


def test_another_attention_set_afterwards_is_noticed() -> None:
    model, given = MODELS["bert"](), inputs("bert")
    handle = hf.enable_area(model, max_area=3)
    with_areas = output(model, **given)
    handle.check()
    model.set_attn_implementation("eager")
    output(model, **given)
    with pytest.raises(ConfigError, match="its attention was set to 'eager': the areas have no effect"):
        handle.check()
    model.set_attn_implementation("regard_area")
    assert torch.equal(output(model, **given), with_areas)
    handle.check()


# ---------------------------------------------------------------------------------------------------------------- masks (traps 1 and 2)


def changed(model: Any, given: dict[str, Tensor], field: str, place: int) -> Tensor:
    """Say at which positions the output changes when every row's token at `place` does."""
    other = {**given, field: given[field].clone()}
    other[field][:, place] = (other[field][:, place] + 1) % tiny.VOCABULARY
    return (output(model, **given) != output(model, **other)).any(-1)


@pytest.mark.parametrize("mask", [False, True], ids=["no mask", "a mask of ones"])
def test_trap_1_and_2_a_causal_model_stays_causal_with_and_without_a_mask(mask: bool) -> None:
    model = tiny.llama()
    hf.enable_area(model, max_area=3)
    given = {"input_ids": tiny.tokens(2, 7)}
    if mask:
        given["attention_mask"] = torch.ones(2, 7, dtype=torch.long)
    seen = changed(model, given, "input_ids", 4)
    assert not seen[:, :4].any()
    assert seen[:, 4:].all()


def test_trap_1_a_decoder_does_not_see_the_future_but_all_of_the_source() -> None:
    model, given = tiny.marian(), {"input_ids": tiny.tokens(2, 7), "decoder_input_ids": tiny.tokens(2, 5)}
    hf.enable_area(model, max_area=3)
    assert changed(model, given, "decoder_input_ids", 3).tolist() == [[False] * 3 + [True] * 2] * 2
    assert changed(model, given, "input_ids", 6).all()


@pytest.mark.parametrize("name", ["bert", "marian", "t5", "llama"])
def test_trap_1_padding_is_not_attended_to(name: str) -> None:
    model, given = MODELS[name](), inputs(name)
    hf.enable_area(model, max_area=3)
    seen = changed(model, given, "input_ids", 6)  # padding in all rows but the first
    assert seen[0].any()
    assert not (seen[1:, :5] if name in ("bert", "llama") else seen[1:]).any()


def test_trap_1_the_mask_is_registered_under_the_same_name() -> None:
    for _ in range(2):  # again changes nothing
        hf.register()
        assert hf.AREA in ALL_ATTENTION_FUNCTIONS.valid_keys()
        assert hf.AREA in AttentionMaskInterface().valid_keys()


def layer_and_tensors(size: int) -> tuple[Any, tuple[Tensor, Tensor, Tensor]]:
    query, key, value = torch.randn(3, 1, 2, size, 3).unbind(0)
    return nn.Identity(), (query, key, value)


def test_trap_2_a_missing_mask_is_causal_for_a_causal_layer() -> None:
    layer, tensors = layer_and_tensors(5)
    for causal, expected in ((True, [1, 2, 3, 4, 5]), (False, None)):
        layer.is_causal = causal
        mask = read_call(layer, tensors, None, {}).mask
        assert (None if mask is None else mask[0, 0].sum(-1).tolist()) == expected
    mask = read_call(layer, tensors, None, {"is_causal": True}).mask
    assert mask is not None
    assert read_call(layer, (tensors[0][:, :, :1], *tensors[1:]), None, {"is_causal": True}).mask is None  # the last position sees all
    with pytest.raises(ShapeError, match="without a mask 3 queries cannot be placed among 5 keys"):
        read_call(layer, (tensors[0][:, :, :3], *tensors[1:]), None, {"is_causal": True})


# -------------------------------------------------------------------------------------------------------------------- weights (trap 3)


@pytest.mark.parametrize("name", MODELS)
def test_trap_3_asking_for_attentions_gives_weights_of_items(name: str) -> None:
    model, given = MODELS[name](), inputs(name)
    hf.enable_area(model, max_area=areas_for(name, 3))
    with torch.no_grad():
        result = model(**given, output_attentions=True)
    expected = ["decoder_attentions", "cross_attentions", "encoder_attentions"] if name in ("marian", "t5") else ["attentions"]
    for field in expected:
        assert len(result[field]) == tiny.LAYERS
        assert all(weights.dim() == 4 and weights.isfinite().all() and weights.sum() > 0 for weights in result[field])
    torch.testing.assert_close(result[0], output(model, **given), atol=1e-5, rtol=1e-5)
    assert output(model, **given).shape == result[0].shape


def test_trap_3_generate_gives_weights_of_items_at_every_step() -> None:
    model = tiny.marian()
    hf.enable_area(model, max_area=3)
    result = model.generate(tiny.tokens(2, 7), max_new_tokens=3, num_beams=2, output_attentions=True, return_dict_in_generate=True)
    assert [tuple(step[0].shape) for step in result.cross_attentions] == [(4, 3, 1, 7)] * len(result.cross_attentions)


def test_trap_3_the_configuration_cannot_ask_for_attentions_and_says_so() -> None:
    model = tiny.bert()
    hf.enable_area(model, max_area=3)
    with pytest.raises(ValueError, match="regard_area"):
        model.config.output_attentions = True


# --------------------------------------------------------------------------------------------------------------------- saving (trap 4)


@pytest.mark.parametrize("name", ["marian", "llama", "bert", "vit", "t5"])
@pytest.mark.parametrize("key_mode", ["mean", "features"])
def test_trap_4_a_saved_model_comes_back_with_its_areas_bitwise(name: str, key_mode: str, tmp_path: Any) -> None:
    model, given = MODELS[name](), inputs(name)
    hf.enable_area(model, max_area=areas_for(name, 3), key_mode=key_mode, layers=(1,), class_tokens=1)
    expected = output(model, **given)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"was not given any areas.*restore\(model, folder\)"):
        again(**given)
    handle = hf.restore(again, None if key_mode == "mean" else tmp_path)
    assert torch.equal(output(again, **given), expected)
    # "encoder.block.1.layer.0.SelfAttention": the first number counts.
    second = [name for name in handle.layers if next(part for part in name.split(".") if part.isdigit()) == "1"]
    assert [name for name, layer in handle.layers.items() if layer.areas] == second
    handle.remove()
    assert again.config._attn_implementation == "eager"


def test_trap_4_without_this_library_a_saved_model_is_refused_not_run_with_plain_attention(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.bert()
    hf.enable_area(model, max_area=3)
    model.save_pretrained(tmp_path)
    monkeypatch.delitem(AttentionInterface._global_mapping, hf.AREA)
    with pytest.raises(ValueError, match="regard_area"):
        transformers.BertModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["marian", "llama", "bert", "vit", "t5"])
@pytest.mark.parametrize("plain", ["sdpa", "eager"])
def test_trap_4_a_saved_model_that_is_loaded_as_a_plain_one_is_reported(
    name: str, plain: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()
    before = set(model.state_dict())
    handle = hf.enable_area(model, max_area=areas_for(name, 3), class_tokens=1)
    model.save_pretrained(tmp_path)
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("transformers")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    monkeypatch.setattr(logger, "handlers", [handler])
    again, info = type(model).from_pretrained(tmp_path, attn_implementation=plain, output_loading_info=True)
    assert again.config._attn_implementation == plain
    [unexpected] = info["unexpected_keys"]
    assert unexpected.endswith(f"regard_area.{NOTICE}")
    assert any(NOTICE in text for text in told)
    # A strict reader of weights refuses them; without areas nothing is left of it.
    with pytest.raises(RuntimeError, match=NOTICE):
        again.load_state_dict(model.state_dict())
    handle.remove()
    assert set(model.state_dict()) == before


def test_learned_weights_are_found_in_a_model_saved_in_pieces(tmp_path: Any) -> None:
    model, given = tiny.bert(), inputs("bert")
    hf.enable_area(model, max_area=3, key_mode="features")
    expected = output(model, **given)
    model.save_pretrained(tmp_path, max_shard_size="1KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    again = transformers.BertModel.from_pretrained(tmp_path)
    hf.restore(again, tmp_path)
    assert torch.equal(output(again, **given), expected)


def test_restoring_names_what_is_missing(tmp_path: Any) -> None:
    model = tiny.bert()
    with pytest.raises(ConfigError, match="holds no areas"):
        hf.restore(model)
    model.config.regard_area = {"max_area": 3}
    with pytest.raises(ConfigError, match="class_tokens are expected, found max_area"):
        hf.restore(model)
    handle = hf.enable_area(model, max_area=3, key_mode="features")
    model.save_pretrained(tmp_path)
    handle.remove()
    again = transformers.BertModel.from_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="pass the folder"):
        hf.restore(again)
    for layer in again.modules():
        if hasattr(layer, "regard_area"):
            del layer.regard_area
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        hf.restore(copy.deepcopy(again), tmp_path / "elsewhere")
    again.config.regard_area["max_area"] = 5
    with pytest.raises(CheckpointError, match=r"\(3, 3\), but \(5, 3\) is expected"):
        hf.restore(copy.deepcopy(again), tmp_path)
    again.config.regard_area.update(max_area=3, key_mode="concat")
    with pytest.raises(CheckpointError, match=r"no learned area weights for 0\.hidden\.bias, 0\.output\.bias, 1\.hidden\.bias"):
        hf.restore(again, tmp_path)


# -------------------------------------------------------------------------------------------- models that never ask, or do more (trap 5)


def deberta() -> Any:
    config = transformers.DebertaV2Config(
        vocab_size=tiny.VOCABULARY, hidden_size=12, num_attention_heads=3, num_hidden_layers=2, intermediate_size=11
    )
    return transformers.DebertaV2Model(config).eval()


def test_trap_5_a_model_outside_the_registry_is_refused() -> None:
    model = deberta()
    with pytest.raises(ConfigError, match="DebertaV2Model: none of its layers asks the registry"):
        hf.enable_area(model, max_area=3)


def test_trap_5_a_model_that_only_seems_to_ask_is_found_out_at_its_first_forward() -> None:
    class Deaf(nn.Module):
        """It names ALL_ATTENTION_FUNCTIONS, and goes its own way."""

        def forward(self, states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, None]:
            return states, None

    model, given = tiny.bert(), inputs("bert")
    for layer in model.encoder.layer:
        layer.attention.self = Deaf()
    handle = hf.enable_area(model, max_area=3)
    with pytest.raises(ConfigError, match="none of its 2 attention layers asked for 'regard_area'"):
        output(model, **given)
    with pytest.raises(ConfigError, match="none of its 2 attention layers"):
        handle.check()
    handle.remove()


def test_a_model_that_was_set_to_another_attention_is_left_alone_but_check_says_so() -> None:
    model, given = tiny.bert(), inputs("bert")
    expected = output(model, **given)
    handle = hf.enable_area(model, max_area=3)
    model.set_attn_implementation("sdpa")
    assert torch.equal(output(model, **given), expected)
    with pytest.raises(ConfigError, match=r"its attention was set to 'sdpa': the areas have no effect"):
        handle.check()


@pytest.mark.parametrize("name", ["cache", "head_mask", "sinks"])
def test_an_option_that_is_not_known_is_refused_not_dropped(name: str) -> None:
    layer, tensors = layer_and_tensors(5)
    read_call(layer, tensors, None, {name: None})
    with pytest.raises(ConfigError, match=f"does not support '{name}'"):
        read_call(layer, tensors, None, {name: torch.ones(1)})


def test_a_sliding_window_without_a_mask_is_refused_where_it_would_hide_something() -> None:
    layer, tensors = layer_and_tensors(5)
    read_call(layer, tensors, None, {"sliding_window": 5})
    with pytest.raises(ConfigError, match="a sliding window of 4 over 5 keys"):
        read_call(layer, tensors, None, {"sliding_window": 4})


def test_a_family_whose_own_attention_does_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.bert import modeling_bert

    def eager_attention_forward(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, decay: float) -> Tensor:
        return query * module.slope * decay

    model = tiny.bert()
    check_family(model.encoder.layer[0].attention.self)
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", eager_attention_forward)
    with pytest.raises(ConfigError, match="also uses decay, slope"):
        hf.enable_area(model, max_area=3)


# ------------------------------------------------------------------------------------------------------- learned keys (trap 6)


@pytest.mark.parametrize("name", ["marian", "bert", "vit", "llama"])
def test_trap_6_learned_keys_belong_to_the_models_own_layers_and_train(name: str) -> None:
    model, given = MODELS[name]().train(), inputs(name)
    handle = hf.enable_area(model, max_area=areas_for(name, 3), key_mode="features")
    model(**given)[0].square().sum().backward()
    learned = handle.parameters()
    assert len(learned) == 4 * len(handle.layers)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in learned)
    assert sum(parameter.grad.abs().sum().item() for parameter in learned if parameter.grad is not None) > 0
    own = {id(parameter) for parameter in model.parameters()}
    assert all(id(parameter) in own for parameter in learned)
    notice, *names = [key for key in model.state_dict() if "regard_area" in key]
    assert notice.endswith(f".regard_area.{NOTICE}")
    assert names[0].endswith(".regard_area.0.width")
    assert len(names) == len(learned)


def test_learned_keys_take_the_type_of_the_layer() -> None:
    model = tiny.llama().to(torch.bfloat16)
    handle = hf.enable_area(model, max_area=3, key_mode="features")
    assert {parameter.dtype for parameter in handle.parameters()} == {torch.bfloat16}
    assert output(model, **inputs("llama")).dtype == torch.bfloat16


def test_only_the_layers_asked_for_attend_to_areas() -> None:
    model, given = tiny.t5(), inputs("t5")
    with regard.watch(model) as before:
        output(model, **given)
    handle = hf.enable_area(model, max_area=3, layers=1)
    assert [name for name, layer in handle.layers.items() if layer.areas] == [name for name in handle.layers if "block.0." in name]
    with regard.watch(model, areas=True) as after:
        output(model, **given)
    assert [record.areas is not None for record in after] == ["block.0." in record.layer for record in after]
    assert [record.layer for record in after] == [record.layer for record in before]


def test_whole_numbers_of_numpy_are_settings_that_can_be_saved(tmp_path: Path) -> None:
    two = np.int64(2)
    model = tiny.bert()
    hf.enable_area(model, max_area=two, layers=np.int64(1), class_tokens=(np.int64(1), 0))  # type: ignore[arg-type]
    model.save_pretrained(tmp_path)
    assert model.config.regard_area == {
        "max_area": 2, "grid": None, "key_mode": "mean", "value_mode": "sum", "layers": 1, "class_tokens": (1, 0)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (0, "found 0; this model has 2 layers"),
        (3, "found 3; this model has 2 layers"),
        ((2,), r"found \(2,\); the layers of this model are \[0, 1\]"),
        ((), r"found \(\); the layers"),
    ],
)
def test_a_layer_that_does_not_exist_is_refused(layers: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"layers: {message}"):
        hf.enable_area(tiny.bert(), max_area=3, layers=layers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_area": "3"}, "Areas: max_area should be a whole number of at least 1"),
        ({"max_area": True}, "Areas: max_area should be a whole number of at least 1"),
        ({"layers": True}, "layers: expected a whole number, or numbers of layers, found True"),
        ({"layers": "0"}, "layers: expected a whole number, or numbers of layers, found '0'"),
        ({"layers": 1.5}, "layers: expected a whole number, or numbers of layers, found 1.5"),
        ({"layers": [True]}, r"layers: expected a whole number, or numbers of layers, found \[True\]"),
        ({"class_tokens": True}, r"class_tokens: a number of tokens from 0 on, or \(front, back\), found True"),
        ({"class_tokens": 2.5}, r"class_tokens: a number of tokens from 0 on, or \(front, back\), found 2.5"),
        ({"class_tokens": (1,)}, r"class_tokens: a number of tokens from 0 on, or \(front, back\), found \(1,\)"),
        ({"class_tokens": (1, -1)}, r"class_tokens: a number of tokens from 0 on, or \(front, back\), found \(1, -1\)"),
    ],
)
def test_settings_of_another_type_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        hf.enable_area(tiny.bert(), **{"max_area": 3, **changes})
    with pytest.raises(ConfigError, match="expected a model of transformers, found 'bert'"):
        hf.enable_area("bert", max_area=2)


def test_areas_twice_are_refused_and_change_nothing() -> None:
    model, given = tiny.bert(), inputs("bert")
    hf.enable_area(model, max_area=3)
    expected = output(model, **given)
    with pytest.raises(ConfigError, match="attends to areas already"):
        hf.enable_area(model, max_area=2)
    assert torch.equal(output(model, **given), expected)


def test_a_copy_of_the_model_has_areas_of_its_own() -> None:
    model, given = tiny.bert(), inputs("bert")
    handle = hf.enable_area(model, max_area=3, key_mode="features")
    twin = copy.deepcopy(model)
    expected = output(model, **given)
    with torch.no_grad():
        for parameter in handle.parameters():
            parameter.zero_()
    assert torch.equal(output(twin, **given), expected)


def test_a_model_built_from_the_same_configuration_stays_as_it_is(tmp_path: Path) -> None:
    plain, given = tiny.bert(), inputs("bert")
    changed = type(plain)(plain.config).eval()
    expected = output(plain, **given)
    handle = hf.enable_area(changed, max_area=3)
    assert torch.equal(output(plain, **given), expected)
    plain.save_pretrained(tmp_path)
    assert "regard" not in (tmp_path / "config.json").read_text()
    assert {id(module.config) for module in changed.modules() if hasattr(module, "config")}.isdisjoint({id(plain.config)})
    handle.remove()
    again = type(plain)(changed.config).eval()
    again.load_state_dict(plain.state_dict())
    assert torch.equal(output(again, **given), expected)


# ------------------------------------------------------------------------------------------------------------------ images (trap 7)


def rectangles(scores: Tensor, own: int, grid: tuple[int, int], largest: tuple[int, int]) -> Tensor:
    """The weights of areas from scores of items, by hand: (..., own + grid) to (..., own + areas)."""
    rows, columns = grid
    patches = scores[..., own:].unflatten(-1, grid)
    found = [scores[..., i] for i in range(own)]
    for height in range(1, min(largest[0], rows) + 1):
        for width in range(1, min(largest[1], columns) + 1):
            for y in range(rows - height + 1):
                for x in range(columns - width + 1):
                    found.append(patches[..., y : y + height, x : x + width].mean((-1, -2)))
    return torch.stack(found, -1).softmax(-1)


@pytest.mark.parametrize(("name", "own", "grid"), [("vit", 1, (3, 5)), ("registers", 3, (3, 3))])
def test_trap_7_the_grid_and_the_class_tokens_are_found(name: str, own: int, grid: tuple[int, int]) -> None:
    model, given = MODELS[name](), inputs(name)
    with regard.watch(model) as plain:
        output(model, **given)
    handle = hf.enable_area(model, max_area=(2, 3))
    layer = next(iter(handle.layers.values()))
    assert layer.own == (own, 0)
    assert layer.areas is not None
    assert layer.areas.grid == grid
    with regard.watch(model, areas=True) as records:
        output(model, **given)
    # The first layer sees the same in both, and a logarithm of weights is the scores less a constant.
    expected = rectangles(plain[0].weights.log(), own, grid, (2, 3))
    assert records[0].areas is not None
    torch.testing.assert_close(records[0].areas, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(records[0].weights[..., :own], expected[..., :own], atol=1e-5, rtol=1e-4)


def test_trap_7_a_picture_of_another_size_is_refused_and_the_grid_can_be_said() -> None:
    model, wide = tiny.registers(), torch.randn(2, 3, 6, 14)
    handle = hf.enable_area(model, max_area=(2, 2))
    with pytest.raises(ShapeError, match="24 keys are not 3 class tokens, a grid of 3 x 3 = 9 and 0 tokens after it"):
        model(wide)
    handle.remove()
    hf.enable_area(model, max_area=(2, 2), grid=(3, 7))
    assert model(wide).last_hidden_state.shape == (2, 24, 15)


def test_trap_7_tokens_at_both_ends_must_be_said() -> None:
    config = transformers.YolosConfig(
        hidden_size=15,
        num_attention_heads=3,
        num_hidden_layers=2,
        intermediate_size=11,
        image_size=[6, 10],
        patch_size=2,
        num_detection_tokens=4,
    )
    model, picture = transformers.YolosModel(config).eval(), torch.randn(1, 3, 6, 10)
    with pytest.raises(ConfigError, match=r"class_tokens=\(before, after\)"):
        hf.enable_area(model, max_area=(2, 2))
    hf.enable_area(model, max_area=(2, 2), class_tokens=(1, 4))
    with regard.watch(model, areas=True) as records:
        output(model, pixel_values=picture)
    assert records[0].weights.shape == (1, 3, 20, 20)
    assert records[0].areas is not None
    assert records[0].areas.shape[-1] == 1 + (15 + 12 + 10 + 8) + 4


def test_a_pair_without_an_image_and_bad_class_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="need a grid"):
        hf.enable_area(tiny.bert(), max_area=(2, 2))
    with pytest.raises(ConfigError, match="class_tokens"):
        hf.enable_area(tiny.bert(), max_area=2, class_tokens=-1)
    model = tiny.bert()
    hf.enable_area(model, max_area=2, class_tokens=9)
    with pytest.raises(ShapeError, match="7 keys are not 9 class tokens, a sequence"):
        output(model, **inputs("bert"))


# ------------------------------------------------------------------------------------------- rotated keys, biases, caps, sinks (trap 8)


def runs(scores: Tensor, largest: int) -> Tensor:
    """The weights of areas from scores of items, by hand, along a sequence."""
    size = scores.shape[-1]
    found = [scores[..., i : i + width].mean(-1) for width in range(1, largest + 1) for i in range(size - width + 1)]
    return torch.stack(found, -1).softmax(-1)


@pytest.mark.parametrize("name", ["llama", "t5", "bert"])
def test_trap_8_area_scores_are_means_of_item_scores_rotations_and_biases_included(name: str) -> None:
    model = MODELS[name]()
    given = {"input_ids": tiny.tokens(2, 7)}
    if name == "t5":
        given["decoder_input_ids"] = tiny.tokens(2, 5)
    with regard.watch(model) as plain:
        output(model, **given)
    hf.enable_area(model, max_area=3)
    with regard.watch(model, areas=True) as records:
        output(model, **given)
    last = slice(-1, None)  # the last position of a causal layer sees everything
    assert records[0].areas is not None
    torch.testing.assert_close(records[0].areas[..., last, :], runs(plain[0].weights[..., last, :].log(), 3), atol=1e-5, rtol=1e-4)


def test_a_bias_a_cap_and_sinks_are_applied_to_areas() -> None:
    query, key, value = torch.randn(3, 2, 2, 3, 5).unbind(0)
    bias, sinks = torch.randn(1, 2, 3, 3), torch.randn(2)
    layer: Any = nn.Identity()
    layer.is_causal = False
    options = {"position_bias": bias, "s_aux": sinks, "softcap": 0.7, "scaling": 0.3}
    call = read_call(layer, (query, key, value), None, options)
    seen = attend_with_weights(call, AreaLayer(0, hf.Areas(2)))
    keys = torch.cat([key, (key[:, :, 1:] + key[:, :, :-1]) / 2], -2)
    biases = torch.cat([bias, (bias[..., 1:] + bias[..., :-1]) / 2], -1)
    scores = torch.tanh(query @ keys.mT * 0.3 / 0.7) * 0.7 + biases
    scores = torch.cat([scores, sinks.view(1, 2, 1, 1).expand(2, 2, 3, 1)], -1)
    weights = scores.softmax(-1)[..., :-1]
    assert seen.areas is not None
    torch.testing.assert_close(seen.areas, weights)
    values = torch.cat([value, value[:, :, 1:] + value[:, :, :-1]], -2)
    torch.testing.assert_close(seen.context, weights @ values)
    torch.testing.assert_close(seen.items @ value, weights @ values)


def test_a_floating_mask_forbids_with_its_lowest_numbers_and_adds_the_rest() -> None:
    layer, (query, key, value) = layer_and_tensors(4)
    tensors = (query[:, :, :1], key, value)
    lowest = torch.finfo(torch.float32).min
    call = read_call(layer, tensors, torch.tensor([[[[0.0, 0.5, lowest, -math.inf]]]]), {})
    assert call.mask is not None
    assert call.bias is not None
    assert call.mask.flatten().tolist() == [True, True, False, False]
    assert call.bias.flatten().tolist() == [0.0, 0.5, 0.0, 0.0]
    with pytest.raises(ConfigError, match=r"boolean or floating mask is expected, found torch\.int64"):
        read_call(layer, tensors, torch.ones(1, 1, 1, 4, dtype=torch.long), {})


@pytest.mark.parametrize("hidden", [torch.nan, torch.inf])
def test_what_a_masked_key_holds_changes_nothing_forward_or_backward(hidden: float) -> None:
    layer, tensors = layer_and_tensors(5)
    mask = torch.tensor([True, True, True, False, True]).expand(1, 1, 5, 5)
    areas = hf.Areas(2, key_mode="features", dim=3)
    results = []
    for held in (0.0, hidden):
        query, key, value = (tensor.clone() for tensor in tensors)
        key[:, :, 3], value[:, :, 3] = held, held
        call = read_call(layer, (query, key.requires_grad_(), value), mask, {})
        context = attend_with_weights(call, AreaLayer(0, areas, (1, 0))).context
        results.append([context, *torch.autograd.grad(context.square().sum(), [key, *areas.parameters()])])
    for quiet, loud in zip(*results, strict=True):
        assert torch.equal(quiet, loud)
    assert results[0][1][:, :, 3].eq(0).all()


# ------------------------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", ["marian", "llama", "t5"])
def test_generation_with_a_cache_equals_generation_without(name: str, beams: int) -> None:
    model = MODELS[name]()
    hf.enable_area(model, max_area=3, key_mode="features", layers=1)
    given = tiny.padded(2, 7)
    if name == "llama":  # a decoder-only model is padded on the left
        given = {key: value.flip(1) for key, value in given.items()}
    options: dict[str, Any] = {"max_new_tokens": 6, "num_beams": beams, "do_sample": False}
    cached = model.generate(**given, **options, use_cache=True)
    assert torch.equal(model.generate(**given, **options, use_cache=False), cached)
    assert cached.shape[1] > 2


def test_a_static_cache_gives_what_a_growing_one_gives() -> None:
    model = tiny.llama()
    hf.enable_area(model, max_area=3)
    ids = tiny.tokens(2, 7)
    expected = output(model, input_ids=ids)
    cache = transformers.StaticCache(config=model.config, max_cache_len=11)
    given = {"cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values": cache}
    first = output(model, input_ids=ids[:, :5], **given)
    rest = [output(model, input_ids=ids[:, i : i + 1], **given) for i in (5, 6)]
    torch.testing.assert_close(torch.cat([first, *rest], 1), expected, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------------------------- training, types, tracing


def test_dropout_drops_in_training_only() -> None:
    model, given = tiny.bert(attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0), inputs("bert")
    hf.enable_area(model, max_area=3)
    assert torch.equal(output(model, **given), output(model, **given))
    model.train()
    assert not torch.equal(output(model, **given), output(model, **given))


@pytest.mark.parametrize("name", ["bert", "vit", "llama"])
def test_a_model_with_areas_compiles_in_one_piece(name: str) -> None:
    model, given = MODELS[name](), inputs(name)
    hf.enable_area(model, max_area=areas_for(name, 3))
    found = output(torch.compile(model, backend="eager", fullgraph=True), **given)
    torch.testing.assert_close(found, output(model, **given))


def test_a_missing_library_names_the_extra() -> None:
    code = """
import sys
sys.modules["transformers"] = None
from regard.errors import MissingExtraError
try:
    import regard.integrations.transformers
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install '.[hf]'" in done.stdout
