"""Does attention look at what a word names? Captioners on generated scenes: is what they say true, and where did they look?

    python benchmarks/scenes.py --runs runs/scenes --out docs/results

Trains a soft, a hard and two area captioners on scenes of three objects (a run that is there already is resumed, or measured if it is
finished), captions new scenes greedily, and writes scenes.json: how many captions are true, by program, and how often the cell looked at
most lies on the object that a colour or shape word speaks of, beside three baselines: a random cell, a random object, uniform attention.
The order of captions is a convention that the image decides, as the order of words in a language is: the colours' own order, and of two
relations the one along the longer distance.

`--why` trains the soft captioner with one thing changed at a time instead, and writes scenes_why.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import RESULTS, Table, median, options, regard, spread, training_of, versions

from regard.data.synthetic.scene_files import read_scenes, write_scenes
from regard.data.synthetic.scenes import COLOURS, RELATIONS, Scene, SceneSettings, generate_scenes, is_grammatical, word_kind
from regard.metrics.pointing import attention_correctness, attention_entropy, cell_coverage, cell_hits, pointing_accuracy
from regard.tasks.captioning_prediction import Caption, Captioner

SETTINGS = SceneSettings(objects=(3, 3))
COMMON = [
    "image.size=64",
    "image.mean=[0.3, 0.3, 0.3]",
    "image.std=[0.3, 0.3, 0.3]",
    "model.encoder.channels=[24, 48]",
    "model.encoder.depth=[0, 1]",
    "model.encoder.coordinates=20",
    "data.valid_size=200",
    "decoding.max_length=16",
    "decoding.beam_size=1",
    "training.batch_tokens=704",
    "training.learning_rate=0.002",
    "training.schedule=cosine",
    "training.warmup_updates=200",
    "training.keep_checkpoints=1",
]
SHOW = [
    "model.type=show",
    "model.query_state=current",
    "model.embed_dim=64",
    "model.decoder_dim=128",
    "model.attention_dim=64",
    "model.feature_dim=64",
    "model.dropout=0.0",
]
TRANSFORMER = [
    "model.type=transformer",
    "model.embed_dim=64",
    "model.ff_dim=128",
    "model.num_heads=2",
    "model.encoder_layers=0",
    "model.decoder_layers=1",
    "model.dropout=0.0",
]
AREA = ["model.area.height=2", "model.area.width=2"]
HARD = ["model.attention=hard", "model.hard.reward=step", "model.hard.reward_weight=0.3"]
HARD += ["model.hard.half_soft=0.5", "model.hard.soft_batches=1400"]  # softly until it knows where to look
# What each is trained with, and for how many updates.
MODELS: dict[str, tuple[str, list[str], int]] = {
    "soft": ("Show, Attend and Tell, soft", SHOW, 1500),
    "hard": ("Show, Attend and Tell, hard (best cell)", [*SHOW, *HARD], 2500),
    "area": ("Show, Attend and Tell, areas of 2 x 2", [*SHOW, *AREA], 1500),
    "transformer_area": ("Transformer, areas of 2 x 2", [*TRANSFORMER, *AREA], 1500),
}

# The soft captioner with one thing changed: what makes attention point?
WHY: dict[str, tuple[str, list[str], int]] = {
    "soft": ("as in the table above", SHOW, 1500),
    "previous": ("attends before reading the last word, as published", [*SHOW, "model.query_state=previous"], 1500),
    "coordinates": ("coordinates of 1 at most", [*SHOW, "model.encoder.coordinates=1"], 1500),
    "penalty": ("doubly stochastic penalty, weight 1", [*SHOW, "model.doubly_stochastic=1"], 1500),
    "field": ("a cell sees 43 pixels, not 15", [*SHOW, "model.encoder.depth=[1, 4]"], 1500),
    "free": ("captions describe any two objects, in any order", SHOW, 1500),
}


def conventional(scene: Scene) -> str:
    """Return the one caption of a scene that the image decides."""
    first, second = sorted(range(len(scene.objects)), key=lambda number: list(COLOURS).index(scene.objects[number].colour))[:2]
    one, other = scene.objects[first], scene.objects[second]
    axis = 0 if abs(one.x - other.x) >= abs(one.y - other.y) else 1
    direction = -1 if (one.x, one.y)[axis] < (other.x, other.y)[axis] else 1
    relation = next(name for name, found in RELATIONS.items() if found == (axis, direction))
    return f"a {one.colour} {one.shape} {relation} a {other.colour} {other.shape}"


def write_set(folder: Path, name: str, count: int, start: int, order: str) -> Path:
    """Write scenes, unless they are there; return the file of captions."""
    captions = folder / f"{name}.tsv"
    if not captions.exists():
        scenes = generate_scenes(count, seed=1, start=start, settings=SETTINGS)
        if order == "convention":
            scenes = [replace(scene, captions=(conventional(scene),)) for scene in scenes]
        write_scenes(folder, name, scenes)
    return captions


class SceneSets(NamedTuple):
    """Training scenes and new ones: the file of training captions, the test scenes and their pictures."""

    captions: Path
    scenes: list[Scene]
    pictures: list[Path]


def scene_sets(folder: Path, train: int, test: int, order: str = "convention") -> SceneSets:
    """Write numbers of training and test scenes, unless they are there, and read the test scenes."""
    captions, new = write_set(folder, "train", train, 0, order), write_set(folder, "test", test, 10_000_000, order)
    pictures = [folder / line.partition("\t")[0] for line in new.read_text(encoding="utf-8").splitlines()]
    return SceneSets(captions, read_scenes(folder / "test.regions.jsonl"), pictures)


def train(run: Path, captions: Path, settings: Sequence[str], updates: int) -> None:
    """Train, or resume, with a `regard` command; its output goes through."""
    words = ["train", "captioning", "--captions", str(captions), "--out", str(run), *COMMON, *settings]
    words += [f"data.cache={captions.parent}", f"training.max_updates={updates}", "training.epochs=1000"]
    regard(*words)


def measure(captions: Sequence[Caption], scenes: Sequence[Scene], grid: tuple[int, int]) -> dict[str, float]:
    """Return what part of the captions is grammatical and true, and where their colour and shape words looked."""
    rows: dict[str, list[Any]] = {name: [] for name in ("kind", "weights", "hits", "coverage", "objects")}
    for item, scene in zip(captions, scenes, strict=True):
        attention = item.hypotheses[0].attention
        assert attention is not None
        words = item.text.split(" ")
        for word, number, weights in zip(words, scene.grounding(item.text), attention.numpy(), strict=False):
            if number is not None:
                region = scene.mask(number)
                rows["kind"].append(word_kind(word))
                rows["weights"].append(weights)
                rows["hits"].append(cell_hits(region, grid, tolerance=scene.size / grid[0] / 2))
                rows["coverage"].append(cell_coverage(region, grid))
                rows["objects"].append(len(scene.objects))
    found = {
        "grammatical": 100 * float(np.mean([is_grammatical(item.text) for item in captions])),
        "true": 100 * float(np.mean([scene.is_true(item.text) for item, scene in zip(captions, scenes, strict=True)])),
        "grounded words": float(len(rows["kind"])),
    }
    if not rows["kind"]:
        return found
    kinds = np.array(rows.pop("kind"))
    arrays = {name: np.stack(values) for name, values in rows.items()}
    for name in ("all", "colour", "shape"):
        chosen = kinds == name if name != "all" else np.ones(len(kinds), bool)
        if not chosen.any():
            continue
        objects = arrays["objects"][chosen].tolist()
        part = pointing_accuracy(arrays["weights"][chosen], arrays["hits"][chosen], objects=objects)
        found[f"pointing {name}"] = part.accuracy.value
        if name == "all" and part.random_object is not None:
            found |= {"random cell": part.random_cell.value, "random object": part.random_object.value}
    inside = attention_correctness(arrays["weights"], arrays["coverage"])
    found |= {"attention correctness": inside.correctness.value, "uniform attention": inside.uniform.value}
    return found | {"entropy": attention_entropy(arrays["weights"]).value}


MIDDLE = ("pointing colour", "pointing shape", "random cell", "random object", "attention correctness", "uniform attention", "entropy")


def _cells(found: Sequence[dict[str, float]]) -> list[Any]:
    # A captioner that names no object has no pointing.
    figures = {key: [run[key] for run in found if key in run] for key in ("true", "pointing all", *MIDDLE)}
    spreads = [spread(figures[key], 1, "{} [{}, {}]") if figures[key] else None for key in ("true", "pointing all")]
    return [*spreads, *(median(figures[key], 2 if key == "entropy" else 1) if figures[key] else None for key in MIDDLE)]


def main() -> None:
    parser = options(__doc__, out=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs/scenes"))
    parser.add_argument("--why", action="store_true", help="the soft captioner with one thing changed at a time")
    parser.add_argument("--models", nargs="+", choices=sorted({*MODELS, *WHY}), help="only these")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--train", type=int, default=20000, help="training scenes")
    parser.add_argument("--test", type=int, default=1000, help="test scenes")
    parser.add_argument("--updates", type=int, help="for all models; without, each its own")
    parser.add_argument("settings", nargs="*", help="key.sub=value, for all runs")
    arguments = parser.parse_args()
    models = WHY if arguments.why else MODELS
    if unknown := sorted(set(arguments.models or ()) - set(models)):
        parser.error(f"--models {', '.join(unknown)}: with{'' if arguments.why else 'out'} --why there are {', '.join(models)}")
    columns = ["model", "true captions", "pointing", "pointing, colours", "pointing, shapes", "random cell", "random object"]
    columns += ["attention inside the object", "uniform attention", "entropy", "updates", "seeds"]
    command = "python benchmarks/scenes.py" + (" --why" if arguments.why else "")
    note = (
        f"`{command}`: {arguments.test} new scenes of three objects, 64 x 64 pixels, greedy captions; a cell of 4 pixels sees 15. Truth is "
        "checked by program; pointing: the cell with the highest weight lies within half a cell of the object. Entropy in nats (uniform "
        f"{np.log(256):.2f}). Of several seeds the median, of truth and pointing with the lowest and the highest. {versions()}."
    )
    table = Table(arguments.out / ("scenes_why.json" if arguments.why else "scenes.json"), columns, note)
    for name in arguments.models or models:
        title, settings, updates = models[name]
        order = "free" if name == "free" else "convention"
        data = arguments.runs / f"data_{order}_{arguments.train}"
        captions, scenes, pictures = scene_sets(data, arguments.train, arguments.test, order)
        found = []
        for seed in arguments.seeds:
            run = arguments.runs / f"scenes_{name}-{seed}"
            train(run, captions, [*settings, *arguments.settings, f"training.seed={seed}"], arguments.updates or updates)
            captioner = Captioner.open(run)
            found.append(measure(captioner.caption(pictures, need_attention=True), scenes, captioner.run.model.grid))
            table.add([title, *_cells(found), training_of(run).updates, len(found)])


if __name__ == "__main__":
    main()
