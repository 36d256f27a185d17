"""Train and measure the recurrent models on Multi30k en-de: no attention, Bahdanau, Luong.

    python benchmarks/multi30k.py --data FOLDER --runs runs/multi30k --out docs/results

FOLDER holds `multi30k/task1/raw` with train, val and test_2016_flickr as .en.gz and .de.gz. Every step is a `regard` command: a run that is
there already is resumed, or measured if it is finished. Writes multi30k.json (scores, raw text, sacrebleu's defaults, beam 5) and
multi30k_length.json (BLEU by the length of the source).
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import regard

ROOT = Path(__file__).resolve().parents[1]
MODELS = {
    "multi30k_no_attention": "no attention (fixed context)",
    "multi30k_bahdanau": "Bahdanau: additive, before the cell",
    "multi30k_luong": "Luong: general, after the cell, input feeding",
}
BASELINE = "multi30k_no_attention"


def call(*words: str) -> None:
    """Run a `regard` command; its output goes through."""
    print("$ regard", *words, flush=True)
    subprocess.run([sys.executable, "-m", "regard", *words], check=True)


def training_files(raw: Path) -> list[str]:
    """Return the options that name the training and validation files."""
    options = []
    for split, prefix in (("train", "--"), ("val", "--valid-")):
        for side, language in (("source", "en"), ("target", "de")):
            options += [f"{prefix}{side}", str(raw / f"{split}.{language}.gz")]
    return options


def measure(name: str, raw: Path, runs: Path) -> dict[str, Any]:
    """Train a configuration if it is not trained yet, and evaluate it; return the figures."""
    run = runs / name
    call("train", "translation", "--config", str(ROOT / "configs" / f"{name}.yaml"), *training_files(raw), "--out", str(run))
    report = run / "test_2016_flickr.json"
    test = [str(raw / f"test_2016_flickr.{language}.gz") for language in ("en", "de")]
    against = ["--baseline", str(runs / BASELINE)] if name != BASELINE else []
    call("evaluate", str(run), "--source", test[0], "--target", test[1], "--beam-size", "5", "--json", str(report), *against)
    figures = json.loads(report.read_text(encoding="utf-8"))
    events = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    figures["seconds"] = max(event["seconds"] for event in events if "seconds" in event)
    figures["updates"] = max(event["step"] for event in events)
    return figures


def write(path: Path, columns: list[str], rows: list[list[Any]], note: str, **more: Any) -> None:
    """Write a table's file, with what else belongs to it."""
    text = json.dumps({"columns": columns, "rows": rows, "note": note, **more}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/multi30k"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    raw = arguments.data / "multi30k" / "task1" / "raw"
    found = {name: measure(name, raw, arguments.runs) for name in MODELS}
    scores = {name: {score["name"]: score for score in figures["scores"]} for name, figures in found.items()}
    rows = []
    for name, title in MODELS.items():
        against = found[name].get("against")
        gain = "" if against is None else f"{against['difference']:+.1f} [{against['interval'][0]:+.1f}, {against['interval'][1]:+.1f}]"
        row = [title, *(round(scores[name][key].get("value"), 2) for key in ("BLEU", "chrF2", "perplexity", "token accuracy"))]
        rows.append([*row, gain, found[name]["updates"], round(found[name]["seconds"] / 60)])
    signature = scores[BASELINE]["BLEU"]["signature"]
    note = (
        f"`python benchmarks/multi30k.py`: Multi30k en-de, test_2016_flickr, raw text, beam 5; sacrebleu {signature}. The gain over no "
        "attention in BLEU has its 95 % interval by paired bootstrap over test sentences: each model was trained once. Minutes are the "
        f"wall time of a run; {platform.machine()}, 2 cores, torch {torch.__version__}, regard {regard.__version__}."
    )
    columns = ["model", "BLEU", "chrF", "perplexity", "token accuracy", "gain in BLEU", "updates", "minutes"]
    write(arguments.out / "multi30k.json", columns, rows, note)
    lengths = [[row["source_words"], row["sentences"]] for row in found[BASELINE]["by_length"]]
    for name in MODELS:
        for line, row in zip(lengths, found[name]["by_length"], strict=True):
            line.append(round(row["bleu"], 1))
    for line in lengths:
        line.append(round(line[3] - line[2], 1))
    columns = ["words of the source", "sentences", "no attention", "Bahdanau", "Luong", "Bahdanau's gain"]
    write(arguments.out / "multi30k_length.json", columns, lengths, "BLEU of the same translations, by the length of the source in words.")


if __name__ == "__main__":
    main()
