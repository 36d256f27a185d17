"""What sparse weights do: right outputs, weights of zero, links and faithfulness.

    regard compare studies/normalizers.yaml --data FOLDER --out runs/normalizers
    python benchmarks/normalizers.py --runs runs/normalizers --data FOLDER --out docs/results/normalizers.json
    python benchmarks/fill_tables.py

Reads the results of the study, and counts the zeros in the weights of its runs.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, ROOT, mean_range, options, read, versions, write

from regard.config.study import load_study
from regard.data.parallel import SentencePair, read_pairs
from regard.explanations import TranslationBatch
from regard.tasks.explained_examples import translation_batches
from regard.tasks.translation_run import TranslationRun, open_translation_run

COLUMNS = ["data", "model", "seeds", "exact match, %", "weights that are 0, %", "method", "AER, %", "comprehensiveness", "sufficiency"]
FIGURES = ("alignment_error", "comprehensiveness", "sufficiency")


def zero_weights(run: TranslationRun, pairs: list[SentencePair]) -> float:
    """Return the share of exact zeros among the weights of the decoder's attention over real source tokens, in percent."""
    zeros = total = 0
    for each in translation_batches(run, pairs):
        batch = each.batch
        assert isinstance(batch, TranslationBatch)
        for found in run.model.attention_maps(batch.source, batch.source_lengths, batch.target_input):
            if (found.query, found.key) == ("target", "source"):
                real = batch.inputs[:, None, None].expand_as(found.weights) & batch.outputs[:, None, :, None]
                zeros, total = zeros + int((found.weights[real] == 0).sum()), total + int(real.sum())
    return 100 * zeros / total


def rows_of(found: list[dict[str, Any]], data: str, model: str) -> list[list[Any]]:
    """Return a row per method, from the results of all seeds."""
    both = [mean_range([run["exact"] for run in found]), mean_range([run["zeros"] for run in found])]
    methods: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in found:
        for figures in run["methods"]:
            methods[figures["method"]].append(figures)
    return [
        [data, model, len(found), *both, method, *(mean_range([each[name]["value"] for each in runs]) for name in FIGURES)]
        for method, runs in methods.items()
    ]


def main() -> None:
    """Write the table of the runs that are there."""
    parser = options(__doc__, out=RESULTS / "normalizers.json")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the study")
    parser.add_argument("--data", required=True, help="as for the study")
    given = parser.parse_args()
    torch.set_num_threads(1)
    study = load_study(ROOT / "studies" / "normalizers.yaml", data=given.data)
    rows: list[list[Any]] = []
    for data, of_set in study.data.items():
        pairs = read_pairs(of_set.test["source"], of_set.test["target"])[: study.method_examples]
        for variant, named in study.variants.items():
            found = []
            for seed in study.seeds:
                name = f"{data}-{variant}-{seed}"
                if (path := given.runs / "results" / f"{name}.json").exists():
                    result = read(path)
                    zeros = zero_weights(open_translation_run(given.runs / "runs" / name), pairs)
                    methods = [each for each in result["methods"]["figures"] if each["method"] in study.methods]
                    found.append({"exact": result["scores"]["exact match"], "zeros": zeros, "methods": methods})
            if found:
                rows += rows_of(found, of_set.title or data, named.title or variant)
    note = (
        f"`python benchmarks/normalizers.py`, from the runs of `regard compare studies/normalizers.yaml`: methods and weights on "
        f"{study.method_examples} test pairs a run, two target tokens of each; mean over the seeds (smallest to largest). {versions()}."
    )
    write(given.out, COLUMNS, rows, note)


if __name__ == "__main__":
    main()
