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
from regard.metrics.translation import has_four_words

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


@pytest.mark.parametrize("metric", [bleu, bleu_details, chrf])
@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [], "hypotheses and references must not be empty"),
        (["a"] * 3, ["b"] * 2, "hypotheses and references must have the same length, found 3 and 2"),
        (["a"], [], "hypotheses and references must have the same length, found 1 and 0"),
        ("one string", ["a"], "hypotheses must be a list of texts"),
        (["a"], "one string", "references must be a list of texts"),
    ],
)
def test_unusable_lists_are_data_errors_that_say_why(metric, hypotheses, references, message):
    with pytest.raises(DataError, match=f"^{metric.__name__}: {message}"):
        metric(hypotheses, references)


def test_unknown_settings_are_data_errors_that_name_what_is_known():
    message = "tokenize must be one of 13a, intl, zh, char, none, found 'moses'"
    for metric in (bleu, bleu_details):
        with pytest.raises(DataError, match=f"^{metric.__name__}: {message}"):
            metric(["a"], ["a"], tokenize="moses")
    with pytest.raises(DataError, match=f"^bleu_by_length: {message}"):
        bleu_by_length(["a"], ["a"], ["a"], [5], tokenize="moses")
    with pytest.raises(DataError, match=f"^has_four_words: {message}"):
        has_four_words(["a"], tokenize="moses")
    for order in (0, 2.5, True):
        with pytest.raises(DataError, match="bleu: max_order must be "):
            bleu(["a"], ["a"], max_order=order)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="chrf: word_order must be at least 0, found -1"):
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


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([5, 5], r"at least 0 and increase, item 2 is 5 in \[5, 5\]"),
        ([7, 3], "at least 0 and increase, item 2 is 3"),
        ([-1, 3], "at least 0 and increase, item 1 is -1"),
        ([2.5], r"a list of whole numbers, item 1 is 2\.5"),
        ([1, math.nan], "a list of whole numbers, item 2 is nan"),
        ([True], "a list of whole numbers, item 1 is True"),
        (b"\x01\x02", "a list of whole numbers, found b"),
        (bytearray(b"\x01\x02"), "a list of whole numbers, found bytearray"),
        ("12", "a list of whole numbers, found '12'"),
        ({2, 5}, "a list of whole numbers, found {2, 5}"),
    ],
    ids=["equal", "falling", "negative", "half", "nan", "true", "bytes", "bytearray", "text", "set"],
)
def test_edges_are_whole_numbers_that_increase(edges, message):
    with pytest.raises(DataError, match=f"^bleu_by_length: edges must be {message}"):
        bleu_by_length(["a"], ["a"], ["a"], edges)


def test_sources_of_another_length_are_a_data_error_with_all_counts():
    with pytest.raises(DataError, match="hypotheses, references and sources must have the same length, found 2, 2 and 3"):
        bleu_by_length(["a"] * 2, ["a"] * 2, ["a"] * 3, [5])


@pytest.mark.parametrize("references", ["a text of five words", None, [None], b"a b c d"], ids=["one text", "none", "no text", "bytes"])
def test_references_of_four_words_are_a_list_of_texts(references):
    with pytest.raises(DataError, match=r"^has_four_words: references must be a list of texts, "):
        has_four_words(references)
    assert has_four_words(line for line in ("a b", "a b c d"))


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
