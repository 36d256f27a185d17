"""Time and memory of a training step over the length of the sentences: ordinary attention, areas, learned areas, two crossed branches.

    python benchmarks/length.py --out docs/results/length.json

Every batch holds the same number of tokens on each side, in sentences of one length, so that all but attention costs the same at every
length. A step is forward, backward and optimizer in float32; the models take turns, medians of the rounds. Memory: the peak of a first
step over what the process held before, model and optimizer excluded, each in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Worker, interleaved, machine, median, options, serve, write

from regard.config import AreaConfig, CrossedConfig, TrainingConfig, TransformerConfig
from regard.data.batching import collate
from regard.models import build
from regard.training.optimizer import build_optimizer

LENGTHS, TOKENS, VOCABULARY = (32, 64, 128, 256, 512, 1024, 2048), 4096, 8000
ROUNDS, WARM_UP = 5, 1
SIZES: dict[str, Any] = {"embed_dim": 256, "ff_dim": 1024, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
MODELS = {
    "standard": TransformerConfig(**SIZES),
    "areas, Eq. 3 and 4": TransformerConfig(**SIZES, area=AreaConfig(max_area=5)),
    "areas, Eq. 9": TransformerConfig(**SIZES, area=AreaConfig(max_area=5, key_mode="features")),
    "crossed": CrossedConfig(**SIZES),
}


def prepare(name: str, length: int) -> Callable[[], None]:
    """Return one training step of a model on sentences of one length, the end of sentence included."""
    torch.manual_seed(1)
    model = build(MODELS[name], source_size=VOCABULARY, target_size=VOCABULARY).train()
    optimizer = build_optimizer(model, TrainingConfig(learning_rate=1e-4))
    rows = torch.randint(4, VOCABULARY, (TOKENS // length, length - 1)).tolist()
    batch = collate(rows, rows, range(len(rows)))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        sums = model(*batch[:5], label_smoothing=0.1)
        (sums.loss / sums.tokens).backward()
        optimizer.step()

    return step


def measure(length: int, threads: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Return the seconds of each round and the MiB of every model at one length."""
    workers = {name: Worker(name, threads) for name in MODELS}
    for worker in workers.values():
        worker.ask("prepare", length)
    memory = {name: worker.ask("peak") for name, worker in workers.items()}
    times = interleaved({name: lambda _, each=each: each.ask("go") for name, each in workers.items()}, rounds, warm_up=WARM_UP)
    for worker in workers.values():
        worker.close()
    return {name: {"seconds": times[name], "mib": memory[name]} for name in MODELS}


def row(length: str, found: dict[str, dict[str, Any]]) -> list[Any]:
    """Return the row of a length: seconds of a step and peak MiB by model."""
    seconds = [median(found[name]["seconds"], 2) for name in MODELS]
    return [int(length), *seconds, *(round(found[name]["mib"]) for name in MODELS)]


def main() -> None:
    if serve(prepare):
        return
    parser = options(__doc__, rounds=ROUNDS, threads=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    arguments = parser.parse_args()
    command = "python benchmarks/length.py" + ("" if arguments.rounds == ROUNDS else f" --rounds {arguments.rounds}")
    note = f"`{command}`, medians of {arguments.rounds} interleaved rounds, float32; {machine(arguments.threads)}."
    columns = ["length", *(f"{name}, s" for name in MODELS), *(f"{name}, MiB" for name in MODELS)]
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for length in arguments.lengths:
        results[str(length)] = measure(length, arguments.threads, arguments.rounds)
        rows = [row(name, found) for name, found in results.items()]
        print(*rows[-1], sep="\t", flush=True)
        write(arguments.out, columns, rows, note, results=results)


if __name__ == "__main__":
    main()
