"""Pairs: read from every format, written back, held out; every mistake named by file and line."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from regard.data.file_digests import DataFiles
from regard.data.lines import scan_lines
from regard.data.parallel import file_digest, hold_out, read_pairs, write_parallel
from regard.data.shards import ParallelText
from regard.errors import ConfigError, DataError

PAIRS = [("ein Hund", "a dog"), ("", ""), ("zwei\u2028 Zeilen ", 'two "lines"\x85')]


def test_every_format_gives_the_same_pairs(tmp_path: Path) -> None:
    texts = {
        "a.de": "".join(f"{source}\n" for source, _ in PAIRS),
        "a.en": "\ufeff" + "".join(f"{target}\r\n" for _, target in PAIRS),
        "a.tsv": "\n".join(f"{source}\t{target}" for source, target in PAIRS),
        "a.jsonl": "".join(json.dumps({"id": 7, "source": source, "target": target}) + "\n" for source, target in PAIRS),
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode())
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    for end in ("", ".gz"):
        assert read_pairs(tmp_path / f"a.de{end}", tmp_path / f"a.en{end}") == PAIRS
        assert read_pairs(tmp_path / f"a.tsv{end}") == PAIRS
        assert read_pairs(tmp_path / f"a.jsonl{end}") == PAIRS


def test_unequal_files_are_refused_with_both_counts(tmp_path: Path) -> None:
    (tmp_path / "valid.en").write_text("a\nb\nc\n")
    (tmp_path / "valid.de").write_text("a")
    with pytest.raises(DataError, match=r"valid\.de: 1 line, but .*valid\.en has 3"):
        read_pairs(tmp_path / "valid.en", tmp_path / "valid.de")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("a.tsv", "no tab", "line 2: 1 column, expected 2"),
        ("a.tsv", "", "line 2: an empty line; remove it"),
        ("a.tsv", "one\ttwo\tthree", "line 2: 3 columns, expected 2"),
        ("a.jsonl", "", "line 2: an empty line; remove it"),
        ("a.jsonl", '{"source": "a"', "line 2: not JSON"),
        ("a.jsonl", "[" * 100_000, "line 2: more than 64 levels"),
        ("a.jsonl", '{"source": "a", "target": "b", "source": "c"}', "line 2: the key 'source' stands twice"),
        ("a.jsonl", '{"source": "a", "src": "b", "target": "c"}', "line 2: has the keys source, src; keep one of them"),
        ("a.jsonl", '["a", "b"]', "line 2: expected an object .* found a list"),
        (
            "a.jsonl",
            '{"source": "a"}',
            'line 2: expected a text under "target", found the keys source; data.languages',
        ),
        ("a.jsonl", '{"source": null, "target": "b"}', 'line 2: expected a text under "source", found null'),
    ],
)
def test_wrong_line_is_named(tmp_path: Path, name: str, line: str, message: str) -> None:
    good = "a\tb" if name.endswith(".tsv") else '{"source": "a", "target": "b"}'
    (tmp_path / name).write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(DataError, match=message) as caught:
        read_pairs(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_empty_missing_and_unknown_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_text("")
    with pytest.raises(DataError, match=r"empty\.tsv: no lines"):
        read_pairs(tmp_path / "empty.tsv")
    (tmp_path / "empty.en").write_text("")
    with pytest.raises(DataError, match=r"empty\.en: no lines"):
        read_pairs(tmp_path / "empty.en", tmp_path / "empty.en")
    with pytest.raises(DataError, match=r"none\.de: no such file"):
        read_pairs(tmp_path / "empty.en", tmp_path / "none.de")
    with pytest.raises(DataError, match=r"a\.txt: expected a \.jsonl, \.tsv, \.csv or \.tmx file"):
        read_pairs(tmp_path / "a.txt")


def test_lone_surrogate_in_json_becomes_a_replacement_character(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "\\ud800", "target": "b"}')
    assert read_pairs(tmp_path / "a.jsonl") == [("\ufffd", "b")]


def test_written_pairs_are_read_back(tmp_path: Path) -> None:
    source, target = write_parallel(tmp_path / "new" / "folder", "dates", PAIRS)
    assert (source.name, target.name) == ("dates.source", "dates.target")
    assert read_pairs(source, target) == PAIRS
    assert len(list(source.parent.iterdir())) == 2


@pytest.mark.parametrize("bad", [("a\nb", "c"), ("a", "c\r"), ("\ufeffa", "c"), ("a", "\ud800")])
def test_pair_that_would_not_come_back_is_refused_and_nothing_written(tmp_path: Path, bad: tuple[str, str]) -> None:
    with pytest.raises(DataError, match=r"pair 1, (source|target)"):
        write_parallel(tmp_path, "x", [bad])
    assert list(tmp_path.iterdir()) == []


def test_writing_nothing_or_outside_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no pairs"):
        write_parallel(tmp_path, "x", [])
    with pytest.raises(ConfigError, match="without a folder"):
        write_parallel(tmp_path, "../x", PAIRS)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_parallel(tmp_path / "file", "x", PAIRS)


@pytest.mark.parametrize(("pairs", "count", "held"), [(2, 500, 1), (19, 500, 1), (101, 500, 10), (101, 7, 7)])
def test_hold_out_takes_at_most_a_tenth_and_at_least_one(pairs: int, count: int, held: int) -> None:
    data = [(str(number), str(-number)) for number in range(pairs)]
    train, valid = hold_out(data, count, seed=3)
    assert len(valid) == held
    assert sorted(train + valid, key=data.index) == data
    assert train == sorted(train, key=data.index)
    assert valid == sorted(valid, key=data.index)


def test_hold_out_depends_on_the_seed_alone() -> None:
    data = [(str(number), "") for number in range(211)]
    assert hold_out(data, 13, seed=5) == hold_out(data, 13, seed=5)
    assert hold_out(data, 13, seed=5) != hold_out(data, 13, seed=6)
    with pytest.raises(DataError, match="at least 2"):
        hold_out(data[:1], 13, seed=5)
    with pytest.raises(ConfigError, match="held_out: 0"):
        hold_out(data, 0, seed=5)


def test_digest_is_the_sha256_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc\r\n")
    assert file_digest(tmp_path / "a") == hashlib.sha256(b"abc\r\n").hexdigest()
    with pytest.raises(DataError, match="no such file"):
        file_digest(tmp_path / "b")


def test_a_pipe_is_refused_where_a_file_is_read_more_than_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.en"
    os.mkfifo(pipe)  # nobody writes to it: opening it would wait for ever
    for read in (
        file_digest,
        scan_lines,
        lambda path: ParallelText(str(path), str(path)),
        lambda path: DataFiles({"text": str(path)}, tmp_path),
    ):
        with pytest.raises(DataError, match=r"pipe\.en: expected a file, which is read more than once, found a pipe"):
            read(pipe)


def test_objects_without_the_keys_of_given_languages_are_told_which_are_missing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"en-US": "a", "de-DE": "b"}\n')
    with pytest.raises(DataError, match=r'line 1: expected a text under "en", found the keys en-US, de-DE$'):
        read_pairs(tmp_path / "a.jsonl", languages=("en", "de"))
    (tmp_path / "a.jsonl").write_text('{"source": "a", "target": "b"}\n')
    assert read_pairs(tmp_path / "a.jsonl", languages=("en", "de")) == [("a", "b")]


@pytest.mark.parametrize("languages", ["ab", (None, None), ("a", 1), True, ("a",), ("a", "")])
def test_languages_are_two_names(tmp_path: Path, languages: Any) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\nx\ty\n")
    with pytest.raises(ConfigError, match="languages: expected two names, of source and target, found"):
        read_pairs(tmp_path / "a.tsv", languages=languages)
