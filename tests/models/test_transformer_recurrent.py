"""A Transformer's encoder with a recurrent decoder: whole targets, steps, native code and int8 agree; beam search finds the best."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from regard import ops
from regard.config import TransformerConfig, TranslationConfig, validate
from regard.decoding import DecodingOptions, beam_search, greedy_search
from regard.errors import ConfigError
from regard.models import build
from regard.models.transformer_recurrent import TransformerRecurrent

DECODERS: dict[str, dict[str, Any]] = {
    "additive after": {"attention": {"score": "additive", "query_state": "current", "attention_dim": 5}},
    "general after": {"attention": {"score": "general", "query_state": "current"}, "cell": "lstm"},
    "additive before": {"attention": {"score": "additive", "query_state": "previous", "attention_dim": 5}, "readout": "deep", "layers": 2},
    "fed": {"attention": {"score": "general", "query_state": "current", "input_feeding": True}},
    "heads": {"dim": 8, "attention": {"score": "scaled_dot", "query_state": "current", "num_heads": 2}},
    "areas": {"attention": {"score": "additive", "query_state": "current", "attention_dim": 5, "area": {"max_area": 2}}},
}
SOURCE, LENGTHS = torch.tensor([[5, 7, 6, 9, 3], [8, 4, 3, 0, 0], [6, 3, 0, 0, 0]]), torch.tensor([5, 3, 2])


def model_of(name: str, *, size: int = 13) -> TransformerRecurrent:
    settings = {"embed_dim": 12, "ff_dim": 13, "num_heads": 2, "encoder_layers": 2, "decoder": "recurrent", "norm": "pre"}
    config = TransformerConfig.model_validate({**settings, "recurrent": {"dim": 7, **DECODERS[name]}})
    model = build(config, source_size=size, target_size=size).eval()
    assert isinstance(model, TransformerRecurrent)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # so that the sentences differ
    return model


def test_the_loss_of_coverage_is_in_the_loss_of_training() -> None:
    losses = []
    for weight in (0.0, 1.0, 3.0):
        attention = {"score": "additive", "attention_dim": 5, "coverage": True, "coverage_loss": weight}
        settings = {"embed_dim": 12, "ff_dim": 13, "num_heads": 2, "dropout": 0.0, "decoder": "recurrent"}
        torch.manual_seed(1)
        model = build(
            TransformerConfig.model_validate({**settings, "recurrent": {"dim": 7, "attention": attention}}), source_size=13, target_size=13
        )
        target = torch.tensor([[2, 5, 8], [2, 7, 4], [2, 6, 6]]), torch.tensor([[5, 8, 3], [7, 4, 3], [6, 6, 3]]), torch.tensor([3, 3, 3])
        losses.append(model.train()(SOURCE, LENGTHS, *target).loss.item())
    assert losses[1] > losses[0] + 0.1
    assert losses[2] - losses[0] == pytest.approx(3 * (losses[1] - losses[0]), rel=1e-4)
    with pytest.raises(ConfigError, match=r"training\.r_drop: not with model\.recurrent\.attention\.coverage_loss"):
        validate(
            {
                "model": {"type": "transformer", **settings, "dropout": 0.1, "recurrent": {"attention": attention}},
                "training": {"r_drop": 5.0},
            },
            "here",
        )


@pytest.mark.parametrize("name", DECODERS)
def test_steps_give_what_whole_targets_give(name: str) -> None:
    model, target = model_of(name), torch.tensor([[2, 5, 8, 9], [2, 7, 4, 4], [2, 6, 6, 5]])
    with torch.no_grad():
        whole = model.decode(SOURCE, LENGTHS, target)
        logits, state = model.logits(whole.readout), model.start(SOURCE, LENGTHS)
        for place in range(4):
            step, weights, state = model.step(target[:, place : place + 1], state)
            assert torch.allclose(step[:, 0], logits[:, place], atol=1e-5)
            assert weights is not None
            assert whole.weights is not None
            assert torch.allclose(weights[:, 0], whole.weights[:, place], atol=1e-6)


@pytest.mark.parametrize("name", DECODERS)
def test_padding_changes_nothing(name: str) -> None:
    model, target = model_of(name), torch.tensor([[2, 5, 8]])
    with torch.no_grad():
        alone = model.decode(SOURCE[1:2, :3], LENGTHS[1:2], target)
        padded = model.decode(SOURCE, LENGTHS, target.expand(3, 3))
    assert torch.allclose(alone.readout[0], padded.readout[1], atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_native_steps_and_native_greedy_decoding_give_the_same_text(name: str, beam_size: int) -> None:
    model, options = model_of(name, size=41), DecodingOptions(bos=2, eos=3, beam_size=beam_size, max_length=9, banned=(0, 2))
    search = greedy_search if beam_size == 1 else beam_search

    def found(packed: bool) -> list[list[int]]:
        at_once = {"at_once": model.greedy} if beam_size == 1 and packed else {}
        step = model.decoding_step if packed else model.step
        results = search(step, model.start(SOURCE, LENGTHS), batch_size=3, options=options, **at_once)
        return [hypotheses[0].tokens for hypotheses in results]

    plain = found(packed=False)
    with torch.inference_mode(), ops.packed_weights():
        assert found(packed=True) == plain


def test_int8_is_close_to_float32() -> None:
    model, target = model_of("additive after", size=41), torch.tensor([[2], [2], [2]])
    with torch.inference_mode():
        wanted = model.step(target, model.start(SOURCE, LENGTHS))[0].log_softmax(-1)
        with ops.packed_weights(torch.int8):
            found = model.step(target, model.start(SOURCE, LENGTHS))[0].log_softmax(-1)
    assert torch.allclose(found, wanted, atol=0.5)  # of log-probabilities down to -10
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))


def test_a_beam_as_wide_as_all_targets_finds_the_best_of_all() -> None:
    model, limit = model_of("general after", size=9), 3
    options = DecodingOptions(bos=2, eos=3, beam_size=64, max_length=limit, length_penalty=0.0, banned=(0, 1, 2, 6, 7, 8))
    found = beam_search(model.step, model.start(SOURCE[2:, :2], LENGTHS[2:]), batch_size=1, options=options)[0][0]
    best: dict[float, list[int]] = {}
    for count in range(1, limit + 1):
        for tokens in itertools.product([3, 4, 5], repeat=count):
            if 3 in tokens[:-1] or (count < limit and tokens[-1] != 3):
                continue
            target = torch.tensor([[2, *tokens[:-1]]])
            with torch.no_grad():
                logits = model.logits(model.decode(SOURCE[2:, :2], LENGTHS[2:], target).readout)[0]
            total = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).sum().item()
            best[total] = list(tokens)
    assert found.tokens == best[max(best)]
    assert found.score == pytest.approx(max(best), abs=1e-4)


@pytest.mark.parametrize("wrong", [{"second": {"kind": "flat"}}, {"alignment_layer": 1}, {"recurrent": {"attention": {"score": "dot"}}}])
def test_settings_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"second|recurrent|alignment_layer"):
        validate({"model": {"type": "transformer", "decoder": "recurrent", "embed_dim": 128, **wrong}}, "test", kind=TranslationConfig)
