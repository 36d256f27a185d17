"""What is shown on standard error: bars on a terminal, rare lines elsewhere, nothing when asked."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
import time

import pytest

from regard import progress
from regard.progress import Display, display, stages


class Watch:
    """A display in lines whose clock is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (stages, display):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(threading.Thread, "start", lambda self: None)
        self.stream = io.StringIO()
        self.display = Display(self.stream, mode="lines")

    def pass_time(self, seconds: float) -> list[tuple[float, str]]:
        """Let time pass; return the lines that are written, each with the seconds since the start."""
        told = []
        for _ in range(round(4 * seconds)):
            self.now += 0.25
            self.display._tell()
            told += [(self.now - 1000, line) for line in self.stream.getvalue().splitlines()]
            self.stream.seek(0)
            self.stream.truncate()
        return told


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def test_a_line_within_a_second_then_one_in_ten(watch: Watch) -> None:
    told: list[tuple[float, str]] = []
    with progress.listening(watch.display), progress.stage("Reading train.en", unit="lines") as stage:
        for _ in range(25 * 4):
            told += watch.pass_time(0.25)
            stage.advance(100)
    assert told == [
        (0.5, "regard: Reading train.en: 100 lines, 400/s"),
        (10.5, "regard: Reading train.en: 4,100 lines, 0:00:10 so far, 400/s"),
        (20.5, "regard: Reading train.en: 8,100 lines, 0:00:20 so far, 400/s"),
    ]


def test_a_stage_that_counts_no_more_is_told_of_unless_it_waits_for_input(watch: Watch) -> None:
    with progress.listening(watch.display), progress.stage("Learning a vocabulary", unit="lines") as stage:
        stage.advance(100)
        assert [time for time, _ in watch.pass_time(35)] == [0.5, 10.5, 20.5, 30.5]
        stage.waiting = True
        assert watch.pass_time(35) == []
        stage.waiting = False
        assert len(watch.pass_time(5)) == 1


def test_short_stages_that_follow_each_other_leave_the_word_to_the_stage_around_them(watch: Watch) -> None:
    told: list[tuple[float, str]] = []
    with progress.listening(watch.display), progress.stage("Evaluating"):
        for number in range(100):
            with progress.stage(f"Testing {number}"):
                told += watch.pass_time(0.25)
    assert told == [(0.5, "regard: Evaluating"), (10.5, "regard: Evaluating: 0:00:10 so far"), (20.5, "regard: Evaluating: 0:00:20 so far")]


def test_a_stage_is_told_of_though_its_work_never_returns_to_python_in_between() -> None:
    stream = io.StringIO()
    with Display(stream, mode="lines"), progress.stage("Learning the vocabulary"):
        subprocess.run(["sleep", "1"], check=True)
        assert stream.getvalue() == "regard: Learning the vocabulary\n"


def test_what_is_over_at_once_needs_no_word() -> None:
    stream = io.StringIO()
    with Display(stream, mode="lines"):
        for number in range(100):
            with progress.stage(f"Reading file {number}"):
                pass
        progress.message("100 files")
    assert stream.getvalue() == "regard: 100 files\n"


def test_quiet_leaves_warnings_only() -> None:
    stream = io.StringIO()
    with Display(stream, mode="quiet"), progress.stage("Reading"):
        time.sleep(display.DELAY + 2 * display.FRAME)
        progress.message("100 files")
        progress.message("line 3 was cut", warning=True)
    assert stream.getvalue() == "regard: line 3 was cut\n"


def test_a_display_can_be_made_quiet_while_it_shows() -> None:
    stream = io.StringIO()
    with Display(stream, mode="lines"), progress.stage("Reading"):
        progress.message("100 files")
        progress.quiet()
        with progress.stage("Aligning"):
            time.sleep(display.DELAY + 2 * display.FRAME)
        progress.message("200 files")
        progress.message("line 3 was cut", warning=True)
    assert stream.getvalue() == "regard: 100 files\nregard: line 3 was cut\n"


def test_lines_can_be_given_to_a_log() -> None:
    stream, told = io.StringIO(), []
    with Display(stream, mode="lines"):
        progress.message("100 files")
        with progress.redirected(told.append):
            progress.message("200 files")
            progress.quiet()
            progress.message("300 files")
            progress.message("line 3 was cut", warning=True)
        progress.message("line 4 was cut", warning=True)
    assert (stream.getvalue(), told) == ("regard: 100 files\nregard: line 4 was cut\n", ["200 files", "line 3 was cut"])


def test_nobody_listening_on_standard_error_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream, Display(stream, mode="lines"):
        progress.message("to nobody")
        progress.message("nor this")
        # What the failed write left in the file's buffer would fail once more when it is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def test_a_terminal_that_closes_while_a_bar_is_drawn_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(display, "DELAY", 0.0)
    main, side = pty.openpty()
    with open(side, "w") as stream, Display(stream, mode="bars") as shown:
        with progress.stage("Training", total=7) as training:
            until = time.monotonic() + 20
            while shown._bars is None and time.monotonic() < until:
                time.sleep(0.01)
            assert shown._bars is not None
            os.close(main)
            training.advance()
            progress.message("step 1")
            time.sleep(3 * display.FRAME)
        progress.message("done")
        assert shown._thread is not None
        assert shown._thread.is_alive()
        # What the failed write left in the file's buffer would fail once more when it is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), side)
    assert not failed


def on_terminal(code: str, *, seconds: float = 20.0, **environment: str) -> str:
    """Run code with standard error (alone) on a pseudo-terminal; return what came there."""
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=side,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment},
    )
    os.close(side)
    found, until = b"", time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            data = os.read(main, 65536)
        except OSError:
            break
        if not data:
            break
        found += data
    os.close(main)
    assert process.stdout is not None
    assert process.stdout.read() == b"data\n"
    process.stdout.close()
    assert process.wait(20) == 0
    return found.decode()


BARS = """
import time
from regard import progress
with progress.Display(), progress.stage("Reading [bold]train.en[/bold]", total=100, unit="lines") as stage:
    for number in range(10):
        time.sleep(0.15)
        stage.advance(10)
    progress.message("a message")
    time.sleep(0.8)
print("data")
"""


def test_a_terminal_gets_a_bar_with_rate_and_time_left() -> None:
    text = on_terminal(BARS)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "Reading [bold]train.en[/bold]" in plain
    assert "━━━" in plain
    assert re.search(r"\d+ of 100 lines \(\d+%\), 0:00:0\d left, \d+/s", plain)
    assert "regard: a message\r\n" in plain
    assert text.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in text.rsplit("\x1b[?25l", 1)[-1]  # the cursor is back
    assert re.search(r"regard: Reading \[bold\]train.en\[/bold\]: 100 of 100 lines \(100%\), took 0:00:02, \d+/s\r\n$", plain)


def test_a_narrow_terminal_keeps_the_names_the_bars_and_the_time_left() -> None:
    figures = 'figures="epoch 1, loss 7.9631, lr 0.0002, 832 tokens/s, 49 % of 1,024 tokens"'
    code = BARS.replace("    for number", f"    stage.update({figures})\n    for number").replace("total=100", "total=200_000")
    text = on_terminal(code.replace("advance(10)", "advance(20_000)"), COLUMNS="80")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    drawn = [line for line in re.split(r"[\r\n]+", plain) if "Reading" in line and "left" in line]
    assert drawn
    for line in drawn:
        assert re.match(r"Reading \[bold\]train.en\[/bold\] [━╸ ]{4,20} \d", line)
        assert re.search(r"of 200,000 lines \(\d+%\), \d+:\d\d:\d\d left", line)
        assert len(line.rstrip()) <= 80


def test_a_terminal_that_can_do_nothing_gets_lines() -> None:
    text = on_terminal(BARS, TERM="dumb")
    assert "\x1b" not in text
    assert "regard: a message\r\n" in text


def test_bars_give_way_to_what_the_program_writes_on_the_same_terminal() -> None:
    text = on_terminal(BARS.replace('progress.message("a message")', "progress.hide()"))
    assert "\x1b[?25h" in text
    assert "100 of 100" not in text.rsplit("\x1b[?25h", 1)[-1]


def test_between_its_stages_a_command_says_that_it_works_unless_it_waits_for_others(watch: Watch) -> None:
    with progress.listening(watch.display):
        watch.display.start_up("starting")
        with progress.stage("Reading"):
            assert [line for _, line in watch.pass_time(5)] == ["regard: Reading"]
        assert watch.pass_time(9) == []  # what is over soon needs no word
        assert watch.pass_time(12) == [(15.0, "regard: working: 0:00:10 so far"), (25.0, "regard: working: 0:00:20 so far")]
        with progress.stage("Training"):
            assert [line for _, line in watch.pass_time(5)] == ["regard: Training"]
        progress.hide()
        assert watch.pass_time(60) == []
        with progress.stage("Answering"):
            assert [line for _, line in watch.pass_time(5)] == ["regard: Answering"]
        assert watch.pass_time(60) == []


def test_processes_of_a_group_but_the_first_do_not_show_that_they_start(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with progress.listening(watch.display):
        watch.display.start_up("starting")
        assert watch.pass_time(60) == []


def test_starting_is_shown_until_there_is_something_else() -> None:
    stream = io.StringIO()
    with Display(stream, mode="lines") as shown:
        shown.start_up("starting")
        time.sleep(display.DELAY + 2 * display.FRAME)
        with progress.stage("Reading"):
            time.sleep(display.DELAY + 2 * display.FRAME)
    assert stream.getvalue() == "regard: starting\nregard: Reading\n"
