"""Measure training beside other programs on the same cores: worker processes, threads that share every operator, one thread.

    python benchmarks/busy.py --data FOLDER --runs runs/busy --out docs/results/busy.json [--configs NAME ...] [--companies NAME ...]
    python benchmarks/busy.py --demo --runs runs/busy --out docs/results/busy.json

FOLDER is that of multi30k.py. The contenders train side by side, in float32; all but one are stopped (SIGSTOP) at any time, so that each
meets the same machine in each round: A B C A B C. The other programs are endless loops. A figure is the median of the rounds, a ratio the
median of the rounds' ratios. What the file holds of other configurations and companies stays. With --demo: seconds of `regard demo`, alone
and beside one program.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import MEBIBYTE, ROOT, interleaved, machine, median, multi30k_files, options, ratio, read, tree_memory, write

CONFIGS = {"multi30k_transformer": "Transformer", "multi30k_bahdanau": "recurrent"}
# Programs, and their nice value.
COMPANIES = {"nothing": (0, 0), "1": (1, 0), "2": (2, 0), "4": (4, 0), "4 at nice 19": (4, 19)}
# Settings, and threads of torch (None: as many as there are cores).
CONTENDERS: dict[str, tuple[list[str], int | None]] = {
    "workers": ([], None),
    "threads": (["training.micro_batches=1"], None),
    "one thread": (["training.micro_batches=1"], 1),
}
WARM_UP = 5
COLUMNS = ["model", "beside", *(f"{name}, tokens/s" for name in CONTENDERS), "workers / threads", "workers / one thread", "of idle"]
LOOP = "import os, sys; os.nice(int(sys.argv[1]))\nwhile True: pass"
# Become another program, which ends with this one, however that ends. 1 is PR_SET_PDEATHSIG of <sys/prctl.h>; it outlives the exec.
FOLLOW = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Contender:
    """A training in a process group of its own, stopped but when it is measured."""

    def __init__(self, name: str, config: str, raw: Path, folder: Path) -> None:
        settings, threads = CONTENDERS[name]
        files, path = multi30k_files(raw), str(ROOT / "configs" / f"{config}.yaml")
        endless = ["training.precision=fp32", "training.log_every=1", "training.epochs=1000", "training.evaluate_every=1000000"]
        command = [sys.executable, "-m", "regard", "train", "translation", "--config", path, *files, "--out", str(folder)]
        environment = {**os.environ, "REGARD_DEVICE": "cpu"}
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        self.log = folder / "log.jsonl"
        self.process = start(
            [*command, *endless, *settings],
            env=environment,
            process_group=0,  # not a session: Linux may share out time by session
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while len(self.tokens()) < WARM_UP:
            if self.process.poll() is not None:
                raise SystemExit(f"{name}: training ended with {self.process.returncode}")
            time.sleep(0.1)
        self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def tokens(self) -> list[float]:
        """Return the target tokens of each update so far."""
        if not self.log.exists():
            return []
        # The last line may not be whole yet.
        lines = [json.loads(line) for line in self.log.read_text(encoding="utf-8").split("\n")[:-1]]
        updates = [(line["seconds"], line["tokens_per_second"]) for line in lines if line["event"] == "train"]
        begins = [0.0, *(seconds for seconds, _ in updates)]
        return [speed * (end - begin) for begin, (end, speed) in zip(begins, updates, strict=False)]

    def memory(self) -> float:
        """Return the MiB of all its processes; what several share counts once."""
        return tree_memory(self.process.pid) / MEBIBYTE

    def speed(self, seconds: float) -> float:
        """Let it run for so long; return tokens a second."""
        before = len(self.tokens())
        self.signal(signal.SIGCONT)
        begun = time.perf_counter()
        time.sleep(seconds)
        self.signal(signal.SIGSTOP)
        passed = time.perf_counter() - begun
        return sum(self.tokens()[before:]) / passed


def start(words: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program that ends with this one."""
    return subprocess.Popen([sys.executable, "-c", FOLLOW, str(os.getpid()), *words], **options)


@contextmanager
def beside(company: str) -> Iterator[list[int]]:
    """Run the other programs; give their process ids."""
    count, nice = COMPANIES[company]
    loops = [start([sys.executable, "-c", LOOP, str(nice)]) for _ in range(count)]
    time.sleep(1 if loops else 0)
    try:
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(config: str, arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return tokens a second of each contender in each round, by company."""
    contenders: dict[str, Contender] = {}
    found: dict[str, dict[str, list[float]]] = {}
    try:
        for name in CONTENDERS:
            folder = arguments.runs / f"{config}-{name.replace(' ', '-')}-{os.getpid()}"
            contenders[name] = Contender(name, config, arguments.data, folder)
        for company in arguments.companies:
            with beside(company):
                speeds = {name: lambda _, each=each: round(each.speed(arguments.seconds), 1) for name, each in contenders.items()}
                found[company] = interleaved(speeds, arguments.rounds, title=f"{CONFIGS[config]} beside {company}")
            found[company]["MiB"] = [round(each.memory()) for each in contenders.values()]
    finally:
        for each in contenders.values():
            each.signal(signal.SIGKILL)
            each.process.wait()
    return found


def demo(arguments: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of the demonstration, by company."""
    found = {}
    for company in ("nothing", "1"):
        folder = arguments.runs / f"demo-{company}-{os.getpid()}"
        with beside(company):
            subprocess.run([sys.executable, "-m", "regard", "demo", "--out", str(folder)], check=True, stdout=subprocess.DEVNULL)
        found[company] = round(json.loads((folder / "result.json").read_text(encoding="utf-8"))["seconds"], 1)
        print("demo", company, found[company], flush=True)
    return found


def rows(measured: dict[str, Any]) -> list[list[Any]]:
    """Return the rows of the table."""
    found = []
    for config, label in CONFIGS.items():
        companies = measured.get(config, {})
        idle = companies.get("nothing")
        for company in COMPANIES:
            if company not in companies:
                continue
            own = companies[company]
            speeds = [round(median(own[name], 0)) for name in CONTENDERS]
            # None where one made no update at all.
            ratios = [ratio(own["workers"], own[name]).median if all(own[name]) else None for name in ("threads", "one thread")]
            found.append([label, company, *speeds, *ratios, round(speeds[0] / median(idle["threads"], 1), 2) if idle else None])
    return found


def main() -> None:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--companies", nargs="+", choices=COMPANIES, default=list(COMPANIES))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--demo", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no contender stays behind
    old = read(arguments.out)
    measured, seconds = old.get("measured", {}), old.get("demo", {})
    if arguments.demo:
        seconds = demo(arguments)
    elif arguments.data is None:
        parser.error("--data FOLDER: needed, the folder of Multi30k's files")
    else:
        for config in arguments.configs:
            measured[config] = {**measured.get(config, {}), **measure(config, arguments)}
    times = f" The demonstration: {seconds['nothing']} s alone, {seconds['1']} s beside one program." if seconds else ""
    note = (
        "`python benchmarks/busy.py`. Target tokens a second, medians; ratios are medians of the rounds' ratios; *of idle*: workers, of "
        "what threads reach beside nothing. Other programs are endless loops. *threads* and *one thread*: `training.micro_batches=1`."
        f"{times} {machine()}."
    )
    write(arguments.out, COLUMNS, rows(measured), note, measured=measured, demo=seconds)


if __name__ == "__main__":
    main()
