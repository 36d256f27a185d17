"""Processes that train small models and have faults done to them: `python -m tests.trust.worker '{"folder": "run", "at": "update 5"}'`.

That runs one trial, under torchrun one process of it. With `serve` trials come as JSON lines from standard input and processes are forked
for each: torch is imported once for hundreds of them. A trial has these keys, all but the first optional:

    folder     where it trains
    task       a key of TASKS; "tiny"
    changes    of the configuration
    processes  how many there are
    rank       of the process that the signal goes to
    number     of the signal; SIGKILL
    at         the event at which the process sends it to itself
    once       only in the first try of torchrun
    after      seconds after the log was begun at which it comes from outside
    slow       seconds that every event of a save takes longer
    limit      seconds after which all that is left is killed
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.config import TrainingConfig
from regard.errors import RegardError
from regard.ops import SequenceLoss
from regard.tasks import train_translation
from regard.tasks.language_training import train_language
from regard.training import StopSignal, TrainingJob, TrainResult, processes, train
from regard.training.log import FILE
from tests.tasks import tiny as tiny_translation
from tests.tasks import tiny_language
from tests.training import tiny

Trial = dict[str, Any]
OnEvent = Callable[[str], None]
RATE = 0.5


class Counter(nn.Module):
    """A number for each example, lowered by exactly RATE whenever the example is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.lowered = nn.Parameter(torch.zeros(tiny.EXAMPLES))

    def forward(self, examples: Tensor) -> SequenceLoss:
        loss = self.lowered[examples].sum()
        return SequenceLoss(loss, loss.detach(), torch.tensor(len(examples)), torch.tensor(0))


def counting(folder: Path, on_event: OnEvent, changes: dict[str, Any]) -> TrainResult:
    """Train `Counter`; every line of `epochs.jsonl` is how often the example seen least and the one seen most were, after an epoch."""
    settings = {"optimizer": "sgd", "learning_rate": RATE, "clip_norm": None, "epochs": 4, "save_every": 2}
    stop = StopSignal()

    def evaluate(model: nn.Module) -> dict[str, float]:
        stop.poll()
        assert isinstance(model, Counter)
        counts = (-model.lowered / RATE).tolist()
        with (folder / "epochs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([min(counts), max(counts)]) + "\n")
        return {"loss": 0.0}

    job = TrainingJob(
        # Without tokens the sum of the losses is divided by 1.
        plan=lambda epoch: [planned._replace(tokens=0) for planned in tiny.plan(epoch)],
        collate=lambda planned: torch.tensor(planned.indices),
        loss=lambda model, batch: model(batch),
        evaluate=evaluate,
        stop=stop,
        on_event=on_event,
    )
    return train(Counter(), job, config=TrainingConfig.model_validate({**settings, **changes}), folder=folder)


TASKS: dict[str, Callable[[Path, OnEvent, dict[str, Any]], TrainResult]] = {
    "tiny": lambda folder, on_event, changes: train(tiny.model(), tiny.job(on_event), config=tiny.config(**changes), folder=folder),
    "counting": counting,
    "translation": lambda folder, on_event, parts: train_translation(tiny_translation.configuration(**parts), folder, on_event=on_event),
    "language": lambda folder, on_event, parts: train_language(tiny_language.configuration(**parts), folder, on_event=on_event),
}


def run(trial: Trial) -> int:
    """Run a trial in this process, print what became of it as a JSON line, and return the exit code."""
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # a killed process loses nothing it wrote; only a machine that stops does
    try:
        with processes() as world:
            mine = world.rank == trial.get("rank", 0)
            if trial.get("once"):
                mine = mine and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"

            def on_event(name: str) -> None:
                if name.startswith("save "):
                    time.sleep(trial.get("slow", 0.0))
                if mine and name == trial.get("at"):
                    os.kill(os.getpid(), trial.get("number", signal.SIGKILL))

            result = TASKS[trial.get("task", "tiny")](Path(trial["folder"]), on_event, trial.get("changes", {}))
    except RegardError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return error.exit_code
    answer = {"sha256": result.weights_sha256, "step": result.step, "interrupted": result.interrupted}
    print(json.dumps({**answer, "try": os.environ.get("TORCHELASTIC_RESTART_COUNT")}), flush=True)
    return 128 + result.interrupted if result.interrupted else 0


class Child(NamedTuple):
    """A process forked for a trial, and the files that hold what it writes."""

    pid: int
    out: IO[bytes]
    err: IO[bytes]


def forked(trial: Trial, rank: int, port: int) -> Child:
    """Fork a process that runs a trial."""
    child = TemporaryFile(), TemporaryFile()  # noqa: SIM115 - `read_all` closes them
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, *child)
    code = 1
    try:
        for number, file in enumerate(child, start=1):
            os.dup2(file.fileno(), number)
        if trial.get("processes", 1) > 1:
            group = {"WORLD_SIZE": trial["processes"], "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in group.items()})
        code = run(trial)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def watched(trial: Trial) -> dict[str, Any]:
    """Run a trial in processes of its own, send the signal when it is time, and tell how each of them ended, and how far apart in time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = [forked(trial, rank, port) for rank in range(trial.get("processes", 1))]
    codes: list[int | None] = [None] * len(children)
    ends: list[float] = []
    start, target = time.monotonic(), trial.get("rank", 0)
    due = late = False
    begun: float | None = None
    while None in codes:
        for rank, child in enumerate(children):
            if codes[rank] is None and (ended := os.waitpid(child.pid, os.WNOHANG))[0]:
                codes[rank] = os.waitstatus_to_exitcode(ended[1])
                ends.append(time.monotonic())
        now = time.monotonic()
        if begun is None and (Path(trial["folder"]) / FILE).exists():
            begun = now
        # A child is not waited for before its exit code is known, so its number cannot be another's yet.
        if not due and begun is not None and "after" in trial and now - begun >= trial["after"]:
            due = True
            if codes[target] is None:
                os.kill(children[target].pid, trial.get("number", signal.SIGKILL))
        if not late and now - start > trial.get("limit", 100.0):
            late = True
            for rank, child in enumerate(children):
                if codes[rank] is None:
                    os.kill(child.pid, signal.SIGKILL)
        time.sleep(0.001)
    texts = [[read_all(file) for file in child[1:]] for child in children]
    answers = [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in texts]
    return {"codes": codes, "answers": answers, "errors": [err for _, err in texts], "apart": max(ends) - min(ends), "late": late}


def read_all(file: IO[bytes]) -> str:
    """Return what was written to a file, and close it."""
    with file:
        file.seek(0)
        return file.read().decode(errors="replace")


def main() -> int:
    if sys.argv[1] != "serve":
        return run(json.loads(sys.argv[1]))
    # What torch imports only when a model is trained, it should import here, not in every process again.
    with TemporaryDirectory() as name, redirect_stderr(io.StringIO()):
        tiny.run(Path(name), max_updates=1)
    for line in sys.stdin:
        print(json.dumps(watched(json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
