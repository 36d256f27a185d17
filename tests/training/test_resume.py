"""A run that was killed and started again ends as the one that was never stopped."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from regard.training import TrainResult, train
from regard.training.checkpoint import list_checkpoints
from tests.training import tiny

FEATURES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16", "gradient_accumulation_steps": 2},
    "fp16": {"precision": "fp16", "optimizer": "adam"},
    "averages": {"ema_decay": 0.9, "average_checkpoints": 3, "optimizer": "sgd"},
    "adadelta": {"optimizer": "adadelta", "learning_rate": 1.0, "schedule": "halving", "halve_after": 5, "halve_every": 4},
    "rmsprop": {"optimizer": "rmsprop"},
    "adagrad": {"optimizer": "adagrad"},
}
# Epochs end at updates 7, 14 and 21; accumulating two batches, with one left over, at 4, 8 and 12.
MOMENTS = {
    "before the first save": "update 2",
    "in mid-epoch": "update 6",
    "right after a save": "saved 6",
    "at the end of an epoch": "update 8",
    "during an evaluation": "evaluate 9",
    "between the files of a save": "save 6 model.safetensors",
    "just before the rename": "save 6 rename",
    "during the last save": "save 12 manifest.json",
}


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the log's lines on training and evaluation, without what depends on the clock."""
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    clock = {"seconds", "seconds_per_update", "tokens_per_second", "remaining"}
    return [{k: v for k, v in line.items() if k not in clock} for line in found if line["event"] in ("train", "evaluate", "done")]


def state(folder: Path) -> dict[str, Any]:
    """Return the last checkpoint's state without what depends on the clock."""
    newest = sorted((folder / "checkpoints").glob("step-*"))[-1]
    found = json.loads((newest / "state.json").read_text())
    del found["progress"]["seconds"], found["progress"]["window"][4]
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "model").iterdir())}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, TrainResult]]:
    runs = {}
    for name, changes in FEATURES.items():
        folder = tmp_path_factory.mktemp(name)
        runs[name] = (folder, tiny.run(folder, **changes))
    return runs


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_resumes_exactly(tmp_path: Path, undisturbed: dict[str, tuple[Path, TrainResult]], feature: str, moment: str) -> None:
    folder, expected = undisturbed[feature]
    with pytest.raises(tiny.Killed):
        tiny.run(tmp_path, MOMENTS[moment], **FEATURES[feature])
    result = tiny.run(tmp_path, **FEATURES[feature])
    assert result.weights_sha256 == expected.weights_sha256
    assert lines(tmp_path) == lines(folder)
    assert state(tmp_path) == state(folder)
    assert files(tmp_path) == files(folder)


def test_a_run_killed_at_every_update_resumes_exactly(tmp_path: Path, undisturbed: dict[str, tuple[Path, TrainResult]]) -> None:
    folder, expected = undisturbed["fp32"]
    for step in range(3, expected.step, 2):
        with pytest.raises(tiny.Killed):
            tiny.run(tmp_path, f"update {step}")
    assert tiny.run(tmp_path).weights_sha256 == expected.weights_sha256
    assert lines(tmp_path) == lines(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["update 5", "evaluate 9", "save 6", "evaluate 21"])
def test_a_signal_saves_and_the_run_resumes_exactly(
    tmp_path: Path, undisturbed: dict[str, tuple[Path, TrainResult]], number: signal.Signals, moment: str
) -> None:
    folder, expected = undisturbed["fp32"]
    before = signal.getsignal(number)
    result = tiny.run(tmp_path, moment, lambda: os.kill(os.getpid(), number))
    assert (result.interrupted, result.reason, result.model) == (number, "interrupted", None)
    assert (tmp_path / "checkpoints" / f"step-{result.step:08d}" / "manifest.json").is_file()
    assert result.step == int(moment.split()[1]), "it stops at the end of the update, evaluation or save the signal came in"
    assert signal.getsignal(number) == before
    if moment.startswith("evaluate"):
        assert result.step not in [line["step"] for line in lines(tmp_path) if line["event"] == "evaluate"], "the evaluation is left"
    assert tiny.run(tmp_path).weights_sha256 == expected.weights_sha256
    assert lines(tmp_path) == lines(folder)


def test_a_stop_leaves_no_checkpoint_that_a_run_never_stopped_would_not_have(tmp_path: Path) -> None:
    tiny.run(tmp_path / "straight", keep_checkpoints=100)
    for moment in ("update 5", "update 8", "evaluate 9", "save 12"):
        tiny.run(tmp_path / "stopped", moment, lambda: os.kill(os.getpid(), signal.SIGTERM), keep_checkpoints=100)
    tiny.run(tmp_path / "stopped", keep_checkpoints=100)
    straight, stopped = ([path.name for path in list_checkpoints(tmp_path / name)] for name in ("straight", "stopped"))
    assert stopped == straight


def test_a_run_that_is_done_does_nothing_more(tmp_path: Path, undisturbed: dict[str, tuple[Path, TrainResult]]) -> None:
    first = tiny.run(tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    events: list[str] = []
    again = train(tiny.model(), tiny.job(events.append), config=tiny.config(), folder=tmp_path)
    assert again._replace(metrics={}) == first._replace(metrics={})
    assert events == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == written


def test_the_window_of_a_log_line_survives_a_kill_inside_it(tmp_path: Path) -> None:
    straight = tmp_path / "straight"
    tiny.run(straight, log_every=5, max_updates=5)
    with pytest.raises(tiny.Killed):
        tiny.run(tmp_path / "killed", "update 5", log_every=5, max_updates=5)
    tiny.run(tmp_path / "killed", log_every=5, max_updates=5)
    assert lines(tmp_path / "killed") == lines(straight)
