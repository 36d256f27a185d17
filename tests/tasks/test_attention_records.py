"""Records of what a run attended to, and the files they are kept in."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.config import TranslationConfig
from regard.errors import ConfigError, DataError
from regard.tasks import attention_records
from regard.tasks.attention_records import save_records, translation_records
from regard.tasks.run_folder import read_config
from regard.viewer import read_records
from tests.tasks.tiny import translator


def test_each_line_with_text_has_a_record(run_folder: Path) -> None:
    records = translation_records(run_folder, ["ein Hund", "", "Haus", "  "])
    assert [record.source_text for record in records] == ["ein Hund", "Haus"]


def test_a_wider_beam_may_be_asked_for(run_folder: Path) -> None:
    assert translation_records(run_folder, ["ein Hund"], beam_size=1)[0].source == [*"ein Hund", "</s>"]


def test_a_given_translation_is_looked_at(run_folder: Path) -> None:
    (record,) = translation_records(run_folder, ["ein Hund"], target="Hund")
    assert record.target == [*"Hund", "</s>"]


@pytest.mark.parametrize("methods", [(), ("input-gradient",)])
@pytest.mark.parametrize("target", [None, "Hund", "Haus" * 40])
def test_what_is_cut_is_told_once(run_folder: Path, messages: list[str], target: str | None, methods: tuple[str, ...]) -> None:
    limit = read_config(run_folder, TranslationConfig).data.max_length
    translation_records(run_folder, ["Haus" * 40], target=target, methods=methods)
    assert [message for message in messages if "cut" in message] == [f"1 example cut to data.max_length, {limit} tokens"]
    messages.clear()
    translation_records(run_folder, ["Haus"], target=target and "Hund", methods=methods)
    assert not [message for message in messages if "cut" in message]


def test_what_cannot_be_looked_at_is_refused(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--target: goes with one sentence, found 2"):
        translation_records(run_folder, ["Hund", "Haus"], target="Hund")
    for lines, target in (([], None), (["", " "], None), ([""], "Hund"), (["Hund"], "")):
        with pytest.raises(DataError, match="no attention to show"):
            translation_records(run_folder, lines, target=target)
    monkeypatch.setattr(attention_records.Translator, "open", lambda folder: translator(model={"attention": None}))
    with pytest.raises(ConfigError, match="this model has no attention to show"):
        translation_records("run", ["Hund"])


@pytest.mark.parametrize("ending", ["html", "json", "png", "svg", "pdf", "PNG"])
def test_the_ending_decides_the_form(run_folder: Path, tmp_path: Path, ending: str) -> None:
    save_records(translation_records(run_folder, ["ein Hund"]), tmp_path / f"a.{ending}")
    beginning = {"html": b"<!doctype", "json": b'{"format"', "png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending.lower()]
    assert (tmp_path / f"a.{ending}").read_bytes()[:9].lower().startswith(beginning.lower())


def test_records_read_back(run_folder: Path, tmp_path: Path) -> None:
    records = translation_records(run_folder, ["ein Hund", "Haus"])
    save_records(records, tmp_path / "a.json")
    assert [record.to_json() for record in read_records(tmp_path / "a.json")] == [record.to_json() for record in records]


def test_a_picture_shows_one_example_and_an_unknown_ending_nothing(run_folder: Path, tmp_path: Path) -> None:
    records = translation_records(run_folder, ["ein Hund", "Haus"])
    with pytest.raises(DataError, match=r"a\.png: a picture shows one example, found 2; choose one by --example, or write a \.html page"):
        save_records(records, tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.gif: an animation needs an example at two updates or more, found 1"):
        save_records(records[:1], tmp_path / "a.gif")
    for name in ("a.bmp", "a", ".png"):
        with pytest.raises(DataError, match=r"expected a name ending in \.html"):
            save_records(records[:1], tmp_path / name)
    with pytest.raises(DataError, match="cannot be written"):
        save_records(records, tmp_path / "nowhere" / "a.html")
    assert list(tmp_path.iterdir()) == []
