"""A process that trains the tiny language model: `python -m tests.tasks.language_worker '[{"folder": ..., "parts": {...}}, ...]'`.

It runs the trials one after the other and prints a JSON line for each. A trial may be left at an event: {"raise": "update 7"}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from regard.errors import RegardError
from regard.training import processes
from tests.tasks import tiny_language


def main() -> None:
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # a killed process loses nothing it wrote; only a machine that stops does
    with processes() as world:
        for trial in json.loads(sys.argv[1]):
            try:
                result = tiny_language.run(Path(trial["folder"]), trial.get("raise"), **trial["parts"])
                answer = {"sha256": result.weights_sha256, "step": result.step}
            except tiny_language.Killed:
                answer = {"killed": True}
            except RegardError as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            if world.main:
                print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
