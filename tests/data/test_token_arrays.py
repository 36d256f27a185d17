"""Flat tokens: the same sequences as lists, in memory and on disk; a cache is whole, of what is asked for, or not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.token_arrays import FlatTokens, TokenFile, TokenWriter, sequence_offsets, smallest_dtype
from regard.data.token_cache import MANIFEST, new_cache, open_cache
from regard.errors import DataError

ROWS = st.lists(st.lists(st.integers(0, 70_000), max_size=5), max_size=9)


def listed(tokens: FlatTokens) -> list[list[int]]:
    return [row.tolist() for row in tokens]


@given(rows=ROWS, data=st.data())
def test_rows_come_back(rows: list[list[int]], data: st.DataObject) -> None:
    tokens = FlatTokens.of(rows)
    assert listed(tokens) == rows
    assert tokens.lengths.tolist() == [len(row) for row in rows]
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    part = tokens.part(start, stop)
    assert listed(part) == listed(part[:]) == rows[start:stop]
    assert listed(part[::-1]) == rows[start:stop][::-1]
    flags = np.array(data.draw(st.lists(st.booleans(), min_size=stop - start, max_size=stop - start)), bool)
    assert listed(part.chosen(flags)) == [row for row, taken in zip(rows[start:stop], flags, strict=True) if taken]
    if rows:
        assert tokens[-1].tolist() == rows[-1]


@given(blocks=st.lists(ROWS, max_size=4), data=st.data())
def test_files_give_what_was_written(tmp_path_factory: pytest.TempPathFactory, blocks: list[list[list[int]]], data: st.DataObject) -> None:
    rows = [row for block in blocks for row in block]
    dtype = smallest_dtype(1 + max((token for row in rows for token in row), default=0))
    assert dtype == ("int32" if any(token > 65_535 for row in rows for token in row) else "uint16")
    path = tmp_path_factory.mktemp("tokens") / "source"
    with TokenWriter(path, dtype) as writer:
        for block in blocks:
            # A part of a larger whole, whose offsets do not begin at 0.
            writer.append(FlatTokens.of([[7], *block]).part(1, len(block) + 1))
    found = TokenFile(path, dtype)
    assert len(found) == len(rows)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert listed(found.part(start, stop)) == rows[start:stop]


def test_files_that_do_not_fit_each_other_are_named(tmp_path: Path) -> None:
    with TokenWriter(tmp_path / "source", "uint16") as writer:
        writer.append(FlatTokens.of([[1, 2]]))
    (tmp_path / "source.ids").write_bytes(b"123")
    with pytest.raises(DataError, match=r"source\.ids: not as long as .*source\.offsets says"):
        TokenFile(tmp_path / "source", "uint16")
    (tmp_path / "source.ids").unlink()
    with pytest.raises(DataError, match=r"source\.ids: missing"):
        TokenFile(tmp_path / "source", "uint16")


def made(folder: Path) -> Path:
    with new_cache(folder, {"text": "a", "sizes": (1, 2)}) as (files, kept):
        (files / "ids").write_bytes(bytes(range(200)))
        kept["pairs"] = 3
    return folder


def test_a_cache_is_of_what_is_asked_for_or_not_there(tmp_path: Path) -> None:
    about = {"text": "a", "sizes": (1, 2)}
    assert open_cache(tmp_path / "cache", about) is None
    assert open_cache(made(tmp_path / "cache"), about) == {"pairs": 3}
    assert open_cache(tmp_path / "cache", {**about, "text": "b"}) is None
    for name in ("ids", MANIFEST):
        whole = (tmp_path / "cache" / name).read_bytes()
        for place in (3, len(whole) // 2, len(whole) - 4):
            for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
                (tmp_path / "cache" / name).write_bytes(damaged)
                assert open_cache(tmp_path / "cache", about) is None, (name, place)
        (tmp_path / "cache" / name).write_bytes(whole)
    assert open_cache(tmp_path / "cache", about) == {"pairs": 3}
    (tmp_path / "cache" / "ids").unlink()
    assert open_cache(tmp_path / "cache", about) is None
    for content in ("[]", "{}", json.dumps({"sha256": 3}), '{"about": 1, "files": [], "sha256": ""}'):
        (tmp_path / "cache" / MANIFEST).write_text(content)
        assert open_cache(tmp_path / "cache", about) is None


def test_a_failed_or_killed_making_leaves_what_was_there_and_no_rest(tmp_path: Path) -> None:
    def fail(error: Exception, folder: Path) -> None:
        with new_cache(folder, {"text": "b"}) as (files, _):
            (files / "ids").write_bytes(b"1")
            raise error

    made(tmp_path / "cache")
    with pytest.raises(ValueError, match="in the middle"):
        fail(ValueError("in the middle"), tmp_path / "cache")
    with pytest.raises(DataError, match=r"cache: cannot be written \(No space left on device\)"):
        fail(OSError(28, os.strerror(28)), tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    program = f"""
import os, signal
from pathlib import Path
from regard.data.token_cache import new_cache
with new_cache(Path({str(tmp_path / "cache")!r}), {{"text": "b"}}) as (files, kept):
    (files / "ids").write_bytes(b"1")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 2
    assert open_cache(tmp_path / "cache", {"text": "a", "sizes": (1, 2)}) == {"pairs": 3}
    made(tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/cache: cannot be written \(.*/file is not a folder\)"):
        made(tmp_path / "file" / "cache")


def test_a_cache_is_made_in_the_place_of_a_file_and_where_a_link_points(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a cache")
    (tmp_path / "link").symlink_to("elsewhere/cache")
    for name in ("cache", "link"):
        made(tmp_path / name)
        assert open_cache(tmp_path / name, {"text": "a", "sizes": (1, 2)}) == {"pairs": 3}
    assert (tmp_path / "elsewhere" / "cache").is_dir()
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "elsewhere", "link"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_was_read_of_a_file_is_let_go_of_and_can_be_read_again(tmp_path: Path) -> None:
    rows = np.arange(2**22, dtype=np.int32).reshape(2**12, -1)  # 16 MiB
    with TokenWriter(tmp_path / "source", "int32") as writer:
        writer.append(FlatTokens(rows.ravel(), sequence_offsets(np.full(len(rows), rows.shape[1]))))

    def mapped() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))

    part = TokenFile(tmp_path / "source", "int32").part(7, len(rows))
    before = mapped()
    assert int(part.ids.sum(dtype=np.int64)) == int(rows[7:].sum(dtype=np.int64))
    assert mapped() > before + 15_000
    part.release()
    assert mapped() < before + 1_000
    assert part[5].tolist() == rows[12].tolist()
    FlatTokens.of([[5]]).release()  # in memory: nothing to let go of
