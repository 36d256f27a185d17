"""Each job is done once, whatever happens to the workers."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from regard.errors import ConfigError, TrainingError
from regard.jobs import Pool, Worker, WorkerLost
from regard.jobs.pool import Answer, Job


class Fake:
    """A worker that does as its job says."""

    def __init__(self, number: int, begun: list[str]) -> None:
        self.number, self.begun, self.closed, self.stopped = number, begun, threading.Event(), threading.Event()

    def ready(self, seconds: float) -> bool:
        return True

    def call(self, job: Job) -> Answer:
        self.begun.append(job["name"])
        if job["name"] in job.get("lost", ()) and self.begun.count(job["name"]) <= job["times"]:
            raise WorkerLost("signal 9")
        if job.get("long"):
            while not (self.stopped.is_set() or self.closed.is_set()):
                time.sleep(0.005)
            if self.closed.is_set():
                raise WorkerLost("closed")
            return {"stopped": True}
        time.sleep(job.get("seconds", 0))
        return {"by": self.number}

    def stop(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.closed.set()


def jobs(count: int, **more: Any) -> dict[str, dict[str, Any]]:
    return {f"j{number}": {"name": f"j{number}", **more} for number in range(count)}


def started(begun: list[str], made: list[Fake]) -> Any:
    def start(number: int) -> Worker:
        made.append(Fake(number, begun))
        return made[-1]

    return start


def test_every_job_is_done_once_by_all_workers() -> None:
    begun, made, answers = list[str](), list[Fake](), dict[str, Answer]()
    pool = Pool(started(begun, made), 3)
    pool.run(jobs(41, seconds=0.003), answers.__setitem__)
    assert sorted(begun) == sorted(answers) == sorted(jobs(41))
    assert {answer["by"] for answer in answers.values()} == {0, 1, 2}
    assert all(worker.closed.is_set() for worker in made)
    assert pool.running == {}


def test_a_job_whose_worker_is_lost_is_done_by_a_new_one(messages: list[str]) -> None:
    begun, made, answers = list[str](), list[Fake](), dict[str, Answer]()
    Pool(started(begun, made), 2).run(jobs(7, lost=["j2", "j5"], times=2), answers.__setitem__)
    assert sorted(answers) == sorted(jobs(7))
    assert {name: begun.count(name) for name in jobs(7)} == dict.fromkeys(jobs(7), 1) | {"j2": 3, "j5": 3}
    assert messages.count("j2: its worker was lost (signal 9); another worker takes it") == 2
    assert len(made) == 2 + 4


def test_a_job_that_loses_every_worker_fails_alone() -> None:
    begun, made, answers = list[str](), list[Fake](), dict[str, Answer]()
    Pool(started(begun, made), 1).run(jobs(3, lost=["j0"], times=99), answers.__setitem__)
    assert answers == {"j0": {"error": "5 workers were lost, the last one: signal 9"}, "j1": {"by": 0}, "j2": {"by": 0}}
    assert sorted(begun) == ["j0"] * 5 + ["j1", "j2"]


def test_five_jobs_in_a_row_that_lose_every_worker_end_the_work() -> None:
    begun, made, answers = list[str](), list[Fake](), dict[str, Answer]()
    with pytest.raises(TrainingError, match=r"j\d: 5 workers were lost, the last one: signal 9"):
        Pool(started(begun, made), 1).run(jobs(9, lost=list(jobs(9)), times=99), answers.__setitem__)
    assert list(answers.values()) == [{"error": "5 workers were lost, the last one: signal 9"}] * 4


def test_workers_that_never_begin_end_the_work() -> None:
    def start(number: int) -> Worker:
        raise WorkerLost("no machine")

    with pytest.raises(TrainingError, match="no worker begins: 5 workers were lost, the last one: no machine"):
        Pool(start, 1).run(jobs(1), lambda name, answer: None)


def test_what_a_worker_refuses_is_raised() -> None:
    def start(number: int) -> Worker:
        raise ConfigError("no such run")

    with pytest.raises(ConfigError, match="no such run"):
        Pool(start, 2).run(jobs(3), lambda name, answer: None)


def test_stop_hands_out_nothing_more_and_lets_workers_answer() -> None:
    begun, made, answers = list[str](), list[Fake](), dict[str, Answer]()
    pool = Pool(started(begun, made), 2)

    def tick() -> None:
        if len(begun) == 2:
            pool.stop()

    pool.run(jobs(5, long=True), answers.__setitem__, tick)
    assert answers == {"j0": {"stopped": True}, "j1": {"stopped": True}}
    assert sorted(begun) == ["j0", "j1"]


def test_an_error_of_the_caller_ends_the_workers() -> None:
    begun, made = list[str](), list[Fake]()

    def done(name: str, answer: Answer) -> None:
        raise KeyError(name)

    with pytest.raises(KeyError):
        Pool(started(begun, made), 2).run({**jobs(1), "k": {"name": "k", "long": True}}, done)
    assert all(worker.closed.is_set() for worker in made)


def test_what_a_worker_says_is_told_with_the_name_of_the_job(messages: list[str]) -> None:
    class Talking(Fake):
        def call(self, job: Job) -> Answer:
            return {"said": ["line 3: cut off"]}

    answers = dict[str, Answer]()
    Pool(lambda number: Talking(number, []), 1).run(jobs(1), answers.__setitem__)
    assert (messages, answers) == (["j0: line 3: cut off"], {"j0": {}})
