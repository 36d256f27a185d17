"""What a choice by validation loses to the best of a run's checkpoints: Li et al. 2019 (arXiv:1911.03897), "Capability of Model Selection".

    regard compare studies/li2019_plateau.yaml --data FOLDER --out runs/li2019_plateau
    python benchmarks/studies.py --runs runs li2019_plateau
    python benchmarks/checkpoint_choice.py

Reads the results that `benchmarks/studies.py` keeps, and writes docs/results/checkpoint_choice.json.
"""

from __future__ import annotations

import numpy as np
from confidence import rank_correlation
from harness import COMPARED, RESULTS, ROOT, compare_runs, comparison_cells, options, read, write

from regard.config.study import load_study
from regard.metrics.seeds import RunScore

NAME = "li2019_plateau"
NOTE = (
    "`python benchmarks/checkpoint_choice.py`, from the runs of `studies/li2019_plateau.yaml`, in order of their seeds. Rank: on the test "
    "set, of the checkpoint with the best validation BLEU. Lost: test BLEU of the best checkpoint less that of the chosen one. Range: of "
    "the test BLEU of all checkpoints. Agreement: Spearman's correlation of validation and test BLEU over the checkpoints. Difference: "
    "of the mean loss from that of the first row."
)


def main() -> None:
    """Compare the choices of each variant with those of the baseline, over the seeds that all have."""
    arguments = options(__doc__, out=RESULTS / "checkpoint_choice.json").parse_args()
    study = load_study(ROOT / "studies" / f"{NAME}.yaml", data="data")
    (data,), baseline = study.data, study.compared_with
    order = [baseline, *(variant for variant in study.variants if variant != baseline)]
    results = RESULTS / "studies" / NAME / "results"
    paths = {(variant, seed): results / f"{data}-{variant}-{seed}.json" for variant in order for seed in study.seeds}
    seeds = [seed for seed in study.seeds if all(paths[variant, seed].exists() for variant in order)]
    points = {variant: [np.array(read(paths[variant, seed])["selection"]["points"]).T for seed in seeds] for variant in order}
    lost = {variant: [float(test.max() - test[valid.argmax()]) for _, valid, test in runs] for variant, runs in points.items()}
    scores = {variant: [RunScore(value, None) for value in values] for variant, values in lost.items()}
    compared = comparison_cells({variant: compare_runs(scores[variant], scores[baseline]) for variant in order[1:]}, 2)
    rows = []
    for variant, runs in points.items():
        row = [study.variants[variant].title or variant]
        row.append(", ".join(f"{1 + int((test > test[valid.argmax()]).sum())} of {len(test)}" for _, valid, test in runs))
        row.append(", ".join(f"{value:.2f}" for value in lost[variant]))
        row.append(", ".join(f"{np.ptp(test):.1f}" for _, _, test in runs))
        row.append(", ".join(f"{rank_correlation(valid, test):.2f}" for _, valid, test in runs))
        rows.append([*row, *compared.get(variant, [None] * len(COMPARED)), len(seeds)])
    write(arguments.out, ["variant", "rank of the chosen", "lost, BLEU", "range, BLEU", "agreement", *COMPARED, "seeds"], rows, NOTE)


if __name__ == "__main__":
    main()
