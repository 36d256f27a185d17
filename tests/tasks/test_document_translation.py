"""Documents are translated sentence by sentence, keep their markup, and lose nothing of a long sentence."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from regard.data import Vocabulary
from regard.errors import ConfigError, MissingExtraError
from regard.tasks import Translation, Translator
from regard.tasks.document_translation import split_sentences, translate_document
from tests.tasks.tiny import trained, translator

pytest.importorskip("sentencex", reason="the extra documents splits sentences")


@pytest.fixture
def shouting(monkeypatch: pytest.MonkeyPatch) -> tuple[Translator, list[str]]:
    """Return a translator that writes capitals, and what it is asked."""
    asked: list[str] = []
    found = translator()

    def translate(lines: list[str], **_: Any) -> list[Translation]:
        asked.extend(lines)
        source = Vocabulary.train(["a"], kind="character", size=9).encode("a")
        return [Translation(line.upper(), [line.upper()], [], source, 0) for line in lines]

    monkeypatch.setattr(found, "translate", translate)
    monkeypatch.setattr(found, "translate_tagged", translate)
    return found, asked


def test_sentences_are_translated_one_by_one_and_paragraphs_kept(shouting: tuple[Translator, list[str]]) -> None:
    model, asked = shouting
    found = translate_document(model, "# Dogs\n\nDr. Ha sleeps. So do I.\n\n- one\n", "a.md")
    assert asked == ["Dogs", "Dr. Ha sleeps.", "So do I.", "one"]
    assert found.text == "# DOGS\n\nDR. HA SLEEPS. SO DO I.\n\n- ONE\n"
    assert (found.sentences, found.divided) == (4, [])


def test_a_space_joins_sentences_but_for_scripts_without_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = translator()
    source = Vocabulary.train(["a"], kind="character", size=9).encode("a")
    answers = iter(["我看见猫。", "他看见狗。", "Ja.", "好。"])
    found = [Translation(text, [text], [], source, 0) for text in answers]
    monkeypatch.setattr(model, "translate", lambda lines, **_: found[: len(lines)])
    assert translate_document(model, "I see. He sees. Yes. Good.", "a.txt").text == "我看见猫。他看见狗。 Ja. 好。"


@pytest.mark.parametrize("language", ["german", "d", "", "de de"])
def test_a_language_is_a_code(language: str) -> None:
    with pytest.raises(ConfigError, match="expected a code of two or three letters, such as de"):
        translate_document(translator(), "I see.", "a.txt", language=language)


@pytest.mark.parametrize("language", ["de", "DE", "de-AT", "de_XY"])
def test_a_region_or_capitals_in_a_code_keep_the_rules_of_the_language(language: str) -> None:
    assert split_sentences("Herr Dr. Ha kam am 3. Mai. Gut.", language) == ["Herr Dr. Ha kam am 3. Mai. ", "Gut."]


def test_a_language_without_rules_is_warned_of_with_the_known_ones(call: Any, tmp_path: Path) -> None:
    run, file = trained(tmp_path, kind="word"), tmp_path / "a.txt"
    file.write_text("der Hund bellt\n", encoding="utf-8")
    answer = call("translate", run, "--document", file, "--language", "xx")
    assert answer.code == 0
    assert "--language 'xx': no rules to split sentences; those of a related language or English are used; known: am, ar" in answer.err
    answer = call("translate", run, "--document", file, "--language", "zh-Hant")
    assert (answer.code, "no rules" in answer.err) == (0, False)


@pytest.mark.parametrize(
    ("document", "asked", "expected"),
    [
        ("One. Two.[^a]\n", ["One.", "Two."], "ONE. TWO.[^a]\n"),
        ("One. \U0001f600 12. https://a.b/c\n", ["One."], "ONE. \U0001f600 12. https://a.b/c\n"),
    ],
)
def test_a_sentence_without_letters_is_kept(shouting: tuple[Translator, list[str]], document: str, asked: list[str], expected: str) -> None:
    model, lines = shouting
    found = translate_document(model, document, "a.md")
    assert (lines, found.text, found.sentences) == (asked, expected, len(asked))


def test_tags_stay_with_their_sentence() -> None:
    assert split_sentences("<b>One two.</b> <i>Three four.</i>") == ["<b>One two.</b> ", "<i>Three four.</i>"]
    assert "".join(split_sentences("<br/>")) == "<br/>"


def test_the_command_writes_the_document_and_tells_of_long_sentences(call: Any, tmp_path: Path) -> None:
    run = trained(tmp_path, kind="word", data={"max_length": 5})
    page = tmp_path / "page.html"
    long = " ".join(["ein Haus"] * 4)
    page.write_text(f'<p>der <b>Hund</b> bellt</p>\n<pre>der Hund</pre>\n<p class="x">{long}</p>', encoding="utf-8")
    answer = call("translate", run, "--document", page, "--language", "de")
    assert answer.code == 0, answer.err
    text = answer.out.decode()
    assert text.startswith("<p>")
    assert '</p>\n<pre>der Hund</pre>\n<p class="x">' in text
    assert (text.count("<b>"), text.count("</b>")) == (1, 1)
    assert f"{long}': longer than 5 tokens (data.max_length), translated in 2 parts" in answer.err


def test_a_document_may_be_a_pipe(call: Any, tmp_path: Path) -> None:
    run, pipe = trained(tmp_path, kind="word"), tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"der Hund bellt\r\nein Haus\r\n",), daemon=True)
    writer.start()
    answer = call("translate", run, "--document", pipe)
    assert (answer.code, answer.out.endswith(b"\r\n")) == (0, True), answer.err


def test_a_lone_carriage_return_is_no_line_end_of_dos(call: Any, tmp_path: Path) -> None:
    run, file = trained(tmp_path, kind="word"), tmp_path / "old.txt"
    file.write_bytes(b"der Hund bellt\r")
    answer = call("translate", run, "--document", file)
    assert (answer.code, b"\r" in answer.out) == (0, False), answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--document", "a.txt", "--json"], "--document: not with FILE"),
        (["--language", "de"], "--language: only with --document"),
    ],
)
def test_options_that_do_not_go_with_a_document_are_refused(call: Any, tmp_path: Path, words: list[str], message: str) -> None:
    answer = call("translate", tmp_path, *words)
    assert answer.code == 2
    assert message in answer.err


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(MissingExtraError, match=r"\.\[documents\]"):
        split_sentences("a b")


def test_a_model_without_attention_cannot_place_markup() -> None:
    model = translator(model={"attention": None})
    assert json.dumps(translate_document(model, "ein Hund", "a.txt").text)
    with pytest.raises(ConfigError, match="no attention"):
        translate_document(model, "ein *Hund*", "a.md")
