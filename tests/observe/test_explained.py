"""Methods of explanation on Hugging Face models: against captum, loops and plain products; what cannot be computed is named."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.errors import ConfigError, DataError
from regard.explanations import TranslationBatch, alti, input_times_gradient, integrated_gradients, leave_one_out, replace_one
from regard.integrations.migrate import convert
from regard.observe import layer_shares as shares
from regard.observe.explained import explain_calls
from regard.observe.layer_shares import layer_shares
from regard.observe.predictions import class_names
from regard.observe.pretrained import image_records, text_records, watch_image, watch_text
from regard.observe.pretrained_batch import PretrainedBatch, image_batch, text_batch
from regard.observe.within import gradient_times_weights, norms_of_values

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")

WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", "the", "cat", "sat", "on", "a", "mat", "der", "Hund"]
TEXT = "the cat sat on a mat"
LAYERS = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 8}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A [EOS]", special_tokens=[("[EOS]", 3)])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)


def noisy(model: Any) -> Any:
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def classifier() -> Any:
    config = transformers.BertConfig(vocab_size=12, max_position_embeddings=13, num_labels=3, **LAYERS)
    return noisy(transformers.BertForSequenceClassification(config))


def masked() -> Any:
    return noisy(transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=12, max_position_embeddings=13, **LAYERS)))


def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=12, n_embd=12, n_layer=2, n_head=3, bos_token_id=2, eos_token_id=3, pad_token_id=0)
    return noisy(transformers.GPT2LMHeadModel(config))


def marian(**settings: Any) -> Any:
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 2), ("attention_heads", 3))}
    special = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0, "forced_eos_token_id": 3}
    config = transformers.MarianConfig(
        vocab_size=12, d_model=12, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=32, **sizes, **special, **settings
    )
    return noisy(transformers.MarianMTModel(config))


def scaled_marian() -> Any:
    return marian(scale_embedding=True)


def vit() -> Any:
    config = transformers.ViTConfig(image_size=12, patch_size=4, num_labels=5, id2label={n: f"label {n}" for n in range(5)}, **LAYERS)
    return noisy(transformers.ViTForImageClassification(config))


def processor(images: Any, return_tensors: str) -> dict[str, Tensor]:
    return {"pixel_values": torch.from_numpy(np.array(images, dtype=np.float32)).permute(2, 0, 1)[None] / 255}


IMAGE = np.random.default_rng(3).integers(0, 256, (12, 12, 3), dtype=np.uint8)
TEXTS: dict[str, Callable[[], Any]] = {
    "labels": classifier,
    "masked": masked,
    "decoder": gpt2,
    "encoder-decoder": marian,
    "scaled": scaled_marian,
}
PAIRED = ("encoder-decoder", "scaled")
TEXT_MODELS = pytest.mark.parametrize("kind", TEXTS)


def batch_of(kind: str, tokenizer: Any) -> PretrainedBatch:
    model = TEXTS[kind]()
    text: Any = (TEXT, "der Hund sat") if kind in PAIRED else TEXT
    return text_batch(model, tokenizer, watch_text(model, tokenizer, text).inputs)


@TEXT_MODELS
def test_log_probs_are_those_of_the_model_on_its_tokens(kind: str, tokenizer: Any) -> None:
    batch = batch_of(kind, tokenizer)
    given = tokenizer(TEXT, return_tensors="pt")
    if kind in PAIRED:
        given["decoder_input_ids"] = batch.given["decoder_input_ids"]
    with torch.no_grad():
        logits = batch.model(**given).logits
        found = batch.log_probs()
    expected = (logits if logits.dim() == 3 else logits[:, None]).log_softmax(-1)
    if kind == "decoder":
        assert batch.goals[0, :-1].tolist() == given["input_ids"][0, 1:].tolist()
    if kind in PAIRED:
        assert batch.goals[0, :-1].tolist() == [10, 11, 6]
    torch.testing.assert_close(found, expected.gather(-1, batch.goals[..., None])[..., 0], atol=1e-5, rtol=1e-5)
    assert batch.inputs[0].tolist() == [True] * 6 + [False]  # not the end


@TEXT_MODELS
def test_integrated_gradients_are_complete_and_captums(kind: str, tokenizer: Any) -> None:
    batch = batch_of(kind, tokenizer)
    found = integrated_gradients(batch, steps=200)
    with torch.no_grad():
        change = batch.log_probs() - batch.log_probs(torch.zeros_like(batch.embed()))
    torch.testing.assert_close(found.sum(-1), change, atol=2e-2, rtol=2e-2)  # the integral's error
    captum = pytest.importorskip("captum.attr", reason="captum, an oracle of the development extra")
    vectors = batch.embed().clone().requires_grad_()
    theirs = captum.InputXGradient(lambda read: batch.log_probs(read)[:, 0]).attribute(vectors)
    torch.testing.assert_close(input_times_gradient(batch)[:, 0], theirs.sum(-1), atol=1e-5, rtol=1e-5)


@TEXT_MODELS
def test_leaving_a_token_out_is_a_loop(kind: str, tokenizer: Any) -> None:
    batch = batch_of(kind, tokenizer)
    found = leave_one_out(batch)
    for place in range(6):
        vectors, given = batch.vectors.clone(), dict(batch.given)
        vectors[:, place] = 0
        if kind != "decoder":
            given["attention_mask"] = given["attention_mask"].clone()
            given["attention_mask"][:, place] = 0
        with torch.no_grad():
            logits = batch.model(inputs_embeds=vectors, **given).logits
            whole = batch.log_probs()
        left = (logits if logits.dim() == 3 else logits[:, None]).log_softmax(-1).gather(-1, batch.goals[..., None])[..., 0]
        torch.testing.assert_close(found[:, :, place], whole - left, atol=1e-5, rtol=1e-5)
    if kind == "decoder":  # nothing comes from behind
        assert found[0].triu(1).abs().max() < 1e-5


def projections(model: Any, kind: str, seen: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the values (S, E) of the last attention before their projection, and the projection (E, E)."""
    if kind == "masked":
        last = model.bert.encoder.layer[-1].attention
        return last.self.value(seen["x"]), last.output.dense.weight.T
    if kind == "decoder":
        last = model.transformer.h[-1].attn
        return last.c_attn(seen["x"]).chunk(3, -1)[2], last.c_proj.weight
    last = model.model.decoder.layers[-1].encoder_attn
    return last.v_proj(seen["x"]), last.out_proj.weight.T


@pytest.mark.parametrize("kind", ["masked", "decoder", "encoder-decoder"])
def test_value_norms_are_those_of_weighted_projected_values(kind: str, tokenizer: Any) -> None:
    batch = batch_of(kind, tokenizer)
    model, seen = batch.model, dict[str, Tensor]()
    name = {"masked": "bert.encoder.layer.1.attention.self", "decoder": "transformer.h.1.attn"}.get(
        kind, "model.decoder.layers.1.encoder_attn"
    )

    def keep(module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        seen["x"] = given["key_value_states"] if kind in PAIRED else [*args, *given.values()][0]

    found = norms_of_values(batch)
    assert model.config._attn_implementation == "sdpa"
    hooks = [hook for module in model.modules() for hook in module._forward_hooks.values()]  # some are the model's own
    assert not any(hook.__module__.startswith("regard.") for hook in hooks)
    model.set_attn_implementation("eager")
    hook = model.get_submodule(name).register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        output = batch.output(output_attentions=True)
        weights = (output.cross_attentions if kind in PAIRED else output.attentions)[-1][0]  # (H, T, S)
        values, projection = projections(model, kind, seen)
    hook.remove()
    each = torch.einsum("hts,shd,hde->tse", weights, values[0].unflatten(-1, (3, 4)), projection.unflatten(0, (3, 4)))
    torch.testing.assert_close(found[0], each.norm(dim=-1), atol=1e-5, rtol=1e-4)
    whole = norms_of_values(batch, every_layer=True)
    assert (whole >= found).all()
    assert (whole > found * 1.01).any()


@pytest.mark.parametrize("kind", ["labels", "masked"])
def test_gradients_of_weights_are_those_of_what_a_weight_adds(kind: str, tokenizer: Any) -> None:
    batch = batch_of(kind, tokenizer)
    batch.model.requires_grad_(False)
    found = gradient_times_weights(batch)
    assert not any(parameter.requires_grad for parameter in batch.model.parameters())
    batch.model.set_attn_implementation("eager")
    last: Any = batch.model.get_submodule("bert.encoder.layer.1.attention.self")
    change = torch.zeros(3, 7, 7, requires_grad=True)  # of the weights

    def add(module: Any, args: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        values = module.value(args[0])[0].unflatten(-1, (3, 4))
        return output[0] + torch.einsum("hts,shd->thd", change, values).flatten(1), output[1]

    with last.register_forward_hook(add):
        output = batch.output(output_attentions=True)
    log_probs, weights = batch.log_probs_of(output)[0], output.attentions[-1][0].detach()
    for goal, row in zip(log_probs, found[0], strict=True):
        (gradient,) = torch.autograd.grad(goal, change, retain_graph=True)
        torch.testing.assert_close(row, (weights * gradient).sum((0, 1)), atol=1e-5, rtol=1e-4)
    assert found.abs().max() > 1e-3


def test_an_unknown_word_is_a_word(tokenizer: Any) -> None:
    model = classifier()
    batch = text_batch(model, tokenizer, watch_text(model, tokenizer, "the tiger sat").inputs)
    assert batch.inputs.tolist() == [[True, True, True, False]]
    assert (leave_one_out(batch) != 0).tolist() == [[[True, True, True, False]]]
    twice = copy.deepcopy(tokenizer)
    twice.unk_token = "[EOS]"  # such as GPT-2's, which has no other
    assert text_batch(model, twice, watch_text(model, twice, "the cat sat").inputs).inputs.tolist() == [[True, True, True, False]]


def test_a_text_without_words_loses_nothing_by_other_words(tokenizer: Any) -> None:
    model = classifier()
    batch = text_batch(model, tokenizer, watch_text(model, tokenizer, "[EOS]").inputs)
    assert not batch.inputs.any()
    assert (replace_one(batch) == 0).all()


@TEXT_MODELS
def test_replacing_a_token_is_a_loop_over_words(kind: str, tokenizer: Any) -> None:
    batch = batch_of(kind, tokenizer)
    words = batch.words(5, torch.Generator().manual_seed(1))
    table = batch.model.get_input_embeddings()(torch.arange(4, 12)) * batch.scale  # type: ignore[operator]  # no special tokens
    assert ((words[:, None] - table).abs().sum(-1).min(1).values < 1e-6).all()
    found = replace_one(batch, draws=5)
    with torch.no_grad():
        whole = batch.log_probs()
        for place in (0, 4):
            each = []
            for word in words:
                vectors = batch.vectors.clone()
                vectors[:, place] = word
                each.append(batch.log_probs(vectors).exp())
            torch.testing.assert_close(found[:, :, place], whole - torch.stack(each).mean(0).log(), atol=1e-5, rtol=1e-4)


def test_alti_is_that_of_the_same_model_of_ours(tokenizer: Any) -> None:
    model = marian()
    for name in ("encoder", "decoder"):  # whose positions are sines
        model.get_submodule(f"model.{name}").embed_positions.load_state_dict(
            transformers.MarianMTModel(model.config).get_submodule(f"model.{name}").embed_positions.state_dict()
        )
    batch = text_batch(model, tokenizer, watch_text(model, tokenizer, (TEXT, "der Hund sat")).inputs)
    settings = {"num_heads": 3, "activation": batch.model.config.activation_function, "scaled": batch.model.config.scale_embedding}
    ours = convert(batch.model.state_dict(), "marian", **settings).build().eval()
    source, target = tokenizer(TEXT, return_tensors="pt")["input_ids"], batch.given["decoder_input_ids"]
    lengths = torch.tensor([source.shape[1]]), torch.tensor([target.shape[1]])
    expected = alti(TranslationBatch(ours, source, lengths[0], target, batch.goals, lengths[1]))
    torch.testing.assert_close(layer_shares(batch), expected[..., : source.shape[1]], atol=1e-4, rtol=1e-3)


def near(parts: Tensor, whole: Tensor) -> Tensor:
    # Ferrando et al. 2022, Eq. 8 and 9, for vectors (T, S, E) and what they are parts of, (T, E).
    found = (whole.abs().sum(-1, keepdim=True) - (whole[:, None] - parts).abs().sum(-1)).clamp(min=0)
    return found / found.sum(-1, keepdim=True)


def by_hand(batch: PretrainedBatch) -> Tensor:
    """ALTI of BERT, which norms after the residual connection, and GPT-2, which does before, with their own names."""
    batch.model.set_attn_implementation("eager")
    with torch.no_grad():
        output = batch.output(output_attentions=True, output_hidden_states=True)
    found = torch.eye(7)
    for number, (weights, x) in enumerate(zip(output.attentions, output.hidden_states, strict=False)):
        if hasattr(batch.model, "bert"):
            layer = batch.model.bert.encoder.layer[number]
            values, out, norm = layer.attention.self.value(x), layer.attention.output.dense, layer.attention.output.LayerNorm
            projection, bias = out.weight.T, out.bias
        else:
            layer = batch.model.transformer.h[number]
            values, out, norm = layer.attn.c_attn(layer.ln_1(x)).chunk(3, -1)[2], layer.attn.c_proj, None
            projection, bias = out.weight, out.bias
        each = torch.einsum("hts,shd,hde->tse", weights[0], values[0].unflatten(-1, (3, 4)), projection.unflatten(0, (3, 4)))
        each = each + torch.eye(7)[..., None] * x[0][:, None]
        whole = each.sum(1) + bias
        if norm is None:
            found = near(each, whole) @ found
            continue
        scale = norm.weight / (whole.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
        found = near((each - each.mean(-1, keepdim=True)) * scale[:, None], norm(whole)) @ found
    return found


@pytest.mark.parametrize("kind", ["masked", "decoder"])
def test_alti_is_that_of_the_layers_by_their_names(kind: str, tokenizer: Any) -> None:
    batch = batch_of(kind, tokenizer)
    found = layer_shares(batch)
    torch.testing.assert_close(found[0], by_hand(batch).detach(), atol=1e-4, rtol=1e-3)
    assert found.std() > 1e-2


BOTH = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
GROUPED = {
    "vocab_size": 12,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SIDES = {
    f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 2), ("attention_heads", 3), ("ffn_dim", 8))
}
# Class of the model, and what its configuration needs beside its defaults.
FAMILIES: dict[str, dict[str, Any]] = {
    "RobertaForMaskedLM": {**LAYERS, "pad_token_id": 0},
    "DistilBertForMaskedLM": {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 8},
    "ElectraForMaskedLM": {**LAYERS, "embedding_size": 12},
    "DebertaV2ForMaskedLM": LAYERS,
    "ModernBertForMaskedLM": {**LAYERS, **BOTH},
    "GPTNeoForCausalLM": {"hidden_size": 12, "num_layers": 2, "num_heads": 3, "attention_types": [[["global", "local"], 1]], **BOTH},
    "GPTNeoXForCausalLM": {**LAYERS, "rotary_pct": 0.5, **BOTH},
    "OPTForCausalLM": {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "ffn_dim": 8,
        "word_embed_proj_dim": 12,
        **BOTH,
    },
    "LlamaForCausalLM": {**GROUPED, **BOTH},
    "MistralForCausalLM": {**GROUPED, **BOTH, "sliding_window": 4},
    "BartForConditionalGeneration": {"d_model": 12, **SIDES, **BOTH, "decoder_start_token_id": 3},
    "T5ForConditionalGeneration": {"d_model": 12, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 3, "decoder_start_token_id": 0},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_have_gradients_of_weights_and_norms_of_values(family: str, tokenizer: Any) -> None:
    kind = getattr(transformers, family)
    settings = {"vocab_size": 12, **({} if family.startswith("T5") else {"max_position_embeddings": 33}), **FAMILIES[family]}
    torch.manual_seed(5)
    model = noisy(kind(kind.config_class(**settings)))
    text: Any = (TEXT, "der Hund sat") if model.config.is_encoder_decoder else TEXT
    batch = text_batch(model, tokenizer, watch_text(model, tokenizer, text).inputs)
    norms, found = norms_of_values(batch), gradient_times_weights(batch)
    assert (norms >= 0).all()
    assert norms.shape[2] == found.shape[2] == 7
    assert found.shape[:2] == batch.goals.shape
    assert norms.max() > 1e-3
    assert found.abs().max() > 1e-4
    if "CausalLM" in family:  # nothing comes from behind
        assert max(norms[0].triu(1).max(), found[0].triu(1).abs().max()) < 1e-6
    if family == "GPTNeoXForCausalLM":
        with pytest.raises(ConfigError, match="alti: GPTNeoXForCausalLM does not add what an attention found to what its layer has read"):
            layer_shares(batch)
        return
    rows = layer_shares(batch)
    assert rows.shape == norms.shape
    assert rows.min() >= 0
    if model.config.is_encoder_decoder:  # the rest is the decoder's own
        assert rows.sum(-1).max() < 0.99
    else:
        torch.testing.assert_close(rows.sum(-1), torch.ones(1, 7))
        assert "CausalLM" not in family or rows[0].triu(1).max() == 0


MIXED: dict[str, dict[str, Any]] = {
    "DebertaV2ForMaskedLM": {**LAYERS, "conv_kernel_size": 3, "max_position_embeddings": 33},
    "Lfm2ForCausalLM": {**GROUPED, **BOTH, "layer_types": ["conv", "full_attention"], "max_position_embeddings": 33},
    "MobileBertForMaskedLM": {
        **dict.fromkeys(("hidden_size", "embedding_size", "intermediate_size"), 32),
        **dict.fromkeys(("num_hidden_layers", "num_feedforward_networks"), 2),
        "num_attention_heads": 4,
        "intra_bottleneck_size": 16,
        "max_position_embeddings": 33,
        "trigram_input": False,
    },
}


@pytest.mark.parametrize("family", MIXED)
@pytest.mark.filterwarnings("ignore:Initializing zero-element")  # of MobileBERT
def test_alti_is_refused_where_more_than_attention_mixes(family: str, tokenizer: Any) -> None:
    kind = getattr(transformers, family)
    torch.manual_seed(5)
    model = kind(kind.config_class(**{"vocab_size": 12, "initializer_range": 0.15, **MIXED[family]})).eval()
    batch = text_batch(model, tokenizer, watch_text(model, tokenizer, TEXT).inputs)
    with pytest.raises(ConfigError, match=f"alti: not only attention and residual connections mix positions and layers in {family}"):
        layer_shares(batch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_with_a_way_out(dtype: torch.dtype, tokenizer: Any) -> None:
    model = masked().to(dtype)
    batch = text_batch(model, tokenizer, watch_text(model, tokenizer, TEXT).inputs)
    for method in (layer_shares, norms_of_values):
        with pytest.raises(ConfigError, match=r"BertForMaskedLM computes in torch.*, too roughly for this; load it with dtype"):
            method(batch)


def test_the_weights_of_an_encoder_elsewhere_are_named(tokenizer: Any) -> None:
    config = transformers.BertConfig(vocab_size=12, max_position_embeddings=13, is_decoder=True, add_cross_attention=True, **LAYERS)
    batch = text_batch(model := noisy(transformers.BertLMHeadModel(config)), tokenizer, watch_text(model, tokenizer, TEXT).inputs)
    assert layer_shares(batch).shape == (1, 7, 7)
    read = dataclasses.replace(batch, given={**batch.given, "encoder_hidden_states": torch.randn(1, 5, 12)})
    with pytest.raises(ConfigError, match="alti: BertLMHeadModel does not return the weights of all layers; take leave-one-out"):
        layer_shares(read)


def test_a_module_around_a_projection_belongs_to_it(tokenizer: Any) -> None:
    class Around(torch.nn.Module):  # as LoRA's
        def __init__(self, inner: torch.nn.Linear) -> None:
            super().__init__()
            self.inner, self.more, self.weight = inner, torch.nn.Linear(12, 12, bias=False), inner.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + self.more(x)

    model: Any = masked()
    last = model.bert.encoder.layer[-1].attention.output
    last.dense = Around(last.dense)
    batch = text_batch(model, tokenizer, watch_text(model, tokenizer, TEXT).inputs)
    found = norms_of_values(batch), layer_shares(batch)
    with torch.no_grad():
        last.dense.inner.weight += last.dense.more.weight
    last.dense = last.dense.inner
    for one, other in zip(found, (norms_of_values(batch), layer_shares(batch)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_family_without_a_shift_of_labels_reads_a_given_output(tokenizer: Any) -> None:
    config = transformers.M2M100Config(vocab_size=12, d_model=12, **SIDES, **BOTH, decoder_start_token_id=3, max_position_embeddings=33)
    seen = watch_text(model := noisy(transformers.M2M100ForConditionalGeneration(config)), tokenizer, (TEXT, "der Hund sat"))
    assert seen.inputs["decoder_input_ids"].tolist() == [[3, 10, 11, 6]]
    model.generation_config.decoder_start_token_id = None
    with pytest.raises(ConfigError, match="M2M100ForConditionalGeneration: its configuration names no decoder_start_token_id"):
        watch_text(model, tokenizer, (TEXT, "der Hund sat"))


def test_vectors_beyond_the_limit_are_refused(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MOST_NUMBERS", 7 * 7 * 12 - 1)
    with pytest.raises(ConfigError, match=r"alti: \(1, 3, 7, 7\) weights of BertForMaskedLM make vectors of more than 1 GiB"):
        layer_shares(batch_of("masked", tokenizer))


def test_an_attention_whose_projection_is_out_of_reach_is_named(tokenizer: Any) -> None:
    # Its module returns weights and the states after residual connection and norm.
    config = transformers.AlbertConfig(vocab_size=12, max_position_embeddings=13, embedding_size=12, **LAYERS)
    model = noisy(transformers.AlbertForMaskedLM(config))
    batch = text_batch(model, tokenizer, watch_text(model, tokenizer, TEXT).inputs)
    with pytest.raises(ConfigError, match="value-norms: no output projection was found behind an attention of AlbertForMaskedLM; take"):
        norms_of_values(batch)
    assert gradient_times_weights(batch).shape == (1, 7, 7)


def test_a_model_without_weights_is_named(tokenizer: Any) -> None:
    batch = batch_of("masked", tokenizer)
    model: Any = batch.model
    whole = model.forward
    model.forward = lambda **given: transformers.modeling_outputs.MaskedLMOutput(logits=whole(**given).logits)
    with pytest.raises(ConfigError, match="gradient-attention: BertForMaskedLM returns no attention weights, also with"):
        gradient_times_weights(batch)


def test_rollout_of_an_encoder_is_a_product_of_matrices(tokenizer: Any) -> None:
    seen = watch_text(classifier(), tokenizer, TEXT).seen
    first, second = (torch.eye(7) / 2 + call.weights[0].mean(0) / 2 for call in seen.maps())
    torch.testing.assert_close(explain_calls(seen.maps(), "rollout")[0], second @ first)


def test_rollout_of_an_encoder_decoder_counts_what_the_decoder_reads(tokenizer: Any) -> None:
    calls = watch_text(marian(), tokenizer, (TEXT, "der Hund sat")).seen.maps()
    encoder = torch.eye(7)
    for call in calls[:2]:
        encoder = (torch.eye(7) + call.weights[0].mean(0)) / 2 @ encoder
    source, target = torch.zeros(4, 7), torch.eye(4)
    for own, cross in (calls[2:4], calls[4:6]):
        step = (torch.eye(4) + own.weights[0].mean(0)) / 2
        source, target = step @ source, step @ target
        source, target = source / 2 + cross.weights[0].mean(0) @ encoder / 2, target / 2
    torch.testing.assert_close(explain_calls(calls, "rollout")[0], source)
    torch.testing.assert_close((source.sum(1) + target.sum(1)), torch.ones(4))


@TEXT_MODELS
def test_all_methods_that_can_be_computed_are_maps_of_the_record(kind: str, tokenizer: Any) -> None:
    model = TEXTS[kind]()
    text: Any = (TEXT, "der Hund sat") if kind in PAIRED else TEXT
    (record,) = text_records(model, tokenizer, text, methods=["all"])
    found = {each.method: (each.query, each.key) for each in record.maps if each.method}
    rows = {"labels": "label", "masked": "predicted token"}.get(kind, "next token")
    states = "target" if kind in PAIRED else "tokens"
    key = "source" if kind in PAIRED else "tokens"
    assert found == {
        **dict.fromkeys(("rollout", "flow", "value-norms", "value-norms-layers", "alti"), (states, key)),
        **dict.fromkeys(("input-gradient", "integrated-gradients", "gradient-attention", "leave-one-out", "replace-one"), (rows, key)),
    }
    assert "leave-one-out" in regard.view(model, tokenizer, text, method="leave-one-out").html


@pytest.mark.parametrize("kind", ["masked", "decoder", "encoder-decoder"])
def test_rows_of_a_method_are_the_tokens_whose_probability_it_explains(kind: str, tokenizer: Any) -> None:
    model = TEXTS[kind]()
    text: Any = (TEXT, "der Hund sat") if kind in PAIRED else TEXT
    inputs = watch_text(model, tokenizer, text).inputs
    with torch.no_grad():
        logits = model(**inputs).logits[0].log_softmax(-1)
    best = logits.argmax(-1)
    written = inputs["decoder_input_ids" if kind in PAIRED else "input_ids"][0]
    goals = best if kind == "masked" else torch.cat([written[1:], best[-1:]])
    (record,) = text_records(model, tokenizer, text, methods=["leave-one-out"])
    rows = record.maps[-1].query
    assert record.items[rows].tokens == tokenizer.convert_ids_to_tokens(goals.tolist())
    np.testing.assert_allclose(record.scores[rows], logits.gather(1, goals[:, None])[:, 0], atol=1e-5)
    assert [first[0] for first, *_ in record.alternatives[rows]] == tokenizer.convert_ids_to_tokens(best.tolist())


def test_labels_of_tokens_are_rows_with_their_tokens(tokenizer: Any) -> None:
    config = transformers.BertConfig(vocab_size=12, max_position_embeddings=13, id2label={0: "O", 1: "PER"}, label2id={}, **LAYERS)
    model = noisy(transformers.BertForTokenClassification(config))
    (record,) = text_records(model, tokenizer, "the Hund", methods=["leave-one-out"])
    with torch.no_grad():
        best = model(**tokenizer("the Hund", return_tensors="pt")).logits[0].argmax(-1).tolist()
    expected = [f"{token}: {['O', 'PER'][label]}" for token, label in zip(("the", "Hund", "[EOS]"), best, strict=True)]
    assert record.items["predicted label"].tokens == expected


def test_patches_of_an_image_are_explained() -> None:
    from PIL import Image

    model, image = vit(), Image.fromarray(IMAGE)
    seen, inputs, _ = watch_image(model, processor, image)
    batch = image_batch(model, inputs["pixel_values"], (3, 3))
    with torch.no_grad():
        expected = model(**inputs).logits.log_softmax(-1).max(-1)
    torch.testing.assert_close(batch.log_probs()[0], expected[0])
    found = leave_one_out(batch)[0, 0]
    pixels = inputs["pixel_values"].clone()
    mean = pixels.unflatten(3, (3, 4)).unflatten(2, (3, 4)).mean((2, 4))  # (1, 3, 4, 4), the mean patch
    pixels[..., 4:8, 8:12] = mean
    with torch.no_grad():
        without = model(pixels).logits.log_softmax(-1)[0, expected[1]]
    torch.testing.assert_close(found[5:6], expected[0] - without, atol=1e-5, rtol=1e-5)
    (record,) = image_records(model, processor, image, methods=["all"])
    shapes = {each.method: (each.query, each.weights.shape) for each in record.maps if each.method}
    assert shapes["leave-one-out"] == ("label", (1, 1, 9))
    assert shapes["rollout"] == shapes["value-norms"] == shapes["alti"] == ("patches", (1, 10, 9))
    assert shapes["gradient-attention"] == ("label", (1, 1, 9))
    assert "replace-one" not in shapes
    with pytest.raises(ConfigError, match="replace-one: the inputs of ViTForImageClassification are patches, not words"):
        image_records(model, processor, image, methods=["replace-one"])
    assert record.items["label"].tokens == [f"label {int(expected[1])}"]
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("alti", "alti: BertModel returns no probabilities to explain"),
        ("value-norms", "value-norms: BertModel returns no probabilities to explain"),
        ("leave-one-area-out", "BertModel attends to single items"),
        ("input-gradient", "BertModel returns no probabilities to explain; load it with a head, such as AutoModelForMaskedLM"),
        ("guess", "method 'guess': expected all, or one of weights, rollout"),
    ],
)
def test_what_cannot_be_computed_is_named(tokenizer: Any, method: str, reason: str) -> None:
    model = classifier().bert
    with pytest.raises(ConfigError, match=reason):
        regard.view(model, tokenizer, TEXT, method=method)
    (record,) = text_records(model, tokenizer, TEXT, methods=["all"])
    assert [each.method for each in record.maps if each.method] == ["rollout", "flow"]


@TEXT_MODELS
def test_gradients_are_there_inside_inference_mode(kind: str, tokenizer: Any) -> None:
    model = TEXTS[kind]().requires_grad_(False)
    text: Any = (TEXT, "der Hund sat") if kind in PAIRED else TEXT
    expected = input_times_gradient(text_batch(model, tokenizer, watch_text(model, tokenizer, text).inputs))
    with torch.inference_mode():
        found = input_times_gradient(text_batch(model, tokenizer, watch_text(model, tokenizer, text).inputs))
    torch.testing.assert_close(found, expected)


def test_a_method_needs_a_model() -> None:
    with pytest.raises(DataError, match="method: only with a model"):
        regard.view([[1.0]], ["a"], method="rollout")


def test_maps_that_do_not_follow_one_another_are_named() -> None:
    from regard.observe import AttentionCall

    calls = [AttentionCall("a", "self", torch.ones(1, 1, 5, 5) / 5), AttentionCall("b", "self", torch.ones(1, 1, 3, 3) / 3)]
    with pytest.raises(ConfigError, match=r"rollout: b attends from 3 to 3: its map continues none before it"):
        explain_calls(calls, "rollout")


def test_a_model_that_reads_vectors_in_another_way_is_refused(tokenizer: Any) -> None:
    model = marian()
    embed = model.get_input_embeddings()
    embed.register_forward_hook(lambda module, given, output: output * 3 if torch.is_grad_enabled() else output)
    inputs = watch_text(model, tokenizer, (TEXT, "der Hund sat")).inputs
    with pytest.raises(ConfigError, match="MarianMTModel computes other probabilities from vectors"):
        text_batch(model, tokenizer, inputs)


@pytest.mark.parametrize("settings", [{"num_labels": 1}, {"num_labels": 3, "problem_type": "multi_label_classification"}])
def test_outputs_that_are_no_probabilities_of_classes_are_refused(settings: dict[str, Any], tokenizer: Any) -> None:
    config = transformers.BertConfig(vocab_size=12, max_position_embeddings=13, **LAYERS, **settings)
    model = noisy(transformers.BertForSequenceClassification(config))
    with pytest.raises(ConfigError, match="BertForSequenceClassification returns a number or independent labels, no probabilities"):
        text_batch(model, tokenizer, watch_text(model, tokenizer, TEXT).inputs)


def bert2bert() -> Any:
    halves = [transformers.BertConfig(vocab_size=12, max_position_embeddings=size, **LAYERS) for size in (13, 7)]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*halves)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 2, 0, 3
    return noisy(transformers.EncoderDecoderModel(config))


def test_a_model_made_of_two_writes_tokens(tokenizer: Any) -> None:
    model = bert2bert()
    for output in ("der Hund sat", "der Hund sat on a"):
        (record,) = text_records(model, tokenizer, ("the cat sat on", output), methods=["leave-one-out", "rollout"])
        record = dataclasses.replace(record, maps=[each for each in record.maps if each.method == "leave-one-out"])
        assert record.maps[-1].query == "next token"
        assert len(record.items["next token"].tokens) == len(record.items["target"].tokens)
    twice = SimpleNamespace(config=SimpleNamespace(id2label={0: "a", 1: "a (2)", 2: "a"}))
    assert class_names(twice, 3) == ["a", "a (2)", "a (2) (2)"]
    names = class_names(model, 100_000)  # of as many as a vocabulary has
    assert len(names) == len(set(names)) == 100_000


def test_what_is_longer_than_a_model_reads_is_named(tokenizer: Any) -> None:
    sizes = {"vocab_size": 12, "max_position_embeddings": 6, "pad_token_id": 1, **LAYERS}
    roberta = noisy(transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**sizes)))
    watch_text(roberta, tokenizer, "the cat sat")  # four tokens with the end, at places 2 to 5
    with pytest.raises(DataError, match="text: 5 tokens, and the model takes at most 4"):
        watch_text(roberta, tokenizer, "the cat sat on")
    with pytest.raises(DataError, match="output: 8 tokens, and the model takes at most 7"):
        watch_text(bert2bert(), tokenizer, ("the cat", "der Hund sat on a mat the"))


def test_outputs_of_a_tokenizer_without_padding_are_all_real(tokenizer: Any) -> None:
    model, without = marian(), copy.deepcopy(tokenizer)
    without.pad_token = None
    pair = ("the cat", "der Hund")
    found, expected = (watch_text(model, each, pair) for each in (without, tokenizer))
    assert found.queries == expected.queries
    for each, seen in ((without, found), (tokenizer, expected)):
        assert text_batch(model, each, seen.inputs).outputs.all()


def test_a_model_whose_halves_have_configurations_but_no_names_is_watched(tokenizer: Any) -> None:
    sizes = {"vocab_size": 12, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 4}
    half = {**sizes, "intermediate_size": 8, "max_position_embeddings": 9}
    config = transformers.T5GemmaConfig(encoder=half, decoder=half, pad_token_id=0, bos_token_id=2, eos_token_id=3, vocab_size=12)
    model = noisy(transformers.T5GemmaForConditionalGeneration(config))
    assert watch_text(model, tokenizer, ("the cat", "der Hund")).queries is not None
    with pytest.raises(DataError, match="text: 10 tokens, and the model takes at most 9"):
        watch_text(model, tokenizer, ("the cat sat on a mat the cat sat", "der Hund"))
