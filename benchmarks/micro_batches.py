"""Training by one process of one thread, with a batch divided into 1, 2, 4 and 8 micro-batches.

    python benchmarks/micro_batches.py [--rounds N] [--out FILE]

Forward and backward pass of random sentences of one length, by models of `configs/` and Transformer Base. Each round measures all numbers
of micro-batches. Time is that of the processor. In bfloat16 only where the processor multiplies it.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any, NamedTuple

import torch
from harness import RESULTS, ROOT, interleaved, machine, options, ratio, spread, write

from regard.config import load_config
from regard.data.batching import SequenceBatch, collate
from regard.models.factory import build
from regard.training.precision import fastest_precision

COUNTS = (1, 2, 4, 8)


class Case(NamedTuple):
    """A training: configuration or recipe settings, size of the vocabulary, tokens of a sentence and of a batch."""

    config: str | None
    settings: tuple[str, ...]
    vocabulary: int
    length: int
    tokens: int


BASE = tuple(
    f"model.{part}" for part in ("type=transformer", "embed_dim=512", "ff_dim=2048", "num_heads=8", "encoder_layers=6", "decoder_layers=6")
)
WIDER = tuple(f"model.{part}" for part in ("type=transformer", "embed_dim=256", "ff_dim=1024", "encoder_layers=6", "decoder_layers=6"))
CASES = {
    "recurrent, additive": Case("multi30k_bahdanau", (), 6000, 20, 2000),
    "LSTM with areas, characters": Case("multi30k_lstm_area", (), 300, 75, 8192),
    "Transformer, width 128": Case("multi30k_transformer", (), 6000, 20, 2048),
    "Transformer, width 256": Case(None, WIDER, 6000, 20, 4096),
    "Transformer, width 512": Case(None, BASE, 6000, 20, 4096),
}


def batch_of(case: Case, rows: int) -> SequenceBatch:
    """Return random sentence pairs."""
    draw = random.Random(1)
    sources, targets = ([[draw.randrange(10, case.vocabulary) for _ in range(case.length - 1)] for _ in range(rows)] for _ in range(2))
    return collate(sources, targets, range(rows))


def step(model: torch.nn.Module, batches: list[SequenceBatch], half: bool, number: int) -> float:
    """Return the seconds of an update's forward and backward passes; `number` of the round changes nothing."""
    begun = time.process_time()
    for batch in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            sums = model(*batch[:5], label_smoothing=0.1)
        sums.loss.backward()
    model.zero_grad()
    return time.process_time() - begun


def measure(name: str, half: bool, rounds: int) -> list[Any]:
    """Return the row of a training."""
    case = CASES[name]
    config = load_config(None if case.config is None else ROOT / "configs" / f"{case.config}.yaml", list(case.settings))
    torch.manual_seed(1)
    model = build(config.model, source_size=case.vocabulary, target_size=case.vocabulary).train()
    rows = case.tokens // case.length
    divided = {count: [batch_of(case, rows // count)] * count for count in COUNTS}
    contenders = {str(count): partial(step, model, batches, half) for count, batches in divided.items()}
    found = interleaved(contenders, rounds, warm_up=1, title=f"{name} {'bf16' if half else 'fp32'}")
    ratios = [spread(ratio(found["1"], found[str(count)]), 2) for count in COUNTS[1:]]
    speed = round(rows * case.length / (sum(found["1"]) / rounds))
    return [name, "bf16" if half else "fp32", case.tokens, speed, *ratios]


def main() -> None:
    """Run."""
    arguments = options(__doc__, out=RESULTS / "micro_batches.json", rounds=5).parse_args()
    torch.set_num_threads(1)
    halves = [False, True] if fastest_precision(torch.device("cpu")) == "bf16" else [False]
    rows = [measure(name, half, arguments.rounds) for name in CASES for half in halves]
    columns = ["model", "precision", "batch, tokens", "1 micro-batch, tokens/s", *(f"{count}: times that" for count in COUNTS[1:])]
    note = (
        f"`python benchmarks/micro_batches.py --rounds {arguments.rounds}`. Time of the processor, one thread; medians of the ratios of "
        f"interleaved rounds, with the lowest and the highest. {machine(1)}"
    )
    write(arguments.out, columns, rows, note)


if __name__ == "__main__":
    main()
