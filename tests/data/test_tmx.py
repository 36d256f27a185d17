"""A translation memory is read as sentence pairs, whatever tool wrote it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from regard import progress
from regard.data import read_pairs
from regard.data.shards import ParallelText
from regard.errors import ConfigError, DataError
from tests.tasks.tiny import TEXTS, configuration

HEAD = '<?xml version="1.0" encoding="{}"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"><header srclang="{}"/><body>'
TAIL = "</body></tmx>\n"


def unit(*sides: tuple[str, str], attribute: str = "xml:lang") -> str:
    return "<tu>" + "".join(f'<tuv {attribute}="{name}"><seg>{text}</seg></tuv>' for name, text in sides) + "</tu>\n"


def memory(path: Path, *units: str, source: str = "en", encoding: str = "utf-8") -> Path:
    data = (HEAD.format(encoding, source) + "".join(units) + TAIL).encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


ONE, TWO = (("en-US", "a dog"), ("de", "ein Hund")), (("en-US", "a cat"), ("de", "eine Katze"))
PAIRS = [("a dog", "ein Hund"), ("a cat", "eine Katze")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1"])
@pytest.mark.parametrize("name", ["a.tmx", "a.TMX", "a.tmx.gz"])
def test_pairs_are_read_in_every_encoding(tmp_path: Path, name: str, encoding: str) -> None:
    path = tmp_path / name
    units = [unit(*ONE), unit(("en-US", "Ged\u00e4chtnis"), ("de", "g\u00fcr"))]
    data = (HEAD.format(encoding.removesuffix("-sig"), "en") + "\r\n".join(units) + TAIL).encode(encoding)
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read_pairs(path) == [("a dog", "ein Hund"), ("Ged\u00e4chtnis", "g\u00fcr")]


def test_the_source_is_that_of_the_header_or_as_chosen(tmp_path: Path) -> None:
    path = memory(tmp_path / "a.tmx", unit(*reversed(ONE)), unit(*TWO, attribute="lang"))
    assert read_pairs(path) == PAIRS
    assert read_pairs(path, languages=("de", "en")) == [(target, source) for source, target in PAIRS]
    assert read_pairs(path, languages=("EN-us", "DE")) == PAIRS
    assert read_pairs(memory(path, unit(*reversed(ONE)), source="*all*")) == [("ein Hund", "a dog")]


def test_tags_and_line_ends_are_left_out_and_units_without_both_sides_skipped(tmp_path: Path) -> None:
    tagged = "a <bpt i='1'>&lt;b></bpt>red<ept i='1'>&lt;/b></ept> <hi>dog</hi> &amp;\n  <ph><sub>x</sub></ph> 10\u00a0000\u202f;\u2028b"
    units = [unit(("en", tagged), ("de", "rot")), unit(("en", "alone")), unit(("en", " \u00a0\n"), ("de", "leer")), unit(), unit(*ONE)]
    path = memory(tmp_path / "a.tmx", *units)
    assert read_pairs(path) == [("a red dog & 10\u00a0000\u202f;\u2028b", "rot"), ("a dog", "ein Hund")]


def test_a_file_of_more_languages_needs_a_choice(tmp_path: Path) -> None:
    three = unit(*ONE, ("fr", "un chien"), ("de-AT", "ein Hunderl"))
    path = memory(tmp_path / "a.tmx", three, unit(("fr", "un chat"), ("de", "eine Katze")))
    with pytest.raises(DataError, match=r"a\.tmx: has the languages de, de-at, en-us.* fr; choose two: data\.languages=\[SOURCE, TARGET\]"):
        read_pairs(path)
    assert read_pairs(path, languages=("fr", "de")) == [("un chien", "ein Hund"), ("un chat", "eine Katze")]
    assert read_pairs(path, languages=("en", "de-AT")) == [("a dog", "ein Hunderl")]
    with pytest.raises(DataError, match="no unit with a text in en and it; its languages are: de, de-at, en-us"):
        read_pairs(path, languages=("en", "it"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: not XML (no element found)"),
        ("a dog\tein Hund\n", "line 1: not XML"),
        ("<html>\n</html>", "line 1: expected <tmx>, found <'html'>"),
        ("<tmx><body><tu><tuv xml:lang='en'><seg>a", "not XML"),
        ("<tmx>\n<body>&x;</body></tmx>", "line 2: not XML (undefined entity)"),
        ('<!DOCTYPE tmx [\n<!ENTITY a "aaaa">\n]>\n<tmx>&a;</tmx>', "line 2: declares an entity, which is not read"),
        ('<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]><tmx>&a;</tmx>', "declares an entity"),
        ("<tmx><body/></tmx>", "no unit with a text in two languages; its languages are: none"),
    ],
)
def test_what_is_no_memory_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "a.tmx"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as error:
        read_pairs(path)
    assert str(error.value).startswith(str(path))
    assert told in str(error.value)


def test_shards_are_counted_and_a_large_one_is_streamed(tmp_path: Path) -> None:
    for name in "ab":
        memory(tmp_path / f"{name}.tmx.gz", *[unit(("en", f"{name} {number}"), ("de", f"{number}")) for number in range(20_011)])
    text = ParallelText(f"{tmp_path}/*.tmx.gz", languages=("de", "en"))
    assert text.pairs == 40_022
    assert list(text)[20_011] == ("0", "b 0")
    assert text.pairs == len(list(text.side(1)))


def test_a_memory_trains_and_evaluates_and_another_direction_is_another_run(call: Any, tmp_path: Path) -> None:
    pairs = [unit(("en", text), ("de", text.upper())) for text in TEXTS * 4]
    path = memory(tmp_path / "a.tmx", *pairs)
    config = configuration(kind="word")
    small = [f"model.{name}={getattr(config.model, name)}" for name in ("embed_dim", "encoder_dim", "decoder_dim", "readout_dim")]
    options = ["vocabulary.kind=word", *small, "training.max_updates=2", "training.batch_tokens=300"]
    answer = call("train", "translation", "--source", path, "--out", tmp_path / "run", "data.languages=[de, en]", *options)
    assert answer.code == 0, answer.err
    answer = call("score", tmp_path / "run", "--source", path, "--json")
    assert answer.code == 0, answer.err
    assert answer.out.decode("utf-8").splitlines()[0].startswith(f'{{"source": "{TEXTS[0].upper()}", "target": "{TEXTS[0]}"')
    assert call("evaluate", tmp_path / "run", "--source", path).code == 0
    (tmp_path / "other.csv").write_text("German,English\n" + "".join(f"{text.upper()},{text}\n" for text in TEXTS))
    for command in (["evaluate"], ["score"], ["align"], ["shortlist"], ["explain", "--method", "weights"]):
        given = [command[0], tmp_path / "run", *command[1:], "--source", tmp_path / "other.csv"]
        answer = call(*given)
        assert answer.code == 2
        assert "data.languages=[A, B] takes columns A and B (with a trained run: --languages A B)" in answer.err
        assert call(*given, "--languages", "German", "English").code == 0, command
    answer = call("train", "translation", "--source", path, "--out", tmp_path / "run", "data.languages=[en, de]", *options)
    assert answer.code != 0
    assert "data.languages" in answer.err


def test_a_language_that_comes_later_needs_a_choice_too(tmp_path: Path) -> None:
    path = memory(tmp_path / "a.tmx", unit(*ONE), unit(("en-US", "a cat"), ("fr", "un chat")), unit(*TWO))
    with pytest.raises(DataError, match=r"has the languages .*de.*en-us.*fr.*; choose two"):
        read_pairs(path)
    assert read_pairs(path, languages=("en", "de")) == PAIRS


def test_countries_may_differ_from_unit_to_unit(tmp_path: Path) -> None:
    units = [
        unit((english, text), (german, other))
        for (english, german), (text, other) in zip(
            [("en-US", "de-DE"), ("en-GB", "de-DE"), ("en", "de-AT")], [*PAIRS, ("a bird", "ein Vogel")], strict=True
        )
    ]
    assert read_pairs(memory(tmp_path / "a.tmx", *units)) == [*PAIRS, ("a bird", "ein Vogel")]
    only = [unit(("pt-BR", "ônibus"), ("pt-PT", "autocarro")), unit(("pt-BR", "trem"), ("pt-PT", "comboio"))]
    assert read_pairs(memory(tmp_path / "b.tmx", *only, source="pt-BR")) == [("ônibus", "autocarro"), ("trem", "comboio")]


def test_what_is_left_out_is_told_and_two_scripts_need_a_choice(tmp_path: Path) -> None:
    def unit(*texts: tuple[str, str]) -> str:
        return "<tu>" + "".join(f'<tuv xml:lang="{name}"><seg>{text}</seg></tuv>' for name, text in texts) + "</tu>"

    def memory(*units: str) -> Path:
        (tmp_path / "a.tmx").write_text(f'<tmx><header srclang="en"/><body>{"".join(units)}</body></tmx>')
        return tmp_path / "a.tmx"

    told: list[progress.Event] = []
    one, two = unit(("en", "one"), ("de", "eins"), ("de", "ein"), ("de-AT", "oans")), unit(("en", "two"))
    with progress.listening(told.append):
        assert read_pairs(memory(one, two), languages=("en", "de")) == [("one", "eins")]
    assert [event.text for event in told if "left out" in event.text] == [
        f"{tmp_path / 'a.tmx'}: left out 1 unit without a text in both languages and 2 further texts of a unit in one language"
    ]
    chinese = memory(unit(("en", "a"), ("zh-Hant", "b"), ("zh-Hans", "c")))
    with pytest.raises(DataError, match=r"has zh-hans, zh-hant, which are two scripts; name one: data\.languages"):
        read_pairs(chinese, languages=("en", "zh"))
    with pytest.raises(DataError, match="two scripts"):
        read_pairs(memory(unit(("en", "a"), ("zh-Hant", "b")), unit(("en", "a"), ("zh-Hans", "c"))), languages=("en", "zh"))
    chinese = memory(unit(("en", "a"), ("zh-Hant", "b"), ("zh-Hans", "c")))
    assert read_pairs(chinese, languages=("en", "zh-hans")) == [("a", "c")]


def test_a_text_is_never_paired_with_itself(tmp_path: Path) -> None:
    units = [unit(("pt-BR", "trem"), ("pt", "comboio")), unit(("pt-BR", "ônibus")), unit(("pt-BR", "suco"), ("pt-PT", "sumo"))]
    path = memory(tmp_path / "a.tmx", *units, source="pt-BR")
    for languages in (None, ("pt-BR", "pt")):
        assert read_pairs(path, languages=languages) == [("trem", "comboio"), ("suco", "sumo")]


@pytest.mark.parametrize("name", ["shift_jis", "nonsense"])
def test_an_encoding_that_is_not_read_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.tmx"
    path.write_text(f'<?xml version="1.0" encoding="{name}"?><tmx><header srclang="en"/><body></body></tmx>')
    with pytest.raises(DataError, match=r"a\.tmx: not read \(.*encoding.*\); write it as UTF-8"):
        read_pairs(path)


@pytest.mark.parametrize("languages", [("en", "EN"), ("en-US", "en_us")])
def test_a_language_is_no_translation_of_itself(tmp_path: Path, languages: tuple[str, str]) -> None:
    path = memory(tmp_path / "a.tmx", unit(("en", "a"), ("de", "b")))
    with pytest.raises(ConfigError, match="expected two different ones"):
        read_pairs(path, languages=languages)
