from __future__ import annotations

from dataclasses import replace

import torch

from regard.decoding import DecodingOptions, greedy_search
from tests.decoding.history import BOS, EOS, HistoryStep, Read, read_alone, same
from tests.ops.test_topk import sure

OPTIONS = DecodingOptions(bos=BOS, eos=EOS, max_length=13, need_attention=True)
SOURCES = (5, 2, 3, 7, 1)


def test_every_token_is_the_most_probable_after_those_before_it() -> None:
    step = HistoryStep(seed=1, vocabulary=7, source_lengths=SOURCES)
    found = greedy_search(step, step.start(range(11)), batch_size=11, options=OPTIONS)
    assert len({len(best.tokens) for [best] in found}) > 3
    for sentence, [best] in enumerate(found):
        log_probs, _ = read_alone(step, sentence, best.tokens[:-1])
        assert best.tokens == log_probs.argmax(-1).tolist()
        assert best.tokens.index(EOS) == len(best.tokens) - 1 if EOS in best.tokens else len(best.tokens) == 13


def test_a_result_does_not_depend_on_the_batch() -> None:
    step = HistoryStep(seed=1, vocabulary=7, source_lengths=SOURCES)
    together = greedy_search(step, step.start(range(11)), batch_size=11, options=OPTIONS)
    for sentence, [best] in enumerate(together):
        [[alone]] = greedy_search(step, step.start([sentence]), batch_size=1, options=OPTIONS)
        assert same(best, alone)


def test_sentences_leave_the_batch_when_they_are_done() -> None:
    step = HistoryStep(seed=1, vocabulary=7)
    found = greedy_search(step, step.start(range(11)), batch_size=11, options=OPTIONS)
    longest = max(len(best.tokens) for [best] in found)
    assert step.shapes == [(sum(len(best.tokens) > time for [best] in found), 1) for time in range(longest)]


def test_the_first_of_equal_tokens_is_taken() -> None:
    step = HistoryStep(vocabulary=200)
    step.logits.zero_()
    [[best]] = greedy_search(step, step.start([0]), batch_size=1, options=replace(OPTIONS, banned=(0,), max_length=2))
    assert best.tokens == [1, 1]


def test_the_log_probability_of_a_given_token_is_exact_where_logits_are_large() -> None:
    logits = sure(7)
    count = len(logits)
    options = DecodingOptions(bos=BOS, eos=EOS, max_length=1, length_penalty=0.0, prefix=[[1]] * count)
    state = Read(torch.arange(count), torch.zeros(count, 1, 0, dtype=torch.long))
    found = greedy_search(lambda tokens, state: (logits[state.sentences, None], None, state), state, batch_size=count, options=options)
    right = logits.double().log_softmax(-1).float()[:, 1]
    torch.testing.assert_close(torch.tensor([best.log_probs[0] for [best] in found]), right, rtol=1e-6, atol=1e-6)


def test_no_sentences_and_no_tokens_ask_the_model_nothing() -> None:
    step = HistoryStep()
    assert greedy_search(step, step.start([]), batch_size=0, options=OPTIONS) == []
    [[best]] = greedy_search(step, step.start([0]), batch_size=1, options=replace(OPTIONS, max_length=0))
    assert best.tokens == []
    assert step.shapes == []


def test_the_results_ask_for_no_gradient() -> None:
    step = HistoryStep()
    step.logits.requires_grad_()
    [[best]] = greedy_search(step, step.start([0]), batch_size=1, options=OPTIONS)
    assert best.attention is not None
    assert not best.attention.requires_grad
    assert torch.is_inference(best.attention)
