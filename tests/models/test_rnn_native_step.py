"""A recurrent decoder's step by the native library: the same as in PyTorch, whoever is in the batch; and what it does not do."""

from __future__ import annotations

import pytest
import torch

from regard import ops
from regard.attention import record_weights
from regard.config import RNNConfig
from regard.decoding import DecodingOptions, beam_search, greedy_search
from regard.errors import RangeError
from regard.models import build
from regard.models.rnn_native_step import PackedState, plan_of, plan_of_cell
from regard.ops.kernels import native
from regard.ops.kernels.panels import Affine
from regard.ops.kernels.recurrent_cpu import RecurrentPlan
from regard.ops.kernels.vocabulary_cpu import OutputPlan, RunningTotals

needs_library = pytest.mark.skipif(native.library() is None, reason="the native library is not built")
VOCABULARY = 83
WAYS = {
    "additive, first, deep": {"score": "additive", "query_state": "previous"},
    "additive, last, fed": {"score": "additive", "query_state": "current", "input_feeding": True},
    "general, last, fed": {"score": "general", "query_state": "current", "input_feeding": True},
    "concat, last": {"score": "concat", "query_state": "current", "input_feeding": False},
    "dot, last, fed": {"score": "dot", "query_state": "current", "input_feeding": True},
}


@pytest.fixture(params=range(len(native.TARGETS)), ids=native.TARGETS)
def target(request):
    library = native.library()
    best = library.regard_target()
    if request.param > best:
        pytest.skip(f"this processor has no {native.TARGETS[request.param]}")
    library.regard_limit(request.param)
    yield request.param
    library.regard_limit(best)


def model_of(way="additive, last, fed", **changes):
    torch.manual_seed(7)
    readout = "deep" if "deep" in way else "tanh"
    settings = {"embed_dim": 7, "encoder_dim": 9, "decoder_dim": 18, "readout": readout, "readout_dim": 13, "dropout": 0.1}
    attention = {"attention_dim": 11, **WAYS[way], **changes.pop("attention", {})}
    model = build(RNNConfig(**{**settings, "attention": attention, **changes}), source_size=19, target_size=VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def sources(count):
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, 12, (count,), generator=generator)
    lengths[0] = 11
    return torch.randint(4, 19, (count, 11), generator=generator), lengths


def walk(model, count, *, beam_size=5, steps=5):
    """Take a few steps as a search would: hypotheses are reordered and doubled, and sentences leave."""
    found, left = [], count
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        state = model.start(*sources(count)).select(torch.arange(count), torch.zeros(count, beam_size, dtype=torch.long))
        for step in range(steps):
            tokens = torch.randint(VOCABULARY, (left, beam_size), generator=generator)
            logits, weights, state = model.step(tokens, state)
            found.append((logits, weights))
            keep = torch.arange(left)
            if step == 2 and left > 2:
                keep = keep[1:]
            state, left = state.select(keep, torch.randint(beam_size, (len(keep), beam_size), generator=generator)), len(keep)
    return found


def assert_same(found, expected):
    for (logits, weights), (right, shares) in zip(found, expected, strict=True):
        torch.testing.assert_close(logits, right, rtol=1e-4, atol=3e-5)
        torch.testing.assert_close(weights, shares, rtol=1e-4, atol=1e-5)


@needs_library
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("way", WAYS)
def test_it_equals_the_step_in_pytorch(way, cell, target, monkeypatch):
    calls = []
    step = RecurrentPlan.step
    monkeypatch.setattr(RecurrentPlan, "step", lambda self, *given: calls.append(1) or step(self, *given))
    for layers, count, beam_size in ((1, 1, 1), (2, 3, 5), (1, 67, 5)):  # 335 rows: two tasks
        model = model_of(way, cell=cell, encoder_layers=layers, decoder_layers=layers)
        expected = walk(model, count, beam_size=beam_size)
        assert not calls
        with ops.packed_weights():
            found = walk(model, count, beam_size=beam_size)
        assert len(calls) == len(found)
        assert_same(found, expected)
        calls.clear()


@needs_library
@pytest.mark.parametrize("init", ["bahdanau", "luong"])
def test_words_that_are_not_multiplied_are_not_multiplied_here_either(init, target):
    model = model_of(init=init)  # of the papers, whose models look embeddings up as they are
    expected = walk(model, 3)
    with ops.packed_weights():
        assert_same(walk(model, 3), expected)


@needs_library
@pytest.mark.parametrize("way", WAYS)
def test_words_met_before_give_the_same_bits_as_new_ones(way, target):
    model = model_of(way)
    with torch.no_grad(), ops.packed_weights():
        start = model.start(*sources(2)).select(torch.arange(2), torch.zeros(2, 5, dtype=torch.long))
        new, _, _ = model.decoder_step(torch.tensor([[5, 7, 11, 13, 5], [17, 19, 23, 5, 7]]), start)
        mixed, _, _ = model.decoder_step(torch.tensor([[5, 29, 31, 13, 37], [17, 41, 5, 5, 7]]), start)
        again, _, _ = model.decoder_step(torch.tensor([[5, 7, 11, 13, 5], [17, 19, 23, 5, 7]]), start)
    assert torch.equal(again, new)
    same = torch.tensor([[True, False, False, True, False], [True, False, False, True, True]])
    assert torch.equal(mixed[same], new[same])
    assert not torch.equal(mixed, new)


@needs_library
def test_a_product_finds_its_weight_in_memory_of_any_size():
    for outputs, inputs in ((5, 3), (521, 509), (1031, 509)):  # the last two in huge pages, where there are such
        plan = OutputPlan(Affine(torch.eye(outputs, inputs), None))
        _, places = plan.best(torch.eye(inputs), 1, torch.tensor([], dtype=torch.long), instead=0, least=-9.0)
        assert places.squeeze(1).tolist() == list(range(inputs))


@needs_library
def test_a_sentence_is_not_changed_by_the_others(target):
    # The steps alone: a batch's sources are projected by a library that rounds by the size of the batch.
    model = model_of()
    tokens = torch.arange(43 * 5).view(43, 5) % VOCABULARY
    with torch.no_grad(), ops.packed_weights():
        start = model.start(*sources(43)).select(torch.arange(43), torch.zeros(43, 5, dtype=torch.long))
        _, _, state = model.decoder_step(tokens, start)
        together, weights, _ = model.decoder_step(tokens.flip(1), state)
        best, _ = OutputPlan(Affine(model.output.weight, model.output.bias)).best(together, 6, torch.tensor([0]), instead=3, least=-1e9)
        for row in range(43):
            own = state.select(torch.tensor([row]), torch.arange(5).unsqueeze(0))
            alone, shares, _ = model.decoder_step(tokens.flip(1)[row : row + 1], own)
            assert torch.equal(alone[0], together[row])
            assert torch.equal(shares[0], weights[row])
            mine, _ = OutputPlan(Affine(model.output.weight, model.output.bias)).best(alone, 6, torch.tensor([0]), instead=3, least=-1e9)
            assert torch.equal(mine[0], best[row])


@needs_library
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_matter(threads):
    model = model_of()
    model.logits = lambda readout: readout
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            with ops.packed_weights():
                found.append([part for part, _ in walk(model, 23)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(*found, strict=True))


@needs_library
@pytest.mark.parametrize("way", ["additive, last, fed", "additive, first, deep"])
def test_searches_find_the_same(way, target):
    model = model_of(way)
    options = DecodingOptions(bos=2, eos=3, beam_size=5, n_best=5, max_length=9, banned=(0, 2), need_attention=True)
    for search in (beam_search, greedy_search):
        expected = search(model.step, model.start(*sources(13)), batch_size=13, options=options)
        with torch.no_grad(), ops.packed_weights():
            found = search(model.decoding_step, model.start(*sources(13)), batch_size=13, options=options)
        for mine, right in zip(found, expected, strict=True):
            assert [one.tokens for one in mine] == [one.tokens for one in right]
            for one, other in zip(mine, right, strict=True):
                assert one.score == pytest.approx(other.score, rel=1e-5, abs=1e-5)
                torch.testing.assert_close(one.attention, other.attention, rtol=1e-4, atol=1e-5)


@needs_library
@pytest.mark.parametrize("count", [1, 6, 64, VOCABULARY])
@pytest.mark.parametrize("size", [VOCABULARY, 1031])
def test_the_best_outputs_are_those_of_the_logits(count, size, target):
    torch.manual_seed(count)
    output, hidden, forbidden = ops.Linear(13, size), 3 * torch.randn(7, 5, 13), torch.tensor([0, 2])
    with torch.no_grad():
        log_probs, places = OutputPlan(Affine(output.weight, output.bias)).best(hidden, count, forbidden, instead=3, least=-1e9)
        expected = torch.sort(output(hidden).log_softmax(-1).index_fill(-1, forbidden, -torch.inf), dim=-1, descending=True, stable=True)
    torch.testing.assert_close(log_probs, expected.values[..., :count], rtol=1e-5, atol=1e-5)
    left = min(count, size - len(forbidden))
    assert torch.equal(places[..., :left], expected.indices[..., :left])


@needs_library
def test_what_is_impossible_or_no_number_is_told(target):
    output = ops.Linear(3, 67)
    hidden = torch.ones(4, 3)
    with torch.no_grad():
        output.bias[:] = -torch.inf
        output.bias[3] = 0.0
        hidden[1, 0] = torch.nan
        plan = OutputPlan(Affine(output.weight, output.bias))
        log_probs, places = plan.best(hidden, 2, torch.tensor([3]), instead=3, least=-1e9)
    assert log_probs[1].isnan().any()
    assert places[0].tolist()[0] == 3
    assert log_probs[0].tolist() == [0.0, -torch.inf]


def what_matters(totals, log_probs, places, *, need):
    """Return what a beam search takes notice of: the continuations (K, C) of a sentence down to the last of those that go on."""
    taken = []
    sums, order = torch.sort((totals[:, None] + log_probs).flatten(), descending=True, stable=True)
    for total, place in zip(sums.tolist(), order.tolist(), strict=True):
        taken.append((total, place, places.flatten()[place].item()))
        need -= taken[-1][2] != 3
        if not need:
            break
    return taken


@needs_library
@pytest.mark.parametrize("spread", [0.5, 20.0])
def test_what_cannot_matter_is_left_out_and_nothing_else(spread, target):
    torch.manual_seed(5)
    output, hidden = ops.Linear(13, VOCABULARY), torch.randn(37, 5, 13)
    totals = -spread * torch.rand(37, 5).sort(-1).values
    plan = OutputPlan(Affine(output.weight, output.bias))
    whole = plan.best(hidden, 6, torch.tensor([0]), instead=3, least=-1e9)
    part = plan.best(hidden, 6, torch.tensor([0]), instead=3, least=-1e9, sums=RunningTotals(totals, 5))
    assert (part[0] == -1e9).all(-1).any() == (spread > 1)
    for row in range(37):
        expected = what_matters(totals[row], whole[0][row], whole[1][row], need=5)
        assert what_matters(totals[row], part[0][row], part[1][row], need=5) == expected


@needs_library
@pytest.mark.parametrize(
    "changes",
    [
        {"cell": "tanh"},
        {"attention": {"score": "location", "max_source_length": 11}},
        {"attention": {"window": "local_m", "radius": 2}},
    ],
    ids=["tanh", "location", "window"],
)
def test_what_it_does_not_do_is_done_in_pytorch(changes):
    model = model_of(**changes)
    assert plan_of(model.decoder) is None
    expected = walk(model, 3)
    with ops.packed_weights():
        assert_same(walk(model, 3), expected)


def test_there_is_no_plan_in_training_in_double_precision_or_without_the_library(monkeypatch):
    assert plan_of(model_of().train().decoder) is None
    assert plan_of(model_of().double().decoder) is None
    assert plan_of_cell(model_of().double().encoder.cells[0]) is None
    assert (plan_of(model_of().decoder) is None) == (native.library() is None)
    monkeypatch.setenv("REGARD_KERNELS", "torch")
    assert plan_of(model_of().decoder) is None
    assert plan_of_cell(model_of().encoder.cells[0]) is None


@needs_library
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_who_leaves_the_block_or_watches_goes_on_in_pytorch(cell):
    model = model_of(cell=cell)
    tokens, chosen = torch.full((3, 2), 4), (torch.tensor([0, 2]), torch.tensor([[1, 0], [1, 1]]))
    with torch.no_grad():
        plain = model.start(*sources(3)).select(torch.arange(3), torch.zeros(3, 2, dtype=torch.long))
        with ops.packed_weights():
            packed = model.start(*sources(3)).select(torch.arange(3), torch.zeros(3, 2, dtype=torch.long))
            _, _, packed = model.step(tokens, packed)
            assert isinstance(packed, PackedState)
            with record_weights() as recorded:
                model.step(tokens, packed)
            assert len(recorded) == 1
        _, _, plain = model.step(tokens, plain)
        expected, weights, _ = model.step(tokens[:2], plain.select(*chosen))
        found, shares, _ = model.step(tokens[:2], packed.select(*chosen))
    assert_same([(found, shares)], [(expected, weights)])


@needs_library
def test_a_token_outside_the_vocabulary_is_refused():
    model = model_of()
    with torch.no_grad(), ops.packed_weights(), pytest.raises(RangeError, match=f"tokens.* is {VOCABULARY}; allowed"):
        model.step(torch.full((3, 1), VOCABULARY), model.start(*sources(3)))
