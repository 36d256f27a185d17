"""The folder of an export is whole or absent."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regard.errors import ConfigError
from regard.integrations.portable_run import check_output, new_folder

NO_PROCESS = 4194305
"""No process has this number: Linux has at most 4,194,304."""


def temporary_name(place: Path, process: int) -> str:
    """Return the name of the folder that an export to `place` by another process writes to."""
    with new_folder(place) as folder:
        name = folder.name
    place.rmdir()
    return f"{name.removesuffix(str(os.getpid()))}{process}"


def test_a_folder_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "model") as folder:
        (folder / "one").write_text("1")
        assert not (tmp_path / "a" / "model").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model"]
    assert (tmp_path / "a" / "model" / "one").read_text() == "1"


def test_an_empty_folder_that_is_there_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    with new_folder(Path(".")) as folder:
        (folder / "one").write_text("1")
    assert Path("one").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_of_another_file_system_is_filled_and_leftovers_are_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = temporary_name(tmp_path / "model", NO_PROCESS)
    (tmp_path / "model").mkdir()
    rename = Path.rename

    def mounted(path: Path, target: Path) -> Path:
        if (path.is_relative_to(tmp_path / "model")) != (Path(target).is_relative_to(tmp_path / "model")):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", mounted)
    for place in (tmp_path / "model", tmp_path):  # left by killed exports: one into the folder, one before it was there
        (place / left).mkdir()
    check_output(tmp_path / "model")
    with new_folder(tmp_path / "model") as folder:
        (folder / "one").write_text("1")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["one"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / left).mkdir()
    with pytest.raises(ConfigError, match="other: exists and is not empty"):
        check_output(tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file: expected a folder, found a file"):
        check_output(tmp_path / "file")


def test_a_fresh_file_system_is_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    check_output(tmp_path)
    with new_folder(tmp_path) as folder:
        (folder / "one").write_text("1")
    assert {path.name for path in tmp_path.iterdir()} == {"lost+found", "one"}
    (tmp_path / "one").rename(tmp_path / "lost+found" / "one")
    (tmp_path / "lost+found").rename(tmp_path / "found")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        check_output(tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from regard.integrations.portable_run import new_folder
rename = Path.rename
def renamed(path, target):
    if path.name == "two":
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)
Path.rename = renamed
with new_folder(Path(sys.argv[1])) as folder:
    for name in ("one", "two"):
        (folder / name).write_text("old")
"""


def test_an_export_killed_while_it_moves_its_files_is_done_again(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "one").read_text() == "old"
    check_output(tmp_path)
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        check_output(tmp_path)
    (tmp_path / "mine").unlink()
    with new_folder(tmp_path) as folder:
        (folder / "three").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["three"]


def test_an_export_that_fails_while_it_moves_its_files_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        if path.name == "two":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)

    def export() -> None:
        with new_folder(tmp_path) as folder:
            for name in ("one", "two"):
                (folder / name).write_text("new")

    with pytest.raises(ConfigError, match="cannot be written"):
        export()
    assert list(tmp_path.iterdir()) == []


def test_exports_at_the_same_time_leave_each_other_alone(tmp_path: Path) -> None:
    other = tmp_path / temporary_name(tmp_path / "model", os.getppid())
    other.mkdir()
    with new_folder(tmp_path / "model"):
        pass
    assert other.is_dir()
    long = "n" * 200
    with new_folder(tmp_path / f"{long}1") as one, new_folder(tmp_path / f"{long}2") as two:
        (one / "one").write_text("1")
        (two / "two").write_text("2")
    assert [path.name for path in (tmp_path / f"{long}1").iterdir()] == ["one"]
    assert [path.name for path in (tmp_path / f"{long}2").iterdir()] == ["two"]


def test_a_full_disk_leaves_nothing_and_is_named(tmp_path: Path) -> None:
    def fill() -> None:
        with new_folder(tmp_path / "model") as folder:
            (folder / "one").write_text("1")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ConfigError, match=r"model: cannot be written \(No space left on device\)$"):
        fill()
    with pytest.raises(KeyError), new_folder(tmp_path / "model"):
        raise KeyError
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"file/model: cannot be written \(.*/file is not a folder\)"),
        new_folder(tmp_path / "file" / "model"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_process_that_is_asked_to_end_leaves_nothing(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def end() -> None:
        with new_folder(tmp_path / "model") as folder:
            (folder / "one").write_text("1")
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        end()
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_name_as_long_as_names_can_be_is_written(tmp_path: Path) -> None:
    with new_folder(tmp_path / ("\u00fc" * 127)) as folder:
        (folder / "one").write_text("1")
    assert [len(path.name.encode()) for path in tmp_path.iterdir()] == [254]
