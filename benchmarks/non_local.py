"""Non-local blocks in the encoder of a captioner of generated scenes: the four forms beside none.

    python benchmarks/non_local.py --runs runs/non_local

Trains captioners on the scenes of `scenes.py` (a run that is there already is resumed, or measured if it is finished), captions new scenes
greedily and writes non_local.json, rewritten after every run: how many captions are true, tested over seeds and scenes, and how often the
cell of the largest weight still lies on the object that a word names, although with a block every cell has seen the whole image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from hard_attention import Measured, decode
from harness import COMPARED, RESULTS, compare_runs, comparison_cells, machine, options, spread, write
from scenes import SHOW, scene_sets, train

from regard.config.images import NonLocalForm
from regard.tasks.captioning_prediction import Captioner

SETTINGS = [*SHOW, "model.encoder.channels=[16, 24, 48]", "model.encoder.depth=[0, 0, 1]", "training.batch_tokens=400"]
FORMS: list[str] = ["none", *get_args(NonLocalForm)]
COLUMNS = ["block", "true captions, %", *COMPARED, "pointing, %", "seeds"]


def table(results: dict[str, list[Measured]]) -> list[list[Any]]:
    """Return a row for each form that was measured; differences are from no block."""
    plain = [run.true for run in results["none"]]
    tests = {form: compare_runs([run.true for run in runs], plain) for form, runs in results.items() if form != "none"}
    compared, rows = comparison_cells(tests, 1), []
    for form, runs in results.items():
        row: list[Any] = [form.replace("_", " "), spread([run.true.score for run in runs], 1, "{} [{}, {}]")]
        row += compared.get(form, [None] * len(COMPARED))
        pointing = [run.figures["pointing all"] for run in runs if "pointing all" in run.figures]  # else no word names an object
        row += [spread(pointing, 1, "{} [{}, {}]") if pointing else None, len(runs)]
        rows.append(row)
    return rows


def main() -> None:
    parser = options(__doc__, out=RESULTS / "non_local.json")
    parser.add_argument("--runs", type=Path, default=Path("runs/non_local"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--train", type=int, default=20_000, help="training scenes")
    parser.add_argument("--test", type=int, default=1000, help="test scenes")
    parser.add_argument("--updates", type=int, default=1500)
    arguments = parser.parse_args()
    captions, scenes, pictures = scene_sets(arguments.runs, arguments.train, arguments.test)
    note = (
        f"`python benchmarks/non_local.py`: {len(scenes)} new scenes of three objects, {arguments.updates} updates, greedy captions, "
        "median [min, max] over the seeds. Truth is checked by program. Difference: of the means of true captions, from no block; p is "
        "corrected for the comparisons of the table (Holm). Pointing: the cell "
        f"with the highest weight lies within half a cell of the object that a word names. {machine()}."
    )
    results: dict[str, list[Measured]] = {}
    for seed in arguments.seeds:
        for form in FORMS:
            run = arguments.runs / f"{form}-{seed}"
            block = "null" if form == "none" else form
            train(run, captions, [*SETTINGS, f"model.encoder.non_local={block}", f"training.seed={seed}"], arguments.updates)
            results.setdefault(form, []).append(decode(Captioner.open(run), None, pictures, scenes))
            write(arguments.out, COLUMNS, table(results), note)


if __name__ == "__main__":
    main()
