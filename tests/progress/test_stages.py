"""Stages and messages: who is told what, how often, and what it costs."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard import progress
from regard.progress import Event, stages


class Clock:
    """A clock that goes on by itself at each look, and when told."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 1000.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stages, "monotonic", clock)
    return clock


@pytest.fixture
def events() -> Iterator[list[Event]]:
    found: list[Event] = []
    with progress.listening(found.append):
        yield found


def test_a_listener_is_told_of_start_progress_and_end(clock: Clock, events: list[Event]) -> None:
    seen: list[tuple[str, int]] = []

    def listener(event: Event) -> None:
        seen.append((event.kind, event.stage.done if event.stage else -1))

    with progress.listening(listener), progress.stage("Reading", total=4, unit="lines") as stage:
        for _ in range(4):
            clock.now += stages.INTERVAL
            stage.advance()
    assert seen == [("start", 0), ("advance", 1), ("advance", 2), ("advance", 3), ("advance", 4), ("end", 4)]
    assert events == []


def test_reports_are_rare_however_often_a_stage_advances(clock: Clock, events: list[Event]) -> None:
    # 100,000 units of 10 microseconds: one second, so the listener hears of it four times, not 100,000.
    clock.tick = 1e-5
    with progress.stage("Counting") as stage:
        for _ in range(100_000):
            stage.advance()
    reports = [event for event in events if event.kind == "advance"]
    assert len(reports) in (3, 4)
    assert stage.done == 100_000


def test_track_counts_a_block_at_a_time_and_every_item_even_when_left_early(events: list[Event]) -> None:
    with progress.stage("Reading") as stage:
        assert list(stage.track(range(1000), block=256)) == list(range(1000))
        assert stage.done == 1000
        items = stage.track(range(10))
        assert [next(items), next(items)] == [0, 1]
        items.close()
    assert stage.done == 1001  # the second one was still being worked on
    assert list(progress.track([3, 4], "Listing")) == [3, 4]
    assert [event.stage.total for event in events if event.kind == "end" and event.stage is not None] == [None, 2]


def test_no_unit_is_lost_between_threads(events: list[Event]) -> None:
    with progress.stage("Together") as stage:

        def work() -> None:
            for _ in range(5000):
                stage.advance()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert stage.done == 20_000


def test_stages_nest_and_a_failed_one_says_so(events: list[Event]) -> None:
    outer, inner, second = progress.stage("Outer"), progress.stage("Inner"), progress.stage("Second")

    def work() -> None:
        with outer:
            with inner:
                progress.message("inside")
            with second:
                raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert (outer.parent, inner.parent, second.parent) == (None, outer, outer)
    assert (outer.failed, inner.failed, second.failed) == (True, False, True)
    assert [(event.kind, event.stage.name if event.stage else "") for event in events] == [
        *[("start", "Outer"), ("start", "Inner"), ("message", "Inner"), ("end", "Inner")],
        *[("start", "Second"), ("end", "Second"), ("end", "Outer")],
    ]
    with progress.stage("Afterwards") as after:
        assert after.parent is None


def test_what_a_stage_says_of_itself(clock: Clock, events: list[Event]) -> None:
    with progress.stage("Reading train.en", unit="lines") as stage:
        assert str(stage) == "Reading train.en"
        clock.now += 2
        stage.advance(3000)
        assert str(stage) == "Reading train.en: 3,000 lines, 1,500/s"
    with progress.stage("Training", total=100, unit="updates", done=40) as stage:
        clock.now += 30
        stage.update(done=60, figures="loss 2.5")
        assert str(stage) == "Training: 60 of 100 updates (60%), 0:01:00 left, 1.5 s each, loss 2.5"
        assert stage.remaining == pytest.approx(60)
    assert str(stage) == "Training: 60 of 100 updates (60%), took 0:00:30, 1.5 s each, loss 2.5"
    with progress.stage("Nothing", total=0) as stage:
        clock.now += 1
        assert str(stage) == "Nothing: 0 of 0 items"


def test_the_time_left_runs_down_between_slow_units_and_grows_only_if_one_is_late(clock: Clock, events: list[Event]) -> None:
    with progress.stage("Training", total=13, unit="updates", done=3) as stage:
        clock.now += 20
        stage.advance()
        assert (stage.rate, stage.remaining) == (0.05, 180)
        clock.now += 15
        assert (stage.rate, stage.remaining) == (0.05, 165)  # not a slower update: an unfinished one
        clock.now += 25
        assert stage.rate == pytest.approx(1 / 40)
        assert stage.remaining == pytest.approx(9 * 40 - 20)


def test_of_a_late_last_unit_no_time_left_is_told(clock: Clock, events: list[Event]) -> None:
    with progress.stage("Training runs", total=3, unit="runs") as stage:
        for seconds in (2, 10):  # by two workers, say
            clock.now += seconds
            stage.advance()
        assert stage.remaining == pytest.approx(6)
        clock.now += 8
        assert stage.remaining is None
        assert str(stage) == "Training runs: 2 of 3 runs (67%), 0:00:20 so far, 6 s each"
        stage.advance()
        clock.now += 1
        assert stage.remaining == 0


def test_a_program_hears_through_logging_when_it_asks(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="regard")
    with progress.listening(progress.log_events), progress.stage("Reading", unit="lines") as stage:
        for _ in range(100):  # 25 seconds
            clock.now += stages.INTERVAL
            stage.advance(10)
        progress.message("1,000 pairs")
        progress.message("line 3 was cut", warning=True)
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        *["Reading", "Reading: 400 lines, 0:00:10 so far, 40/s", "Reading: 800 lines, 0:00:20 so far, 40/s", "1,000 pairs"],
        "line 3 was cut",
        "Reading: 1,000 lines, took 0:00:25, 40/s",
    ]
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == ["WARNING"]


def test_silence_is_what_a_program_gets_that_asks_for_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.listening(progress.log_events), progress.stage("Reading"):
        progress.message("1,000 pairs")
    assert capfd.readouterr() == ("", "")


def test_processes_of_a_group_but_the_first_tell_nothing(monkeypatch: pytest.MonkeyPatch, events: list[Event]) -> None:
    for rank, told in (("0", 3), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        events.clear()
        with progress.stage("Training"):
            progress.message("hello")
        assert len(events) == told


def _work(path: str) -> None:
    # A listener of a program's own changes nothing: the worker is not where the user looks.
    progress.set_listener(lambda event: Path(path).write_text(event.kind))
    with progress.stage("Encoding"):
        progress.message("hello")
    Path(path).with_suffix(".done").touch()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_tell_nothing(method: str, tmp_path: Path) -> None:
    file = tmp_path / "told"
    worker = multiprocessing.get_context(method).Process(target=_work, args=(str(file),))
    worker.start()
    worker.join()
    assert file.with_suffix(".done").exists()
    assert not file.exists()


def test_a_forked_process_does_not_wait_for_a_lock_nobody_gives_back() -> None:
    held, leave = threading.Event(), threading.Event()

    def listener(event: Event) -> None:
        held.set()
        leave.wait(20)

    with progress.listening(listener):
        thread = threading.Thread(target=lambda: progress.message("a listener that takes its time"))
        thread.start()
        held.wait(20)
        child = os.fork()
        if child == 0:
            progress.message("in the child")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        leave.set()
        thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_stage_refused_by_the_listener_is_not_the_parent_of_later_ones() -> None:
    def refuse(event: Event) -> None:
        if event.kind == "start":
            raise ValueError("stopped")

    with progress.listening(refuse), pytest.raises(ValueError, match="stopped"), progress.stage("Refused"):
        pass
    with progress.stage("Later") as later:
        assert later.parent is None


def test_a_generator_closed_before_the_one_inside_it_is_no_parent_any_more() -> None:
    outer, inner = progress.track("ab", "Outer"), progress.track("ab", "Inner")
    next(outer)
    next(inner)
    outer.close()  # type: ignore[attr-defined]
    inner.close()  # type: ignore[attr-defined]
    with progress.stage("Later") as later:
        assert later.parent is None


def test_a_negative_total_is_refused() -> None:
    with pytest.raises(ValueError, match="stage 'Reading': total must be 0 or more, found -1"):
        progress.stage("Reading", total=-1)
    with progress.stage("Reading") as stage, pytest.raises(ValueError, match="found -2"):
        stage.update(total=-2)
    assert stage.total is None


@pytest.mark.parametrize(("unit", "one"), [("lines", "1 line"), ("batches", "1 batch"), ("updates", "1 update")])
def test_one_unit_is_singular(unit: str, one: str) -> None:
    reading = progress.stage("Reading", unit=unit)
    reading.advance()
    assert str(reading).startswith(f"Reading: {one}, ")
    reading.advance()
    assert str(reading).startswith(f"Reading: 2 {unit}, ")
