"""Measure training beside other programs on the same cores: worker processes, threads that share every operator, one thread.

    python benchmarks/busy.py --data FOLDER --trec FILE --runs runs/busy --out docs/results/busy.json [--configs NAME ...] [--companies ...]
    python benchmarks/busy.py --demo --runs runs/busy --out docs/results/busy.json
    python benchmarks/busy.py --scaling --data FOLDER --runs runs/busy --out docs/results/scaling.json
    python benchmarks/busy.py --lines RUN ... --data FOLDER --out docs/results/busy_lines.json

FOLDER is that of multi30k.py. The contenders train side by side, in float32; all but one are stopped (SIGSTOP) at any time, so that each
meets the same machine in each round: A B C A B C. The other programs are endless loops. A figure is the median of the rounds, a ratio the
median of the rounds' ratios, but *of idle*, which is one of medians. What the file holds of other configurations and companies stays. With
--demo: seconds of `regard demo`, alone and beside one program. With --scaling: 1, 2 and 4 workers on an idle machine of two cores, and what
a model of them expects of four. With --lines RUN ...: lines a second of translation runs that get one line at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from harness import MEBIBYTE, ROOT, Table, interleaved, machine, median, multi30k_files, options, ratio, read, tree_memory, write
from int8 import shape
from peers import read_text

from regard.config import with_options
from regard.tasks import Translator, batch_threads

CONFIGS = {"multi30k_transformer": "Transformer", "multi30k_bahdanau": "recurrent", "trec": "classifier, batches of 500 tokens"}
# Programs, and their nice value.
COMPANIES = {"nothing": (0, 0), "1": (1, 0), "2": (2, 0), "4": (4, 0), "4 at nice 19": (4, 19)}
# Settings, and threads of torch (None: as many as there are cores).
CONTENDERS: dict[str, tuple[list[str], int | None]] = {
    "workers": ([], None),
    "threads": (["training.micro_batches=1"], None),
    "one thread": (["training.micro_batches=1"], 1),
}
# As many for every number of workers, so that all do the same: the most into which batches of about 2,000 tokens are divided by themselves.
MICRO_BATCHES = 4
PLAIN = "one thread"
SCALING: dict[str, tuple[list[str], int | None]] = {PLAIN: CONTENDERS[PLAIN]} | {
    f"{count} workers": ([f"training.workers={count}", f"training.micro_batches={MICRO_BATCHES}"], None) for count in (1, 2, 4)
}
WARM_UP = 5
COLUMNS = ["model", "beside", *(f"{name}, tokens/s" for name in CONTENDERS), "workers / threads", "workers / one thread", "of idle"]
COLUMNS += ["MiB, workers / threads"]
# Small batches have one thread; here all, to show why.
ALL_THREADS = "from regard.training import micro_batch; micro_batch.MIN_TOKENS = 1; from regard.__main__ import main; main()"
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

    def __init__(self, name: str, config: str, files: Sequence[str], folder: Path) -> None:
        settings, threads = (CONTENDERS | SCALING)[name]
        path = str(ROOT / "configs" / f"{config}.yaml")
        endless = ["training.precision=fp32", "training.log_every=1", "training.epochs=1000", "training.evaluate_every=1000000"]
        regard = ["-c", ALL_THREADS] if name == "threads" else ["-m", "regard"]
        command = [sys.executable, *regard, "train", *files, "--config", path, "--out", str(folder)]
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


def files_of(config: str, arguments: argparse.Namespace) -> list[str]:
    """Return the task of a configuration and its files."""
    if config == "trec":
        return ["classification", "--train", str(arguments.trec)]
    return ["translation", *multi30k_files(arguments.data)]


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
            contenders[name] = Contender(name, config, files_of(config, arguments), folder)
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
    alone (to read the batch, to sum the gradients, the optimizer), both from the rates of 1 and 2 workers. More cores than micro-batches
    have nothing to do.
    """
    cores, rows, measured = os.cpu_count() or 1, [], {}
    for config in (each for each in arguments.configs if each != "trec"):
        label = CONFIGS[config]
        measured[config] = measure(config, arguments, SCALING, ["nothing"])["nothing"]
        plain = median(measured[config][PLAIN], 0)
        rates = {int(name.split()[0]): median(measured[config][name], 0) for name in SCALING if name != PLAIN}
        one = 1 / rates[1]
        rows.append([label, None, 1, "measured, batches whole", round(plain), None, 1.0])
        alone = max(0.0, 2 / rates[2] - one)
        rows += [
            [label, count, min(count, cores), "measured" if count <= cores else "emulated", *over(rate, rates[1], plain)]
            for count, rate in rates.items()
        ]
        expected = 1 / (alone + (one - alone) / MICRO_BATCHES)
        rows.append([label, MICRO_BATCHES, MICRO_BATCHES, "model", *over(expected, rates[1], plain)])
    note = (
        f"`python benchmarks/busy.py --scaling`. Target tokens a second, medians of {arguments.rounds} interleaved rounds, {MICRO_BATCHES} "
        "micro-batches. *emulated*: more workers than cores, which shows what having more costs. *model*: one process does a part of an "
        "update alone, the rest is shared by as many as there are cores; both parts follow from 1 and 2 workers. Cores that share memory "
        f"and cache slow each other down, which is not in the model. {machine()}."
    )
    columns = ["model", "workers", "cores", "how", "tokens/s", "of 1 worker", "of one thread, batches whole"]
    write(arguments.out, columns, rows, note, measured=measured)


def over(rate: float, worker: float, plain: float) -> list[float]:
    """Return the last cells of a row of the scaling table: a rate, and what it is of two others."""
    return [round(rate), round(rate / worker, 2), round(rate / plain, 2)]


def lines(arguments: argparse.Namespace) -> None:
    """Translate one line at a time: each with the threads that `map_batches` gives it, and with all."""
    sources = read_text(arguments.data / "test_2016_flickr.en.gz")
    columns = ["model", "decoding", "beside", "few threads, lines/s", "all threads, lines/s", "few / all", "range"]
    note = f"`python benchmarks/busy.py --lines`. Lines a second, medians of {arguments.rounds} interleaved rounds. {machine()}."
    table = Table(arguments.out, columns, note, key=3)
    for run in arguments.lines:
        translator = Translator.open(run)
        for beam_size in (1, 5):
            decoding = with_options(translator.run.config.decoding, {"beam_size": beam_size})

            def rate(share: Any, turn: int, translator: Translator = translator, decoding: Any = decoding) -> float:
                count, begun = 0, time.perf_counter()
                with mock.patch.object(batch_threads, "_share", share):
                    while time.perf_counter() - begun < arguments.seconds:
                        translator.translate([sources[count % len(sources)]], decoding=decoding)
                        count += 1
                return count / (time.perf_counter() - begun)

            for company in ("nothing", "1"):
                with beside(company):
                    ways = {"few": batch_threads._share, "all": lambda threads: threads}
                    rates = interleaved({name: partial(rate, share) for name, share in ways.items()}, arguments.rounds, title=company)
                found = ratio(rates["few"], rates["all"])
                figures = [median(rates[name], 1) for name in ("few", "all")]
                name = f"beam {beam_size}" if beam_size > 1 else "greedy"
                table.add([shape(run), name, company, *figures, found.median, f"{found.least}-{found.most}"], rates)


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
            # To three digits: targets of two are compared with them.
            ratios = [ratio(own["workers"], own[name], 3).median if all(own[name]) else None for name in ("threads", "one thread")]
            share = round(speeds[0] / median(idle["threads"], 1), 2) if idle else None
            memory = dict(zip(CONTENDERS, own["MiB"], strict=True)) if "MiB" in own else None
            found.append([label, company, *speeds, *ratios, share, memory and round(memory["workers"] / memory["threads"], 2)])
    return found


def about(measured: dict[str, Any], seconds: dict[str, float]) -> str:
    """Say what the figures of the table are, and how long the demonstration took, if it was measured."""
    rounds = sorted({len(own["workers"]) for companies in measured.values() for own in companies.values()})
    text = (
        "`python benchmarks/busy.py`. Target tokens a second (of the classifier, input tokens), medians of "
        f"{' or '.join(map(str, rounds))} interleaved rounds. Ratios are medians of the rounds' ratios; a dash: in some round one of the "
        "two made no update. *of idle*: workers, of what threads reach beside nothing, a ratio of medians. Other programs are endless "
        "loops. *threads* and *one thread*: `training.micro_batches=1`."
    )
    return text + (f" The demonstration: {seconds['nothing']} s alone, {seconds['1']} s beside one program." if seconds else "")


def main() -> None:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--trec", type=Path, help="TREC.train.all, for the configuration trec")
    parser.add_argument("--runs", type=Path, help="folder of the trainings, needed but for --lines")
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--companies", nargs="+", choices=COMPANIES, default=list(COMPANIES))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--lines", type=Path, nargs="+", metavar="RUN")
    arguments = parser.parse_args()
    if arguments.runs is None and not arguments.lines:
        parser.error("--runs FOLDER: needed, for the trainings")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no contender stays behind
    if arguments.scaling or arguments.lines:
        (lines if arguments.lines else scaling)(arguments)
        return
    old = read(arguments.out)
    measured, seconds = old.get("measured", {}), old.get("demo", {})
    if arguments.demo:
        seconds = demo(arguments)
    elif arguments.data is None and arguments.configs != ["trec"]:
        parser.error("--data FOLDER: needed, the folder of Multi30k's files")
    elif arguments.trec is None and "trec" in arguments.configs:
        parser.error("--trec FILE: needed, TREC.train.all, unless --configs names others")
    else:
        for config in arguments.configs:
            measured[config] = {**measured.get(config, {}), **measure(config, arguments)}
    write(arguments.out, COLUMNS, rows(measured), f"{about(measured, seconds)} {machine()}.", measured=measured, demo=seconds)


if __name__ == "__main__":
    main()
