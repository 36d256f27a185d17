from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decoding import DecodingOptions, SamplingOptions, greedy_search, sample
from regard.decoding.sampling import draw_token
from regard.errors import ConfigError, ShapeError
from tests.decoding.history import BOS, EOS, HistoryStep, read_alone, same, score_of

OPTIONS = DecodingOptions(bos=BOS, eos=EOS, max_length=7)
DRAWS = 20_000
LOGITS = torch.tensor([0.3, -1.0, 1.2, 0.0, -2.0, 0.3, 2.0])


def drawn(sampling: SamplingOptions, logits: Tensor = LOGITS) -> Tensor:
    """Return how often each token comes in so many draws."""
    uniform = torch.rand(1, DRAWS, generator=torch.Generator().manual_seed(1))
    tokens = draw_token(logits.log_softmax(-1).expand(1, DRAWS, -1), uniform, sampling)
    return torch.bincount(tokens.flatten(), minlength=len(logits))


def chi_square(counts: Tensor, probs: Tensor) -> float:
    expected = probs * counts.sum()
    return ((counts - expected)[probs > 0] ** 2 / expected[probs > 0]).sum().item()


def filtered(sampling: SamplingOptions, logits: Tensor = LOGITS) -> Tensor:
    """Return the distribution to draw from, written from the definitions, one token after another."""
    probs = (logits / sampling.temperature).softmax(-1)
    order = sorted(range(len(logits)), key=lambda token: -logits[token].item())
    order = order[: sampling.top_k or len(order)]
    kept, mass, total = [], 0.0, sum(probs[token].item() for token in order)
    for token in order:
        kept.append(token)
        mass += probs[token].item() / total
        if mass >= sampling.top_p:
            break
    result = torch.zeros_like(probs)
    result[kept] = probs[kept]
    return result / result.sum()


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingOptions(),
        SamplingOptions(temperature=0.5),
        SamplingOptions(temperature=3.0),
        SamplingOptions(top_k=3),
        SamplingOptions(top_k=99),
        SamplingOptions(top_p=0.7),
        SamplingOptions(top_p=0.01),
        SamplingOptions(top_k=4, top_p=0.8, temperature=1.7),
    ],
)
def test_tokens_come_as_often_as_their_probability_says(sampling: SamplingOptions) -> None:
    counts, probs = drawn(sampling), filtered(sampling)
    assert counts[probs == 0].sum() == 0
    # 22.5: a chi-square with 6 degrees of freedom is beyond it once in a thousand; fewer degrees are below.
    assert chi_square(counts, probs) < 22.5


def test_a_wrong_distribution_is_told_apart() -> None:
    assert chi_square(drawn(SamplingOptions()), filtered(SamplingOptions(temperature=1.1))) > 22.5


def test_a_very_low_temperature_takes_the_best_token() -> None:
    for temperature in (1e-30, 1e-46, 5e-324):
        assert drawn(SamplingOptions(temperature=temperature))[6] == DRAWS


def test_the_first_of_equal_tokens_is_kept_by_top_k() -> None:
    assert set(drawn(SamplingOptions(top_k=2), torch.zeros(200)).nonzero().flatten().tolist()) == {0, 1}


def test_numbers_at_the_ends_draw_a_token_that_is_possible() -> None:
    log_probs = torch.tensor([-torch.inf, math.log(0.3), -torch.inf, math.log(0.7), -torch.inf]).expand(1, 2, -1)
    assert draw_token(log_probs, torch.tensor([[0.0, 1 - 2**-24]]), SamplingOptions()).flatten().tolist() == [1, 3]


def test_whole_samples_come_as_often_as_the_product_of_their_probabilities() -> None:
    step = HistoryStep(seed=2)
    options = replace(OPTIONS, max_length=3, length_penalty=0.0)
    counts: Counter[tuple[int, ...]] = Counter()
    [found] = sample(
        step,
        step.start([5]),
        batch_size=1,
        options=options,
        sampling=SamplingOptions(num_samples=DRAWS),
        generator=torch.Generator().manual_seed(3),
    )
    counts.update(tuple(hypothesis.tokens) for hypothesis in found)
    probs = {tokens: math.exp(score_of(step, 5, tokens, options)) for tokens in counts}
    assert sum(probs.values()) > 0.999
    for tokens, probability in probs.items():
        # Five standard deviations, and one draw.
        assert abs(counts[tokens] - DRAWS * probability) < 5 * math.sqrt(DRAWS * probability) + 1


def samples(step: HistoryStep, sentences: list[int], options: DecodingOptions, **sampling: Any) -> list[list[Any]]:
    generators = [torch.Generator().manual_seed(sentence) for sentence in sentences]
    chosen = SamplingOptions(num_samples=3, **sampling)
    return sample(step, step.start(sentences), batch_size=len(sentences), options=options, sampling=chosen, generator=generators)


def test_with_a_generator_each_a_sample_does_not_depend_on_the_batch() -> None:
    step = HistoryStep(seed=1, vocabulary=7, source_lengths=(5, 2, 3))
    options = replace(OPTIONS, need_attention=True, no_repeat_ngram_size=2)
    together = samples(step, list(range(11)), options)
    assert len({tuple(one.tokens) for found in together for one in found}) > 20
    for sentence in range(11):
        [alone] = samples(step, [sentence], options)
        assert all(same(one, other) for one, other in zip(alone, together[sentence], strict=True))


def test_scores_log_probabilities_and_attention_are_those_of_the_tokens_read_alone() -> None:
    step = HistoryStep(seed=1, vocabulary=7, source_lengths=(5, 2, 3))
    options = replace(OPTIONS, need_attention=True, coverage_penalty=0.2, source_lengths=[5, 2, 3, 5, 2])
    for sentence, found in enumerate(samples(step, list(range(5)), options, temperature=2.0, top_p=0.9)):
        for tokens, score, log_probs, attention in found:
            expected, weights = read_alone(step, sentence, tokens[:-1])
            assert log_probs == pytest.approx(expected[range(len(tokens)), tokens].tolist(), abs=1e-5)
            assert score == pytest.approx(score_of(step, sentence, tokens, options), rel=1e-5)
            torch.testing.assert_close(attention[:, : weights.size(1)], weights.float())
            assert tokens.index(EOS) == len(tokens) - 1 if EOS in tokens else len(tokens) == 7


def test_the_rules_of_a_search_hold() -> None:
    step = HistoryStep(vocabulary=7)
    options = replace(OPTIONS, prefix=[[5, 5]] * 13, banned=(BOS, 1), min_length=4, no_repeat_ngram_size=1)
    for found in samples(step, list(range(13)), options, temperature=5.0):
        for tokens, *_ in found:
            assert tokens[:2] == [5, 5]
            assert len(tokens) >= 5
            assert not {BOS, 1} & set(tokens)
            assert len(set(tokens[1:])) == len(tokens) - 1


def test_top_k_of_one_is_greedy_search() -> None:
    step = HistoryStep(vocabulary=7)
    greedy = greedy_search(step, step.start(range(5)), batch_size=5, options=OPTIONS)
    for [best], found in zip(greedy, samples(step, list(range(5)), OPTIONS, top_k=1), strict=True):
        # The two look at the logits in different ways, so the last bits of a log-probability may differ.
        assert [one.tokens for one in found] == [best.tokens] * len(found)
        assert all(one.log_probs == pytest.approx(best.log_probs, abs=1e-5) for one in found)


def test_a_sentence_leaves_when_all_its_samples_have_ended_and_the_ended_are_fed_padding() -> None:
    step = HistoryStep(vocabulary=7, end_bonus=1.0)
    fed: list[Tensor] = []

    def watched(tokens: Tensor, state: Any) -> Any:
        fed.append(tokens)
        return step(tokens, state)

    options, sampling = replace(OPTIONS, pad=6, banned=(6,), max_length=19), SamplingOptions(num_samples=3)
    found = sample(
        watched, step.start(range(11)), batch_size=11, options=options, sampling=sampling, generator=torch.Generator().manual_seed(1)
    )
    longest = [max(len(one.tokens) for one in own) for own in found]
    assert step.shapes == [(sum(length > time for length in longest), 3) for time in range(max(longest))]
    for time, tokens in enumerate(fed):
        ended = sum(len(one.tokens) <= time for own, length in zip(found, longest, strict=True) for one in own if length > time)
        assert (tokens == 6).sum() == ended


def test_no_sentences_and_no_tokens_ask_the_model_nothing() -> None:
    step = HistoryStep()
    assert samples(step, [], OPTIONS) == []
    assert [[one.tokens for one in found] for found in samples(step, [0], replace(OPTIONS, max_length=0))] == [[[]]]
    assert step.shapes == []


def test_one_seed_gives_one_result() -> None:
    step = HistoryStep(vocabulary=7)

    def once(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        found = sample(step, step.start(range(5)), batch_size=5, options=OPTIONS, sampling=SamplingOptions(), generator=generator)
        return [one.tokens for [one] in found]

    assert once(1) == once(1) != once(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature must be greater than 0, found 0.0"),
        ({"temperature": math.nan}, "temperature must be greater than 0"),
        ({"temperature": "a"}, "temperature: expected a number, found 'a'"),
        ({"top_p": None}, "top_p: expected a number, found None"),
        ({"top_k": 2.0}, "top_k: expected a whole number, found 2.0"),
        ({"num_samples": True}, "num_samples: expected a whole number, found True"),
        ({"top_k": -1}, "top_k must be at least 0, found -1"),
        ({"top_p": 0.0}, "top_p must be greater than 0 and at most 1, found 0.0"),
        ({"top_p": 1.5}, "top_p must be greater than 0 and at most 1, found 1.5"),
        ({"num_samples": 0}, "num_samples must be at least 1, found 0"),
    ],
)
def test_options_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingOptions(**change)


def test_generators_that_do_not_fit_the_batch_are_refused() -> None:
    step = HistoryStep()
    with pytest.raises(ShapeError, match="generator has 1 entries, but the batch has 2 sentences"):
        sample(step, step.start([0, 1]), batch_size=2, options=OPTIONS, sampling=SamplingOptions(), generator=[torch.Generator()])
