"""Models that copy and cover: equal to loops, the same in whole targets, single steps, beams and batches; and what refuses them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from regard import ops
from regard.attention import AdditiveScore
from regard.config.models import ModelConfig
from regard.data.batching import collate
from regard.decoding import DecodingOptions, SamplingOptions, beam_search, greedy_search, sample
from regard.errors import ConfigError
from regard.explanations import TranslationBatch
from regard.integrations.graph_models import model_graphs
from regard.models import Ensemble, PointerGenerator, build
from regard.models.rnn_native_step import plan_of
from regard.tasks.pair_scores import target_log_probs
from tests.reference.attention import softmax

V, S = 23, 8
SOURCE = torch.tensor([[4, 900, 5, 900, 6, 7, 8, 3], [700, 9, 800, 3, 0, 0, 0, 0], [900, 3, 0, 0, 0, 0, 0, 0]])
LENGTHS = torch.tensor([8, 4, 2])
TARGET = torch.tensor([[2, 900, 4, 700, 10], [2, 800, 700, 9, 5], [2, 900, 900, 4, 4]])
GOALS = torch.tensor([[900, 4, 700, 10, 3], [800, 700, 9, 5, 3], [900, 900, 4, 4, 3]])
RECURRENT = {"type": "rnn", "embed_dim": 8, "encoder_dim": 8, "decoder_dim": 16, "readout_dim": 8}
STACK = {"type": "transformer", "embed_dim": 16, "ff_dim": 24, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2}
COVERS = {"attention_dim": 8, "coverage": True, "coverage_loss": 0.5}
MODELS: dict[str, dict[str, Any]] = {
    "bahdanau": {**RECURRENT, "attention": {"attention_dim": 8}},
    "luong": {**RECURRENT, "cell": "lstm", "attention": {"score": "general", "query_state": "current", "input_feeding": True}},
    "areas": {**RECURRENT, "attention": {"attention_dim": 8, "area": {"max_area": 3}}},
    "sparse": {**RECURRENT, "attention": {"attention_dim": 8, "normalizer": "sparsemax"}},
    "coverage": {**RECURRENT, "attention": COVERS},
    "coverage, last": {**RECURRENT, "attention": {**COVERS, "query_state": "current", "normalizer": "entmax15"}},
    "coverage, fed": {**RECURRENT, "attention": {**COVERS, "query_state": "current", "input_feeding": True, "window": "local_m"}},
    "transformer": STACK,
    "transformer, areas": {**STACK, "area": {"max_area": 2}},
    "crossed": {**STACK, "type": "crossed", "swap_probability": 0.0},
}
EVERY = pytest.mark.parametrize("name", MODELS)


def model_of(name: str, seed: int = 3, **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = TypeAdapter(ModelConfig).validate_python({"copy_attention": True, **MODELS[name], **changes})
    model = build(config, source_size=V, target_size=V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model


@EVERY
@torch.no_grad()
def test_whole_targets_and_single_steps_give_the_same_distribution_which_sums_to_one(name):
    model = model_of(name)
    whole = model.decode(SOURCE, LENGTHS, TARGET)
    assert whole.readout.shape == (3, 5, V + S)
    torch.testing.assert_close(whole.readout.exp().sum(-1), torch.ones(3, 5))
    for packed in (False, True):
        with ops.packed_weights() if packed else torch.no_grad():
            state = model.start(SOURCE, LENGTHS)
            for t in range(TARGET.shape[1]):
                log_probs, weights, state = model.step(TARGET[:, t : t + 1], state)
                torch.testing.assert_close(log_probs[:, 0].exp(), whole.readout[:, t].exp(), atol=1e-5, rtol=1e-4)
                torch.testing.assert_close(weights[:, 0], whole.weights[:, t, : weights.shape[-1]], atol=1e-5, rtol=1e-4)


@EVERY
@torch.no_grad()
def test_loss_goals_and_scores_of_pairs_agree(name):
    model = model_of(name)
    table = model.decode(SOURCE, LENGTHS, TARGET).readout
    lengths = torch.tensor([5, 5, 4])
    sums = model(SOURCE, LENGTHS, TARGET, GOALS, lengths)
    goals = model.goals(GOALS, SOURCE)
    assert goals[0].tolist() == [V + 1, 4, 1, 10, 3]
    rows = table.gather(-1, goals.unsqueeze(-1)).squeeze(-1).clamp(min=-23.02585)  # log 1e-10
    real = ops.length_mask(lengths, 5)
    torch.testing.assert_close(sums.nll, -rows[real].sum())
    torch.testing.assert_close(sums.loss, sums.nll)
    assert int(sums.correct) == int((table.argmax(-1) == goals)[real].sum())
    batch = collate([[4, 900, 5, 900, 6, 7, 8], [700, 9, 800], [900]], [[900, 4, 700, 10], [800, 700, 9, 5], [900, 900, 4, 4]], [0, 1, 2])
    torch.testing.assert_close(target_log_probs(model, batch).clamp(min=-23.02585), rows)


@EVERY
@pytest.mark.parametrize("packed", [False, True])
def test_beam_greedy_and_sampled_outputs_do_not_depend_on_the_batch_and_have_the_scores_of_their_tokens(name, packed):
    model = model_of(name)
    options = DecodingOptions(bos=2, eos=3, max_length=6, beam_size=3, n_best=2, no_repeat_ngram_size=2)

    def search(rows: list[int], kind: str) -> Any:
        state = model.start(SOURCE[rows], LENGTHS[rows])
        if kind == "beam":
            return beam_search(model.decoding_step, state, batch_size=len(rows), options=options)
        if kind == "greedy":
            return greedy_search(model.decoding_step, state, batch_size=len(rows), options=options, at_once=model.greedy)
        some = [torch.Generator().manual_seed(row) for row in rows]
        return sample(model.decoding_step, state, batch_size=len(rows), options=options, sampling=SamplingOptions(), generator=some)

    with torch.no_grad(), ops.packed_weights() if packed else torch.no_grad():
        for kind in ("beam", "greedy", "sample"):
            together = search([0, 1, 2], kind)
            assert [[one.tokens for one in search([row], kind)[0]] for row in range(3)] == [[one.tokens for one in own] for own in together]
            for row, own in enumerate(together):
                tokens = own[0].tokens
                given = torch.tensor([[2, *tokens[:-1]]])
                found = model.decode(SOURCE[row : row + 1], LENGTHS[row : row + 1], given).readout[0]
                wanted = found.gather(-1, torch.tensor(tokens).unsqueeze(-1)).squeeze(-1)
                torch.testing.assert_close(torch.tensor(own[0].log_probs), wanted, atol=1e-4, rtol=1e-3)


@EVERY
def test_a_step_of_training_reaches_the_gate_and_the_attention(name):
    model = model_of(name).train()
    sums = model(SOURCE, LENGTHS, TARGET, GOALS, torch.tensor([5, 5, 4]), label_smoothing=0.1)
    sums.loss.backward()
    without = [part for part, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.isfinite().all()]
    assert without == []
    assert model.gate.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_coverage_is_the_sum_of_earlier_attention_and_enters_the_score():
    """See et al. 2017, Eq. 11, by loops over the steps of one sentence."""
    model = model_of("coverage, last", attention={"attention_dim": 8, "coverage": True, "query_state": "current"}).double()
    inner, decoder = model.model, model.model.decoder
    state = inner.start(SOURCE.clamp(max=V - 1), LENGTHS)
    score, total = decoder.attention.score, torch.zeros(S, dtype=torch.float64)
    assert score.coverage.abs().min() > 0
    for t in range(4):
        key = state.memory.key[0]
        embedded = decoder.embedding(TARGET[:, t : t + 1].clamp(max=V - 1))
        state_after = decoder.stack(decoder.stack.project(embedded), state.layers, None)
        query = state_after[-1][0][0, 0]
        table = [float(score.vector @ torch.tanh(score.query.weight @ query + key[s] + score.coverage * total[s])) for s in range(S)]
        _, weights, state = decoder.step(TARGET[:, t : t + 1].clamp(max=V - 1), state)
        wanted = torch.from_numpy(softmax(torch.tensor([table], dtype=torch.float64).numpy(), [[True] * S])[0])
        torch.testing.assert_close(weights[0, 0], wanted)
        total = total + wanted
        torch.testing.assert_close(state.coverage[0, 0], total)


def test_the_coverage_loss_is_added_in_training_only():
    model = model_of("coverage", dropout=0.0)
    given = (SOURCE, LENGTHS, TARGET, GOALS, torch.tensor([5, 5, 4]))
    plain = model(*given)
    torch.testing.assert_close(plain.loss, plain.nll)
    trained = model.train()(*given)
    weights = model.decode(SOURCE, LENGTHS, TARGET).weights
    added = 0.5 * ops.coverage_loss(weights, query_mask=ops.length_mask(torch.tensor([5, 5, 4]), 5))
    assert added > 0.1
    torch.testing.assert_close(trained.loss, plain.nll + added)


def test_native_steps_are_taken_without_coverage_only():
    assert plan_of(model_of("coverage").model.decoder) is None
    plain = model_of("bahdanau")
    assert (plan_of(plain.model.decoder) is None) == (not ops.native_takes_items(torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 1, 16)))


@torch.no_grad()
def test_models_that_copy_decode_together_but_not_with_others():
    one, other = model_of("bahdanau"), model_of("transformer", seed=5)
    both = Ensemble([one, other]).eval()
    found = both.decode(SOURCE, LENGTHS, TARGET).readout
    wanted = (one.decode(SOURCE, LENGTHS, TARGET).readout.exp() + other.decode(SOURCE, LENGTHS, TARGET).readout.exp()) / 2
    torch.testing.assert_close(found.exp(), wanted)
    torch.testing.assert_close(both.goals(GOALS, SOURCE), one.goals(GOALS, SOURCE))
    with pytest.raises(ConfigError, match="some of the models copy"):
        Ensemble([one, model_of("bahdanau", copy_attention=False)])


@torch.no_grad()
def test_attention_maps_are_those_of_the_model_inside():
    model = model_of("transformer")
    maps = model.attention_maps(SOURCE, LENGTHS, TARGET)
    inner = model.model.attention_maps(SOURCE.masked_fill(SOURCE >= V, 1), LENGTHS, TARGET.masked_fill(TARGET >= V, 1))
    assert [one.name for one in maps] == [one.name for one in inner]
    assert all(torch.equal(one.weights, two.weights) for one, two in zip(maps, inner, strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**RECURRENT, "attention": None}, "attention is null"),
        ({**RECURRENT, "second": {"kind": "flat"}}, "copies from one source"),
        ({**STACK, "second": {"kind": "flat"}}, "copies from one source"),
        ({**STACK, "type": "crossed"}, "swap_probability 0"),
        ({**RECURRENT, "attention": {"score": "general", "coverage": True}}, "coverage needs score: additive"),
        ({**RECURRENT, "attention": {"coverage": True, "area": {}}}, "coverage needs score: additive"),
        ({**RECURRENT, "attention": {"coverage_loss": 1.0}}, "coverage_loss needs coverage"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(ModelConfig).validate_python({"copy_attention": True, **settings})


def test_what_cannot_copy_says_so():
    model = model_of("bahdanau")
    with pytest.raises(ConfigError, match=r"model\.copy_attention: true"):
        model_graphs(model)
    with pytest.raises(ConfigError, match=r"model\.attention\.coverage"):
        model_graphs(model_of("coverage", copy_attention=False))
    with pytest.raises(ConfigError, match="copied word"):
        TranslationBatch(model, SOURCE, LENGTHS, TARGET, GOALS, torch.tensor([5, 5, 4]))
    with pytest.raises(ConfigError, match="no attention"):
        PointerGenerator(build(TypeAdapter(ModelConfig).validate_python({**RECURRENT, "attention": None}), source_size=V, target_size=V))
    with pytest.raises(ConfigError, match="coverage=True"):
        AdditiveScore(3, 5, 7).covered(torch.zeros(1, 2, 7), torch.zeros(1, 2))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", ["bahdanau", "transformer"])
def test_an_ensemble_of_one_model_has_its_loss(name, smoothing):
    model, lengths = model_of(name), torch.tensor([5, 5, 4])
    with torch.no_grad():
        readout = [each.decode(SOURCE, LENGTHS, TARGET).readout for each in (model, Ensemble([model, model]))]
        alone = model(SOURCE, LENGTHS, TARGET, GOALS, lengths, label_smoothing=smoothing)
        both = Ensemble([model, model])(SOURCE, LENGTHS, TARGET, GOALS, lengths, label_smoothing=smoothing)
    torch.testing.assert_close(readout[1].exp(), readout[0].exp())
    torch.testing.assert_close(both.nll, alone.nll)
    torch.testing.assert_close(both.loss, alone.loss)


@EVERY
@torch.no_grad()
def test_sentences_in_another_order_keep_their_sources(name):
    model = model_of(name)
    _, _, state = model.step(torch.full((3, 1), 2), model.start(SOURCE, LENGTHS))
    expected = model.step(torch.full((3, 1), 4), state)[0]
    for order in ([0, 1, 2], [2, 0, 1], [1, 1, 0]):
        found = model.step(torch.full((3, 1), 4), state.select(torch.tensor(order), torch.zeros(3, 1, dtype=torch.long)))[0]
        torch.testing.assert_close(found, expected[order], atol=1e-5, rtol=1e-4)
