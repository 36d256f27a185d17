"""BLEU and chrF against sacrebleu itself, hand-worked cases and a table of degenerate ones."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path

import pytest
import sacrebleu

from regard.errors import DataError
from regard.metrics import bleu, bleu_by_length, bleu_details, chrf

EPSILON = 1e-8
HYPOTHESES = ["the cat sat on a mat .", "He didn't see it, did he?", "", "Bücher kosten 3.50 €", "a b c d e f g"]
REFERENCES = ["The cat sat on the mat.", "He did not see it, did he?", "Nothing at all", "Bücher kosten 3,50 €.", "a b c d e f g h"]


@pytest.mark.parametrize("tokenize", ["13a", "intl", "zh", "char", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_equals_sacrebleu_in_value_and_signature(tokenize, lowercase):
    metric = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase)
    expected = metric.corpus_score(HYPOTHESES, [REFERENCES])
    score = bleu(HYPOTHESES, REFERENCES, tokenize=tokenize, lowercase=lowercase)
    assert score.value == pytest.approx(expected.score, abs=EPSILON)
    assert score.signature == str(metric.get_signature())
    assert f"tok:{tokenize}" in score.signature
    assert ("case:lc" in score.signature) == lowercase
    assert score.name == "BLEU"


@pytest.mark.parametrize("word_order", [0, 2])
def test_chrf_equals_sacrebleu_in_value_name_and_signature(word_order):
    metric = sacrebleu.CHRF(word_order=word_order)
    expected = metric.corpus_score(HYPOTHESES, [REFERENCES])
    score = chrf(HYPOTHESES, REFERENCES, word_order=word_order)
    assert score.value == pytest.approx(expected.score, abs=EPSILON)
    assert (score.name, score.signature) == (expected.name, str(metric.get_signature()))


def test_details_hold_the_precisions_worked_by_hand():
    details = bleu_details(["the the the cat"], ["the cat is on the mat"], tokenize="none")
    # "the" counts twice at most: 3 of 4 words; "the cat" alone of 3 pairs; then halves of a count (smoothing "exp").
    assert details.precisions == pytest.approx((75.0, 100 / 3, 100 / (2 * 2), 100 / (4 * 1)))
    assert details.matches == (3, 1, 0, 0)
    assert (details.hypothesis_length, details.reference_length) == (4, 6)
    assert details.brevity_penalty == pytest.approx(math.exp(1 - 6 / 4))
    product = math.prod(details.precisions) ** 0.25
    assert details.score.value == pytest.approx(details.brevity_penalty * product)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_lower_order_is_named_and_equals_sacrebleu(order):
    score = bleu(HYPOTHESES, REFERENCES, max_order=order)
    assert score.name == f"BLEU-{order}"
    assert score.value == pytest.approx(sacrebleu.BLEU(max_ngram_order=order).corpus_score(HYPOTHESES, [REFERENCES]).score, abs=EPSILON)


DEGENERATE = [
    # hypotheses, references, BLEU, chrF
    ([""], ["a b c d"], 0.0, 0.0),
    (["a b c d"], [""], 0.0, 0.0),
    ([""], [""], 0.0, 0.0),
    (["   "], ["a"], 0.0, 0.0),
    (["a b c d"], ["a b c d"], 100.0, 100.0),
    (["w x y z"], ["a b c d"], 0.0, 0.0),
    (["a"], ["a"], 0.0, 100.0),  # shorter than four words: BLEU has no 4-gram to count
    (["a b c d", ""], ["a b c d", ""], 100.0, 100.0),
]


@pytest.mark.parametrize(("hypotheses", "references", "expected_bleu", "expected_chrf"), DEGENERATE)
def test_degenerate_lines_score_as_in_the_table(hypotheses, references, expected_bleu, expected_chrf):
    assert bleu(hypotheses, references).value == pytest.approx(expected_bleu, abs=EPSILON)
    assert bleu(hypotheses, references).value <= 100.0  # sacrebleu's own rounds to a little more
    assert chrf(hypotheses, references).value == pytest.approx(expected_chrf, abs=EPSILON)


@pytest.mark.parametrize("metric", [bleu, chrf])
@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [], "no lines to score"),
        (["a"] * 3, ["b"] * 2, "3 hypotheses, but 2 references"),
        (["a"], [], "1 hypothesis, but 0 references"),
        ("one string", ["a"], "hypotheses must be a list of texts"),
        (["a"], "one string", "references must be a list of texts"),
    ],
)
def test_unusable_lists_are_data_errors_that_say_why(metric, hypotheses, references, message):
    with pytest.raises(DataError, match=message):
        metric(hypotheses, references)


def test_unknown_settings_are_data_errors_that_name_what_is_known():
    with pytest.raises(DataError, match="tokenize 'moses': expected one of 13a, intl"):
        bleu(["a"], ["a"], tokenize="moses")
    for order in (0, 2.5, True):
        with pytest.raises(DataError, match="max_order"):
            bleu(["a"], ["a"], max_order=order)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="word_order -1"):
        chrf(["a"], ["a"], word_order=-1)


def test_bleu_by_length_scores_each_range_apart_and_keeps_empty_ranges():
    sources = ["x", "x x x", "x x x", "x " * 11, ""]
    hypotheses = ["a b c d", "a b c d", "a b c e", "w w w w w", "a b c d"]
    references = ["a b c d"] * 5
    rows = bleu_by_length(hypotheses, references, sources, [2, 3, 7])
    assert [(row.range, row.count) for row in rows] == [("0-2", 2), ("3-3", 2), ("4-7", 0), ("8+", 1)]
    assert rows[0].score == bleu(["a b c d"] * 2, ["a b c d"] * 2)
    assert rows[1].score == bleu(["a b c d", "a b c e"], ["a b c d"] * 2)
    assert rows[2].score is None
    assert rows[3].score == bleu(["w w w w w"], ["a b c d"])
    assert sum(row.count for row in rows) == len(sources)


def test_bleu_by_length_without_edges_is_bleu():
    (row,) = bleu_by_length(HYPOTHESES, REFERENCES, REFERENCES, [])
    assert (row.range, row.count, row.score) == ("0+", 5, bleu(HYPOTHESES, REFERENCES))


@pytest.mark.parametrize("edges", [[5, 5], [7, 3], [-1, 3]])
def test_edges_that_do_not_rise_are_data_errors(edges):
    with pytest.raises(DataError, match="edges"):
        bleu_by_length(["a"], ["a"], ["a"], edges)


def test_sources_of_another_length_are_a_data_error_with_both_counts():
    with pytest.raises(DataError, match="3 sources, but 2 hypotheses"):
        bleu_by_length(["a"] * 2, ["a"] * 2, ["a"] * 3, [5])


@pytest.mark.data
def test_newstest2017_outputs_have_their_expected_bleu_counts_and_lengths():
    folder = Path(os.environ.get("REGARD_DATA", "")) / "mt_eval" / "newstest2017_ende_tok"
    if not os.environ.get("REGARD_DATA") or not folder.is_dir():
        pytest.skip("REGARD_DATA names no folder with mt_eval/newstest2017_ende_tok")

    def read(name: str) -> list[str]:
        return gzip.decompress((folder / name).read_bytes()).decode("utf-8").rstrip("\n").split("\n")

    references = read("reference.de.gz")
    expected = json.loads((folder / "expected_bleu.json").read_text())["scores"]
    assert len(expected) == 16
    for name, values in expected.items():
        details = bleu_details(read(name), references, tokenize="none")
        assert details.score.value == pytest.approx(values["bleu"], abs=EPSILON), name
        assert (details.hypothesis_length, details.reference_length) == (values["sys_len"], values["ref_len"]), name
        assert details.brevity_penalty == pytest.approx(values["bp"], abs=EPSILON), name
        ratios = [100 * count / total for count, total in zip(values["counts"], values["totals"], strict=True)]
        assert details.precisions == pytest.approx(ratios, abs=EPSILON), name
