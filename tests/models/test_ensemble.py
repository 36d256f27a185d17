"""Several models that decode as one: the mean of their probabilities, whatever families they are of."""

from __future__ import annotations

import pytest
import torch

from regard.config import AreaConfig, AreaSettings, AttentionConfig, CrossedConfig, RNNConfig, TransformerConfig
from regard.data.batching import collate
from regard.decoding import DecodingOptions, SamplingOptions, beam_search, greedy_search, sample
from regard.errors import ConfigError
from regard.models import Ensemble, build

SIZE = 19
PAIRS = ([[4, 5, 6, 7, 8, 9, 4], [9, 10], [11, 4, 5]], [[4, 5, 6, 11, 6, 7], [7], [8, 9, 10, 11]])
SMALL = {"embed_dim": 10, "ff_dim": 11, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
RECURRENT = {"embed_dim": 6, "encoder_dim": 7, "decoder_dim": 14, "readout_dim": 10, "dropout": 0.0}
HEADS = AttentionConfig(score="scaled_dot", num_heads=2, query_state="current", area=AreaSettings(max_area=2))
MODELS = {
    "bahdanau": RNNConfig(**RECURRENT, attention=AttentionConfig(attention_dim=5)),
    "none": RNNConfig(**RECURRENT, attention=None),
    "lstm area": RNNConfig(cell="lstm", **RECURRENT, attention=HEADS),
    "regular": TransformerConfig(**SMALL),
    "area features": TransformerConfig(**SMALL, area=AreaConfig(max_area=3, key_mode="features")),
    "crossed": CrossedConfig(**SMALL),
}
OPTIONS = DecodingOptions(bos=2, eos=3, beam_size=3, n_best=2, max_length=7, banned=(0, 2))


def model_of(name, seed=29):
    torch.manual_seed(seed)
    model = build(MODELS[name], source_size=SIZE, target_size=SIZE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def batch_of(indices=(0, 1, 2)):
    return collate(*PAIRS, indices)


def search(model, batch, options=OPTIONS, function=beam_search):
    return function(model.step, model.start(*batch[:2]), batch_size=len(batch.source), options=options)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_itself_finds_what_it_finds_alone(name):
    model, batch = model_of(name), batch_of()
    for found, alone in zip(search(Ensemble([model, model, model]), batch), search(model, batch), strict=True):
        assert [one.tokens for one in found] == [one.tokens for one in alone]
        for one, other in zip(found, alone, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-5)
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


def test_two_models_expect_the_mean_of_their_distributions():
    models, batch = [model_of("bahdanau"), model_of("crossed", 31)], batch_of()
    both = Ensemble(models)
    output = both.decode(*batch[:3])
    each = [model.decode(*batch[:3]) for model in models]
    mean = sum(model.logits(one.readout).double().softmax(-1) for model, one in zip(models, each, strict=True)) / 2
    torch.testing.assert_close(both.logits(output.readout).double(), mean.log(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(output.weights, (each[0].weights + each[1].weights) / 2)
    assert both.decode(*batch[:3], need_weights=False).weights is None
    state = both.start(*batch[:2])
    for position in range(batch.target_input.shape[1]):
        logits, weights, state = both.step(batch.target_input[:, position : position + 1], state)
        torch.testing.assert_close(logits[:, 0], output.readout[:, position], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(weights[:, 0], output.weights[:, position])
        state = state.select(torch.arange(3), torch.zeros(3, 2, dtype=torch.long)).select(
            torch.arange(3), torch.ones(3, 1, dtype=torch.long)
        )


def test_selecting_follows_the_hypotheses_in_every_model():
    both = Ensemble([model_of("lstm area"), model_of("area features", 31)])
    state = both.start(*batch_of()[:2]).select(torch.arange(3), torch.zeros(3, 2, dtype=torch.long))
    _, _, state = both.step(torch.tensor([[4, 5], [6, 7], [8, 9]]), state)
    logits, _, _ = both.step(torch.tensor([[3, 4], [5, 6]]), state.select(torch.tensor([2, 0]), torch.tensor([[1, 0], [0, 0]])))
    for row, column, sentence, tokens in [(0, 0, 2, [9, 3]), (0, 1, 2, [8, 4]), (1, 0, 0, [4, 5]), (1, 1, 0, [4, 6])]:
        expected = both.decode(*batch_of((sentence,))[:2], torch.tensor([tokens])).readout[0, -1]
        torch.testing.assert_close(logits[row, column], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [beam_search, greedy_search])
def test_neither_the_batch_nor_the_order_of_the_models_changes_what_is_found(function):
    models = [model_of("bahdanau"), model_of("regular", 31), model_of("lstm area", 37)]
    together, other_way = (search(Ensemble(one), batch_of(), function=function) for one in (models, models[::-1]))
    for row in range(3):
        (alone,) = search(Ensemble(models), batch_of((row,)), function=function)
        assert together[row][0].tokens == alone[0].tokens == other_way[row][0].tokens
        assert together[row][0].score == pytest.approx(alone[0].score, abs=1e-5)


def test_it_can_be_sampled_from():
    both, batch = Ensemble([model_of("bahdanau"), model_of("regular", 31)]), batch_of()
    generators = [torch.Generator().manual_seed(row) for row in range(3)]
    options = DecodingOptions(bos=2, eos=3, max_length=7)
    found = sample(both.step, both.start(*batch[:2]), batch_size=3, options=options, sampling=SamplingOptions(), generator=generators)
    assert all(own[0].tokens for own in found)


def test_attention_is_shown_where_all_models_have_one():
    some, all_of_them = Ensemble([model_of("bahdanau"), model_of("none", 31)]), Ensemble([model_of("bahdanau"), model_of("regular", 31)])
    assert (some.attends, all_of_them.attends) == (False, True)
    assert some.decode(*batch_of()[:3]).weights is None
    with pytest.raises(ConfigError, match="coverage_penalty needs a model with attention"):
        search(some, batch_of(), DecodingOptions(bos=2, eos=3, coverage_penalty=0.2, source_lengths=[8, 3, 4]))
    attention = search(all_of_them, batch_of(), DecodingOptions(bos=2, eos=3, max_length=7, need_attention=True))[0][0].attention
    torch.testing.assert_close(attention.sum(-1), torch.ones(len(attention)), rtol=1e-5, atol=1e-5)


def test_targets_are_as_likely_as_the_mean_says():
    models, batch = [model_of("bahdanau"), model_of("crossed", 31)], batch_of()
    both = Ensemble(models)
    found = both(*batch[:5], label_smoothing=0.1)
    log_probs, nll, uniform, correct = both.decode(*batch[:3]).readout.double(), 0.0, 0.0, 0
    for row, target in enumerate(PAIRS[1]):
        for position, token in enumerate([*target, 3]):
            nll -= log_probs[row, position, token].item()
            uniform -= log_probs[row, position].mean().item()
            correct += int(log_probs[row, position].argmax() == token)
    assert found.nll.item() == pytest.approx(nll, rel=1e-5)
    assert found.loss.item() == pytest.approx(0.9 * nll + 0.1 * uniform, rel=1e-5)
    assert (int(found.tokens), int(found.correct)) == (14, correct)
    one = Ensemble(models[:1])(*batch[:5], label_smoothing=0.1)
    for part, expected in zip(one, models[0](*batch[:5], label_smoothing=0.1), strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-5, atol=1e-5, check_dtype=False)


def test_no_model_at_all_is_refused():
    with pytest.raises(ConfigError, match="one model or more"):
        Ensemble([])
