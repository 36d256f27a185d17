"""Caption scores against numbers of the official tool, pycocoevalcap 1.2, on the same tokens."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from regard.errors import DataError
from regard.metrics import DocumentFrequencies, caption_scores, caption_tokens, document_frequencies
from regard.metrics.caption import caption_bleu_counts

REFERENCES = [
    ["a brown dog runs across the wet grass", "the dog is running on grass", "a dog"],
    ["two children climb a red ladder in the garden", "children on a ladder"],
    [
        "a man rides a bicycle down a narrow street",
        "a cyclist passes between two old houses",
        "man on bicycle in the street",
        "a narrow street with a man on a bicycle",
    ],
    ["the train stops at an empty station", "an empty station with a train", "a train at a platform"],
    ["snow covers the roof of the house"],
]
# One repeats a word, one is longer than its references, one is empty, one equals a reference, one shares nothing.
HYPOTHESES = [
    "a brown dog runs on the grass grass",
    "two children on a ladder in the garden with a red ladder",
    "",
    "the train stops at an empty station",
    "green boats float",
]
# pycocoevalcap's Bleu(4), Rouge and Cider; for plain CIDEr its Cider without `min(...)` and without the factor of lengths.
EXPECTED = {
    "BLEU-1": (0.6071153341510583, [0.8749999997812503, 0.7499999999375001, 0.0, 0.9999999997142859, 8.786571264666517e-17]),
    "BLEU-2": (0.5769225176469325, [0.6123724355372341, 0.7833494517323941, 0.0, 0.9999999997023811, 1.0761308092620251e-16]),
    "BLEU-3": (0.5238650060559594, [0.49999999986507965, 0.6744664694722582, 0.0, 0.9999999996873018, 1.4506309537548945e-16]),
    "BLEU-4": (0.45870880914367906, [0.3976353642707439, 0.51099558107995, 0.0, 0.9999999996672622, 2.9950417303538974e-14]),
    "ROUGE-L": (0.5306716833890748, [0.8798076923076923, 0.7735507246376813, 0.0, 1.0, 0.0]),
    "CIDEr-D": (1.9228229138333943, [1.8109211889866184, 2.9525013304587095, 0.0, 4.850692049721643, 0.0]),
    "CIDEr": (2.432568854601377, [2.2340049546322565, 5.041095503317266, 0.0, 4.887743815057364, 0.0]),
}


def split(captions: list[str]) -> list[list[str]]:
    return [caption.split() for caption in captions]


@pytest.mark.parametrize("name", EXPECTED)
def test_scores_equal_those_of_the_official_tool(name: str) -> None:
    scores = caption_scores([split(item) for item in REFERENCES], split(HYPOTHESES))
    corpus, items = EXPECTED[name]
    assert scores.corpus[name].value == pytest.approx(corpus, abs=1e-12)
    assert scores.items[name] == pytest.approx(items, abs=1e-12)
    assert list(scores.corpus) == list(scores.items) == list(EXPECTED)


@pytest.mark.data
@pytest.mark.parametrize("name", ["flickr8k_test_human_ref4", "multi30k_task2_test2016_en_cap3", "multi30k_task2_test2016_de_cap3"])
def test_a_thousand_images_score_as_the_official_tool_scores_them(name: str, data_folder: Path) -> None:
    given = json.loads(gzip.decompress((data_folder / "caption_metrics" / f"{name}.json.gz").read_bytes()))
    scores = caption_scores([split(item) for item in given["refs"]], split(given["hyps"]))
    items = given["expected_per_item"]
    rows = {f"BLEU-{order}": np.array(items["Bleu_1..4"]).reshape(-1, len(given["ids"]))[order - 1] for order in range(1, 5)}
    rows |= {"ROUGE-L": items["ROUGE_L"], "CIDEr-D": items["CIDEr"]}
    official = {f"BLEU-{order}": f"Bleu_{order}" for order in range(1, 5)} | {"ROUGE-L": "ROUGE_L", "CIDEr-D": "CIDEr"}
    for ours, theirs in official.items():
        assert scores.corpus[ours].value == pytest.approx(given["expected_corpus"][theirs], abs=1e-9)
        np.testing.assert_allclose(scores.items[ours], rows[ours], rtol=0, atol=1e-9)


def test_given_frequencies_are_used_in_place_of_the_references() -> None:
    given = document_frequencies([split(item) for item in REFERENCES])
    two = caption_scores([split(item) for item in REFERENCES[:2]], split(HYPOTHESES[:2]), frequencies=given)
    assert two.items["CIDEr-D"] == pytest.approx(EXPECTED["CIDEr-D"][1][:2], abs=1e-12)
    assert two.items["CIDEr-D"] != caption_scores([split(item) for item in REFERENCES[:2]], split(HYPOTHESES[:2])).items["CIDEr-D"]
    assert "|df:given:5|" in two.corpus["CIDEr-D"].signature


def test_frequencies_count_images_not_captions() -> None:
    counted = document_frequencies([["a dog", "a dog runs"], ["a cat"]])
    assert (counted.documents, counted.counts["a",], counted.counts["a", "dog"], counted.counts["cat",]) == (2, 2, 1, 1)


def test_one_image_alone_has_no_cider_but_has_one_with_frequencies_of_many() -> None:
    references, hypotheses = [["a dog runs on grass"]], ["a dog runs on grass"]
    assert caption_scores(references, hypotheses).corpus["CIDEr-D"].value == 0.0
    many = DocumentFrequencies({}, 7)
    assert caption_scores(references, hypotheses, frequencies=many).corpus["CIDEr-D"].value == pytest.approx(10.0)


def test_texts_are_tokenized_and_the_signature_says_so() -> None:
    texts = caption_scores([["A dog's ball.", "The ball!"], ["Two buses"]], ["a dog's ball", "two buses"])
    tokens = caption_scores(
        [[caption_tokens("A dog's ball."), caption_tokens("The ball!")], [["two", "buses"]]], [["a", "dog", "'s", "ball"], ["two", "buses"]]
    )
    assert texts.items == tokens.items
    assert texts.corpus["BLEU-4"].signature == "nimgs:2|nrefs:1-2|case:lower|tok:regard-ptb|ref:closest|smooth:none"
    assert tokens.corpus["ROUGE-L"].signature == "nimgs:2|nrefs:1-2|case:mixed|tok:none|beta:1.2"
    assert tokens.corpus["CIDEr-D"].signature == "nimgs:2|nrefs:1-2|case:mixed|tok:none|n:4|df:refs|sigma:6"
    assert tokens.corpus["CIDEr"].signature == "nimgs:2|nrefs:1-2|case:mixed|tok:none|n:4|df:refs"


def test_only_plain_cider_rewards_a_repeated_rare_word() -> None:
    references = [["a dog on grass"], ["a cat"], ["a bus"]]
    honest = caption_scores(references, ["dog", "cat", "bus"]).items
    greedy = caption_scores(references, ["dog dog dog grass", "cat", "bus"]).items
    assert greedy["CIDEr-D"][0] < greedy["CIDEr"][0]
    assert honest["CIDEr-D"][0] < honest["CIDEr"][0]  # by the length alone
    ratio = math.exp(-((0 - 3) ** 2) / 72)  # bigrams: none against three
    assert honest["CIDEr-D"][0] == pytest.approx(honest["CIDEr"][0] * ratio, rel=1e-12)


@pytest.mark.parametrize(
    ("references", "hypotheses", "message"),
    [
        ([], [], "references must be a list with captions of at least one image"),
        ("a", ["a"], "references must be a list with captions of at least one image, found 'a'"),
        ([["a"]], ["a", "b"], "references and hypotheses must have the same length, found 1 and 2"),
        ([["a"], []], ["a", "b"], r"references of image 2 must be a list of one caption or more, found \[\]"),
        (["a", "b"], ["a", "b"], "references of image 1 must be a list of one caption or more, found 'a'"),
        ([["a"]], "a", "hypotheses must be a list with a caption of each image, found 'a'"),
        ([["a"]], [["a"]], "captions must be all texts or all lists of tokens, found both"),
        ([["a", b"ab"]], ["a"], "references of image 1, caption 2 must be a list of tokens, or one text, found b'ab'"),
        ([[["a"]], [["b"]]], [["a"], ["b", 3]], "hypothesis 2 must be a list of tokens, or one text, item 2 is 3"),
    ],
)
def test_what_cannot_be_scored_is_a_data_error(references, hypotheses, message: str) -> None:
    for score in (caption_scores, caption_bleu_counts):
        with pytest.raises(DataError, match=f"^{score.__name__}: {message}"):
            score(references, hypotheses)


def test_frequencies_of_no_documents_are_a_data_error() -> None:
    for documents in (0, 2.5, "3"):
        with pytest.raises(DataError, match="DocumentFrequencies: documents must be a whole number of at least 1, found "):
            DocumentFrequencies({}, documents)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="document_frequencies: references must be a list with captions of at least one image"):
        document_frequencies([])
