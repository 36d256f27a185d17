"""The cost model of `regard compare --estimate` beside measured updates, and what the papers' runs would take.

    python benchmarks/cost_model.py --threads 2
    python benchmarks/cost_model.py --papers        once the rate that was found stands in regard.study.cost

Every model does updates (forward, backward, optimizer) on random sentences of 30 tokens, 2,048 tokens per side, in the precision of its
configuration, on a machine that does nothing else; medians. The rate of the machine is the median over the models of what each reached; a
prediction takes that rate for all. Writes cost_model.json; with --papers, which measures nothing, cost_model_papers.json: the runs at the
papers' scale.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, ROOT, machine, options, seconds, write

from regard.config import RunConfig, TranslationConfig, load_config
from regard.config.study import cell_config, load_study, study_cells
from regard.data.batching import collate
from regard.models import build
from regard.study.cost import RATES, SUBWORDS, training_cost
from regard.training.optimizer import build_optimizer

TOKENS, WARM_UP, UPDATES = 2048, 1, 3
LAPTOP = ["multi30k_transformer", "multi30k_crossed", "multi30k_bahdanau", "multi30k_luong", "multi30k_lstm_area"]
PAPERS = {"li2018_translation": ["tiny_regular", "small_regular", "base_regular", "big_regular"], "li2019": ["base_crossed"]}
STUDIES = [
    "li2018_translation",
    "li2018_characters",
    "li2018_lstm",
    "li2018_lstm_characters",
    "li2018_captions",
    "li2019",
    "luong2015",
    "xu2015",
    "bahdanau2015",
    "lin2017",
]


def at_paper_scale(study: str) -> dict[str, RunConfig]:
    """Return the configurations of a study's variants at the paper's scale, on its first data set."""
    path = ROOT / "studies" / f"{study}.yaml"
    found = load_study(path, data="DATA", scale="paper")
    first = next(iter(found.data))
    return {cell.variant: cell_config(found, cell, folder=path.parent) for cell in study_cells(found) if cell.data == first}


def measure(config: TranslationConfig) -> float:
    """Return the seconds of an update, a median."""
    torch.manual_seed(1)
    size, length = config.vocabulary.size, int(SUBWORDS) - 1
    model = build(config.model, source_size=size, target_size=size).train()
    optimizer = build_optimizer(model, config.training)
    rows = torch.randint(4, size, (round(TOKENS / SUBWORDS), length)).tolist()
    batch = collate(rows, rows, range(len(rows)))

    def update() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=config.training.precision == "bf16"):
            sums = model(*batch[:5], label_smoothing=config.training.label_smoothing)
        optimizer.zero_grad(set_to_none=True)
        (sums.loss / sums.tokens).backward()
        optimizer.step()

    return statistics.median([seconds(update) for _ in range(WARM_UP + UPDATES)][WARM_UP:])


def main() -> None:
    parser = options(__doc__, out=RESULTS, threads=2)
    parser.add_argument("--papers", action="store_true", help="measure nothing: write what the papers' runs would take")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.papers:
        write_papers(arguments.out)
        return
    configs = {name: load_config(ROOT / "configs" / f"{name}.yaml") for name in LAPTOP}
    for study, variants in PAPERS.items():
        found = at_paper_scale(study)
        configs |= {f"{study}, {variant}": found[variant] for variant in variants if isinstance(found[variant], TranslationConfig)}  # type: ignore[misc]
    measured: list[tuple[str, int, float, float]] = []
    for name, config in configs.items():
        training = config.training.model_copy(update={"batch_tokens": TOKENS, "gradient_accumulation_steps": 1})
        work = training_cost(config.model_copy(update={"training": training}))
        taken = measure(config)
        measured.append((name, work.parameters, work.flops, taken))
        print(name, f"{work.parameters:,}", f"{taken:.2f} s", f"{work.flops / taken / 1e9:.0f} GFLOP/s", flush=True)
    rate = statistics.median(flops / taken for _, _, flops, taken in measured)
    rows: list[list[Any]] = [
        [name, parameters, round(flops / 1e9), round(taken, 2), round(flops / taken / 1e9), round(flops / rate / taken, 2)]
        for name, parameters, flops, taken in measured
    ]
    columns = ["model", "parameters", "GFLOP per update", "s per update", "GFLOP/s", "predicted / measured"]
    note = (
        f"`python benchmarks/cost_model.py`: updates of {TOKENS:,} tokens per side, medians of {UPDATES}; {machine()}. Predicted with the "
        f"median rate, {rate / 1e9:.0f} GFLOP/s."
    )
    write(arguments.out / "cost_model.json", columns, rows, note, rate=rate)


def write_papers(out: Path) -> None:
    """Write what each study takes at its paper's scale, at the known rates."""
    papers: list[list[Any]] = []
    for study in STUDIES:
        works = {variant: training_cost(config) for variant, config in at_paper_scale(study).items()}
        largest = max(works, key=lambda variant: (works[variant].updates or 0) * works[variant].flops)
        known = [work for work in works.values() if work.updates is not None]
        total = sum((work.updates or 0) * work.flops for work in known)
        hours = [round(total / each.flops / 3600, 1) for each in RATES] if known else [None] * len(RATES)
        papers.append([study, len(works), largest, works[largest].parameters, round(total / 1e15) if known else None, *hours])
    columns = ["study", "variants", "largest variant", "its parameters", "total PFLOP", *(f"hours, {each.machine}" for each in RATES)]
    rates = "; ".join(f"{each.machine}: {each.flops:.2g} FLOP/s ({each.source})" for each in RATES)
    note = (
        "`python benchmarks/cost_model.py --papers`: `--scale paper`, one seed, the first data set of each study, by the cost model. "
        f"{rates}. Sums of areas are not counted."
    )
    write(out / "cost_model_papers.json", columns, papers, note)


if __name__ == "__main__":
    main()
