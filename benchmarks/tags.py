"""Inline tags in translations, where their right places are known.

    python benchmarks/pointing.py --work FOLDER
    python benchmarks/tags.py --work FOLDER [--seeds 3]
    python benchmarks/fill_tables.py

Puts random tags into the test lines of the set `reverse` (1 to 4 pairs a line, nested or side by side, and an empty tag), and translates
them with the runs that pointing.py trained in FOLDER. The target is the reversed source, so each tag's place follows from the lengths. A
line is right if all its tags are; a wrong translation counts, too. Writes tags.json.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import NamedTuple

import torch
from harness import RESULTS, Table, machine, mean_range, options
from pointing import FRESH
from word_links import MODELS, trained

from regard.data.lines import read_lines
from regard.tasks import Translator

COLUMNS = ["model", "links in training", "seeds", "exactly once and nested, lines", "right place, tags, %", "right lines, %"]
Places = dict[str, tuple[int, int]]
TAG = re.compile(r"<(/?)(\w+)(/?)>")


class Pair(NamedTuple):
    """A pair of tags and the source words between them, `first` to `last`."""

    name: str
    first: int
    last: int


def pairs_within(random_: random.Random, first: int, last: int, names: list[str]) -> list[Pair]:
    """Draw pairs for words `first` to `last`, the outer before the inner, as many as there are names to take."""
    found: list[Pair] = []
    while names and first <= last:
        start = random_.randint(first, last)
        pair = Pair(names.pop(), start, random_.randint(start, last))
        found.append(pair)
        if random_.random() < 0.5:
            found += pairs_within(random_, pair.first, pair.last, names)
        first = pair.last + 1
    return found


def written(words: list[str], pairs: list[Pair], empty: int) -> str:
    """Return the words with the tags, and `<x/>` after the word `empty`."""
    shown = []
    for place, word in enumerate(words):
        opening = "".join(f"<{pair.name}>" for pair in pairs if pair.first == place)
        closing = "".join(f"</{pair.name}>" for pair in reversed(pairs) if pair.last == place)
        shown.append(opening + word + ("<x/>" if place == empty else "") + closing)
    return " ".join(shown)


def places(text: str) -> Places | None:
    """Return the number of words before each tag's start and end; None unless each is there once and pairs are well nested."""
    found: Places = {}
    inside: list[tuple[str, int]] = []
    for tag in TAG.finditer(text):
        before = len(TAG.sub("", text[: tag.start()]).split())
        closes, name, empty = tag.groups()
        if closes:
            if not inside or inside[-1][0] != name:
                return None
            found[name] = (inside.pop()[1], before)
        elif name in found or name in dict(inside):
            return None
        elif empty:
            found[name] = (before, before)
        else:
            inside.append((name, before))
    return None if inside else found


def expected(size: int, pairs: list[Pair], empty: int) -> Places:
    """Return the places in the reversed line."""
    right = {pair.name: (size - 1 - pair.last, size - pair.first) for pair in pairs}
    return right | {"x": (size - empty, size - empty)}


def figures(found: list[Places | None], right: list[Places]) -> dict[str, float]:
    """Return the number of lines with every tag once, and the shares of right tags and of right lines in %."""
    both = list(zip(found, right, strict=True))
    tags = sum((places or {}).get(name) == place for places, known in both for name, place in known.items())
    return {
        "whole": sum(places is not None and places.keys() == known.keys() for places, known in both),
        "tags": 100 * tags / sum(map(len, right)),
        "lines": 100 * sum(places == known for places, known in both) / len(both),
    }


def main() -> None:
    """Measure each kind of run, and write the table."""
    parser = options(__doc__, out=RESULTS / "tags.json", seeds=3)
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines, right = [], []
    random_ = random.Random(1)
    for line in read_lines(given.work / f"reverse-{FRESH}" / "test.source"):
        words = line.split()
        pairs = pairs_within(random_, 0, len(words) - 1, list("abcd")[: random_.randint(1, 4)])
        empty = random_.randrange(len(words))
        lines.append(written(words, pairs, empty))
        right.append(expected(len(words), pairs, empty))
    count = sum(map(len, right))
    note = f"`python benchmarks/tags.py`: {len(lines):,} lines of *reverse* with {count:,} pairs and empty tags, mean over the seeds "
    table = Table(given.out, COLUMNS, f"{note}(smallest to largest); {machine()}.", key=2)
    for model in MODELS:
        for taught in (False, True):
            found = []
            for seed in range(1, given.seeds + 1):
                translator = Translator(trained(given.work, "reverse", model, seed, taught=taught))
                texts = [item.text for item in translator.translate_tagged(lines)]
                found.append({"seed": seed, **figures([places(text) for text in texts], right)})
            row = [model, "known" if taught else "none", given.seeds, min(one["whole"] for one in found)]
            table.add([*row, *(mean_range([one[name] for one in found]) for name in ("tags", "lines"))], found)


if __name__ == "__main__":
    main()
