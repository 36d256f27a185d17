"""Words never trained on, copied or not.

    python benchmarks/copying.py --work FOLDER --out docs/results/copying.json [--seeds 3]
    python benchmarks/fill_tables.py

Trains small models on generated sentences with names; no name of the test set occurs in training, and few are in the vocabulary. Every
run is trained and measured once: what FOLDER holds is kept, and the table is written as each run ends.
"""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from explain import SMALL, SMALL_RECURRENT
from harness import RESULTS, machine, options, write

from regard.config import load_config
from regard.data.parallel import SentencePair, read_pairs
from regard.metrics import exact_match
from regard.tasks import Translator, train_translation
from regard.tasks.translation_run import TranslationRun, open_translation_run

# Source and target with two names: the order changes, and one word depends on another.
TEMPLATES = [
    ("call {a} from {b} now", "jetzt {b} ruft {a} an"),
    ("{a} and {b} left early", "frueh gingen {a} und {b}"),
    ("did {b} write to {a} ?", "schrieb {b} an {a} ?"),
    ("{a} sold the old house of {b} to {c}", "das alte haus von {b} verkaufte {a} an {c}"),
    ("{c} saw {b} and {a} yesterday", "gestern sah {c} {a} und {b}"),
]
SETTINGS = [
    *("recipe=none", "data.valid_size=300", "model.dropout=0.1", "training.learning_rate=0.003", "training.schedule=cosine"),
    *("training.warmup_updates=50", "training.metric=loss", "training.evaluate_every=200", "training.keep_checkpoints=1"),
    *("training.epochs=1000", "training.workers=1", "vocabulary.kind=word", "vocabulary.shared=true"),
    *("decoding.beam_size=1", "decoding.max_length=40", "vocabulary.size=60", "training.batch_tokens=800", "training.max_updates=300"),
]
ADDITIVE = [*SMALL_RECURRENT, "model.attention.score=additive", "model.attention.attention_dim=48"]
COPIES = "model.copy_attention=true"
COVERS = ["model.attention.coverage=true", "model.attention.coverage_loss=1.0"]
COPYING = {
    "recurrent": ADDITIVE,
    "recurrent, copies": [*ADDITIVE, COPIES],
    "recurrent, copies, coverage": [*ADDITIVE, COPIES, *COVERS],
    "Transformer": ["model.type=transformer", *SMALL],
    "Transformer, copies": ["model.type=transformer", *SMALL, COPIES],
}
COLUMNS = ["model", "seeds", "unknown words copied, %", "with replace_unknown, %", "exact match, %"]


def shown(values: list[float], digits: int) -> str | None:
    """Return the mean of the seeds, and the smallest and largest."""
    if not values:
        return None
    middle = f"{statistics.mean(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def write_names(folder: Path) -> None:
    """Write training and test pairs with disjoint names."""
    chance = random.Random(1)
    folder.mkdir(parents=True)
    for name, count, pool in (("train", 6_000, range(4_000)), ("test", 300, range(4_000, 8_000))):
        pairs = []
        for _ in range(count):
            a, b, c = (f"name{number}" for number in chance.sample(pool, 3))
            pairs.append(tuple(text.format(a=a, b=b, c=c) for text in chance.choice(TEMPLATES)))
        for side, ending in enumerate(("source", "target")):
            (folder / f"{name}.{ending}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")


def trained(folder: Path, data: Path, model: list[str], seed: int) -> TranslationRun:
    """Return a trained run, from its folder where it is there."""
    if not (folder / "model").exists():
        files = [f"data.source={data}/train.source", f"data.target={data}/train.target", f"training.seed={seed}"]
        train_translation(load_config(None, [*files, *model, *SETTINGS]), folder)
    return open_translation_run(folder)


def share_copied(outputs: list[str], pairs: list[SentencePair]) -> float:
    """Return the share of the names of the references that the outputs hold, in percent."""
    wanted = [Counter(word for word in pair[1].split() if word.startswith("name")) for pair in pairs]
    found = sum((Counter(output.split()) & own).total() for output, own in zip(outputs, wanted, strict=True))
    return 100 * found / sum(own.total() for own in wanted)


def measure_copying(work: Path, model: str, seed: int) -> dict[str, Any]:
    """Train and measure a run on the sentences with names."""
    data, folder = work / "names", work / f"names-{model.replace(', ', '-')}-{seed}"
    if not data.exists():
        write_names(data)
    run = trained(folder, data, COPYING[model], seed)
    pairs = read_pairs(data / "test.source", data / "test.target")
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    outputs = [item.text for item in Translator(run).translate(sources)]
    replaced = run.config.decoding.model_copy(update={"replace_unknown": True})
    other = [item.text for item in Translator(run).translate(sources, decoding=replaced)]
    figures = {"copied": share_copied(outputs, pairs), "replaced": share_copied(other, pairs), "exact": exact_match(outputs, targets).value}
    return {"model": model, "seed": seed, **figures}


def copying_rows(runs: list[dict[str, Any]]) -> list[list[Any]]:
    """Return a row per model."""
    rows = []
    for model in COPYING:
        if own := [run for run in runs if run["model"] == model]:
            rows.append([model, len(own), *(shown([run[name] for run in own], 1) for name in ("copied", "replaced", "exact"))])
    return rows


def main() -> None:
    """Measure all, and write the table as each run ends."""
    parser = options(__doc__, out=RESULTS / "copying.json", seeds=3)
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    for seed in range(1, given.seeds + 1):
        for model in COPYING:
            path = given.work / f"{model}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(measure_copying(given.work, model, seed), indent=1) + "\n", encoding="utf-8")
            runs.append(json.loads(path.read_text(encoding="utf-8")))
            note = f"`python benchmarks/copying.py`: 300 test sentences, mean over the seeds (smallest to largest). {machine(1)}."
            write(given.out, COLUMNS, copying_rows(runs), note, runs=runs)


if __name__ == "__main__":
    main()
