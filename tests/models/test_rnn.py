"""Recurrent encoder-decoders: exact padding, step by step equals all at once, cells equal torch's, gradients reach everything."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.attention import HeadMemory, IndexedMemory, MultiHeadAttention
from regard.config import AreaSettings, AttentionConfig, RNNConfig, load_config
from regard.data.batching import collate
from regard.decoding import DecodingOptions, beam_search, greedy_search
from regard.errors import ConfigError
from regard.models import RecurrentCell, RecurrentEncoder, build
from regard.models.rnn_cells import GateInput
from regard.ops.kernels import native
from tests.reference import attention as reference

SOURCE, TARGET = 17, 19
PAIRS = ([[4, 5, 6, 7, 8], [9, 10], [11]], [[4, 5, 6], [7], [8, 9, 10, 11, 12]])
ATTENTIONS = {
    "none": None,
    "bahdanau": AttentionConfig(score="additive", attention_dim=5),
    "luong": AttentionConfig(score="general", query_state="current"),
    "fed": AttentionConfig(score="dot", query_state="current", input_feeding=True),
    "local_m": AttentionConfig(score="concat", query_state="current", window="local_m", radius=1, attention_dim=5),
    "local_p": AttentionConfig(score="cosine", query_state="current", window="local_p", radius=2, input_feeding=True),
    "location": AttentionConfig(score="location", query_state="previous", max_source_length=4),
    "local_p before": AttentionConfig(score="scaled_dot", window="local_p", radius=2),
}
EVERY = [pytest.param(cell, name, id=f"{cell} {name}") for cell, name in itertools.product(["gru", "lstm", "tanh"], ATTENTIONS)]
# One head and several, over items and areas, in every order (Li et al. 2018, 4.1.2).
LATER = {
    "areas": AttentionConfig(score="general", query_state="current", area=AreaSettings(max_area=3)),
    "areas fed": AttentionConfig(
        score="dot", query_state="current", input_feeding=True, area=AreaSettings(max_area=2, key_mode="max", value_mode="mean", top_k=3)
    ),
    "areas before": AttentionConfig(score="additive", attention_dim=5, area=AreaSettings(max_area=2, key_mode="features")),
    "areas local_p": AttentionConfig(score="cosine", query_state="current", window="local_p", radius=2, area=AreaSettings(max_area=2)),
    "heads": AttentionConfig(score="scaled_dot", num_heads=7, query_state="current"),
    "area heads": AttentionConfig(score="scaled_dot", num_heads=2, query_state="current", area=AreaSettings(max_area=2)),
    "area heads learned": AttentionConfig(
        score="scaled_dot", num_heads=2, query_state="current", area=AreaSettings(max_area=2, key_mode="features")
    ),
    "area heads fed": AttentionConfig(
        score="scaled_dot", num_heads=2, query_state="current", input_feeding=True, area=AreaSettings(max_area=3, key_mode="features")
    ),
    "area heads before": AttentionConfig(
        score="scaled_dot", num_heads=1, area=AreaSettings(max_area=2, key_mode="sample_concat", temperature=0.7)
    ),
}
ATTENTIONS |= LATER
EVERY += [pytest.param("lstm", name, id=f"lstm {name}") for name in LATER]


def model_of(cell, name, **changes):
    torch.default_generator.manual_seed(29)
    attention = ATTENTIONS[name]
    decoder_dim = 14 if attention is None or attention.num_heads is None else 28  # heads need not be of the source's size, which is 14
    settings = {"embed_dim": 6, "encoder_dim": 7, "decoder_dim": decoder_dim, "readout_dim": 10, "dropout": 0.0, "decoder_layers": 2}
    config = RNNConfig(cell=cell, attention=attention, **(settings | changes))
    return build(config, source_size=SOURCE, target_size=TARGET).eval()


def batch_of(indices):
    return collate(*PAIRS, indices)


@pytest.mark.parametrize(("cell", "name"), EVERY)
def test_a_padded_batch_gives_what_single_sentences_give(cell, name):
    model = model_of(cell, name)
    batch = batch_of((0, 1, 2))
    together = model.decode(batch.source, batch.source_lengths, batch.target_input)
    total = model(*batch[:5], label_smoothing=0.1)
    parts = []
    for row in range(3):
        one = batch_of((row,))
        alone = model.decode(one.source, one.source_lengths, one.target_input)
        length, width = one.target_input.shape[1], one.source.shape[1]
        torch.testing.assert_close(together.readout[row, :length], alone.readout[0])
        if together.weights is not None:
            torch.testing.assert_close(together.weights[row, :length, :width], alone.weights[0])
            assert (together.weights[row, :, width:] == 0).all()
            if name in LATER:
                torch.testing.assert_close(alone.weights.sum(-1), torch.ones_like(alone.weights[..., 0]))
        parts.append(model(*one[:5], label_smoothing=0.1))
    torch.testing.assert_close(total.loss, torch.stack([part.loss for part in parts]).sum())
    assert total.tokens == sum(int(part.tokens) for part in parts) == 12


@pytest.mark.parametrize(("cell", "name"), EVERY)
def test_step_by_step_gives_what_all_at_once_gives(cell, name):
    model = model_of(cell, name)
    batch = batch_of((0, 1, 2))
    whole = model.decode(batch.source, batch.source_lengths, batch.target_input)
    state = model.start(batch.source, batch.source_lengths)
    for position in range(batch.target_input.shape[1]):
        logits, weights, state = model.step(batch.target_input[:, position : position + 1], state)
        torch.testing.assert_close(logits[:, 0], model.output(whole.readout[:, position]))
        if weights is not None:
            torch.testing.assert_close(weights[:, 0], whole.weights[:, position])
        # As a search would: keep all, continue each with two copies, then go back to one.
        state = state.select(torch.arange(3), torch.zeros(3, 2, dtype=torch.long))
        state = state.select(torch.arange(3), torch.ones(3, 1, dtype=torch.long))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_selecting_sentences_and_hypotheses_follows_them(name):
    model = model_of("lstm", name)
    batch = batch_of((0, 1, 2))
    state = model.start(batch.source, batch.source_lengths).select(torch.arange(3), torch.zeros(3, 2, dtype=torch.long))
    _, _, state = model.step(torch.tensor([[4, 5], [6, 7], [8, 9]]), state)
    kept = state.select(torch.tensor([2, 0]), torch.tensor([[1, 0], [0, 0]]))
    logits, _, _ = model.step(torch.tensor([[3, 4], [5, 6]]), kept)
    for row, (sentence, column, first) in enumerate([(2, 0, 9), (0, 1, 4)]):
        alone = model.start(*batch_of((sentence,))[:2])
        _, _, alone = model.step(torch.tensor([[first]]), alone)
        expected, _, _ = model.step(torch.tensor([[[3, 4], [5, 6]][row][column]]).unsqueeze(0), alone)
        torch.testing.assert_close(logits[row, column], expected[0, 0])


@pytest.mark.parametrize(("cell", "name"), EVERY)
def test_gradients_reach_every_parameter(cell, name):
    model = model_of(cell, name).train()
    model(*batch_of((0, 1, 2))[:5]).loss.backward()
    without = [key for key, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    # A softmax does not see what is the same for all keys; what is left of it by rounding is no matter.
    assert [key for key in without if key != "decoder.attention.key.bias"] == []


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_recurrent_products_give_autograds_gradients(name, monkeypatch):
    from contextlib import nullcontext

    from regard import ops

    found = model_of("gru", name)
    found(*batch_of((0, 1, 2))[:5]).loss.backward()
    monkeypatch.setattr(ops, "recurrent_steps", nullcontext)
    plain = model_of("gru", name)
    plain(*batch_of((0, 1, 2))[:5]).loss.backward()
    for (key, one), other in zip(found.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh"])
def test_a_cell_equals_torchs(cell):
    torch.default_generator.manual_seed(31)
    ours, inputs = RecurrentCell(cell, 5), GateInput(3, cell, 5)
    theirs = {"gru": nn.GRUCell, "lstm": nn.LSTMCell, "tanh": nn.RNNCell}[cell](3, 5)
    with torch.no_grad():
        theirs.weight_ih.copy_(inputs.weight)
        theirs.bias_ih.copy_(inputs.bias)
        theirs.weight_hh.copy_(ours.weight)
        theirs.bias_hh.zero_()
        if ours.bias is not None:
            ours.bias.uniform_(-1, 1)
            theirs.bias_hh[10:] = ours.bias
    x, h, c = torch.randn(7, 3), torch.randn(7, 5), torch.randn(7, 5)
    state = (h, c) if cell == "lstm" else (h,)
    expected = theirs(x, (h, c) if cell == "lstm" else h)
    for one, other in zip(ours(inputs(x), state), expected if cell == "lstm" else (expected,), strict=True):
        torch.testing.assert_close(one, other)


def test_a_gru_step_equals_the_loops():
    torch.default_generator.manual_seed(37)
    cell, inputs = RecurrentCell("gru", 5).double(), GateInput(3, "gru", 5).double()
    with torch.no_grad():
        cell.bias.uniform_(-1, 1)
        inputs.bias.uniform_(-1, 1)
    x, h = torch.randn(3, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    W, b, U, n = (p.detach().numpy() for p in (inputs.weight, inputs.bias, cell.weight, cell.bias))
    expected = reference.gru_step(x.numpy(), h.numpy(), W, U, b, n)
    torch.testing.assert_close(cell(inputs(x[None]), (h[None],))[0][0], torch.tensor(expected))


@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh"])
def test_a_reversed_encoder_reads_each_source_from_its_end_and_keeps_its_order(cell):
    torch.manual_seed(31)
    settings = {"num_layers": 2, "bidirectional": False, "dropout": 0.0}
    forward, backward = RecurrentEncoder(cell, 3, 5, **settings), RecurrentEncoder(cell, 3, 5, **settings, reverse=True)
    backward.load_state_dict(forward.state_dict())
    words, lengths = torch.randn(2, 7, 3), torch.tensor([7, 4])
    flipped = torch.stack([torch.cat([row[:size].flip(0), row[size:]]) for row, size in zip(words, lengths, strict=True)])
    found, expected = backward(words, lengths), forward(flipped, lengths)
    for row, size in enumerate(lengths):
        torch.testing.assert_close(found.states[row, :size], expected.states[row, :size].flip(0))
    for ours, theirs in zip(found.final, expected.final, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_both_directions_are_not_reversed():
    with pytest.raises(ConfigError, match="reverse=True needs bidirectional=False"):
        RecurrentEncoder("gru", 3, 5, num_layers=1, bidirectional=True, dropout=0.0, reverse=True)
    with pytest.raises(ValueError, match="reverse_source needs bidirectional: false"):
        RNNConfig(reverse_source=True)
    assert build(RNNConfig(reverse_source=True, bidirectional=False), source_size=SOURCE, target_size=TARGET).encoder.reverse


@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_encoder_equals_torchs_packed_one(cell, bidirectional):
    torch.default_generator.manual_seed(41)
    ours = RecurrentEncoder(cell, 3, 5, num_layers=2, bidirectional=bidirectional, dropout=0.0)
    kind = {"gru": nn.GRU, "lstm": nn.LSTM, "tanh": nn.RNN}[cell]
    theirs = kind(3, 5, num_layers=2, bidirectional=bidirectional, batch_first=True)
    names = [f"l{layer}{way}" for layer in range(2) for way in (["", "_reverse"] if bidirectional else [""])]
    with torch.no_grad():
        for name, inputs, one in zip(names, ours.inputs, ours.cells, strict=True):
            getattr(theirs, f"weight_ih_{name}").copy_(inputs.weight)
            getattr(theirs, f"bias_ih_{name}").copy_(inputs.bias)
            getattr(theirs, f"weight_hh_{name}").copy_(one.weight)
            getattr(theirs, f"bias_hh_{name}").zero_()
    x, lengths = torch.randn(4, 7, 3), torch.tensor([7, 1, 4, 6])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output, final = theirs(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
    encoded = ours(x, lengths)
    torch.testing.assert_close(encoded.states, expected)
    for index, part in enumerate(final[0] if cell == "lstm" else final):
        torch.testing.assert_close(encoded.final[index][0], part)


def test_the_source_of_a_sentence_is_not_copied_for_its_hypotheses():
    model = model_of("gru", "bahdanau")
    batch = batch_of((0, 1, 2))
    state = model.start(batch.source, batch.source_lengths)
    wide = state.select(torch.arange(3), torch.zeros(3, 5, dtype=torch.long))
    assert wide.memory is state.memory
    assert wide.layers[0][0].shape == (3, 5, 14)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_search_gives_each_sentence_the_same_in_any_batch(name):
    model = model_of("gru", name)

    def search(indices):
        batch = batch_of(indices)
        options = DecodingOptions(bos=2, eos=3, beam_size=3, max_length=7, need_attention=name != "none")
        return beam_search(model.step, model.start(*batch[:2]), batch_size=len(indices), options=options)

    together = search((0, 1, 2))
    for row in (2, 0, 1):
        alone = search((row,))[0][0]
        assert alone.tokens == together[row][0].tokens
        assert abs(alone.score - together[row][0].score) < 1e-5


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_beam_of_one_is_greedy_search(name):
    model, batch = model_of("lstm", name), batch_of((0, 1, 2))
    options = DecodingOptions(bos=2, eos=3, beam_size=1, max_length=7, need_attention=name != "none")
    beam_size, greedy = (
        search(model.step, model.start(*batch[:2]), batch_size=3, options=options) for search in (beam_search, greedy_search)
    )
    for (one,), (other,) in zip(beam_size, greedy, strict=True):
        assert one.tokens == other.tokens
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-6)
        if name != "none":
            torch.testing.assert_close(one.attention, other.attention)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_weights_nobody_asks_for_are_not_returned_and_change_nothing(name):
    model, batch = model_of("gru", name), batch_of((0, 1, 2))
    without = model.decode(*batch[:3], need_weights=False)
    assert without.weights is None
    torch.testing.assert_close(without.readout, model.decode(*batch[:3]).readout)


def test_keys_of_areas_are_made_once_for_all_steps(monkeypatch):
    made = []
    areas_of = MultiHeadAttention.areas_of
    monkeypatch.setattr(MultiHeadAttention, "areas_of", lambda self, memory: made.append(memory.key.shape[2]) or areas_of(self, memory))
    batch = batch_of((0, 1, 2))
    # Whole targets at once need no keys of areas beforehand where nothing waits for the step before; of means none need be made at all.
    for name, whole, steps in (("area heads fed", 1, 1), ("area heads before", 1, 1), ("area heads learned", 0, 1), ("area heads", 0, 0)):
        model = model_of("lstm", name)
        model.decode(*batch[:3])
        assert len(made) == whole
        with torch.no_grad():
            state = model.start(*batch[:2])
            for _ in range(3):
                _, _, state = model.step(torch.full((3, 1), 4), state)
        assert made == [6] * (whole + steps)
        assert isinstance(state.memory, HeadMemory if steps and native.library() is None else IndexedMemory)
        assert state.memory.of_areas == bool(steps)
        made.clear()


@pytest.mark.parametrize("name", ["heads", "area heads"])
def test_a_store_is_for_searches_and_gives_what_training_gives(name):
    model, batch = model_of("lstm", name), batch_of((0, 1, 2))
    with torch.no_grad():
        searching = model.start(*batch[:2])
        expected = model.step(torch.full((3, 1), 4), searching)[0]
    training = model.start(*batch[:2])
    assert [type(state.memory) for state in (searching, training)] == [IndexedMemory, HeadMemory]
    torch.testing.assert_close(model.step(torch.full((3, 1), 4), training)[0], expected)


def test_the_parameters_of_an_lstm_with_heads_and_areas_are_those_counted_by_hand():
    config = load_config(Path(__file__).parents[2] / "configs" / "multi30k_lstm_area.yaml").model
    cells = 4 * (256 * 256 + 256 * 256 + 256)  # four gates: of the input, of the state, a bias
    heads = 4 * (256 * 256 + 256)  # query, key, value, output
    readout = 2 * 256 * (3 * 256 + 1)  # two candidates each, of state, word and context
    total = 2 * 6000 * 256 + 6000 + 2 * cells + 2 * cells + heads + readout  # the output layer is the target table and a bias
    of_areas = 2 * 32 + 32 + 3 * 64 * 64 + 64 * 64  # Eq. 9 for keys of 64: widths, one height, W_mu, W_sigma and W_e, W_d; for all heads
    features = config.attention.model_copy(update={"area": AreaSettings(max_area=2, key_mode="features")})
    for attention, expected in ((config.attention, total), (features, total + of_areas)):
        model = build(config.model_copy(update={"attention": attention}), source_size=6000, target_size=6000)
        assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_training_sees_no_later_target_token():
    model = model_of("gru", "fed")
    batch = batch_of((0, 1, 2))
    changed = batch.target_input.clone()
    changed[:, 3:] = 7
    one = model.decode(batch.source, batch.source_lengths, batch.target_input).readout
    other = model.decode(batch.source, batch.source_lengths, changed).readout
    assert torch.equal(one[:, :3], other[:, :3])
    assert not torch.equal(one[:, 3:], other[:, 3:])


def test_one_direction_of_equal_size_hands_its_states_over():
    model = model_of("lstm", "luong", bidirectional=False, encoder_dim=14, encoder_layers=2)
    assert list(model.bridge.parameters()) == []
    batch = batch_of((0,))
    embedded = model.source_embedding(batch.source)
    encoded = model.encoder(embedded, batch.source_lengths)
    state = model.start(batch.source, batch.source_lengths)
    for layer in range(2):
        for part in range(2):
            assert torch.equal(state.layers[layer][part][:, 0], encoded.final[layer][part])


def test_tied_and_shared_tables_are_one_parameter():
    config = RNNConfig(embed_dim=8, readout_dim=8, decoder_dim=8, encoder_dim=4, tie_embeddings=True, share_embeddings=True)
    model = build(config, source_size=SOURCE, target_size=SOURCE)
    assert model.output.weight is model.source_embedding.weight is model.decoder.embedding.weight


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": AttentionConfig(score="dot"), "decoder_dim": 9}, "decoder_dim is 9.*have 14"),
        ({"attention": ATTENTIONS["heads"], "decoder_dim": 9}, "heads: 7 must divide model.decoder_dim, which is 9"),
        ({"share_embeddings": True}, "17 and 19"),
    ],
)
def test_sizes_that_do_not_fit_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        build(RNNConfig(encoder_dim=7, **changes), source_size=SOURCE, target_size=TARGET)


def test_parameter_names_are_frozen():
    names = sorted(name for name, _ in model_of("gru", "fed").named_parameters())
    assert names == [
        "bridge.hidden.0.bias",
        "bridge.hidden.0.weight",
        "bridge.hidden.1.bias",
        "bridge.hidden.1.weight",
        "decoder.embedding.weight",
        "decoder.readout.linear.bias",
        "decoder.readout.linear.weight",
        "decoder.stack.cells.0.bias",
        "decoder.stack.cells.0.weight",
        "decoder.stack.cells.1.bias",
        "decoder.stack.cells.1.weight",
        "decoder.stack.extra.weight",
        "decoder.stack.inputs.0.bias",
        "decoder.stack.inputs.0.weight",
        "decoder.stack.inputs.1.bias",
        "decoder.stack.inputs.1.weight",
        *(f"encoder.{part}.{i}.{kind}" for part in ("cells", "inputs") for i in (0, 1) for kind in ("bias", "weight")),
        "output.bias",
        "output.weight",
        "source_embedding.weight",
    ]


def test_the_names_of_heads_and_areas_are_frozen():
    names = {name for name, _ in model_of("lstm", "area heads fed").named_parameters() if "attention" in name}
    parts = [f"{part}.{kind}" for part in ("query", "key", "value", "output") for kind in ("weight", "bias")]
    parts += [f"areas.{part}" for part in ("width", "height", "hidden.weight", "output.weight")]
    assert names == {f"decoder.attention.{part}" for part in parts}
