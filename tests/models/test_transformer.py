"""Transformers, with and without areas: published sizes, torch's layers, exact padding, step by step equals all at once."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from regard.attention import Areas, MultiHeadAttention
from regard.config import AreaConfig, CrossedConfig, TransformerConfig
from regard.data.batching import collate
from regard.decoding import DecodingOptions, beam_search
from regard.errors import ConfigError
from regard.models import Decoder, DecoderLayer, EncoderLayer, FeedForward, Source, SourceAttention, build, sinusoidal_positions
from regard.models.cross_attention import cache_source, cross_attend
from regard.ops.kernels import indexed_cpu, native

VOCABULARY = 19
PAIRS = ([[4, 5, 6, 7, 8, 9, 4], [9, 10], [11, 4, 5]], [[4, 5, 6, 11, 6, 7], [7], [8, 9, 10, 11]])
AREAS = {
    "regular": None,
    "area mean": AreaConfig(max_area=3),
    "area features": AreaConfig(max_area=3, key_mode="features"),
    "area max of max": AreaConfig(max_area=4, layers=9, key_mode="max", value_mode="max"),
    "best areas": AreaConfig(max_area=2, layers=1, top_k=3, temperature=0.7),
    "areas of one": AreaConfig(max_area=1, key_mode="sample_concat"),
}
KINDS = [
    *(
        pytest.param(TransformerConfig, {"area": area, "norm": norm}, id=f"{name} {norm}")
        for name, area in AREAS.items()
        for norm in ("post", "pre")
    ),
    pytest.param(CrossedConfig, {}, id="crossed post"),
    pytest.param(CrossedConfig, {"norm": "pre", "area": AREAS["area features"], "residual": "asking"}, id="crossed area features pre"),
]
SMALL = {"embed_dim": 10, "ff_dim": 11, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 3, "dropout": 0.0}


def model_of(kind=TransformerConfig, changes=None, *, dtype=torch.float64, size=VOCABULARY):
    torch.manual_seed(29)
    model = build(kind(**(SMALL | (changes or {}))), source_size=size, target_size=size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))  # biases and norms that change something
    return model.to(dtype)


def batch_of(indices):
    return collate(*PAIRS, indices)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


# The numbers of parameters that Li et al. 2019 print for fairseq's Transformer and for their network, one shared vocabulary each.
@pytest.mark.parametrize(
    ("kind", "size", "vocabulary", "total"),
    [
        (TransformerConfig, "base", 33_644, 61_364_224),
        (CrossedConfig, "base", 33_644, 114_928_640),
        (TransformerConfig, "base", 22_940, 55_883_776),
        (CrossedConfig, "base", 22_940, 109_448_192),
        (TransformerConfig, "big", 33_644, 210_808_832),
        (CrossedConfig, "big", 33_644, 424_892_416),
        (TransformerConfig, "big", 22_940, 199_847_936),
        (CrossedConfig, "big", 22_940, 413_931_520),
    ],
)
def test_the_published_numbers_of_parameters_come_out(kind, size, vocabulary, total):
    dims = {"base": (512, 2048, 8), "big": (1024, 4096, 16)}[size]
    config = kind(**dict(zip(("embed_dim", "ff_dim", "num_heads"), dims, strict=True)), encoder_layers=6, decoder_layers=6)
    with torch.device("meta"):
        model = build(config, source_size=vocabulary, target_size=vocabulary)
    assert sum(parameter.numel() for parameter in model.parameters()) == total


def test_basic_areas_add_no_parameters_and_eq_9_adds_its_own():
    counts = [
        sum(p.numel() for p in model_of(changes={"area": area}).parameters())
        for area in (None, AreaConfig(max_area=3), AreaConfig(max_area=3, key_mode="features"))
    ]
    # D = 5: width 3 x 3, height 1 x 2, hidden 15 x 5, output 5 x 5; in two layers, once in the encoder and twice in the decoder
    assert counts[1:] == [counts[0], counts[0] + 6 * (9 + 2 + 75 + 25)]


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_a_padded_batch_gives_what_single_sentences_give(kind, changes):
    model = model_of(kind, changes)
    batch = batch_of((0, 1, 2))
    together = model.decode(batch.source, batch.source_lengths, batch.target_input)
    total = model(*batch[:5], label_smoothing=0.1)
    parts = []
    for row in range(3):
        one = batch_of((row,))
        alone = model.decode(one.source, one.source_lengths, one.target_input)
        length, width = one.target_input.shape[1], one.source.shape[1]
        close(together.readout[row, :length], alone.readout[0])
        close(together.weights[row, :length, :width], alone.weights[0])
        assert (together.weights[row, :, width:] == 0).all()
        close(alone.weights.sum(-1), torch.ones_like(alone.weights[..., 0]))
        parts.append(model(*one[:5], label_smoothing=0.1))
    close(total.loss, torch.stack([part.loss for part in parts]).sum())
    assert total.tokens == sum(int(part.tokens) for part in parts) == 14


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_step_by_step_gives_what_all_at_once_gives(kind, changes):
    model = model_of(kind, changes)
    batch = batch_of((0, 1, 2))
    whole = model.decode(batch.source, batch.source_lengths, batch.target_input)
    state = model.start(batch.source, batch.source_lengths)
    for position in range(batch.target_input.shape[1]):
        logits, weights, state = model.step(batch.target_input[:, position : position + 1], state)
        close(logits[:, 0], model.output(whole.readout[:, position]))
        close(weights[:, 0], whole.weights[:, position])
        # As a search would: keep all, continue each with two copies, then go back to one.
        state = state.select(torch.arange(3), torch.zeros(3, 2, dtype=torch.long))
        state = state.select(torch.arange(3), torch.ones(3, 1, dtype=torch.long))


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_selecting_sentences_and_hypotheses_follows_them(kind, changes):
    model = model_of(kind, changes)
    state = model.start(*batch_of((0, 1, 2))[:2]).select(torch.arange(3), torch.zeros(3, 2, dtype=torch.long))
    _, _, state = model.step(torch.tensor([[4, 5], [6, 7], [8, 9]]), state)
    _, _, state = model.step(torch.tensor([[6, 7], [8, 9], [10, 11]]), state)
    kept = state.select(torch.tensor([2, 0]), torch.tensor([[1, 0, 1], [0, 0, 1]]))
    logits, weights, _ = model.step(torch.tensor([[3, 4, 5], [5, 6, 7]]), kept)
    histories = {(0, 0): (2, [9, 11, 3]), (0, 1): (2, [8, 10, 4]), (0, 2): (2, [9, 11, 5])}
    histories |= {(1, 0): (0, [4, 6, 5]), (1, 1): (0, [4, 6, 6]), (1, 2): (0, [5, 7, 7])}
    for (row, column), (sentence, tokens) in histories.items():
        source, lengths = batch_of((sentence,))[:2]
        alone = model.decode(source, lengths, torch.tensor([tokens]))
        close(logits[row, column], model.output(alone.readout[0, -1]))
        close(weights[row, column, : source.shape[1]], alone.weights[0, -1])


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_a_search_gives_each_sentence_the_same_in_any_batch(kind, changes):
    model = model_of(kind, changes)

    def search(indices):
        options = DecodingOptions(bos=2, eos=3, beam_size=3, max_length=7, need_attention=True)
        return beam_search(model.step, model.start(*batch_of(indices)[:2]), batch_size=len(indices), options=options)

    together = search((0, 1, 2))
    for row in (2, 0, 1):
        alone = search((row,))[0][0]
        assert alone.tokens == together[row][0].tokens
        assert abs(alone.score - together[row][0].score) < 1e-5  # the search adds up in float32


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_training_sees_no_later_target_token(kind, changes):
    model = model_of(kind, changes)
    batch = batch_of((0, 1, 2))
    changed = batch.target_input.clone()
    changed[:, 3:] = 7
    one = model.decode(batch.source, batch.source_lengths, batch.target_input).readout
    other = model.decode(batch.source, batch.source_lengths, changed).readout
    close(one[:, :3], other[:, :3])
    assert not torch.allclose(one[:, 3:], other[:, 3:])


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_gradients_reach_every_parameter(kind, changes):
    model = model_of(kind, changes).train()
    model(*batch_of((0, 1, 2))[:5]).loss.backward()
    without = [key for key, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    # A softmax does not see what is the same for all keys.
    assert [key for key in without if not key.endswith("key.bias")] == []


def test_the_source_of_a_sentence_is_not_copied_for_its_hypotheses():
    model = model_of()
    state = model.start(*batch_of((0, 1, 2))[:2])
    wide = state.select(torch.arange(3), torch.zeros(3, 5, dtype=torch.long))
    assert wide.memories is state.memories
    assert wide.beams == 5
    _, weights, wide = model.step(torch.full((3, 5), 4), wide)
    assert weights.shape == (3, 5, 8)
    assert wide.caches[0].key.shape == (15, 2, 5)


def test_a_state_that_is_continued_twice_gives_the_same_both_times():
    model = model_of()
    start = model.start(*batch_of((0, 1, 2))[:2])
    _, _, first = model.step(torch.full((3, 1), 4), start)
    left, _, one = model.step(torch.full((3, 1), 5), first)
    model.step(torch.full((3, 1), 6), first)
    again, _, two = model.step(torch.full((3, 1), 5), first)
    assert torch.equal(left, again)
    for state in (one, two):  # what was written behind the one has not harmed the other
        assert torch.equal(model.step(torch.full((3, 1), 7), state)[0], model.step(torch.full((3, 1), 7), one)[0])


def test_reordering_hypotheses_moves_no_key():
    model = model_of()
    state = model.start(*batch_of((0, 1, 2))[:2]).select(torch.arange(3), torch.zeros(3, 2, dtype=torch.long))
    _, _, state = model.step(torch.tensor([[4, 5], [6, 7], [8, 4]]), state)
    turned = state.select(torch.tensor([0, 2]), torch.tensor([[1, 0], [1, 1]]))
    assert turned.caches[0] is state.caches[0]
    assert turned.places.tolist() == [[1], [0], [5], [5]]


@pytest.mark.parametrize("key_mode", ["sample_concat", "max"])
def test_keys_of_areas_are_made_once_in_decoding(key_mode, monkeypatch):
    model = model_of(changes={"area": AreaConfig(max_area=3, key_mode=key_mode)})
    state = model.start(*batch_of((0, 1, 2))[:2])
    sizes, keys = [], Areas.keys

    def counted(self, key, **options):
        made = keys(self, key, **options)
        sizes.append((key.shape[2], made.shape[2]))
        return made

    monkeypatch.setattr(Areas, "keys", counted)
    for _ in range(5):
        _, _, state = model.step(torch.full((3, 1), 4), state)
    # Two layers with areas: each looks at the last three tokens, makes the areas that end at the newest and no other, and
    # never looks at the source again.
    assert sizes == [(count, count) for count in (1, 1, 2, 2, 3, 3, 3, 3, 3, 3)]
    assert state.caches[0].areas.key.shape == (5 * 3 * 3, 2, 5)


def test_areas_of_means_are_never_made_in_decoding(monkeypatch):
    model = model_of(changes={"area": AreaConfig(max_area=3)})
    monkeypatch.setattr(Areas, "keys", lambda self, key: pytest.fail("keys of areas"))
    monkeypatch.setattr(Areas, "values", lambda self, value: pytest.fail("values of areas"))
    with torch.no_grad():
        state = model.start(*batch_of((0, 1, 2))[:2])
        for _ in range(5):
            _, _, state = model.step(torch.full((3, 1), 4), state)
    assert state.caches[0].key.shape == (5 * 3, 2, 5)


@pytest.mark.skipif(native.library() is None, reason="no native library")
def test_areas_step_by_step_are_those_of_all_at_once_in_native_code(monkeypatch):
    calls, attend = [], indexed_cpu.attend
    monkeypatch.setattr(indexed_cpu, "attend", lambda *parts, **options: calls.append(1) or attend(*parts, **options))
    model = model_of(changes={"area": AREAS["area features"]}, dtype=torch.float32)
    batch = batch_of((0, 1, 2))
    with torch.inference_mode():
        whole = model.output(model.decode(batch.source, batch.source_lengths, batch.target_input).readout)
        state = model.start(batch.source, batch.source_lengths).select(torch.arange(3), torch.zeros(3, 4, dtype=torch.long))
        for position in range(batch.target_input.shape[1]):
            token = batch.target_input[:, position : position + 1].repeat(1, 4)
            token[:, 1] = 5  # a hypothesis that goes its own way, and is dropped
            logits, _, state = model.step(token, state)
            torch.testing.assert_close(logits[:, 3], whole[:, position], rtol=1e-5, atol=1e-5)
            state = state.select(torch.arange(3), torch.tensor([[2, 3, 0, 3]]).repeat(3, 1))
    assert len(calls) == 6 * batch.target_input.shape[1]  # three layers look back and at the source, with areas and without


def test_a_past_has_no_areas_of_a_grid():
    attention = MultiHeadAttention(6, 2, areas=Areas((2, 2), grid=(2, 3)))
    layer = DecoderLayer(attention, SourceAttention(MultiHeadAttention(6, 2)), FeedForward(6, 7), pre=False, dropout=0.0)
    decoder = Decoder([layer], None)
    with pytest.raises(ConfigError, match=r"areas of the grid \(2, 3\)"):
        decoder.step(torch.ones(1, 1, 6), decoder.start([Source(torch.ones(1, 2, 6), None)]))


def test_shown_weights_are_those_of_the_layer_asked_for():
    batch = batch_of((0, 1, 2))
    shown = {}
    for layer in (None, 1, 2, 3):
        shown[layer] = model_of(changes={"alignment_layer": layer}).decode(*batch[:3]).weights
    assert torch.equal(shown[None], shown[3])
    assert not torch.allclose(shown[1], shown[2])
    model = model_of()
    layer = model.decoder.layers[2].cross_attention.attention
    (source,) = model.encode(*batch[:2])
    seen = []
    attend = layer.attend
    layer.attend = lambda query, memory, **options: seen.append(query) or attend(query, memory, **options)
    model.decode(*batch[:3])
    expected = layer(seen[0], source.states, source.states, key_mask=source.mask, need_weights=True).weights.mean(1)
    close(shown[3], expected)


def test_no_weights_are_computed_where_none_are_asked_for():
    model = model_of()
    asked = []
    for layer in model.decoder.layers:
        attention = layer.cross_attention.attention
        attend = attention.attend
        attention.attend = lambda *args, attend=attend, **options: asked.append(options["need_weights"]) or attend(*args, **options)
    model(*batch_of((0, 1))[:5])
    assert asked == [False, False, False]
    assert model.decode(*batch_of((0, 1))[:3], need_weights=False).weights is None
    assert model.decode(*batch_of((0, 1))[:3]).weights is not None
    assert asked[-3:] == [False, False, True]


def copy_attention(ours, theirs):
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for part, weight, bias in zip((ours.query, ours.key, ours.value), weights, biases, strict=True):
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    copy_linear(ours.output, theirs.out_proj)


def copy_linear(ours, theirs):
    ours.weight.copy_(theirs.weight)
    ours.bias.copy_(theirs.bias)


def torchs_layer(kind, pre):
    torch.manual_seed(31)
    theirs = kind(10, 2, dim_feedforward=11, dropout=0.0, batch_first=True, norm_first=pre, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return theirs


@pytest.mark.parametrize("pre", [False, True])
def test_an_encoder_layer_equals_torchs(pre):
    theirs = torchs_layer(nn.TransformerEncoderLayer, pre)
    ours = EncoderLayer(MultiHeadAttention(10, 2), FeedForward(10, 11), pre=pre, dropout=0.0).double()
    with torch.no_grad():
        copy_attention(ours.attention, theirs.self_attn)
        pairs = [(ours.attention_norm, theirs.norm1), (ours.feed_forward_norm, theirs.norm2)]
        for one, other in [*pairs, (ours.feed_forward.hidden, theirs.linear1), (ours.feed_forward.output, theirs.linear2)]:
            copy_linear(one, other)
    x, mask = torch.randn(3, 7, 10, dtype=torch.float64), torch.arange(7) < torch.tensor([[7], [2], [5]])
    found, expected = ours(x, mask), theirs(x, src_key_padding_mask=~mask)
    close(found[mask], expected[mask])


@pytest.mark.parametrize("pre", [False, True])
def test_a_decoder_layer_equals_torchs(pre):
    theirs = torchs_layer(nn.TransformerDecoderLayer, pre)
    ours = DecoderLayer(
        MultiHeadAttention(10, 2), SourceAttention(MultiHeadAttention(10, 2)), FeedForward(10, 11), pre=pre, dropout=0.0
    ).double()
    with torch.no_grad():
        copy_attention(ours.attention, theirs.self_attn)
        copy_attention(ours.cross_attention.attention, theirs.multihead_attn)
        pairs = [(ours.attention_norm, theirs.norm1), (ours.cross_attention_norm, theirs.norm2), (ours.feed_forward_norm, theirs.norm3)]
        for one, other in [*pairs, (ours.feed_forward.hidden, theirs.linear1), (ours.feed_forward.output, theirs.linear2)]:
            copy_linear(one, other)
    source, x = torch.randn(3, 7, 10, dtype=torch.float64), torch.randn(3, 5, 10, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor([[7], [2], [5]])
    later = torch.ones(5, 5).triu(1).bool()
    found, _ = Decoder([ours], None)(x, [Source(source, mask)])
    close(found, theirs(x, source, tgt_mask=later, memory_key_padding_mask=~mask))


def test_positions_are_those_of_the_paper_at_any_length():
    found = sinusoidal_positions(torch.tensor([0, 7, 100_003]), 5, dtype=torch.float64)
    for row, position in enumerate((0, 7, 100_003)):
        for i in range(5):
            angle = position / 10_000 ** (2 * (i // 2) / 5)
            assert found[row, i].item() == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle), abs=1e-9)
    assert sinusoidal_positions(torch.tensor([3]), 5, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_a_transformer_starts_as_published():
    model = model_of(size=500, changes={"embed_dim": 64, "ff_dim": 96, "num_heads": 4})
    assert 0.95 < model.target_embedding.weight.std() * 8 < 1.05
    layer = build(TransformerConfig(embed_dim=64, ff_dim=96), source_size=7, target_size=7).encoder.layers[0]
    for part, bound in [(layer.feed_forward.hidden, 6 / 160), (layer.attention.query, 3 / 128), (layer.attention.output, 6 / 128)]:
        largest = part.weight.abs().max().item()
        assert 0.97 * bound**0.5 < largest <= bound**0.5
        assert not part.bias.any()


@pytest.mark.parametrize(("share", "tie", "tables"), [(True, True, 1), (True, False, 2), (False, True, 2), (False, False, 3)])
def test_tables_are_shared_as_asked(share, tie, tables):
    model = build(TransformerConfig(share_embeddings=share, tie_embeddings=tie), source_size=17, target_size=17)
    found = {id(model.source_embedding.weight), id(model.target_embedding.weight), id(model.output.weight)}
    assert len(found) == tables
    assert model.output.bias is None


def test_sources_and_targets_can_have_vocabularies_of_their_own():
    model = build(TransformerConfig(share_embeddings=False), source_size=17, target_size=13)
    assert (model.source_embedding.num_embeddings, model.output.out_features) == (17, 13)
    with pytest.raises(ConfigError, match="17 and 13"):
        build(TransformerConfig(), source_size=17, target_size=13)


@pytest.mark.parametrize("part", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("kind", [TransformerConfig, CrossedConfig])
def test_a_dropout_changes_training_and_nothing_else(part, kind):
    batch = batch_of((0, 1))
    model = model_of(kind, {part: 0.5, **({} if kind is TransformerConfig else {"swap_probability": 0.0})})
    plain = model.decode(*batch[:3]).readout
    assert torch.equal(plain, model.decode(*batch[:3]).readout)
    close(plain, model_of(kind).decode(*batch[:3]).readout)
    model.train()
    assert not torch.allclose(plain, model.decode(*batch[:3]).readout)


def test_a_forward_pass_is_one_graph():
    model = model_of(changes={"area": AreaConfig(max_area=3, key_mode="features")}, dtype=torch.float32)
    batch = batch_of((0, 1, 2))
    compiled = torch.compile(lambda *args: model.decode(*args, need_weights=False).readout, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*batch[:3]), model.decode(*batch[:3]).readout)


def test_parameter_names_are_frozen():
    names = {name for name, _ in model_of(changes={"norm": "pre", "encoder_layers": 1, "decoder_layers": 1}).named_parameters()}
    attention = [f"{part}.{kind}" for part in ("query", "key", "value", "output") for kind in ("weight", "bias")]
    feed = [f"{part}.{kind}" for part in ("hidden", "output") for kind in ("weight", "bias")]
    norms = {"encoder.layers.0": ("attention", "feed_forward"), "decoder.layers.0": ("attention", "cross_attention", "feed_forward")}
    expected = {"source_embedding.weight", *(f"{side}.norm.{kind}" for side in ("encoder", "decoder") for kind in ("weight", "bias"))}
    for layer, parts in norms.items():
        expected |= {f"{layer}.{part}_norm.{kind}" for part in parts for kind in ("weight", "bias")}
        expected |= {f"{layer}.attention.{name}" for name in attention} | {f"{layer}.feed_forward.{name}" for name in feed}
    expected |= {f"decoder.layers.0.cross_attention.attention.{name}" for name in attention}
    assert names == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embed_dim": 10, "num_heads": 3}, r"embed_dim \(10\) must be a multiple of num_heads \(3\)"),
        ({"alignment_layer": 4}, r"alignment_layer \(4\) must be one of the decoder_layers \(3\)"),
    ],
)
def test_sizes_that_do_not_fit_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**(SMALL | changes))


@torch.no_grad()
def test_rows_of_one_source_attend_to_it_whatever_its_memory():
    attention, source, query = MultiHeadAttention(6, 2), Source(torch.randn(3, 5, 6), None), torch.randn(6, 7, 6)
    found = [
        cross_attend(attention, query, cache_source(attention, source, for_decoding=decoding), need_weights=True)
        for decoding in (False, True)
    ]
    torch.testing.assert_close(found[0].context, found[1].context)
    torch.testing.assert_close(found[0].weights, found[1].weights)
