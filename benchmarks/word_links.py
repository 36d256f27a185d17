"""Word links of Transformers where the right ones are known: the model's mean, the chosen attention, and leaving out each source token.

    python benchmarks/word_links.py --work FOLDER [--seeds 3]
    python benchmarks/fill_tables.py

Trains a small Transformer, with and without areas, on the generated sets `reverse` and `dates` (10,000 pairs, 800 updates), some seeds
each, and measures the alignment error rate on 1,000 test pairs. A finished training in FOLDER is not repeated. Writes word_links.json.
"""

from __future__ import annotations

from pathlib import Path

import torch
from harness import RESULTS, Table, machine, mean_range, options

from regard.config import load_config
from regard.data.parallel import read_pairs
from regard.metrics import alignment_error_rate, exact_match
from regard.tasks import Translator, generate, train_translation
from regard.tasks.translation_evaluation import KnownLinks, read_links
from regard.tasks.translation_run import TranslationRun, open_translation_run
from regard.tasks.word_links import LinkMethod, find_links, read_choice

VOCABULARY = {
    "reverse": ["vocabulary.kind=word", "vocabulary.shared=true"],
    "dates": ["vocabulary.kind=character", "vocabulary.shared=false"],
}
MODELS = {"Transformer": [], "Transformer, areas of 3": ["model.area.max_area=3"]}
# As in studies/generated.yaml.
SETTINGS = [
    *("recipe=none", "data.valid_size=300", "model.type=transformer", "model.embed_dim=64", "model.ff_dim=128", "model.num_heads=4"),
    *("model.encoder_layers=2", "model.decoder_layers=2", "model.norm=pre", "model.dropout=0.1", "training.batch_tokens=3000"),
    *("training.learning_rate=0.003", "training.schedule=cosine", "training.warmup_updates=100", "training.metric=loss"),
    *(
        "training.evaluate_every=200",
        "training.keep_checkpoints=1",
        "training.max_updates=800",
        "training.epochs=1000",
    ),
    *("training.workers=1", "decoding.beam_size=1", "decoding.max_length=40"),
]
WEIGHT = "training.links_weight=1"
COLUMNS = ["data", "model", "seeds", "exact match, %", "mean over heads", "chosen attention", "leave-one-out", "effect of the chosen"]


def trained(work: Path, data: str, model: str, seed: int, *, taught: bool = False) -> TranslationRun:
    """Return a trained run, from the folder where it is there; taught: one head learned the known links."""
    folder = work / f"{data}-{'areas' if MODELS[model] else 'plain'}-{'links' if taught else 'none'}-{seed}"
    if not (folder / "model").exists():
        files = [f"data.source={work}/{data}/train.source", f"data.target={work}/{data}/train.target", f"training.seed={seed}"]
        links = [f"training.links={work}/{data}/train.links", "training.links_unit=character", WEIGHT] if taught else []
        train_translation(load_config(None, [*files, *VOCABULARY[data], *MODELS[model], *SETTINGS, *links]), folder)
    return open_translation_run(folder)


def error(run: TranslationRun, pairs: list[tuple[str, str]], known: KnownLinks, method: LinkMethod = "attention") -> float:
    """Return the alignment error rate in %, on the characters that have a known source."""
    found = find_links(run, pairs, unit=known.unit, method=method)
    judged = [{link for link in links if link[0] in {row for row, _ in right}} for links, right in zip(found, known.possible, strict=True)]
    return alignment_error_rate(judged, known.sure, known.possible).value


def measure(work: Path, data: str, model: str, seed: int) -> dict[str, float]:
    """Return the figures of one run."""
    run = trained(work, data, model, seed)
    pairs = read_pairs(work / data / "test.source", work / data / "test.target")
    known = read_links(work / data / "test.links", "character")
    outputs = [item.text for item in Translator(run).translate([source for source, _ in pairs])]
    # Without the stored choice links come from the model's own alignment.
    without = run._replace(folder=work)
    figures = {"exact": exact_match(outputs, [target for _, target in pairs]).value, "mean": error(without, pairs, known)}
    figures |= {"chosen": error(run, pairs, known), "leave-one-out": error(run, pairs, known, "leave-one-out")}
    choice = read_choice(run)
    assert choice is not None
    return {**figures, "effect": choice.effect}


def main() -> None:
    """Measure all, and write the table."""
    parser = options(__doc__, out=RESULTS / "word_links.json", seeds=3)
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    note = (
        "`python benchmarks/word_links.py`: alignment error rate in % on 1,000 pairs, mean over the seeds (smallest to largest). "
        "Effect: what leaving out the linked token takes from the log-probability, as a share of the most that one token takes; "
        f"{machine()}."
    )
    table = Table(given.out, COLUMNS, note, key=2)
    for data in VOCABULARY:
        if not (given.work / data).exists():
            generate(data, given.work / data, train=10_000, test=1_000, seed=1)
        for model in MODELS:
            found = [{"seed": seed, **measure(given.work, data, model, seed)} for seed in range(1, given.seeds + 1)]
            shown = [mean_range([figures[name] for figures in found]) for name in ("exact", "mean", "chosen", "leave-one-out", "effect")]
            table.add([data, model, given.seeds, *shown], found)


if __name__ == "__main__":
    main()
