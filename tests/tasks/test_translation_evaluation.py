"""Measuring a run: the figures are sacrebleu's, and links are compared unit by unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import sacrebleu
import torch

from regard import progress
from regard.commands import options
from regard.errors import DataError
from regard.metrics import paired_bootstrap
from regard.metrics.translation import TOKENIZERS
from regard.tasks import evaluate_translation
from regard.tasks.translation_evaluation import (
    TOKENIZED_LINES,
    KnownLinks,
    describe_comparison,
    describe_translation_scores,
    read_links,
)
from tests.tasks.tiny import TEXTS, translator

PAIRS = [(text, " ".join(text.split()[::-1])) for text in TEXTS]


def test_the_scores_are_sacrebleus_of_the_outputs() -> None:
    subject = translator("word")
    evaluation = evaluate_translation(subject, PAIRS)
    scores = {score.name: score for score in evaluation.scores}
    references = [pair[1] for pair in PAIRS]
    expected = sacrebleu.BLEU()
    assert scores["BLEU"].value == pytest.approx(expected.corpus_score(evaluation.outputs, [references]).score)
    assert scores["BLEU"].signature == str(expected.get_signature())
    assert scores["chrF2"].value == pytest.approx(sacrebleu.corpus_chrf(evaluation.outputs, [references]).score)
    assert evaluation.outputs == [item.text for item in subject.translate([pair[0] for pair in PAIRS])]
    assert "pairs:5/5" in scores["perplexity"].signature


def test_outputs_equal_to_the_references_match_exactly() -> None:
    subject = translator()
    outputs = [item.text for item in subject.translate(TEXTS)]
    evaluation = evaluate_translation(subject, list(zip(TEXTS, outputs, strict=True)))
    assert {score.name: score.value for score in evaluation.scores}["exact match"] == 100.0


def test_pairs_too_long_for_the_model_are_translated_and_counted_out_of_the_likelihood() -> None:
    pairs = [*PAIRS, ("Hund" * 3_000, "Haus " * 3_000), ("", "Haus"), ("Haus", "")]
    known = KnownLinks([set()] * len(pairs), [set()] * len(pairs), "character")
    evaluation = evaluate_translation(translator(data={"max_length": 31}), pairs, links=known)
    assert len(evaluation.outputs) == 8
    assert "pairs:5/8" in {score.name: score.signature for score in evaluation.scores}["token accuracy"]


def test_no_usable_pair_is_an_error() -> None:
    with pytest.raises(DataError, match="test data: no sentence pair can be used"):
        evaluate_translation(translator(), [("", ""), ("Hund", "")])


def test_links_are_read_as_target_and_source(tmp_path: Path) -> None:
    (tmp_path / "links").write_text("0-1 2?0\n\n10-3\n")
    known = read_links(tmp_path / "links", "word")
    assert known.sure == [{(1, 0)}, set(), {(3, 10)}]
    assert known.possible == [{(1, 0), (0, 2)}, set(), {(3, 10)}]


@pytest.mark.parametrize("item", ["3", "3-", "-3", "a-b", "3--4", "3-4?5", "1.0-2"])
def test_what_is_no_link_is_named_with_its_line(tmp_path: Path, item: str) -> None:
    (tmp_path / "links").write_text(f"0-1\n1-1 {item}\n")
    with pytest.raises(DataError, match="links, line 2: expected links like 3-4 or 3") as refused:
        read_links(tmp_path / "links", "word")
    assert repr(item) in str(refused.value)


def test_links_of_another_length_or_without_attention_are_refused() -> None:
    known = KnownLinks([set()] * 3, [set()] * 3, "word")
    with pytest.raises(DataError, match="links: 3 lines, but 5 sentence pairs"):
        evaluate_translation(translator(), PAIRS, links=known)
    with pytest.raises(DataError, match="this model has no attention"):
        evaluate_translation(translator(model={"attention": None}), PAIRS, links=KnownLinks([set()] * 5, [set()] * 5, "word"))


def test_a_link_outside_its_pair_is_named_with_the_unit_it_may_count() -> None:
    known = KnownLinks([set()] * 5, [set(), {(0, 1), (2, 9)}, *[set()] * 3], "word")
    with pytest.raises(DataError, match=r"links, line 2: 9-2, but the .* words, numbered from 0; for characters: --link-unit character"):
        evaluate_translation(translator(), PAIRS, links=known)
    assert evaluate_translation(translator(), PAIRS, links=known._replace(unit="character")).scores


@pytest.mark.parametrize(("unit", "sure"), [("word", [(0, 1), (1, 0)]), ("character", [(0, 5), (5, 0)])])
def test_attention_on_the_right_unit_has_no_alignment_error(
    monkeypatch: pytest.MonkeyPatch, unit: str, sure: list[tuple[int, int]]
) -> None:
    subject = translator("character")
    source, target = "Haus Hund", "Hund Haus"

    decode = subject.run.model.decode

    def looking_right(*arguments: Any, **options: Any) -> Any:
        weights = torch.full((1, len(target) + 1, len(source) + 1), 0.01)
        for place, letter in enumerate(target):
            weights[0, place, source.index(letter, 5 if place < 4 else 0)] = 0.9
        return decode(*arguments, **options)._replace(weights=weights)

    monkeypatch.setattr(subject.run.model, "decode", looking_right)
    links = {(row, column) for row, column in sure}
    scores = evaluate_translation(subject, [(source, target)], links=KnownLinks([links], [links], unit)).scores  # type: ignore[arg-type]
    assert {score.name: score.value for score in scores}["AER"] == 0.0
    wrong = {(row, 1 - column if unit == "word" else column + 1) for row, column in sure}
    scores = evaluate_translation(subject, [(source, target)], links=KnownLinks([wrong], [wrong], unit)).scores  # type: ignore[arg-type]
    assert {score.name: score.value for score in scores}["AER"] == 100.0


def test_the_figures_are_told_and_kept() -> None:
    evaluation = evaluate_translation(translator(), [*PAIRS, ("ein " * 12, "Hund")])
    told: list[str] = []
    describe_translation_scores(evaluation, told.append)
    assert [line.split()[0] for line in told] == ["BLEU", "chrF2", "exact", "perplexity", "token", "BLEU"]
    kept = json.loads(json.dumps(evaluation.to_json()))
    assert [score["name"] for score in kept["scores"]] == ["BLEU", "chrF2", "exact match", "perplexity", "token accuracy"]
    assert sum(row["sentences"] for row in kept["by_length"]) == 6


def test_a_comparison_is_told_and_kept() -> None:
    references = ["ein Hund sieht ein Haus", "ein Haus sieht einen Hund"] * 5
    told: list[str] = []
    found = paired_bootstrap(references, ["ein Hund ein Haus", "kein Haus sieht einen"] * 5, references)
    kept = describe_comparison(found, "other", told.append)
    assert "BLEU 100.00 against" in told[0]
    assert "of other: +" in told[0]
    assert (kept["run"], kept["p_value"]) == ("other", found.p_value)
    assert kept["interval"][0] <= kept["difference"] <= kept["interval"][1]


def test_references_that_look_tokenized_are_named_once(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[progress.Event] = []
    with progress.listening(lambda event: told.append(event) if event.warning else None):
        evaluate_translation(translator(), [("a b", "a b a b .")] * TOKENIZED_LINES)
        evaluate_translation(translator(), [("a b", "a b a b.")] * TOKENIZED_LINES)
    assert [event.text for event in told if "BLEU is comparable" in event.text] == [
        '100 references end in " .", as tokenized text does; BLEU is comparable on raw text only'
    ]
    assert capfd.readouterr().err == ""


def test_bleu_of_text_without_spaces_counts_characters_where_asked_to() -> None:
    told: list[progress.Event] = []
    references = ["一只狗看见房子", "房子", "狗"]
    with progress.listening(lambda event: told.append(event) if event.warning else None):
        plain = evaluate_translation(translator(), list(zip(TEXTS, references, strict=False)))
        zh = evaluate_translation(translator(), list(zip(TEXTS, references, strict=False)), tokenize="zh")
    assert sum("--tokenize zh" in event.text for event in told) == 1
    assert ["tok:13a" in plain.scores[0].signature, "tok:zh" in zh.scores[0].signature] == [True, True]
    assert zh.scores[0].value == sacrebleu.corpus_bleu(zh.outputs, [references], tokenize="zh").score
    assert paired_bootstrap(references, zh.outputs, references, tokenize="zh").baseline.value == zh.scores[0].value


def test_bleu_that_no_output_can_have_is_told() -> None:
    told: list[str] = []
    with progress.listening(lambda event: told.append(event.text)):
        found = evaluate_translation(translator(kind="word"), [("ein Hund", "Hund ein"), ("bellt", "der Hund bellt")])
    assert told[-1] == "no reference has four words, so BLEU is 0 whatever the output; see chrF and exact match"
    assert found.by_length == []


def test_bleu_of_smoothing_alone_is_told() -> None:
    told: list[str] = []
    with progress.listening(lambda event: told.append(event.text)):
        evaluate_translation(translator(), [(text, "one two three four five") for text in TEXTS])
    assert told[-1] == "no output has four words in a row of its reference, so BLEU is smoothing alone; see chrF"


def test_the_command_line_offers_the_tokenizers_of_bleu() -> None:
    assert get_args(options.BleuTokens) == TOKENIZERS
