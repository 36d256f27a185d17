"""`ops.attention` beside `F.scaled_dot_product_attention` with the same mask or bias, and beside all scores in memory.

    python benchmarks/score_mod.py --out docs/results/score_mod.json
    python benchmarks/fill_tables.py
    python benchmarks/score_mod.py --lengths 64 --rounds 1          a rehearsal

One process per contender, interleaved (A B C A B C ...): medians of the rounds, and of the ratios round by round. Memory: one process per
measurement, the peak of forward and backward over what it held before. Masks, biases that are not learned, and block masks are made before
the clock starts: a program makes them once. The time of making a block mask has its own column. Heads of 64 features, float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from harness import Table, Worker, interleaved, machine, median, options, ratio, seconds, serve
from torch import Tensor

from regard import ops
from regard.ops import mods

SIZE = 64
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


def prepare(way: str, order: dict[str, Any]) -> Callable[[], object]:
    """Return one pass of a contender, inputs made."""
    torch.manual_seed(0)
    case, backward = Case(*order["case"]), order["backward"]
    parts = make(case)
    attend = contender(way, case, parts)
    tensors = [torch.randn(1, case.heads, case.length, SIZE, requires_grad=backward) for _ in range(3)]
    grad = torch.randn_like(tensors[0])
    if not backward:
        return torch.no_grad()(lambda: attend(*tensors))
    leaves = tensors if parts.table is None else [*tensors, parts.table]
    return lambda: torch.autograd.grad(attend(*tensors), leaves, grad)


def measure(case: Case, backward: bool, rounds: int, threads: int) -> dict[str, Any]:
    """Time all contenders of a case in turn, and of forward and backward the memory."""
    workers = {way: Worker(way, threads) for way in WAYS}
    for worker in workers.values():
        worker.ask("prepare", {"case": case, "backward": backward})
        worker.ask("warm")
    times = interleaved({way: lambda _, each=each: each.ask("go") for way, each in workers.items()}, rounds)
    for worker in workers.values():
        worker.close()
    memory = {way: peak_of(way, case, threads) for way in WAYS} if backward else {}
    blocks = None if backward else block_seconds(case)
    return {"case": case, "backward": backward, "seconds": times, "MiB": memory, "block_seconds": blocks}


def peak_of(way: str, case: Case, threads: int) -> float:
    """Return the peak of forward and backward in MiB, in a process of its own that has seen a small case."""
    worker = Worker(way, threads)
    for each in (Case(case.kind, 32), case):
        worker.ask("prepare", {"case": each, "backward": True})
        found = worker.ask("peak")
    worker.close()
    return found


def block_seconds(case: Case) -> float | None:
    """Return the time of making the block mask of a case, None for one without a mask."""
    mask = make(case).mask_mod
    if mask is None:
        return None
    return median([seconds(lambda: ops.attention_blocks(mask, 1, case.heads, case.length, case.length)) for _ in range(4)][1:], 6)


def row(result: dict[str, Any]) -> list[Any]:
    """Return a line of the table."""
    case, times, memory = result["case"], result["seconds"], result["MiB"]
    blocks = None if result["block_seconds"] is None else round(1000 * result["block_seconds"], 1)
    passes = "forward + backward" if result["backward"] else "forward"
    milliseconds = [median([1000 * each for each in times[way]], 1) for way in WAYS]
    ratios = [ratio(times[one], times[other]).median for one, other in (("ours", "sdpa"), ("materialized", "ours"))]
    return [KINDS[case.kind], case.title, passes, *milliseconds, *ratios, *(round(memory[way]) if memory else None for way in WAYS), blocks]


def main() -> None:
    if serve(prepare):
        return
    parser = options(__doc__, rounds=7, threads=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    columns = ["attention", "heads x length", "pass", *(f"{name}, ms" for name in WAYS.values()), "Regard / SDPA", "all scores / Regard"]
    columns += [*(f"{name}, MiB" for name in WAYS.values()), "block mask, ms"]
    note = (
        f"`python benchmarks/score_mod.py`, {arguments.rounds} rounds, interleaved, float32, heads of {SIZE} features; {machine()}. SDPA "
        "is `F.scaled_dot_product_attention` with the mask or bias as a tensor. Ratios are medians of those of each round. Memory is the "
        "peak over what was held before; masks, fixed biases and block masks are made before."
    )
    table = Table(arguments.out, columns, note, key=3)
    for length in arguments.lengths:
        for kind in KINDS:
            for backward in (False, True):
                found = measure(Case(kind, length), backward, arguments.rounds, arguments.threads)
                table.add(row(found), found)


if __name__ == "__main__":
    main()
