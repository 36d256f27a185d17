"""Show that a study and a batch come out the same on this machine's processes and on Ray, with workers killed at random on the way.

    python benchmarks/cluster.py --folder /scratch/cluster --out docs/results/cluster.json

Needs the extra `ray`. A study of eight short runs and a batch of forty shards are done by processes of this machine, then on a Ray
cluster that is started here with as many places: undisturbed, and with workers killed by SIGKILL. The weights of the runs and the text of
the shards must be the same byte for byte. Every worker has one thread.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from harness import machine, options, read, write

RUNS, SHARDS, LINES = 8, 40, 10_000
MODEL = {"embed_dim": 32, "encoder_dim": 32, "decoder_dim": 64, "readout_dim": 32}
STUDY, BATCH = f"study of {RUNS} runs", f"batch of {SHARDS} shards"
PORT = 6399
REGARD = [sys.executable, "-m", "regard"]


def prepare(folder: Path, updates: int) -> None:
    """Write the data, the study and the shards, and train the model of the batch."""
    words = ["generate", "reverse", "--out", str(folder / "data"), "--count", "4000", "--test", "100", "--seed", "1"]
    subprocess.run([*REGARD, *words], check=True, stdout=subprocess.DEVNULL)
    files = {side: str(folder / "data" / f"train.{side}") for side in ("source", "target")}
    settings = {"vocabulary": {"kind": "word"}, "model": MODEL}
    settings["training"] = {"batch_tokens": 600, "evaluate_every": updates // 4, "save_every": updates // 8, "workers": 1}
    variants = {"none": {"attention": None}, "additive": {}, "general": {"attention": {"score": "general"}}}
    variants["dot"] = {"attention": {"score": "dot", "query_state": "current"}}
    study = {
        "name": "cluster",
        "settings": settings,
        "budget": {"updates": updates},
        "seeds": [1, 2],
        "data": {"words": {"settings": {"data": files}, "test": {side: str(folder / "data" / f"test.{side}") for side in files}}},
        "variants": {name: {"settings": {"model": changes}} for name, changes in variants.items()},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    train = ["train", "translation", "--source", files["source"], "--target", files["target"], "--out", str(folder / "model")]
    sizes = [f"model.{name}={size}" for name, size in MODEL.items()]
    subprocess.run([*REGARD, *train, "vocabulary.kind=word", *sizes, "training.max_updates=200", "--quiet"], check=True)
    (folder / "shards").mkdir()
    lines = (folder / "data" / "train.source").read_text(encoding="utf-8").splitlines()
    for number in range(SHARDS):
        chosen = [lines[(number * LINES + place) % len(lines)] for place in range(LINES)]
        (folder / "shards" / f"{number:02d}.source").write_text("".join(line + "\n" for line in chosen), encoding="utf-8")


@contextmanager
def cluster(places: int) -> Iterator[str]:
    """Start Ray here, with so many places; give its address."""
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    words = ["start", "--head", "--port", str(PORT), "--num-cpus", str(places), "--include-dashboard=false", "--disable-usage-stats"]
    subprocess.run([*ray, *words], check=True, stdout=subprocess.DEVNULL, env=environment)
    try:
        yield f"127.0.0.1:{PORT}"
    finally:
        subprocess.run([*ray, "stop", "--force"], check=True, stdout=subprocess.DEVNULL, env=environment)


def workers() -> list[int]:
    """Return the processes of Ray's workers and those that they started: whatever does the work, or keeps who does."""
    found: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            found[int(path.name)] = parent, (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
    kept = {pid for pid, (_, words) in found.items() if words.startswith("ray::RemoteWorker")}
    while more := {pid for pid, (parent, _) in found.items() if parent in kept} - kept:
        kept |= more
    return sorted(kept)


def run(words: list[str], *, kills: int = 0, every: float = 0.0) -> tuple[float, int]:
    """Run a command, and kill a worker now and then; return the seconds, and how many were killed."""
    chance, killed, begun = random.Random(7), 0, time.monotonic()
    with subprocess.Popen([*REGARD, *words], stdout=subprocess.DEVNULL) as process:
        due = begun + every
        while process.poll() is None:
            time.sleep(0.02)
            if killed < kills and time.monotonic() > due and (there := workers()):
                os.kill(chance.choice(there), signal.SIGKILL)
                killed, due = killed + 1, time.monotonic() + every * chance.uniform(0.5, 1.5)
    if process.returncode:
        sys.exit(f"cluster: {' '.join(words)}: left with {process.returncode}")
    return time.monotonic() - begun, killed


def outputs(folder: Path, pattern: str) -> dict[str, bytes]:
    """Return what was made, by its place in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob(pattern))}


def main() -> None:
    parser = options(__doc__, updates=400, kills=10, pause=8)
    parser.add_argument("--folder", type=Path, required=True, help="for everything that is made")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--work", nargs="+", choices=[STUDY, BATCH], default=[STUDY, BATCH], help="rows of others stay")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    folder: Path = arguments.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    prepare(folder, arguments.updates)
    study = ["compare", str(folder / "study.yaml"), "--cpus", "1"]
    model = folder / "model"
    batch = ["translate", str(model), "--input", f"{folder}/shards/*", "--cpus", "1"]
    known = {
        STUDY: (study, "--out", "study", "runs/*/model/model.safetensors", RUNS),
        BATCH: (batch, "--output", "batch", "*.source", SHARDS),
    }
    work = {name: known[name] for name in arguments.work}
    note = f"`python benchmarks/cluster.py`: one thread per worker; studies of {arguments.updates} updates. {machine(1, 'ray')}."
    columns = ["work", "workers", "by", "seconds", "over processes", "workers killed", "same bytes"]
    chosen = [(name, count) for name in arguments.work for count in arguments.workers]
    rows: list[list[Any]] = [row for row in read(arguments.out).get("rows", []) if (row[0], row[1]) not in chosen]
    expected: dict[str, dict[str, bytes]] = {}

    def add(name: str, count: int, by: str, taken: float, killed: int, found: dict[str, bytes]) -> None:
        # Written at once: all of it takes a quarter of an hour.
        own = next((row[3] for row in rows if row[:3] == [name, count, "processes"]), taken)
        same = found == expected.setdefault(name, found)
        rows.append([name, count, by, round(taken, 1), round(taken / own, 2), killed, "yes" if same else "NO"])
        print(rows[-1], flush=True)
        rows.sort(key=lambda row: (row[0], row[1], row[2] != "processes", row[5]))
        write(arguments.out, columns, rows, note)

    for count in arguments.workers:
        lasted: dict[str, float] = {}
        for name, (words, option, place, pattern, pieces) in work.items():
            own = folder / f"{place}-{count}"
            lasted[name], _ = run([*words, option, str(own), "--workers", str(count)])
            found = outputs(own, pattern)
            assert len(found) == pieces, sorted(found)
            add(name, count, "processes", lasted[name], 0, found)
        with cluster(count) as address:
            for name, (words, option, place, pattern, _) in work.items():
                for kills in (0, arguments.kills):
                    there = folder / f"{place}-{count}-ray-{kills}"
                    words_there = [*words, option, str(there), "--on", address, "--workers", str(count)]
                    taken, killed = run(words_there, kills=kills, every=max(lasted[name] / arguments.kills, arguments.pause))
                    add(name, count, "Ray", taken, killed, outputs(there, pattern))


if __name__ == "__main__":
    main()
