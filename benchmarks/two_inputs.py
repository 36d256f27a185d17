"""What is a second input worth when words of the first are hidden, or the image is another one?

    python benchmarks/two_inputs.py runs/one runs/serial runs/crossed --source test.en --second-source test.fr --target test.de
    python benchmarks/two_inputs.py runs/image --source test.en --second-source test.images --images FOLDER --target test.de --colours

Translates a test set with each run: as it is, and with 20, 40 and 60 % of the words of the sources hidden (taken away, at least one word of
each sentence stays; the same words for every run). Runs of images also translate with the image of another sentence and, where they were
trained to do without (`model.second.drop`), without any; `--colours` hides all colour words, too. Prints a table of BLEU, chrF and exact
match, and writes it to two_inputs.json in `--out`.

`--regions FILE` of `regard generate scene-sentences` adds how often the cell looked at most lies on the object that a word of the output
speaks of, beside a random cell.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import Table, options

from regard.data.lines import read_lines
from regard.data.parallel import join_inputs
from regard.data.synthetic.scene_files import read_scenes
from regard.metrics import bleu, chrf, exact_match
from regard.metrics.pointing import box_region, cell_hits, pointing_accuracy
from regard.tasks import Translator
from regard.tasks.captioning_data import derangement
from regard.tasks.translation_prediction import Translation

SHARES = (0.2, 0.4, 0.6)
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

    found = {"as it is": lines(sources, seconds)}
    hidden: dict[str, list[str]] = {}
    for share in SHARES:
        hidden[f"{share:.0%} hidden"] = [hide_words(line, share, f"{number} {share}") for number, line in enumerate(sources)]
    if colours:
        hidden["colours hidden"] = [without_colours(line) for line in sources]
    found |= {name: lines(first, seconds) for name, first in hidden.items()}
    if images:
        others = [seconds[place] for place in derangement(len(seconds), 1)]
        found |= {f"{name}, another image": lines(first, others) for name, first in {"as it is": sources, **hidden}.items()}
    if images and optional:
        found |= {f"{name}, no image": lines(first, [""] * len(seconds)) for name, first in {"as it is": sources, **hidden}.items()}
    return found


def pointing(translator: Translator, found: Sequence[Translation], regions: Path) -> tuple[float, float]:
    """Return how often, in %, the cell of the highest weight lies on the object that a right word speaks of, and so for a random cell."""
    second = translator.run.config.model.second
    assert second is not None
    assert second.image is not None
    grid, weights, hits = second.image.grid, [], []
    objects = [json.loads(line)["objects_of_words"] for line in read_lines(regions)]
    for item, scene, numbers in zip(found, read_scenes(regions), objects, strict=True):
        attention = item.hypotheses[0].attention
        assert attention is not None
        start = len(item.source.ids) - grid[0] * grid[1]
        for word, number, row in zip(item.text.split(), numbers, attention, strict=False):
            if word in scene.objects[number][:2]:
                weights.append(row[start : start + grid[0] * grid[1]].numpy())
                # Boxes in pixels of eight per cell; a hit may be half a cell away.
                region = box_region([scene.box(number)], grid[0] * 8, grid[1] * 8)
                hits.append(cell_hits(region, grid, tolerance=4))
    if not weights:
        return float("nan"), float("nan")
    scores = pointing_accuracy(np.stack(weights), np.stack(hits))
    return scores.accuracy.value, scores.random_cell.value


def main(given: Sequence[str] | None = None) -> None:
    """Translate a test set under each condition with each run."""
    parser = options(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--second-source", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--colours", action="store_true")
    parser.add_argument("--regions", type=Path)
    asked = parser.parse_args(given)
    sources, references = read_lines(asked.source), read_lines(asked.target)
    seconds = [] if asked.second_source is None else read_lines(asked.second_source)
    note = f"python benchmarks/two_inputs.py, {asked.source.name}: {len(sources)} sentences"
    path = None if asked.out is None else asked.out / "two_inputs.json"
    table = Table(path, ["run", "condition", "BLEU", "chrF2", "exact match", "pointing", "random cell"], note, key=2)
    for run in asked.runs:
        translator = Translator.open(run)
        config, images = translator.run.config, translator.run.vocabularies.images is not None
        translator.use_images(asked.images if images else None, names=asked.second_source)
        optional = config.second is not None and config.second.drop > 0
        own = seconds if config.second is not None else []
        for name, lines in conditions(sources, own, images=images, optional=optional, colours=asked.colours).items():
            looks = images and asked.regions is not None and name == "as it is"
            found = translator.translate(lines, need_attention=looks)
            outputs = [item.text for item in found]
            scores: list[Any] = [round(score(outputs, references).value, 2) for score in (bleu, chrf, exact_match)]
            looked = [round(value, 1) for value in pointing(translator, found, asked.regions)] if looks else [None, None]
            table.add([run.name, name, *scores, *looked])


if __name__ == "__main__":
    main()
