"""Transformers that read two inputs: rows taken apart, what each kind computes, one input hidden or missing, steps as all at once."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from regard import watch
from regard.attention import MultiHeadAttention
from regard.config import CrossedConfig, TransformerConfig
from regard.data.vocabulary import EOS
from regard.errors import RangeError
from regard.models import (
    DecoderLayer,
    FeedForward,
    SerialDecoderLayer,
    Source,
    TwoInputTransformer,
    TwoSourceAttention,
    build,
    split_inputs,
)
from regard.models.input_rows import END, join_rows, join_weights
from regard.models.transformer_native_step import plan_of

SMALL = {"embed_dim": 10, "ff_dim": 11, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
KINDS = ("joined", "serial", "parallel", "flat", "hierarchical", "crossed")
# A row with two inputs of 3 and 4 tokens, one of 2 and 2, and one whose second input is missing.
ROWS = torch.tensor([[4, 5, EOS, 7, 6, 8, EOS], [9, EOS, 10, EOS, 0, 0, 0], [9, 8, 7, EOS, EOS, 0, 0]])
LENGTHS = torch.tensor([7, 4, 5])
TARGET = torch.tensor([[2, 6, 7], [2, 5, 9], [2, 2, 4]])
SOURCES = [Source(torch.randn(3, 7, 10), torch.arange(7) < torch.tensor([[7], [2], [5]])), Source(torch.randn(3, 5, 10), None)]


def model_of(kind, *, sizes=(19, 19, 19), drop=0.0, **changes):
    torch.manual_seed(43)
    settings = SMALL | changes
    if kind == "crossed":
        config = CrossedConfig(**settings, second={"drop": drop})
    else:
        config = TransformerConfig(**settings, second={"kind": kind, "drop": drop})
    return build(config, source_size=sizes[0], second_size=sizes[1], target_size=sizes[2]).eval()


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_end_sign_is_that_of_the_vocabularies():
    assert END == EOS


def test_a_row_is_taken_apart_and_put_together_again():
    inputs = split_inputs(ROWS, LENGTHS)
    assert inputs.first.tolist() == [[4, 5, 3, 0], [9, 3, 0, 0], [9, 8, 7, 3]]
    assert inputs.second.tolist() == [[7, 6, 8, 3], [10, 3, 0, 0], [3, 0, 0, 0]]
    assert (inputs.first_lengths + inputs.second_lengths).tolist() == LENGTHS.tolist()
    lengths = torch.stack([inputs.first_lengths, inputs.second_lengths], 1)
    joined = join_rows(inputs.first.unsqueeze(-1), inputs.second.unsqueeze(-1), lengths).squeeze(-1)
    assert torch.equal(joined * (torch.arange(7) < LENGTHS.unsqueeze(1)), ROWS)
    assert join_weights(torch.ones(3, 2, 4), torch.ones(3, 2, 5), lengths).sum(-1).tolist() == [[7, 7], [4, 4], [5, 5]]


def test_a_row_without_an_end_sign_inside_has_no_second_input():
    inputs = split_inputs(torch.tensor([[4, 5, EOS]]), torch.tensor([3]))
    assert inputs.first.tolist() == [[4, 5, EOS]]
    assert inputs.second_lengths.tolist() == [0]
    assert model_of("serial").decode(torch.tensor([[4, 5, EOS]]), torch.tensor([3]), TARGET[:1]).readout.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_alone_is_what_it_is_in_a_batch_and_weights_have_the_layout_of_its_row(kind):
    model = model_of(kind)
    found = model.decode(ROWS, LENGTHS, TARGET)
    assert found.weights.shape == (3, 3, 7)
    close(found.weights.sum(-1), torch.ones(3, 3))
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model.decode(ROWS[row : row + 1, :length], LENGTHS[row : row + 1], TARGET[row : row + 1])
        close(alone.readout[0], found.readout[row])
        close(alone.weights[0], found.weights[row, :, :length])
        assert not found.weights[row, :, length:].any()


@pytest.mark.parametrize("areas", [None, {"max_area": 2}])
@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step_is_all_at_once_also_when_rows_and_hypotheses_are_chosen(kind, areas):
    model = model_of(kind, area=areas)
    whole = model.decode(ROWS, LENGTHS, TARGET)
    with torch.inference_mode():
        state = model.start(ROWS, LENGTHS)
        kept = torch.tensor([1, 2])
        for step in range(3):
            rows = torch.arange(3) if step == 0 else kept
            readout, weights, state = model.decoder_step(TARGET[rows, step : step + 1], state)
            close(readout[:, 0], whole.readout[rows, step])
            close(weights[:, 0], whole.weights[rows, step, : weights.shape[-1]])
            if step == 0:
                state = state.select(kept, torch.zeros(2, 1, dtype=torch.long))


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_of_both_inputs_is_read_and_nothing_behind_a_row(kind):
    model = model_of(kind)
    before = model.decode(ROWS, LENGTHS, TARGET).readout
    for row, place in ((0, 0), (0, 5), (1, 2)):
        changed = ROWS.clone()
        changed[row, place] = 12
        after = model.decode(changed, LENGTHS, TARGET).readout
        assert (after[row] - before[row]).abs().max() > 1e-4
        others = [other for other in range(3) if other != row]
        close(after[others], before[others])
    changed = ROWS.clone()
    changed[1, 4:] = 12
    close(model.decode(changed, LENGTHS, TARGET).readout, before)


def test_the_order_of_the_inputs_counts():
    swapped = torch.tensor([[7, 6, 8, EOS, 4, 5, EOS]])
    for kind in KINDS:
        model = model_of(kind)
        there, back = (model.decode(rows, LENGTHS[:1], TARGET[:1]).readout for rows in (ROWS[:1], swapped))
        assert (there - back).abs().max() > 1e-4


def test_each_input_may_have_a_vocabulary_and_a_table_of_its_own():
    model = model_of("parallel", sizes=(13, 17, 19), share_embeddings=False)
    assert [table.num_embeddings for table in (model.source_embedding, model.second_embedding, model.target_embedding)] == [13, 17, 19]
    tokens = torch.tensor([[12, EOS, 16, EOS]])
    assert model.decode(tokens, torch.tensor([4]), TARGET[:1]).readout.isfinite().all()
    shared = model_of("parallel")
    assert shared.second_embedding is shared.source_embedding is shared.target_embedding


def test_parallel_adds_and_hierarchical_attends_to_what_both_found():
    torch.manual_seed(5)
    left, right, share = (MultiHeadAttention(10, 2) for _ in range(3))
    query = torch.randn(3, 2, 10)
    first = left(query, SOURCES[0].states, SOURCES[0].states, key_mask=SOURCES[0].mask, need_weights=True)
    second = right(query, SOURCES[1].states, SOURCES[1].states, need_weights=True)
    parallel = TwoSourceAttention(left, right)
    found = parallel(query, parallel.memories(SOURCES, for_decoding=False), need_weights=True)
    close(found.context, first.context + second.context)
    close(found.weights[0], first.weights)
    hierarchical = TwoSourceAttention(left, right, share)
    found = hierarchical(query, hierarchical.memories(SOURCES, for_decoding=False), need_weights=True)
    for row in range(3):
        for step in range(2):
            both = torch.stack([first.context[row, step], second.context[row, step]]).unsqueeze(0)
            own = share(query[row : row + 1, step : step + 1], both, both, need_weights=True)
            close(found.context[row, step], own.context[0, 0])
            close(found.weights[1][row, :, step], second.weights[row, :, step] * own.weights[0, :, 0, 1:])
    close(sum(one.sum(-1) for one in found.weights), torch.ones(3, 2, 2))


@pytest.mark.parametrize("pre", [False, True])
def test_serial_reads_the_second_source_with_what_it_found_in_the_first(pre):
    torch.manual_seed(7)
    both = TwoSourceAttention(MultiHeadAttention(10, 2), MultiHeadAttention(10, 2))
    layer = SerialDecoderLayer(MultiHeadAttention(10, 2), both, FeedForward(10, 11), pre=pre, dropout=0.0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    x = torch.randn(3, 2, 10)
    found, weights = layer(x, both.memories(SOURCES, for_decoding=False), need_weights=True)
    norms = (layer.attention_norm, layer.cross_attention_norm, layer.second_norm, layer.feed_forward_norm)
    parts = (
        lambda q: layer.attention(q, q, q, causal=True).context,
        lambda q: both.left(q, SOURCES[0].states, SOURCES[0].states, key_mask=SOURCES[0].mask).context,
        lambda q: both.right(q, SOURCES[1].states, SOURCES[1].states).context,
        layer.feed_forward,
    )
    for norm, part in zip(norms, parts, strict=True):
        plain = torch.nn.functional.layer_norm
        normed = plain(x, (10,), norm.weight, norm.bias) if pre else x
        x = x + part(normed)
        x = x if pre else plain(x, (10,), norm.weight, norm.bias)
    close(found, x)
    assert [tuple(one.shape) for one in weights] == [(3, 2, 2, 7), (3, 2, 2, 5)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_hidden_input_is_a_missing_one(kind):
    inputs = split_inputs(ROWS, LENGTHS)
    torch.manual_seed(1)
    seen = {"first": 0, "second": 0}
    for _ in range(20):
        hidden = inputs.hidden(1.0)
        assert torch.equal(hidden.first[2], inputs.first[2])  # what lacks one keeps the other
        for row in range(2):
            left = [int(lengths[row]) for lengths in (hidden.first_lengths, hidden.second_lengths)]
            assert left.count(1) == 1
            seen["first" if left[0] == 1 else "second"] += 1
    assert min(seen.values()) > 8
    assert torch.equal(inputs.hidden(0.0).first, inputs.first)
    # Without any other corruption a model that hides in training computes what it computes of the row that is left.
    model = model_of(kind, drop=0.999999, **({"swap_probability": 0.0} if kind == "crossed" else {})).train()
    rows, lengths = ROWS[:1], LENGTHS[:1]
    left = {tuple(model.decode(rows, lengths, TARGET[:1]).readout.flatten().tolist()) for _ in range(12)}
    model.eval()
    expected = [
        model.decode(torch.tensor([tokens]), torch.tensor([len(tokens)]), TARGET[:1]).readout.flatten()
        for tokens in ([4, 5, EOS, EOS], [EOS, 7, 6, 8, EOS])
    ]
    assert len(left) == 2
    for values in left:
        assert min((torch.tensor(values) - one).abs().max() for one in expected) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_maps_name_the_input_that_is_read(kind):
    maps = model_of(kind).attention_maps(ROWS[:1], LENGTHS[:1], TARGET[:1])
    sides = {(found.kind, found.query, found.key) for found in maps}
    widths = {"source": 7, "first": 3, "second": 4, "target": 3, "inputs": 2}
    for found in maps:
        heads = 1 if found.name.endswith("cross_attention") else 2  # contributions have none
        assert found.weights.shape == (1, heads, widths[found.query], widths[found.key])
        close(found.weights.sum(-1), torch.ones(found.weights.shape[:3]))
    own = {("self", "first", "first"), ("self", "second", "second")}
    both = {("cross", "target", "first"), ("cross", "target", "second"), ("cross", "target", "inputs")}
    assert (
        sides
        == {("self", "target", "target")}
        | {
            "joined": {("self", "source", "source"), ("cross", "target", "source")},
            "flat": own | {("cross", "target", "source")},
            "serial": own | both,
            "parallel": own | both,
            "hierarchical": own | both,
            "crossed": both | {("co-attention", "first", "second"), ("co-attention", "second", "first")},
        }[kind]
    )


@pytest.mark.parametrize("kind", ["serial", "parallel", "crossed"])
def test_contributions_are_shares_of_the_norms_of_what_is_added(kind):
    model = model_of(kind, norm="pre")
    taken = []
    layer = model.decoder.layers[1]
    pair = layer.cross_attention
    if kind == "crossed":
        # Each half of the joining matrix, without the other and without the bias, gives what one input adds.
        pair.join.register_forward_hook(lambda join, given, _: taken.append(given[0]))
    else:
        for attention in (pair.left, pair.right):
            attention.output.register_forward_hook(lambda _, given, found: taken.append(found))
    maps = model.attention_maps(ROWS, LENGTHS, TARGET)
    (found,) = [each for each in maps if each.name == "decoder.layers.1.cross_attention"]
    assert (found.kind, found.query, found.key, found.layer) == ("cross", "target", "inputs", 1)
    if kind == "crossed":
        weight = pair.join.weight
        added = [taken[0][..., :10] @ weight[:, :10].T, taken[0][..., 10:] @ weight[:, 10:].T]
    else:
        added = [taken[0], taken[-1]] if len(taken) == 2 else [taken[0], taken[len(taken) // 2]]
    norms = [one.square().sum(-1).sqrt() for one in added]
    close(found.weights[:, 0], torch.stack([one / sum(norms) for one in norms], -1))


def test_watch_records_attentions_and_no_contributions():
    model = model_of("crossed")
    with watch(model, heads=[1]) as found:
        model.decode(ROWS, LENGTHS, TARGET)
    assert len(found.calls) == 10  # of each of two layers: two of the encoder, three of the decoder
    assert all(call.weights.shape[1] == 1 for call in found.calls)
    assert not any(call.layer.endswith("cross_attention") for call in found.calls)


@pytest.mark.parametrize("kind", KINDS)
def test_the_native_step_takes_one_source_only(kind):
    layers = list(model_of(kind).decoder.layers)
    one = kind in ("joined", "flat")
    assert all(type(layer) is (SerialDecoderLayer if kind == "serial" else DecoderLayer) for layer in layers)
    if not one:
        assert plan_of(layers, None, 0) is None


def test_two_inputs_answer_to_who_asked():
    assert CrossedConfig(second={}).residual == "asking"
    assert CrossedConfig().residual == "own"
    with pytest.raises(ValidationError, match="residual: own needs two inputs of one length"):
        CrossedConfig(second={}, residual="own")
    assert isinstance(model_of("crossed"), TwoInputTransformer)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_outside_the_row_are_refused_and_no_rows_give_none(kind):
    model = model_of(kind)
    for lengths in (torch.tensor([8, 4, 5]), torch.tensor([-1, 4, 5])):
        with pytest.raises(RangeError, match=r"split_inputs: lengths\[0\]"):
            model.decode(ROWS, lengths, TARGET)
    found = model.decode(ROWS[:0], LENGTHS[:0], TARGET[:0])
    assert found.readout.shape == (0, 3, 10)
    assert len(found.weights) == 0
