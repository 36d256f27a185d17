"""Area attention beside ordinary attention and beside the areas written out: time and memory of every way to compute it.

    python benchmarks/area.py --out docs/results            everything: area.json, area_memory.json
    python benchmarks/area.py --quick --out FOLDER          the shapes with a promised ratio only

One process a contender, all of one run, in turns (A B C A B C ...): medians of the rounds, and of the ratios pair by pair. Memory: one
process a measurement, its peak over what it held before. Contenders: `F.scaled_dot_product_attention` without areas (the yardstick),
keys and values of all areas by summed area tables and then the same function ("materialised"), our readable reference, the PyPI package
`area-attention` where it is installed (it knows no masks), and each way of `regard.ops.area_attention`. Eq. 9 stands against its own naive
form, the reference.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import ops
from regard.ops import reference
from regard.ops.kernels import native

ROUNDS, WARM_UP = 9, 2
MIN_SECONDS = 0.05  # a round repeats what is shorter
WAYS = ("sdpa", "materialised", "reference", "package", "torch", "cpu")
# Scores of all areas that a contender is asked for: beyond, the package's would not fit, and the others would take minutes a case.
MAX_SCORES = {"package": 2**27, "reference": 2**25, "torch": 2**28}


@dataclass(frozen=True)
class Case:
    """What is attended to. `mask`: none, causal (a mask for all contenders), flag (is_causal) or padded. `features`: Eq. 9."""

    heads: int
    length: int
    size: int = 64
    area: int = 5
    grid: int = 0
    mask: str = "causal"
    features: bool = False

    def title(self) -> str:
        """Name the case in a table."""
        areas = f"{self.grid} x {self.grid} grid, areas {self.area} x {self.area}" if self.grid else f"A = {self.area}"
        return f"({self.heads}, {self.length}), d = {self.size}, {areas}, {self.mask}{', Eq. 9' if self.features else ''}"


PROMISED = [
    *(Case(heads, length) for heads, length in ((256, 32), (128, 64), (64, 256), (16, 1024))),
    Case(64, 196, area=3, grid=14, mask="none"),
    *(Case(heads, length, features=True) for heads, length in ((256, 32), (128, 64), (32, 256))),
]
MORE = [
    *(Case(heads, length) for heads, length in ((64, 128), (32, 512), (8, 2048), (4, 4096))),
    *(Case(64, 256, area=area) for area in (2, 3, 8)),
    *(Case(64, 256, size=size) for size in (16, 32, 128)),
    *(Case(64, 256, mask=mask) for mask in ("none", "flag", "padded")),
    *(Case(16, 1024, mask=mask) for mask in ("none", "flag", "padded")),
    Case(64, 196, area=2, grid=14, mask="none"),
    Case(64, 49, area=3, grid=7, mask="none"),
    Case(16, 1024, area=3, grid=32, mask="none"),
]
MEMORY = [Case(4, 4096), Case(16, 1024), Case(64, 256)]


def contenders(case: Case) -> list[str]:
    """Return who can compute a case here."""
    if case.features:
        return ["reference", "torch", *(["cpu"] if native.library() and not case.grid else [])]
    scores = case.heads * case.length**2 * (case.area**2 if case.grid else case.area)
    absent = set() if native.library() else {"cpu"}
    if importlib.util.find_spec("area_attention") is None or case.mask != "none":
        absent.add("package")
    absent |= {way for way, most in MAX_SCORES.items() if scores > most}
    return [way for way in WAYS if way not in absent]


def make_mask(case: Case) -> Tensor | None:
    """Build the mask of a case: True = may be attended."""
    if case.mask == "causal":
        return ops.causal_mask(case.length, case.length)[None, None]
    if case.mask == "padded":
        lengths = torch.linspace(case.length // 2, case.length, max(case.heads // 4, 1)).long()
        return ops.length_mask(lengths, case.length)[:, None, None]
    return None


def make(way: str, case: Case) -> tuple[Callable[[Tensor, Tensor, Tensor], Tensor], list[Tensor]]:
    """Return a contender as a function of query, key and value, and its weights."""
    mask, flag = make_mask(case), case.mask == "flag"
    size = (case.area, case.area) if case.grid else case.area
    grid = (case.grid, case.grid) if case.grid else None
    options: dict[str, Any] = {"max_area": size, "grid": grid, "mask": mask, "causal": flag}
    weights: list[Tensor] = []
    if case.features:
        weights = [torch.randn(1, case.size // 2), torch.randn(case.area, case.size // 2)]
        weights += [torch.randn(case.size, 3 * case.size) / 8, torch.randn(case.size, case.size) / 8]
        options |= {"key_mode": "features", "key_weights": ops.AreaWeights(*(weight.requires_grad_() for weight in weights))}
    if way == "sdpa":
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=flag), weights
    if way == "reference":
        return lambda q, k, v: reference.area_attention(q, k, v, **options).context, weights
    if way == "package":
        from area_attention import AreaAttention

        shape = {"memory_height": case.grid or 1, "memory_width": case.grid or case.length}
        module = AreaAttention(case.size, max_area_height=case.area if case.grid else 1, max_area_width=case.area, **shape)
        return lambda q, k, v: module(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).view_as(q), weights
    if way == "materialised":
        return materialised(case, mask), weights
    os.environ["REGARD_KERNELS"] = way
    return lambda q, k, v: ops.area_attention(q, k, v, **options), weights  # type: ignore[return-value]


def materialised(case: Case, mask: Tensor | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Make keys and values of all areas by summed area tables, then attend to them as to items."""
    size, grid = ((case.area, case.area), (case.grid, case.grid)) if case.grid else (case.area, None)
    if case.mask == "flag":
        mask = ops.causal_mask(case.length, case.length)[None, None]
    areas = None if mask is None else ops.area_mask(mask, size, grid)
    spans = ops.area_spans(case.length if grid is None else grid, size)
    items = spans[:, -1] if grid is None else spans[:, 2] * spans[:, 3]
    inverse = (1 / items.float()).unsqueeze(-1)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = ops.area_sums(key, size, grid) * inverse, ops.area_sums(value, size, grid)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=areas)

    return attend


def prepare(way: str, case: Case, backward: bool) -> Callable[[], object]:
    """Return one pass of a contender, inputs made."""
    torch.manual_seed(0)
    heads = 4 if case.heads % 4 == 0 else 1
    parts = [torch.randn(case.heads // heads, heads, case.length, case.size, requires_grad=backward) for _ in range(3)]
    grad = torch.randn_like(parts[0])
    attend, weights = make(way, case)
    if not backward:
        return torch.no_grad()(lambda: attend(*parts))
    return lambda: torch.autograd.grad(attend(*parts), [*parts, *weights], grad, allow_unused=True)


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the mean time of a few passes."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def worker(way: str, threads: int) -> None:
    """Answer, line by line: a case and a pass to prepare, or `go` for one round."""
    torch.set_num_threads(threads)
    run, repeats = None, 1
    for line in sys.stdin:
        if line.strip() != "go":
            order = json.loads(line)
            run = prepare(way, Case(**order["case"]), order["backward"])
            once = min(seconds(run, 1) for _ in range(WARM_UP))
            repeats = max(1, round(MIN_SECONDS / once))
        assert run is not None
        print(seconds(run, repeats), flush=True)


def memory_worker(way: str, case: Case, threads: int) -> None:
    """Print the peak of one forward and backward pass over what the process held before, in MiB."""
    torch.set_num_threads(threads)
    run = prepare(way, case, backward=True)
    warm = prepare(way, Case(4, 32, area=case.area, features=case.features), backward=True)
    warm()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    run()
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024
    print((peak - before) / 2**20)


def start(way: str, threads: int) -> subprocess.Popen[str]:
    """Start the process of one contender."""
    command = [sys.executable, __file__, "--worker", way, "--threads", str(threads)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(threads))


def environment(threads: int) -> dict[str, str]:
    """Return what every process runs under."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def ask(process: subprocess.Popen[str], line: str) -> float:
    """Send one line, wait for one number."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def measure(case: Case, backward: bool, workers: dict[str, subprocess.Popen[str]], rounds: int) -> dict[str, Any]:
    """Time all contenders of a case in turns."""
    ways = contenders(case)
    order = json.dumps({"case": asdict(case), "backward": backward})
    for way in ways:
        ask(workers[way], order)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            times[way].append(ask(workers[way], "go"))
    return {"case": asdict(case), "title": case.title(), "backward": backward, "seconds": times}


def ratio(result: dict[str, Any], way: str, over: str) -> float | None:
    """Return the median ratio pair by pair, None where one of the two was not there."""
    times = result["seconds"]
    if way not in times or over not in times:
        return None
    return round(statistics.median(a / b for a, b in zip(times[way], times[over], strict=True)), 2)


def machine(threads: int) -> str:
    """Describe where this ran."""
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "unknown")
    return f"{cpu}, {threads} threads, torch {torch.__version__}, Python {platform.python_version()}, {native.status().reason}"


def time_table(results: list[dict[str, Any]], note: str) -> dict[str, Any]:
    """Make the table of times: every contender over ordinary attention, the written-out areas over ours."""
    columns = ["(batch x heads, length)", "pass", "SDPA ms", "cpu / SDPA", "torch / SDPA", "materialised / SDPA", "materialised / cpu"]
    columns += ["package / cpu", "reference / cpu"]
    pairs = [
        ("cpu", "sdpa"),
        ("torch", "sdpa"),
        ("materialised", "sdpa"),
        ("materialised", "cpu"),
        ("package", "cpu"),
        ("reference", "cpu"),
    ]
    rows = []
    for result in results:
        base = result["seconds"].get("sdpa")
        milliseconds = round(1000 * statistics.median(base), 1) if base else None
        passes = "forward + backward" if result["backward"] else "forward"
        rows.append([result["title"], passes, milliseconds, *(ratio(result, *pair) for pair in pairs)])
    return {"columns": columns, "rows": rows, "note": note, "results": results}


def memory_table(threads: int, note: str) -> dict[str, Any]:
    """Measure peaks, each in a process of its own."""
    ways = ["sdpa", "cpu", "torch", "materialised"]
    rows = []
    for case in MEMORY:
        row: list[Any] = [case.title()]
        for way in ways:
            if way not in contenders(case):
                row.append(None)
                continue
            command = [sys.executable, __file__, "--memory", json.dumps(asdict(case)), "--worker", way, "--threads", str(threads)]
            done = subprocess.run(command, capture_output=True, text=True, env=environment(threads), check=True)
            row.append(round(float(done.stdout), 1))
        row.append(None if row[2] is None else round(row[2] / row[1], 2))
        rows.append(row)
        print(row, flush=True)
    return {"columns": ["case", *(f"{way} MiB" for way in ways), "cpu / sdpa"], "rows": rows, "note": note}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the shapes with a promised ratio only")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="folder for area.json and area_memory.json")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        return memory_worker(arguments.worker, Case(**json.loads(arguments.memory)), arguments.threads)
    if arguments.worker:
        return worker(arguments.worker, arguments.threads)
    cases = PROMISED if arguments.quick else [*PROMISED, *MORE]
    command = f"python benchmarks/area.py{' --quick' if arguments.quick else ''}"
    note = f"`{command}`, {arguments.rounds} rounds, interleaved, float32; {machine(arguments.threads)}."
    workers = {way: start(way, arguments.threads) for way in WAYS}
    results = []
    for case in cases:
        for backward in (True,) if arguments.quick else (False, True):
            results.append(measure(case, backward, workers, arguments.rounds))
            print(time_table(results[-1:], "")["rows"][0], flush=True)
    for process in workers.values():
        process.terminate()
    tables = {"area": time_table(results, note), "area_memory": memory_table(arguments.threads, note)}
    if arguments.out:
        for name, table in tables.items():
            (arguments.out / f"{name}.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
