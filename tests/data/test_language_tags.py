"""Names of languages in headers and translation memories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.data import read_pairs
from regard.data.language_tags import is_of, language_names, script_of, several_scripts
from regard.errors import DataError


@pytest.mark.parametrize(
    "header",
    [
        *("en\tde", "eng\tdeu", "zh-CN\tpt-BR", "en\tpt-BR", "zh-Hans\ten", "zh_Hans_CN\tpt_BR", "EN\tDE", "sr-Latn\tsr-Cyrl"),
        *("English\tGerman", "English\tChinese (Simplified)", "src_text\ttgt_text", "source sentence\ttarget sentence", "src\tnote\ttrg"),
    ],
)
def test_these_name_languages_or_sides(header: str) -> None:
    assert language_names(header.split("\t")) == header.split("\t")


@pytest.mark.parametrize(
    "pair",
    [
        *("German\tDeutsch", "ex-wife\tex-frau", "in\tin", "En\tEin", "no\tnein", "e-mail\te-mail", "to be\tsein", "Polish\tPolitur"),
        *("source code\tQuellcode", "a dog\tein Hund", "en", "en\t", "fr\t1", "up-date\tre-read"),
    ],
)
def test_these_are_pairs(pair: str) -> None:
    assert language_names(pair.split("\t")) == []


def test_tags_have_scripts_and_belong_to_languages() -> None:
    assert [script_of(tag) for tag in ("zh-tw", "zh-cn", "zh-hant-hk", "sr-rs", "zh", "xx-yy")] == ["hant", "hans", "hant", "cyrl", "", ""]
    assert is_of("zh-hans-cn", "zh-hans")
    assert is_of("zh-cn", "zh-hans")
    assert not is_of("zh-tw", "zh-hans")
    assert not is_of("zh-hans", "zh-cn")
    assert not is_of("eng", "en")
    assert several_scripts(["zh-cn", "zh-tw"])
    assert not several_scripts(["pt", "pt-br", "pt-pt"])


def unit(*sides: tuple[str, str]) -> str:
    return "<tu>" + "".join(f'<tuv xml:lang="{name}"><seg>{text}</seg></tuv>' for name, text in sides) + "</tu>"


def memory(folder: Path, *units: str, source: str = "en", before: str = "") -> Path:
    path = folder / "a.tmx"
    path.write_text(f'{before}<tmx><header srclang="{source}"/><body>\n' + "\n".join(units) + "</body></tmx>")
    return path


def test_a_script_finds_its_countries(tmp_path: Path) -> None:
    units = [unit(("en", str(i)), (name, name)) for i, name in enumerate(("zh-Hans", "zh-Hans-CN", "zh-SG", "zh-TW"))]
    path = memory(tmp_path, *units)
    assert [target for _, target in read_pairs(path, languages=("en", "zh_Hans"))] == ["zh-Hans", "zh-Hans-CN", "zh-SG"]
    with pytest.raises(DataError, match="which are two scripts"):
        read_pairs(path, languages=("en", "zh"))


@pytest.mark.parametrize("source", ["", "*all*", "en-US"])
def test_the_header_may_name_no_source_or_another_country(source: str, tmp_path: Path) -> None:
    assert read_pairs(memory(tmp_path, unit(("en-GB", "a"), ("de", "b")), source=source)) == [("a", "b")]


def test_a_source_of_the_header_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"de, en; its header names fr as the source; choose two"):
        read_pairs(memory(tmp_path, unit(("en", "a"), ("de", "b")), source="fr"))


def test_an_entity_of_a_doctype_is_refused(tmp_path: Path) -> None:
    before = '<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">'
    assert read_pairs(memory(tmp_path, unit(("en", "a &amp; &#233;"), ("de", "b")), before=before)) == [("a & é", "b")]
    with pytest.raises(DataError, match=r"a\.tmx, line 2: &nbsp; is no character of XML"):
        read_pairs(memory(tmp_path, unit(("en", "10&nbsp;000"), ("de", "b")), before=before))


@pytest.mark.parametrize(
    ("name", "content", "languages", "reason"),
    [
        ("a.jsonl", '{"EN": "a", "En": "b", "de": "c"}', ("en", "de"), "line 1: has the keys EN, En; keep one of them"),
        ("a.jsonl", '{"en": "a", "EN": "b", "de": "c"}', ("en", "de"), "line 1: has the keys en, EN; keep one of them"),
        ("a.csv", "PK\x03\x04\x00", None, "is a zip archive, as spreadsheets are; export the sheet as CSV"),
        ("a.tsv", "a\tb\rc\td\r", None, "3 columns, expected 2: .*old Macintosh"),
    ],
)
def test_what_would_lose_text_is_refused(name: str, content: str, languages: Any, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, newline="")
    with pytest.raises(DataError, match=reason):
        read_pairs(tmp_path / name, languages=languages)


@pytest.mark.parametrize(("name", "content"), [("a.csv", "de_DE,en-US\na,b\n"), ("a.jsonl", '{"DE_de": "a", "en-us": "b"}\n')])
def test_languages_count_in_any_spelling(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert read_pairs(tmp_path / name, languages=("de-DE", "en_US")) == [("a", "b")]
