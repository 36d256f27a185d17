"""Measure training beside other programs on the same cores: worker processes, threads that share every operator, one thread.

    python benchmarks/busy.py --data FOLDER --runs runs/busy --out docs/results/busy.json [--configs NAME ...] [--companies NAME ...]
    python benchmarks/busy.py --demo --runs runs/busy --out docs/results/busy.json
    python benchmarks/busy.py --scaling --data FOLDER --runs runs/busy --out docs/results/scaling.json

FOLDER is that of multi30k.py. The contenders train side by side, in float32; all but one are stopped (SIGSTOP) at any time, so that each
meets the same machine in each round: A B C A B C. The other programs are endless loops. A figure is the median of the rounds, a ratio the
median of the rounds' ratios, but *of idle*, which is one of medians. What the file holds of other configurations and companies stays. With
--demo: seconds of `regard demo`, alone and beside one program. With --scaling: 1, 2 and 4 workers on an idle machine of two cores, and what
a model of them expects of more cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
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
MICRO_BATCHES = 8  # as many for every number of workers, so that all do the same
SCALING: dict[str, tuple[list[str], int | None]] = {
    f"{count} workers": ([f"training.workers={count}", f"training.micro_batches={MICRO_BATCHES}"], None) for count in (1, 2, 4)
}
WARM_UP = 5
COLUMNS = ["model", "beside", *(f"{name}, tokens/s" for name in CONTENDERS), "workers / threads", "workers / one thread", "of idle"]
COLUMNS += ["MiB, workers / threads"]
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
        settings, threads = (CONTENDERS | SCALING)[name]
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


def measure(
    config: str, arguments: argparse.Namespace, names: Iterable[str] = CONTENDERS, companies: Iterable[str] | None = None
) -> dict[str, dict[str, list[float]]]:
    """Return tokens a second of each contender in each round, by company."""
    contenders: dict[str, Contender] = {}
    found: dict[str, dict[str, list[float]]] = {}
    try:
        for name in names:
            folder = arguments.runs / f"{config}-{name.replace(' ', '-')}-{os.getpid()}"
            contenders[name] = Contender(name, config, arguments.data, folder)
        for company in arguments.companies if companies is None else companies:
            with beside(company):
                speeds = {name: lambda _, each=each: round(each.speed(arguments.seconds), 1) for name, each in contenders.items()}
                found[company] = interleaved(speeds, arguments.rounds, title=f"{CONFIGS[config]} beside {company}")
            found[company]["MiB"] = [round(each.memory()) for each in contenders.values()]
    finally:
        for each in contenders.values():
            each.signal(signal.SIGKILL)
            each.process.wait()
    return found


def scaling(arguments: argparse.Namespace) -> None:
    """Measure 1, 2 and 4 workers on two cores, and write what more cores are expected to do.

    A token takes s + t ceil(M / n) / M seconds with n workers on as many cores, M micro-batches in an update: s is what one process does
    alone (to read the batch, to sum the gradients, the optimizer), both from the rates of 1 and 2 workers.
    """
    cores, rows, measured = os.cpu_count() or 1, [], {}
    for config in arguments.configs:
        label = CONFIGS[config]
        measured[config] = measure(config, arguments, SCALING, ["nothing"])["nothing"]
        rates = {int(name.split()[0]): median(measured[config][name], 0) for name in SCALING}
        one = 1 / rates[1]
        alone = max(0.0, 2 / rates[2] - one)
        rows += [
            [label, count, min(count, cores), "measured" if count <= cores else "emulated", round(rate), round(rate / rates[1], 2)]
            for count, rate in rates.items()
        ]
        for count in (4, 8):
            expected = 1 / (alone + (one - alone) * -(-MICRO_BATCHES // count) / MICRO_BATCHES)
            rows.append([label, count, count, "model", round(expected), round(expected / rates[1], 2)])
    note = (
        f"`python benchmarks/busy.py --scaling`. Target tokens a second, medians of {arguments.rounds} interleaved rounds, {MICRO_BATCHES} "
        "micro-batches. *emulated*: more workers than cores, which shows what having more costs. *model*: one process does a part of an "
        "update alone, the rest is shared by as many as there are cores; both parts follow from 1 and 2 workers. Cores that share memory "
        f"and cache slow each other down, which is not in the model. {machine()}."
    )
    write(arguments.out, ["model", "workers", "cores", "how", "tokens/s", "of 1 worker"], rows, note, measured=measured)


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
            share = round(speeds[0] / median(idle["threads"], 1), 2) if idle else None
            memory = dict(zip(CONTENDERS, own["MiB"], strict=True)) if "MiB" in own else None
            found.append([label, company, *speeds, *ratios, share, memory and round(memory["workers"] / memory["threads"], 2)])
    return found


def about(seconds: dict[str, float]) -> str:
    """Say what the figures of the table are, and how long the demonstration took, if it was measured."""
    text = (
        "`python benchmarks/busy.py`. Target tokens a second, medians. Ratios are medians of the rounds' ratios; a dash: in some round one "
        "of the two made no update. *of idle*: workers, of what threads reach beside nothing, a ratio of medians. Other programs are "
        "endless loops. *threads* and *one thread*: `training.micro_batches=1`."
    )
    return text + (f" The demonstration: {seconds['nothing']} s alone, {seconds['1']} s beside one program." if seconds else "")


def main() -> None:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--companies", nargs="+", choices=COMPANIES, default=list(COMPANIES))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--scaling", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no contender stays behind
    if arguments.scaling:
        scaling(arguments)
        return
    old = read(arguments.out)
    measured, seconds = old.get("measured", {}), old.get("demo", {})
    if arguments.demo:
        seconds = demo(arguments)
    elif arguments.data is None:
        parser.error("--data FOLDER: needed, the folder of Multi30k's files")
    else:
        for config in arguments.configs:
            measured[config] = {**measured.get(config, {}), **measure(config, arguments)}
    write(arguments.out, COLUMNS, rows(measured), f"{about(seconds)} {machine()}.", measured=measured, demo=seconds)


if __name__ == "__main__":
    main()
