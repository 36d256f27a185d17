"""Heads that learn to point: alignment error and translation quality with and without guided alignment.

    python benchmarks/pointing.py --work FOLDER [--seeds 3] [--multi30k DATA]
    python benchmarks/fill_tables.py

Trains the small Transformers of word_links.py, with and without areas, on the generated sets `reverse` and `dates`, with and without
their links, some seeds each. The test pairs come from another seed of the data, so that no setting was chosen by them; none has a
training source. With Multi30k: a recurrent model, then a Transformer with and without its links; their error is measured against the
recurrent model's links of the test set, because the true ones are unknown. A finished training in FOLDER, also of word_links.py, is not
repeated. Writes pointing.json and pointing_multi30k.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from harness import RESULTS, ROOT, Table, machine, mean_range, options
from word_links import MODELS, VOCABULARY, error, trained

from regard.config import load_config
from regard.data.lines import read_lines
from regard.data.parallel import read_pairs
from regard.metrics import alignment_error_rate, bleu, exact_match
from regard.tasks import Translator, generate, train_translation
from regard.tasks.translation_evaluation import read_links
from regard.tasks.translation_run import TranslationRun, open_translation_run
from regard.tasks.word_links import find_links

COLUMNS = ["data", "model", "links in training", "seeds", "exact match, %", "alignment error, %"]
OF_MULTI30K = ["model", "links in training", "seeds", "BLEU", "alignment error against the recurrent model, %"]
FRESH = 101  # the seed of the test pairs
# Every training ends after these updates, whatever it learns.
EPOCHS = {"teacher": 8, "transformer": 8}


def write_fresh(work: Path, data: Literal["reverse", "dates"]) -> None:
    """Write 1,000 test pairs of another seed whose sources the training set of the work folder does not have."""
    drawn, folder = work / f"{data}-{FRESH}-drawn", work / f"{data}-{FRESH}"
    generate(data, drawn, train=1, test=2_000, seed=FRESH)
    known = set(read_lines(work / data / "train.source"))
    kept = [number for number, line in enumerate(read_lines(drawn / "test.source")) if line not in known][:1_000]
    folder.mkdir(exist_ok=True)
    for name in ("test.source", "test.target", "test.links"):
        lines = read_lines(drawn / name)
        (folder / name).write_text("".join(f"{lines[number]}\n" for number in kept), encoding="utf-8")


def small_figures(work: Path, data: str, model: str, seed: int, *, taught: bool) -> dict[str, float]:
    """Return the figures of one run on a generated set."""
    run = trained(work, data, model, seed, taught=taught)
    test = work / f"{data}-{FRESH}"
    pairs = read_pairs(test / "test.source", test / "test.target")
    outputs = [item.text for item in Translator(run).translate([source for source, _ in pairs])]
    known = read_links(test / "test.links", "character")
    return {"seed": seed, "exact": exact_match(outputs, [target for _, target in pairs]).value, "error": error(run, pairs, known)}


def multi30k_run(work: Path, raw: Path, config: str, name: str, settings: list[str]) -> TranslationRun:
    """Return a trained run on Multi30k, English to German, from the folder where it is there."""
    folder = work / name
    if not (folder / "model").exists():
        files = {"source": "train.en", "target": "train.de", "valid_source": "val.en", "valid_target": "val.de"}
        data = [f"data.{key}={raw / file}.gz" for key, file in files.items()]
        train_translation(load_config(ROOT / "configs" / f"{config}.yaml", [*data, "training.workers=1", *settings]), folder)
    return open_translation_run(folder)


def multi30k_rows(work: Path, raw: Path, seeds: int) -> Iterator[tuple[list[Any], list[dict[str, Any]]]]:
    """Train and measure on Multi30k; yield a row and its figures as soon as its runs have ended."""
    teacher = multi30k_run(work, raw, "multi30k_bahdanau", "teacher", [f"training.epochs={EPOCHS['teacher']}"])
    pairs = read_pairs(raw / "test_2016_flickr.en.gz", raw / "test_2016_flickr.de.gz")
    right = find_links(teacher, pairs)
    taught = [f"training.links_from={work / 'teacher'}"]
    for kind, shown, settings in (("none", "none", list[str]()), ("links", "of the recurrent model", taught)):
        found = []
        for seed in range(1, seeds + 1):
            own = [f"training.epochs={EPOCHS['transformer']}", "training.warmup_updates=300", f"training.seed={seed}"]
            run = multi30k_run(work, raw, "multi30k_transformer", f"multi30k-{kind}-{seed}", [*own, *settings])
            outputs = [item.text for item in Translator(run).translate([source for source, _ in pairs])]
            score, wrong = bleu(outputs, [target for _, target in pairs]).value, alignment_error_rate(find_links(run, pairs), right).value
            found.append({"seed": seed, "bleu": score, "error": wrong})
        yield ["Transformer", shown, seeds, *(mean_range([one[name] for one in found]) for name in ("bleu", "error"))], found


def main() -> None:
    """Measure all, and write the tables."""
    parser = options(__doc__, out=RESULTS / "pointing.json", seeds=3)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--multi30k", type=Path, help="its folder of raw text, for the second table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    what = f"mean over the seeds (smallest to largest); {machine()}"
    table = Table(
        given.out,
        COLUMNS,
        f"`python benchmarks/pointing.py`: 1,000 unseen pairs of another seed of the data, weight of the loss 1, {what}.",
        key=3,
    )
    for data in VOCABULARY:
        if not (given.work / data / "train.links").exists():
            generate(data, given.work / data, train=10_000, test=1_000, seed=1)
        if not (given.work / f"{data}-{FRESH}" / "test.links").exists():
            write_fresh(given.work, data)
        for model in MODELS:
            for taught in (False, True):
                found = [small_figures(given.work, data, model, seed, taught=taught) for seed in range(1, given.seeds + 1)]
                row = [data, model, "known" if taught else "none", given.seeds]
                table.add([*row, *(mean_range([one[name] for one in found]) for name in ("exact", "error"))], found)
    if given.multi30k is not None:
        note = f"`python benchmarks/pointing.py --multi30k DATA`: Multi30k, test_2016_flickr, weight of the loss 0.05, {what}."
        second = Table(given.out.with_name("pointing_multi30k.json"), OF_MULTI30K, note, key=2)
        for row, found in multi30k_rows(given.work, given.multi30k, given.seeds):
            second.add(row, found)


if __name__ == "__main__":
    main()
