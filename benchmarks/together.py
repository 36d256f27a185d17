"""An update of 100 captions of Flickr8k's models: each with its image, and five that share one (`data.captions_per_image=5`).

    python benchmarks/together.py

Forward and backward in bfloat16 on random images and words, with one thread, interleaved; the median of the rounds. Captions that share an
image are not sorted by length, so they have more padding: 18 words for 14, as on Flickr8k. Writes together.json.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from multi30k import ROOT, write

import regard
from regard.config import load_config
from regard.config.captioning import CaptioningConfig
from regard.models.captioning import build_captioner

CAPTIONS, WORDS, VOCABULARY = 100, 13, 2600
# Captions of an image in a batch: the padded length.
LENGTHS = {1: 14, 5: 18}
AREAS = ["model.area.height=3", "model.area.width=3"]
MODELS: dict[str, tuple[str, list[str]]] = {
    "Show, Attend and Tell, soft": ("flickr8k_show", []),
    "Transformer": ("flickr8k_transformer", []),
    "Transformer, areas of 3 x 3": ("flickr8k_transformer", AREAS),
}


def measure(name: str, rounds: int) -> dict[int, float]:
    """Return the seconds of an update, a median, by how many captions share an image."""
    file, settings = MODELS[name]
    config = load_config(ROOT / "configs" / f"{file}.yaml", settings, kind=CaptioningConfig)
    torch.manual_seed(1)
    model = build_captioner(config.model, image_size=config.image.size, vocab_size=VOCABULARY).train()
    cells, size = model.grid[0] * model.grid[1], config.image.size
    seconds: dict[int, list[float]] = {together: [] for together in LENGTHS}
    for number in range(rounds + 1):
        for together, length in LENGTHS.items():
            images, words = torch.randn(CAPTIONS // together, 3, size, size), torch.randint(4, VOCABULARY, (CAPTIONS, length))
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16):
                sums = model(images, torch.full((len(images),), cells), words, words, torch.full((CAPTIONS,), WORDS))
            sums.loss.backward()
            model.zero_grad()
            if number:  # the first is a warm-up
                seconds[together].append(time.perf_counter() - start)
    return {together: statistics.median(found) for together, found in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "together.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[list[Any]] = []
    for name in MODELS:
        found = measure(name, arguments.rounds)
        rows.append([name, round(found[1], 3), round(found[5], 3), round(found[5] / found[1], 2)])
        print(rows[-1], flush=True)
    note = (
        f"`python benchmarks/together.py`: {CAPTIONS} captions, images of 96 x 96, medians of {arguments.rounds} interleaved rounds; one "
        f"thread, {platform.machine()}, torch {torch.__version__}, regard {regard.__version__}."
    )
    write(arguments.out, ["model", "s, image encoded per caption", "s, image encoded once per five captions", "ratio"], rows, note)


if __name__ == "__main__":
    main()
