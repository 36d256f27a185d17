from __future__ import annotations

import ast
import inspect
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.decoding import DecodingOptions, beam_search, greedy_search
from regard.decoding.options import BatchedOptions
from regard.errors import ConfigError, RegardError, ShapeError
from tests.decoding.history import BOS, EOS, HistoryStep, Read, exhaustive, read_alone, same, score_of

SENTENCES = 7
SOURCES = (5, 2, 3, 7, 1)
OPTIONS = DecodingOptions(bos=BOS, eos=EOS, max_length=4)

CASES: dict[str, dict[str, Any]] = {
    "plain": {"length_penalty": 0.0},
    "some length penalty": {"length_penalty": 0.6},
    "strong length penalty": {"length_penalty": 3.0},
    "coverage": {"coverage_penalty": 0.7},
    "min length": {"min_length": 2},
    "min length = max length": {"min_length": 4, "length_penalty": 0.0},
    "bigrams": {"no_repeat_ngram_size": 2},
    "single tokens": {"no_repeat_ngram_size": 1},
    "banned": {"banned": (BOS, 2)},
    "prefix": {"prefix": [[1], None, [2, 2], [1, 0, 2], [2, 1, 1, 0], [], [0]]},
    "all but EOS banned": {"banned": (0, 1, 2), "min_length": 1},
    "everything": {
        "coverage_penalty": 0.3,
        "min_length": 1,
        "no_repeat_ngram_size": 2,
        "banned": (0,),
        "prefix": [[1], None, [2, 2], [1, 1, 2], None, [2], None],
    },
}


def searched(step: HistoryStep, options: DecodingOptions, sentences: list[int] | None = None) -> list[list[Any]]:
    """Search the sentences, with the entries of the options that belong to them."""
    sentences = list(range(SENTENCES)) if sentences is None else sentences
    sources = [step.source_lengths[i % len(step.source_lengths)] for i in sentences]
    prefix = None if options.prefix is None else [options.prefix[i] for i in sentences]
    limits = options.max_length if isinstance(options.max_length, int) else [options.max_length[i] for i in sentences]
    options = replace(options, source_lengths=sources, prefix=prefix, max_length=limits)
    return beam_search(step, step.start(sentences), batch_size=len(sentences), options=options)


def options_of(case: str, **changes: Any) -> DecodingOptions:
    return replace(OPTIONS, **{"source_lengths": [1] * SENTENCES, **CASES[case], **changes})


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("patience", [1.0, math.inf])
def test_a_wide_beam_finds_what_exhaustive_search_finds(case: str, patience: float) -> None:
    options = options_of(case, beam_size=128, n_best=11, patience=patience)
    step = HistoryStep(seed=5, source_lengths=SOURCES)
    for sentence, found in enumerate(searched(step, options)):
        expected = exhaustive(step, sentence, options)
        assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens in expected]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in expected], rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_beam_of_one_is_greedy_search(case: str) -> None:
    options = options_of(case, beam_size=1, max_length=11, need_attention=True, source_lengths=[SOURCES[i % 5] for i in range(SENTENCES)])
    step = HistoryStep(seed=3, source_lengths=SOURCES)
    greedy = greedy_search(step, step.start(range(SENTENCES)), batch_size=SENTENCES, options=options)
    for [one], [other] in zip(searched(step, options), greedy, strict=True):
        assert same(one, other)


@pytest.mark.parametrize("case", CASES)
def test_scores_log_probabilities_and_attention_are_those_of_the_tokens_read_alone(case: str) -> None:
    options = options_of(case, beam_size=5, n_best=5, max_length=13, need_attention=True)
    step = HistoryStep(seed=2, source_lengths=SOURCES, end_bonus=-2.0)
    for sentence, found in enumerate(searched(step, options)):
        for tokens, score, log_probs, attention in found:
            expected, weights = read_alone(step, sentence, tokens[:-1])
            assert log_probs == pytest.approx(expected[range(len(tokens)), tokens].tolist(), abs=1e-5)
            assert score == pytest.approx(score_of(step, sentence, tokens, options), rel=1e-5)
            assert attention.dtype == torch.float32
            torch.testing.assert_close(attention[:, : weights.size(1)], weights.float())
            assert not attention[:, weights.size(1) :].any()


@pytest.mark.parametrize("case", CASES)
def test_a_result_does_not_depend_on_the_batch_its_order_or_its_padding(case: str) -> None:
    options = options_of(case, beam_size=3, n_best=3, max_length=[11, 5, 4, 7, 4, 13, 2], need_attention=True)
    step = HistoryStep(seed=1, source_lengths=SOURCES, end_bonus=-1.0)
    together = searched(step, options)
    order = [4, 0, 6, 2, 5, 1, 3]
    for sentence, found in [
        *zip(order, searched(step, options, order), strict=True),
        *((i, searched(step, options, [i])[0]) for i in order),
    ]:
        assert len(found) == len(together[sentence])
        assert all(same(one, other) for one, other in zip(found, together[sentence], strict=True))


def test_stopping_early_loses_nothing_in_hundreds_of_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    many = list(range(331))
    for alpha, beta, n_best, patience in [(0.0, 0.0, 1, math.inf), (1.0, 0.0, 2, 1.0), (1.0, 0.4, 1, 3.0), (0.6, 0.0, 3, math.inf)]:
        options = replace(
            OPTIONS,
            beam_size=3,
            n_best=n_best,
            max_length=9,
            length_penalty=alpha,
            coverage_penalty=beta,
            patience=patience,
            source_lengths=[1],
        )
        step, patient = (HistoryStep(seed=7, vocabulary=5, source_lengths=SOURCES, end_bonus=1.0) for _ in range(2))
        early = searched(step, options, many)
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["regard.decoding.beam_search"].beam_cpu, "supports", lambda log_probs: False)
            patch.setattr(
                sys.modules["regard.decoding.beam_search"], "cannot_improve", lambda worst, best_total, ceiling: best_total == -torch.inf
            )
            late = searched(patient, options, many)
        assert early == late
        assert sum(rows for rows, _ in step.shapes) < sum(rows for rows, _ in patient.shapes)


def test_patience_ends_a_sentence_after_as_many_hypotheses() -> None:
    table = torch.zeros(4, 4)
    table[:, 3] = 1.0  # EOS is always the best, and of three hypotheses each ends at every step but the first

    class Nothing:
        def select(self, rows: Tensor, beams: Tensor) -> Nothing:
            return self

    def steps(patience: float) -> int:
        calls = []

        def step(tokens: Tensor, state: Nothing) -> tuple[Tensor, None, Nothing]:
            calls.append(tokens)
            return table[tokens], None, state

        options = replace(OPTIONS, beam_size=3, max_length=17, length_penalty=9.0, patience=patience)
        beam_search(step, Nothing(), batch_size=1, options=options)
        return len(calls)

    assert [steps(0.1), steps(1.0), steps(2.0), steps(math.inf)] == [1, 2, 3, 17]


def test_sentences_leave_the_batch_when_they_are_done() -> None:
    class Countdown(Read):
        def select(self, rows: Tensor, beams: Tensor) -> Countdown:
            return Countdown(self.sentences[rows], self.tokens[rows[:, None], beams])

    shapes = []

    def step(tokens: Tensor, state: Countdown) -> tuple[Tensor, None, Countdown]:
        shapes.append(tuple(tokens.shape))
        logits = torch.zeros(*tokens.shape, 4)
        ends = state.sentences.eq(state.tokens.size(2))  # sentence i has i tokens before EOS
        logits[..., 3] = torch.where(ends, 50.0, -50.0)[:, None]
        return logits, None, Countdown(state.sentences, torch.cat([state.tokens, tokens[..., None]], -1))

    sentences = torch.tensor([3, 0, 1, 5])
    options = replace(OPTIONS, beam_size=2, max_length=30, length_penalty=0.0)
    found = beam_search(step, Countdown(sentences, torch.zeros(4, 1, 0, dtype=torch.long)), batch_size=4, options=options)
    assert [len(best.tokens) for [best] in found] == [4, 1, 2, 6]
    assert shapes == [(4, 1), (3, 2), (2, 2), (2, 2), (1, 2), (1, 2)]


def test_the_state_is_not_selected_when_nothing_moved() -> None:
    class Still(Read):
        def select(self, rows: Tensor, beams: Tensor) -> Still:
            raise AssertionError("selected")

    step = HistoryStep(end_bonus=-9.0)
    start = step.start([0, 1])
    options = replace(OPTIONS, beam_size=1, max_length=5)
    found = beam_search(step, Still(start.sentences, start.tokens), batch_size=2, options=options)
    assert [len(best.tokens) for [best] in found] == [5, 5]


def test_n_best_are_different_and_sorted() -> None:
    step = HistoryStep(seed=4, vocabulary=11)
    for found in searched(step, replace(OPTIONS, beam_size=7, n_best=7, max_length=5)):
        assert len(found) == 7 == len({tuple(hypothesis.tokens) for hypothesis in found})
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


def test_what_reaches_max_length_ends_without_eos() -> None:
    step = HistoryStep(end_bonus=-50.0)
    for [best] in searched(step, replace(OPTIONS, max_length=6)):
        assert len(best.tokens) == 6
        assert EOS not in best.tokens


def test_max_length_zero_gives_the_empty_hypothesis_and_one_gives_one_token() -> None:
    step = HistoryStep(seed=6)
    found = searched(step, replace(OPTIONS, max_length=[0, 1, 0, 1, 3, 0, 1], need_attention=True))
    assert [len(best.tokens) for [best] in found[:4]] == [0, 1, 0, 1]
    empty = found[0][0]
    assert (empty.tokens, empty.score, empty.log_probs, tuple(empty.attention.shape)) == ([], 0.0, [], (0, 5))
    assert step.shapes[0] == (4, 1)
    calls = len(step.shapes)
    assert [hypothesis.tokens for [hypothesis] in searched(step, replace(OPTIONS, max_length=0))] == [[]] * SENTENCES
    assert len(step.shapes) == calls


def test_a_batch_of_no_sentences_asks_the_model_nothing() -> None:
    step = HistoryStep()
    assert searched(step, replace(OPTIONS, prefix=[]), []) == []
    assert step.shapes == []


def test_equal_scores_go_to_the_lower_beam_and_token() -> None:
    class Flat(HistoryStep):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.logits.zero_()

    found = searched(Flat(vocabulary=200), replace(OPTIONS, beam_size=3, n_best=3, max_length=2, min_length=2))
    assert [[h.tokens for h in one] for one in found] == [[[0, 0], [0, 1], [0, 2]]] * SENTENCES


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_distribution_are_an_error_that_names_the_step(bad: float) -> None:
    step = HistoryStep(end_bonus=-9.0)

    def broken(tokens: Tensor, state: Read) -> tuple[Tensor, Tensor | None, Read]:
        logits, attention, state = step(tokens, state)
        if state.tokens.size(2) == 3:
            logits[state.sentences == 4, -1, 1] = bad
        return logits, attention, state

    for search in (beam_search, greedy_search):
        with pytest.raises(RegardError, match="step 3: the logits of sentence 4 "):
            search(broken, step.start(range(5)), batch_size=5, options=replace(OPTIONS, max_length=9))


def test_blocking_ngrams_blocks_them() -> None:
    step = HistoryStep(seed=8, vocabulary=5, end_bonus=-9.0)

    def repeats(tokens: list[int], size: int) -> int:
        ngrams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
        return len(ngrams) - len(set(ngrams))

    free, blocked = (searched(step, replace(OPTIONS, n_best=5, max_length=19, no_repeat_ngram_size=size)) for size in (0, 3))
    assert sum(repeats(h.tokens, 3) for found in free for h in found) > 0
    assert sum(repeats(h.tokens, 3) for found in blocked for h in found) == 0
    assert {len(h.tokens) for found in blocked for h in found} == {19}


def test_where_nothing_is_left_the_hypothesis_ends() -> None:
    step = HistoryStep()
    for [best] in searched(step, replace(OPTIONS, max_length=9, min_length=9, no_repeat_ngram_size=1)):
        assert sorted(best.tokens) == [0, 1, 2, EOS]  # the three others once each; then EOS, long before min_length
    for [best] in searched(step, replace(OPTIONS, banned=(0, 1, 2, EOS))):
        assert best.tokens == [EOS]


def test_an_impossible_forced_token_is_forced_all_the_same() -> None:
    step = HistoryStep()
    step.logits[:, 2] = -torch.inf
    for [best] in searched(step, replace(OPTIONS, prefix=[[2, 1]] * SENTENCES)):
        assert best.tokens[:2] == [2, 1]
        assert math.isfinite(best.score)


def test_attention_is_left_out_unless_asked_for_and_where_there_is_none() -> None:
    step = HistoryStep()
    assert all(best.attention is None for [best] in searched(step, OPTIONS))

    def without(tokens: Tensor, state: Read) -> tuple[Tensor, None, Read]:
        logits, _, state = step(tokens, state)
        return logits, None, state

    [[best]] = beam_search(without, step.start([0]), batch_size=1, options=replace(OPTIONS, need_attention=True))
    assert best.attention is None
    with pytest.raises(ConfigError, match="coverage_penalty needs a model with attention"):
        beam_search(without, step.start([0]), batch_size=1, options=replace(OPTIONS, coverage_penalty=0.1, source_lengths=[5]))


def test_half_precision_logits_are_ranked_in_float32() -> None:
    step = HistoryStep(seed=9, vocabulary=31)

    def half(tokens: Tensor, state: Read) -> tuple[Tensor, Tensor | None, Read]:
        logits, attention, state = step(tokens, state)
        return logits.bfloat16(), None if attention is None else attention.bfloat16(), state

    options = replace(OPTIONS, coverage_penalty=0.2, source_lengths=[5, 5], need_attention=True)
    for [best] in beam_search(half, step.start([0, 1]), batch_size=2, options=options):
        assert best.attention is not None
        assert best.attention.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beam_size": 0}, "beam_size must be at least 1, found 0"),
        ({"beam_size": 2.5}, "beam_size: expected a whole number, found 2.5"),
        ({"beam_size": torch.tensor(2.5)}, "beam_size: expected a whole number, found tensor"),
        ({"max_length": [3, np.float64(2)]}, "max_length: expected a whole number, found np.float64"),
        ({"length_penalty": 300.0, "max_length": 200}, "length_penalty 300.0: too large for 200 tokens"),
        ({"bos": "x"}, "bos: expected a whole number, found 'x'"),
        ({"length_penalty": "a"}, "length_penalty: expected a number, found 'a'"),
        ({"patience": None}, "patience: expected a number, found None"),
        ({"banned": 3}, "banned: expected whole numbers, found 3"),
        ({"prefix": 3}, "prefix: expected whole numbers, found 3"),
        ({"prefix": ["ab"]}, "prefix: expected whole numbers, found 'ab'"),
        ({"prefix": [None, [1.5]]}, "prefix: expected a whole number, found 1.5"),
        ({"source_lengths": {3: 4}}, "source_lengths: expected whole numbers, found {3: 4}"),
        ({"n_best": 6}, r"n_best must be 1 to beam_size \(5\), found 6"),
        ({"max_length": [3, -1]}, "max_length must be at least 0, found -1"),
        ({"length_penalty": -0.5}, "length_penalty must be at least 0, found -0.5"),
        ({"length_penalty": math.nan}, "length_penalty must be at least 0, found nan"),
        ({"banned": (-2,)}, "banned must be at least 0, found -2"),
        ({"patience": 0}, "patience must be greater than 0, found 0"),
        ({"coverage_penalty": 0.1}, "coverage_penalty needs source_lengths"),
    ],
)
def test_options_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(OPTIONS, **change)


def test_options_take_arrays_and_tensors() -> None:
    given = replace(OPTIONS, prefix=torch.tensor([[1, 2], [0, 1]]), banned=np.array([0]), source_lengths=torch.tensor([3, 4]))
    assert (given.prefix, given.banned, given.source_lengths) == ([[1, 2], [0, 1]], (0,), [3, 4])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"max_length": [3]}, ShapeError, "max_length has 1 entries, but the batch has 2 sentences"),
        ({"prefix": [None] * 3}, ShapeError, "prefix has 3 entries, but the batch has 2 sentences"),
        ({"source_lengths": [1]}, ShapeError, "source_lengths has 1 entries, but the batch has 2 sentences"),
        ({"prefix": [None, [1, EOS]]}, ConfigError, "prefix of sentence 1 holds EOS"),
        ({"prefix": [[1] * 5, None]}, ConfigError, "prefix of sentence 0 has 5 tokens, but its max_length is 4"),
        ({"prefix": [[17], None]}, ConfigError, "token 17 of the search options is outside the vocabulary of 4"),
        ({"banned": (4,)}, ConfigError, "token 4 of the search options is outside the vocabulary of 4"),
    ],
)
def test_options_that_do_not_fit_the_batch_are_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    step = HistoryStep()
    with pytest.raises(error, match=message):
        beam_search(step, step.start([0, 1]), batch_size=2, options=replace(OPTIONS, **change))


def test_a_step_that_returns_other_shapes_is_refused() -> None:
    step = HistoryStep()
    with pytest.raises(ShapeError, match=r"logits have shape \(2, 4\), expected \(2, 1, V\)"):
        beam_search(lambda tokens, state: (torch.zeros(2, 4), None, state), step.start([0, 1]), batch_size=2, options=OPTIONS)
    with pytest.raises(ShapeError, match=r"attention have shape \(2, 3, 5\), expected \(2, 1, S\)"):
        beam_search(
            lambda tokens, state: (torch.zeros(2, 1, 4), torch.zeros(2, 3, 5), state), step.start([0, 1]), batch_size=2, options=OPTIONS
        )


def test_the_beam_loop_fits_one_screen() -> None:
    [function] = ast.parse(inspect.getsource(inspect.unwrap(beam_search))).body
    assert isinstance(function, ast.FunctionDef)
    assert function.end_lineno is not None
    assert function.end_lineno - function.body[1].lineno + 1 <= 45


@pytest.mark.parametrize("lengths", [5, np.int64(5), torch.tensor(5), [5, 6], np.array([5, 6]), torch.tensor([5, 6])])
def test_numbers_of_other_libraries_are_whole_numbers(lengths: Any) -> None:
    options = DecodingOptions(bos=2, eos=3, beam_size=np.int64(4), max_length=lengths)
    assert BatchedOptions.build(options, 2, "cpu").limits == ([5, 5] if options.max_length == 5 else [5, 6])
    assert type(options.beam_size) is int
