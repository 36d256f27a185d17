"""float32 products by torch's BLAS and by the oneDNN that torch also carries, at the sizes of a recurrent translation model.

    python benchmarks/matmul.py --out docs/results/matmul.json

Both in one process, in turns, medians of the pairs' ratios; `regard doctor` says which of them is used on this processor and why.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

SIZES = {"output layer": (512, 512, 8000), "gates of a step": (200, 512, 1536), "keys of a batch": (4096, 512, 512)}
ROUNDS, REPEATS = 15, 5


def by_blas(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply by torch's BLAS."""
    return left @ right.t()


def by_onednn(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply by the operator that `regard.ops.linear` uses."""
    return torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")


def seconds(product: Callable[[], torch.Tensor]) -> float:
    """Return the time of one product, the mean of a few."""
    start = time.perf_counter()
    for _ in range(REPEATS):
        product()
    return (time.perf_counter() - start) / REPEATS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "unknown")
    rows = []
    for name, (count, inner, outer) in SIZES.items():
        x, weight, grad = torch.randn(count, inner), torch.randn(outer, inner), torch.randn(count, outer)
        # left (N, I) times right (O, I) transposed, as the operator takes them
        parts = {"forward": (x, weight), "gradient of the input": (grad, weight.t()), "gradient of the weight": (grad.t(), x.t())}
        for what, (left, right) in parts.items():
            blas, onednn = partial(by_blas, left, right), partial(by_onednn, left, right)
            seconds(blas), seconds(onednn)
            ratios = [seconds(blas) / seconds(onednn) for _ in range(ROUNDS)]
            rows.append([name, what, f"{count} x {inner} x {outer}", round(statistics.median(ratios), 2), round(min(ratios), 2)])
            print(rows[-1], flush=True)
    machine = f"{cpu}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    note = f"`python benchmarks/matmul.py`: time of BLAS over time of oneDNN; {machine}."
    table = {"columns": ["product", "part", "size", "median ratio", "min"], "rows": rows, "note": note}
    if arguments.out:
        arguments.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
