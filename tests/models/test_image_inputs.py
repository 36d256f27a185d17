"""Models of a sentence and an image: areas of either against explicit loops, alone as in a batch, step by step, gradients, refusals."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from regard.attention import record_weights
from regard.config import CrossedConfig, RNNConfig, TransformerConfig
from regard.data.vocabulary import EOS
from regard.models import build, split_inputs
from regard.models.image_embedding import ImageEmbedding
from regard.models.rnn_native_step import plan_of
from regard.ops.kernels import native
from tests.models.test_rnn_two_inputs import SMALL as RECURRENT
from tests.models.test_two_inputs import SMALL, close

IMAGE = {"size": 12, "encoder": {"channels": [5, 7]}}  # 3 x 3 cells
CELLS = 9
# Rows with an image, with another and a shorter sentence, and without an image.
ROWS = torch.tensor([[6, 7, 11, EOS, *[4] * CELLS, EOS], [8, EOS, *[5] * CELLS, EOS, 0, 0], [9, 10, 6, EOS, EOS, *[0] * 9]])
LENGTHS = torch.tensor([14, 12, 5])
TARGET = torch.tensor([[2, 6, 7], [2, 5, 9], [2, 2, 4]])
AREA = {"height": 2, "width": 3}
SEPARATE = ("serial", "parallel", "hierarchical", "crossed")
MODES = ({}, {"key_mode": "features"}, {"key_mode": "max", "value_mode": "mean"})


def of_images(config):
    torch.manual_seed(53)
    model = build(config, source_size=13, target_size=13).eval()
    images = torch.randn(2, 3, 12, 12)
    for module in model.modules():
        if isinstance(module, ImageEmbedding):
            module.images = lambda numbers: images[[number - 4 for number in numbers]]
    return model


def transformer(kind, area=AREA, *, runs=None, drop=0.0, **image):
    second = {"kind": kind, "drop": drop, "image": {**IMAGE, "area": None if area is None else {**area, **image}}}
    settings = {**SMALL, "area": runs, "second": second}
    return of_images(CrossedConfig(**settings, swap_probability=0.0) if kind == "crossed" else TransformerConfig(**settings))


def recurrent(kind, area=None, **changes):
    return of_images(RNNConfig(**RECURRENT, second={"kind": kind, "image": {**IMAGE, "area": area}}, **changes))


def runs_of(size, longest):
    return [list(range(start, start + length)) for length in range(1, longest + 1) for start in range(size - length + 1)]


def boxes_of(rows, columns, height, width):
    places = torch.arange(rows * columns).view(rows, columns)
    return [
        places[top : top + h, left : left + w].flatten().tolist()
        for h in range(1, height + 1)
        for w in range(1, width + 1)
        for top in range(rows - h + 1)
        for left in range(columns - w + 1)
    ]


def heads_by_loop(attention, query, states, areas):
    """Attend with one query (E,) to areas of states (S, E): mean keys, summed values, one head after another."""
    contexts = []
    for head in range(attention.num_heads):
        own = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
        asking = attention.query(query)[own]
        keys, values = attention.key(states)[:, own], attention.value(states)[:, own]
        scores = torch.stack([(asking @ keys[area].mean(0)) / attention.head_dim**0.5 for area in areas])
        contexts.append(sum(weight * values[area].sum(0) for weight, area in zip(scores.softmax(0), areas, strict=True)))
    return attention.output(torch.cat(contexts))


def layouts(row):
    """The runs of the sentence of a row and the rectangles of its image; without one, its end alone."""
    inputs = split_inputs(ROWS, LENGTHS)
    boxes = boxes_of(3, 3, 2, 3) if int(inputs.second_lengths[row]) > 1 else [[0]]
    return runs_of(int(inputs.first_lengths[row]), 2), boxes


def test_the_decoder_attends_to_runs_of_the_sentence_and_rectangles_of_the_image_with_their_gradients():
    model = transformer("parallel", runs={"max_area": 2, "layers": 1}, layers=1)
    attention, sources = model.decoder.layers[0].cross_attention, model.encode(ROWS, LENGTHS)
    assert [source.states.shape[1] for source in sources] == [4, CELLS]  # no end behind the cells
    query = torch.randn(3, 2, 10)
    found = attention(query, attention.memories(sources, for_decoding=False), need_weights=True)
    for row in range(3):
        runs, boxes = layouts(row)
        for step in range(2):
            left = heads_by_loop(attention.left, query[row, step], sources[0].states[row], runs)
            right = heads_by_loop(attention.right, query[row, step], sources[1].states[row], boxes)
            close(found.context[row, step], left + right)
            mixed = torch.randn(10)
            states = [source.states for source in sources]
            loop = torch.autograd.grad((left + right) @ mixed, states, retain_graph=True)
            close(torch.autograd.grad(found.context[row, step] @ mixed, states, retain_graph=True), loop)
    close(sum(one.sum(-1) for one in found.weights), 2 * torch.ones(3, 2, 2))
    second = model.decoder.layers[1].cross_attention
    assert (second.left.areas, second.right.areas) == (None, None)


def test_both_streams_of_a_crossed_network_attend_to_areas_of_the_other():
    model = transformer("crossed", runs={"max_area": 2}, layers=1)
    both, states = model.encoder.layers[0].attention, (torch.randn(3, 4, 10), torch.randn(3, CELLS, 10))
    masks = [torch.arange(size) < torch.tensor([[size], [size], [1]]) for size in (4, CELLS)]
    found = both(*states, first_key_mask=masks[0], second_key_mask=masks[1])
    for row, (runs, boxes) in enumerate([(runs_of(4, 2), boxes_of(3, 3, 2, 3))] * 2 + [([[0]], [[0]])]):
        close(found.left.context[row, 0], heads_by_loop(both.left, states[1][row, 0], states[0][row], runs))
        close(found.right.context[row, 0], heads_by_loop(both.right, states[0][row, 0], states[1][row], boxes))
    assert model.encoder.layers[1].attention.right.areas is None
    assert model.encoder.layers[1].attention.left.areas is not None


def test_a_recurrent_decoder_attends_to_rectangles_and_starts_from_the_sentence():
    model = recurrent("parallel", AREA, attention={"area": {"max_area": 2}})
    encoded, attention = model.encode(ROWS, LENGTHS), model.decoder.attention
    inputs = split_inputs(ROWS, LENGTHS)
    first = model.encoder(model.source_embedding(inputs.first), inputs.first_lengths)
    for found, expected in zip(encoded.final, first.final, strict=True):
        close(found[0], expected[0])
    state, query = model.decoder.start(model.bridge(encoded.final), encoded), torch.randn(3, 2, 11)
    context, _ = attention.attend(query, state.memory, position=0, need_weights=True)
    for row in range(3):
        for step in range(2):
            parts = []
            for own, states, areas in zip((attention.left, attention.right), (encoded, encoded.second), layouts(row), strict=True):
                asking, items, score = own.score.query(query[row, step]), states.states[row], own.score
                energies = [torch.tanh(asking + score.key(items[area].mean(0))) @ score.vector for area in areas]
                weights = torch.stack(energies).softmax(0)
                parts.append(sum(weight * items[area].sum(0) for weight, area in zip(weights, areas, strict=True)))
            close(context[row, step], torch.cat(parts))


FAMILIES = {
    **{
        f"{kind} {number}": (transformer, kind, {"runs": {"max_area": 2}, **mode}) for kind in SEPARATE for number, mode in enumerate(MODES)
    },
    "rectangles alone": (transformer, "serial", {}),
    "runs alone": (transformer, "crossed", {"area": None, "runs": {"max_area": 2}}),
    **{f"recurrent {kind}": (recurrent, kind, {}) for kind in ("joined", "flat", "serial", "parallel", "hierarchical")},
    **{f"recurrent {kind} of areas": (recurrent, kind, {"area": {**AREA, **MODES[1]}}) for kind in SEPARATE[:3]},
    "recurrent of heads": (
        recurrent,
        "serial",
        {"area": AREA, "attention": {"score": "scaled_dot", "num_heads": 1, "query_state": "current", "area": {"max_area": 2}}},
    ),
    "recurrent fed": (recurrent, "hierarchical", {"area": AREA, "attention": {"query_state": "current", "input_feeding": True}}),
    "recurrent without attention": (recurrent, "joined", {"attention": None}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_an_example_alone_is_what_it_is_in_a_batch_and_step_by_step(name):
    make, kind, settings = FAMILIES[name]
    model = make(kind, **settings)
    whole = model.decode(ROWS, LENGTHS, TARGET)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model.decode(ROWS[row : row + 1, :length], LENGTHS[row : row + 1], TARGET[row : row + 1])
        close(alone.readout[0], whole.readout[row])
        if whole.weights is not None:
            close(alone.weights[0], whole.weights[row, :, :length])
            assert not whole.weights[row, :, length:].any()
    if whole.weights is not None:
        assert whole.weights.shape == (3, 3, 14)
        close(whole.weights.sum(-1), torch.ones(3, 3))
    with torch.inference_mode():
        state, kept = model.start(ROWS, LENGTHS), torch.tensor([0, 2])
        for step in range(3):
            rows = torch.arange(3) if step == 0 else kept
            readout, weights, state = model.decoder_step(TARGET[rows, step : step + 1], state)
            close(readout[:, 0], whole.readout[rows, step])
            if whole.weights is not None:
                close(weights[:, 0], whole.weights[rows, step, : weights.shape[-1]])
            if step == 0:
                state = state.select(kept, torch.zeros(2, 1, dtype=torch.long))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_part_learns_and_the_image_counts(name):
    make, kind, settings = FAMILIES[name]
    model = make(kind, **settings)
    before = model.decode(ROWS, LENGTHS, TARGET).readout
    swapped = ROWS.clone()
    swapped[ROWS == 4], swapped[ROWS == 5] = 5, 4
    after = model.decode(swapped, LENGTHS, TARGET).readout
    assert (after[:2] - before[:2]).abs().amax((1, 2)).min() > 1e-6
    close(after[2], before[2])
    model.train()
    model(ROWS, LENGTHS, TARGET, TARGET.roll(-1, 1), torch.tensor([3, 3, 3])).loss.backward()
    # A score's key bias, and what is made of embeddings that no row has, may have gradients of zero, but every parameter has one.
    assert [name for name, part in model.named_parameters() if part.grad is None] == []
    assert model.second_embedding.end.grad.abs().max() > 0
    assert model.second_embedding.image_encoder.stages[0][0]["convolution"].weight.grad.abs().max() > 0


@pytest.mark.parametrize("kind", SEPARATE)
def test_a_hidden_image_is_a_missing_one(kind):
    model = transformer(kind, drop=0.999999)
    torch.manual_seed(3)
    # Batch norms are those of evaluation, so that the values are the same.
    model.train()
    model.second_embedding.eval()
    row, length = ROWS[:1], LENGTHS[:1]
    found = {tuple(model.decode(row, length, TARGET[:1]).readout.flatten().tolist()) for _ in range(12)}
    model.eval()
    alone = torch.tensor([[6, 7, 11, EOS, EOS]])
    expected = model.decode(alone, torch.tensor([5]), TARGET[:1]).readout.flatten()
    assert len(found) == 2
    assert min((torch.tensor(values) - expected).abs().max() for values in found) < 1e-5


def test_an_input_with_large_areas_does_not_outweigh_the_other():
    for kind in ("serial", "parallel", "crossed"):
        model = transformer(kind, height=3, width=3)
        weights = model.decode(ROWS, LENGTHS, TARGET).weights
        for row, end in ((0, 4), (1, 2)):
            close(weights[row, :, :end].sum(-1), 0.5 * torch.ones(3))
            assert not weights[row, :, LENGTHS[row] - 1].any()  # the end behind an image is no cell
    model = transformer("hierarchical", height=3, width=3)
    with record_weights() as recorded:
        weights = model.decode(ROWS[:1], LENGTHS[:1], TARGET[:1]).weights
    (shares,) = [each.weights for each in recorded if each.attention is model.decoder.layers[-1].cross_attention.share]
    close(weights[0, :, :4].sum(-1), shares.squeeze(2).mean(1)[:, 0])


def test_maps_have_the_areas_of_their_keys():
    model = transformer("crossed", runs={"max_area": 2}, layers=1)
    maps = {found.name: found for found in model.attention_maps(ROWS[:1], LENGTHS[:1], TARGET[:1], areas=True)}
    left, right = (maps[f"encoder.layers.0.attention.{side}"] for side in ("left", "right"))
    assert (left.query, left.key, left.max_area, left.weights.shape) == ("second", "first", 2, (1, 2, CELLS, 4))
    assert (right.query, right.key, right.max_area, right.weights.shape) == ("first", "second", (2, 3), (1, 2, 4, CELLS))
    assert right.area_weights.shape == (1, 2, 4, len(boxes_of(3, 3, 2, 3)))
    assert maps["decoder.layers.1.cross_attention.right"].area_weights is None
    assert maps["decoder.layers.0.attention"].max_area == 2


def test_a_second_text_may_have_areas_of_its_own():
    settings = {**SMALL, "area": {"max_area": 2}, "second": {"kind": "serial", "area": {"max_area": 3, "layers": 1}}}
    model = build(TransformerConfig(**settings), source_size=13, target_size=13)
    sizes = [(one and one.max_area) for one in (layer.attention.areas for layer in model.encoder.second.layers)]
    assert sizes == [3, None]
    assert [layer.attention.areas.max_area for layer in model.encoder.first.layers] == [2, 2]
    pair = model.decoder.layers[0].cross_attention
    assert (pair.left.areas.max_area, pair.right.areas.max_area) == (2, 3)
    shared = build(TransformerConfig(**{**settings, "second": {"kind": "serial"}}), source_size=13, target_size=13)
    assert shared.decoder.layers[0].cross_attention.right.areas.max_area == 2
    rnn = build(RNNConfig(**RECURRENT, second={"kind": "parallel", "area": {"max_area": 3}}), source_size=13, target_size=13)
    assert (rnn.decoder.attention.left.areas, rnn.decoder.attention.right.areas.max_area) == (None, 3)


def test_a_native_step_needs_one_source():
    assert plan_of(recurrent("serial").decoder) is None
    assert (plan_of(recurrent("flat").decoder) is None) == (native.library() is None)


def test_papers_initialise_no_network_for_images():
    for init in ("luong", "bahdanau"):
        model = recurrent("parallel", init=init)
        for norm in (step["norm"] for stage in model.second_embedding.image_encoder.stages for step in stage):
            assert torch.equal(norm.weight, torch.ones_like(norm.weight))
        assert model.decoder.embedding.weight.abs().max() <= 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: transformer("joined"), "joined and flat mix words and cells"),
        (lambda: transformer("flat", None, runs={"max_area": 2}), "joined and flat mix words and cells"),
        (lambda: recurrent("flat", AREA), "joined and flat mix words and cells"),
        (lambda: recurrent("joined", attention={"area": {"max_area": 2}}), "joined and flat mix words and cells"),
        (lambda: CrossedConfig(second={"image": IMAGE, "area": {"max_area": 2}}), "second.image.area are rectangles of its cells"),
        (lambda: TransformerConfig(second={"kind": "flat", "area": {"max_area": 2}}), "attend to both inputs as one sequence"),
        (lambda: recurrent("flat", attention=None), "attends to the cells, but attention is null"),
        (lambda: recurrent("joined", AREA, attention=None), "second.area: attention is null"),
        (lambda: recurrent("serial", {**AREA, "layers": 1}), "layers\n  Extra inputs are not permitted"),
        (lambda: RNNConfig(second={"kind": "serial", "area": {"layers": 3}}), "layers\n  Extra inputs are not permitted"),
        (lambda: recurrent("serial", attention={"window": "local_m"}), "window local_m: of positions in a sentence"),
        (lambda: recurrent("serial", AREA, attention={"score": "location"}), "a location score has no keys"),
        (lambda: TransformerConfig(second={"image": {"encoder": {"start": "x"}}}), "a captioner alone"),
    ],
)
def test_what_no_model_reads_is_refused_by_name(make, message):
    with pytest.raises(ValidationError, match=message):
        make()
