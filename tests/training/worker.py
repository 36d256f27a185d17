"""A process that trains tiny models: `python -m tests.training.worker '[{"folder": ..., "changes": {...}, "kill": EVENT}, ...]'`.

It runs the trials one after the other and prints a JSON line for each; one with `language` (its configuration) trains the language model.
A trial may be interrupted: `raise` leaves it at an event every process sees; `signal` and `kill` send SIGTERM and SIGKILL to one process.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.training import TrainResult, processes
from tests.tasks import tiny_language
from tests.training import tiny


def act(trial: dict[str, Any], rank: int) -> tuple[str | None, Callable[[], None] | None]:
    """Return the event of a trial and what happens then on this process."""
    if "raise" in trial:
        return trial["raise"], None
    if "signal" in trial and rank == trial.get("rank", 0):
        return trial["signal"], lambda: os.kill(os.getpid(), signal.SIGTERM)
    if "kill" in trial and rank == trial.get("rank", 0):
        return trial["kill"], lambda: os.kill(os.getpid(), signal.SIGKILL)
    return None, None


def run(trial: dict[str, Any], rank: int) -> TrainResult:
    if "language" in trial:
        return tiny_language.run(Path(trial["folder"]), trial.get("raise"), **trial["language"])
    return tiny.run(Path(trial["folder"]), *act(trial, rank), **trial.get("changes", {}))


def main() -> int:
    faulthandler.enable()  # a crash says where
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # a killed process loses nothing it wrote; only a machine that stops does
    code = 0
    with processes() as world:
        for trial in json.loads(sys.argv[1]):
            try:
                result = run(trial, world.rank)
                answer = {"sha256": result.weights_sha256, "step": result.step, "interrupted": result.interrupted}
                code = 128 + result.interrupted if result.interrupted else 0
            except (tiny.Killed, tiny_language.Killed):
                answer = {"killed": True}
            except RegardError as error:
                answer, code = {"error": f"{type(error).__name__}: {error}"}, error.exit_code
            if world.main or "error" in answer:
                print(json.dumps(answer), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
