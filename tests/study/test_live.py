"""The runs of a study are told of while they are trained."""

from __future__ import annotations

import threading
from pathlib import Path

from regard import progress
from regard.jobs import Pool
from regard.jobs.pool import Answer, Job
from regard.study.live import LiveTable


class Waiting:
    """A worker whose jobs take as long as somebody says."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def ready(self, seconds: float) -> bool:
        return True

    def call(self, job: Job) -> Answer:
        self.go_on.wait(30)
        return {}

    def stop(self) -> None:
        self.go_on.set()

    close = stop


def test_each_run_at_work_is_a_stage_that_tells_its_update_and_loss(tmp_path: Path) -> None:
    worker, told = Waiting(), list[str]()
    log = tmp_path / "a-x-1" / "log.jsonl"
    log.parent.mkdir()
    log.write_text('{"event": "train", "step": 3, "loss": 2.5}\n{"event": "train", "step": 5, "loss": 2.25, "total": 11}\n{"event": "tra')
    pool, done, parents = Pool(lambda number: worker, 1), list[str](), dict[str, str]()

    def heard(event: progress.Event) -> None:
        told.append(f"{event.kind} {event.stage}: {event.text}")
        if event.stage is not None and event.stage.parent is not None:
            parents[event.stage.name] = event.stage.parent.name

    with (
        progress.listening(heard),
        LiveTable(tmp_path, pool, total=7, done=4) as table,
    ):

        def tick() -> None:
            table.look()
            if any("Run a-x-1" in line for line in told):
                worker.go_on.set()

        def answered(name: str, answer: Answer) -> None:
            done.append(name)
            table.advance(name)

        pool.run({"a-x-1": {}}, answered, tick)
        table.look()
        pool.running.update({0: "b", 1: "c"})
        table.look()
        pool.running.clear()
        table.look()
        pool.running.update({0: "a-x-1"})
        table.look()
        with log.open("a") as stream:
            stream.write('in\n{"event": "done", "step": 11}\n')
        table._due = 0.0
        table.look()
        pool.running.clear()
        table.look()
        assert [parents[name] for name in ("Run b", "Run c")] == ["Training runs"] * 2
        stages = [line.split(",")[0] for line in told]
    assert done == ["a-x-1"]
    assert told[0].startswith("start Training runs: 4 of 7 runs (57%)")
    assert "start Run a-x-1: 5 of 11 updates (45%): " in stages
    assert "start Run a-x-1, trained: measuring it" in {line.rpartition(": ")[0] for line in told}
    ended, again = [line for line in told if line.startswith("end Run a-x-1: ")]
    assert ended.startswith("end Run a-x-1: 5 of 11 updates (45%)")
    assert again.startswith("end Run a-x-1: 11 of 11 updates (100%)")
    assert "loss 2.250" in ended
    assert "/s" not in ended, "the updates of an earlier process are no speed of this one"
    assert any(line.endswith("a-x-1: done, 5 of 7") for line in told)
