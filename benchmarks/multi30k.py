"""Train and measure the recurrent models on Multi30k en-de: no attention, Bahdanau, Luong.

    python benchmarks/multi30k.py --data FOLDER --runs runs/multi30k --out docs/results

FOLDER holds `multi30k/task1/raw` with train, val and test_2016_flickr as .en.gz and .de.gz. Every step is a `regard` command: a run that is
there already is resumed, or measured if it is finished. Writes multi30k.json (scores, raw text, sacrebleu's defaults, beam 5) and
multi30k_length.json (BLEU by the length of the source).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT, machine, multi30k_files, options, read, regard, training_of, write

MODELS = {
    "multi30k_no_attention": "no attention (fixed context)",
    "multi30k_bahdanau": "Bahdanau: additive, before the cell",
    "multi30k_luong": "Luong: general, after the cell, input feeding",
}
BASELINE = "multi30k_no_attention"


def evaluate(run: Path, raw: Path, *more: str, target: str = "de", part: str = "test_2016_flickr") -> dict[str, Any]:
    """Evaluate a run on the test sentences, or others; return what the command reports."""
    report = run / f"{part}.json"
    test = [str(raw / f"{part}.{language}.gz") for language in ("en", target)]
    regard("evaluate", str(run), "--source", test[0], "--target", test[1], "--beam-size", "5", "--json", str(report), *more)
    return read(report)


def measure(name: str, raw: Path, runs: Path) -> dict[str, Any]:
    """Train a configuration if it is not trained yet, and evaluate it; return the figures."""
    run = runs / name
    regard("train", "translation", "--config", str(ROOT / "configs" / f"{name}.yaml"), *multi30k_files(raw), "--out", str(run))
    figures = evaluate(run, raw, *(["--baseline", str(runs / BASELINE)] if name != BASELINE else []))
    training = training_of(run)
    return {**figures, "seconds": training.seconds, "updates": training.updates}


def main() -> None:
    parser = options(__doc__, out=RESULTS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/multi30k"))
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
        f"wall time of a run; {machine()}."
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
