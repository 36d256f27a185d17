"""Of many who want a piece of work one gets it, and nobody waits for the dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from regard.study.locks import hold_lock, lock_holders


def left_by(folder: Path, name: str, number: int = 0, **changes: object) -> Path:
    """Leave a claim as a process does that is killed."""
    with hold_lock(folder, name) as ours:
        assert ours
        held = json.loads((folder / f"{name}.0.claim").read_text())
    path = folder / f"{name}.{number}.claim"
    path.write_text(json.dumps(held | changes))
    return path


def gone() -> int:
    return int(subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True).stdout)


def test_a_claim_is_held_by_one_and_given_back(tmp_path: Path) -> None:
    with hold_lock(tmp_path, "a") as ours, hold_lock(tmp_path, "a") as again, hold_lock(tmp_path, "a.b") as other:
        assert (ours, again, other) == (True, False, True)
        assert {name: who.rsplit(":", 1)[1] for name, who in lock_holders(tmp_path).items()} == {
            "a": str(os.getpid()),
            "a.b": str(os.getpid()),
        }
    assert list(tmp_path.iterdir()) == []
    with hold_lock(tmp_path, "a") as ours:
        assert ours


def test_of_many_threads_one_gets_it(tmp_path: Path) -> None:
    for number in range(20):
        got, start = [], threading.Barrier(8)

        def want(name: str = str(number), got: list[bool] = got, start: threading.Barrier = start) -> None:
            start.wait()
            with hold_lock(tmp_path, name) as ours:
                got.append(ours)
                start.wait()

        threads = [threading.Thread(target=want) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == [False] * 7 + [True]


def test_an_error_gives_it_back(tmp_path: Path) -> None:
    with pytest.raises(KeyError), hold_lock(tmp_path, "a"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_process_of_this_machine_holds_is_free_at_once(tmp_path: Path) -> None:
    left_by(tmp_path, "a", pid=gone())
    with hold_lock(tmp_path, "a") as ours, hold_lock(tmp_path, "a") as again:
        assert (ours, again) == (True, False)
    assert list(tmp_path.iterdir()) == []


def test_what_another_machine_no_longer_touches_is_free_later(tmp_path: Path) -> None:
    path = left_by(tmp_path, "a", pid=gone(), machine="elsewhere")
    with hold_lock(tmp_path, "a") as ours:
        assert not ours
    old = time.time() - 61
    os.utime(path, (old, old))
    with hold_lock(tmp_path, "a") as ours, hold_lock(tmp_path, "a") as again:
        assert (ours, again) == (True, False)
        assert [path.name for path in tmp_path.glob("*.claim")] != []
    assert list(tmp_path.iterdir()) == []


def test_who_comes_back_from_the_dead_leaves_the_new_holder_alone(tmp_path: Path) -> None:
    with hold_lock(tmp_path, "a", beat=100) as first:
        assert first
        old = time.time() - 61
        os.utime(tmp_path / "a.0.claim", (old, old))
        taken = hold_lock(tmp_path, "a")
        assert taken.__enter__()
    with hold_lock(tmp_path, "a") as third:
        assert not third
    taken.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_claim_is_touched_while_it_is_held(tmp_path: Path) -> None:
    with hold_lock(tmp_path, "a", beat=0.02):
        path = tmp_path / "a.0.claim"
        os.utime(path, (1, 1))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 2
