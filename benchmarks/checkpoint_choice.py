"""What a choice by validation loses to the best of a run's checkpoints: Li et al. 2019 (arXiv:1911.03897), "Capability of Model Selection".

    regard compare studies/li2019_plateau.yaml --data FOLDER --out runs/li2019_plateau
    regard compare studies/li2019_plateau_long.yaml --data FOLDER --out runs/li2019_plateau_long
    python benchmarks/studies.py --runs runs li2019_plateau li2019_plateau_long
    python benchmarks/checkpoint_choice.py

Reads the results that `benchmarks/studies.py` keeps, and writes docs/results/checkpoint_choice.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from confidence import rank_correlation
from harness import COMPARED, RESULTS, ROOT, compare_runs, comparison_cells, options, read, write

from regard.config.study import load_study
from regard.metrics.seeds import RunScore, SeedComparison

NAMES = ("li2019_plateau", "li2019_plateau_long")
COLUMNS = ["updates", "variant", "rank of the chosen", "lost, BLEU", "range, BLEU", "rise, BLEU", "agreement", *COMPARED, "seeds"]
THIRDS = 3
NOTE = (
    "`python benchmarks/checkpoint_choice.py`, from the runs of `studies/li2019_plateau.yaml` and `studies/li2019_plateau_long.yaml`, in "
    "order of their seeds. Rank: on the test set, of the checkpoint with the best validation BLEU. Lost: test BLEU of the best checkpoint "
    "less that of the chosen one. Range: of the test BLEU of all checkpoints. Rise: mean test BLEU of their last third less that of the "
    "first. Agreement: Spearman's correlation of validation and test BLEU over the checkpoints. Difference: of the mean loss from the "
    "Transformer's; p is corrected for both comparisons (Holm)."
)


def main() -> None:
    """Compare the choices of each variant with those of the baseline, over the seeds that all have."""
    arguments = options(__doc__, out=RESULTS / "checkpoint_choice.json").parse_args()
    rows: dict[tuple[str, str], tuple[list[Any], int]] = {}
    tests: dict[tuple[str, str], SeedComparison] = {}
    for name in NAMES:
        study = load_study(ROOT / "studies" / f"{name}.yaml", data="data")
        (data,), baseline = study.data, study.compared_with
        order = [baseline, *(variant for variant in study.variants if variant != baseline)]
        results = RESULTS / "studies" / name / "results"
        paths = {(variant, seed): results / f"{data}-{variant}-{seed}.json" for variant in order for seed in study.seeds}
        seeds = [seed for seed in study.seeds if all(paths[variant, seed].exists() for variant in order)]
        found = {variant: [read(paths[variant, seed]) for seed in seeds] for variant in order}
        scores = {}
        for variant, runs in found.items():
            points = [np.array(run["selection"]["points"]).T[1:] for run in runs]  # of validation and test, by checkpoint
            lost = [float(test.max() - test[valid.argmax()]) for valid, test in points]
            thirds = [np.array_split(test, THIRDS) for _, test in points]
            scores[variant] = [RunScore(value, None) for value in lost]
            row = [
                f"{max(run['updates'] for run in runs):,}",
                study.variants[variant].title or variant,
                ", ".join(f"{1 + int((test > test[valid.argmax()]).sum())} of {len(test)}" for valid, test in points),
                ", ".join(f"{value:.2f}" for value in lost),
                ", ".join(f"{np.ptp(test):.1f}" for _, test in points),
                ", ".join(f"{last.mean() - first.mean():+.1f}" for first, *_, last in thirds),
                ", ".join(f"{rank_correlation(valid, test):.2f}" for valid, test in points),
            ]
            rows[name, variant] = row, len(seeds)
        tests |= {(name, variant): compare_runs(scores[variant], scores[baseline]) for variant in order[1:]}
    compared = comparison_cells(tests, 2)
    cells = [[*row, *compared.get(key, [None] * len(COMPARED)), count] for key, (row, count) in rows.items()]
    write(arguments.out, COLUMNS, cells, NOTE)


if __name__ == "__main__":
    main()
