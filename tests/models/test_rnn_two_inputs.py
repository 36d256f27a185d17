"""Recurrent models of two inputs: alone as in a batch, step by step as all at once, each input read, hidden and missing."""

from __future__ import annotations

import pytest
import torch

from regard.config import RNNConfig
from regard.data.vocabulary import EOS
from regard.models import build, split_inputs
from tests.models.test_two_inputs import LENGTHS, ROWS, TARGET, close

SMALL = {"embed_dim": 7, "encoder_dim": 5, "decoder_dim": 11, "readout_dim": 7, "dropout": 0.0}
KINDS = ("flat", "joined")


def model_of(kind, *, drop=0.0, sizes=(19, 19, 19), **changes):
    torch.manual_seed(47)
    config = RNNConfig(**SMALL, second={"kind": kind, "drop": drop}, **changes)
    return build(config, source_size=sizes[0], second_size=sizes[1], target_size=sizes[2]).eval()


@pytest.mark.parametrize("changes", [{}, {"cell": "lstm", "bidirectional": False}, {"attention": None}])
@pytest.mark.parametrize("kind", KINDS)
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
    flat, joined = (model_of(kind, sizes=(13, 17, 19)) for kind in KINDS)
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
