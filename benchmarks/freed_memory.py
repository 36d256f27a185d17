"""Training that keeps the memory of a step for the next, beside one that returns it to the system.

    python benchmarks/freed_memory.py --data FOLDER

FOLDER holds `multi30k/task1/raw`. The same `regard train`, one worker, takes turns with two settings of the C library: what the command
sets, and with `MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_` of 1 MiB, at which every larger tensor is returned when it is freed.
Speed: median of the log's tokens/s after the first updates. Page faults: of the whole process, by update. Refuses
ways that give different weights.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness import RESULTS, ROOT, interleaved, machine, multi30k_files, options, ratio, training_of, write

TRAININGS = {
    "language model, plain attention": "lm_plain",
    "Transformer": "multi30k_transformer",
    "recurrent, additive": "multi30k_bahdanau",
}
WAYS: dict[str, dict[str, str]] = {
    "kept": {},
    "returned": dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 20)),
}
ROUNDS, UPDATES, EVERY = 2, 40, 10


class Found(NamedTuple):
    """Tokens per second, MiB at most, and page faults by update of a training; sha256 of its weights."""

    speed: float
    mib: float
    faults: float
    weights: str


def train(config: str, raw: Path, updates: int, environment: dict[str, str], number: int) -> Found:
    """Train for some updates in an environment and measure it; `number` of the round changes nothing."""
    files = multi30k_files(raw)
    task = "translation"
    if config.startswith("lm"):
        task, files = "lm", ["--text", files[1], "--valid-text", files[5]]
    never = [f"training.{name}_every=1000000" for name in ("evaluate", "save")]
    limits = [f"training.max_updates={updates}", f"training.log_every={EVERY}", "training.workers=1", *never]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [sys.executable, "-m", "regard", "train", task, "--config", str(ROOT / "configs" / f"{config}.yaml"), *files]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        process = subprocess.Popen([*command, "--out", str(out), *limits], env=clean | environment, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{config}: the training ended with {status}")
        events = training_of(out).events
    speeds = [event["tokens_per_second"] for event in events if event["event"] == "train"]
    return Found(statistics.median(speeds[1:]), used.ru_maxrss / 1024, used.ru_minflt / updates, events[-1]["weights_sha256"])


def row(title: str, found: dict[str, list[Found]]) -> list[Any]:
    """Return the row of a training.

    Raises:
        SystemExit: the ways gave different weights.
    """
    if len({one.weights for each in found.values() for one in each}) > 1:
        raise SystemExit(f"{title}: different weights")
    cells: list[Any] = [title, *(round(statistics.median(one.speed for one in each)) for each in found.values())]
    for figure in ("speed", "mib"):
        kept, returned = ([getattr(one, figure) for one in each] for each in found.values())
        cells.append("{} ({}-{})".format(*ratio(kept, returned)))
    return [*cells, *(round(statistics.median(one.faults for one in each)) for each in found.values())]


def main() -> None:
    parser = options(__doc__, out=RESULTS / "freed_memory.json", rounds=ROUNDS, updates=UPDATES)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    raw, rows, results = arguments.data / "multi30k" / "task1" / "raw", list[list[Any]](), dict[str, dict[str, list[Found]]]()
    columns = ["training", *(f"tokens/s, {name}" for name in WAYS), "kept / returned", "memory, kept / returned"]
    columns += [f"faults per update, {name}" for name in WAYS]
    note = (
        f"`python benchmarks/freed_memory.py --data FOLDER`: {arguments.updates} updates, medians of {arguments.rounds} interleaved "
        f"rounds; ratios round by round, with the lowest and the highest. {machine(1)}."
    )
    for title, config in TRAININGS.items():
        contenders = {name: partial(train, config, raw, arguments.updates, way) for name, way in WAYS.items()}
        found = results[title] = interleaved(contenders, arguments.rounds)
        rows.append(row(title, found))
        print(*rows[-1], sep="\t", flush=True)
        write(arguments.out, columns, rows, note, results=results)


if __name__ == "__main__":
    main()
