"""What `regard train` does with two threads where other programs want the processors: how long a waiting thread turns before it sleeps.

    python benchmarks/waiting.py

libgomp's threads turn for milliseconds at every barrier, and take the processor from the very thread they wait for, if another program has
the rest. `regard` therefore sets GOMP_SPINCOUNT where nobody else has set it. This trains small models with libgomp's own count, with some
others and with one thread: on an idle machine, and beside busy programs. Each round runs every setting once, in turns; the figure is the
median over the rounds of a training's median target tokens a second. Writes waiting.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from multi30k import ROOT, write

import regard

# What is asked of libgomp; "infinity" is more turns than any barrier takes.
SETTINGS: dict[str, dict[str, str]] = {
    "libgomp's own, 2 threads": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "300000"},
    "10,000 turns, 2 threads": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "10000"},
    "1,000 turns, 2 threads": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "1000"},
    "no turns, 2 threads": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "0"},
    "1 thread": {"OMP_NUM_THREADS": "1"},
}
BATCH = ["training.batch_tokens=3000", "training.evaluate_every=100000", "training.log_every=5"]
SMALL = ["model.type=transformer", "model.embed_dim=64", "model.ff_dim=128", "model.num_heads=2"]
SMALL += ["model.encoder_layers=1", "model.decoder_layers=1"]
LARGER = ["model.type=transformer", "model.embed_dim=256", "model.ff_dim=1024", "model.num_heads=4"]
LARGER += ["model.encoder_layers=2", "model.decoder_layers=2"]
RECURRENT = ["model.embed_dim=128", "model.encoder_dim=128", "model.decoder_dim=256", "model.readout_dim=128"]
MODELS: dict[str, tuple[int, list[str]]] = {
    "Transformer, 64 wide": (120, SMALL),
    "Transformer, 256 wide": (20, LARGER),
    "recurrent, additive": (20, RECURRENT),
}


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Keep so many programs busy, one thread each."""
    with ExitStack() as stack:
        others = [stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"])) for _ in range(programs)]
        try:
            yield
        finally:
            for other in others:
                other.kill()


def speed(data: Path, out: Path, model: str, setting: str) -> float:
    """Train; return the median target tokens a second, without the first update's."""
    updates, words = MODELS[model]
    command = [sys.executable, "-m", "regard", "train", "translation", "--source", str(data / "train.source")]
    command += ["--target", str(data / "train.target"), "--out", str(out), "data.held_out=20", "vocabulary.kind=word"]
    command += [*BATCH, f"training.max_updates={updates}", *words]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    subprocess.run(command, env={**inherited, **SETTINGS[setting]}, check=True, capture_output=True)
    events = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return statistics.median(event["tokens_per_second"] for event in [event for event in events if event["event"] == "train"][1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="how many other programs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "waiting.json")
    arguments = parser.parse_args()
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "reverse"
        subprocess.run([sys.executable, "-m", "regard", "generate", "reverse", "--out", str(data)], check=True, capture_output=True)
        for others in arguments.busy:
            for model in MODELS:
                found: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
                with busy(others):
                    for number in range(arguments.rounds):
                        for place, setting in enumerate(SETTINGS):
                            found[setting].append(speed(data, Path(scratch) / f"{others}-{model}-{number}-{place}", model, setting))
                rows.append([others, model, *(round(statistics.median(seen)) for seen in found.values())])
                print(rows[-1], flush=True)
    note = (
        f"`python benchmarks/waiting.py`: target tokens a second, medians of {arguments.rounds} rounds in turns; {os.cpu_count()} cores, "
        f"{platform.machine()}, torch {torch.__version__}, regard {regard.__version__}."
    )
    write(arguments.out, ["other busy programs", "model", *SETTINGS], rows, note)


if __name__ == "__main__":
    main()
