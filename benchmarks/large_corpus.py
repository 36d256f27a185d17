"""Train on more text than fits: shards, tokens made as training goes on, memory, and what an interruption costs.

    python benchmarks/large_corpus.py --folder /scratch/shards --out docs/results/large_corpus.json
    python benchmarks/large_corpus.py --folder /scratch/shards --pairs 100000 200000 --out small.json

Writes a generated parallel text (each target is its source, word by word in another alphabet and backwards) in shards, trains a small
model on it for `--updates`, kills the training (SIGKILL) in the middle of the epoch, resumes it, and compares the weights with those of a
training that nothing stopped. Memory is the most that the process and its helpers held at once (shared pages count for each of them).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import regard

SHARDS = 20
WORDS = 4000
SETTINGS = [
    "data.sharded=true",
    "vocabulary.size=4000",
    "data.vocabulary_pairs=200000",
    *("model.type=transformer", "model.embed_dim=64", "model.ff_dim=128", "model.num_heads=2"),
    *("model.encoder_layers=1", "model.decoder_layers=1"),
    *("training.batch_tokens=4096", "training.evaluate_every=1000000", "training.log_every=10"),
]


def write_text(folder: Path, pairs: int) -> float:
    """Write the shards, unless they are there; return their size in bytes."""
    files = [folder / f"train-{number:02d}.{side}" for number in range(SHARDS) for side in ("en", "xx")]
    valid = [folder / "valid.en", folder / "valid.xx"]
    if not all(path.exists() for path in (*files, *valid)):
        folder.mkdir(parents=True, exist_ok=True)
        generator = random.Random(1)
        words = sorted({"".join(generator.choices("abcdefghijklmnop", k=generator.randint(2, 8))) for _ in range(WORDS)})
        other = str.maketrans("abcdefghijklmnop", "qrstuvwxyzäöüßéè")
        weights = [1 / (rank + 3) for rank in range(len(words))]
        sizes = [*(pairs // SHARDS + (number < pairs % SHARDS) for number in range(SHARDS)), 200]
        for source, target, size in zip((*files[::2], valid[0]), (*files[1::2], valid[1]), sizes, strict=True):
            with open(source, "w", encoding="utf-8") as one, open(target, "w", encoding="utf-8") as two:
                for _ in range(size):
                    chosen = generator.choices(words, weights, k=generator.randint(3, 17))
                    one.write(" ".join(chosen) + "\n")
                    two.write(" ".join(reversed(chosen)).translate(other) + "\n")
    return sum(path.stat().st_size for path in files)


def memory(process: int) -> float:
    """Return the megabytes that a process and all its children hold now."""
    total, waiting = 0.0, [process]
    while waiting:
        number = waiting.pop()
        try:
            status = Path(f"/proc/{number}/status").read_text(encoding="utf-8")
            waiting += [int(word) for word in Path(f"/proc/{number}/task/{number}/children").read_text(encoding="utf-8").split()]
        except OSError:
            continue
        if found := re.search(r"VmRSS:\s+(\d+)", status):
            total += int(found[1]) / 1024
    return total


def train(folder: Path, run: Path, updates: int, kill_after: int | None = None) -> tuple[float, float]:
    """Train, or resume, and kill it behind an update if told so; return seconds until the log begins, and the most memory in megabytes."""
    words = ["train", "translation", "--source", f"{folder}/train-*.en", "--target", f"{folder}/train-*.xx", "--out", str(run)]
    words += ["--valid-source", f"{folder}/valid.en", "--valid-target", f"{folder}/valid.xx", *SETTINGS, f"training.max_updates={updates}"]
    words += [f"training.save_every={updates // 4}"]
    print("$ regard", *words, flush=True)
    begun, first, most = time.monotonic(), 0.0, 0.0
    log = run / "log.jsonl"
    awaited = "resume" if log.exists() else "train"
    with subprocess.Popen([sys.executable, "-m", "regard", *words]) as process:
        while process.poll() is None:
            most = max(most, memory(process.pid))
            seen = events(run)
            if not first and any(event["event"] == awaited for event in seen):
                first = time.monotonic() - begun
            if kill_after is not None and any(event["event"] == "train" and event["step"] >= kill_after for event in seen):
                process.send_signal(signal.SIGKILL)
            time.sleep(0.2)
    if process.returncode != (0 if kill_after is None else -signal.SIGKILL):
        sys.exit(f"large_corpus: regard train left with {process.returncode}")
    return first, most


def events(run: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a run's log."""
    log = run / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def digest(run: Path) -> str:
    """Return the hash of a finished run's last weights."""
    return next(event["weights_sha256"] for event in events(run) if event["event"] == "done")


def measure(folder: Path, pairs: int, updates: int) -> dict[str, object]:
    """Write a text, train on it, kill and resume; return what is told of it, by name."""
    size = write_text(folder, pairs)
    whole, stopped = (folder / f"{kind}-{os.getpid()}" for kind in ("whole", "stopped"))
    first, most = train(folder, whole, updates)
    train(folder, stopped, updates, kill_after=updates * 5 // 8)
    again, _ = train(folder, stopped, updates)
    resumed = next((event["step"] for event in events(stopped) if event["event"] == "resume"), updates)
    if not 0 < resumed < updates:
        sys.exit(f"large_corpus: the training was resumed at update {resumed} of {updates}: it was not killed in the middle")
    speed = sorted(event["tokens_per_second"] for event in events(whole) if event["event"] == "train")
    return {
        "text, MB": round(size / 2**20),
        "until the first line of the log (scan, vocabulary, tokens counted), seconds": round(first),
        "the same for a resumed training (scan), seconds": round(again),
        "most memory, training and its helper together, MB": round(most),
        "target tokens a second": round(speed[len(speed) // 2]),
        "resumed after the kill at update": resumed,
        "weights after a kill and a resume in mid-epoch": "the same" if digest(whole) == digest(stopped) else "other",
    }


def describe(pairs: Sequence[int], updates: int) -> str:
    """Say what was measured, where."""
    command = f"python benchmarks/large_corpus.py --pairs {' '.join(map(str, pairs))} --updates {updates}"
    return (
        f"`{command}`: {SHARDS} shards a side, blocks of 65,536 pairs, a helper process, a small Transformer. {os.cpu_count()} cores, "
        f"OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}, "
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, regard {regard.__version__}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the text and the runs")
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    columns = [measure(arguments.folder / str(pairs), pairs, arguments.updates) for pairs in arguments.pairs]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    note = describe(arguments.pairs, arguments.updates)
    text = json.dumps(
        {"columns": ["pairs", *(f"{pairs:,}" for pairs in arguments.pairs)], "rows": rows, "note": note}, indent=1, ensure_ascii=False
    )
    arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
