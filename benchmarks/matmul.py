"""float32 products by torch's BLAS and by the oneDNN that torch also carries, at the sizes of a recurrent translation model.

    python benchmarks/matmul.py --out docs/results/matmul.json

Both in one process, interleaved, medians of the pairs' ratios; `regard doctor` says which of them is used on this processor and why.
"""

from __future__ import annotations

from functools import partial

import torch
from harness import Table, interleaved, machine, options, ratio, seconds

SIZES = {"output layer": (512, 512, 8000), "gates of a step": (200, 512, 1536), "keys of a batch": (4096, 512, 512)}
REPEATS = 5


def by_blas(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply by torch's BLAS."""
    return left @ right.t()


def by_onednn(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply by the operator that `regard.ops.linear` uses."""
    return torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")


def main() -> None:
    arguments = options(__doc__, rounds=15).parse_args()
    note = f"`python benchmarks/matmul.py`: time of BLAS over time of oneDNN; {machine()}."
    table = Table(arguments.out, ["product", "part", "size", "median ratio", "min"], note, key=2)
    for name, (count, inner, outer) in SIZES.items():
        x, weight, grad = torch.randn(count, inner), torch.randn(outer, inner), torch.randn(count, outer)
        # left (N, I) times right (O, I) transposed, as the operator takes them
        parts = {"forward": (x, weight), "gradient of the input": (grad, weight.t()), "gradient of the weight": (grad.t(), x.t())}
        for what, (left, right) in parts.items():
            ways = {way.__name__: partial(way, left, right) for way in (by_blas, by_onednn)}
            contenders = {way: lambda _, run=run: seconds(run, REPEATS) for way, run in ways.items()}
            times = interleaved(contenders, arguments.rounds, warm_up=1)
            found = ratio(times["by_blas"], times["by_onednn"])
            table.add([name, what, f"{count} x {inner} x {outer}", found.median, found.least])


if __name__ == "__main__":
    main()
