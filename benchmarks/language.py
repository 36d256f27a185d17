"""Train and measure language models: key-value attention against none, plain and an N-gram RNN, at equal parameters.

    python benchmarks/language.py --data FOLDER --runs runs/language
    python benchmarks/language.py --data FOLDER --runs runs/language --only multi30k/lm_key_value --seeds 1

FOLDER holds `multi30k/task1/raw` and `flickr8k`. The runs on Multi30k (English; lines in a new order for every epoch, as they do not belong
together) are those of `regard compare studies/daniluk2017.yaml`; those on Flickr8k (captions, the five of an image one after the other;
and, as a control, in one random order) are trained here. A run that is there already is resumed, or measured if it is finished. Each seed
is also that of the lines' order. Writes language.json, rewritten after every run: for each model the median over its seeds, with the lowest
and the highest. Writes language_distance.json: the weight of each attention on the state 1, 2 ... 15 steps back, the mean over the seeds.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, ROOT, machine, median, options, read, regard, spread, training_of, write

from regard.config import LanguageConfig, load_config
from regard.data.lines import read_lines
from regard.models import build_language_model
from regard.tasks.attention_distance import attention_by_distance
from regard.tasks.language_training import evaluate_language, open_language_run

MODELS = {
    "lm_none": "none",
    "lm_plain": "plain",
    "lm_key_value": "key-value",
    "lm_key_value_predict": "key-value-predict",
    "lm_ngram": "4-gram RNN",
}
SETS = {"multi30k": "Multi30k, English", "flickr8k": "Flickr8k captions", "flickr8k_shuffled": "Flickr8k captions, shuffled"}
SPLITS = ("train", "valid", "test")
FIGURES = ("perplexity, continuous", "perplexity, separate", "bits per byte, continuous", "bits per byte, separate")
MAX_APART = 0.01
SHOWN = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 10), (11, 15))


def flickr8k(data: Path, folder: Path, name: str) -> dict[str, Path]:
    """Write the captions as plain text, one file a split, if that is not done yet; return the files."""
    files = {split: folder / f"{name}.{split}.txt" for split in SPLITS}
    if all(path.exists() for path in files.values()):
        return files
    captions: dict[str, list[str]] = {}
    for line in read_lines(data / "flickr8k" / "Flickr8k.token.txt"):
        key, _, caption = line.partition("\t")
        captions.setdefault(key.partition("#")[0], []).append(caption)
    for split, source in zip(SPLITS, ("train", "dev", "test"), strict=True):
        images = [line.strip() for line in read_lines(data / "flickr8k" / f"Flickr_8k.{source}Images.txt")]
        lines = [caption for image in images for caption in captions.get(image, [])]
        if name == "flickr8k_shuffled":
            random.Random(1).shuffle(lines)
        files[split].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return files


def trained(name: str, model: str, seed: int, data: Path, runs: Path) -> tuple[Path, Path]:
    """Train a model with a seed if that is not done yet; return its run and the test text."""
    if name == "multi30k":
        study = runs / "daniluk2017"
        run = study / "runs" / f"multi30k-{model.removeprefix('lm_')}-{seed}"
        if not (run / "model").exists():
            regard("compare", str(ROOT / "studies" / "daniluk2017.yaml"), "--data", str(data), "--out", str(study))
        return run, data / "multi30k" / "task1" / "raw" / "test_2016_flickr.en.gz"
    files, run = flickr8k(data, runs, name), runs / f"{name}-{model}-{seed}"
    words = ["--config", str(ROOT / "configs" / f"{model}.yaml"), "--text", str(files["train"]), "--valid-text", str(files["valid"])]
    regard("train", "lm", *words, "--out", str(run), f"training.seed={seed}")
    return run, files["test"]


def measure(run: Path, test: Path) -> dict[str, Any]:
    """Measure a run on the test text; return the figures."""
    opened, lines = open_language_run(run), list(read_lines(test))
    scores = {score.name: score.value for score in evaluate_language(opened, lines)}
    training = training_of(run)
    parameters = sum(parameter.numel() for parameter in opened.model.parameters())
    figures = {"scores": scores, "seconds": training.seconds, "updates": training.updates, "parameters": parameters}
    return {**figures, "distances": attention_by_distance(opened, lines), "machine": machine()}


def parameters(model: str) -> int:
    """Return how many parameters a configuration has with a full vocabulary."""
    config = load_config(ROOT / "configs" / f"{model}.yaml", kind=LanguageConfig)
    with torch.device("meta"):
        built = build_language_model(config.model, vocab_size=config.vocabulary.size)
    return sum(parameter.numel() for parameter in built.parameters())


def table(results: dict[str, dict[str, dict[str, Any]]]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows: a row for each set and model that was measured."""
    columns = ["text", "attention", "parameters", *FIGURES, "seeds", "minutes per run"]
    rows = []
    for name, model in itertools.product(SETS, MODELS):
        found = list(results.get(f"{name}/{model}", {}).values())
        if not found:
            continue
        row: list[Any] = [SETS[name], MODELS[model], found[0]["parameters"]]
        for figure in FIGURES:
            digits = 2 if figure.startswith("perplexity") else 4
            row.append(spread([one["scores"][figure] for one in found], digits, "{} [{}, {}]"))
        rows.append([*row, len(found), round(median([one["seconds"] / 60 for one in found], 0))])
    return columns, rows


def distance_table(results: dict[str, dict[str, dict[str, Any]]]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of the weight by distance: a row for each set and model with attention that was measured so."""
    names = [str(first) if first == last else f"{first}-{last}" for first, last in SHOWN]
    rows = []
    for name, model in itertools.product(SETS, MODELS):
        found = [each["distances"] for each in results.get(f"{name}/{model}", {}).values() if each.get("distances")]
        if found:
            mean = [sum(weights) / len(found) for weights in zip(*found, strict=True)]
            shares = [round(100 * sum(mean[first - 1 : last]), 1) for first, last in SHOWN]
            far = sum(back * weight for back, weight in enumerate(mean, start=1))
            rows.append([SETS[name], MODELS[model], *shares, round(far, 2), len(found)])
    return ["text", "attention", *(f"{each} back, %" for each in names), "mean distance", "seeds"], rows


def main() -> None:
    choices = [f"{name}/{model}" for name in SETS for model in MODELS]
    parser = options(__doc__, out=RESULTS / "language.json")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/language"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=choices, default=choices)
    arguments = parser.parse_args()
    sizes = {model: parameters(model) for model in MODELS}
    if max(sizes.values()) > (1 + MAX_APART) * min(sizes.values()):
        raise SystemExit(f"the models differ by more than {MAX_APART:.0%} in parameters: {sizes}")
    arguments.runs.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, dict[str, Any]]] = read(arguments.out).get("runs", {})
    note = (
        "`python benchmarks/language.py`: median [min, max] over the seeds, on the test text; each set has a BPE vocabulary of "
        "5,000 entries. Perplexity is per BPE token, ends of lines included; bits per byte over the bytes in UTF-8, newlines included. "
        "Continuous: the state is carried from line to line; separate: each line starts with an empty state. "
    )
    far = (
        "`python benchmarks/language.py`: share of the attention weight by distance, on the test text read as one stream; distance 1 "
        "is the state just before the current one, 15 the last of the window."
    )
    # All models of a seed before the next seed, so that whatever stops it, what is there can be compared.
    for seed in arguments.seeds:
        for each in arguments.only:
            name, model = each.split("/")
            results.setdefault(each, {})[str(seed)] = measure(*trained(name, model, seed, arguments.data, arguments.runs))
            machines = sorted({run["machine"] for runs in results.values() for run in runs.values()})
            write(arguments.out, *table(results), f"{note}{'; '.join(machines)}.", runs=results)
            write(arguments.out.with_name("language_distance.json"), *distance_table(results), far)


if __name__ == "__main__":
    main()
