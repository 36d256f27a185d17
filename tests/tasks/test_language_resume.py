"""A language model that was killed between two chunks of a text goes on as if it never was, with one process and with two."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from regard.errors import CheckpointError, ConfigError
from regard.training import TrainResult
from tests.tasks.tiny_language import Killed, run, write_text

ROOT = Path(__file__).parents[2]
TRAINING: dict[str, Any] = {"epochs": 2, "save_every": 2, "evaluate_every": 11}
TRIALS: dict[str, dict[str, Any]] = {
    "fp32": {"training": TRAINING},
    "bf16": {"training": {**TRAINING, "precision": "bf16", "accumulation": 2}},
    "none": {"training": TRAINING, "model": {"attention": "none"}},
    "lanes, shuffled": {"training": {**TRAINING, "lanes": 2, "accumulation": 3}, "data": {"shuffle": True}},
    "separate": {"training": {**TRAINING, "batch_tokens": 60}, "data": {"lines": "separate"}},
}
PAIR: dict[str, dict[str, Any]] = {
    "fp32": {"training": {**TRAINING, "lanes": 2}},
    "bf16": {"training": {**TRAINING, "lanes": 4, "precision": "bf16"}},
}


def merged(parts: dict[str, Any], **training: Any) -> dict[str, Any]:
    return {**parts, "training": {**parts["training"], **training}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    return {name: run(tmp_path_factory.mktemp("run"), **parts) for name, parts in TRIALS.items()}


def losses(folder: Path) -> list[tuple[int, float]]:
    events = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    return [(event["step"], event["loss"]) for event in events if event["event"] == "train"]


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("fp32", "update 7"),
        ("fp32", "save 8 rename"),
        ("fp32", "evaluate 11"),
        ("bf16", "update 7"),
        ("none", "update 7"),
        ("lanes, shuffled", "saved 6"),
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
    monkeypatch.setattr("regard.training.checkpoint.read_lanes", lambda path, carried: None)
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
        run(tmp_path, **merged(TRIALS["fp32"], streams=2))


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


def start(trials: list[dict[str, Any]]) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    shared = {**os.environ, "REGARD_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "WORLD_SIZE": "2"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.tasks.language_worker", json.dumps(trials)]
    pipes: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes) for rank in range(2)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Run every trial in one pair of processes: straight, killed, resumed; and one that two cannot share."""
    folder = tmp_path_factory.mktemp("pair")
    trials = []
    for name, parts in PAIR.items():
        for trial in (name, f"{name} resumed", f"{name} resumed"):
            write_text(folder / trial)
        trials += [
            {"folder": str(folder / name), "parts": parts},
            {"folder": str(folder / f"{name} resumed"), "parts": parts, "raise": "update 6"},
            {"folder": str(folder / f"{name} resumed"), "parts": parts},
        ]
    write_text(folder / "odd")
    trials.append({"folder": str(folder / "odd"), "parts": merged(PAIR["fp32"], lanes=3)})
    started = start(trials)
    try:
        ended = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], ended
    return folder, [json.loads(line) for line in ended[0][0].splitlines()]


@pytest.mark.parametrize("name", PAIR)
def test_two_processes_resume_exactly(pair: tuple[Path, list[dict[str, Any]]], name: str) -> None:
    straight, killed, resumed = pair[1][3 * list(PAIR).index(name) :][:3]
    assert killed == {"killed": True}
    assert resumed == straight


@pytest.mark.parametrize("name", PAIR)
def test_two_processes_train_as_one_that_accumulates(pair: tuple[Path, list[dict[str, Any]]], tmp_path: Path, name: str) -> None:
    run(tmp_path, **merged(PAIR[name], accumulation=2))
    found, expected = losses(pair[0] / name), losses(tmp_path)
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in expected], rel=1e-5)


def test_a_checkpoint_holds_the_lanes_of_both_processes(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = pair
    newest = sorted((folder / "fp32" / "run" / "checkpoints").iterdir())[-1]
    carried = load_file(newest / "carried.safetensors")
    assert set(carried) == {"hidden", "cell", "outputs", "mask"}
    assert carried["hidden"].shape == (2, 2, 3, 12)
    assert all(bool(torch.any(part != 0)) for part in carried["hidden"])


def test_lanes_that_two_processes_cannot_share_are_refused(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    assert pair[1][-1] == {
        "error": "ConfigError: 2 processes cannot share 3 lanes of text; training.lanes must be a multiple of the processes"
    }
