"""Processor time of `regard --help` and of `regard translate` of one line, beside that of `import torch` alone.

    python benchmarks/start.py RUN --out docs/results/start.json

RUN: a trained translation model. Every call is a process of its own, interleaved; user and system time of all its threads.
"""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
from pathlib import Path

from harness import interleaved, machine, median, options, ratio, write

TORCH, TRANSLATE = "`import torch`", "`regard translate`, one line"


def processor_seconds(command: list[str], text: str, threads: int, _: int) -> float:
    """Run a program to its end; return its processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # the warm-up compiles
    environment["OMP_NUM_THREADS"] = str(threads)
    subprocess.run(command, input=text, text=True, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = options(__doc__, rounds=9, threads=2)
    parser.add_argument("run", type=Path)
    parser.add_argument("--line", default="A man in a blue shirt is standing on a ladder.")
    arguments = parser.parse_args()
    regard = [sys.executable, "-m", "regard"]
    commands = {
        TORCH: [sys.executable, "-c", "import torch"],
        "`regard --help`": [*regard, "--help"],
        TRANSLATE: [*regard, "translate", str(arguments.run)],
    }
    calls = {
        name: functools.partial(processor_seconds, command, f"{arguments.line}\n", arguments.threads) for name, command in commands.items()
    }
    times = interleaved(calls, arguments.rounds, warm_up=1, title="start")
    rows = []
    for name, each in times.items():
        found = ratio(each, times[TORCH])
        rows.append([name, median(each, 2), found.median, f"{found.least:.2f}-{found.most:.2f}"])
    note = f"`python benchmarks/start.py RUN`, medians of {arguments.rounds} interleaved rounds; {machine(arguments.threads)}."
    write(arguments.out, ["command", "processor time, s", f"of {TORCH}", "range"], rows, note, times=times)


if __name__ == "__main__":
    main()
