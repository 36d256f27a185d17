"""One training at a time in a folder: of processes started at once one goes on, and a lock never outlives its process."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest

from regard.errors import CheckpointError, ConfigError, TrainingError, WriteError
from regard.tasks.run_folder import check_inside
from regard.tasks.translation_run import open_translation_run
from regard.training import run_lock
from regard.training.lock import LOCK
from tests.tasks import tiny as tiny_translation
from tests.tasks.test_creation import fork, imported, in_child
from tests.training import tiny

REFUSED = 5
TRIALS = 12


def at_once(actions: list[Callable[[], object]]) -> list[int]:
    """Run actions in processes that begin at the same moment, and return their exit codes: 0, or REFUSED where the lock was held."""
    gate_out, gate_in = os.pipe()

    def guarded(action: Callable[[], object]) -> None:
        os.close(gate_in)
        os.read(gate_out, 1)  # until the gate is closed
        try:
            action()
        except (TrainingError, ConfigError) as error:
            text = str(error)
            os._exit(REFUSED if "another process uses this folder" in text or "exists and is not empty" in text else 3)

    children = [fork(lambda action=action: guarded(action)) for action in actions]
    os.close(gate_out)
    os.close(gate_in)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def wait_for(path: Path) -> None:
    for _ in range(2000):
        if path.exists():
            return
        time.sleep(0.01)
    pytest.fail(f"{path} did not come")


def test_of_trainings_started_at_once_in_one_folder_one_goes_on_and_the_others_are_refused(tmp_path: Path) -> None:
    alone = tiny.run(tmp_path / "alone")
    won = list[int]()
    for trial in range(TRIALS):
        folder = tmp_path / str(trial)
        codes = at_once([lambda folder=folder: tiny.run(folder)] * 3)
        assert set(codes) <= {0, REFUSED}, codes
        won.append(codes.count(0))
        assert tiny.run(folder).weights_sha256 == alone.weights_sha256
        events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        steps = [event["step"] for event in events if event["event"] == "train"]
        assert steps == sorted(set(steps))  # nobody wrote in between
        assert not (folder / LOCK).exists()
    # One that begins when another has ended finds its run finished.
    assert all(count >= 1 for count in won)
    assert won.count(1) > TRIALS // 2


def test_of_imports_at_once_into_one_folder_one_is_made(tmp_path: Path) -> None:
    start = imported(tmp_path)
    for trial in range(TRIALS):
        folder = tmp_path / str(trial)
        codes = at_once([lambda folder=folder: start(folder, print)] * 3)
        assert sorted(codes) == [0, REFUSED, REFUSED]
        open_translation_run(folder)


def test_the_refusal_names_the_folder_the_process_and_the_machine(tmp_path: Path) -> None:
    with run_lock(tmp_path / "run"):
        (tmp_path / "run" / LOCK).write_text(json.dumps({"host": "tower", "pid": 4711}))
        path = str(tmp_path / "run")

        def refused() -> NoReturn:
            try:
                tiny.run(Path(path))
            except TrainingError as error:
                expected = f"{path}: another process uses this folder (process 4711 on tower); wait until it ends"
                os._exit(0 if str(error).startswith(expected) and "\n" not in str(error) else 3)
            os._exit(4)

        assert in_child(refused) == 0
        for damaged in (b"", b"{", b"[1]", b"\xff", b'{"pid": "x"}', b'{"pid": 3, "host": "a\\nb"}'):
            (tmp_path / "run" / LOCK).write_bytes(damaged)

            def still_refused() -> NoReturn:
                try:
                    tiny.run(Path(path))
                except TrainingError as error:
                    os._exit(0 if "uses this folder; wait" in str(error) else 3)
                os._exit(4)

            assert in_child(still_refused) == 0


def test_a_lock_ends_with_its_process_though_a_child_of_it_lives_on(tmp_path: Path) -> None:
    def hold() -> None:
        with run_lock(tmp_path / "run"):
            context = multiprocessing.get_context("fork")
            context.Process(target=time.sleep, args=(30,)).start()
            (tmp_path / "held").touch()
            time.sleep(60)

    holder = fork(hold)
    wait_for(tmp_path / "held")
    with pytest.raises(TrainingError, match=f"process {holder} on "), run_lock(tmp_path / "run"):
        pass
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    with run_lock(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == os.getpid()


def test_of_several_processes_of_one_training_the_first_holds_it_and_all_are_refused(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def member(rank: int) -> NoReturn:
        group = {"WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in group.items()})
        try:
            tiny.run(tmp_path / "run")
        except TrainingError as error:
            os._exit(REFUSED if ("uses this folder" if rank == 0 else "process 0 gave up") in str(error) else 3)
        os._exit(0)

    def both() -> list[int]:
        children = [fork(lambda rank=rank: member(rank)) for rank in range(2)]
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

    with run_lock(tmp_path / "run"):
        assert both() == [REFUSED, REFUSED]
    assert both() == [0, 0]
    assert not (tmp_path / "run" / LOCK).exists()


def test_the_same_thread_may_take_it_again_and_another_may_not(tmp_path: Path) -> None:
    told = list[str]()

    def other() -> None:
        try:
            with run_lock(tmp_path / "run"):
                told.append("taken")
        except TrainingError as error:
            told.append(str(error))

    with run_lock(tmp_path / "run"):
        with run_lock(tmp_path / "." / "run"):
            pass
        assert (tmp_path / "run" / LOCK).exists()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "another process uses" in told[0]
    assert not (tmp_path / "run").exists()
    other()
    assert told[1] == "taken"


def test_a_folder_that_was_there_stays_and_one_that_holds_something_too(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        pass
    assert tmp_path.is_dir()
    with run_lock(tmp_path / "run"):
        (tmp_path / "run" / "mine").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]


def test_a_file_system_without_locks_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def none(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("regard.training.lock.fcntl.flock", none)
    with caplog.at_level(logging.WARNING):
        assert tiny.run(tmp_path / "run").reason == "epochs"
    assert "this file system has no locks (No locks available); make sure that no other training writes" in caplog.text


def test_another_failure_to_lock_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("regard.training.lock.fcntl.flock", broken)
    with pytest.raises(WriteError, match=r"run: cannot be locked \(Input/output error\)"):
        tiny.run(tmp_path / "run")
    with pytest.raises(ConfigError, match="exists and is not a folder"), run_lock(__file__):
        pass


def test_a_run_can_be_opened_at_any_moment_of_its_training(tmp_path: Path) -> None:
    """Though a checkpoint is removed as soon as the next one is there."""
    training: dict[str, Any] = {
        "max_updates": 60,
        "epochs": 60,
        "evaluate_every": 1,
        "save_every": 1,
        "keep_checkpoints": 1,
        "log_every": 100,
    }
    child = fork(lambda: tiny_translation.trained(tmp_path, training=training))
    wait_for(tmp_path / "run" / "checkpoints" / "step-00000002")
    opened, steps = 0, set[str]()
    while not os.waitpid(child, os.WNOHANG)[0]:
        steps.add(open_translation_run(tmp_path / "run").weights.parent.name)
        opened += 1
    assert opened > 5
    assert len(steps) > 2


def test_a_checkpoint_may_go_while_the_folder_is_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"
    kept, removed, scandir = checkpoints / "step-00000002", checkpoints / "step-00000001", os.scandir
    kept.mkdir(parents=True)
    (kept / "outside").symlink_to("/etc/passwd")
    listings = 0

    def removing(path: Any = ".") -> Any:
        """List a folder; the older checkpoint goes as soon as it is listed."""
        nonlocal listings
        if Path(path) != checkpoints:
            return scandir(path)
        removed.mkdir()
        with scandir(path) as entries:
            found = list(entries)
        removed.rmdir()
        listings += 1
        return nullcontext(iter(found))

    monkeypatch.setattr(os, "scandir", removing)
    with pytest.raises(CheckpointError, match=r"step-00000002/outside: leads out of the run folder"):
        check_inside(tmp_path / "run")
    assert listings
