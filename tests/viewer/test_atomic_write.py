"""A file is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regard.errors import DataError
from regard.viewer.atomic_write import write_atomically


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "page.html"
    path.write_bytes(b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_bytes(b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"page\.html: cannot be written \(No space left on device\)"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'a\\x00\.html': cannot be written \(embedded null byte\)"):
        write_atomically("a\0.html", b"new")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(DataError, match="cannot be written"):
        write_atomically(tmp_path / "loop" / "page.html", b"new")


def test_a_new_file_has_the_rights_of_any_other(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "page.html", b"new")
    assert (tmp_path / "page.html").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path):
    (tmp_path / "real.html").write_bytes(b"old")
    (tmp_path / "link.html").symlink_to("real.html")
    write_atomically(tmp_path / "link.html", b"new")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_bytes() == b"new"


def test_a_name_as_long_as_names_can_be_is_written(tmp_path):
    path = tmp_path / ("語" * 83 + ".html")  # 254 bytes
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_what_is_no_ordinary_file_is_written_to_and_not_replaced():
    write_atomically("/dev/null", b"gone")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(("name", "reason"), [("no/such/page.html", "No such file or directory"), (".", "it is a folder")])
def test_a_place_that_cannot_be_written_is_a_data_error_that_says_why(tmp_path, name, reason):
    with pytest.raises(DataError, match=reason):
        write_atomically(tmp_path / name, b"new")
    assert os.listdir(tmp_path) == []
