"""How time and memory grow when the work grows tenfold, and tenfold again: one curve for each kind of work.

    python benchmarks/growth.py --folder /scratch/growth --out docs/results/growth.json [--curves NAME ...]

Each point is a process of its own. Time: the median of the rounds. Memory: the peak over what the process held before, or, for whole
commands, all that it held at most. The exponent is that of the last tenfold: log(b / a) / log(y / x) between the last point and the one
nearest to a tenth of it. The pairs of a corpus are measured by corpus.py, which has to run first. Curves that are not named stay.
Quality is the chrF of a small model that learns to turn lines around, and goes into growth_quality.json beside the results.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness import (
    MEBIBYTE,
    RESULTS,
    Worker,
    machine,
    median,
    options,
    read,
    regard,
    serve,
    status,
    training_of,
    tree_memory,
    versions,
    write,
)

from regard import ops
from regard.config import AreaConfig, TrainingConfig, TransformerConfig
from regard.cores import processor
from regard.data.batching import SequenceBatch, collate
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding import DecodingOptions, beam_search, greedy_search
from regard.models import Transformer, build
from regard.training.optimizer import build_optimizer
from regard.viewer.page import save_page
from regard.viewer.record import AttentionRecord

SIZES: dict[str, Any] = {"embed_dim": 128, "ff_dim": 512, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
VOCABULARY, LENGTH = 8000, 23
LEAST = {"seconds": 1e-4, "mb": 1.0}  # smaller figures are noise
COLUMNS = [
    "work",
    *("from", "to"),
    *("time, s", "time: exponent", "time: expected"),
    *("memory, MB", "memory: exponent", "memory: expected"),
    "processor",
]


def model(vocabulary: int = VOCABULARY, area: AreaConfig | None = None) -> Transformer:
    """Return a Transformer with random weights."""
    torch.manual_seed(1)
    return build(TransformerConfig(**SIZES, area=area), source_size=vocabulary, target_size=vocabulary)


def batch(sentences: int, length: int, vocabulary: int = VOCABULARY) -> SequenceBatch:
    """Return sentences of random tokens, the end of sentence included in the length."""
    rows = torch.randint(4, vocabulary, (sentences, length - 1)).tolist()
    return collate(rows, rows, range(len(rows)))


def training(sentences: int, length: int, vocabulary: int = VOCABULARY) -> Callable[[], object]:
    """Return one update: forward, backward, optimizer."""
    trained, given = model(vocabulary).train(), batch(sentences, length, vocabulary)
    optimizer = build_optimizer(trained, TrainingConfig(learning_rate=1e-4))

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        sums = trained(*given[:5], label_smoothing=0.1)
        (sums.loss / sums.tokens).backward()
        optimizer.step()

    return update


def decoding(sentences: int, length: int, beam_size: int = 1) -> Callable[[], object]:
    """Return the decoding of sentences to outputs of their own length."""
    trained, given = model().eval(), batch(sentences, length)
    chosen = DecodingOptions(bos=BOS, eos=EOS, beam_size=beam_size, min_length=length, max_length=length, banned=(PAD, BOS))
    search = greedy_search if beam_size == 1 else beam_search

    def decode() -> None:
        with torch.inference_mode(), ops.packed_weights():
            search(trained.decoding_step, trained.start(given.source, given.source_lengths), batch_size=sentences, options=chosen)

    return decode


def areas(max_area: int) -> Callable[[], object]:
    """Return area attention over 256 positions with 8 heads, forward and backward."""
    query, key, value = (torch.randn(2, 8, 256, 64, requires_grad=True) for _ in range(3))

    def step() -> None:
        context = ops.area_attention(query, key, value, max_area=max_area)
        assert isinstance(context, torch.Tensor)
        context.sum().backward()

    return step


def page(records: int) -> Callable[[], object]:
    """Return the writing of a page of sentences of 23 tokens."""
    words = [f"word{number}" for number in range(LENGTH)]
    weights = torch.softmax(torch.randn(LENGTH, LENGTH), dim=-1)
    found = [AttentionRecord.alignment(words, words, weights, title=str(number)) for number in range(records)]
    return lambda: save_page(found, Path(tempfile.gettempdir()) / "growth.html")


class Curve(NamedTuple):
    """Work that grows.

    Attributes:
        unit: what is counted.
        values: how many of it, rising.
        prepare: makes the work for a count.
        time: the expected exponents of time: a bound, or two where it rises from one to the other.
        memory: those of memory.
    """

    unit: str
    values: tuple[int, ...]
    prepare: Callable[[int], Callable[[], object]]
    time: str
    memory: str


CURVES = {
    "training: sentence length": Curve("tokens, 8 sentences", (10, 30, 100, 300, 1000, 2000), lambda n: training(8, n), "1 to 2", "1 to 2"),
    "decoding: sentence length": Curve("tokens, 8 sentences", (10, 30, 100, 300, 1000, 2000), lambda n: decoding(8, n), "1 to 2", "1 to 2"),
    "training: vocabulary": Curve(
        "tokens", (2000, 10_000, 20_000, 50_000, 100_000), lambda n: training(64, LENGTH, n), "up to 1", "up to 1"
    ),
    "training: batch": Curve("sentences", (1, 4, 16, 64, 256), lambda n: training(n, LENGTH), "up to 1", "up to 1"),
    "decoding: beam": Curve("hypotheses, 8 sentences", (1, 2, 4, 8, 16, 32, 64), lambda n: decoding(8, LENGTH, n), "up to 1", "up to 1"),
    "area attention: max area": Curve("positions", (1, 2, 4, 8, 16, 32), areas, "up to 1", "0"),
    "page: records": Curve("records", (1, 10, 100, 1000), page, "up to 1", "up to 1"),
}
LINES = (1000, 10_000, 100_000, 1_000_000)
WORKERS = (1, 2, 4)
SMALL = ["model.embed_dim=32", "model.encoder_dim=32", "model.decoder_dim=64", "model.readout_dim=32", "vocabulary.kind=word"]
QUALITY_PAIRS, QUALITY_BEAMS = (400, 4000, 40_000), (1, 4, 16, 64)


def generated(folder: Path, pairs: int) -> list[str]:
    """Write lines and the same turned around, unless they are there; return the options that name them."""
    data = folder / ("data" if pairs == 4000 else f"data-{pairs}")
    if not data.exists():
        regard("generate", "reverse", "--out", str(data), "--count", str(pairs), "--test", "1000", "--seed", "1")
    return [word for side in ("source", "target") for word in (f"--{side}", str(data / f"train.{side}"))]


def shared(folder: Path, workers: int) -> tuple[float, float]:
    """Return the seconds of an update and the megabytes of all processes, of a training with so many workers of one thread."""
    run, updates, every = folder / f"workers-{workers}", 20, 5
    shutil.rmtree(run, ignore_errors=True)
    settings = [f"training.workers={workers}", f"training.max_updates={updates}", f"training.log_every={every}"]
    settings += ["training.batch_tokens=2000", "recipe=none"]
    command = [sys.executable, "-m", "regard", "train", "translation", *generated(folder, 4000), "--out", str(run), *settings, "--quiet"]
    most = 0
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        while process.poll() is None:
            time.sleep(0.1)
            most = max(most, tree_memory(process.pid))
    if process.returncode:
        sys.exit(f"growth: regard train left with {process.returncode}")
    taken = [event["seconds"] for event in training_of(run).events if event["event"] == "train"]
    return (taken[-1] - taken[0]) / (updates - every), most / MEBIBYTE


def quality(folder: Path) -> list[list[Any]]:
    """Return the chrF after as many updates on more and more pairs, and of one model with larger and larger beams."""
    rows: list[list[Any]] = []
    generated(folder, 4000)  # its test lines serve all
    test = ["--source", str(folder / "data" / "test.source"), "--target", str(folder / "data" / "test.target")]
    for pairs in QUALITY_PAIRS:
        run = folder / f"quality-{pairs}"
        shutil.rmtree(run, ignore_errors=True)
        regard("train", "translation", *generated(folder, pairs), "--out", str(run), *SMALL, "training.max_updates=600", "--quiet")
        for beam in QUALITY_BEAMS if pairs == QUALITY_PAIRS[-1] else (1,):
            scores = folder / "scores.json"
            regard("evaluate", str(run), *test, "--beam-size", str(beam), "--json", str(scores), "--quiet")
            found = {score["name"]: score["value"] for score in json.loads(scores.read_text(encoding="utf-8"))["scores"]}
            rows.append([f"{pairs:,}", beam, round(found["chrF2"], 1)])
    return rows


def translated(folder: Path, lines: int) -> tuple[float, float]:
    """Return the seconds and the megabytes of `regard translate` for so many lines, with a small model."""
    run, source = folder / "run", folder / "data" / "test.source"
    if not run.exists():
        regard("train", "translation", *generated(folder, 4000), "--out", str(run), *SMALL, "training.max_updates=300", "--quiet")
    text = folder / f"{lines}.source"
    if not text.exists():
        text.write_text(source.read_text(encoding="utf-8") * (lines // 1000), encoding="utf-8")
    command = [sys.executable, "-m", "regard", "translate", str(run), str(text), "--beam-size", "1", "--quiet"]
    begun, most = time.monotonic(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(0.02)
            most = max(most, status(process.pid))
    if process.returncode:
        sys.exit(f"growth: regard translate left with {process.returncode}")
    return time.monotonic() - begun, most / MEBIBYTE


def measured(name: str, rounds: int) -> list[dict[str, float]]:
    """Return the points of a curve."""
    points = []
    for count in CURVES[name].values:
        worker = Worker(name, threads=1)
        worker.ask("prepare", count)
        memory = worker.ask("peak")
        worker.ask("warm")
        points.append({"count": count, "seconds": median([worker.ask("go") for _ in range(rounds)], 5), "mb": round(memory, 1)})
        worker.close()
        print(name, points[-1], flush=True)
    return points


def exponent(points: list[dict[str, float]], what: str) -> float:
    """Return how fast something grew over the last tenfold."""
    last = points[-1]
    first = min(points[:-1], key=lambda point: abs(math.log(10 * point["count"] / last["count"])))
    least = LEAST[what]
    return round(math.log(max(last[what], least) / max(first[what], least)) / math.log(last["count"] / first["count"]), 2)


def row(name: str, points: list[dict[str, float]], unit: str, expected: tuple[str, str]) -> list[Any]:
    """Return a curve's row: its ends, and both exponents beside what was expected."""
    first, last = points[0], points[-1]
    ends = [f"{first['count']:,}", f"{last['count']:,} {unit}"]
    time_, memory = ([f"{first[what]:,g} to {last[what]:,g}", exponent(points, what)] for what in ("seconds", "mb"))
    return [name, *ends, *time_, expected[0], *memory, expected[1]]


def corpus() -> tuple[list[dict[str, float]], str]:
    """Return the points that corpus.py measured, and on which processor."""
    table = read(RESULTS / "corpus.json")
    rows = {each[0]: each[1:] for each in table["rows"]}
    found = zip(
        table["columns"][1:],
        rows["first start: seconds to the first update"],
        rows["first start: peak memory, MB"],
        strict=True,
    )
    points = [{"count": int(pairs.replace(",", "")), "seconds": seconds, "mb": memory} for pairs, seconds, memory in found]
    return points, re.findall(r"\. ([^.]+?), \d+ threads?", table["note"])[0]


def main() -> None:
    if serve(lambda name, count: CURVES[name].prepare(count)):
        return
    parser = options(__doc__, rounds=3)
    parser.add_argument("--folder", type=Path, required=True, help="for a small run and its text")
    names = [*CURVES, "translate: lines", "training: workers", "quality"]
    parser.add_argument("--curves", nargs="+", choices=names, default=names)
    arguments = parser.parse_args()
    held = read(arguments.out)
    results: dict[str, list[dict[str, float]]] = held.get("results", {})
    processors: dict[str, str] = held.get("processors", {})
    note = f"`python benchmarks/growth.py`, medians of {arguments.rounds} rounds, float32, 1 thread, {versions()}."
    for name in arguments.curves:
        if name == "quality":
            path = arguments.out and arguments.out.with_name("growth_quality.json")
            write(
                path,
                ["training pairs", "beam", "chrF2"],
                quality(arguments.folder),
                f"`python benchmarks/growth.py`: 600 updates. {machine()}.",
            )
            continue
        if name in CURVES:
            results[name] = measured(name, arguments.rounds)
        else:
            measure, counts = (translated, LINES) if name == "translate: lines" else (shared, WORKERS)
            found = [(count, *measure(arguments.folder, count)) for count in counts]
            results[name] = [{"count": count, "seconds": round(took, 3), "mb": round(most)} for count, took, most in found]
            print(json.dumps(results[name]), flush=True)
        processors[name] = processor()
        results["training: pairs"], processors["training: pairs"] = corpus()
        others = {"translate: lines": ("lines", ("up to 1", "0")), "training: pairs": ("pairs to the first update", ("up to 1", "0"))}
        others["training: workers"] = ("workers of one thread", ("-1 to 0", "up to 1"))
        known = {name: (curve.unit, (curve.time, curve.memory)) for name, curve in CURVES.items()} | others
        rows = [[*row(each, results[each], *known[each]), processors[each]] for each in known if each in results]
        write(arguments.out, COLUMNS, rows, note, results=results, processors=processors)


if __name__ == "__main__":
    main()
