"""Recurrent models of two inputs: alone as in a batch, step by step as all at once, each input read, hidden and missing."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from regard.config import RNNConfig
from regard.data.vocabulary import EOS
from regard.models import build, split_inputs
from regard.models.rnn_attention import TwoAttentions
from tests.models.test_two_inputs import LENGTHS, ROWS, TARGET, close

SMALL = {"embed_dim": 7, "encoder_dim": 5, "decoder_dim": 11, "readout_dim": 7, "dropout": 0.0}
KINDS = ("flat", "joined", "serial", "parallel", "hierarchical")
TWO = KINDS[2:]


def model_of(kind, *, drop=0.0, sizes=(19, 19, 19), **changes):
    torch.manual_seed(47)
    config = RNNConfig(**SMALL, second={"kind": kind, "drop": drop}, **changes)
    return build(config, source_size=sizes[0], second_size=sizes[1], target_size=sizes[2]).eval()


CHANGES = [
    {},
    {"cell": "lstm", "bidirectional": False},
    {"attention": {"query_state": "current", "input_feeding": True, "area": {"max_area": 2}}},
    {"attention": {"score": "scaled_dot", "num_heads": 1, "query_state": "current"}},
    {"attention": {"window": "local_m", "radius": 2}},
]


@pytest.mark.parametrize(
    ("kind", "changes"), [*((kind, changes) for kind in KINDS for changes in CHANGES), *((kind, {"attention": None}) for kind in KINDS[:2])]
)
def test_an_example_alone_is_what_it_is_in_a_batch_and_step_by_step(kind, changes):
    model = model_of(kind, **changes)
    found = model.decode(ROWS, LENGTHS, TARGET)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model.decode(ROWS[row : row + 1, :length], LENGTHS[row : row + 1], TARGET[row : row + 1])
        close(alone.readout[0], found.readout[row])
        if found.weights is not None:
            close(alone.weights[0], found.weights[row, :, :length])
            assert not found.weights[row, :, length:].any()
    with torch.inference_mode():
        state = model.start(ROWS, LENGTHS)
        for step in range(3):
            readout, _, state = model.decoder_step(TARGET[:, step : step + 1], state)
            close(readout[:, 0], found.readout[:, step])


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_of_both_inputs_is_read(kind):
    model = model_of(kind)
    before = model.decode(ROWS, LENGTHS, TARGET).readout
    for place in (0, 1, 3, 5):
        changed = ROWS.clone()
        changed[0, place] = 12
        assert (model.decode(changed, LENGTHS, TARGET).readout[0] - before[0]).abs().max() > 1e-6
    swapped = torch.tensor([[7, 6, 8, EOS, 4, 5, EOS]])
    assert (model.decode(swapped, LENGTHS[:1], TARGET[:1]).readout[0] - before[0]).abs().max() > 1e-6


def test_each_input_may_have_a_table_of_its_own_and_one_encoder_or_two():
    flat, joined = (model_of(kind, sizes=(13, 17, 19)) for kind in ("flat", "joined"))
    assert [table.num_embeddings for table in (flat.source_embedding, flat.second_embedding)] == [13, 17]
    assert flat.second_encoder is not None
    assert joined.second_encoder is None
    assert flat.decode(torch.tensor([[12, EOS, 16, EOS]]), torch.tensor([4]), TARGET[:1]).readout.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_hidden_input_is_a_missing_one(kind):
    model = model_of(kind, drop=0.999999).train()
    found = [model.decode(ROWS[:1], LENGTHS[:1], TARGET[:1]).readout.flatten() for _ in range(12)]
    model.eval()
    expected = [
        model.decode(torch.tensor([tokens]), torch.tensor([len(tokens)]), TARGET[:1]).readout.flatten()
        for tokens in ([4, 5, EOS, EOS], [EOS, 7, 6, 8, EOS])
    ]
    nearest = [min(range(2), key=lambda side: (one - expected[side]).abs().max()) for one in found]
    assert set(nearest) == {0, 1}
    for one, side in zip(found, nearest, strict=True):
        close(one, expected[side])


def test_the_decoder_starts_from_the_mean_of_both_encoders_and_attends_to_the_states_of_both():
    model, inputs = model_of("flat"), split_inputs(ROWS, LENGTHS)
    first = model.encoder(model.source_embedding(inputs.first), inputs.first_lengths)
    second = model.second_encoder(model.second_embedding(inputs.second), inputs.second_lengths)
    found = model.encode(ROWS, LENGTHS)
    for parts, ones, others in zip(found.final, first.final, second.final, strict=True):
        close(parts[0], (ones[0] + others[0]) / 2)
    for row in range(3):
        one, two = int(inputs.first_lengths[row]), int(inputs.second_lengths[row])
        close(found.states[row, : one + two], torch.cat([first.states[row, :one], second.states[row, :two]]))
        assert not found.states[row, one + two :].any()


@pytest.mark.parametrize("kind", TWO)
def test_two_attentions_are_combined_as_their_equations_say(kind):
    model = model_of(kind, cell="gru")
    attention, encoded = model.decoder.attention, model.encode(ROWS, LENGTHS)
    assert isinstance(attention, TwoAttentions)
    state = model.decoder.start(model.bridge(encoded.final), encoded)
    query = torch.randn(3, 2, 11)
    context, weights = attention.attend(query, state.memory, position=0, need_weights=True)
    for row in range(3):
        parts = []
        for own, part, side in ((attention.left, encoded, 0), (attention.right, encoded.second, 1)):
            asking = query[row : row + 1]
            if kind == "serial" and side:
                asking = asking + parts[0].context @ attention.found.weight.T
            own_states = part.states[row : row + 1, : part.lengths[row]]
            parts.append(own(asking, own_states, own_states, need_weights=True))
        contexts, found = [part.context[0] for part in parts], [part.weights[0] for part in parts]
        if kind == "hierarchical":
            values = [one @ project.weight.T for one, project in zip(contexts, attention.inputs, strict=True)]
            score = attention.share.score
            energies = [torch.tanh(query[row] @ score.query.weight.T + score.key(value)) @ score.vector for value in values]
            shares = torch.stack(energies, -1).softmax(-1)
            close(context[row], sum(shares[:, side : side + 1] * value for side, value in enumerate(values)))
            found = [one * shares[:, side : side + 1] for side, one in enumerate(found)]
        else:
            close(context[row], torch.cat(contexts, -1))
            found = [one / 2 for one in found]
        close(weights[row, :, : LENGTHS[row]], torch.cat(found, -1))


@pytest.mark.parametrize("kind", TWO)
@pytest.mark.parametrize("query_state", ["previous", "current"])
def test_maps_name_the_input_that_two_attentions_read(kind, query_state):
    maps = model_of(kind, attention={"query_state": query_state}).attention_maps(ROWS, LENGTHS, TARGET)
    keys = {"first": 4, "second": 4} | ({"inputs": 2} if kind == "hierarchical" else {})
    assert [(found.kind, found.query, found.key) for found in maps] == [("cross", "target", key) for key in keys]
    for found in maps:
        assert found.weights.shape == (3, 1, 3, keys[found.key])
        close(found.weights.sum(-1), torch.ones(3, 1, 3))


@pytest.mark.parametrize("kind", TWO)
def test_rows_and_hypotheses_of_a_search_keep_their_sources(kind):
    model = model_of(kind)
    whole = model.decode(ROWS, LENGTHS, TARGET)
    with torch.inference_mode():
        _, _, state = model.decoder_step(TARGET[:, :1], model.start(ROWS, LENGTHS))
        kept = torch.tensor([2, 1])
        readout, weights, _ = model.decoder_step(TARGET[kept, 1:2].expand(-1, 2), state.select(kept, torch.zeros(2, 2, dtype=torch.long)))
        for beam in range(2):
            close(readout[:, beam], whole.readout[kept, 1])
            close(weights[:, beam], whole.weights[kept, 1, : weights.shape[-1]])


def test_two_attentions_need_an_attention():
    with pytest.raises(ValidationError, match="serial combines two attentions, but attention is null"):
        RNNConfig(second={"kind": "serial"}, attention=None)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_give_no_readouts(kind):
    found = model_of(kind).decode(ROWS[:0], LENGTHS[:0], TARGET[:0])
    assert found.readout.shape[:2] == (0, 3)
