"""A line longer than a model was trained for is translated in parts, and nothing of it is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import Vocabulary
from regard.decoding import SamplingOptions
from regard.tasks.forced_text import Glossary, Term
from regard.tasks.long_lines import MOST_CHARACTERS, divide_line, first_words
from regard.tasks.word_links import find_links, find_part_links
from tests.tasks.tiny import FAMILIES, TEXTS, trained, translator

LONG = "der Hund sieht ein Haus, ein grünes Haus und bellt"  # 50 characters, of which 23 can be read
VOCABULARY = Vocabulary.train(TEXTS, kind="character", size=300)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_translation_of_a_long_line_is_that_of_its_parts(family: str) -> None:
    subject = translator(model=FAMILIES[family])
    parts = divide_line(LONG, VOCABULARY, 23)
    assert parts == ["der Hund ", "sieht ein Haus, ", "ein grünes ", "Haus und bellt"]
    assert max(len(part.strip()) for part in parts) <= 23
    own = subject.translate([part.strip() for part in parts], n_best=2)
    first, item, last = subject.translate([TEXTS[0], LONG, TEXTS[1]], n_best=2)
    for rank in range(2):
        assert item.texts[rank] == " ".join(part.texts[rank] for part in own)
        assert item.hypotheses[rank].tokens == [token for part in own for token in part.hypotheses[rank].tokens]
        assert item.hypotheses[rank].score == pytest.approx(sum(part.hypotheses[rank].score for part in own), abs=1e-4)
    assert (item.text, item.truncated, len(item.parts)) == (item.texts[0], 0, 4)
    assert [LONG[slice(*place)] for place in item.source.offsets] == item.source.pieces
    assert [item.text for item in (first, last)] == [item.text for item in subject.translate(TEXTS[:2])]
    assert (first.parts, "parts" in first.to_json(), item.to_json()["parts"]) == ([], False, 4)


def test_a_prefix_begins_the_first_part_and_terms_count_in_all() -> None:
    subject = translator()
    terms = Glossary([Term("Hund", "bellt"), Term("bellt", "ein"), Term("sieht", "zz")])
    item = subject.translate([TEXTS[0], LONG], prefixes=["", "Häu"], terms=[Glossary([]), terms])[1]
    assert item.text.startswith("Häu")
    assert "bellt" in item.part_texts()[0].split()
    assert "ein" in item.part_texts()[3].split()
    assert item.unplaced == ["zz"]


def test_samples_and_tags_have_parts_too() -> None:
    subject = translator()
    torch.manual_seed(5)
    item = subject.translate([LONG], sampling=SamplingOptions(num_samples=3))[0]
    assert [len(item.texts), len(item.parts), len(set(item.texts))] == [3, 4, 3]
    tagged = subject.translate_tagged([LONG.replace("grünes", "<b>grünes</b>") + "\n{x}"])[0]
    assert len(tagged.parts) == 4
    assert [tagged.text.count(part) for part in ("<b>", "</b>", "{x}", "\n")] == [1, 1, 1, 1]


def test_attention_and_a_model_of_two_inputs_cut_the_line() -> None:
    item = translator().translate([LONG], need_attention=True)[0]
    assert (len(item.source.ids), item.truncated, item.parts) == (23, 27, [])
    two = translator(model={**FAMILIES["transformer"], "second": {"kind": "joined"}})
    item = two.translate([f"{LONG}\tein Hund"])[0]
    assert (item.truncated > 0, item.parts) == (True, [])


@pytest.mark.parametrize("family", ["gru", "transformer"])
def test_links_count_the_words_of_the_whole_line(family: str) -> None:
    subject = translator(model=FAMILIES[family])
    item = subject.translate([LONG])[0]
    (found,) = find_part_links(subject.run, [(LONG, item.part_texts())])
    expected, sources, targets = set(), 0, 0
    for part, text in zip(divide_line(LONG, VOCABULARY, 23), item.part_texts(), strict=True):
        expected |= {(target + targets, source + sources) for target, source in find_links(subject.run, [(part.strip(), text)])[0]}
        sources, targets = sources + len(part.split()), targets + len(text.split())
    assert found == expected
    assert max(source for _, source in found) > 5


def test_a_part_that_begins_inside_a_word_goes_on_with_it() -> None:
    assert first_words(["ab ", " cd", "e f", "g"]) == [0, 1, 1, 2]
    assert first_words(divide_line("x" * 97 + " y", VOCABULARY, 23))[-1] == 0


@settings(max_examples=300)
@given(st.text(alphabet="ab é,.;\u3000🙂\n", min_size=1, max_size=200).filter(str.strip), st.integers(1, 30))
def test_nothing_of_a_line_is_lost(line: str, limit: int) -> None:
    vocabulary = Vocabulary.train(["a b"], kind="bpe", size=300)
    parts = divide_line(line, vocabulary, limit)
    assert "".join(parts) == line
    assert all(part.strip() for part in parts)
    assert all(len(vocabulary.encode(part.strip()).ids) <= limit or len(part.strip()) == 1 for part in parts)
    assert len(first_words(parts)) == len(parts)


def test_a_character_of_more_tokens_than_the_model_reads_is_cut() -> None:
    subject = translator("bpe", data={"max_length": 2})
    item = subject.translate(["🙂🙂"])[0]
    assert [part.truncated > 0 for part in item.parts] == [True, True]


def test_a_very_long_line_is_divided_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, lengths, encode = translator(), list[int](), Vocabulary.encode
    monkeypatch.setattr(Vocabulary, "encode", lambda self, text: lengths.append(len(text)) or encode(self, text))
    item = subject.translate([" ".join([LONG] * 41)])[0]
    assert max(lengths) <= MOST_CHARACTERS * 23
    assert len(item.parts) > 41


def test_the_command_tells_of_each_such_line(call: Any, tmp_path: Path) -> None:
    run = trained(tmp_path, kind="word", data={"max_length": 5})
    long = " ".join(["ein Haus"] * 4)
    answer = call("translate", run, "--links", tmp_path / "links", stdin=f"ein Hund\n{long}\n".encode())
    assert answer.code == 0, answer.err
    assert "line 2: longer than 5 tokens (data.max_length), translated in 2 parts" in answer.err
    assert len(answer.out.splitlines()) == 2
    assert len((tmp_path / "links").read_text(encoding="utf-8").splitlines()) == 2
    answer = call("translate", run, "--json", stdin=f"{long}\n".encode())
    assert json.loads(answer.out)["parts"] == 2
