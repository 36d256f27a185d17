"""An update of 100 captions of Flickr8k's models: each with its image, and five that share one (`data.captions_per_image=5`).

    python benchmarks/together.py

Forward and backward in bfloat16 on random images and words, with one thread, interleaved; the median of the rounds. Captions that share an
image are not sorted by length, so they have more padding: 18 words for 14, as on Flickr8k. Writes together.json.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from harness import RESULTS, ROOT, Table, interleaved, machine, median, options, seconds

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

    def contender(together: int) -> Callable[[int], float]:
        images, words = torch.randn(CAPTIONS // together, 3, size, size), torch.randint(4, VOCABULARY, (CAPTIONS, LENGTHS[together]))

        def update() -> None:
            with torch.autocast("cpu", torch.bfloat16):
                sums = model(images, torch.full((len(images),), cells), words, words, torch.full((CAPTIONS,), WORDS))
            sums.loss.backward()
            model.zero_grad()

        return lambda _: seconds(update)

    found = interleaved({str(together): contender(together) for together in LENGTHS}, rounds, warm_up=1)
    return {int(together): median(times, 6) for together, times in found.items()}


def main() -> None:
    arguments = options(__doc__, out=RESULTS / "together.json", rounds=7).parse_args()
    torch.set_num_threads(1)
    note = (
        f"`python benchmarks/together.py`: {CAPTIONS} captions, images of 96 x 96, medians of {arguments.rounds} interleaved rounds; "
        f"{machine()}."
    )
    columns = ["model", "s, image encoded per caption", "s, image encoded once per five captions", "ratio"]
    table = Table(arguments.out, columns, note)
    for name in MODELS:
        found = measure(name, arguments.rounds)
        table.add([name, round(found[1], 3), round(found[5], 3), round(found[5] / found[1], 2)])


if __name__ == "__main__":
    main()
