"""Sentence classification and entailment: structured self-attention beside max- and mean-pooling of the same encoder.

    python benchmarks/sentences.py --data FOLDER --runs runs/sentences --out docs/results
    python benchmarks/sentences.py --data FOLDER --runs runs/sentences --out docs/results --only sst2 --seeds 1

FOLDER holds `sentclass` (SST-2, SST-5, TREC) and `sick`. Every training is a `regard` command: a run that is finished is not trained again,
one that was interrupted is resumed. Tables are written of whatever is there: `sentences.json` (accuracy by pooling), `sentences_hops.json`
(what the penalty does to hops), `sentences_faithfulness.json` (words taken away), and `sentences_runs.json`, every run on its own.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from harness import RESULTS, ROOT, machine, options, regard, spread, training_of, write

from regard.config import task_of
from regard.tasks.classification_data import read_labelled_file
from regard.tasks.classification_evaluation import evaluate_labels
from regard.tasks.classification_run import open_sentence_run
from regard.tasks.classifier_attention import explain_run

SEEDS = (1, 2, 3)


class DataSet(NamedTuple):
    """Files below the data folder, and the settings to train with."""

    title: str
    config: str
    train: str
    valid: str | None
    test: str


SETS = {
    "sst2": DataSet("SST-2", "sst2", "sentclass/stsa.binary.train", "sentclass/stsa.binary.dev", "sentclass/stsa.binary.test"),
    "sst5": DataSet("SST-5", "sst5", "sentclass/stsa.fine.train", "sentclass/stsa.fine.dev", "sentclass/stsa.fine.test"),
    "trec": DataSet("TREC", "trec", "sentclass/TREC.train.all", None, "sentclass/TREC.test.all"),
    "sick": DataSet("SICK", "sick", "sick/SICK_train.txt", "sick/SICK_trial.txt", "sick/SICK_test_annotated.txt"),
    "sick_crossed": DataSet(
        "SICK, co-attention", "sick_crossed", "sick/SICK_train.txt", "sick/SICK_trial.txt", "sick/SICK_test_annotated.txt"
    ),
}
POOLINGS = {
    "structured": ("structured self-attention", ()),
    "max": ("max-pooling", ("model.pooling=max",)),
    "mean": ("mean-pooling", ("model.pooling=mean",)),
}
# The configurations have no penalty: their structured runs are those of penalty 0.
PENALTIES = {
    "penalty 1": ("1", ("model.penalty=1",)),
    "penalty 1 sum": ("1, as published (sum)", ("model.penalty=1", "model.penalty_reduction=sum")),
}
PENALTY_SETS = ("sst2",)


def train(data: Path, run: Path, found: DataSet, settings: tuple[str, ...], seed: int) -> None:
    """Train a run if it is not finished."""
    if (run / "model" / "model.safetensors").is_file():
        return
    config = ROOT / "configs" / f"{found.config}.yaml"
    words = ["train", task_of(config), "--config", str(config), "--train", str(data / found.train), "--out", str(run)]
    if found.valid is not None:
        words += ["--valid", str(data / found.valid)]
    regard(*words, *settings, f"training.seed={seed}")


def measure(data: Path, run: Path, found: DataSet) -> dict[str, Any]:
    """Return the test figures of a finished run; they are kept beside it."""
    kept = run / "test.json"
    if kept.is_file():
        return json.loads(kept.read_text(encoding="utf-8"))
    opened = open_sentence_run(run)
    file = read_labelled_file(opened.config, data / found.test)
    figures = evaluate_labels(opened, file).to_json()
    explained = explain_run(run, data / found.test).to_json()
    figures.update(overlap=explained["overlap"], faithfulness=explained["faithfulness"])
    figures["seconds"] = training_of(run).seconds
    kept.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures


def value(figures: dict[str, Any], name: str) -> float:
    """Return a score by its name."""
    return next(score["value"] for score in figures["scores"] if score["name"] == name)


def pooling_rows(found: dict[tuple[str, str, int], dict[str, Any]]) -> list[list[Any]]:
    """Return a row for each data set and pooling that has runs."""
    rows = []
    for name, data_set in SETS.items():
        for pooling, (title, _) in POOLINGS.items():
            runs = [figures for (s, p, _), figures in found.items() if (s, p) == (name, pooling)]
            if runs:
                scores = [spread([value(run, score) for run in runs], 1) for score in ("accuracy", "macro-F1", "calibration error")]
                rows.append([data_set.title, title, *scores, len(runs), round(statistics.median(run["seconds"] for run in runs) / 60, 1)])
    return rows


def hop_rows(found: dict[tuple[str, str, int], dict[str, Any]]) -> list[list[Any]]:
    """Return a row for each data set and penalty that has runs."""
    rows = []
    for name in PENALTY_SETS:
        for variant, penalty in (("structured", "0"), *((variant, title) for variant, (title, _) in PENALTIES.items())):
            runs = [figures for (s, v, _), figures in found.items() if (s, v) == (name, variant)]
            if runs:
                parts = [spread([run["overlap"][part] for run in runs], 3) for part in ("overlap", "focus", "cosine")]
                rows.append([SETS[name].title, penalty, *parts, spread([value(run, "accuracy") for run in runs], 1), len(runs)])
    return rows


def faithfulness_rows(found: dict[tuple[str, str, int], dict[str, Any]]) -> list[list[Any]]:
    """Return a row for each data set, pooling and number of words: means over the runs."""
    rows = []
    names = ("comprehensiveness", "comprehensiveness_random", "change", "change_random", "sufficiency", "sufficiency_random")
    for name, data_set in SETS.items():
        for pooling in ("structured", "max"):  # mean-pooling has no most attended words
            title = POOLINGS[pooling][0]
            curves = [f["faithfulness"]["points"] for (s, p, _), f in found.items() if (s, p) == (name, pooling) and "faithfulness" in f]
            for points in zip(*curves, strict=True):
                means = [round(statistics.mean(point[part] for point in points), 3) for part in names]
                rows.append([data_set.title, title, points[0]["removed"], *means])
    return rows


def write_tables(out: Path, found: dict[tuple[str, str, int], dict[str, Any]]) -> None:
    """Write all tables of the runs there are."""
    made = "`python benchmarks/sentences.py`, trained on the sentence-level files alone, without pretrained vectors"
    runs = "Median of the runs with different seeds, in brackets min and max; the epoch is chosen on the validation examples."
    columns = ["data", "pooling", "accuracy", "macro-F1", "calibration error", "runs", "minutes per run"]
    beside = "Minutes are wall time on a machine that did other work, too"
    write(out / "sentences.json", columns, pooling_rows(found), f"{made}; test examples. {runs} {beside}; {machine()}.")
    columns = ["data", "penalty", "overlap of hops", "focus", "cosine", "accuracy", "runs"]
    explained = (
        "Overlap: mean off the diagonal of A A^T; focus: mean of its diagonal; cosine: mean between two hops. The penalty is the mean of "
        "(A A^T - I)^2, as in the authors' code, or the published sum, 16 times as much for 4 hops."
    )
    write(out / "sentences_hops.json", columns, hop_rows(found), f"{made}; test examples. {explained} {runs}")
    columns = ["data", "pooling", "k"]
    measures = ("drop without", "change without", "drop with only")
    columns += [f"{measure} {words}" for measure in measures for words in ("top words", "random words")]
    explained = (
        "Drop and change of the predicted label's probability without the k words of the highest weight (comprehensiveness) and with only "
        "these words (sufficiency), beside k random words (5 draws). Means over the test examples and the runs."
    )
    write(out / "sentences_faithfulness.json", columns, faithfulness_rows(found), f"{made}. {explained}")
    keys = [{"data": s, "variant": v, "seed": seed, **figures} for (s, v, seed), figures in found.items()]
    (out / "sentences_runs.json").write_text(json.dumps(keys, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = options(__doc__, out=RESULTS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/sentences"))
    parser.add_argument("--only", choices=SETS, action="append", help="these data sets; may be repeated")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), choices=range(1, len(SEEDS) + 1), help="how many seeds")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for seed in SEEDS:
        for name, data_set in SETS.items():
            variants = {pooling: settings for pooling, (_, settings) in POOLINGS.items()}
            if name in PENALTY_SETS:
                variants |= {variant: settings for variant, (_, settings) in PENALTIES.items()}
            for variant, settings in variants.items():
                run = arguments.runs / f"{name}-{variant.replace(' ', '-')}-{seed}"
                asked = name in (arguments.only or SETS) and seed <= arguments.seeds
                if asked:
                    train(arguments.data, run, data_set, settings, seed)
                # What an earlier call has finished stays in the tables.
                if asked or (run / "test.json").is_file():
                    found[name, variant, seed] = measure(arguments.data, run, data_set)
                    write_tables(arguments.out, found)


if __name__ == "__main__":
    main()
