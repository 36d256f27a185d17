"""Models of other toolkits under our names give the logits that they gave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from regard.errors import CheckpointError, ConfigError
from regard.integrations.migrate import NAMINGS, Converted, convert, reorder_vocabulary
from regard.models import Transformer
from tests.integrations.foreign import HEADS, batch, fairseq_state, joeynmt_state
from tests.reference import fairseq, joeynmt

SOURCE_SIZE, TARGET_SIZE = 29, 31
ACTIVATIONS: dict[str, Any] = {"relu": torch.relu, "swish": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}


def marian(**settings: Any) -> MarianMTModel:
    """Return a small Marian with random weights, none of them zero."""
    torch.manual_seed(5)
    sizes = {"d_model": 18, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 23, "decoder_ffn_dim": 23}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "max_position_embeddings": 47}
    special = {"pad_token_id": TARGET_SIZE - 1, "eos_token_id": 0, "decoder_start_token_id": TARGET_SIZE - 1, "forced_eos_token_id": 0}
    base = {"vocab_size": TARGET_SIZE, "scale_embedding": True, "activation_function": "swish", **sizes, **heads, **special}
    model = MarianMTModel(MarianConfig(**{**base, **settings})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) / 6)
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    return model


def logits(model: Transformer, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        return model.logits(model.decode(source, lengths, target).readout)


@pytest.mark.parametrize(
    ("settings", "activation", "scaled"),
    [
        ({}, "swish", True),
        ({"activation_function": "gelu", "scale_embedding": False}, "gelu", False),
        ({"activation_function": "relu", "tie_word_embeddings": False}, "relu", True),
        ({"share_encoder_decoder_embeddings": False, "vocab_size": SOURCE_SIZE, "decoder_vocab_size": TARGET_SIZE}, "swish", True),
    ],
    ids=["shared", "unscaled", "untied", "apart"],
)
def test_marian_gives_the_same_logits(settings: dict[str, Any], activation: Any, scaled: bool) -> None:
    apart = "vocab_size" in settings
    theirs = marian(**settings, **({"pad_token_id": 1, "decoder_start_token_id": 1} if apart else {}))
    converted = convert(theirs.state_dict(), "marian", num_heads=3, activation=activation, scaled=scaled)
    source, lengths, target = batch(SOURCE_SIZE, TARGET_SIZE, pad=theirs.config.pad_token_id)
    mask = torch.arange(source.shape[1]) < lengths[:, None]
    with torch.no_grad():
        expected = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
    assert (logits(converted.build(), source, lengths, target) - expected).abs().max() <= 1e-5
    assert converted.config.output_bias
    assert converted.config.tie_embeddings == (scaled and settings.get("tie_word_embeddings", True))
    assert converted.config.share_embeddings == (not apart and settings.get("tie_word_embeddings", True))


@pytest.mark.parametrize("pre", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize(("toolkit", "state_of"), [(fairseq, fairseq_state), (joeynmt, joeynmt_state)], ids=["fairseq", "joeynmt"])
@pytest.mark.parametrize(
    ("tables", "activation", "scaled"),
    [({}, "relu", True), ({"shared": True}, "gelu", True), ({"tied": False}, "swish", True), ({"shared": True}, "relu", False)],
    ids=["apart", "shared", "untied", "unscaled"],
)
def test_fairseq_and_joeynmt_give_the_same_logits(
    toolkit: Any, state_of: Any, pre: bool, tables: dict[str, bool], activation: Any, scaled: bool
) -> None:
    state = state_of(pre=pre, source_size=TARGET_SIZE if tables.get("shared") else SOURCE_SIZE, target_size=TARGET_SIZE, **tables)
    source, lengths, target = batch(SOURCE_SIZE, TARGET_SIZE, pad=toolkit.PAD)
    expected = toolkit.logits(state, source, target, heads=HEADS, activation=ACTIVATIONS[activation], scaled=scaled)
    kind: Any = toolkit.__name__.rpartition(".")[2]
    converted = convert(state, kind, num_heads=HEADS, activation=activation, scaled=scaled)
    assert (logits(converted.build(), source, lengths, target) - expected).abs().max() <= 1e-5
    assert converted.config.norm == ("pre" if pre else "post")
    assert converted.config.share_embeddings == tables.get("shared", False)
    assert converted.config.tie_embeddings == (scaled and tables.get("tied", True))


def test_steps_of_a_search_stand_at_the_positions_of_whole_targets() -> None:
    converted = convert(fairseq_state(pre=False, source_size=SOURCE_SIZE, target_size=TARGET_SIZE), "fairseq", num_heads=HEADS)
    model = converted.build()
    source, lengths, target = batch(SOURCE_SIZE, TARGET_SIZE, pad=1)
    whole = logits(model, source, lengths, target)
    with torch.no_grad():
        state = model.start(source, lengths)
        for place in range(target.shape[1]):
            stepped, _, state = model.step(target[:, place : place + 1], state)
            torch.testing.assert_close(stepped[:, 0], whole[:, place], atol=1e-5, rtol=1e-5)


def test_a_checkpoint_that_leaves_tied_tables_out_is_read_as_tied() -> None:
    theirs = marian()
    state = {name: tensor for name, tensor in theirs.state_dict().items() if "embed_tokens" not in name and name != "lm_head.weight"}
    assert "model.shared.weight" in state
    whole = convert(theirs.state_dict(), "marian", num_heads=3, activation="swish").weights
    less = convert(state, "marian", num_heads=3, activation="swish")
    assert less.config.tie_embeddings
    assert all(torch.equal(whole[name], tensor) for name, tensor in less.weights.items())


def test_half_precision_weights_are_widened() -> None:
    state = {name: tensor.half() for name, tensor in joeynmt_state(pre=True, source_size=SOURCE_SIZE, target_size=TARGET_SIZE).items()}
    assert {tensor.dtype for tensor in convert(state, "joeynmt", num_heads=HEADS).weights.values()} == {torch.float32}


def changed(**changes: Any) -> dict[str, Tensor]:
    state = fairseq_state(pre=True, source_size=SOURCE_SIZE, target_size=TARGET_SIZE)
    for name, tensor in changes.items():
        if tensor is None:
            del state[name]
        else:
            state[name] = tensor
    return state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder.layers.1.fc2.bias": None}, "fairseq: the weights lack encoder.layers.1.fc2.bias"),
        ({"decoder.embed_positions.weight": torch.zeros(1)}, "fairseq: decoder.embed_positions.weight has no place in our Transformer"),
        ({"encoder.layer_norm.weight": None}, "fairseq: only one of encoder and decoder ends with a LayerNorm"),
        ({"decoder.layers.3.fc1.bias": torch.zeros(1)}, r"fairseq: the weights have no layers decoder.layers.0, .1"),
        ({"decoder.layers.0.fc1.weight": torch.zeros(7, 18)}, r"decoder.layers.0.feed_forward.hidden.weight: is \(7, 18\) there, expected"),
    ],
)
def test_weights_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        convert(changed(**changes), "fairseq", num_heads=HEADS)


def test_learned_positions_are_refused_and_sines_taken() -> None:
    state = marian().state_dict()
    assert "model.encoder.embed_positions.weight" in state
    state["model.decoder.embed_positions.weight"] = torch.randn(47, 18)
    with pytest.raises(CheckpointError, match=r"model\.decoder\.embed_positions\.weight: holds learned positions"):
        convert(state, "marian", num_heads=3)


def test_settings_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match="num_heads: 4, expected a number that divides the size of a state, 18"):
        convert(changed(), "fairseq", num_heads=4)
    kind: Any = "opennmt"
    with pytest.raises(ConfigError, match="kind: 'opennmt', expected one of marian, fairseq, joeynmt"):
        convert({}, kind, num_heads=3)


def test_entries_numbered_anew_keep_their_logits_and_count_once() -> None:
    state = joeynmt_state(pre=False, source_size=SOURCE_SIZE, target_size=TARGET_SIZE)
    converted = convert(state, "joeynmt", num_heads=HEADS)
    order = [5, 3, 5, *[n for n in range(TARGET_SIZE) if n not in (3, 5)]]
    source_order = list(reversed(range(SOURCE_SIZE)))
    again = reorder_vocabulary(converted, [source_order, order], order)
    source, lengths, target = batch(SOURCE_SIZE, TARGET_SIZE, pad=1)
    old = logits(converted.build(), source, lengths, target).log_softmax(-1)
    moved = torch.tensor([order.index(n) for n in range(TARGET_SIZE)])
    new = logits(again.build(), SOURCE_SIZE - 1 - source, lengths, moved[target]).log_softmax(-1)
    torch.testing.assert_close(new[..., moved], old, atol=1e-5, rtol=1e-5)
    assert new[..., 2].max() < -1000
    assert again.config.output_bias
    assert again.config.tie_embeddings


def test_tables_that_are_numbered_differently_are_no_longer_tied() -> None:
    state = fairseq_state(pre=False, source_size=TARGET_SIZE, target_size=TARGET_SIZE, shared=True)
    converted = convert(state, "fairseq", num_heads=HEADS)
    embedding = [1, 3, 2, 2, *range(4, TARGET_SIZE)]
    again: Converted = reorder_vocabulary(converted, [embedding, embedding], [1, 3, 0, 2, *range(4, TARGET_SIZE)])
    assert again.config.share_embeddings
    assert not again.config.tie_embeddings
    assert not again.config.output_bias
    again.build()


def test_every_naming_has_all_parts_of_a_layer() -> None:
    for naming in NAMINGS.values():
        parts = {"attention.query", "attention.key", "attention.value", "attention.output", "attention_norm"}
        parts |= {"feed_forward.hidden", "feed_forward.output", "feed_forward_norm"}
        assert set(naming.encoder_layer) == parts
        assert set(naming.decoder_layer) == parts | {
            "cross_attention_norm",
            *(f"cross_attention.attention.{p}" for p in ("query", "key", "value", "output")),
        }
