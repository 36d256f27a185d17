"""What a call costs before anything is computed: every native operation and its plain form on tiny tensors, and ways to call C.

    python benchmarks/call_overhead.py --out docs/results/call_overhead.json [--ways docs/results/call_ways.json]

Contenders take turns in one process, in float32 with one thread. A figure is processor time, the least of the rounds, each the mean of
many calls: whatever else runs only adds. The plain form is that of `REGARD_KERNELS=torch`, asked for in the same process.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from harness import Table, interleaved, machine, options
from torch import Tensor

from regard import ops
from regard.ops.kernels import native

ROUNDS, CALLS = 15, 400
Calls = dict[str, Callable[[], Any]]
REGISTERED = torch.library.Library("regard_overhead", "DEF")


def operations() -> Calls:
    """Return a call of each operation with a kernel; those that end in "gradient" have an input that wants one."""
    generator = torch.Generator().manual_seed(1)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    x, keys, weight, wanting = numbers(3, 5), numbers(7, 5), numbers(5), numbers(3, 5).requires_grad_()
    query, items, places = numbers(2, 3, 2, 5), numbers(7, 2, 5), torch.tensor([[0, 6], [1, 2]])
    heads, memory = numbers(1, 2, 3, 16), numbers(1, 2, 5, 16)
    learned = ops.AreaWeights(numbers(1, 8), numbers(2, 8), numbers(16, 48), numbers(16, 16))
    asking, features = heads.clone().requires_grad_(), {"max_area": 2, "key_mode": "features", "key_weights": learned}
    target, classes = torch.tensor([0, 10, 4]), numbers(11, 5)
    return {
        "additive_scores": lambda: ops.additive_scores(x, keys, weight),
        "additive_scores, gradient": lambda: ops.additive_scores(wanting, keys, weight),
        "area_attention": lambda: ops.area_attention(heads, memory, memory, max_area=2),
        "area_attention, gradient": lambda: ops.area_attention(asking, memory, memory, max_area=2),
        "area_attention, Eq. 9": lambda: ops.area_attention(heads, memory, memory, **features),
        "cached_attention": lambda: ops.cached_attention(query, items, items, places),
        "linear_cross_entropy": lambda: ops.linear_cross_entropy(x, classes, None, target),
        "residual, gradient": lambda: ops.residual(wanting, x, weight, weight),
        "top_log_probs": lambda: ops.top_log_probs(x, 2),
    }


class _Empty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def ways() -> Calls:
    """Return calls that make an empty tensor and do nothing else, by each way to C that there is."""
    library = native.library()
    if library is None:
        raise SystemExit(f"call_overhead: {native.status().reason}")
    found, call = library.regard_abi, ctypes.c_int64(0)

    def direct(x: Tensor) -> Tensor:
        made = torch.empty_like(x)
        found(ctypes.byref(call))
        return made

    for name in ("plain", "differentiable"):
        REGISTERED.define(f"{name}(Tensor x) -> Tensor")
        REGISTERED.impl(name, direct, "CPU")
    torch.library.register_autograd("regard_overhead::differentiable", lambda _, grad: grad, lib=REGISTERED)
    custom = torch.library.custom_op("regard_overhead::custom", direct, mutates_args=(), schema="(Tensor x) -> Tensor")
    x, wanting = torch.ones(3, 5), torch.ones(3, 5, requires_grad=True)
    made = torch.ops.regard_overhead
    return {
        "ctypes": lambda: direct(x),
        "torch.library.Library": lambda: made.plain.default(x),
        "torch.library.custom_op": lambda: custom(x),
        "torch.autograd.Function, gradient": lambda: _Empty.apply(wanting),
        "torch.library with register_autograd, gradient": lambda: made.differentiable.default(wanting),
    }


def microseconds(calls: Calls) -> dict[str, float]:
    """Return the time of each call, contenders interleaved."""

    def measure(name: str) -> float:
        wants: AbstractContextManager[Any] = nullcontext() if "gradient" in name else torch.inference_mode()
        with wants:
            calls[name]()
            start = time.thread_time()
            for _ in range(CALLS):
                calls[name]()
        return (time.thread_time() - start) / CALLS * 1e6

    times = interleaved({name: lambda _, name=name: measure(name) for name in calls}, ROUNDS)
    return {name: round(min(each), 1) for name, each in times.items()}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ways", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    note = f"`python benchmarks/call_overhead.py`, processor time, min of {ROUNDS} rounds; {machine()}."
    empty = ways()
    with_kernels = microseconds(operations())
    os.environ["REGARD_KERNELS"] = "torch"
    table = Table(arguments.out, ["operation", "native µs", "PyTorch µs", "ratio"], note)
    for name, plain in microseconds(operations()).items():
        table.add([name, with_kernels[name], plain, round(with_kernels[name] / plain, 2)])
    table = Table(arguments.ways, ["empty call by", "µs"], note)
    for row in microseconds(empty).items():
        table.add(row)


if __name__ == "__main__":
    main()
