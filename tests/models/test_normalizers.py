"""Sparse normalizers in whole models: no fast path computes a softmax in their place, and none is exported as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from regard import ops
from regard.attention import MultiHeadAttention, record_weights
from regard.config import ClassifierConfig, EntailmentModelConfig, LanguageModelConfig
from regard.config.captioning import CaptionModelConfig
from regard.config.models import ModelConfig
from regard.decoding import DecodingOptions, beam_search, greedy_search
from regard.errors import ConfigError
from regard.integrations.graph_models import model_graphs
from regard.models import build
from regard.models.captioning import build_captioner
from regard.models.classifier import build_classifier
from regard.models.language_model import build_language_model

SOURCES, LENGTHS = torch.randint(4, 23, (3, 11), generator=torch.Generator().manual_seed(1)), torch.tensor([11, 7, 2])
TARGETS = torch.randint(4, 23, (3, 5), generator=torch.Generator().manual_seed(2))
RECURRENT = {"type": "rnn", "embed_dim": 8, "encoder_dim": 8, "decoder_dim": 16, "readout_dim": 8}
STACK = {"embed_dim": 16, "ff_dim": 24, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2}
RNN = {
    "rnn": {},
    "rnn luong": {"score": "general", "query_state": "current", "input_feeding": True},
    "rnn areas": {"area": {"max_area": 3}},
    "rnn local": {"window": "local_p", "radius": 2},
    "rnn heads": {"score": "scaled_dot", "num_heads": 2, "query_state": "current"},
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "transformer": {"type": "transformer"},
    "transformer areas": {"type": "transformer", "area": {"max_area": 3}},
    "transformer features": {"type": "transformer", "area": {"max_area": 2, "key_mode": "features", "layers": 1}},
    "crossed": {"type": "crossed"},
}
NAMES = [*RNN, *TRANSFORMERS]
OPTIONS = DecodingOptions(bos=2, eos=3, max_length=7, beam_size=3, need_attention=True)
EVERY = pytest.mark.parametrize("name", NAMES)
SPARSE = pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15"])


def model_of(name: str, normalizer: str):
    if name in RNN:
        settings = {**RECURRENT, "attention": {"attention_dim": 8, **RNN[name], "normalizer": normalizer}}
    else:
        settings = {**STACK, **TRANSFORMERS[name], "normalizer": normalizer}
    torch.manual_seed(3)
    model = build(TypeAdapter(ModelConfig).validate_python(settings), source_size=23, target_size=23).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.7 * torch.randn_like(parameter))
    return model


@EVERY
@SPARSE
@torch.no_grad()
def test_whole_targets_single_steps_and_packed_weights_give_the_same_and_weights_are_sparse(name, normalizer):
    model = model_of(name, normalizer)
    whole = model.decode(SOURCES, LENGTHS, TARGETS)
    real = ops.length_mask(LENGTHS, SOURCES.shape[1]).unsqueeze(1).expand_as(whole.weights)
    assert (whole.weights[real] == 0).any()
    softmax = model_of(name, "softmax").decode(SOURCES, LENGTHS, TARGETS)
    assert (softmax.readout - whole.readout).abs().max() > 1e-3
    for packed in (False, True):
        with ops.packed_weights() if packed else torch.no_grad():
            state = model.start(SOURCES, LENGTHS)
            for t in range(TARGETS.shape[1]):
                logits, weights, state = model.step(TARGETS[:, t : t + 1], state)
                torch.testing.assert_close(logits[:, 0], model.logits(whole.readout[:, t]), atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(weights[:, 0], whole.weights[:, t, : weights.shape[-1]], atol=1e-4, rtol=1e-4)


@EVERY
@SPARSE
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@torch.no_grad()
def test_no_native_search_is_made_and_beams_do_not_depend_on_packed_weights(name, normalizer, dtype):
    model = model_of(name, normalizer)
    found = []
    for packed in (False, True):
        with ops.packed_weights(dtype) if packed else torch.no_grad():
            asked = []

            def at_once(state, rules, model=model, asked=asked):
                asked.append(model.greedy(state, rules))

            plain = DecodingOptions(bos=2, eos=3, max_length=7)
            greedy_search(model.decoding_step, model.start(SOURCES, LENGTHS), batch_size=3, options=plain, at_once=at_once)
            assert asked == [None]
            found.append(beam_search(model.decoding_step, model.start(SOURCES, LENGTHS), batch_size=3, options=OPTIONS))
    if dtype == torch.float32:
        assert [[one.tokens for one in row] for row in found[0]] == [[one.tokens for one in row] for row in found[1]]


@EVERY
@torch.no_grad()
def test_what_is_recorded_is_sparse_and_normalized(name):
    model = model_of(name, "sparsemax")
    with record_weights() as recorded:
        model.decode(SOURCES, LENGTHS, TARGETS, need_weights=False)
    for each in recorded:
        assert (each.weights == 0).any()
        if each.attention.areas is None and "local" not in name:
            torch.testing.assert_close(each.weights.sum(-1).round(decimals=5).unique(), torch.ones(1))


@SPARSE
def test_captioners_language_models_and_classifiers_take_the_setting(normalizer):
    pixels, cells = torch.randn(2, 3, 16, 16), torch.tensor([4, 4])
    for settings in ({"type": "show"}, {"type": "show", "area": {}}, {"type": "transformer", "area": {}, "embed_dim": 16, "num_heads": 2}):
        config = TypeAdapter(CaptionModelConfig).validate_python({**settings, "normalizer": normalizer})
        model = build_captioner(config, image_size=16, vocab_size=23).eval()
        attentions = [part for part in model.modules() if hasattr(part, "normalizer")]
        assert {part.normalizer for part in attentions} == {normalizer}
        assert model.decode(pixels, cells, TARGETS[:2]).weights.shape == (2, 5, 4)
    language = build_language_model(LanguageModelConfig(normalizer=normalizer, hidden_size=8, embed_dim=8), vocab_size=23)
    assert language.attention.normalizer == normalizer
    classifier = ClassifierConfig.model_validate({"normalizer": normalizer})
    assert build_classifier(classifier, vocab_size=23, classes=3, unknown=1).pooling.normalizer == normalizer
    crossed = EntailmentModelConfig.model_validate({"encoder": {"type": "crossed", "normalizer": normalizer}, "embed_dim": 16})
    entailment = build_classifier(crossed, vocab_size=23, classes=3, unknown=1)
    found = [part.normalizer for part in entailment.encoder.modules() if hasattr(part, "normalizer")]
    assert found
    assert set(found) == {normalizer}


@EVERY
def test_an_export_that_knows_only_the_softmax_names_the_setting(name):
    with pytest.raises(ConfigError, match="normalizer: entmax15, but the export supports the softmax only"):
        model_graphs(model_of(name, "entmax15"))


def test_torchs_attention_has_no_other_normalizer():
    with pytest.raises(ConfigError, match="normalizer 'sparsemax' cannot be converted"):
        MultiHeadAttention(6, 2, normalizer="sparsemax").to_torch()
    with pytest.raises(ConfigError, match="normalizer"):
        MultiHeadAttention(6, 2, normalizer="max")  # pyright: ignore[reportArgumentType]
