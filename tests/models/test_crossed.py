"""Crossed co-attention networks: the equations, two inputs of different lengths, corruption; what all share is in test_transformer."""

from __future__ import annotations

import pytest
import torch

from regard.attention import CrossedAttention, MultiHeadAttention
from regard.config import CrossedConfig
from regard.data.batching import collate
from regard.errors import ShapeError
from regard.models import (
    CrossedEncoder,
    CrossedEncoderLayer,
    CrossedSourceAttention,
    Decoder,
    DecoderLayer,
    FeedForward,
    Source,
    build,
    mean_source_weights,
    swap_tokens,
)

SMALL = {"embed_dim": 10, "ff_dim": 11, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
FIRST, SECOND = torch.arange(7) < torch.tensor([[7], [2], [5]]), torch.arange(5) < torch.tensor([[3], [5], [4]])


def layer_of(residual, pre=False):
    torch.manual_seed(37)
    attention = CrossedAttention(MultiHeadAttention(10, 2), MultiHeadAttention(10, 2))
    layer = CrossedEncoderLayer(attention, FeedForward(10, 11), FeedForward(10, 11), pre=pre, dropout=0.0, residual=residual).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


def reader_of():
    torch.manual_seed(41)
    return CrossedSourceAttention(MultiHeadAttention(10, 2), MultiHeadAttention(10, 2), FeedForward(10, 11), FeedForward(10, 11)).double()


def model_of(**changes):
    torch.manual_seed(43)
    return build(CrossedConfig(**(SMALL | changes)), source_size=19, target_size=19).eval()


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_answers_go_to_the_own_stream():
    layer, x1, x2 = layer_of("own"), torch.randn(3, 7, 10).double(), torch.randn(3, 7, 10).double()
    left = layer.left_norm(x1 + layer.attention.left(x2, x1, x1).context)
    right = layer.right_norm(x2 + layer.attention.right(x1, x2, x2).context)
    first, second = layer(x1, x2)
    close(first, layer.left_last_norm(left + layer.left(left)))
    close(second, layer.right_last_norm(right + layer.right(right)))


def test_answers_go_to_who_asked():
    layer, x1, x2 = layer_of("asking"), torch.randn(3, 7, 10).double(), torch.randn(3, 5, 10).double()
    left = layer.left_norm(x2 + layer.attention.left(x2, x1, x1).context)
    right = layer.right_norm(x1 + layer.attention.right(x1, x2, x2).context)
    first, second = layer(x1, x2)
    close(first, layer.right_last_norm(right + layer.right(right)))
    close(second, layer.left_last_norm(left + layer.left(left)))


def test_pre_norm_leaves_a_path_around_every_part():
    layer, x = layer_of("own", pre=True), torch.randn(3, 7, 10).double()
    with torch.no_grad():
        for part in (layer.attention.left, layer.attention.right, layer.left, layer.right):
            part.output.weight.zero_()
            part.output.bias.zero_()
    first, second = layer(x, 2 * x)
    assert torch.equal(first, x)
    assert torch.equal(second, 2 * x)


def test_lengths_that_differ_need_answers_to_who_asked():
    with pytest.raises(ShapeError, match=r"\(3, 7, 10\) and \(3, 5, 10\)"):
        layer_of("own")(torch.zeros(3, 7, 10).double(), torch.zeros(3, 5, 10).double())


def test_a_reader_joins_what_it_finds_in_both_sources():
    cross_attention, query = reader_of(), torch.randn(3, 2, 10).double()
    one, two = torch.randn(3, 7, 10).double(), torch.randn(3, 5, 10).double()
    reading = cross_attention(
        query, cross_attention.memories([Source(one, FIRST), Source(two, SECOND)], for_decoding=False), need_weights=True
    )
    left = cross_attention.left(query, one, one, key_mask=FIRST, need_weights=True)
    right = cross_attention.right(query, two, two, key_mask=SECOND, need_weights=True)
    found = torch.cat([cross_attention.left_feed_forward(left.context), cross_attention.right_feed_forward(right.context)], -1)
    close(reading.context, cross_attention.join(found))
    close(reading.weights[0], left.weights)
    close(reading.weights[1], right.weights)


def test_two_different_inputs_are_read_and_their_padding_is_not():
    encoder = CrossedEncoder([layer_of("asking"), layer_of("asking")])
    layer = DecoderLayer(MultiHeadAttention(10, 2), reader_of(), FeedForward(10, 11), pre=False, dropout=0.0)
    decoder = Decoder([layer], None).double()
    x1, x2, x = torch.randn(3, 7, 10).double(), torch.randn(3, 5, 10).double(), torch.randn(3, 2, 10).double()
    found, weights = decoder(x, encoder(x1, x2, FIRST, SECOND), weights_of=decoder.alignment_layer)
    assert [one.shape for one in weights] == [(3, 2, 2, 7), (3, 2, 2, 5)]
    for row in range(3):
        length1, length2 = int(FIRST[row].sum()), int(SECOND[row].sum())
        alone, _ = decoder(x[row : row + 1], encoder(x1[row : row + 1, :length1], x2[row : row + 1, :length2]))
        close(found[row], alone[0])
    # and step by step
    state = decoder.start(encoder(x1, x2, FIRST, SECOND))
    for t in range(2):
        step, _, state = decoder.step(x[:, t : t + 1], state)
        close(step[:, 0], found[:, t])


def test_shown_weights_are_the_mean_of_both_branches():
    model = model_of()
    batch = collate([[4, 5, 6], [7]], [[8], [9, 10]], (0, 1))
    cross_attentions, seen = model.decoder.layers[-1].cross_attention, []
    cross_attentions.register_forward_hook(lambda module, args, output: seen.append(output.weights))
    shown = model.decode(*batch[:3]).weights
    torch.testing.assert_close(shown, torch.cat(seen[0], 1).mean(1))
    assert torch.equal(shown, mean_source_weights(seen[0]))


def test_branches_see_the_same_sentence_differently_in_training_only():
    model, seen = model_of(swap_probability=1.0), []
    source, lengths = torch.tensor([[4, 5, 6, 7, 8, 9, 10, 3]]), torch.tensor([8])
    embed = model.embed
    model.embed = lambda embedding, tokens, start=0: seen.append(tokens) or embed(embedding, tokens, start)
    model.encode(source, lengths)
    assert torch.equal(seen[0], source)
    assert torch.equal(seen[1], source)
    model.train()
    for _ in range(5):
        model.encode(source, lengths)
    views = torch.cat(seen[2:])
    assert ((views != source).sum(1) == 2).all()  # two tokens of each view have changed places
    assert (views[::2] != views[1::2]).any()
    model.swap_probability = 0.0
    model.encode(source, lengths)
    assert torch.equal(seen[-1], source)


def test_each_branch_has_a_dropout_of_its_own():
    model = model_of(dropout=0.5, swap_probability=0.0).train()
    seen = []
    model.encoder.register_forward_pre_hook(lambda module, args: seen.append(args))
    model.encode(torch.tensor([[4, 5, 6, 3]]), torch.tensor([4]))
    assert not torch.equal(seen[0][0], seen[0][1])


def test_swapping_is_repeated_by_the_seed_and_as_frequent_as_asked():
    torch.manual_seed(47)
    tokens = torch.arange(4, 11).repeat(2000, 1)
    lengths = torch.full((2000,), 5)
    swapped = swap_tokens(tokens, lengths, 0.3)
    torch.manual_seed(47)
    assert torch.equal(swapped, swap_tokens(tokens, lengths, 0.3))
    changed = swapped != tokens
    assert set(changed.sum(1).tolist()) == {0, 2}
    assert 0.27 < changed.any(1).double().mean() < 0.33
    assert not changed[:, 4:].any()  # the end of sentence and padding
    rates = changed[:, :4].double().mean(0)
    assert (rates - 0.15).abs().max() < 0.03  # each of four places is one of the two in half of the swaps
    assert (swapped.sort(1).values == tokens).all()


def test_sentences_without_two_tokens_stay_as_they_are():
    tokens = torch.tensor([[3, 0, 0], [4, 3, 0], [4, 5, 3]])
    for _ in range(7):
        assert swap_tokens(tokens, torch.tensor([1, 2, 3]), 1.0).tolist() == [[3, 0, 0], [4, 3, 0], [5, 4, 3]]
    assert swap_tokens(tokens[:0], torch.tensor([]).long(), 1.0).shape == (0, 3)


def test_parameter_names_are_frozen():
    names = {name for name, _ in model_of(encoder_layers=1, decoder_layers=1, norm="pre").named_parameters()}
    attention = [f"{part}.{kind}" for part in ("query", "key", "value", "output") for kind in ("weight", "bias")]
    feed = [f"{part}.{kind}" for part in ("hidden", "output") for kind in ("weight", "bias")]
    parameters = ("weight", "bias")
    expected = {"source_embedding.weight"}
    expected |= {f"{name}.{kind}" for name in ("encoder.norms.0", "encoder.norms.1", "decoder.norm") for kind in parameters}
    layer, cross_attention = "encoder.layers.0", "decoder.layers.0.cross_attention"
    expected |= {f"{layer}.attention.{side}.{name}" for side in ("left", "right") for name in attention}
    expected |= {f"{layer}.{side}.{name}" for side in ("left", "right") for name in feed}
    expected |= {f"{layer}.{side}_{norm}.{kind}" for side in ("left", "right") for norm in ("norm", "last_norm") for kind in parameters}
    expected |= {f"{cross_attention}.{side}.{name}" for side in ("left", "right") for name in attention}
    expected |= {f"{cross_attention}.{side}_feed_forward.{name}" for side in ("left", "right") for name in feed}
    expected |= {f"{cross_attention}.join.{kind}" for kind in parameters}
    expected |= {f"decoder.layers.0.{part}_norm.{kind}" for part in ("attention", "cross_attention", "feed_forward") for kind in parameters}
    expected |= {f"decoder.layers.0.attention.{name}" for name in attention} | {f"decoder.layers.0.feed_forward.{name}" for name in feed}
    assert names == expected
