"""Forced phrases: what a wide beam finds is the best of all that hold them, and a narrow one holds them too."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regard.decoding import DecodingOptions, ForcedPhrases, Hypothesis, Phrase, SamplingOptions, beam_search, greedy_search, sample
from regard.errors import ConfigError, RangeError, ShapeError
from regard.ops.kernels import beam_cpu, native
from tests.decoding.history import BOS, EOS, HistoryStep, every_hypothesis, same, score_of

SOURCES = (5, 2, 3, 7, 1)
# For each sentence; two that overlap, one that begins like itself, one twice as long as another, none at all.
PHRASES = [
    [Phrase([1])],
    [Phrase([1, 2]), Phrase([2, 0])],
    [Phrase([2, 2, 1])],
    [],
    [Phrase([0, 1]), Phrase([0])],
    [Phrase([1, 1], first=[[2], [0, 2]])],
    [Phrase([2]), Phrase([1]), Phrase([0])],
]
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "length penalty": {"length_penalty": 0.6},
    "a word that must end": {"follow": [False, True, True, True]},
    "prefix": {"prefix": [[2], None, [2, 2], [1], [1, 0], [0, 2], [0]]},
    "other rules": {"coverage_penalty": 0.3, "min_length": 3, "prefix": [[1], None, [2], [1, 1, 2], None, [2], None]},
}
# Phrases are exempt from this rule, which an exhaustive search would have to know.
BLOCKING = {"no_repeat_ngram_size": 1}


def options_of(case: str, **changes: Any) -> DecodingOptions:
    settings = {
        "bos": BOS,
        "eos": EOS,
        "max_length": 5,
        "length_penalty": 0.0,
        "source_lengths": [1] * 7,
        **CASES.get(case, BLOCKING),
        **changes,
    }
    return DecodingOptions(phrases=ForcedPhrases(PHRASES, settings.pop("follow", None)), **settings)


def searched(step: HistoryStep, options: DecodingOptions, sentences: list[int] | None = None) -> list[list[Hypothesis]]:
    sentences = [*range(7)] if sentences is None else sentences
    assert options.phrases is not None
    own = {
        "phrases": ForcedPhrases([PHRASES[i] for i in sentences], options.phrases.follow),
        "prefix": None if options.prefix is None else [options.prefix[i] for i in sentences],
        "source_lengths": [SOURCES[i % 5] for i in sentences],
    }
    options = DecodingOptions(**{**{name: getattr(options, name) for name in DecodingOptions.__dataclass_fields__}, **own})
    return beam_search(step, step.start(sentences), batch_size=len(sentences), options=options)


def holds(tokens: tuple[int, ...], phrase: Phrase, follow: list[bool] | None) -> bool:
    """Say whether a phrase comes in tokens, written without `Phrase.within`."""
    for start in range(len(tokens)):
        for row in [phrase.tokens, *(phrase.first if start == 0 else ())]:
            end = start + len(row)
            if list(tokens[start:end]) == list(row) and (follow is None or end == len(tokens) or follow[tokens[end]]):
                return True
    return False


@pytest.mark.parametrize("case", CASES)
def test_a_wide_beam_finds_the_best_of_all_that_hold_the_phrases(case: str) -> None:
    options = options_of(case, beam_size=512, n_best=11, patience=math.inf)
    assert options.phrases is not None
    plain = DecodingOptions(**{name: getattr(options, name) for name in DecodingOptions.__dataclass_fields__ if name != "phrases"})
    step, follow = HistoryStep(seed=5, source_lengths=SOURCES), options.phrases.follow
    for sentence, found in enumerate(searched(step, options)):
        every = every_hypothesis(plain, sentence, step.vocabulary)
        fit = [tokens for tokens in every if all(holds(tokens, phrase, follow) for phrase in PHRASES[sentence])]  # type: ignore[arg-type]
        best = sorted(((score_of(step, sentence, tokens, plain), list(tokens)) for tokens in fit), key=lambda pair: -pair[0])[:11]
        assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens in best]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in best], rel=1e-5)
        assert found


@pytest.mark.parametrize("case", [*CASES, "blocking"])
@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_a_narrow_beam_holds_every_phrase(case: str, beam_size: int) -> None:
    options = options_of(case, beam_size=beam_size, n_best=beam_size, max_length=23)
    assert options.phrases is not None
    for seed in range(7):
        step = HistoryStep(seed=seed, source_lengths=SOURCES, end_bonus=1.0)
        for own, found in zip(PHRASES, searched(step, options), strict=True):
            for hypothesis in found:
                assert all(holds(tuple(hypothesis.tokens), phrase, options.phrases.follow) for phrase in own)  # type: ignore[arg-type]
                assert all(phrase.within(hypothesis.tokens, options.phrases.follow) for phrase in own)


def test_of_phrases_without_room_as_much_as_fits_comes() -> None:
    options = options_of("plain", beam_size=3, max_length=2)
    found = [own[0].tokens for own in searched(HistoryStep(seed=5, source_lengths=SOURCES), options)]
    assert all(len(tokens) <= 2 for tokens in found)
    assert 1 in found[0]
    assert len({*found[6]} & {0, 1, 2}) == 2


@pytest.mark.parametrize("case", CASES)
def test_a_result_does_not_depend_on_the_batch(case: str) -> None:
    options = options_of(case, beam_size=3, n_best=3, max_length=11, need_attention=True)
    step = HistoryStep(seed=1, source_lengths=SOURCES, end_bonus=-1.0)
    together = searched(step, options)
    for sentence in (number for number, own in enumerate(PHRASES) if own):
        [alone] = searched(step, options, [sentence])
        assert len(alone) == len(together[sentence])
        assert all(same(one, other) for one, other in zip(alone, together[sentence], strict=True))


def test_a_sentence_without_phrases_is_searched_as_without_any() -> None:
    options = options_of("length penalty", beam_size=3, n_best=3, max_length=11)
    step = HistoryStep(seed=1, source_lengths=SOURCES)
    plain = DecodingOptions(bos=BOS, eos=EOS, max_length=11, beam_size=3, n_best=3, length_penalty=0.6)
    [expected] = beam_search(step, step.start([3]), batch_size=1, options=plain)
    for one, other in zip(searched(step, options)[3], expected, strict=True):
        assert one.tokens == other.tokens
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


def test_greedy_search_holds_them_as_a_beam_of_one() -> None:
    step = HistoryStep(seed=1, source_lengths=SOURCES)
    options = options_of("plain", beam_size=1, max_length=11)
    assert greedy_search(step, step.start(range(7)), batch_size=7, options=options) == searched(step, options)


@pytest.mark.skipif(native.library() is None, reason=native.status().reason)
@pytest.mark.parametrize("case", [*CASES, "blocking"])
@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_the_native_library_searches_with_phrases_as_torch_does(case: str, beam_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, max_length in ((1, 3), (2, 11), (3, 23)):
        changes: dict[str, Any] = {"beam_size": beam_size, "n_best": beam_size, "max_length": max_length}
        options = options_of(case, **{**changes, "coverage_penalty": 0.0, **({"prefix": None} if max_length == 3 else {})})
        step = HistoryStep(seed=seed, source_lengths=SOURCES, end_bonus=1.0)
        found = searched(step, options)
        with monkeypatch.context() as patch:
            patch.setenv("REGARD_KERNELS", "torch")
            assert searched(step, options) == found


@pytest.mark.skipif(native.library() is None, reason=native.status().reason)
@pytest.mark.parametrize(("name", "message"), [("states", "states.* is 2; allowed .* 0 to 1"), ("following", "following.* is 2")])
def test_states_outside_the_table_are_refused(name: str, message: str) -> None:
    one, long = torch.ones(1, dtype=torch.long), torch.zeros(1, 1, 1, dtype=torch.long)
    numbers = torch.zeros(1, 1), torch.zeros(1, 1, 1), long, torch.zeros(1, 1)
    candidates = beam_cpu.BeamCandidates(one - 1, one * 9, torch.ones(1), *numbers, one)
    phrases = beam_cpu.BeamPhrases(long, long, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long), None)
    with pytest.raises(RangeError, match=message):
        beam_cpu.keep(candidates, phrases._replace(**{name: getattr(phrases, name) + 2}), beam=1, length=1, eos=3, enough=5.0, penalty=1.0)


def test_an_impossible_phrase_is_forced_all_the_same() -> None:
    logits = torch.tensor([0.0, -torch.inf, 0.0, 0.0])

    class Nothing:
        def select(self, rows: torch.Tensor, beams: torch.Tensor) -> Nothing:
            return self

    options = DecodingOptions(bos=BOS, eos=EOS, max_length=5, phrases=ForcedPhrases([[Phrase([1, 1])]]))
    [[found]] = beam_search(lambda tokens, state: (logits.expand(*tokens.shape, 4), None, state), Nothing(), batch_size=1, options=options)
    assert [1, 1] in [found.tokens[at : at + 2] for at in range(4)]


@pytest.mark.parametrize(
    ("phrases", "error", "message"),
    [
        (ForcedPhrases([[Phrase([])]]), ConfigError, "a phrase of sentence 0 is empty"),
        (ForcedPhrases([[Phrase([1], first=[[EOS]])]]), ConfigError, r"a phrase of sentence 0 .*\[3\]"),
        (ForcedPhrases([[Phrase([1, -1])]]), ConfigError, r"negative id: \[1, -1\]"),
        (ForcedPhrases([[Phrase([4])]]), ConfigError, "token 4 of the search options is outside the vocabulary of 4"),
        (ForcedPhrases([[], []]), ShapeError, "phrases has 2 entries, but the batch has 1 sentences"),
        (ForcedPhrases([[Phrase([1])]], [True] * 3), ShapeError, "follow has 3 entries, but the vocabulary has 4 tokens"),
    ],
)
def test_phrases_that_do_not_fit_are_refused(phrases: ForcedPhrases, error: type[Exception], message: str) -> None:
    step = HistoryStep(source_lengths=SOURCES)
    with pytest.raises(error, match=message):
        beam_search(step, step.start([0]), batch_size=1, options=DecodingOptions(bos=BOS, eos=EOS, max_length=5, phrases=phrases))


def test_sampling_refuses_them() -> None:
    step, options = HistoryStep(source_lengths=SOURCES), options_of("plain")
    with pytest.raises(ConfigError, match="phrases: need beam search"):
        sample(step, step.start(range(7)), batch_size=7, options=options, sampling=SamplingOptions())
