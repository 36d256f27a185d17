"""Measure what large data of the other tasks cost before the first update: seconds and memory, at the first start and at the second.

    python benchmarks/corpus_tasks.py --folder /scratch/corpus --out docs/results/corpus_tasks.json

Takes the generated text of corpus.py: its sentences with labels, its pairs as premise and hypothesis, its sentences as the text of a
language model, and as captions, five of an image, whose features are precomputed. Measured as in corpus.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from corpus import measure, write_text
from harness import machine, options, read, write

from regard.data.image_features import write_features

LABELS, TOGETHER, GRID, DEPTH = 3, 5, (2, 2), 8


def lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a file."""
    with open(path, encoding="utf-8") as stream:
        for number, line in enumerate(stream):
            yield number, line.rstrip("\n")


def put(path: Path, rows: Iterator[str]) -> str:
    """Write lines to a file."""
    with open(path, "w", encoding="utf-8") as stream:
        stream.writelines(f"{row}\n" for row in rows)
    return str(path)


def classification(folder: Path, files: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Write labelled sentences; return the files and the options that name them."""
    path = put(folder / "labelled.tsv", (f"{number % LABELS}\t{line}" for number, line in lines(files[0])))
    return [path], ["--train", path]


def entailment(folder: Path, files: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Write labelled pairs."""
    both = zip(lines(files[0]), lines(files[1]), strict=True)
    path = put(folder / "pairs.tsv", (f"{number % LABELS}\t{premise}\t{hypothesis}" for (number, premise), (_, hypothesis) in both))
    return [path], ["--train", path]


def lm(folder: Path, files: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Return the text of a language model."""
    return [files[0]], ["--text", files[0]]


def captioning(folder: Path, files: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Write captions, and features of their images."""
    path, features = folder / "captions.tsv", folder / "features.safetensors"
    put(path, (f"{number // TOGETHER}.jpg\t{line}" for number, line in lines(files[0])))
    count = sum(1 for _ in lines(files[0]))
    names = [f"{number}.jpg" for number in range(-(-count // TOGETHER))]
    row = np.ones((GRID[0] * GRID[1], DEPTH), np.float16)
    write_features(features, names, (row for _ in names), grid=GRID)
    return [str(path)], ["--captions", str(path), "--features", str(features), "model.encoder.type=features"]


TASKS: dict[str, Callable[[Path, tuple[str, str]], tuple[list[str], list[str]]]] = {
    "classification": classification,
    "entailment": entailment,
    "lm": lm,
    "captioning": captioning,
}


def main() -> None:
    parser = options(__doc__, lines=2_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="for the text and the runs")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="of others the results stay")
    arguments = parser.parse_args()
    text = write_text(arguments.folder, arguments.lines)
    note = f"`python benchmarks/corpus_tasks.py`: {arguments.lines:,} lines, default settings. {machine(os.cpu_count())}."
    table = read(arguments.out)
    columns: dict[str, Any] = {
        name: {row[0]: row[place] for row in table["rows"]} for place, name in enumerate(table.get("columns", [])) if place
    }
    for task in arguments.tasks:
        files, words = TASKS[task](arguments.folder, text)
        columns[task] = measure(arguments.folder / f"run-{task}", files, [task, *words])
        for path in set(files) - set(text):
            Path(path).unlink()
        names = [name for name in TASKS if name in columns]
        rows = [[name, *(columns[column].get(name) for column in names)] for name in columns[task]]
        write(arguments.out, ["task", *names], rows, note)
        print(task, columns[task], flush=True)


if __name__ == "__main__":
    main()
