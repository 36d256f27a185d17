"""Measure the page of whole models: how many bytes it has, and how long a browser takes to show it.

    python benchmarks/page_size.py --out docs/results/page_size.json

BERT-base over 128 tokens and ViT-base over an image of 224 x 224 pixels, each with all layers and heads, as `regard.view` writes them. The
weights are untrained: neither the size of a page nor its drawing depends on them. Each page is opened anew in every round, in a headless
Chromium; "open" ends when its first picture is drawn, "every head" is the time from there to a small map of every layer and head.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import Table, machine, options
from view_pictures import browser

import regard
from regard.errors import DataError
from regard.viewer import Page

TOKENS = 128
FRAMES = "requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])))"
DRAWN = "return document.querySelectorAll('#view canvas, #view td, #view rect').length"


def pages() -> dict[str, tuple[Page, int]]:
    """Return each page with the number of its weights."""
    from transformers import BertConfig, BertModel, ViTConfig, ViTModel

    torch.manual_seed(1)
    found = {}
    for name, model in (("BERT-base, 128 tokens", BertModel(BertConfig()).eval()), ("ViT-base, 224 x 224", ViTModel(ViTConfig()).eval())):
        with regard.watch(model) as seen, torch.no_grad():
            if isinstance(model, BertModel):
                model(torch.randint(1000, 30000, (1, TOKENS)))
                shown = regard.view(seen, [f"token{number}" for number in range(TOKENS)])
            else:
                pixels = torch.rand(3, 224, 224)
                model(pixels.unsqueeze(0))
                shown = regard.view(seen, image=pixels)
        found[name] = shown, sum(call.weights.numel() for call in seen)
    return found


def times(program: Any, path: Path) -> tuple[float, float]:
    """Open a page and then its view of all layers and heads; return the seconds of both.

    Raises:
        DataError: a view draws nothing.
    """
    program.get("about:blank")
    program.set_script_timeout(60)
    found = []
    for act in (lambda: program.get(path.as_uri()), lambda: program.execute_script("document.getElementById('tab-heads').click()")):
        begun = time.perf_counter()
        act()
        program.execute_async_script(FRAMES)
        found.append(time.perf_counter() - begun)
        if not program.execute_script(DRAWN):
            raise DataError(f"{path.name}: the page draws nothing")
    return found[0], found[1]


def main() -> None:
    arguments = options(__doc__, rounds=5).parse_args()
    note = f"`python benchmarks/page_size.py`: untrained weights; median of {arguments.rounds} rounds. {machine(os.cpu_count())}."
    table = Table(arguments.out, ["page", "weights", "MB", "in a notebook, MB", "open, s", "every head, s"], note)
    program: Any = browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, (page, weights) in pages().items():
                path = Path(folder) / "page.html"
                page.save(path)
                opened, heads = zip(*(times(program, path) for _ in range(arguments.rounds)), strict=True)
                sizes = [round(size / 1e6, 2) for size in (path.stat().st_size, len(page._repr_html_().encode()))]
                table.add([name, f"{weights:,}", *sizes, round(statistics.median(opened), 2), round(statistics.median(heads), 2)])
    finally:
        program.quit()


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        sys.exit(f"page_size: {error}")
