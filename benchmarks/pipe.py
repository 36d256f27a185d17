"""Measure `regard translate` in a pipe: lines per second and memory beside a file, the cost of shown progress, and the time to an answer.

    python benchmarks/pipe.py RUN LINES.txt --out docs/results/pipe.json

The model decodes greedily. A full pipe is `cat LINES.txt | regard translate RUN`. A single line is written, and the next one only when its
answer has come.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from harness import MEBIBYTE, interleaved, machine, median, options, status, write

WORDS = ["--beam-size", "1"]


def whole(run: Path, lines: Path, *, pipe: bool, quiet: bool) -> tuple[float, float]:
    """Return the seconds that a command takes for all lines, and the megabytes that it held at most."""
    command = [
        sys.executable,
        "-m",
        "regard",
        "translate",
        str(run),
        *([] if pipe else [str(lines)]),
        *WORDS,
        *(["--quiet"] if quiet else []),
    ]
    begun, most = time.monotonic(), 0
    with open(lines, "rb") as given:
        reading = subprocess.Popen(["cat"], stdin=given, stdout=subprocess.PIPE) if pipe else None
        source = reading.stdout if reading else subprocess.DEVNULL
        with subprocess.Popen(command, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None:
                time.sleep(0.02)
                most = max(most, status(process.pid))
        if reading:
            reading.wait()
    if process.returncode:
        sys.exit(f"pipe: regard translate left with {process.returncode}")
    return time.monotonic() - begun, most / MEBIBYTE


def answers(run: Path, lines: list[bytes]) -> list[float]:
    """Return how long each line waits for its answer, in milliseconds; the first, which waits for the start, is left out."""
    command = [sys.executable, "-m", "regard", "translate", str(run), *WORDS, "--quiet"]
    taken = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in lines:
            begun = time.monotonic()
            process.stdin.write(line)
            process.stdin.flush()
            process.stdout.readline()
            taken.append(1000 * (time.monotonic() - begun))
    return taken[1:]


def main() -> None:
    parser = options(__doc__, rounds=3, answers=50)
    parser.add_argument("run", type=Path, help="a translation run")
    parser.add_argument("lines", type=Path, help="lines to translate, ten thousand or so")
    arguments = parser.parse_args()
    run, lines = arguments.run, arguments.lines
    read = lines.read_bytes().splitlines(keepends=True)
    ways = {"file": (False, True), "full pipe": (True, True), "full pipe, progress shown": (True, False)}
    found = interleaved(
        {name: lambda _, how=how: whole(run, lines, pipe=how[0], quiet=how[1]) for name, how in ways.items()}, arguments.rounds
    )
    rows: list[list[object]] = [
        [name, median([len(read) / took for took, _ in each], 0), round(max(most for _, most in each)), None]
        for name, each in found.items()
    ]
    rows.append(["line by line", None, None, round(statistics.median(answers(run, read[: arguments.answers + 1])), 1)])
    how = f"{len(read):,} lines, greedy, medians of {arguments.rounds} rounds, start included"
    note = f"`python benchmarks/pipe.py`: {how}; {machine(os.cpu_count())}."
    write(arguments.out, ["input", "lines per second", "peak memory, MB", "ms from a line to its answer"], rows, note)
    for row in rows:
        print(*row, sep="\t")


if __name__ == "__main__":
    main()
