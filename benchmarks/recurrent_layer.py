"""Training a recurrent layer: Regard beside PyTorch, and beside its own cells step by step.

    python benchmarks/recurrent_layer.py [--rounds N] [--out FILE]

Forward and backward pass of a layer over 113 sentences of 72 characters, a batch of `studies/li2018_small.yaml`, on one thread: a layer of
`regard.models.RecurrentEncoder`, `torch.nn.LSTM` or `GRU` with the same input, and the cells of Regard one step at a time, as attention
within the loop needs them. Time is that of the processor. In bfloat16 only where the processor multiplies it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Literal
from unittest import mock

import torch
from harness import RESULTS, interleaved, machine, options, ratio, spread, write
from torch import Tensor

from regard.models import RecurrentEncoder, rnn_cells
from regard.tasks.glibc_memory import TRAINING_BYTES, bound_free_memory
from regard.training.precision import fastest_precision

BATCH, STEPS = 113, 72
SIZES = (128, 256, 512)
TORCH = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}


def training(layer: Callable[[Tensor], Tensor], x: Tensor, half: bool, number: int) -> float:
    """Return the seconds of a forward and a backward pass; `number` of the round changes nothing."""
    begun = time.process_time()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        output = layer(x)
    output.sum().backward()
    return time.process_time() - begun


def stepwise(layer: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the layer as its cells step by step."""

    def run(x: Tensor) -> Tensor:
        with mock.patch.object(rnn_cells, "supports", return_value=False):
            return layer(x)

    return run


def measure(kind: Literal["lstm", "gru"], size: int, half: bool, rounds: int) -> list[object]:
    """Return the row of a layer."""
    torch.manual_seed(1)
    encoder = RecurrentEncoder(kind, size, size, num_layers=1, bidirectional=False, dropout=0.0)
    torchs = TORCH[kind](size, size, batch_first=True)
    x, lengths = torch.randn(BATCH, STEPS, size, requires_grad=True), torch.full((BATCH,), STEPS)

    def own(x: Tensor) -> Tensor:
        return encoder(x, lengths).states

    layers = {"regard": own, "torch": lambda x: torchs(x)[0], "steps": stepwise(own)}
    contenders = {name: partial(training, layer, x, half) for name, layer in layers.items()}
    found = interleaved(contenders, rounds, warm_up=2, title=f"{kind} {size} {'bf16' if half else 'fp32'}")
    times = [spread(ratio(found[name], found["regard"]), 2) for name in ("torch", "steps")]
    return [f"{kind.upper()}, {size}", "bf16" if half else "fp32", round(1000 * statistics.median(found["regard"])), *times]


def main() -> None:
    """Run."""
    arguments = options(__doc__, out=RESULTS / "recurrent_layer.json", rounds=7).parse_args()
    torch.set_num_threads(1)
    bound_free_memory(TRAINING_BYTES)
    halves = [False, True] if fastest_precision(torch.device("cpu")) == "bf16" else [False]
    rows = [measure(kind, size, half, arguments.rounds) for kind in ("lstm", "gru") for size in SIZES for half in halves]
    note = (
        f"`python benchmarks/recurrent_layer.py --rounds {arguments.rounds}`. {BATCH} sentences of {STEPS} tokens, forward and backward. "
        f"Time of the processor, one thread; medians of interleaved rounds, of the ratios with the lowest and the highest. {machine(1)}"
    )
    write(arguments.out, ["layer", "precision", "Regard, ms", "torch.nn: times as long", "step by step: times as long"], rows, note)


if __name__ == "__main__":
    main()
