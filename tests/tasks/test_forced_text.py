"""Forced beginnings and terms: every one that fits comes, in whole words, with every family of models and kind of vocabulary."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import DecodingConfig
from regard.data.vocabulary import UNK, Vocabulary
from regard.decoding import DecodingOptions, SamplingOptions, beam_search
from regard.errors import ConfigError, DataError
from regard.models import Ensemble
from regard.tasks import Translator, predict
from regard.tasks.forced_text import Beginnings, Glossary, Term, encode_term, read_terms
from tests.tasks.tiny import FAMILIES, KINDS, TEXTS, translator

TERMS = Glossary([Term("Hund", "ein Haus"), Term("bellt", "Häuser"), Term("das Haus", "Hund")])
WIDE = DecodingConfig(beam_size=3, max_length=61, batch_size=2)


def has_words(text: str, words: str) -> bool:
    return f" {words} " in f" {text.replace('?', ' ?')} "


@pytest.mark.parametrize(("kind", "family"), [*((kind, "gru") for kind in KINDS), *(("bpe", family) for family in FAMILIES)])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_every_term_of_a_line_comes_in_whole_words(kind: str, family: str, beam_size: int) -> None:
    lines = [*TEXTS, "", "das Haus"]
    subject = translator(kind, model=FAMILIES[family])
    found = subject.translate(lines, decoding=WIDE.model_copy(update={"beam_size": beam_size}), terms=TERMS)
    follow = subject.run.vocabularies.target.may_follow_word()
    asked = 0
    for line, item in zip(lines, found, strict=True):
        assert item.unplaced == []
        assert "unplaced" not in item.to_json()
        for wanted in TERMS.find(line):
            asked += 1
            assert encode_term(subject.run.vocabularies.target, wanted).within(item.hypotheses[0].tokens, follow)
            assert wanted in item.text
    assert asked == 6


@pytest.mark.parametrize("term", [3, "ab", ("a", 5), ("a", "b", "c"), ["a", "b"]])
def test_what_is_no_term_is_named(term: Any) -> None:
    with pytest.raises(ConfigError, match=r"^terms\[1\]: expected a Term of two texts, found "):
        Glossary([Term("Hund", "dog"), term])


@pytest.mark.parametrize("term", [Term("", "dog"), Term("Hund", " ")])
def test_a_term_needs_both_sides(term: Term) -> None:
    with pytest.raises(ConfigError, match=r"^terms\[1\]: expected a term and its translation, found "):
        Glossary([Term("Hund", "dog"), term])


def test_a_line_without_terms_is_translated_as_if_nobody_had_any() -> None:
    subject = translator("bpe")
    alone = subject.translate(TEXTS)
    found = subject.translate(TEXTS, terms=TERMS)
    same = [number for number, line in enumerate(TEXTS) if not TERMS.find(line)]
    assert same
    pairs = [(found[number].hypotheses[0], alone[number].hypotheses[0]) for number in same]
    assert [one.tokens for one, _ in pairs] == [other.tokens for _, other in pairs]
    # Batches of other lines round differently.
    assert [one.score for one, _ in pairs] == pytest.approx([other.score for _, other in pairs], abs=1e-5)


def test_a_search_has_a_place_for_every_number_of_missing_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []

    def search(*places: Any, options: DecodingOptions, **named: Any) -> Any:
        widths.append(options.beam_size)
        return beam_search(*places, options=options, **named)

    monkeypatch.setattr(predict, "beam_search", search)
    subject = translator("character")
    # "Hund", "ein Haus" and "Häuser" with a letter each for the space before them: up to 5, 9 and 7 tokens.
    found = subject.translate(["bellt", "der Hund", "das Haus", "Haus"], decoding=WIDE, terms=TERMS)
    assert [item.unplaced for item in found] == [[], [], [], []]
    assert widths == [3, 6, 8, 10]


def test_terms_of_one_line_are_not_those_of_another() -> None:
    subject = translator("word")
    [one, other] = subject.translate(["ein Hund"] * 2, decoding=WIDE, terms=[TERMS, Glossary([Term("Hund", "sieht")])])
    assert has_words(one.text, "ein Haus")
    assert has_words(other.text, "sieht")


def test_an_ensemble_holds_terms() -> None:
    own = translator("bpe")
    both = Translator(own.run._replace(model=Ensemble([own.run.model, translator("bpe", model=FAMILIES["transformer"]).run.model]).eval()))
    assert "ein Haus" in both.translate(["Hund"], decoding=WIDE, terms=TERMS)[0].text


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_a_prefix_and_terms_go_together(kind: str) -> None:
    found = translator(kind).translate(["Hund bellt", "Haus"], decoding=WIDE, prefixes=["der Hund ", ""], terms=TERMS)
    assert found[0].text.startswith("der Hund")
    assert "ein Haus" in found[0].text
    assert "Häuser" in found[0].text
    assert found[0].unplaced == []


@pytest.mark.parametrize("family", ["gru", "transformer", "area features"])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_terms_and_a_prefix_hold_with_8_bit_weights(family: str, beam_size: int) -> None:
    subject = translator("bpe", model=FAMILIES[family])
    decoding = WIDE.model_copy(update={"beam_size": beam_size, "precision": "int8"})
    found = subject.translate(["Hund bellt", "das Haus"], decoding=decoding, prefixes=["der Hund ", ""], terms=TERMS)
    plain = subject.translate(["Hund bellt", "das Haus"], decoding=decoding)
    assert found[0].text.startswith("der Hund")
    assert all(words in found[0].text for words in ("ein Haus", "Häuser"))
    assert "Hund" in found[1].text
    assert [item.unplaced for item in found] == [[], []]
    assert [item.text for item in plain] != [item.text for item in found]


def test_what_has_no_room_or_no_tokens_is_told() -> None:
    subject = translator("word")
    terms = Glossary([Term("Hund", "Zebra"), Term("bellt", "ein Haus"), Term("ein", "der Hund")])
    lines = ["Hund bellt", "ein Hund bellt", "", "Haus"]
    found = subject.translate(lines, decoding=DecodingConfig(max_length=3), prefixes=["", "", "der", "ein Zebra"], terms=terms)
    assert [item.unplaced for item in found] == [["Zebra"], ["Zebra", "ein Haus"], ["der"], ["ein Zebra"]]
    assert has_words(found[0].text, "ein Haus")
    assert has_words(found[1].text, "der Hund")
    assert found[0].to_json()["unplaced"] == ["Zebra"]


@pytest.mark.parametrize("options", [{}, {"sampling": SamplingOptions()}, {"decoding": WIDE}])
def test_a_prefix_that_the_vocabulary_lacks_is_left_out_and_told(options: dict[str, Any]) -> None:
    own = translator("word")
    for subject in (own, Translator(own.run._replace(model=Ensemble([own.run.model]).eval()))):
        torch.manual_seed(3)
        found = subject.translate(["Hund bellt", "Haus"], prefixes=["wau der", "ein"], **options)
        torch.manual_seed(3)
        expected = subject.translate(["Hund bellt", "Haus"], prefixes=["", "ein"], **options)
        assert [item.text for item in found] == [item.text for item in expected]
        assert [item.unplaced for item in found] == [["wau der"], []]
        assert found[1].text.startswith("ein")


def test_a_term_in_small_letters_may_begin_a_translation_with_a_capital() -> None:
    vocabulary = Vocabulary.train(["Haus haus Haus"], kind="character", size=20)
    rows = [vocabulary.decode(row) for row in encode_term(vocabulary, "haus").rows]
    assert rows == [" haus", "haus", "Haus"]
    assert [vocabulary.decode(row) for row in encode_term(vocabulary, "Haus").rows] == [" Haus", "Haus"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_goes_on_with_letters_only(kind: str) -> None:
    vocabulary = Vocabulary.train([*TEXTS, "Hund, Haus."], kind=kind, size=300)
    may, pieces = vocabulary.may_follow_word(), vocabulary.pieces(range(len(vocabulary)))
    assert not may[UNK] if kind != "word" else may[UNK]
    for index in range(4, len(vocabulary)):
        part = pieces[index].startswith("\\x") and not "\\xe3" <= pieces[index][:4] <= "\\xe9"  # these begin Chinese and Japanese letters
        letter = pieces[index][:1].isalpha() or part
        assert may[index] == (kind == "word" or not (letter or pieces[index][:1].isdigit())), pieces[index]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_a_term_of_a_script_without_spaces_stands_among_other_letters(kind: str) -> None:
    texts = ["红色的狗看见猫。", "老男人找到大房子。", "狗喜欢猫、房子。"] * 3
    vocabulary = Vocabulary.train(texts, kind=kind, size=300)
    phrase = encode_term(vocabulary, "房子")
    assert vocabulary.decode([*vocabulary.encode("狗看见").ids, *phrase.tokens]) == "狗看见房子"
    assert "房子" in [vocabulary.decode(row) for row in phrase.rows]
    may = vocabulary.may_follow_word()
    assert may[vocabulary.encode("狗").ids[-1]]
    assert phrase.within([*phrase.tokens, *encode_term(vocabulary, "狗").tokens], may)


def test_terms_of_a_script_without_spaces_are_found() -> None:
    glossary = Glossary([Term("猫", "cat"), Term("熊猫", "panda"), Term("红 狗", "red dog"), Term("A狗", "dog A")])
    assert glossary.find("红狗看见熊猫和猫。") == ["red dog", "panda", "cat"]
    assert glossary.find("大A狗") == ["dog A"]


def test_a_term_has_one_translation() -> None:
    assert Glossary([Term("a  b", "c"), Term("a b", "c")]).find("a b") == ["c"]
    with pytest.raises(ConfigError, match="terms: 'a b' is 'c' and 'd'; expected one translation"):
        Glossary([Term("a b", "c"), Term("a b", "d")])


def test_tags_of_a_prefix_are_those_of_the_line() -> None:
    subject = translator("bpe")
    plain, tagged = ([item] for item in ("der Hund", "der <b>Hund</b>"))
    lines = ["ein <b>Hund</b> bellt"]
    assert [item.text for item in subject.translate_tagged(lines, prefixes=tagged)] == [
        item.text for item in subject.translate_tagged(lines, prefixes=plain)
    ]


def test_terms_are_found_by_words_the_longest_first() -> None:
    glossary = Glossary([Term("ball", "Ball"), Term("red ball", "roter Ball"), Term("US", "USA"), Term("e-mail", "Mail")])
    assert glossary.find("Balls, the Red ball and a BALL.") == ["roter Ball", "Ball"]
    assert glossary.find("us or US, an e-mail") == ["USA", "Mail"]
    assert glossary.find("ball ball") == ["Ball"]
    assert Glossary([]).find("ball") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\tb\nc\n", "line 2: expected a term, a tab"),
        ("a\tb\tc\n", "line 1"),
        ("\tb\n", "line 1"),
        ("a\t \n", "line 1"),
        ("a\tb\n\na\tc\n", "line 3: 'a' is 'b' in line 1"),
        ("a\tb\n!!!\tc\n", "terms.tsv, line 2: '!!!', expected a letter or a digit in the source term"),
        ("a\tb\n\xe4\tc\n", "terms.tsv, line 2: not UTF-8"),
    ],
)
def test_a_line_that_is_no_term_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "terms.tsv").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=told):
        read_terms(tmp_path / "terms.tsv")


def test_terms_and_beginnings_are_read(tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("a b\t c \n\nd\te\na b\tc\n")
    assert read_terms(tmp_path / "terms.tsv") == [Term("a b", "c"), Term("d", "e")]
    (tmp_path / "begin").write_text("one\n\nthree\n")
    lines = Beginnings(tmp_path / "begin")
    assert [lines.take(), lines.take()] == ["one", ""]
    with pytest.raises(DataError, match="begin: has more lines"):
        lines.finish()
    with pytest.raises(DataError, match="begin: has fewer lines"):
        lines.take()
    Beginnings(None).finish()
    assert Beginnings(None).take() == ""
    (tmp_path / "begin").write_bytes(b"one\n\xff\n")
    lines = Beginnings(tmp_path / "begin")
    lines.take()
    with pytest.raises(DataError, match="begin, line 2: not UTF-8"):
        lines.take()


def test_sampling_refuses_terms() -> None:
    options: dict[str, Any] = {"sampling": SamplingOptions(), "terms": TERMS}
    with pytest.raises(ConfigError, match="phrases: need beam search"):
        translator().translate(["Hund"], **options)


def test_the_longest_term_wins_and_long_ones_cost_no_more_than_their_words() -> None:
    terms = [Term("a b", "1"), Term("a b c d", "2"), Term("b c", "3"), Term("A b C", "4"), Term("a b c", "5")]
    find = Glossary(terms).find
    assert find("a b c x a b c d") == ["5", "2"]
    assert find("A b C d") == ["2"]  # longer, in any case
    assert find("A b C") == ["4"]  # exactly so
    assert find("a B c") == ["5"]
    assert find("b c a B") == ["3", "1"]
    assert Glossary([]).find("a b") == []
    start = time.perf_counter()
    assert Glossary([Term("a " * 300 + str(number), "x") for number in range(100)]).find("a " * 2500) == []
    assert time.perf_counter() - start < 5


def test_prefixes_and_terms_that_do_not_belong_to_the_lines_are_named() -> None:
    subject = translator("word")
    for wrong, message in [
        ({"prefixes": ["ein"]}, r"prefixes: expected a list of 2 texts, one per line, found \['ein'\]"),
        ({"prefixes": "de"}, "prefixes: expected a list of texts, found one text"),
        ({"prefixes": ["ein", 3]}, r"prefixes\[1\]: expected a text, found 3"),
        ({"terms": [Term("a", "b"), Term("c", "d")]}, "terms: expected a list of 2 glossaries, one per line, or one Glossary, found"),
        ({"terms": [TERMS]}, "terms: expected a list of 2 glossaries"),
        ({"terms": {"a": "b"}}, "terms: expected a list of 2 glossaries"),
    ]:
        for call in (subject.translate, subject.translate_tagged):
            with pytest.raises(ConfigError, match=message):
                call(["ein Hund", "das Haus"], **wrong)


def test_a_glossary_of_long_terms_can_be_copied() -> None:
    long = copy.deepcopy(Glossary([Term("a " * 500 + "b", "x")]))
    assert long.find("a " * 500 + "b") == ["x"]
