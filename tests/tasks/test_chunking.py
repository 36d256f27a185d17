"""Items in chunks: what could be read before a failure is not lost."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from regard.commands.streaming import paired_chunks
from regard.data.lines import stream_lines
from regard.errors import DataError
from regard.tasks.chunking import in_chunks


def test_the_lines_before_damaged_data_come_before_the_error(tmp_path: Path) -> None:
    (path := tmp_path / "a.gz").write_bytes(gzip.compress(b"one\ntwo\nthree\n") + b"junk")
    chunks = in_chunks(stream_lines(path), len, most=2)
    assert [next(chunks), next(chunks)] == [["one", "two"], ["three"]]
    with pytest.raises(DataError, match=r"a\.gz: damaged or truncated gzip data after line 3"):
        next(chunks)


def test_other_errors_are_raised_at_once() -> None:
    with pytest.raises(ZeroDivisionError):
        next(in_chunks((1 // (2 - number) for number in range(5)), lambda _: 1))


def test_pairs_before_damaged_second_inputs_are_kept(tmp_path: Path) -> None:
    (path := tmp_path / "b.gz").write_bytes(gzip.compress(b"1\n2\n3\n") + b"junk")
    pairs = paired_chunks(iter([["a", "b"], ["c", "d"]]), [tmp_path / "a"], path)
    assert [next(pairs), next(pairs)] == [["a\t1", "b\t2"], ["c\t3"]]
    with pytest.raises(DataError, match=r"b\.gz: damaged or truncated gzip data after line 3"):
        next(pairs)
