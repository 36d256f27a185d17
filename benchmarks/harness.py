"""What the benchmarks share: options, interleaved rounds, ratios, the machine, a process per contender, and the file of results.

A script names its contenders, measures them with `interleaved` (A B C A B C ...), and adds each row to a `Table`, which is written at
once: a run that is killed loses nothing, and the same command goes on with the rows that its file holds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from regard.metrics.seeds import RunScore, SeedComparison

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
MEBIBYTE = 2**20
MIN_SECONDS = 0.05  # a round repeats what is shorter
Found = TypeVar("Found")
Key = TypeVar("Key")


def options(doc: str | None, *, out: Path | None = None, **numbers: int) -> argparse.ArgumentParser:
    """Return a parser that shows the script's own text, with `--out` and an option for each number: rounds, threads ..."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=out, help="where the results go" + ("" if out else "; without, they are only printed"))
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number, help=f"default {number}")
    return parser


# Times and ratios ------------------------------------------------------------------------------------------------------


def seconds(action: Callable[[], object], repeats: int = 1) -> float:
    """Return the mean time of a few calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        action()
    return (time.perf_counter() - start) / repeats


def interleaved(
    contenders: Mapping[str, Callable[[int], Found]], rounds: int, *, warm_up: int = 0, title: str = ""
) -> dict[str, list[Found]]:
    """Call every contender once a round, each told the round's number from 1 (0 and below: warm-up); return what they gave."""
    found: dict[str, list[Found]] = {name: [] for name in contenders}
    for number in range(1 - warm_up, rounds + 1):
        for name, measure in contenders.items():
            result = measure(number)
            if number > 0:
                found[name].append(result)
                if title:
                    print(f"{title} round {number} {name:8} {result}", flush=True)
    return found


class Ratio(NamedTuple):
    """One contender over another, round by round."""

    median: float
    least: float
    most: float


def ratio(ours: Sequence[float], theirs: Sequence[float], digits: int = 2) -> Ratio:
    """Return the median and the ends of the ratios round by round."""
    pairs = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return Ratio(*(round(f(pairs), digits) for f in (statistics.median, min, max)))


def median(values: Sequence[float], digits: int) -> float:
    """Return the rounded median."""
    return round(statistics.median(values), digits)


def spread(values: Sequence[float], digits: int, form: str = "{} ({}-{})") -> str:
    """Return the median of figures with the lowest and the highest; a single one is alone."""
    shown = [f"{f(values):.{digits}f}" for f in (statistics.median, min, max)]
    return shown[0] if len(values) == 1 else form.format(*shown)


def mean_range(values: Sequence[float]) -> str:
    """Return the mean of figures with the lowest and the highest, to two decimals."""
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def compare_runs(systems: Sequence[RunScore], baselines: Sequence[RunScore], *, paired: bool = False) -> SeedComparison:
    """Compare two variants over the seeds that both have so far; paired: one training of each seed, used in two ways."""
    from regard.metrics.seeds import compare_seeds

    common = min(len(systems), len(baselines))
    return compare_seeds(systems[:common], baselines[:common], paired=paired)


COMPARED = ["difference", "95 % interval", "p, corrected", "over"]


def comparison_cells(tests: Mapping[Key, SeedComparison], digits: int, scale: float = 1.0) -> dict[Key, list[Any]]:
    """Return what stands under COMPARED for each comparison of a table; p is corrected for all of them (Holm)."""
    from regard.metrics.significance import holm
    from regard.study.findings import p_text

    cells = {}
    for (key, test), p_value in zip(tests.items(), holm([test.p_value for test in tests.values()]), strict=True):
        interval = None if test.interval is None else " to ".join(f"{scale * end:+.{digits}f}" for end in test.interval)
        cells[key] = [round(scale * test.difference, digits), interval, p_text(p_value).removeprefix("= "), test.over]
    return cells


# Machine and memory ----------------------------------------------------------------------------------------------------


def machine(threads: int | None = None, *packages: str, device: str = "cpu") -> str:
    """Describe where figures come from: the processor, the threads, and the versions of torch, Regard and other packages."""
    import torch

    from regard.cores import processor

    name = torch.cuda.get_device_name() if device == "cuda" else processor()
    threads = torch.get_num_threads() if threads is None else threads
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}, Python {platform.python_version()}, {versions(*packages)}"


def versions(*packages: str) -> str:
    """Return the versions of torch, Regard and other packages."""
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("torch", "regard", *packages))


def peak(action: Callable[[], object]) -> float:
    """Return the MiB that a call needs at most over what the process held before, what it returns included."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak so far
    before = status(field="VmRSS")
    kept = action()
    most = status()
    del kept
    return (most - before) / MEBIBYTE


def status(process: int | str = "self", field: str = "VmHWM") -> int:
    """Return the bytes that a process holds (VmRSS), or has held at most (VmHWM); 0 for one that has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)


def tree_memory(process: int) -> int:
    """Return the bytes that a process and its descendants hold together: what several of them share counts once."""
    total, waiting = 0, [process]
    while waiting:
        folder = Path("/proc", str(waiting.pop()))
        try:
            for path in (folder / "task").glob("*/children"):
                waiting += map(int, path.read_text(encoding="utf-8").split())
            lines = (folder / "smaps_rollup").read_text(encoding="utf-8").splitlines()
        except OSError:  # it has ended
            continue
        total += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


class Worker:
    """A contender in a process of its own: the same script, which answers each order with one number (see `serve`)."""

    def __init__(self, name: str, threads: int) -> None:
        command, environment = [sys.executable, sys.argv[0], "--worker", name], {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, order: str, what: object = None) -> float:
        """Send an order, and what it is about; wait for the number."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([order, what]) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


def serve(prepare: Callable[[str, Any], Callable[[], object]]) -> bool:
    """Be the worker if this process is one: obey orders until the input ends.

    `prepare`: make a pass of the contender, run nothing. `warm`: run it, and choose how often a round repeats it. `go`: the seconds of
    one pass, the mean of a round. `peak`: run it once; MiB over what was held before.
    """
    if sys.argv[1:2] != ["--worker"]:
        return False
    action: Callable[[], object] = tuple
    repeats = 1
    for line in sys.stdin:
        order, what = json.loads(line)
        answer = 0.0
        if order == "prepare":
            action = tuple  # frees what was before
            action, repeats = prepare(sys.argv[2], what), 1
        elif order == "warm":
            answer = min(seconds(action) for _ in range(2))
            repeats = max(1, round(MIN_SECONDS / answer))
        else:
            answer = peak(action) if order == "peak" else seconds(action, repeats)
        print(answer, flush=True)
    return True


# Results ---------------------------------------------------------------------------------------------------------------


def read(path: Path | None) -> dict[str, Any]:
    """Return what a file of results holds, {} where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}


def not_done(runs: Sequence[str]) -> str:
    """Return the end of a note on the runs of a study that are missing; "" for none."""
    if not runs:
        return ""
    return f" Not done: {', '.join(runs)}." if len(runs) <= 12 else f" Not done: {len(runs)} runs."


def write(path: Path | None, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str, **more: Any) -> None:
    """Write a table as `fill_tables.py` reads it, with what else belongs to it; without a path nothing."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"columns": columns, "rows": rows, "note": note, **more}, indent=1, ensure_ascii=False)
        new = path.with_name(f".{path.name}.new")
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(path)


class Table:
    """A table of results, written after every row.

    A row takes the place of the one with the same first cells (`key` of them). Rows that the file holds stay if columns and note are
    the same: another command, machine or version begins a new table.
    """

    def __init__(self, path: Path | None, columns: Sequence[str], note: str, *, key: int = 1) -> None:
        self.path, self.columns, self.note, self.key = path, list(columns), note, key
        held = read(path)
        same = (held.get("columns"), held.get("note")) == (self.columns, note)
        self.rows: list[list[Any]] = held["rows"] if same else []
        self.results: list[Any] = held.get("results", []) if same else []

    def add(self, row: Sequence[Any], result: Any = None) -> None:
        """Print a row and write the table; `result`: what was measured, to stand in the file beside the rows."""
        print(*row, sep="\t", flush=True)
        names = [each[: self.key] for each in self.rows]
        place = names.index(list(row[: self.key])) if list(row[: self.key]) in names else len(names)
        self.rows[place : place + 1] = [list(row)]
        if result is not None:
            self.results[place : place + 1] = [result]
        write(self.path, self.columns, self.rows, self.note, **({"results": self.results} if self.results else {}))


# Regard's own commands -------------------------------------------------------------------------------------------------


def regard(*words: str, folder: Path | None = None) -> None:
    """Run a `regard` command, in a folder; its output goes through."""
    print("$ regard", *words, flush=True)
    subprocess.run([sys.executable, "-m", "regard", *words], check=True, cwd=folder)


def multi30k_files(raw: Path, target: str = "de") -> list[str]:
    """Return the options that name the training and validation files of Multi30k, English to German or another target."""
    files = [("--source", "train.en"), ("--target", f"train.{target}"), ("--valid-source", "val.en"), ("--valid-target", f"val.{target}")]
    return [word for option, name in files for word in (option, str(raw / f"{name}.gz"))]


class Training(NamedTuple):
    """What the log of a run tells: its events, the seconds of all, and the updates."""

    events: list[dict[str, Any]]
    seconds: float
    updates: int


def training_of(run: Path) -> Training:
    """Read the log of a run."""
    events = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return Training(events, *(max((event.get(name, 0) for event in events), default=0) for name in ("seconds", "step")))
