"""Time and memory of a training step over the length of the sentences: ordinary attention, areas, learned areas, two crossed branches.

    python benchmarks/length.py --out docs/results/length.json
    python benchmarks/length.py --draw docs/results/length.json     docs/plots/length.svg

Every batch holds the same number of tokens on each side, in sentences of one length, so that all but attention costs the same at every
length. A step is forward, backward and optimizer in float32; the models take turns, medians of the rounds. Memory: the peak of a first
step over what the process held before, model and optimizer excluded, each in a process of its own.
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
from typing import Any

import torch

from regard.config import AreaConfig, CrossedConfig, TrainingConfig, TransformerConfig
from regard.data.batching import collate
from regard.models import build
from regard.training.optimizer import build_optimizer

ROOT = Path(__file__).resolve().parents[1]
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


def worker(name: str, length: int) -> None:
    """Print the peak of the first step in MiB, then, for every line read, the seconds of one."""
    step = prepare(name, length)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    step()
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024
    print((peak - before) / 2**20, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        print(time.perf_counter() - start, flush=True)


def measure(length: int, threads: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Return the seconds of each round and the MiB of every model at one length."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    workers = {}
    memory = {}
    for name in MODELS:
        command = [sys.executable, __file__, "--worker", name, "--length", str(length)]
        workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        memory[name] = float(read(workers[name]))
    times: dict[str, list[float]] = {name: [] for name in MODELS}
    for number in range(WARM_UP + rounds):
        for name, process in workers.items():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            taken = float(read(process))
            if number >= WARM_UP:
                times[name].append(taken)
    for process in workers.values():
        process.terminate()
    return {name: {"seconds": times[name], "mib": memory[name]} for name in MODELS}


def read(process: subprocess.Popen[str]) -> str:
    """Read a line of a worker."""
    assert process.stdout is not None
    return process.stdout.readline()


def table(results: dict[int, dict[str, dict[str, Any]]], note: str) -> dict[str, Any]:
    """Make the table: seconds of a step and peak MiB, by length and model."""
    columns = ["length", *(f"{name}, s" for name in MODELS), *(f"{name}, MiB" for name in MODELS)]
    rows = []
    for length, found in results.items():
        seconds = [round(statistics.median(found[name]["seconds"]), 2) for name in MODELS]
        rows.append([length, *seconds, *(round(found[name]["mib"]) for name in MODELS)])
    return {"columns": columns, "rows": rows, "note": note, "results": {str(length): found for length, found in results.items()}}


def draw(path: Path) -> None:
    """Draw what was measured, time on the left and memory on the right."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    lengths = list(map(int, results))
    plt.rcParams.update({"svg.hashsalt": "regard", "svg.fonttype": "none", "font.size": 9})
    figure, panels = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    styles = (("o", "#14507a"), ("s", "#b5521b"), ("^", "#7a7a7a"), ("D", "#2c7a3f"))
    for axes, label in zip(panels, ("seconds a step", "MiB at the peak"), strict=True):
        for name, (marker, color) in zip(MODELS, styles, strict=True):
            found = [results[str(length)][name] for length in lengths]
            values = [statistics.median(each["seconds"]) if label.startswith("seconds") else each["mib"] for each in found]
            axes.plot(lengths, values, label=name, marker=marker, color=color, linewidth=1.2, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, labels=list(map(str, lengths)), rotation=45)
        axes.set_xlabel(f"tokens of a sentence, {TOKENS:,} in a batch")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.savefig(ROOT / "docs" / "plots" / "length.svg", metadata={"Date": None, "Creator": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the figures go")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw the figures of this file, measure nothing")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker, arguments.length)
    if arguments.draw:
        return draw(arguments.draw)
    results = {}
    for length in LENGTHS:
        results[length] = measure(length, arguments.threads, arguments.rounds)
        print(
            length, {name: [round(statistics.median(found["seconds"]), 3), round(found["mib"])] for name, found in results[length].items()}
        )
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.processor() or "unknown")
    command = "python benchmarks/length.py" + ("" if arguments.rounds == ROUNDS else f" --rounds {arguments.rounds}")
    note = f"`{command}`, medians of {arguments.rounds} interleaved rounds, float32; {cpu}, {arguments.threads} threads, "
    note += f"torch {torch.__version__}."
    if arguments.out:
        arguments.out.write_text(json.dumps(table(results, note), indent=1) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
