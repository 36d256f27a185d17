"""Training with the dropout of Regard beside that of torch.

    python benchmarks/dropout.py [--rounds N] [--out FILE]

Forward and backward pass of recurrent models of `configs/`, as in `benchmarks/micro_batches.py`: the same model, with
`regard.ops.Dropout` and with `torch.nn.Dropout.forward` in its place. Time is that of the processor. In bfloat16 only where the processor
multiplies it.
"""

from __future__ import annotations

from functools import partial
from unittest import mock

import torch
from harness import RESULTS, ROOT, interleaved, machine, options, ratio, spread, write
from micro_batches import CASES, batch_of, step
from torch import nn

from regard import ops
from regard.config import load_config
from regard.data.batching import SequenceBatch
from regard.models.factory import build
from regard.training.precision import fastest_precision

NAMES = ("recurrent, additive", "LSTM with areas, characters")


def torchs_step(model: nn.Module, batches: list[SequenceBatch], half: bool, number: int) -> float:
    """Return the seconds of `step` with torch's dropout."""
    with mock.patch.object(ops.Dropout, "forward", nn.Dropout.forward):
        return step(model, batches, half, number)


def measure(name: str, half: bool, rounds: int) -> list[object]:
    """Return the row of a training."""
    case = CASES[name]
    config = load_config(ROOT / "configs" / f"{case.config}.yaml")
    torch.manual_seed(1)
    model = build(config.model, source_size=case.vocabulary, target_size=case.vocabulary).train()
    batches = [batch_of(case, case.tokens // case.length)]
    contenders = {"regard": partial(step, model, batches, half), "torch": partial(torchs_step, model, batches, half)}
    found = interleaved(contenders, rounds, warm_up=1, title=f"{name} {'bf16' if half else 'fp32'}")
    dropout = max(module.p for module in model.modules() if isinstance(module, nn.Dropout))
    return [name, "bf16" if half else "fp32", case.tokens, dropout, spread(ratio(found["torch"], found["regard"]), 2)]


def main() -> None:
    """Run."""
    arguments = options(__doc__, out=RESULTS / "dropout.json", rounds=7).parse_args()
    torch.set_num_threads(1)
    halves = [False, True] if fastest_precision(torch.device("cpu")) == "bf16" else [False]
    rows = [measure(name, half, arguments.rounds) for name in NAMES for half in halves]
    note = (
        f"`python benchmarks/dropout.py --rounds {arguments.rounds}`. Time of the processor, one thread; medians of the ratios of "
        f"interleaved rounds, with the lowest and the highest. {machine(1)}"
    )
    write(arguments.out, ["model", "precision", "batch, tokens", "dropout, at most", "torch's dropout: times as long"], rows, note)


if __name__ == "__main__":
    main()
