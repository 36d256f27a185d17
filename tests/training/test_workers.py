"""Worker processes give the weights of one process, and all of them end when one does."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import progress
from regard.config import TrainingConfig
from regard.cores import torch_threads
from regard.errors import ConfigError, DataError, TrainingError
from regard.ops import SequenceLoss
from regard.tasks.forked_processes import in_forks
from regard.training import ProcessGroup, TrainingJob, TrainResult, automatic_micro_batches, train
from regard.training.micro_batch import choose_workers, resolve_micro_batches
from regard.training.workers import UpdateRecord, Workers, shared_zeros
from tests.tasks import tiny_language
from tests.training import tiny
from tests.training.test_distributed import ROOT
from tests.training.test_resume import files, lines, state

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux only")

FEATURES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16 accumulated": {"precision": "bf16", "gradient_accumulation_steps": 2},
    "fp16": {"precision": "fp16", "optimizer": "adam"},
    "averages": {"ema_decay": 0.9, "average_checkpoints": 3, "optimizer": "sgd"},
}


def run(folder: Path, workers: int, at: str | None = None, act: Callable[[], None] | None = None, **changes: Any) -> TrainResult:
    return tiny.run(folder, at, act, workers=workers, **{"micro_batches": 3, **changes})


def children() -> list[int]:
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Any:
    before = set(children())
    yield
    assert set(children()) <= before


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, TrainResult]]:
    runs = {}
    for name, changes in FEATURES.items():
        folder = tmp_path_factory.mktemp(name)
        runs[name] = (folder, run(folder, 1, **changes))
    return runs


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_weights(
    tmp_path: Path, one_worker: dict[str, tuple[Path, TrainResult]], feature: str, workers: int
) -> None:
    folder, expected = one_worker[feature]
    assert run(tmp_path, workers, **FEATURES[feature]).weights_sha256 == expected.weights_sha256
    assert (lines(tmp_path), state(tmp_path), files(tmp_path)) == (lines(folder), state(folder), files(folder))


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("moment", ["update 2", "update 6", "evaluate 9", "save 6 rename"])
def test_a_killed_run_resumes_exactly_with_another_number_of_workers(
    tmp_path: Path, one_worker: dict[str, tuple[Path, TrainResult]], feature: str, moment: str
) -> None:
    folder, expected = one_worker[feature]
    with pytest.raises(tiny.Killed):
        run(tmp_path, 2, moment, **FEATURES[feature])
    assert run(tmp_path, 3, **FEATURES[feature]).weights_sha256 == expected.weights_sha256
    assert (lines(tmp_path), state(tmp_path)) == (lines(folder), state(folder))


def test_micro_batches_change_nothing_but_the_rounding(tmp_path: Path) -> None:
    losses = []
    for name, changes in {"whole": {"micro_batches": 1}, "divided": {"micro_batches": 3, "workers": 2}}.items():
        train(tiny.model(dropout=0.0), tiny.job(), config=tiny.config(**changes), folder=tmp_path / name)
        losses.append([line["loss"] for line in lines(tmp_path / name) if "loss" in line])
    assert len(losses[0]) > 10
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)  # float32 sums in another order, over 21 updates


@pytest.mark.parametrize(
    "parts", [{"stream_groups": 1}, {"stream_groups": 2, "precision": "bf16", "gradient_accumulation_steps": 2}], ids=str
)
def test_workers_carry_the_state_of_a_text(tmp_path: Path, parts: dict[str, Any]) -> None:
    settings = {"epochs": 2, "save_every": 2, "evaluate_every": 11, "micro_batches": 2, **parts}
    hashes = []
    for workers in (1, 2):
        hashes.append(tiny_language.run(tmp_path / str(workers), training={**settings, "workers": workers}).weights_sha256)
    with pytest.raises(tiny_language.Killed):
        tiny_language.run(tmp_path / "killed", "update 6", training={**settings, "workers": 2})
    hashes.append(tiny_language.run(tmp_path / "killed", training={**settings, "workers": 1}).weights_sha256)
    assert len(set(hashes)) == 1


class Normed(tiny.TinyModel):
    """With running means that a forward pass changes, and a parameter that only some batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(tiny.VOCABULARY)
        self.rare = nn.Parameter(torch.ones(5))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, tokens: Tensor) -> SequenceLoss:
        sums = super().forward(tokens)
        shares = nn.functional.one_hot(tokens, tiny.VOCABULARY).float().mean(1)
        extra = self.batch_norm(shares).square().sum() * 1e-3
        if bool((tokens[:, 0] == 0).any()):
            extra = extra + self.rare.square().sum()
        return sums._replace(loss=sums.loss + extra)


def test_running_means_and_unused_parameters_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    found = []
    for workers in (1, 2, 3):
        torch.manual_seed(11)
        model = Normed()
        changes = {"workers": workers, "micro_batches": 2, "max_updates": 6}
        job = replace(tiny.job(), plan=lambda epoch: [batch for batch in tiny.plan(epoch) if len(batch.indices) > 3])
        result = train(model, job, config=tiny.config(**changes), folder=tmp_path / str(workers))
        buffers = dict(model.named_buffers())
        means, count = buffers["batch_norm.running_mean"], buffers["batch_norm.num_batches_tracked"]
        found.append((result.weights_sha256, means.tolist(), int(count)))
    assert found[0] == found[1] == found[2]
    assert found[0][2] == 6, "a batch counts once, however it is divided"
    assert any(found[0][1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_saves_and_ends_the_workers(
    tmp_path: Path, one_worker: dict[str, tuple[Path, TrainResult]], number: signal.Signals
) -> None:
    result = run(tmp_path, 2, "update 5", lambda: os.kill(os.getpid(), number))
    assert (result.interrupted, result.step) == (number, 5)
    assert run(tmp_path, 2).weights_sha256 == one_worker["fp32"][1].weights_sha256


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_a_worker_counts_for_all(
    tmp_path: Path, one_worker: dict[str, tuple[Path, TrainResult]], number: signal.Signals
) -> None:
    result = run(tmp_path, 2, "update 5", lambda: os.kill(children()[-1], number))
    assert result.interrupted == number
    assert run(tmp_path, 2).weights_sha256 == one_worker["fp32"][1].weights_sha256


def test_an_interrupt_of_the_terminal_reaches_every_process_and_stops_once(tmp_path: Path) -> None:
    def interrupt() -> None:
        for process in (*children(), os.getpid()):
            os.kill(process, signal.SIGINT)

    result = run(tmp_path, 3, "update 5", interrupt)
    assert (result.interrupted, result.step) == (signal.SIGINT, 5)


def test_a_killed_worker_ends_the_run_with_a_message(tmp_path: Path, one_worker: dict[str, tuple[Path, TrainResult]]) -> None:
    with pytest.raises(TrainingError) as error:
        run(tmp_path, 2, "update 7", lambda: os.kill(children()[-1], signal.SIGKILL))
    message = str(error.value)
    assert "was ended by SIGKILL" in message
    # A killed process ends when the machine next lets it run; until then the other worker does its part of every update.
    assert re.search(r"step-000000\d\d is the last checkpoint", message)
    assert "resume" in message
    assert run(tmp_path, 2).weights_sha256 == one_worker["fp32"][1].weights_sha256


@pytest.fixture
def _children_are_forgotten() -> Any:
    """Ignore SIGCHLD, as a program that starts this one may: the system then forgets how child processes end."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("_children_are_forgotten")
def test_a_run_ends_where_the_system_forgets_child_processes(tmp_path: Path, one_worker: dict[str, tuple[Path, TrainResult]]) -> None:
    with pytest.raises(TrainingError, match=r"worker process \d+ ended; the system does so when memory runs out"):
        run(tmp_path, 2, "update 7", lambda: os.kill(children()[-1], signal.SIGKILL))
    assert run(tmp_path, 3).weights_sha256 == one_worker["fp32"][1].weights_sha256


@pytest.mark.usefixtures("_children_are_forgotten")
def test_forked_work_counts_as_unfinished_where_the_system_forgets_how_it_ended(tmp_path: Path) -> None:
    assert not in_forks(lambda number: (tmp_path / str(number)).touch(), 2, lambda: None)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_command_line_learns_how_child_processes_end() -> None:
    ignoring = "signal.signal(signal.SIGCHLD, signal.SIG_IGN); sys.argv[1:] = ['--version']"
    code = f"import signal, sys; {ignoring}; from regard import cli\ntry: cli.main()\nfinally: print(signal.getsignal(signal.SIGCHLD).name)"
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "SIG_DFL"


def test_workers_that_cannot_be_started_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, calls = os.fork, []

    def refuse() -> int:
        calls.append(1)
        if len(calls) == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", refuse)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(TrainingError, match=r"3 processes cannot be started \(Resource temporarily unavailable\); try fewer"):
        run(tmp_path, 3)
    assert len(calls) == 2
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("moment", ["update 5", "evaluate 9", "save 6 optimizer.safetensors"])
def test_no_worker_outlives_the_process_that_trains(tmp_path: Path, one_worker: dict[str, tuple[Path, TrainResult]], moment: str) -> None:
    trial = {"folder": str(tmp_path), "changes": {"workers": 3, "micro_batches": 3}, "kill": moment}
    token = f"no-worker-outlives-{os.getpid()}-{tmp_path.name}"
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "REGARD_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TOKEN": token}
    command = [sys.executable, "-m", "tests.training.worker", json.dumps([trial])]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + 10
    while (left := _processes_with(token)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []
    assert run(tmp_path, 1).weights_sha256 == one_worker["fp32"][1].weights_sha256


def _processes_with(token: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if token.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def failing(error: BaseException) -> TrainingJob:
    """Return a job whose loss fails, in a worker process only."""
    main, job = os.getpid(), tiny.job()

    def loss(model: nn.Module, batch: Tensor) -> SequenceLoss:
        if os.getpid() != main:
            raise error
        time.sleep(0.05)  # so that the other gets its share
        return job.loss(model, batch)

    return replace(job, loss=loss)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (DataError("picture 3: broken!"), DataError, "^picture 3: broken!$"),
        (MemoryError(), TrainingError, "step 1, epoch 1, batch 1: not enough memory; a smaller training.batch_tokens"),
        (RuntimeError("[enforce fail] not enough memory: you tried to allocate 7 bytes"), TrainingError, "not enough memory"),
        (ZeroDivisionError("a bug"), RuntimeError, r"(?s)in worker process \d+:\nTraceback.*ZeroDivisionError: a bug"),
    ],
)
def test_an_error_in_a_worker_is_told_as_if_there_were_none(tmp_path: Path, error: Exception, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        train(tiny.model(), failing(error), config=tiny.config(workers=2, micro_batches=3), folder=tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loss_that_is_not_finite_names_its_batch(tmp_path: Path, workers: int) -> None:
    job = tiny.job()
    batch = tiny.plan(0)[3]

    def loss(model: nn.Module, tokens: Tensor) -> SequenceLoss:
        sums = job.loss(model, tokens)
        spoilt = bool((tokens[:, 0] == batch.indices[-1] % tiny.VOCABULARY).any()) and len(tokens) == -(-len(batch.indices) // 3)
        return sums._replace(loss=sums.loss * float("nan")) if spoilt else sums

    with pytest.raises(TrainingError, match=r"step \d+, epoch 1, batch \d+: the loss is not finite \(examples .*\d"):
        train(tiny.model(), replace(job, loss=loss), config=tiny.config(workers=workers, micro_batches=3), folder=tmp_path)


def test_the_number_of_workers_follows_threads_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plain = TrainingConfig()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert choose_workers(plain, 2, ProcessGroup())[0] == 2
        assert choose_workers(plain, 8, ProcessGroup()) == (4, "4 cores, 8 micro-batches in a batch")
        torch.set_num_threads(1)
        assert choose_workers(plain, 8, ProcessGroup()) == (1, "1 core, 8 micro-batches in a batch")
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert choose_workers(plain, 8, ProcessGroup()) == (1, "OMP_NUM_THREADS=1, 8 micro-batches in a batch")
        monkeypatch.setenv("OMP_NUM_THREADS", "7")  # more than torch takes
        assert choose_workers(plain, 8, ProcessGroup()) == (1, "1 core, 8 micro-batches in a batch")
    finally:
        torch.set_num_threads(before)
    fewer = (2, "training.workers 3, 2 micro-batches in a batch")
    assert choose_workers(TrainingConfig(workers=3), 2, ProcessGroup()) == fewer, "no worker without work"
    assert choose_workers(TrainingConfig(workers=1), 1, ProcessGroup()) == (1, "training.workers"), "one thread, as documented"
    assert choose_workers(TrainingConfig(workers=2), 1, ProcessGroup()) == (1, "training.workers 2, 1 micro-batch in a batch")
    assert choose_workers(plain, 1, ProcessGroup(), tokens=999) == (1, "a batch of 999 tokens is not divided")
    assert choose_workers(plain, 1, ProcessGroup(), tokens=1000) == (0, "a batch is one micro-batch")
    assert choose_workers(plain, 8, ProcessGroup(size=2))[0] == 0
    assert choose_workers(TrainingConfig(compile=True), 8, ProcessGroup())[0] == 0
    assert choose_workers(plain, 8, ProcessGroup(device=torch.device("cuda")))[0] == 0
    with pytest.raises(ConfigError, match=r"training.workers: 2, but only 1 is possible: torchrun has started the processes"):
        choose_workers(TrainingConfig(workers=2), 8, ProcessGroup(size=2))


def test_micro_batches_of_a_job_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.micro_batches: 3, but the batches of this job cannot be divided"):
        train(tiny.model(), replace(tiny.job(), split=None), config=tiny.config(micro_batches=3), folder=tmp_path)


def test_a_run_says_what_was_chosen(tmp_path: Path) -> None:
    events: list[progress.Event] = []
    with progress.listening(events.append):
        run(tmp_path / "workers", 2, max_updates=1)
        tiny.run(tmp_path / "alone", max_updates=1)
    lines = [event.text for event in events]
    assert "workers: 2 processes of one thread each (training.workers)" in lines
    assert "workers: none, this process trains with 1 thread (a batch is one micro-batch)" in lines


@pytest.mark.parametrize(
    ("tokens", "width", "sequential", "workers", "expected"),
    [
        (4096, 256, True, 1, 2),  # two at least
        (4096, 256, True, 4, 4),  # recurrent: as many as workers, for their steps cost the same for few sentences
        (4096, 256, True, 100, 8),  # 500 tokens at least
        (499, 256, True, 8, 1),
        (40_000, 256, True, 2, 5),  # 8,192 tokens at most
        (4096, 128, False, 1, 2),
        (16_000, 256, False, 1, 4),  # what fits the cache
        (4096, 512, False, 8, 8),
        (2048, 128, False, 2, 2),
        (10**6, 512, False, 2, 64),
    ],
)
def test_automatic_micro_batches(tokens: int, width: int, sequential: bool, workers: int, expected: int) -> None:
    assert automatic_micro_batches(tokens, width=width, sequential=sequential, workers=workers) == expected


@pytest.mark.parametrize(
    ("changes", "cores", "expected"), [({}, 3, 3), ({"workers": 2}, 3, 2), ({"compile": True}, 3, 1), ({"micro_batches": 5}, 3, 5)]
)
def test_micro_batches_are_chosen_for_the_workers(changes: dict[str, Any], cores: int, expected: int) -> None:
    with torch_threads(cores):
        assert resolve_micro_batches(tiny.config(**changes), ProcessGroup(), lambda workers: workers).micro_batches == expected


def test_workers_give_torch_its_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    model = nn.Linear(2, 3)

    def compute(update: UpdateRecord, part: int) -> list[Any]:
        return []

    try:
        torch.set_num_threads(3)
        with Workers(model, compute, micro_batches=2, batches=1, count=2, carried={}) as workers:
            assert torch.get_num_threads() == 1
            for cores in (1, 2, 16):
                monkeypatch.setattr("regard.training.workers.usable_cores", lambda cores=cores: cores)
                with workers.threads_for_evaluation():
                    assert torch.get_num_threads() == min(cores, 2)
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_shared_memory_is_shared_with_a_forked_process() -> None:
    numbers, flags = shared_zeros([torch.empty(7, 3), torch.empty(5, dtype=torch.bool)])
    process = os.fork()
    if process == 0:
        numbers[2, 1], flags[4] = 13.0, True
        os._exit(0)
    os.waitpid(process, 0)
    assert (numbers[2, 1].item(), numbers.sum().item(), flags.tolist()) == (13.0, 13.0, [False] * 4 + [True])
