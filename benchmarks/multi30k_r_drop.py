"""One Transformer for Multi30k, to German and to French: the shipped configuration, and the same with R-Drop and more epochs.

    pip install sacremoses
    python benchmarks/multi30k_r_drop.py --data FOLDER --runs runs/multi30k --languages de fr --seeds 1

FOLDER is that of multi30k.py, and so is what becomes of a run that is there already. The length penalty is the best of some on the
validation sentences. Writes multi30k_r_drop.json, rewritten after every run: BLEU of the raw text by sacrebleu's defaults, and in the unit
of the publications, of tokenized and lower-cased text (Moses' tokenizer, as sacremoses has it).
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT, multi30k_files, options, read, regard, training_of, versions, write
from multi30k import evaluate

from regard.data.lines import read_lines
from regard.metrics import bleu

LANGUAGES = {"de": "German", "fr": "French"}
CONFIG = ROOT / "configs" / "multi30k_transformer.yaml"
VARIANTS = {
    "plain": ("one pass", []),
    "r_drop": ("R-Drop", ["training.r_drop=5", "training.epochs=30"]),
    "r_drop_long": ("R-Drop, dropout 0.3, 45 epochs", ["training.r_drop=5", "training.epochs=45", "model.dropout=0.3"]),
    "r_drop_light": ("R-Drop, dropout 0.15, 45 epochs", ["training.r_drop=5", "training.epochs=45", "model.dropout=0.15"]),
    "r_drop_lighter": ("R-Drop, dropout 0.1, 45 epochs", ["training.r_drop=5", "training.epochs=45", "model.dropout=0.1"]),
}
PENALTIES = (0.6, 1.0, 1.4, 1.8, 2.2, 2.6, 3.0, 3.4)


def tokenized(path: Path, language: str) -> list[str]:
    """Return the lines of a file as Moses divides them."""
    from sacremoses import MosesTokenizer  # pyright: ignore[reportMissingImports]

    tokenizer = MosesTokenizer(lang=language)
    return [tokenizer.tokenize(line, return_str=True, escape=False) for line in read_lines(path)]


def bleu_of(report: dict[str, Any]) -> float:
    """Return the BLEU of what `regard evaluate` reports."""
    return next(score["value"] for score in report["scores"] if score["name"] == "BLEU")


def measure(variant: str, language: str, seed: int, raw: Path, runs: Path) -> dict[str, Any]:
    """Train a variant with a seed if that is not done yet, and evaluate it; return the figures."""
    run = runs / f"{variant}-{language}-{seed}"
    answers = run.with_suffix(f".{language}")
    settings = [*VARIANTS[variant][1], f"training.seed={seed}"]
    regard("train", "translation", "--config", str(CONFIG), *multi30k_files(raw, language), "--out", str(run), *settings)
    valid = {penalty: bleu_of(evaluate(run, raw, "--length-penalty", str(penalty), target=language, part="val")) for penalty in PENALTIES}
    penalty = max(valid, key=valid.__getitem__)
    told = evaluate(run, raw, "--output", str(answers), "--length-penalty", str(penalty), target=language)
    scores = {score["name"]: score["value"] for score in told["scores"]}
    given, references = (tokenized(path, language) for path in (answers, raw / f"test_2016_flickr.{language}.gz"))
    scores["tokenized"] = bleu(given, references, lowercase=True, tokenize="none").value
    return {"scores": scores, "penalty": penalty, "validation": valid, "updates": training_of(run).updates, "versions": versions()}


def rows_of(found: dict[str, Any]) -> list[list[Any]]:
    """Return a row for each language and variant with a run."""
    rows = []
    for language, title in LANGUAGES.items():
        for variant, (name, _) in VARIANTS.items():
            runs = [run for key, run in sorted(found.items()) if key.startswith(f"{variant}-{language}-")]
            if runs:
                means = [statistics.mean(run["scores"][key] for run in runs) for key in ("BLEU", "tokenized", "chrF2", "perplexity")]
                tried = [max(run["validation"].values()) for run in runs if "validation" in run]
                chosen = _penalties(runs), round(statistics.mean(tried), 2) if tried else None
                rows.append([title, name, len(runs), max(run["updates"] for run in runs), *chosen, *(round(mean, 2) for mean in means)])
    return rows


def _penalties(runs: list[dict[str, Any]]) -> str | None:
    return ", ".join(str(run["penalty"]) for run in runs if "penalty" in run) or None


def main() -> None:
    parser = options(__doc__, out=RESULTS / "multi30k_r_drop.json")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/multi30k"))
    parser.add_argument("--languages", nargs="+", choices=LANGUAGES, default=list(LANGUAGES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    found = read(arguments.out).get("runs", {})
    columns = ["to", "training", "seeds", "updates", "length penalty", "BLEU, validation", "BLEU", "BLEU, tokenized, lower case"]
    columns += ["chrF", "perplexity"]
    for seed in arguments.seeds:
        for language in arguments.languages:
            for variant in arguments.variants:
                key = f"{variant}-{language}-{seed}"
                found[key] = measure(variant, language, seed, arguments.data / "multi30k" / "task1" / "raw", arguments.runs)
                trained = "; ".join(sorted({run["versions"] for run in found.values()}))
                note = (
                    "`python benchmarks/multi30k_r_drop.py`: Multi30k from English, test_2016_flickr, beam 5, means over the seeds. "
                    f"Length penalty: the best on the validation sentences of {', '.join(map(str, PENALTIES))} (with dropout 0.3, of the "
                    "first five); where none is named, 1, and validation was not measured. "
                    "BLEU by sacrebleu's defaults on raw text; in the unit of the publications, Moses' tokens in lower case. "
                    f"Every run that was trained to its end is here. {trained}."
                )
                write(arguments.out, columns, rows_of(found), note, runs=found)


if __name__ == "__main__":
    main()
