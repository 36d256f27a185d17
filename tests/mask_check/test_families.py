"""Every model family of ours, and Hugging Face models of random weights, pass the check."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from regard.config import (
    AreaConfig,
    AreaSettings,
    AttentionConfig,
    CaptionTransformerConfig,
    ClassifierConfig,
    CrossedConfig,
    CrossedEncoderConfig,
    EntailmentModelConfig,
    LanguageModelConfig,
    RecurrentEncoderConfig,
    RNNConfig,
    ShowConfig,
    TransformerConfig,
    TransformerEncoderConfig,
)
from regard.config.captioning import GridAreaConfig
from regard.errors import ConfigError
from regard.mask_check import Report, assert_no_leaks, check
from regard.mask_check.own import own_adapter, own_batch
from regard.models import build, build_captioner, build_classifier, build_language_model

RECURRENT = {"embed_dim": 8, "encoder_dim": 6, "decoder_dim": 12}
LAYERS = {"embed_dim": 12, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "ff_dim": 18}
READING = RecurrentEncoderConfig(hidden_size=6)


def translator(config: Any) -> nn.Module:
    return build(config, source_size=23, target_size=23)


def recurrent(**attention: Any) -> nn.Module:
    return translator(RNNConfig(**RECURRENT, attention=AttentionConfig(**attention)))


def labeller(config: Any) -> nn.Module:
    return build_classifier(config, vocab_size=23, classes=3, unknown=1)


def language(attention: Any) -> nn.Module:
    return build_language_model(LanguageModelConfig(embed_dim=12, hidden_size=12, window=3, attention=attention), vocab_size=23)


OURS: dict[str, Callable[[], nn.Module]] = {
    "no attention": lambda: translator(RNNConfig(**RECURRENT, attention=None)),
    "additive": lambda: recurrent(score="additive"),
    "general, input feeding": lambda: recurrent(score="general", query_state="current", input_feeding=True),
    "local": lambda: recurrent(window="local_p"),
    "location": lambda: recurrent(score="location"),
    "heads": lambda: recurrent(score="scaled_dot", num_heads=2),
    "recurrent, areas": lambda: recurrent(area=AreaSettings(max_area=3)),
    "LSTM": lambda: translator(RNNConfig(**RECURRENT, cell="lstm", encoder_layers=2, decoder_layers=2)),
    "Transformer": lambda: translator(TransformerConfig(**LAYERS)),
    "Transformer, post-norm": lambda: translator(TransformerConfig(**LAYERS, norm="post")),
    "areas": lambda: translator(TransformerConfig(**LAYERS, area=AreaConfig(max_area=3, layers=2))),
    "area features": lambda: translator(TransformerConfig(**LAYERS, area=AreaConfig(max_area=3, key_mode="features", layers=1))),
    "crossed": lambda: translator(CrossedConfig(**LAYERS)),
    "language model": lambda: language("none"),
    "language model, attention": lambda: language("plain"),
    "language model, key-value": lambda: language("key_value"),
    "language model, key-value-predict": lambda: language("key_value_predict"),
    "labeller": lambda: labeller(ClassifierConfig(embed_dim=8, encoder=READING)),
    "labeller, last": lambda: labeller(ClassifierConfig(embed_dim=8, pooling="last", encoder=READING)),
    "labeller, Transformer": lambda: labeller(ClassifierConfig(embed_dim=8, encoder=TransformerEncoderConfig(num_heads=2, ff_dim=12))),
    "entailment": lambda: labeller(EntailmentModelConfig(embed_dim=8, encoder=READING)),
    "entailment, crossed": lambda: labeller(EntailmentModelConfig(embed_dim=8, encoder=CrossedEncoderConfig(num_heads=2, ff_dim=12))),
}
CAPTIONERS: dict[str, Callable[[], nn.Module]] = {
    "show, attend and tell": lambda: build_captioner(ShowConfig(), image_size=16, vocab_size=23),
    "grid of areas": lambda: build_captioner(CaptionTransformerConfig(area=GridAreaConfig()), image_size=16, vocab_size=23),
}


@functools.cache
def report_of(name: str) -> Report:
    """Return what the check says of a model of ours, or of Hugging Face: once, for it is looked at more than once."""
    return assert_no_leaks((OURS | THEIRS)[name]())


def verdicts(report: Report) -> dict[str, str]:
    return {result.name: result.verdict for result in report.results}


@pytest.mark.parametrize("name", OURS)
def test_a_family_of_ours_passes_in_double_precision_and_in_its_own(name: str) -> None:
    found = verdicts(report_of(name))
    assert found == verdicts(assert_no_leaks(OURS[name](), dtype=torch.float32))
    assert list(found.values()).count("ok") >= 10


@pytest.mark.parametrize("build_model", CAPTIONERS.values(), ids=CAPTIONERS)
def test_a_captioner_passes(build_model: Callable[[], nn.Module]) -> None:
    model = build_model()
    adapter = own_adapter(model)
    assert adapter is not None
    found = verdicts(assert_no_leaks(model, own_batch(model, adapter, image_size=16)))
    assert found["cache"] == found["future tokens"] == "ok"


def test_translation_models_have_their_steps_and_their_padding_checked() -> None:
    found = verdicts(report_of("Transformer"))
    for name in ("future tokens: target_input", "padding content: source", "padding amount: source", "cache", "own token: target_input"):
        assert found[name] == "ok"


def test_a_fault_in_a_model_of_ours_is_found() -> None:
    model = OURS["Transformer"]()
    attention = model.encoder.layers[1].attention
    forward = type(attention).forward

    class Deaf(type(attention)):
        def forward(self, query, key, value, *, key_mask=None, **options):
            return forward(self, query, key, value, **options)

    attention.__class__ = Deaf
    report = check(model)
    assert {result.module for result in report.leaks} == {"encoder.layers.1.attention"}
    assert "not used" in report["padding content: source"].cause


transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
SMALL = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24}
SIDES = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
PAIR = {"vocab_size": 40, "d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32, **SIDES}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def hugging_face(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    # Found here, not in a test: importing a model changes the environment.
    kind, settings_kind = getattr(transformers, model), getattr(transformers, config)
    return lambda: kind(settings_kind(**TOKENS, **settings))


THEIRS = {
    "BERT": hugging_face("BertModel", "BertConfig", **SMALL),
    "BERT, eager": hugging_face("BertForMaskedLM", "BertConfig", **SMALL, attn_implementation="eager"),
    "BERT, labels": hugging_face("BertForSequenceClassification", "BertConfig", **SMALL),
    "RoBERTa": hugging_face("RobertaForMaskedLM", "RobertaConfig", **SMALL, max_position_embeddings=40),
    "GPT-2": hugging_face("GPT2LMHeadModel", "GPT2Config", vocab_size=40, n_embd=16, n_head=4, n_layer=2, n_positions=32),
    "GPT-2 without head": hugging_face("GPT2Model", "GPT2Config", vocab_size=40, n_embd=16, n_head=4, n_layer=1, n_positions=32),
    "GPT-2, labels": hugging_face(
        "GPT2ForSequenceClassification", "GPT2Config", vocab_size=40, n_embd=16, n_head=4, n_layer=1, n_positions=32
    ),
    "Llama": hugging_face("LlamaForCausalLM", "LlamaConfig", **SMALL, num_key_value_heads=2),
    # Its lowest number of double precision is -inf to its softmax, which computes in single precision.
    "Llama, eager": hugging_face("LlamaForCausalLM", "LlamaConfig", **SMALL, num_key_value_heads=2, attn_implementation="eager"),
    "Mistral, windows": hugging_face("MistralForCausalLM", "MistralConfig", **SMALL, num_key_value_heads=2, sliding_window=4),
    "OPT": hugging_face(
        "OPTForCausalLM", "OPTConfig", vocab_size=40, hidden_size=16, ffn_dim=24, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, word_embed_proj_dim=16,
    ),
    "BLOOM": hugging_face("BloomForCausalLM", "BloomConfig", vocab_size=40, hidden_size=16, n_layer=2, n_head=4),
    "RecurrentGemma": hugging_face(
        "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", **SMALL | {"num_hidden_layers": 3}, lru_width=16, attention_window_size=4,
        num_key_value_heads=1,
    ),
    "Marian": hugging_face("MarianMTModel", "MarianConfig", **PAIR, decoder_start_token_id=0),
    "BART": hugging_face("BartForConditionalGeneration", "BartConfig", **PAIR, decoder_start_token_id=2),
    "T5": hugging_face(
        "T5ForConditionalGeneration", "T5Config", vocab_size=40, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4,
        decoder_start_token_id=0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", THEIRS)
def test_a_hugging_face_model_passes(name: str) -> None:
    report = report_of(name)
    assert report["padding amount" if "padding amount" in verdicts(report) else "padding amount: input_ids"].verdict == "ok"


def test_a_classifier_with_a_decoder_names_the_model_to_check() -> None:
    sizes = {"d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
    ids = {"vocab_size": 60, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    model = transformers.BartForSequenceClassification(transformers.BartConfig(**sizes, **heads, **ids, max_position_embeddings=64))
    for batch in ((), ({"input_ids": torch.full((4, 9), 7), "attention_mask": torch.ones(4, 9)},)):
        with pytest.raises(ConfigError, match=r"reads the input of the encoder.* regard\.check\(model\.base_model\), a BartModel"):
            check(model, *batch)
    assert_no_leaks(model.base_model)


def test_a_cache_of_recurrent_layers_is_read_as_generate_does() -> None:
    found = verdicts(report_of("RecurrentGemma"))
    assert found["cache"] == "ok"
    assert "cache, in chunks" not in found


@pytest.mark.parametrize(("window", "columns"), [(4, 7), (12, 15), (4096, 7)])
def test_a_rolling_cache_is_made_to_forget_or_said_not_to(window: int, columns: int) -> None:
    report = check(hugging_face("MistralForCausalLM", "MistralConfig", **SMALL, num_key_value_heads=2, sliding_window=window)())
    assert (report.ok, report.sizes["input_ids"]) == (True, columns)
    assert ("cache, forgetting" in verdicts(report)) == (window > columns)


def test_an_attention_that_pads_its_input_further_has_nothing_untold() -> None:
    build = hugging_face("LongformerModel", "LongformerConfig", **SMALL, attention_window=4, max_position_embeddings=64)
    assert "cannot be told" not in str(assert_no_leaks(build()))


def test_a_model_whose_embedding_is_not_told_asks_for_a_batch() -> None:
    sizes = {"downsampling_rate": 4, "num_hash_functions": 2, "num_hash_buckets": 16, "local_transformer_stride": 8}
    build = hugging_face("CanineModel", "CanineConfig", **{k: v for k, v in SMALL.items() if k != "vocab_size"}, **sizes)
    with pytest.raises(ConfigError, match="has no embedding of tokens; give a batch"):
        check(build())


def test_a_convolution_beside_padding_is_named() -> None:
    settings = SMALL | {"embedding_size": 16, "head_ratio": 2, "conv_kernel_size": 3}
    found = check(hugging_face("ConvBertModel", "ConvBertConfig", **settings)())["padding content"]
    assert (found.verdict, found.module) == ("leak", "encoder.layer.0.attention.self")
    assert "next to the padding see it through a convolution" in found.cause


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Mistral, windows", "OPT"])
def test_a_decoder_has_both_sides_and_its_cache_checked(name: str) -> None:
    found = verdicts(report_of(name))
    for one in ("left padding", "cache", "cache, in chunks", "future tokens", "padding content"):
        assert found[one] == "ok"


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("given", ["tokens", "columns", "row"])
def test_positions_in_a_batch_raise_no_alarm(name: str, side: str, given: str) -> None:
    count = torch.arange(9)
    mask = (count < LENGTHS) if side == "right" else (count >= 9 - LENGTHS)
    positions = {"tokens": (mask.cumsum(-1) - 1).clamp(min=0), "columns": count.expand(4, 9), "row": count[None]}[given]
    batch = {"input_ids": torch.randint(3, 40, (4, 9)) * mask, "attention_mask": mask.long(), "position_ids": positions}
    report = check(THEIRS[name](), batch)
    if (name, side) == ("GPT-2", "left") and given != "tokens":  # no alarm, but the fault that it is
        assert {result.name for result in report.leaks} == {"padding amount"}
        assert "count real tokens" in report["padding amount"].cause
        return
    assert report.ok, str(report)
    assert report["cache"].verdict == "ok"
    assert (report["left padding"].verdict == "ok") == (given == "tokens")


LENGTHS = torch.tensor([[9], [7], [5], [4]])


def test_a_batch_that_is_padded_on_the_left_is_run_as_it_is() -> None:
    mask = torch.arange(9) >= 9 - LENGTHS
    batch = {"input_ids": torch.randint(3, 40, (4, 9)) * mask, "attention_mask": mask.long()}
    report = check(THEIRS["GPT-2"](), batch)
    assert {(result.name, result.module) for result in report.leaks} == {("padding amount", "transformer"), ("left padding", "transformer")}
    assert len({result.cause for result in report.leaks}) == 1
    assert "count real tokens" in report["padding amount"].cause
    assert_no_leaks(THEIRS["OPT"](), batch)  # it counts them itself


def test_labels_of_a_translation_model_are_shifted_inside() -> None:
    model = THEIRS["Marian"]()
    batch = {"input_ids": torch.randint(3, 40, (4, 9)), "attention_mask": torch.ones(4, 9, dtype=torch.long)}
    report = assert_no_leaks(model, batch | {"labels": torch.randint(3, 40, (4, 8))})
    assert report["future tokens: labels"].verdict == "ok"


def deaf(module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> tuple[Any, None]:
    """Attend as Hugging Face's own "sdpa" does, to whatever mask arrives."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    out = nn.functional.scaled_dot_product_attention(query, key, value, attention_mask)
    return out.transpose(1, 2).contiguous(), None


@pytest.mark.parametrize(
    ("name", "module", "check_name"),
    [
        ("BERT", "encoder.layer.0.attention.self", "padding content"),
        ("Llama", "model.layers.0.self_attn", "future tokens"),
        ("GPT-2", "transformer.h.0.attn", "future tokens"),
    ],
)
def test_an_attention_that_is_registered_without_its_mask_is_found(name: str, module: str, check_name: str) -> None:
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register("deaf", deaf)
    model = THEIRS[name]()
    model.set_attn_implementation("deaf")
    report = check(model)
    assert report[check_name].module == module
    assert "no mask arrives, attention_mask=None" in report[check_name].cause


def test_left_padding_without_positions_is_found() -> None:
    from regard.mask_check import Adapter, Sequence

    model = THEIRS["GPT-2"]()
    mask = torch.arange(9) < torch.tensor([[9], [6], [4]])
    adapter = Adapter((Sequence("input_ids", mask=("attention_mask",), causal=True),), sides=("right", "left"))
    report = check(model, {"input_ids": torch.randint(3, 40, (3, 9)), "attention_mask": mask.long()}, adapter=adapter)
    assert [(result.name, result.module) for result in report.leaks] == [("left padding", "transformer")]
    assert "count real tokens" in report["left padding"].cause
