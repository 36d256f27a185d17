"""Two processes do what one does with two batches an update, and resume as exactly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.tasks import tiny_language
from tests.training import tiny
from tests.training.test_resume import lines

ROOT = Path(__file__).parents[2]
TRIALS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp bf16": {"precision": "bf16"},
    "ddp fp16 accumulated": {"precision": "fp16", "gradient_accumulation_steps": 2, "epochs": 5},
    "fsdp": {"distributed": "fsdp", "ema_decay": 0.9},
    "fsdp in parts": {"distributed": "fsdp", "micro_batches": 4},
    "fsdp fp16 accumulated": {"distributed": "fsdp", "precision": "fp16", "gradient_accumulation_steps": 2, "epochs": 5},
}

LANGUAGE: dict[str, Any] = {"epochs": 2, "save_every": 2, "evaluate_every": 11, "watch": 2}
LANGUAGE_TRIALS: dict[str, dict[str, Any]] = {
    "language fp32": {"training": {**LANGUAGE, "stream_groups": 2}},
    "language bf16": {"training": {**LANGUAGE, "stream_groups": 4, "precision": "bf16"}},
}


def start(trials: list[dict[str, Any]], processes: int = 2) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    shared = {**os.environ, "REGARD_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.training.worker", json.dumps(trials)]
    group = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if processes > 1 else {}
    return [
        subprocess.Popen(
            command,
            env={**shared, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]


def finish(started: list[subprocess.Popen[str]]) -> list[tuple[int, list[dict[str, Any]], str]]:
    """Return exit code, answers and standard error of each process."""
    ended = []
    try:
        for process in started:
            out, err = process.communicate(timeout=100)
            ended.append((process.returncode, [json.loads(line) for line in out.splitlines()], err))
    finally:
        for process in started:
            process.kill()
    return ended


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Run every trial in one pair of processes, for starting one costs more than all of them; in the last, one dies."""
    folder = tmp_path_factory.mktemp("pair")
    trials, names = [], []
    for name, changes in TRIALS.items():
        trials += [
            {"folder": str(folder / name), "changes": changes},
            {"folder": str(folder / f"{name} resumed"), "changes": changes, "raise": "update 7"},
            {"folder": str(folder / f"{name} resumed"), "changes": changes, "signal": "evaluate 9", "rank": 1},
            {"folder": str(folder / f"{name} resumed"), "changes": changes},
        ]
        names += [name, f"{name} killed", f"{name} interrupted", f"{name} resumed"]
    for name, parts in LANGUAGE_TRIALS.items():
        whole, resumed = ({"folder": str(folder / run), "language": parts} for run in (name, f"{name} resumed"))
        trials += [whole, {**resumed, "raise": "update 6"}, resumed]
        names += [name, f"{name} killed", f"{name} resumed"]
    uneven = {"training": {**LANGUAGE, "stream_groups": 3}}
    trials.append({"folder": str(folder / "uneven"), "language": uneven})
    names.append("uneven")
    for trial in trials:
        if "language" in trial:
            tiny_language.write_text(Path(trial["folder"]))
    lost = {"folder": str(folder / "lost"), "kill": "save 6 optimizer.safetensors"}
    (killed, answers, first), (code, errors, second) = finish(start([*trials, lost]))
    assert (killed, code) == (-signal.SIGKILL, 1), f"after {len(answers)} of {len(trials)} trials\n{first}\n{second}"
    return folder, {**dict(zip(names, answers, strict=True)), "lost": errors[-1]}


@pytest.mark.parametrize("name", TRIALS)
def test_two_processes_train_as_one_that_accumulates(pair: tuple[Path, dict[str, dict[str, Any]]], tmp_path: Path, name: str) -> None:
    folder, results = pair
    single = tiny.run(tmp_path, **{**TRIALS[name], "gradient_accumulation_steps": 2 * TRIALS[name].get("gradient_accumulation_steps", 1)})
    assert results[name]["step"] == single.step
    figures = [(line["step"], key, value) for line in lines(tmp_path) for key, value in line.items() if isinstance(value, float)]
    others = [(line["step"], key, value) for line in lines(folder / name) for key, value in line.items() if isinstance(value, float)]
    # Half-precision products of the same batches are the same; what differs is the order of the float32 sums around them.
    assert [item[:2] for item in others] == [item[:2] for item in figures]
    assert [item[2] for item in others] == pytest.approx([item[2] for item in figures], rel=1e-6)


@pytest.mark.parametrize("name", TRIALS)
def test_two_processes_resume_exactly(pair: tuple[Path, dict[str, dict[str, Any]]], name: str) -> None:
    folder, results = pair
    assert results[f"{name} killed"] == {"killed": True}
    assert results[f"{name} interrupted"]["interrupted"] == signal.SIGTERM, "a signal to one process stops all"
    assert results[f"{name} interrupted"]["step"] == 9
    assert results[f"{name} resumed"] == results[name]
    assert lines(folder / f"{name} resumed") == lines(folder / name)
    final = [(folder / run / "model" / "model.safetensors").read_bytes() for run in (name, f"{name} resumed")]
    assert final[0] == final[1]


def test_sharded_training_gives_the_weights_of_replicated_training(pair: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, _ = pair
    losses = [[line["loss"] for line in lines(folder / name) if line["event"] == "train"] for name in ("ddp", "fsdp")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_lost_process_ends_the_others(pair: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, results = pair
    assert "lost contact" in results["lost"]["error"] or "gave up" in results["lost"]["error"]
    kept = sorted(path.name for path in (folder / "lost" / "checkpoints").iterdir())
    assert kept == [".tmp-step-00000006", "step-00000003", "step-00000004"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "ddp bf16", "fsdp"])
@pytest.mark.parametrize("event", ["update 7", "save 8 optimizer.safetensors", "save 8 rename"])
def test_a_pair_killed_for_good_resumes_exactly(
    pair: tuple[Path, dict[str, dict[str, Any]]], tmp_path: Path, name: str, event: str
) -> None:
    _, results = pair
    trial = {"folder": str(tmp_path), "changes": TRIALS[name]}
    assert finish(start([{**trial, "kill": event}]))[0][0] == -signal.SIGKILL
    (code, answers, _), _ = finish(start([trial]))
    assert code == 0
    assert answers == [results[name]]


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE_TRIALS)
def test_the_first_of_two_processes_records_attention_and_a_kill_changes_no_byte(
    pair: tuple[Path, dict[str, dict[str, Any]]], name: str
) -> None:
    folder, _ = pair
    files = [folder / each / "run" / "attention.jsonl" for each in (name, f"{name} resumed")]
    assert files[0].read_bytes() == files[1].read_bytes()
    found = [json.loads(line) for line in files[0].read_text().splitlines()]
    updates = [line["point"]["update"] for line in found]
    evaluated = [line["step"] for line in lines(files[0].parent) if line["event"] == "evaluate"]
    assert updates == [update for update in (0, *evaluated) for _ in range(2)]
    assert len({line["title"] for line in found}) == 2


def torchrun(*words: str) -> str:
    """Run a module or script in two processes, and return what they printed."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *words]
    environment = {**os.environ, "REGARD_DEVICE": "cpu", "PYTHONPATH": path}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True).stdout


def test_torchrun_starts_the_same_run(pair: tuple[Path, dict[str, dict[str, Any]]], tmp_path: Path) -> None:
    _, results = pair
    assert json.loads(torchrun("-m", "tests.training.worker", json.dumps([{"folder": str(tmp_path)}]))) == results["ddp"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_no_thread_of_the_group_is_left_when_python_shuts_down(tmp_path: Path) -> None:
    # Registered before those of Regard, it is called after them.
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, runpy\n"
        "from pathlib import Path\n"
        "names = lambda: [path.read_text().strip() for path in Path('/proc/self/task').glob('*/comm')]\n"
        "atexit.register(lambda: print('at exit', *names(), flush=True))\n"
        "runpy.run_module('tests.training.worker', run_name='__main__')\n",
        encoding="utf-8",
    )
    printed = torchrun(str(script), json.dumps([{"folder": str(tmp_path / "run")}]))
    left = [line.split() for line in printed.splitlines() if line.startswith("at exit")]
    assert len(left) == 2
    assert not [name for names in left for name in names if "gloo" in name]


def test_a_process_killed_inside_a_save_resumes_exactly(tmp_path: Path) -> None:
    expected = tiny.run(tmp_path / "straight", precision="bf16")
    killed = {"folder": str(tmp_path / "killed"), "changes": {"precision": "bf16"}}
    [(code, answers, _)] = finish(start([{**killed, "kill": "save 8 manifest.json"}], processes=1))
    assert (code, answers) == (-signal.SIGKILL, [])
    assert (tmp_path / "killed" / "checkpoints" / ".tmp-step-00000008").is_dir()
    assert tiny.run(tmp_path / "killed", precision="bf16").weights_sha256 == expected.weights_sha256


def test_a_second_interrupt_ends_the_process_at_once() -> None:
    code = (
        "import signal\nfrom regard.training import StopSignal\nwith StopSignal():\n    for _ in range(2):\n        signal.raise_signal(2)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGINT


@pytest.mark.parametrize("name", LANGUAGE_TRIALS)
def test_two_processes_resume_a_text_exactly(pair: tuple[Path, dict[str, dict[str, Any]]], name: str) -> None:
    _, results = pair
    assert results[f"{name} killed"] == {"killed": True}
    assert results[f"{name} resumed"] == results[name]


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in lines(folder / "run") if line["event"] == "train"]


@pytest.mark.parametrize("name", LANGUAGE_TRIALS)
def test_two_processes_share_a_text_as_one_that_accumulates(
    pair: tuple[Path, dict[str, dict[str, Any]]], tmp_path: Path, name: str
) -> None:
    tiny_language.run(tmp_path, training={**LANGUAGE_TRIALS[name]["training"], "gradient_accumulation_steps": 2})
    found, expected = losses(pair[0] / name), losses(tmp_path)
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in expected], rel=1e-5)


def test_a_checkpoint_holds_the_lanes_of_both_processes(pair: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, _ = pair
    newest = sorted((folder / "language fp32" / "run" / "checkpoints").iterdir())[-1]
    carried = load_file(newest / "carried.safetensors")
    assert set(carried) == {"hidden", "cell", "outputs", "mask"}
    assert carried["hidden"].shape == (2, 2, 3, 12)
    assert all(bool(torch.any(part != 0)) for part in carried["hidden"])


def test_lanes_that_two_processes_cannot_share_are_refused(pair: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    assert pair[1]["uneven"] == {
        "error": "ConfigError: 2 processes cannot share 3 stream groups; training.stream_groups must be a multiple of the processes"
    }
