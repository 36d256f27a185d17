"""Hard attention to images as published and as Regard trains it, decoded in three ways, on generated scenes.

    python benchmarks/hard_attention.py --runs runs/hard_attention

Trains captioners on the scenes of `scenes.py` (a run that is there already is resumed, or measured if it is finished): with soft
attention, with hard attention as published (Xu et al. 2015, 4.1), and with the differences of Regard's way one at a time. Captions new
scenes greedily, by the best cell, a sampled cell and expected weights. Writes hard_attention.json, rewritten after every run: how many
captions are true, tested over seeds and scenes, and how often the cell of the largest weight lies on the object that a word names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from harness import COMPARED, RESULTS, compare_runs, comparison_cells, machine, median, options, spread, write
from scenes import HARD, SHOW, measure, scene_sets, train

from regard.data.synthetic.scenes import Scene
from regard.metrics.seeds import RunScore, run_score
from regard.tasks.captioning_prediction import Captioner

PUBLISHED = [*SHOW, "model.attention=hard", "model.hard.reward=sentence", "model.hard.half_soft=0.5", "model.hard.soft_batches=0"]
OURS = [*SHOW, *HARD]
MODELS: dict[str, tuple[str, list[str]]] = {
    "soft": ("soft", SHOW),
    "ours": ("hard: reward of each step, weight 0.3, soft start", OURS),
    "ours_cold": ("hard: reward of each step, weight 0.3, no soft start", [*OURS, "model.hard.soft_batches=0"]),
    "sentence_warm": ("hard: reward of the sentence, weight 1, soft start", [*PUBLISHED, "model.hard.soft_batches=1400"]),
    "sentence": ("hard: reward of the sentence, weight 1, no soft start", PUBLISHED),
    "published": (
        "hard as published: reward of the sentence, weight 1, no soft start, before the last word is read",
        [*PUBLISHED, "model.query_state=previous"],
    ),
}
OWN = "ours", "argmax"
MODES = {"argmax": "best cell", "sample": "sampled cell", "expected": "expected weights"}


class Measured(NamedTuple):
    """One run, decoded in one way: whether each caption is true, and the figures of `scenes.measure`."""

    true: RunScore
    figures: dict[str, float]


def decode(captioner: Captioner, mode: str | None, pictures: Sequence[Path], scenes: Sequence[Scene]) -> Measured:
    """Caption all scenes, with hard attention in a mode."""
    captioner.choose(mode)
    torch.manual_seed(1)  # of the sampled cells
    captions = captioner.caption(pictures, need_attention=True)
    true = [[100.0 * scene.is_true(caption.text), 1.0] for caption, scene in zip(captions, scenes, strict=True)]
    return Measured(run_score("mean", np.array(true)), measure(captions, scenes, captioner.run.model.grid))


def table(results: dict[tuple[str, str | None], list[Measured]]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows: a row for each model and way to decode that was measured."""
    columns = ["trained", "decoded", "true captions, %", *COMPARED, "pointing, %", "entropy, nats", "seeds"]
    ours = [run.true for run in results.get(OWN, [])]
    tests = {
        key: compare_runs([run.true for run in runs], ours, paired=key[0] == OWN[0]) for key, runs in results.items() if ours and key != OWN
    }
    compared, rows = comparison_cells(tests, 1), []
    for (name, mode), runs in results.items():
        row: list[Any] = [MODELS[name][0], "weights" if mode is None else MODES[mode]]
        row.append(spread([run.true.score for run in runs], 1, "{} [{}, {}]"))
        row += compared.get((name, mode), [None] * len(COMPARED))
        row.append(spread([run.figures.get("pointing all", 0.0) for run in runs], 1, "{} [{}, {}]"))
        rows.append([*row, median([run.figures.get("entropy", 0.0) for run in runs], 2), len(runs)])
    return columns, rows


def main() -> None:
    parser = options(__doc__, out=RESULTS / "hard_attention.json")
    parser.add_argument("--runs", type=Path, default=Path("runs/hard_attention"))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--train", type=int, default=20_000, help="training scenes")
    parser.add_argument("--test", type=int, default=1000, help="test scenes")
    parser.add_argument("--updates", type=int, default=2500)
    arguments = parser.parse_args()
    given = "" if arguments.models == list(MODELS) else f" --models {' '.join(arguments.models)}"
    captions, scenes, pictures = scene_sets(arguments.runs, arguments.train, arguments.test)
    note = (
        f"`python benchmarks/hard_attention.py{given}`: {len(scenes)} new scenes of three objects, {arguments.updates} updates, "
        "greedy captions, median [min, max] over the seeds. Truth is checked by program. Difference: of the means of true captions, from "
        "the second row; by pairs where a training is decoded in two ways; p is corrected for the comparisons of the table (Holm). "
        f"Pointing: the cell with the highest weight lies within half a cell of the object that a word names. {machine()}."
    )
    results: dict[tuple[str, str | None], list[Measured]] = {}
    for seed in arguments.seeds:
        for name in arguments.models:
            run = arguments.runs / f"{name}-{seed}"
            train(run, captions, [*MODELS[name][1], f"training.seed={seed}"], arguments.updates)
            captioner = Captioner.open(run)
            for mode in MODES if name != "soft" else (None,):
                results.setdefault((name, mode), []).append(decode(captioner, mode, pictures, scenes))
            write(arguments.out, *table(results), note)


if __name__ == "__main__":
    main()
