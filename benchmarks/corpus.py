"""Measure what a large parallel text costs before the first update: seconds and memory, at the first start and at the second.

    python benchmarks/corpus.py --folder /scratch/corpus --out docs/results/corpus.json
    python benchmarks/corpus.py --folder /scratch/corpus --pairs 20000 200000 --out small.json

Generates up to 2,000,000 pairs (more are shards that hold the same text again), trains the default model on them for a few updates,
stops it as Ctrl-C would, and starts it again. Memory is the peak of all its processes together (proportional set size), with mapped
files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import MEBIBYTE, machine, options, read, tree_memory, write

SHARD = 2_000_000
UPDATES = 10
WORDS = 150_000
SYLLABLES = {
    "en": ([*"bcdfghlmnprstw", "st", "tr", "ch", "pl", "th", ""], [*"aeiou", "ea", "oo"], ["", "", "n", "r", "s", "t", "ng", "ck"]),
    "de": ([*"bdfghklmnrswz", "sch", "st", "pf", "br", ""], [*"aeiouäöü", "ei", "ie"], ["", "n", "r", "s", "t", "ch", "lf", "nd"]),
}


def lexicon(side: str) -> list[str]:
    """Return the words of a language by falling frequency, all different; the frequent ones are short."""
    generator = np.random.default_rng([7, len(side), ord(side[0])])
    heads, cores, tails = SYLLABLES[side]
    words: dict[str, None] = {}
    while len(words) < WORDS:
        count = 1 + (len(words) > 150) + (len(words) > 20_000)
        drawn = generator.integers(0, [len(heads), len(cores), len(tails)], (count, 3))
        words.setdefault("".join(heads[a] + cores[b] + tails[c] for a, b, c in drawn))
    return list(words)


def sentences(pairs: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield pairs of generated sentences: 3 to 30 words, by Zipf's law; a target is its source, moved about a little."""
    source, target = (lexicon(side) for side in SYLLABLES)
    chance = 1.0 / (np.arange(WORDS) + 6.0) ** 1.2
    bounds = np.cumsum(chance / chance.sum())
    for start in range(0, pairs, 50_000):
        generator = np.random.default_rng([seed, start])
        count = min(50_000, pairs - start)
        lengths = np.clip(generator.lognormal(2.4, 0.36, count).round(), 3, 30).astype(int)
        drawn = np.searchsorted(bounds, generator.random(int(lengths.sum()))).clip(max=WORDS - 1)
        # Each word may come up to two places later in the target, and one in ten is left out there.
        moved = np.repeat(np.cumsum(lengths) - lengths, lengths) * 1.0
        places = np.arange(len(drawn)) + generator.integers(0, 3, len(drawn)) * (generator.random(len(drawn)) < 0.3)
        order = np.lexsort((places, moved))
        kept = generator.random(len(drawn)) < 0.9
        ends = np.cumsum(lengths).tolist()
        one, two = drawn.tolist(), drawn[order].tolist()
        flags = kept.tolist()
        begin = 0
        for end in ends:
            yield (
                " ".join([source[word] for word in one[begin:end]]).capitalize() + " .",
                " ".join([target[word] for word, keep in zip(two[begin:end], flags[begin:end], strict=True) if keep]).capitalize() + " .",
            )
            begin = end


def write_text(folder: Path, pairs: int) -> tuple[str, str]:
    """Write the text, unless it is there; return the names of both sides' files, as patterns."""
    shards = -(-pairs // SHARD)
    if pairs % SHARD and shards > 1:
        sys.exit(f"corpus: --pairs {pairs}, expected a multiple of {SHARD}, or less than that")
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{min(pairs, SHARD)}.{side}" for side in SYLLABLES]
    if not all(path.exists() for path in paths):
        with open(paths[0], "w", encoding="utf-8") as one, open(paths[1], "w", encoding="utf-8") as two:
            for source, target in sentences(min(pairs, SHARD), seed=1):
                one.write(source + "\n")
                two.write(target + "\n")
    if shards == 1:
        return str(paths[0]), str(paths[1])
    for path in paths:
        for number in range(shards):
            link = folder / f"{pairs}-{number:02d}{path.suffix}"
            link.unlink(missing_ok=True)
            link.hardlink_to(path)
    return f"{folder}/{pairs}-*{paths[0].suffix}", f"{folder}/{pairs}-*{paths[1].suffix}"


def start(run: Path, words: list[str]) -> tuple[float, float, float]:
    """Train, or resume, for `UPDATES` updates; return the seconds until the first one is done, its own, and the peak memory in MB."""
    words = ["train", *words, "--out", str(run), "training.log_every=1"]
    print("$ regard", *words, flush=True)
    before, first = len(times(run)), 0.0
    begun = time.monotonic()
    # With bytecode, as every installation has it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen([sys.executable, "-m", "regard", *words], env=environment) as process:
        most = 0.0
        while process.poll() is None:
            time.sleep(0.1)
            done = len(times(run)) - before
            first = first or (time.monotonic() - begun if done else 0.0)
            most = max(most, tree_memory(process.pid) / MEBIBYTE)
            if done >= UPDATES:
                process.send_signal(signal.SIGINT)
                break
    if process.returncode != 128 + signal.SIGINT:
        sys.exit(f"corpus: regard train left with {process.returncode}")
    taken = times(run)
    return first, taken[before] - (taken[before - 1] if before else 0.0), most


def times(run: Path) -> list[float]:
    """Return after how many seconds of training each update in a run's log was done."""
    log = run / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [json.loads(line)["seconds"] for line in lines if line.startswith('{"event": "train"') and line.endswith("}")]


def measure(run: Path, files: Sequence[str], words: list[str]) -> dict[str, Any]:
    """Train on files, stop and go on; return what is told of it, by name."""
    size = sum(path.stat().st_size for pattern in files for path in Path(pattern).parent.glob(Path(pattern).name))
    shutil.rmtree(run, ignore_errors=True)
    first, update, most = start(run, words)
    again, update_again, most_again = start(run, words)
    tokens = sum(path.stat().st_size for path in (run / "tokens").iterdir())
    return {
        "text, MB": round(size / 1e6),
        "encoded, on disk, MB": round(tokens / 1e6),
        "first start: seconds to the first update": round(first, 1),
        "first start: of these, the update": round(update, 1),
        "first start: peak memory, MB": round(most),
        "restart: seconds to the next update": round(again, 1),
        "restart: of these, the update": round(update_again, 1),
        "restart: peak memory, MB": round(most_again),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for the text and the runs")
    parser.add_argument("--pairs", type=int, nargs="+", default=[200_000, 2_000_000, 20_000_000], help="of others the results stay")
    parser.add_argument("settings", nargs="*", default=["recipe=none"], help="of the training")
    arguments = parser.parse_args()
    table = read(arguments.out)
    columns: dict[str, Any] = {
        name: {row[0]: row[place] for row in table["rows"]} for place, name in enumerate(table.get("columns", [])) if place
    }
    note = f"`python benchmarks/corpus.py`: `regard train translation` with {' '.join(arguments.settings)}. {machine(os.cpu_count())}."
    for pairs in arguments.pairs:
        files = write_text(arguments.folder, pairs)
        words = ["translation", "--source", files[0], "--target", files[1], *arguments.settings]
        columns[f"{pairs:,}"] = measure(arguments.folder / f"run-{pairs}", files, words)
        names = sorted(columns, key=lambda name: int(name.replace(",", "")))
        rows = [[name, *(columns[column].get(name) for column in names)] for name in columns[f"{pairs:,}"]]
        write(arguments.out, ["pairs", *names], rows, note)


if __name__ == "__main__":
    main()
