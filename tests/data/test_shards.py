"""Shards: blocks hold every line once, by the rules of every other reader, whatever the files end with."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.lines import read_lines
from regard.data.shards import find_shards, read_block, sample_pairs, scan_shards
from regard.errors import DataError

LINE = st.sampled_from([b"", b" ", b"a", b"ein Hund", b"\xff\xfe", b"a\rb", b"c\r", b"\xef\xbb\xbfd", "\u2028".encode(), b"x" * 70])
SHARD = st.tuples(st.lists(LINE, max_size=13), st.booleans())


def joined(lines: list[bytes], end: bool) -> bytes:
    # A last line that is empty is one only with its line feed.
    return b"\n".join(lines) + (b"\n" if lines and (end or not lines[-1]) else b"")


@given(shards=st.lists(SHARD, min_size=1, max_size=4), block=st.integers(1, 15))
def test_blocks_hold_every_line_once_and_in_order(tmp_path_factory: pytest.TempPathFactory, shards: list, block: int) -> None:
    folder = tmp_path_factory.mktemp("shards")
    expected, everything = [], hashlib.sha256()
    for number, (lines, end) in enumerate(shards):
        sides = joined(lines, end), joined(lines[::-1], True)
        for name, content in zip(("en", "de"), sides, strict=True):
            (folder / f"{number}.{name}").write_bytes(content)
            everything.update(content)
        expected += list(zip(*(read_lines(folder / f"{number}.{name}") for name in ("en", "de")), strict=True))
    found = find_shards(f"{folder}/*.en", f"{folder}/*.de")
    if not expected:
        with pytest.raises(DataError, match="no lines in any shard"):
            scan_shards(found, block)
        return
    blocks, digest = scan_shards(found, block)
    assert [pair for each in blocks for pair in read_block(found, each)] == expected
    assert digest == everything.hexdigest()
    assert [each.first for each in blocks] == [sum(before.pairs for before in blocks[:n]) for n in range(len(blocks))]
    assert max(each.pairs for each in blocks) <= block
    assert sample_pairs(found, blocks, len(expected)) == expected


def test_a_sample_comes_from_all_over_the_text(tmp_path: Path) -> None:
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("".join(f"{number}\n" for number in range(1000)))
    shards = find_shards(str(tmp_path / "a.en"), str(tmp_path / "a.de"))
    blocks, _ = scan_shards(shards, 10)
    taken = [int(source) for source, _ in sample_pairs(shards, blocks, 100)]
    assert len(taken) == 100
    assert [sum(start <= number < start + 250 for number in taken) for start in (0, 250, 500, 750)] == [30, 20, 30, 20]


def test_shards_that_do_not_match_are_named(tmp_path: Path) -> None:
    for name, lines in (("1.en", 3), ("2.en", 4), ("1.de", 3), ("2.de", 5)):
        (tmp_path / name).write_text("x\n" * lines)
    with pytest.raises(DataError, match=r"2\.de: 5 lines, but .*2\.en has 4"):
        scan_shards(find_shards(f"{tmp_path}/*.en", f"{tmp_path}/*.de"), 2)
    with pytest.raises(DataError, match=r"\*\.en: 2 files, but .*1\.de: 1; expected as many"):
        find_shards(f"{tmp_path}/*.en", f"{tmp_path}/1.de")
    with pytest.raises(DataError, match=r"\*\.fr: no such file, and no file has a name like this"):
        find_shards(f"{tmp_path}/*.en", f"{tmp_path}/*.fr")
    (tmp_path / "3.en.gz").touch()
    with pytest.raises(DataError, match=r"3\.en\.gz: compressed; .* decompress them first"):
        find_shards(f"{tmp_path}/*.en*", f"{tmp_path}/*.de")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"folder: .*folder"):
        scan_shards([(tmp_path / "folder", tmp_path / "1.de")], 2)


def test_a_shard_that_shrinks_meanwhile_is_named(tmp_path: Path) -> None:
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("one\ntwo\nthree\n")
    shards = find_shards(str(tmp_path / "a.en"), str(tmp_path / "a.de"))
    blocks, _ = scan_shards(shards, 2)
    (tmp_path / "a.de").write_text("one\n")
    with pytest.raises(DataError, match=r"a\.de: changed while it was read, 0 lines where 1 were"):
        read_block(shards, blocks[1])
