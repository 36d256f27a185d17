"""`ops.attention` beside `F.scaled_dot_product_attention` with the same mask or bias, and beside all scores in memory.

    python benchmarks/score_mod.py --out docs/results/score_mod.json
    python benchmarks/fill_tables.py
    python benchmarks/score_mod.py --lengths 64 --rounds 1          a rehearsal

One process per contender, interleaved (A B C A B C ...): medians of the rounds, and of the ratios round by round. Memory: one process per
measurement, the peak of forward and backward over what it held before. Masks, biases that are not learned, and block masks are made before
the clock starts: a program makes them once. The time of making a block mask has its own column. Heads of 64 features, float32.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from multi30k import write
from torch import Tensor

from regard import ops
from regard.ops import mods

ROUNDS, WARM_UP, SIZE = 7, 1, 64
MIN_SECONDS = 0.05  # a round repeats what is shorter
LENGTHS = (512, 2048, 8192)
SCORES = 2**27  # of all heads: more heads would not fit into memory for the others
WAYS = {"ours": "Regard", "sdpa": "SDPA", "materialized": "all scores in memory"}
KINDS = {
    "causal": "causal",
    "window": "window of 256",
    "documents": "8 documents, causal",
    "alibi": "ALiBi, causal",
    "relative": "learned relative bias, distances up to 128",
}


class Case(NamedTuple):
    """A kind of attention at one length."""

    kind: str
    length: int

    @property
    def heads(self) -> int:
        """As many heads, up to 8, as have no more than SCORES scores."""
        return max(1, min(8, SCORES // self.length**2))

    @property
    def title(self) -> str:
        """Name the case in a table."""
        return f"{self.heads} x {self.length}"


class Parts(NamedTuple):
    """A case as functions, and the learned table, if any."""

    score_mod: Any
    mask_mod: Any
    table: Tensor | None


def make(case: Case) -> Parts:
    """Make the functions of a case."""
    ids = torch.arange(case.length).div(case.length // 8, rounding_mode="floor")[None]
    if case.kind == "relative":
        table = torch.randn(case.heads, 257, requires_grad=True)
        return Parts(mods.relative_bias(table), None, table)
    masks = {"window": mods.sliding_window(255), "documents": mods.and_masks(mods.causal(), mods.document(ids))}
    return Parts(mods.alibi(mods.alibi_slopes(case.heads)) if case.kind == "alibi" else None, masks.get(case.kind, mods.causal()), None)


def indices(case: Case) -> tuple[Tensor, ...]:
    """Return b, h, q and kv for all scores of a case."""
    places = torch.arange(case.length)
    return torch.zeros(1, 1, 1, 1, dtype=torch.long), torch.arange(case.heads)[:, None, None], places[:, None], places


def contender(way: str, case: Case, parts: Parts) -> Callable[[Tensor, Tensor, Tensor], Any]:
    """Return one of WAYS as a function of query, key and value."""
    if way == "ours":
        blocks = None if parts.mask_mod is None else ops.attention_blocks(parts.mask_mod, 1, case.heads, case.length, case.length)
        return lambda q, k, v: ops.attention(q, k, v, parts.score_mod, blocks)
    where = indices(case)
    mask = None if parts.mask_mod is None else parts.mask_mod(*where).expand(1, 1, case.length, case.length)
    if way == "sdpa":
        if parts.score_mod is None:
            return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        zero = torch.zeros(1, case.heads, case.length, case.length)
        if mask is not None:
            bias = parts.score_mod(zero, *where).masked_fill(~mask, -torch.inf)
            return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        del zero
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=parts.score_mod(torch.zeros(()), *where)[None])

    def materialized(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = (query * SIZE**-0.5) @ key.mT
        scores = scores if parts.score_mod is None else parts.score_mod(scores, *where)
        return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), -1) @ value

    return materialized


def prepare(way: str, case: Case, backward: bool) -> Callable[[], object]:
    """Return one pass of a contender, inputs made."""
    torch.manual_seed(0)
    parts = make(case)
    attend = contender(way, case, parts)
    tensors = [torch.randn(1, case.heads, case.length, SIZE, requires_grad=backward) for _ in range(3)]
    grad = torch.randn_like(tensors[0])
    if not backward:
        return torch.no_grad()(lambda: attend(*tensors))
    leaves = tensors if parts.table is None else [*tensors, parts.table]
    return lambda: torch.autograd.grad(attend(*tensors), leaves, grad)


def seconds(run: Callable[[], object], repeats: int = 1) -> float:
    """Return the mean time of a few passes."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def worker(way: str) -> None:
    """Answer, line by line: a case and a pass to prepare, or `go` for one round."""
    run, repeats = None, 1
    for line in sys.stdin:
        if line.strip() != "go":
            order = json.loads(line)
            run = None  # first, for its memory
            run = prepare(way, Case(*order["case"]), order["backward"])
            once = min(seconds(run) for _ in range(WARM_UP))
            repeats = max(1, round(MIN_SECONDS / once))
        assert run is not None
        print(seconds(run, repeats), flush=True)


def memory_worker(way: str, case: Case) -> None:
    """Print the peak of one forward and backward pass over what the process held before, in MiB."""
    prepare(way, Case(case.kind, 32), backward=True)()
    run = prepare(way, case, backward=True)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    run()
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024
    print((peak - before) / 2**20)


def start(way: str, threads: int, *more: str) -> subprocess.Popen[str]:
    """Start the process of one contender."""
    command = [sys.executable, __file__, "--worker", way, "--threads", str(threads), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def ask(process: subprocess.Popen[str], line: str) -> float:
    """Send one line, wait for one number."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def measure(case: Case, backward: bool, rounds: int, threads: int) -> dict[str, Any]:
    """Time all contenders of a case in turn, and of forward and backward the memory."""
    workers = {way: start(way, threads) for way in WAYS}
    for process in workers.values():
        ask(process, json.dumps({"case": case, "backward": backward}))
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, process in workers.items():
            times[way].append(ask(process, "go"))
    for process in workers.values():
        process.terminate()
        process.wait()
    memory: dict[str, float] = {}
    for way in WAYS if backward else ():
        found, _ = start(way, threads, "--memory", json.dumps(case)).communicate()
        memory[way] = float(found)
    blocks = None if backward else block_seconds(case)
    return {"case": case, "backward": backward, "seconds": times, "MiB": memory, "block_seconds": blocks}


def block_seconds(case: Case) -> float | None:
    """Return the time of making the block mask of a case, None for one without a mask."""
    mask = make(case).mask_mod
    if mask is None:
        return None
    times = [seconds(lambda: ops.attention_blocks(mask, 1, case.heads, case.length, case.length)) for _ in range(WARM_UP + 3)]
    return statistics.median(times[WARM_UP:])


def row(result: dict[str, Any]) -> list[Any]:
    """Return a line of the table."""
    case, times, memory = result["case"], result["seconds"], result["MiB"]

    def ratio(one: str, other: str) -> float:
        return round(statistics.median(a / b for a, b in zip(times[one], times[other], strict=True)), 2)

    blocks = None if result["block_seconds"] is None else round(1000 * result["block_seconds"], 1)
    passes = "forward + backward" if result["backward"] else "forward"
    milliseconds = [round(1000 * statistics.median(times[way]), 1) for way in WAYS]
    cells = [KINDS[case.kind], case.title, passes, *milliseconds, ratio("ours", "sdpa"), ratio("materialized", "ours")]
    return [*cells, *(round(memory[way]) if memory else None for way in WAYS), blocks]


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the table is written")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        return memory_worker(arguments.worker, Case(*json.loads(arguments.memory)))
    if arguments.worker:
        return worker(arguments.worker)
    columns = ["attention", "heads x length", "pass", *(f"{name}, ms" for name in WAYS.values()), "Regard / SDPA", "all scores / Regard"]
    columns += [*(f"{name}, MiB" for name in WAYS.values()), "block mask, ms"]
    results = []
    for length in arguments.lengths:
        for kind in KINDS:
            for backward in (False, True):
                results.append(measure(Case(kind, length), backward, arguments.rounds, arguments.threads))
                print(row(results[-1]), flush=True)
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "unknown")
    machine = f"{cpu}, {arguments.threads} threads, torch {torch.__version__}, Python {platform.python_version()}"
    note = (
        f"`python benchmarks/score_mod.py`, {arguments.rounds} rounds, interleaved, float32, heads of {SIZE} features; {machine}. SDPA is "
        "`F.scaled_dot_product_attention` with the mask or bias as a tensor. Ratios are medians of those of each round. Memory is the peak "
        "over what was held before; masks, fixed biases and block masks are made before."
    )
    if arguments.out:
        write(arguments.out, columns, [row(result) for result in results], note, results=results)
    return None


if __name__ == "__main__":
    main()
