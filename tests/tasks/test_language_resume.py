"""A language model that was killed between two chunks of a text goes on as if it never was; with two processes: tests/training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.errors import CheckpointError, ConfigError
from regard.training import TrainResult
from tests.tasks.tiny_language import Killed, run

TRAINING: dict[str, Any] = {"epochs": 2, "save_every": 2, "evaluate_every": 11}
TRIALS: dict[str, dict[str, Any]] = {
    "fp32": {"training": TRAINING},
    "bf16": {"training": {**TRAINING, "precision": "bf16", "gradient_accumulation_steps": 2}},
    "none": {"training": TRAINING, "model": {"attention": "none"}},
    "stream groups, shuffled": {"training": {**TRAINING, "stream_groups": 2, "gradient_accumulation_steps": 3}, "data": {"shuffle": True}},
    "separate": {"training": {**TRAINING, "batch_tokens": 60}, "data": {"context": "separate"}},
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    return {name: run(tmp_path_factory.mktemp("run"), **parts) for name, parts in TRIALS.items()}


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("fp32", "update 7"),
        ("fp32", "save 8 rename"),
        ("fp32", "evaluate 11"),
        ("bf16", "update 7"),
        ("none", "update 7"),
        ("stream groups, shuffled", "saved 6"),
        ("separate", "update 4"),
    ],
)
def test_a_killed_run_resumes_exactly(tmp_path: Path, undisturbed: dict[str, TrainResult], name: str, event: str) -> None:
    assert undisturbed[name].step > int(event.split()[1])
    with pytest.raises(Killed):
        run(tmp_path, event, **TRIALS[name])
    result = run(tmp_path, **TRIALS[name])
    assert (result.step, result.weights_sha256) == (undisturbed[name].step, undisturbed[name].weights_sha256)


def test_what_was_read_before_the_kill_matters(
    tmp_path: Path, undisturbed: dict[str, TrainResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Were the carried state not read back, the test above could not tell: here it is not.
    with pytest.raises(Killed):
        run(tmp_path, "update 6", **TRIALS["fp32"])
    monkeypatch.setattr("regard.training.checkpoint.read_stream_state", lambda path, carried: None)
    assert run(tmp_path, **TRIALS["fp32"]).weights_sha256 != undisturbed["fp32"].weights_sha256


def test_a_checkpoint_without_what_was_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(tmp_path, "update 6", **TRIALS["fp32"])
    for folder in (tmp_path / "run" / "checkpoints").iterdir():
        (folder / "carried.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"carried\.safetensors"):
        run(tmp_path, **TRIALS["fp32"])


def test_other_lanes_are_other_settings(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(tmp_path, "update 6", **TRIALS["fp32"])
    with pytest.raises(ConfigError, match=r"training\.streams: 3 -> 2"):
        run(tmp_path, training={**TRAINING, "streams": 2})


@pytest.mark.parametrize(
    ("training", "message"),
    [({"compile": True}, "training.compile"), ({"distributed": "fsdp"}, "training.distributed"), ({"metric": "bleu"}, "training.metric")],
)
def test_a_way_of_training_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, training: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, training=training)
    assert not (tmp_path / "run").exists()
