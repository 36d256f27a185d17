"""What is a second input worth when words of the first are hidden, or the image is another one?

    regard compare studies/two_inputs.yaml --data FOLDER --out runs/two_inputs
    python benchmarks/two_inputs.py studies/two_inputs.yaml --runs runs/two_inputs --data FOLDER --out docs/results/two_inputs.json
    python benchmarks/fill_tables.py

Translates the test sets of a study with each of its finished runs: as they are, and with 20, 40 and 60 % of the words of the sources hidden
(taken away, at least one word of each sentence stays; the same words for every run). Runs of images also translate with the image of
another sentence and, where they were trained to do without (`model.second.drop`), without any; `--colours` hides all colour words, too.
Writes mean and standard deviation over the seeds of each variant. The file keeps the scores of every run, so a run that is gone is not
measured again. `--scales NAME` adds the runs of a scale of the study.

`--regions FILE` of `regard generate scene-sentences` adds how often the cell looked at most lies on the object that a word of the output
speaks of, beside a random cell; nothing is hidden then. A crossed network reads the image in its encoder, too: there it also says how often
this holds when the decoder's weights are followed through the co-attention. And it says how often the cell whose removal costs the word
most lies there, for the first 200 sentences (`leave-one-out`); this is added to runs that are measured already, too.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import not_done, options, read, versions, write

from regard.config.study import StudyCell, StudyConfig, load_study, study_cells
from regard.data.lines import read_lines
from regard.data.parallel import join_inputs
from regard.data.synthetic.scene_files import read_scenes
from regard.explanations import explain
from regard.explanations.rollout import LayerGraph, Shares, compose
from regard.metrics import bleu, chrf, exact_match
from regard.metrics.pointing import box_region, cell_hits, pointing_accuracy
from regard.tasks import Translator
from regard.tasks.attention_records import attention_records
from regard.tasks.captioning_data import derangement
from regard.tasks.explained_examples import translation_batches
from regard.tasks.translation_prediction import Translation
from regard.tasks.translation_run import TranslationRun

SHARES = (0.2, 0.4, 0.6)
AS_IT_IS = "as it is"
SCORES = {"BLEU": bleu, "chrF2": chrf, "exact match": exact_match}
POINTING, FOLLOWED, REMOVED, RANDOM = "pointing", "pointing, co-attention followed", "pointing, leave-one-out", "random cell"
LOOKED = (POINTING, FOLLOWED, REMOVED, RANDOM)
EXPLAINED = 200
COLOURS = frozenset(
    (
        *("red", "green", "blue", "yellow", "purple", "cyan", "pink", "white", "black", "brown", "orange", "gray", "grey", "tan"),
        *("blond", "blonde", "beige", "gold", "silver", "colorful", "dark", "light"),
    )
)


def hide_words(line: str, share: float, seed: str) -> str:
    """Take a share of the words of a line away, rounded; one at least stays."""
    words = line.split()
    count = min(round(share * len(words)), len(words) - 1)
    gone = set(random.Random(seed).sample(range(len(words)), max(0, count)))
    return " ".join(word for place, word in enumerate(words) if place not in gone)


def without_colours(line: str) -> str:
    """Take the colour words of a line away, unless nothing else is in it."""
    return " ".join(word for word in line.split() if word.lower().strip(".,") not in COLOURS) or line


def conditions(sources: Sequence[str], seconds: Sequence[str], *, images: bool, optional: bool, colours: bool) -> dict[str, list[str]]:
    """Return the lines of each condition; `seconds` is empty for a run of one input."""

    def lines(first: Sequence[str], second: Sequence[str]) -> list[str]:
        return [join_inputs(*pair) for pair in zip(first, second, strict=True)] if second else list(first)

    firsts = {AS_IT_IS: list(sources)}
    for share in SHARES:
        firsts[f"{share:.0%} hidden"] = [hide_words(line, share, f"{number} {share}") for number, line in enumerate(sources)]
    if colours:
        firsts["colours hidden"] = [without_colours(line) for line in sources]
    found = {name: lines(first, seconds) for name, first in firsts.items()}
    if images:
        others = [seconds[place] for place in derangement(len(seconds), 1)]
        found |= {f"{name}, another image": lines(first, others) for name, first in firsts.items()}
    if images and optional:
        found |= {f"{name}, no image": lines(first, [""] * len(seconds)) for name, first in firsts.items()}
    return found


def decoder_weights(found: Sequence[Translation], grid: tuple[int, int]) -> list[np.ndarray]:
    """Return the weights of the cells for each word of the outputs, as the decoder attends."""
    weights = []
    for item in found:
        attention = item.hypotheses[0].attention
        assert attention is not None
        start = len(item.source.ids) - grid[0] * grid[1]
        weights.append(attention[:, start : start + grid[0] * grid[1]].numpy())
    return weights


def followed_weights(run: Path, lines: Sequence[str]) -> list[np.ndarray]:
    """Return the weights of the cells for each word of the outputs of a crossed network, through the co-attention of its encoder.

    Attention rollout (Abnar and Zuidema 2020): in each layer of the encoder half a state stays, half is what it attends to. The decoder
    reads both inputs, each with its contribution.
    """
    weights = []
    for record in attention_records(run, lines):
        maps = {each.name: torch.as_tensor(np.array(each.weights, dtype=np.float64)).mean(0, keepdim=True) for each in record.maps}
        encoder, decoder = (1 + sum(name.startswith(part) for name in maps) for part in ("left co-attention", "image, cross"))
        count, cells = maps["right co-attention 1"].shape[1:]
        words, same = torch.eye(count).double() / 2, torch.eye(cells).double() / 2
        steps: list[Shares] = []
        for layer in range(1, encoder):
            to_words, to_cells = maps[f"left co-attention {layer}"] / 2, maps[f"right co-attention {layer}"] / 2
            steps.append({"words": {"words": words, "cells": to_cells}, "cells": {"cells": same, "words": to_words}})
        reads: dict[str, list[torch.Tensor]] = {"words": [], "cells": []}
        for layer in range(1, decoder):
            shares = maps[f"contribution of each input, cross {layer}"].split(1, -1)
            for name, share, attended in zip(reads, shares, ("first input", "image"), strict=True):
                reads[name].append(share * maps[f"{attended}, cross {layer}"])
        steps.append({"target": {name: torch.stack(each).sum(0) for name, each in reads.items()}})
        start = {"words": torch.zeros(1, count, cells).double(), "cells": torch.eye(cells).double()[None]}
        weights.append(compose(LayerGraph(start, steps, "target"))[0].numpy())
    return weights


def removal_scores(run: TranslationRun, lines: Sequence[str], outputs: Sequence[str], cells: int) -> list[np.ndarray]:
    """Return what the removal of each cell costs each word of the outputs, in nats."""
    found = [np.zeros((0, cells)) for _ in lines]
    for item in translation_batches(run, list(zip(lines, outputs, strict=True))):
        scores = explain(item.batch, "leave-one-out").numpy()
        for number, start, table in zip(item.numbers, item.starts, scores, strict=True):
            found[number - 1] = table[:, start + 1 : start + 1 + cells].clip(0)  # a gain is no cost
    return found


def pointing_when_removed(run: Path, test: Mapping[str, str], regions: Path) -> float:
    """Return how often, in %, the cell whose removal costs a right word most lies on what it speaks of."""
    translator = Translator.open(run)
    translator.use_images(test.get("images"), names=test["second_source"])
    second = translator.run.config.second
    assert second is not None
    assert second.image is not None
    grid = second.image.grid
    pairs = zip(read_lines(test["source"]), read_lines(test["second_source"]), strict=True)
    lines = [join_inputs(*pair) for pair in pairs][:EXPLAINED]
    outputs = [item.text for item in translator.translate(lines)]
    return pointing(removal_scores(translator.run, lines, outputs, grid[0] * grid[1]), outputs, regions, grid, most=EXPLAINED)[0]


def pointing(
    weights: Sequence[np.ndarray], outputs: Sequence[str], regions: Path, grid: tuple[int, int], *, most: int | None = None
) -> tuple[float, float]:
    """Return how often, in %, the cell of the highest weight lies on the object that a right word speaks of, and so for a random cell.

    `most`: how many of the first scenes these are; None: all.
    """
    rows, hits = [], []
    objects = [json.loads(line)["objects_of_words"] for line in read_lines(regions)][:most]
    for text, scene, numbers, each in zip(outputs, read_scenes(regions)[:most], objects, weights, strict=True):
        for word, number, row in zip(text.split(), numbers, each, strict=False):
            if word in scene.objects[number][:2]:
                rows.append(row)
                # Boxes in pixels of eight per cell; a hit may be half a cell away.
                hits.append(cell_hits(box_region([scene.box(number)], grid[0] * 8, grid[1] * 8), grid, tolerance=4))
    if not rows:
        return float("nan"), float("nan")
    scores = pointing_accuracy(np.stack(rows), np.stack(hits))
    return scores.accuracy.value, scores.random_cell.value


def measure(run: Path, test: dict[str, str], *, colours: bool, regions: Path | None) -> dict[str, dict[str, float]]:
    """Return the scores of a run under each condition."""
    translator = Translator.open(run)
    config, images = translator.run.config, translator.run.vocabularies.images is not None
    sources, references = read_lines(test["source"]), read_lines(test["target"])
    seconds = read_lines(test["second_source"]) if config.second is not None else []
    translator.use_images(test.get("images") if images else None, names=test.get("second_source"))
    optional = config.second is not None and config.second.drop > 0
    scores = {}
    for name, lines in conditions(sources, seconds, images=images, optional=optional, colours=colours).items():
        if regions is not None and name != AS_IT_IS:
            continue
        looks = images and regions is not None
        found = translator.translate(lines, need_attention=looks)
        outputs = [item.text for item in found]
        scores[name] = {title: score(outputs, references).value for title, score in SCORES.items()}
        if looks and regions is not None:
            assert config.model.second is not None
            assert config.model.second.image is not None
            grid = config.model.second.image.grid
            looked = pointing(decoder_weights(found, grid), outputs, regions, grid)
            scores[name] |= {POINTING: looked[0], RANDOM: looked[1]}
            if config.model.type == "crossed":
                scores[name][FOLLOWED] = pointing(followed_weights(run, lines), outputs, regions, grid)[0]
    return scores


def table(study: StudyConfig, kept: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Return a row for each data set, variant and kind of image: mean and standard deviation over the runs, by column."""
    score, rows = "exact match" if study.metric == "exact match" else "BLEU", list[dict[str, Any]]()
    for data, there in study.data.items():
        for name, variant in study.variants.items():
            cells = [StudyCell(data=data, variant=name, seed=seed) for seed in study.seeds]
            runs = [kept[cell.name] for cell in cells if cell.name in kept]
            of_image = dict[str, dict[str, Any]]()
            for condition in runs[0] if runs else ():
                words, _, image = condition.partition(", ")
                start = {"data": there.title or data, "variant": variant.title or name, "image": image or None, "runs": len(runs)}
                row = of_image.setdefault(image, start)
                row[score if words == AS_IT_IS else words] = shown([run[condition][score] for run in runs])
                for title in LOOKED:
                    row[title] = shown([run[condition][title] for run in runs if title in run[condition]])
            if len(of_image) > 1:
                of_image[""]["image"] = "its own"
            rows += of_image.values()
    return rows


def shown(values: Sequence[float]) -> str | None:
    """Return the mean and, over two runs or more, the standard deviation."""
    if not values:
        return None
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def main(given: Sequence[str] | None = None) -> None:
    """Translate the test sets of a study under each condition with each run."""
    parser = options(__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the study's runs and results; that of a scale: RUNS_SCALE")
    parser.add_argument("--scales", nargs="*", default=[], help="scales of the study to measure, too")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--colours", action="store_true")
    parser.add_argument("--regions", type=Path)
    asked = parser.parse_args(given)
    folders = [(None, asked.runs), *((scale, asked.runs.with_name(f"{asked.runs.name}_{scale}")) for scale in asked.scales)]
    studies = [(load_study(asked.study, data=asked.data, scale=scale), folder) for scale, folder in folders]
    kept: dict[str, dict[str, dict[str, float]]] = read(asked.out).get("runs", {})
    for study, folder in studies:
        for cell in study_cells(study):
            run = folder / "runs" / cell.name
            if cell.name not in kept and (run / "model").exists():
                kept[cell.name] = measure(run, study.data[cell.data].test, colours=asked.colours, regions=asked.regions)
            elif cell.name not in kept or POINTING not in kept[cell.name][AS_IT_IS] or REMOVED in kept[cell.name][AS_IT_IS]:
                continue
            scores = kept[cell.name][AS_IT_IS]
            if POINTING in scores and (run / "model").exists():
                scores[REMOVED] = pointing_when_removed(run, study.data[cell.data].test, asked.regions)
            write_table(asked.out, [study for study, _ in studies], kept, asked.study.name)


def write_table(out: Path | None, studies: Sequence[StudyConfig], kept: dict[str, dict[str, dict[str, float]]], name: str) -> None:
    """Write the table of the runs so far; columns without a figure are left out."""
    rows = [row for study in studies for row in table(study, kept)]
    columns = [column for column in dict.fromkeys(key for row in rows for key in row) if any(row.get(column) is not None for row in rows)]
    # As the words are hidden, and where a model looks last.
    columns.sort(key=lambda column: column in LOOKED)
    missing = [cell.name for study in studies for cell in study_cells(study) if cell.name not in kept]
    hidden = "; hidden: BLEU without these words of the first input" if any("hidden" in column for column in columns) else ""
    removed = f"; leave-one-out: the cell whose removal costs the word most, first {EXPLAINED} sentences" if REMOVED in columns else ""
    note = f"`python benchmarks/two_inputs.py studies/{name}`: mean ± standard deviation over the runs{hidden}{removed}."
    note += f"{not_done(missing)} {versions()}."
    write(out, columns, [[row.get(column) for column in columns] for row in rows], note, runs=kept)


if __name__ == "__main__":
    main()
