"""Area attention beside ordinary attention and beside materialized areas: time and memory of every way to compute it.

    python benchmarks/area.py --out docs/results            everything: area.json, area_memory.json
    python benchmarks/area.py --quick --out docs/results    the shapes with a promised ratio only, on a second processor: area_quick.json
    python benchmarks/area.py --grids --out docs/results    keys by Eq. 9 beside mean keys over grids: area_grids.json

One process a contender, all of one run, interleaved (A B C A B C ...): medians of the rounds, and of the ratios pair by pair. Memory: one
process a measurement, its peak over what it held before. Contenders: `F.scaled_dot_product_attention` without areas (the yardstick),
keys and values of all areas by summed area tables and then the same function ("materialized"), our readable reference, the PyPI package
`area-attention` where it is installed (it knows no masks), and each way of `regard.ops.area_attention`. Eq. 9 stands against its own naive
form, the reference.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import Table, Worker, interleaved, machine, median, options, ratio, serve
from torch import Tensor

from regard import ops
from regard.ops import reference
from regard.ops.kernels import native

WAYS = ("sdpa", "materialized", "reference", "package", "torch", "cpu")
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
GRIDS = [Case(64, grid**2, area=area, grid=grid, mask="none", features=True) for grid, area in ((10, 3), (10, 2), (7, 3), (14, 3))]
MEMORY = [Case(4, 4096), Case(16, 1024), Case(64, 256)]


def contenders(case: Case) -> list[str]:
    """Return who can compute a case here."""
    if case.features:
        return ["reference", "torch", *(["cpu"] if native.library() else [])]
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
        weights = [torch.randn(case.area if case.grid else 1, case.size // 2), torch.randn(case.area, case.size // 2)]
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
    if way == "materialized":
        return materialized(case, mask), weights
    os.environ["REGARD_KERNELS"] = way
    return lambda q, k, v: ops.area_attention(q, k, v, **options), weights  # type: ignore[return-value]


def materialized(case: Case, mask: Tensor | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
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


def prepare(way: str, order: dict[str, Any]) -> Callable[[], object]:
    """Return one pass of a contender, inputs made."""
    torch.manual_seed(0)
    case, backward = Case(**order["case"]), order["backward"]
    if way == "mean":
        way, case = "cpu", replace(case, features=False)
    heads = 4 if case.heads % 4 == 0 else 1
    parts = [torch.randn(case.heads // heads, heads, case.length, case.size, requires_grad=backward) for _ in range(3)]
    grad = torch.randn_like(parts[0])
    attend, weights = make(way, case)
    if not backward:
        return torch.no_grad()(lambda: attend(*parts))
    return lambda: torch.autograd.grad(attend(*parts), [*parts, *weights], grad, allow_unused=True)


def measure(case: Case, backward: bool, workers: dict[str, Worker], rounds: int) -> dict[str, Any]:
    """Time all contenders of a case interleaved."""
    ways = contenders(case)
    for way in ways:
        workers[way].ask("prepare", {"case": asdict(case), "backward": backward})
        workers[way].ask("warm")
    times = interleaved({way: lambda _, way=way: workers[way].ask("go") for way in ways}, rounds)
    return {"case": asdict(case), "title": case.title(), "backward": backward, "seconds": times}


COLUMNS = ["(batch x heads, length)", "pass", "SDPA ms", "cpu / SDPA", "torch / SDPA", "materialized / SDPA", "materialized / cpu"]
COLUMNS += ["package / cpu", "reference / cpu"]
PAIRS = [("cpu", "sdpa"), ("torch", "sdpa"), ("materialized", "sdpa"), ("materialized", "cpu"), ("package", "cpu"), ("reference", "cpu")]


def row(result: dict[str, Any]) -> list[Any]:
    """Return the row of a case: every contender over ordinary attention, the others over ours; None where one was not there."""
    times = result["seconds"]
    milliseconds = median([1000 * each for each in times["sdpa"]], 1) if "sdpa" in times else None
    ratios = [ratio(times[way], times[over]).median if way in times and over in times else None for way, over in PAIRS]
    return [result["title"], "forward + backward" if result["backward"] else "forward", milliseconds, *ratios]


GRID_COLUMNS = ["(batch x heads, length)", "pass", "mean keys ms", "Eq. 9 ms", "Eq. 9 / mean keys", "PyTorch / native, Eq. 9"]


def grids(rounds: int, threads: int, table: Table) -> None:
    """Measure keys by Eq. 9 beside mean keys over grids, both native, and beside the same in PyTorch alone."""
    workers = {way: Worker(way, threads) for way in ("mean", "cpu", "torch")}
    for case in GRIDS:
        for backward in (False, True):
            for worker in workers.values():
                worker.ask("prepare", {"case": asdict(case), "backward": backward})
                worker.ask("warm")
            times = interleaved({way: lambda _, worker=worker: worker.ask("go") for way, worker in workers.items()}, rounds)
            milliseconds = [median([1000 * each for each in times[way]], 1) for way in ("mean", "cpu")]
            ratios = [ratio(times[way], times[over]).median for way, over in (("cpu", "mean"), ("torch", "cpu"))]
            table.add([case.title(), "forward + backward" if backward else "forward", *milliseconds, *ratios], times)
    for worker in workers.values():
        worker.close()


def peak_of(way: str, case: Case, threads: int) -> float | None:
    """Return the peak of forward and backward in MiB, in a process of its own that has seen a small case; None if it cannot."""
    if way not in contenders(case):
        return None
    worker = Worker(way, threads)
    for each in (Case(4, 32, area=case.area, features=case.features), case):
        worker.ask("prepare", {"case": asdict(each), "backward": True})
        found = worker.ask("peak")
    worker.close()
    return round(found, 1)


def main() -> None:
    if serve(prepare):
        return
    parser = options(__doc__, rounds=9, threads=2)
    parser.add_argument("--quick", action="store_true", help="the shapes with a promised ratio only")
    parser.add_argument("--grids", action="store_true", help="keys by Eq. 9 over grids only")
    arguments = parser.parse_args()
    out: Path | None = arguments.out  # a folder
    command = f"python benchmarks/area.py{' --quick' if arguments.quick else ''}{' --grids' if arguments.grids else ''}"
    where = f"{machine(arguments.threads)}, {native.status().reason}"
    note = f"`{command}`, {arguments.rounds} rounds, interleaved, float32; {where}."
    if arguments.grids:
        grids(arguments.rounds, arguments.threads, Table(out and out / "area_grids.json", GRID_COLUMNS, note, key=2))
        return
    table = Table(out and out / f"area{'_quick' if arguments.quick else ''}.json", COLUMNS, note, key=2)
    workers = {way: Worker(way, arguments.threads) for way in WAYS}
    for case in PROMISED if arguments.quick else [*PROMISED, *MORE]:
        for backward in (True,) if arguments.quick else (False, True):
            found = measure(case, backward, workers, arguments.rounds)
            table.add(row(found), found)
    for worker in workers.values():
        worker.close()
    if arguments.quick:
        return
    ways = ["sdpa", "cpu", "torch", "materialized"]
    table = Table(out and out / "area_memory.json", ["case", *(f"{way} MiB" for way in ways), "cpu / sdpa"], note)
    for case in MEMORY:
        peaks = [peak_of(way, case, arguments.threads) for way in ways]
        table.add([case.title(), *peaks, None if peaks[1] is None or peaks[0] is None else round(peaks[1] / peaks[0], 2)])


if __name__ == "__main__":
    main()
