"""Train and measure the Transformers on Multi30k en-de: ordinary, with areas (Eq. 3 and 4), with learned areas (Eq. 9), crossed.

    python benchmarks/multi30k_transformer.py --data FOLDER --runs runs/multi30k --seeds 1 2
    python benchmarks/multi30k_transformer.py --data FOLDER --runs runs/multi30k --cost

FOLDER is that of multi30k.py, and so is what becomes of a run that is there already. Writes multi30k_transformer.json: scores of every run
(raw text, sacrebleu's defaults, beam 5), and, once --cost has measured it on a machine that does nothing else, what an update costs: each
model trains for a few updates in a process of its own, interleaved; medians, and the largest memory of the process.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT, interleaved, machine, median, multi30k_files, options, read, regard, training_of, write
from multi30k import evaluate

from regard.config import load_config
from regard.models import build

MODELS = {
    "multi30k_transformer": "Transformer",
    "multi30k_transformer_area": "areas, Eq. 3 and 4",
    "multi30k_transformer_area_features": "areas, Eq. 9",
    "multi30k_crossed": "crossed co-attention",
}
COST_WARM_UP, COST_UPDATES = 5, 20


def measure(name: str, seed: int, raw: Path, runs: Path) -> dict[str, Any]:
    """Train a configuration with a seed if that is not done yet, and evaluate it; return the figures."""
    run = runs / f"{name}-{seed}"
    config = str(ROOT / "configs" / f"{name}.yaml")
    regard("train", "translation", "--config", config, *multi30k_files(raw), "--out", str(run), f"training.seed={seed}")
    return {"scores": evaluate(run, raw)["scores"], "updates": training_of(run).updates}


def cost(name: str, raw: Path, folder: Path) -> dict[str, float]:
    """Train for a few updates in a process of its own; return the seconds of one and the process's largest memory in MiB."""
    shutil.rmtree(folder, ignore_errors=True)
    settings = [
        f"training.max_updates={COST_WARM_UP + COST_UPDATES}",
        f"training.log_every={COST_WARM_UP}",
        "training.evaluate_every=1000000",
    ]
    config = str(ROOT / "configs" / f"{name}.yaml")
    command = ["-m", "regard", "train", "translation", "--config", config, *multi30k_files(raw), "--out", str(folder), *settings]
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{name}: training ended with {status}")
    seconds = [event["seconds"] for event in training_of(folder).events if event["event"] == "train"]
    return {"seconds": (seconds[-1] - seconds[0]) / COST_UPDATES, "mib": usage.ru_maxrss / 1024}


def costs(raw: Path, runs: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Measure what an update of each model costs, interleaved."""
    found = interleaved({name: lambda _, name=name: cost(name, raw, runs / "cost") for name in MODELS}, rounds, title="cost")
    return {name: {key: [each[key] for each in costs] for key in ("seconds", "mib")} for name, costs in found.items()}


def table(runs: dict[str, dict[str, Any]], measured: dict[str, dict[str, list[float]]]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows: a row a model, its scores over all of its runs."""
    seeds = max((len(found) for found in runs.values()), default=0)
    columns = ["model", "parameters", *(f"BLEU, seed {number + 1}" for number in range(seeds)), "mean", "chrF", "perplexity", "updates"]
    columns += ["s per update", "peak MiB"]
    rows = []
    for name, title in MODELS.items():
        config = load_config(ROOT / "configs" / f"{name}.yaml")
        size = config.vocabulary.size
        model = build(config.model, source_size=size, target_size=size)
        row: list[Any] = [title, sum(p.numel() for p in model.parameters())]
        found = list(runs.get(name, {}).values())
        scores = [{score["name"]: score["value"] for score in figures["scores"]} for figures in found]
        row += [round(score["BLEU"], 2) for score in scores] + [None] * (seeds - len(scores))
        row += [round(statistics.mean(s[key] for s in scores), 2) if scores else None for key in ("BLEU", "chrF2", "perplexity")]
        row.append(max((figures["updates"] for figures in found), default=None))
        price = measured.get(name)
        row += [median(price["seconds"], 2), round(median(price["mib"], 0))] if price else [None, None]
        rows.append(row)
    return columns, rows


def main() -> None:
    parser = options(__doc__, out=RESULTS / "multi30k_transformer.json", rounds=3)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/multi30k"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cost", action="store_true", help="measure what an update costs, in so many rounds")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    raw = arguments.data / "multi30k" / "task1" / "raw"
    known = read(arguments.out)
    runs, measured = known.get("runs", {}), known.get("costs", {})
    tokens = load_config(ROOT / "configs" / f"{arguments.models[0]}.yaml").training.batch_tokens
    note = (
        "`python benchmarks/multi30k_transformer.py`: Multi30k en-de, test_2016_flickr, raw text, beam 5, sacrebleu's defaults; every run "
        f"that was trained to its end is here. An update: batches of {tokens:,} padded tokens in bfloat16, "
        f"{machine()}; memory of the whole process."
    )
    for name in arguments.models:
        for seed in arguments.seeds:
            runs.setdefault(name, {})[str(seed)] = measure(name, seed, raw, arguments.runs)
            write(arguments.out, *table(runs, measured), note, runs=runs, costs=measured)
    if arguments.cost:
        measured = costs(raw, arguments.runs, arguments.rounds)
    write(arguments.out, *table(runs, measured), note, runs=runs, costs=measured)


if __name__ == "__main__":
    main()
