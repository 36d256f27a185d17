"""Files that users name: pipes are waited for, devices without an end are refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard import input_files, progress
from regard.config.load import read_yaml
from regard.data import Vocabulary
from regard.data.captions import read_captions
from regard.data.lines import read_lines
from regard.data.parallel import file_digest
from regard.data.word_vectors import read_vectors
from regard.errors import RegardError
from regard.viewer.record import read_records

READERS: list[Callable[[Any], Any]] = [
    *(read_lines, file_digest, read_yaml, Vocabulary.load, read_records),
    lambda path: read_vectors(path, {"a"}),
    lambda path: read_captions(path, form="coco"),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_a_device_without_an_end_is_refused(read: Callable[[Any], Any], device: str) -> None:
    with pytest.raises(RegardError, match=rf"{device}: (cannot be read \()?is a device, expected a file"):
        read(Path(device))


def test_nothing_and_a_terminal_are_read() -> None:
    assert read_lines(os.devnull) == []
    ours, theirs = os.openpty()
    try:
        os.write(ours, b"one\ntwo\n\x04")
        assert read_lines(os.ttyname(theirs)) == ["one", "two"]
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_pipe_is_waited_for_and_a_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "PATIENCE_SECONDS", 0.05)
    os.mkfifo(tmp_path / "pipe")
    told = threading.Event()
    seen: list[str] = []

    def listener(event: progress.Event) -> None:
        if event.kind == "message":
            seen.append(event.text)
            told.set()

    def write() -> None:
        assert told.wait(60)
        (tmp_path / "pipe").write_text("a\n")

    writer = threading.Thread(target=write)
    writer.start()
    with progress.listening(listener):
        assert read_lines(tmp_path / "pipe") == ["a"]
    writer.join()
    assert seen == [f"{tmp_path}/pipe: waiting for a program that writes to this pipe"]


def test_the_pipe_of_a_shell_is_read_at_once(caplog: pytest.LogCaptureFixture) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a: 1\n")
    os.close(writing)
    try:
        assert read_yaml(Path(f"/dev/fd/{reading}")) == {"a": 1}
    finally:
        os.close(reading)
    assert caplog.text == ""
