"""A worker process answers, dies with what it has started, and never outlives who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.errors import ConfigError, MissingExtraError, TrainingError
from regard.jobs import ProcessWorker, WorkerLost, open_pool

WORKER = """
import os, subprocess, sys, time
from regard.errors import DataError
from regard.jobs.process_worker import answer_jobs

def work(job):
    match job["do"]:
        case "double":
            print("this is no answer")
            return {"twice": 2 * job["number"], "threads": os.environ.get("OMP_NUM_THREADS")}
        case "warn":
            print("regard: careful", file=sys.stderr)
            return {}
        case "talk":
            for number in range(200):
                print(f"regard: line {number}: longer than 7 tokens", file=sys.stderr)
            return {}
        case "refuse":
            raise DataError("a.en: no such file")
        case "leave":
            sys.exit("regard: error: no run there")
        case "wait":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            open(job["pids"] + ".part", "w").write(f"{os.getpid()} {child.pid}")
            os.rename(job["pids"] + ".part", job["pids"])
            time.sleep(60)

answer_jobs(work)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "doubling_worker.py").write_text(WORKER)
    return tmp_path


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert true()


def waiting(folder: Path, worker: ProcessWorker) -> tuple[list[int], list[BaseException], threading.Thread]:
    """Let a worker do a job that takes long, in a thread; return its number and that of its child, and what `call` raises."""
    raised, pids = list[BaseException](), folder / "pids"

    def call() -> None:
        try:
            worker.call({"do": "wait", "pids": str(pids)})
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    until(pids.exists)
    return [int(word) for word in pids.read_text().split()], raised, thread


def test_a_worker_answers_and_tells_what_it_says(folder: Path) -> None:
    worker = ProcessWorker(["doubling_worker"], {"OMP_NUM_THREADS": "3"}, folder)
    assert worker.call({"do": "double", "number": 7}) == {"twice": 14, "threads": "3", "said": ["this is no answer"]}
    assert worker.call({"do": "warn"}) == {"said": ["careful"]}
    left_out, *said = worker.call({"do": "talk"})["said"]
    assert left_out == "earlier messages are left out"
    assert said == [f"line {number}: longer than 7 tokens" for number in range(200 - len(said), 200)]  # whole lines
    assert worker.call({"do": "refuse"}) == {"error": "a.en: no such file"}
    with pytest.raises(TrainingError, match=r"^no run there$") as raised:
        worker.call({"do": "leave"})
    assert raised.value.exit_code == 1
    worker.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_lost_worker_takes_its_children_along(folder: Path, how: str) -> None:
    worker = ProcessWorker(["doubling_worker"], folder=folder)
    pids, raised, thread = waiting(folder, worker)
    if how == "killed":
        os.kill(pids[0], signal.SIGKILL)
    else:
        worker.close()
    thread.join(30)
    assert [type(error) for error in raised] == [WorkerLost]
    until(lambda: not any(map(alive, pids)))
    worker.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_worker_ends_with_who_started_it(folder: Path) -> None:
    code = "from regard.jobs import ProcessWorker; ProcessWorker(['doubling_worker']).call({'do': 'wait', 'pids': 'pids'})"
    with subprocess.Popen([sys.executable, "-c", code], cwd=folder) as parent:
        until((folder / "pids").exists)
        pids = [int(word) for word in (folder / "pids").read_text().split()]
        parent.kill()
    until(lambda: not any(map(alive, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    "begin",
    [
        "from regard.jobs import ProcessWorker; ProcessWorker(['slow_import']).call({})",
        "from pathlib import Path; from regard.study.grid import train_apart; train_apart(['slow_import'], Path('log'))",
    ],
)
def test_a_process_that_still_imports_ends_with_who_started_it(folder: Path, begin: str) -> None:
    pid = folder / "pid"
    (folder / "slow_import.py").write_text(f"import os, time; os.symlink(str(os.getpid()), {str(pid)!r}); time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", begin], cwd=folder) as parent:
        until(pid.is_symlink)
        parent.kill()
    until(lambda: not alive(int(os.readlink(pid))))


def test_cores_are_divided_unless_somebody_says_otherwise(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.jobs.opening.usable_cores", lambda: 7)
    monkeypatch.chdir(folder)

    def threads(**where: int) -> list[str]:
        answers = list[str]()
        jobs = {str(number): {"do": "double", "number": number} for number in range(3)}
        open_pool(["doubling_worker"], **where).run(jobs, lambda name, answer: answers.append(answer["threads"]))
        return answers

    assert threads(workers=2) == ["1"] * 3  # that of the tests
    assert threads(workers=2, cpus=5) == ["5"] * 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads(workers=2) == ["3"] * 3


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"--on ray needs ray: pip install '\.\[ray\]'"):
        open_pool(["regard"], on="ray")
    with pytest.raises(ConfigError, match="--gpus: only with --on"):
        open_pool(["regard"], gpus=1)
