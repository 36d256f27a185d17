"""Scores of given pairs: those of the search for its own output, each pair alone."""

from __future__ import annotations

import pytest

from regard.data.vocabulary import EOS
from regard.tasks.pair_scores import score_pairs
from tests.tasks.tiny import FAMILIES, TEXTS, translator


@pytest.mark.parametrize("family", FAMILIES)
def test_the_score_of_an_output_is_the_search_s_own(family: str) -> None:
    subject = translator("word", model=FAMILIES[family], decoding={"length_penalty": 0.0})
    found = subject.translate(TEXTS)
    scores = score_pairs(subject.run, [(line, item.text) for line, item in zip(TEXTS, found, strict=True)], batch_size=2)
    compared = 0
    for item, own in zip(found, scores, strict=True):
        best = item.hypotheses[0]
        if subject.run.vocabularies.target.encode(item.text).ids != [token for token in best.tokens if token != EOS]:
            continue  # an unknown word, or spaces at the start
        compared += 1
        assert own.log_probs[: len(best.tokens)] == pytest.approx(best.log_probs, abs=1e-4)  # random weights spread the rounding: 2e-5 seen
        assert own.total == sum(own.log_probs)
        assert own.mean == own.total / len(own.pieces)
    assert compared > 1


def test_a_score_does_not_depend_on_the_pairs_beside_it() -> None:
    run = translator().run
    pairs = [*zip(TEXTS, reversed(TEXTS), strict=True), ("", "Hund"), ("Hund", ""), ("", "")]
    together = score_pairs(run, pairs, batch_size=3)
    for pair, own in zip(pairs, together, strict=True):
        (alone,) = score_pairs(run, [pair])
        assert alone.log_probs == pytest.approx(own.log_probs, abs=1e-5)
        assert (own.source, own.target) == pair
        assert own.pieces == [*pair[1], "</s>"]
    assert score_pairs(run, []) == []


def test_what_is_cut_off_is_counted_and_a_cut_target_has_no_end() -> None:
    run = translator(data={"max_length": 5}).run
    (cut,) = score_pairs(run, [("Hund Hund", "Haus Haus")])
    assert cut.truncated == (4, 4)
    assert (cut.pieces, len(cut.log_probs)) == (list("Haus "), 5)
    assert cut.to_json()["truncated"] == [4, 4]
    (whole,) = score_pairs(run, [("Hund", "Haus")])
    assert "truncated" not in whole.to_json()
    assert whole.to_json()["log_prob"] == pytest.approx(sum(whole.log_probs))
