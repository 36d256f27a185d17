"""Reading lines: one rule for every file, whatever is in it."""

from __future__ import annotations

import gzip
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard import progress
from regard.data import lines as lines_module
from regard.data.lines import (
    iter_lines,
    leftovers,
    open_whole,
    read_lines,
    scan_lines,
    single_line,
    unreadable,
    whole_characters,
    write_files,
)
from regard.errors import DataError

# 16 lines, each with something another reader stumbles over; a byte order mark in front, no line feed at the end.
ADVERSARIAL = [
    b"",
    b"   ",
    b"broken \xff\xfe\x80 bytes \xe4\xf6",
    b"nul \x00 byte",
    b"carriage return and line feed\r",
    b"lone \r return",
    "line \u2028 separator".encode(),
    "next \x85 line".encode(),
    "paragraph \u2029 separator".encode(),
    b"vertical \x0b tab and form \x0c feed",
    b"file \x1c group \x1d record \x1e",
    "zero \u200b width".encode(),
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467".encode(),
    b"x" * 1_000_000,
    "caf\u00e9 composed".encode(),
    "cafe\u0301 decomposed".encode(),
]


@pytest.fixture
def adversarial(tmp_path: Path) -> Path:
    path = tmp_path / "adversarial16.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(ADVERSARIAL))
    return path


def test_adversarial_file_has_sixteen_lines(adversarial: Path) -> None:
    lines = read_lines(adversarial)
    assert len(lines) == 16
    assert lines[0] == ""
    assert lines[1] == "   "
    assert lines[2] == "broken \ufffd\ufffd\ufffd bytes \ufffd\ufffd"
    assert lines[4] == "carriage return and line feed"
    assert lines[5] == "lone \r return"
    assert [lines[place] for place in (3, *range(6, 16))] == [ADVERSARIAL[place].decode() for place in (3, *range(6, 16))]


def test_stream_and_gzip_give_the_lines_of_the_file(adversarial: Path) -> None:
    lines = read_lines(adversarial)
    with open(adversarial, "rb") as stream:
        assert list(iter_lines(stream)) == lines
    packed = adversarial.with_suffix(".txt.gz")
    packed.write_bytes(gzip.compress(adversarial.read_bytes()))
    assert read_lines(packed) == lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"a\r\r\n", ["a\r"]),
        (b"a\r", ["a"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        (b"a\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
    ],
)
def test_line_ends_are_removed_once_and_the_mark_only_at_the_start(data: bytes, lines: list[str]) -> None:
    assert list(iter_lines(io.BytesIO(data))) == lines


def test_every_output_is_one_line_for_every_reader(adversarial: Path) -> None:
    lines = [single_line(line) for line in read_lines(adversarial)]
    assert len("\n".join(lines).splitlines()) == 16
    assert "\0" not in "".join(lines)
    assert [len(line) for line in lines] == [len(line) for line in read_lines(adversarial)]


def test_every_line_break_of_python_becomes_a_space() -> None:
    breaks = [chr(code) for code in range(0x3000) if len(f"a{chr(code)}b".splitlines()) > 1]
    assert len(breaks) == 10
    assert single_line("".join(breaks)) == " " * len(breaks)


def test_gzip_that_is_not_gzip_or_is_cut_names_the_file(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(700) + b"\n" + b"one line\n" * 5)
    for name, data, message in [
        ("plain.gz", b"not packed\n", "expected gzip data"),
        ("empty.gz", b"", "expected gzip data"),
        ("half.gz", whole[: len(whole) // 2], "damaged or truncated gzip data after line"),
        ("tail.gz", whole[:-3], "damaged or truncated gzip data after line"),
        ("flipped.gz", whole[:40] + bytes([whole[40] ^ 255]) + whole[41:], "damaged or truncated gzip data after line"),
        ("garbage.gz", whole + b"more", "damaged or truncated gzip data after line"),
    ]:
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(DataError, match=message) as caught:
            read_lines(path)
        assert str(path) in str(caught.value)


def test_what_is_no_readable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        read_lines(tmp_path / "none.txt")
    with pytest.raises(DataError, match=r"none\.txt\.gz: no such file"):
        read_lines(tmp_path / "none.txt.gz")
    with pytest.raises(DataError, match=": expected a file, found a folder"):
        read_lines(tmp_path)
    with pytest.raises(DataError, match="null byte"):
        read_lines("a\0b")
    assert str(unreadable("a.txt", PermissionError(13, "Permission denied"))) == "a.txt: no permission to read it"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("a\n")
    path.chmod(0)
    with pytest.raises(DataError, match=r"secret\.txt: no permission"):
        read_lines(path)


def test_lone_surrogates_become_replacement_characters() -> None:
    assert whole_characters("a\ud800\udc00b\U0001f600") == "a\ufffd\ufffdb\U0001f600"


def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        write_files({tmp_path / "first": b"a", tmp_path / "taken" / "x" / "\0"[:0] / ("n" * 300): b"b"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


def test_one_file_under_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(DataError, match="link: another output is written to the same file"):
        write_files({tmp_path / "a": b"one", tmp_path / "link": b"two"})
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize("name", ["a" * 255, "語" * 85, "a" * 240])
def test_names_as_long_as_they_can_be_are_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_files({path: b"one"})
    with open_whole(path) as stream:
        stream.write(b"two")
        assert [found.parent for found in leftovers(path)] == [tmp_path]
    assert (path.read_bytes(), leftovers(path)) == (b"two", [])


def test_a_link_and_a_pipe_are_written_through_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    try:
        write_files({tmp_path / "link": b"a\n", tmp_path / "pipe": b"b\n"})
        assert os.read(reader, 9) == b"b\n"
    finally:
        os.close(reader)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_bytes() == b"a\n"
    assert (tmp_path / "pipe").is_fifo()


def test_the_file_that_cannot_be_written_is_the_one_named(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(DataError, match=r"taken: cannot be written \(it is a folder\)"):
        write_files({tmp_path / "first": b"a", tmp_path / "taken": b"b"})
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.txt", tmp_path / "file" / "deep" / "a.txt"):
        expected = re.escape(f"{path}: cannot be written ({tmp_path}/file is not a folder)")
        with pytest.raises(DataError, match=expected):
            write_files({path: b"a"})
        with pytest.raises(DataError, match=expected), open_whole(path):
            pass
        with pytest.raises(DataError, match=re.escape(f"{path}: {tmp_path}/file is not a folder")):
            read_lines(path)


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    found: list[str] = []
    with progress.listening(lambda event: found.append(event.text) if event.warning else None):
        yield found


def test_the_first_line_that_is_not_utf8_is_named_once_and_all_are_counted(tmp_path: Path, warnings: list[str]) -> None:
    (path := tmp_path / "a.txt").write_bytes("é\n".encode() * 3 + b"caf\xe9\nb\n\xff\n")
    first = f"{path}, line 4: not UTF-8; each invalid byte is read as U+FFFD"
    assert scan_lines(path, text=True)[1] == 6
    assert warnings == [first]
    assert read_lines(path)[3:] == ["caf\ufffd", "b", "\ufffd"]
    assert warnings == [first], "a file that is read twice is reported once"
    warnings.clear()
    for _ in range(2):
        list(iter_lines(io.BytesIO(path.read_bytes())))
    both = ["standard input, line 4: not UTF-8; each invalid byte is read as U+FFFD", "standard input: 2 of 6 lines are not UTF-8"]
    assert warnings == both * 2


@pytest.mark.parametrize("size", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize(
    ("data", "line"),
    [("ä\n😀\nß".encode(), 0), (b"a\n\xc3\n", 2), (b"a\nb\ncaf\xc3", 3), ("😀\n".encode() + "😀".encode()[:3], 2), (b"\xff", 1)],
)
def test_validation_finds_the_line_however_the_file_is_cut(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch, size: int, data: bytes, line: int
) -> None:
    (path := tmp_path / f"{size} {line}.txt").write_bytes(data)
    monkeypatch.setattr(lines_module, "CHUNK_BYTES", size)
    scan_lines(path, text=True)
    assert warnings == ([f"{path}, line {line}: not UTF-8; each invalid byte is read as U+FFFD"] if line else [])


def test_two_writers_of_one_file_never_share_a_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with open_whole(path) as first:
        first.write(b"fir")
        with open_whole(path) as second:  # in two containers, processes have equal numbers
            second.write(b"second")
        assert path.read_bytes() == b"second"
        assert len(leftovers(path)) == 1
        first.write(b"st")
    assert path.read_bytes() == b"first"
    assert leftovers(path) == []


def test_leftovers_are_those_of_one_name(tmp_path: Path) -> None:
    for name in (".a.0123456789ab", ".a.en.0123456789ab", ".a.0123456789ab.0123456789ab", ".a.settings.yaml", ".a.4711"):
        (tmp_path / name).touch()
    assert [path.name for path in leftovers(tmp_path / "a")] == [".a.0123456789ab"]
