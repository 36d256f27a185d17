"""Which explanation is true of the model: every method on models whose right answer is known, faithfulness beside known links.

    python benchmarks/explain.py --work FOLDER --out docs/results/explain.json [--seeds 3] [--pairs 60] [--updates 600]
    python benchmarks/fill_tables.py

Trains small models on the generated sets `reverse` and `dates` (10,000 pairs; recurrent ones 400 updates, Transformers `--updates`), all of
them with one seed before the next, and measures every method on test pairs whose links are known. Each run is trained and measured
once: what FOLDER holds is kept, and the table is written as each run ends.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from harness import machine, options, write

from regard.config import load_config
from regard.data.parallel import read_pairs
from regard.metrics import exact_match
from regard.tasks import Translator, generate, train_translation
from regard.tasks.explained_examples import translation_batches
from regard.tasks.faithful_methods import measure_methods
from regard.tasks.translation_evaluation import KnownLinks, read_links
from regard.tasks.translation_run import TranslationRun, open_translation_run

DATA = {
    "reverse": ["vocabulary.kind=word", "vocabulary.shared=true"],
    "dates": ["vocabulary.kind=character", "vocabulary.shared=false"],
}
RECURRENT = ["model.embed_dim=48", "model.encoder_dim=64", "model.decoder_dim=96", "model.readout_dim=48"]
TRANSFORMER = [
    *("model.embed_dim=64", "model.ff_dim=128", "model.num_heads=4", "model.encoder_layers=2", "model.decoder_layers=2", "model.norm=pre"),
]
# As in studies/generated.yaml.
MODELS = {
    "Bahdanau": [*RECURRENT, "model.attention.score=additive", "model.attention.attention_dim=48"],
    "Luong": [
        *RECURRENT,
        *("model.attention.score=general", "model.attention.query_state=current", "model.attention.input_feeding=true"),
    ],
    "Transformer": ["model.type=transformer", *TRANSFORMER],
    "areas": ["model.type=transformer", *TRANSFORMER, "model.area.max_area=3"],
    "crossed": ["model.type=crossed", "model.swap_probability=0.1", *TRANSFORMER],
}
# By then recurrent models have learned both sets.
RECURRENT_UPDATES = 400
SETTINGS = [
    *("recipe=none", "data.valid_size=300", "model.dropout=0.1", "training.batch_tokens=3000", "training.learning_rate=0.003"),
    *("training.schedule=cosine", "training.warmup_updates=100", "training.metric=loss", "training.evaluate_every=200"),
    *("training.keep_checkpoints=1", "training.epochs=1000", "training.workers=1"),
    *("decoding.beam_size=1", "decoding.max_length=40"),
]
COLUMNS = [
    *("data", "model", "method", "seeds", "exact match, %", "AER, %", "comprehensiveness", "sufficiency", "with shuffled weights"),
]


def trained(work: Path, data: str, model: str, seed: int, updates: int) -> TranslationRun:
    """Return a trained run, from the folder where it is there."""
    if not (work / data / "test.links").exists():
        generate(data, work / data, train=10_000, test=1_000, seed=1)
    updates = RECURRENT_UPDATES if MODELS[model][0] == RECURRENT[0] else updates
    folder = work / f"{data}-{model}-{updates}-{seed}"
    if not (folder / "model").exists():
        files = [f"data.source={work}/{data}/train.source", f"data.target={work}/{data}/train.target", f"training.seed={seed}"]
        settings = [*files, *DATA[data], *MODELS[model], *SETTINGS, f"training.max_updates={updates}"]
        train_translation(load_config(None, settings), folder)
    return open_translation_run(folder)


def measure(run: TranslationRun, work: Path, data: str, model: str, seed: int, count: int) -> dict[str, Any]:
    """Return the figures of one run, from its folder where they are there. Seconds are none: other work may run beside it."""
    path = run.folder / f"explain-{count}.json"
    if not path.exists():
        pairs = read_pairs(work / data / "test.source", work / data / "test.target")[:count]
        known = read_links(work / data / "test.links", "character")
        outputs = [item.text for item in Translator(run).translate([source for source, _ in pairs])]
        links = KnownLinks(known.sure[:count], known.possible[:count], "character")
        table = measure_methods(translation_batches(run, pairs), links=links, outputs=2, seed=seed)
        found = {"data": data, "model": model, "seed": seed, "exact": exact_match(outputs, [target for _, target in pairs]).value}
        path.write_text(json.dumps({**found, **table.to_json()}, indent=1) + "\n", encoding="utf-8")
    figures = json.loads(path.read_text(encoding="utf-8"))
    for method in figures["methods"]:
        del method["seconds"]
    return figures


def rows_of(runs: list[dict[str, Any]]) -> list[list[Any]]:
    """Return a row for each set, model and method; None where the method is not defined, or has no links."""
    rows = []
    for data in DATA:
        for model in MODELS:
            found = [run for run in runs if (run["data"], run["model"]) == (data, model)]
            for number in range(len(found[0]["methods"]) if found else 0):
                each = [run["methods"][number] for run in found]
                if each[0]["refused"] is not None:
                    continue
                figures = [
                    _shown([one[name]["value"] for one in each if one[name] is not None], digits)
                    for name, digits in (("alignment_error", 2), ("comprehensiveness", 3), ("sufficiency", 3), ("random_weights", 2))
                ]
                rows.append([data, model, each[0]["method"], len(found), _shown([run["exact"] for run in found], 1), *figures])
    return rows


def _shown(values: list[float], digits: int) -> str | None:
    if not values:
        return None
    middle = f"{statistics.mean(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    """Measure all, and write the table as each run ends."""
    parser = options(__doc__, seeds=3, pairs=60, updates=600)
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    runs: list[dict[str, Any]] = []
    for seed in range(1, given.seeds + 1):
        for data in DATA:
            for model in MODELS:
                run = trained(given.work, data, model, seed, given.updates)
                runs.append(measure(run, given.work, data, model, seed, given.pairs))
                note = (
                    f"`python benchmarks/explain.py`: {given.pairs} test pairs a run, two target tokens of each; mean over the seeds "
                    f"(smallest to largest). Recurrent models have {RECURRENT_UPDATES} updates, the others {given.updates}. {len(runs)} of "
                    f"{given.seeds * len(DATA) * len(MODELS)} runs are measured. {machine(1)}."
                )
                write(given.out, COLUMNS, rows_of(runs), note, runs=runs)
                print(data, model, seed, flush=True)


if __name__ == "__main__":
    main()
