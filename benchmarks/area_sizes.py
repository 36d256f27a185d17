"""Do areas choose their size? Captioners with areas on scenes whose objects cover 1, 2 x 2 or 3 x 3 cells.

    python benchmarks/area_sizes.py --runs runs/area_sizes

Trains captioners that attend to rectangles of up to 3 x 3 cells (a run that is there already is resumed, or measured if it is finished).
Each reads new scenes of two objects of different sizes with their true captions. For the colour and shape words of each object it takes
the rectangle of the largest weight, and the mean of the rectangles' cells, by weight. Writes area_sizes.json, rewritten after every run:
both by the size of the object, and whether the mean is larger for the larger object of a scene, tested over seeds and scenes; also the
two means of each scene by run.

With mean keys the score of a rectangle is the mean of its cells' scores, so that the largest weight is always on a single cell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import COMPARED, RESULTS, comparison_cells, machine, options, regard, write
from scenes import COMMON, TRANSFORMER, conventional

from regard.data.synthetic.scene_files import read_scenes, write_scenes
from regard.data.synthetic.scenes import Scene, generate_scenes
from regard.metrics.seeds import RunScore, compare_seeds, run_score
from regard.ops import area_spans
from regard.tasks.captioning_prediction import Captioner
from regard.tasks.synthetic_data import SIZES

SETTINGS = [*COMMON, *TRANSFORMER, "model.encoder.channels=[16, 24, 48]", "model.encoder.depth=[0, 0, 1]"]
SETTINGS += ["model.area.height=3", "model.area.width=3", "training.batch_tokens=400"]
MODELS = {
    "mean": ("mean keys, summed values (Eq. 3, 4)", []),
    "features": ("area features (Eq. 9), summed values", ["model.area.key_mode=features"]),
    "mean_values": ("mean keys, mean values", ["model.area.value_mode=mean"]),
}


class Choice(NamedTuple):
    """Where a model looks for a word.

    Attributes:
        scene: number of the scene.
        chosen: cells of the rectangle of the largest weight.
        mean: cells of a rectangle, the mean by weight.
        object: cells of the object that the word names.
        overlap: cells of both the rectangle and the object over cells of either.
    """

    scene: int
    chosen: int
    mean: float
    object: int
    overlap: float


def write_set(folder: Path, name: str, count: int, start: int) -> Path:
    """Write scenes with the one caption that the image decides, unless they are there; return the file of captions."""
    captions = folder / f"{name}.tsv"
    if not captions.exists():
        drawn = generate_scenes(count, seed=1, start=start, settings=SIZES)
        write_scenes(folder, name, [dataclasses.replace(scene, captions=(conventional(scene),)) for scene in drawn])
    return captions


def choices(captioner: Captioner, folder: Path, scenes: Sequence[Scene]) -> list[Choice]:
    """Return the heaviest rectangle of each word that names an object, with the true caption given."""
    found, cell = [], SIZES.cell
    for number, scene in enumerate(scenes):
        (caption,) = scene.captions
        maps = captioner.record(folder / "test" / f"{number:06}.png", text=caption).maps
        areas = next(each.areas for each in maps if each.areas is not None)  # of the only layer
        weights, extents = np.asarray(areas.weights).mean(0), np.asarray(areas.extents)  # (T, areas), (areas, 4)
        cells = extents[:, 2] * extents[:, 3]
        for place, named in enumerate(scene.grounding(caption)):
            if named is None:
                continue
            top, left, height, width = extents[weights[place].argmax()].tolist()
            mean = float((weights[place] * cells).sum() / weights[place].sum())
            thing = scene.objects[named]
            side = (2 * thing.radius + 2) // cell
            row, column = (thing.y - thing.radius) // cell, (thing.x - thing.radius) // cell
            shared = max(0, min(top + height, row + side) - max(top, row)) * max(0, min(left + width, column + side) - max(left, column))
            found.append(Choice(number, height * width, mean, side**2, shared / (height * width + side**2 - shared)))
    return found


def contrast(found: Sequence[Choice], scenes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (N, 2) sums and counts per scene of the mean cells, for the larger and for the smaller object."""
    sums = np.zeros((2, scenes, 2))
    for number in range(scenes):
        own = [each for each in found if each.scene == number]
        large = max((each.object for each in own), default=0)
        for each in own:
            sums[int(each.object < large), number] += (each.mean, 1)
    return sums[0], sums[1]


def larger_and_smaller(runs: list[list[Choice]], scenes: int) -> tuple[list[RunScore], list[RunScore]]:
    """Return the scores of the larger objects of each scene, by run, and those of the smaller ones."""
    pairs = [contrast(run, scenes) for run in runs]
    return [run_score("mean", larger) for larger, _ in pairs], [run_score("mean", smaller) for _, smaller in pairs]


def by_run(results: dict[str, list[list[Choice]]], scenes: int) -> list[dict[str, Any]]:
    """Return the mean cells by scene of each run, in the order of the seeds: of the larger and of the smaller object."""
    found = []
    for name, runs in results.items():
        for run in runs:
            means = (sums[:, 0] / np.maximum(sums[:, 1], 1) for sums in contrast(run, scenes))
            large, small = (" ".join(f"{mean:.3f}" for mean in of.tolist()) for of in means)
            found.append({"model": name, "larger": large, "smaller": small})
    return found


def table(results: dict[str, list[list[Choice]]], scenes: int, grid: tuple[int, int]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows: a row for each model."""
    sizes = (1, 4, 9)
    columns = ["areas", *(f"heaviest, object of {size}" for size in sizes), "overlap, %", *(f"mean, object of {size}" for size in sizes)]
    columns += ["larger less smaller", *COMPARED[1:], "seeds"]
    # Both objects are seen by the same run.
    tests = {name: compare_seeds(*larger_and_smaller(runs, scenes), paired=True) for name, runs in results.items()}
    compared, rows = comparison_cells(tests, 2), []
    for name, runs in results.items():
        chosen, means = (
            [round(float(np.mean([getattr(each, what) for run in runs for each in run if each.object == size])), 2) for size in sizes]
            for what in ("chosen", "mean")
        )
        overlap = 100 * float(np.mean([each.overlap for run in runs for each in run]))
        rows.append([MODELS[name][0], *chosen, round(overlap, 1), *means, *compared[name], len(runs)])
    spans = area_spans(grid, (3, 3))
    chance = float((spans[:, 2] * spans[:, 3]).double().mean())
    even = [round(chance, 2)] * len(sizes)
    rows.append(["a random rectangle", *even, None, *even, 0.0, None, None, None, None])
    return columns, rows


def main() -> None:
    parser = options(__doc__, out=RESULTS / "area_sizes.json")
    parser.add_argument("--runs", type=Path, default=Path("runs/area_sizes"))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--train", type=int, default=10_000, help="training scenes")
    parser.add_argument("--test", type=int, default=300, help="test scenes")
    parser.add_argument("--updates", type=int, default=1500)
    arguments = parser.parse_args()
    captions = write_set(arguments.runs, "train", arguments.train, 0)
    write_set(arguments.runs, "test", arguments.test, 10_000_000)
    scenes = read_scenes(arguments.runs / "test.regions.jsonl")
    results: dict[str, list[list[Choice]]] = {}
    for seed in arguments.seeds:
        for name in arguments.models:
            run = arguments.runs / f"{name}-{seed}"
            words = ["train", "captioning", "--captions", str(captions), "--out", str(run), *SETTINGS, *MODELS[name][1]]
            words += [f"training.seed={seed}", f"training.max_updates={arguments.updates}", "training.epochs=1000"]
            regard(*words, f"data.cache={arguments.runs}")
            captioner = Captioner.open(run)
            results.setdefault(name, []).append(choices(captioner, arguments.runs, scenes))
            grid = captioner.run.model.grid
            note = (
                f"`python benchmarks/area_sizes.py`: {len(scenes)} new scenes of two objects that cover 1, 4 or 9 of {grid[0]} x {grid[1]} "
                f"cells; {arguments.updates} updates. Heaviest: cells of the rectangle (up to 3 x 3) of the largest weight, the mean over "
                "the words for an object, its true caption given. Overlap: cells of both over cells of either. Mean: cells of a rectangle, "
                f"by weight; its difference between the two objects of a scene is tested. {machine()}."
            )
            write(arguments.out, *table(results, len(scenes), grid), note, runs=by_run(results, len(scenes)))


if __name__ == "__main__":
    main()
