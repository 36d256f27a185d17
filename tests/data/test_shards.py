"""Shards: every line once and in order, by the rules of every other reader; what is known of a file is believed only while it stays."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import shards
from regard.data.lines import read_lines, scan_lines
from regard.data.parallel import file_digest
from regard.data.shards import ParallelText, find_shards
from regard.data.subsample import in_sample
from regard.errors import DataError

LINE = st.sampled_from([b"", b" ", b"a", b"ein Hund", b"\xff\xfe", b"a\rb", b"c\r", b"\xef\xbb\xbfd", "\u2028".encode(), b"x" * 70])
SHARD = st.tuples(st.lists(LINE, max_size=13), st.booleans(), st.booleans())


def joined(lines: list[bytes], end: bool) -> bytes:
    # A last line that is empty is one only with its line feed.
    return b"\n".join(lines) + (b"\n" if lines and (end or not lines[-1]) else b"")


@given(found=st.lists(SHARD, min_size=1, max_size=4), block=st.integers(1, 15))
def test_all_pairs_come_once_and_in_order(tmp_path_factory: pytest.TempPathFactory, found: list, block: int) -> None:
    folder = tmp_path_factory.mktemp("shards")
    expected, digests = [], []
    for number, (lines, end, packed) in enumerate(found):
        files = []
        for name, content in (("en", joined(lines, end)), ("de", joined(lines[::-1], True))):
            files.append(folder / f"{number}.{name}{'.gz' if packed else ''}")
            files[-1].write_bytes(gzip.compress(content, mtime=0) if packed else content)
        assert scan_lines(files[0]) == (file_digest(files[0]), len(read_lines(files[0])))
        expected += list(zip(*map(read_lines, files), strict=True))
        digests.append(file_digest(files[0]))
    if not expected:
        with pytest.raises(DataError, match="no lines, expected at least one sentence pair"):
            ParallelText(f"{folder}/*.en*", f"{folder}/*.de*")
        return
    text = ParallelText(f"{folder}/*.en*", f"{folder}/*.de*")
    assert text.pairs == len(expected)
    assert list(text) == expected
    decoded = [[line.decode(errors="replace") for line in text.side(side)] for side in (0, 1)]
    assert decoded == [[pair[side] for pair in expected] for side in (0, 1)]
    blocks = list(text.blocks(block))
    for side in (0, 1):
        assert [line.decode(errors="replace") for _, sides in blocks for line in sides[side]] == decoded[side]
    assert [first for first, _ in blocks] == list(range(0, len(expected), block))
    assert text.digests["source"] == (digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest())


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.jsonl"])
def test_files_of_pairs_are_shards_too(tmp_path: Path, name: str) -> None:
    lines = "ein Hund\ta dog\n\tb\n" if "tsv" in name else '{"source": "ein Hund", "target": "a dog"}\n{"source": "", "target": "b"}\n'
    (tmp_path / name).write_bytes(gzip.compress(lines.encode()) if name.endswith("gz") else lines.encode())
    text = ParallelText(f"{tmp_path}/a*")
    assert list(text) == [("ein Hund", "a dog"), ("", "b")]
    assert list(text.side(1)) == [b"a dog", b"b"]
    assert text.digests == {"source": file_digest(tmp_path / name)}


def test_what_does_not_match_is_named(tmp_path: Path) -> None:
    for name, lines in (("1.en", 3), ("2.en", 1), ("1.de", 3), ("2.de", 5)):
        (tmp_path / name).write_text("x\n" * lines)
    with pytest.raises(DataError, match=r"2\.de: 5 lines, but .*2\.en has 1"):
        ParallelText(f"{tmp_path}/*.en", f"{tmp_path}/*.de")
    with pytest.raises(DataError, match=r"\*\.en: 2 files, but .*1\.de: 1; expected as many"):
        find_shards(f"{tmp_path}/*.en", f"{tmp_path}/1.de")
    with pytest.raises(DataError, match=r"\*\.fr: no such file, and no file has a name like this"):
        find_shards(f"{tmp_path}/*.en", f"{tmp_path}/*.fr")
    with pytest.raises(DataError, match=r"/1\.fr: no such file"):
        ParallelText(f"{tmp_path}/1.en", f"{tmp_path}/1.fr")
    with pytest.raises(DataError, match=r"1\.en: expected a \.jsonl, \.tsv, \.csv or \.tmx file of pairs, or a second file"):
        ParallelText(f"{tmp_path}/1.en")
    (tmp_path / "b.tsv").write_text("a\tb\n" * 3 + "c\n")
    with pytest.raises(DataError, match=r"b\.tsv, line 4: 1 column, expected 2"):
        ParallelText(f"{tmp_path}/*.tsv")
    whole = gzip.compress(os.urandom(90_000) + b"\nx\n")
    (tmp_path / "1.de.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"1\.de\.gz: damaged or truncated gzip data after line"):
        ParallelText(f"{tmp_path}/1.en", f"{tmp_path}/1.de.gz")
    (tmp_path / "1.de.gz").write_bytes(b"x\n" * 3)
    with pytest.raises(DataError, match=r"1\.de\.gz: expected gzip data \(by its name\)"):
        ParallelText(f"{tmp_path}/1.en", f"{tmp_path}/1.de.gz")


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    for name in ("a[1].en", "a[1].de", "a1.en"):
        (tmp_path / name).write_text(f"{name}\n")
    assert list(ParallelText(f"{tmp_path}/a[1].en", f"{tmp_path}/a[1].de")) == [("a[1].en", "a[1].de")]


def test_text_that_grows_or_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("one\ntwo\nthree\n")
    text = ParallelText(f"{tmp_path}/a.en", f"{tmp_path}/a.de")
    (tmp_path / "a.de").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=r"a\.de: changed while it was read, 2 lines where 3 were"):
        list(text)
    with pytest.raises(DataError, match=r"a\.de: changed while it was read"):
        list(text.side(1))
    assert len(list(text.side(0))) == 3


def test_files_that_stayed_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "a.en", tmp_path / "a.de"]
    read: list[str] = []
    scan = shards.scan_lines
    monkeypatch.setattr(shards, "scan_lines", lambda path, advance, **_: read.append(Path(path).name) or scan(path, advance))
    for path in files:
        path.write_text("one\ntwo\n")

    def opened(**known: dict) -> ParallelText:
        read.clear()
        return ParallelText(*map(str, files), **known)

    fresh = opened()
    # Just written: the same second might bring another content of the same size.
    assert opened(known=fresh.facts).pairs == 2
    assert read == ["a.en", "a.de"]
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 10**10)
    settled = opened()
    assert opened(known=settled.facts).digests == fresh.digests
    assert read == []
    files[1].write_text("two\none\n")  # as long as before
    os.utime(files[1], ns=(settled.facts[str(files[1])].state[1],) * 2)  # and as old
    changed = opened(known=settled.facts)
    assert read == ["a.de"]
    assert changed.digests["target"] != fresh.digests["target"]


@given(total=st.integers(1, 300), count=st.integers(1, 300), block=st.integers(1, 70))
def test_a_sample_takes_its_share_of_every_block(total: int, count: int, block: int) -> None:
    parts = [in_sample(total, count, first, min(block, total - first)) for first in range(0, total, block)]
    assert sum(int(part.sum()) for part in parts) == min(count, total)
    for part in parts:
        assert abs(part.sum() - len(part) * min(count, total) / total) <= 1
    again = [in_sample(total, count, first, min(block, total - first)) for first in range(0, total, block)]
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


def test_a_sample_has_no_rhythm() -> None:
    # Every second line: a text of two kinds in turns would give one of them only.
    taken = in_sample(10_000, 5_000, 0, 10_000)
    assert 2_300 < taken[::2].sum() < 2_700


def test_files_whose_wildcards_are_the_same_belong_together(tmp_path: Path) -> None:
    for name in ("part", "part.dev", "a"):
        for side in ("en", "de"):
            (tmp_path / f"{name}.{side}").write_text(f"{name} {side}\n")
    assert list(ParallelText(f"{tmp_path}/*.en", f"{tmp_path}/*.de")) == [
        ("a en", "a de"),
        ("part.dev en", "part.dev de"),
        ("part en", "part de"),
    ]
    for side in ("en", "de"):
        (tmp_path / side).mkdir()
        for name in ("1", "2"):
            (tmp_path / side / f"{name}-{side}.txt").write_text(f"{name} {side}\n")
    assert list(ParallelText(f"{tmp_path}/en/*.txt", f"{tmp_path}/de/*.txt")) == [("1 en", "1 de"), ("2 en", "2 de")]
