"""The log reads as one undisturbed run."""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import time
from pathlib import Path

import pytest
from torch import nn

from regard import progress
from regard.errors import WriteError
from regard.training import train
from regard.training.log import RunLog
from regard.training.training_job import Progress
from tests.training import tiny


def entry(event: str, step: int) -> str:
    return json.dumps({"event": event, "step": step}) + "\n"


@pytest.mark.parametrize(("evaluated", "kept"), [(7, True), (5, False)])
def test_lines_after_the_checkpoint_are_dropped(tmp_path: Path, evaluated: int, kept: bool) -> None:
    path = tmp_path / "log.jsonl"
    first = [entry("train", 6), entry("save", 7), entry("train", 7)]
    evaluation = [entry("evaluate", 7)]
    later = [entry("done", 7), entry("train", 8), "[]\n", '{"event": "tra']
    path.write_text("".join(first + evaluation + later))
    with RunLog(tmp_path, Progress(step=7, evaluated_step=evaluated), total=11):
        pass
    assert path.read_text() == "".join(first + (evaluation if kept else []))


def test_an_event_is_one_line_for_every_reader(tmp_path: Path) -> None:
    with RunLog(tmp_path, Progress(), total=3) as log:
        log.write("error", 1, {"what": "a\u2028b\x85é", "examples": ["\ud800"], "loss": float("nan")})
    text = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    assert text.splitlines() == ['{"event": "error", "step": 1, "what": "a\\u2028b\\u0085é", "examples": ["\\ud800"], "loss": null}']


def test_a_log_starts_anew_when_nothing_was_saved(tmp_path: Path) -> None:
    with pytest.raises(tiny.Killed):
        tiny.run(tmp_path, "update 2", log_every=1)
    tiny.run(tmp_path, log_every=1, max_updates=2)
    found = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in found] == [("train", 1), ("train", 2), ("evaluate", 2), ("save", 2), ("done", 2)]


def test_a_training_line_tells_what_is_needed(tmp_path: Path) -> None:
    tiny.run(tmp_path, log_every=7, max_updates=7, evaluate_every=7, save_every=7)
    [line] = [line for text in (tmp_path / "log.jsonl").read_text().splitlines() if (line := json.loads(text))["event"] == "train"]
    known = {
        "event",
        "step",
        "epoch",
        "loss",
        "nll",
        "accuracy",
        "learning_rate",
        "gradient_norm",
        "tokens_per_second",
        "seconds_per_update",
        "seconds",
        "total",
        "remaining",
    }
    assert set(line) == known
    assert (line["event"], line["step"], line["epoch"]) == ("train", 7, 1)
    assert line["loss"] == line["nll"]
    assert 0 < line["accuracy"] < 1
    assert line["tokens_per_second"] == pytest.approx(5 * tiny.EXAMPLES / line["seconds"], rel=0.05)
    assert line["seconds_per_update"] == pytest.approx(line["seconds"] / 7, rel=0.05)


def test_the_time_of_evaluations_is_not_that_of_updates(tmp_path: Path, messages: list[str]) -> None:
    def slow(name: str) -> None:
        if name.startswith("save "):
            time.sleep(0.1)

    job = tiny.job(slow)
    evaluate = job.evaluate

    def slowly(model: nn.Module) -> dict[str, float]:
        time.sleep(0.1)
        return evaluate(model)

    changes = {"max_updates": 20, "epochs": 100, "evaluate_every": 2, "save_every": 4, "log_every": 2}
    train(tiny.model(), dataclasses.replace(job, evaluate=slowly), config=tiny.config(**changes), folder=tmp_path)
    [told] = [line for line in messages if line.startswith("expected")]
    assert float(told.split(" at ")[1].split(" s ")[0]) < 0.05
    found = [line for text in (tmp_path / "log.jsonl").read_text().splitlines() if (line := json.loads(text))["event"] == "train"]
    assert max(line["seconds_per_update"] for line in found) < 0.05


def test_a_training_is_a_stage_with_its_figures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ended: list[progress.Stage] = []
    with progress.listening(lambda event: ended.append(event.stage) if event.kind == "end" and event.stage else None):
        tiny.run(tmp_path, log_every=2, max_updates=2)
    assert [stage.name for stage in ended] == ["Evaluating", "Training"]
    assert (ended[1].done, ended[1].total, ended[1].unit) == (2, 2, "updates")
    assert re.fullmatch(r"epoch 1, loss \d\.\d{4}, lr \S+, [\d,]+ tokens/s", ended[1].figures)
    assert capfd.readouterr() == ("", "")  # nobody asked


def test_before_it_starts_a_training_tells_its_updates_and_soon_how_long_they_take(tmp_path: Path, messages: list[str]) -> None:
    tiny.run(tmp_path, max_updates=40, epochs=100)
    told = [line for line in messages if " in all" in line or line.startswith("expected")]
    assert re.fullmatch(r"[\d,]+ updates per epoch, 40 in all on cpu", told[0])
    assert re.fullmatch(r"expected: 0:00:\d\d for 27 more updates, at \S+ s each, without evaluations and what follows", told[1])
    assert len(told) == 2


def test_a_training_of_few_updates_is_over_before_anything_can_be_expected(tmp_path: Path, messages: list[str]) -> None:
    tiny.run(tmp_path, max_updates=13, epochs=100)
    assert not [line for line in messages if line.startswith("expected")]


def test_a_log_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(WriteError, match=r"log\.jsonl: cannot be written \(Is a directory\)"), RunLog(tmp_path, Progress(), total=3):
        pass


def test_a_full_disk_under_the_log_is_told_in_one_line_and_the_run_resumes(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, before[1]))
    try:
        with pytest.raises(WriteError, match=r"log\.jsonl: cannot be written \(File too large\)"):
            tiny.run(tmp_path, log_every=1, save_every=100, evaluate_every=100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert tiny.run(tmp_path).reason == "epochs"
    assert all(json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines())


def test_figures_reach_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    class Writer:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((name, step))

        def close(self) -> None:
            seen.append(("closed", 0))

    monkeypatch.setattr("regard.training.log._summary_writer", lambda folder, step: Writer())
    tiny.run(tmp_path, tensorboard=True, log_every=2, max_updates=2)
    assert {("train/loss", 2), ("train/learning_rate", 2), ("evaluate/loss", 2), ("closed", 0)} <= set(seen)
