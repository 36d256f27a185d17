"""A training step of a Transformer with standard attention, with areas, and with area features (Eq. 9).

    python benchmarks/area_step.py --out docs/results/area_step.json

Transformer Small (Li et al. 2018, section 4.1.1: 2 layers, 256, 1024, 4 heads) over a vocabulary of 8,000, areas of up to 5 tokens in both
layers, in encoder self-, decoder self- and encoder-decoder attention. A step is forward, backward and optimizer on a batch of at most 4,096
padded tokens, sentences of 13 to 30. All models see the same batches, in one process; they take turns (A B C A B C
...), a round is one step on each batch. Medians of the rounds and of the ratios round by round; the first model stands against itself
once more, which shows what a difference must exceed. Ordinary attention is computed by the native library, too, as areas of one; a
third row has PyTorch's own kernel in its place. The paper's ratios are for Base on eight P100: 0.4, 0.5 and 0.8 seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from harness import interleaved, machine, median, options, ratio, seconds, write

from regard import ops
from regard.config import AreaConfig, TrainingConfig, TransformerConfig
from regard.data.batching import SequenceBatch, collate, plan_batches
from regard.models import build
from regard.training.optimizer import build_optimizer

WARM_UP, BATCHES, VOCABULARY = 2, 2, 8000
SIZES: dict[str, Any] = {"embed_dim": 256, "ff_dim": 1024, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
PYTORCHS = "standard attention, PyTorch's kernel"
MODELS = {
    "standard attention": None,
    "standard attention, repeated": None,
    PYTORCHS: None,
    "areas, Eq. 3 and 4": AreaConfig(max_area=5, layers=2),
    "areas, Eq. 9": AreaConfig(max_area=5, layers=2, key_mode="features"),
}
PAPER = {"standard attention": 1.0, "standard attention, repeated": None, PYTORCHS: None, "areas, Eq. 3 and 4": 1.25, "areas, Eq. 9": 2.0}


def batches(tokens: int, device: torch.device) -> list[SequenceBatch]:
    """Return the first few batches of made-up sentences, lengths evenly spread over 13 to 30, sides of nearly the same length."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(13, 31, (4000,), generator=generator)
    others = (lengths + torch.randint(-2, 3, lengths.shape, generator=generator)).clamp(13, 30)
    sides = [[torch.randint(4, VOCABULARY, (n,), generator=generator).tolist() for n in side.tolist()] for side in (lengths, others)]
    plan = plan_batches([len(ids) for ids in sides[0]], [len(ids) for ids in sides[1]], batch_tokens=tokens, seed=1, epoch=0)
    return [collate(sides[0], sides[1], planned.indices).to(device) for planned in plan[:BATCHES]]


def make(area: AreaConfig | None, given: list[SequenceBatch], device: torch.device, half: bool) -> Callable[[], None]:
    """Return a round of a model with these areas: one training step on each batch."""
    torch.manual_seed(1)
    model = build(TransformerConfig(**SIZES, area=area), source_size=VOCABULARY, target_size=VOCABULARY).to(device).train()
    optimizer = build_optimizer(model, TrainingConfig(learning_rate=1e-4))

    def step() -> None:
        for batch in given:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                sums = model(*batch[:5], label_smoothing=0.1)
            (sums.loss / sums.tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return step


def measure(tokens: int, rounds: int, device: torch.device, half: bool) -> dict[str, list[float]]:
    """Return the seconds of a step in each round, by model."""
    given = batches(tokens, device)

    def contender(name: str) -> Callable[[int], float]:
        step = make(MODELS[name], given, device, half)

        def once() -> None:
            with mock.patch.object(ops, "native_takes_items", return_value=False) if name == PYTORCHS else nullcontext():
                step()
            if device.type == "cuda":
                torch.cuda.synchronize()

        return lambda _: round(seconds(once) / BATCHES, 6)

    return interleaved({name: contender(name) for name in MODELS}, rounds, warm_up=WARM_UP, title="seconds per step")


def main() -> None:
    parser = options(__doc__, rounds=9, tokens=4096)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true", help="under bfloat16 autocast")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    load = os.getloadavg()[0]
    times = measure(arguments.tokens, arguments.rounds, device, arguments.bf16)
    first = times["standard attention"]
    rows = [[name, median(values, 3), *ratio(values, first), PAPER[name]] for name, values in times.items()]
    for row in rows:
        print(*row, sep="\t")
    command = (
        f"python benchmarks/area_step.py{'' if device.type == 'cpu' else f' --device {device.type}'}{' --bf16' if arguments.bf16 else ''}"
    )
    where = machine(device=device.type)
    note = (
        f"`{command}`: one training step of Transformer Small (2 + 2 layers of 256, areas in all of them), batches of "
        f"{arguments.tokens:,} padded tokens; medians of {arguments.rounds} interleaved rounds, ratios round by round to the first row, "
        f"whose repetition shows what a difference must exceed; {where}. Published: Base (6 + 6 layers of 512, areas in the first two "
        "layers) on eight P100."
    )
    columns = ["model", "seconds per step", "ratio", "min", "max", "published ratio"]
    write(arguments.out, columns, rows, note, machine=where, load_before=load, seconds=times)


if __name__ == "__main__":
    main()
