"""A training step of a Transformer with standard attention, with areas, and with area features (Eq. 9).

    python benchmarks/area_step.py --out docs/results/area_step.json
    python benchmarks/area_step.py --captioner --out docs/results/area_step_captioner.json

Transformer Small (Li et al. 2018, section 4.1.1: 2 layers, 256, 1024, 4 heads) over a vocabulary of 8,000, areas of up to 5 tokens in both
layers, in encoder self-, decoder self- and encoder-decoder attention. A step is forward, backward and optimizer on a batch of at most 4,096
padded tokens, sentences of 13 to 30. All models see the same batches, in one process; they take turns (A B C A B C
...), a round is one step on each batch. Medians of the rounds and of the ratios round by round; the first model stands against itself
once more, which shows what a difference must exceed. Ordinary attention is computed by the native library, too, as areas of one; a
third row has PyTorch's own kernel in its place. The paper's ratios are for Base on eight P100: 0.4, 0.5 and 0.8 seconds.

The captioner is that of configs/flickr8k_transformer.yaml, its image encoder included, with areas of up to 3 x 3 cells in both layers; a
batch is 120 made-up images with a caption of 15 words each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from harness import ROOT, interleaved, machine, median, options, ratio, seconds, write
from torch import Tensor, nn

from regard import ops
from regard.config import AreaConfig, TrainingConfig, TransformerConfig, load_config
from regard.config.captioning import CaptioningConfig
from regard.config.images import GridAreaConfig
from regard.data.batching import collate, plan_batches
from regard.models import build
from regard.models.captioning import build_captioner
from regard.training.optimizer import build_optimizer

WARM_UP, BATCHES, VOCABULARY = 2, 2, 8000
CAPTIONS, WORDS = 120, 15
CAPTIONER = ROOT / "configs" / "flickr8k_transformer.yaml"
Given = Sequence[Tensor]
"""Arguments of a model: inputs and their lengths, targets read and written, and their lengths."""
SIZES: dict[str, Any] = {"embed_dim": 256, "ff_dim": 1024, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
PYTORCHS = "standard attention, PyTorch's kernel"
MODELS: dict[str, AreaConfig | None] = {
    "standard attention": None,
    "standard attention, repeated": None,
    PYTORCHS: None,
    "areas, Eq. 3 and 4": AreaConfig(max_area=5, layers=2),
    "areas, Eq. 9": AreaConfig(max_area=5, layers=2, key_mode="features"),
}
GRIDS: dict[str, GridAreaConfig | None] = {
    "single cells": None,
    "single cells, repeated": None,
    "areas of 3 x 3, Eq. 3 and 4": GridAreaConfig(height=3, width=3),
    "areas of 3 x 3, Eq. 9": GridAreaConfig(height=3, width=3, key_mode="features"),
}
PAPER = {"standard attention": 1.0, "standard attention, repeated": None, PYTORCHS: None, "areas, Eq. 3 and 4": 1.25, "areas, Eq. 9": 2.0}


def batches(tokens: int, device: torch.device) -> list[Given]:
    """Return the first few batches of made-up sentences, lengths evenly spread over 13 to 30, sides of nearly the same length."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(13, 31, (4000,), generator=generator)
    others = (lengths + torch.randint(-2, 3, lengths.shape, generator=generator)).clamp(13, 30)
    sides = [[torch.randint(4, VOCABULARY, (n,), generator=generator).tolist() for n in side.tolist()] for side in (lengths, others)]
    plan = plan_batches([len(ids) for ids in sides[0]], [len(ids) for ids in sides[1]], batch_tokens=tokens, seed=1, epoch=0)
    return [collate(sides[0], sides[1], planned.indices).to(device)[:5] for planned in plan[:BATCHES]]


def captions(size: int, vocabulary: int, device: torch.device) -> list[Given]:
    """Return batches of made-up images and captions."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(BATCHES, CAPTIONS, 3, size, size, generator=generator).to(device)
    words = torch.randint(4, vocabulary, (BATCHES, CAPTIONS, WORDS + 1), generator=generator).to(device)
    lengths = torch.full((CAPTIONS,), WORDS, device=device)
    return [(shown, lengths, said[:, :-1], said[:, 1:], lengths) for shown, said in zip(images, words, strict=True)]


def translators(tokens: int, device: torch.device) -> tuple[dict[str, Callable[[], nn.Module]], list[Given]]:
    """Return what builds each translation model, by name, and their batches."""
    sizes = {"source_size": VOCABULARY, "target_size": VOCABULARY}

    def builder(area: AreaConfig | None) -> Callable[[], nn.Module]:
        return lambda: build(TransformerConfig(**SIZES, area=area), **sizes)

    return {name: builder(area) for name, area in MODELS.items()}, batches(tokens, device)


def captioners(device: torch.device) -> tuple[dict[str, Callable[[], nn.Module]], list[Given]]:
    """Return what builds each captioner, by name, and their batches."""
    config = load_config(CAPTIONER, kind=CaptioningConfig)

    def builder(area: GridAreaConfig | None) -> Callable[[], nn.Module]:
        model = config.model.model_copy(update={"area": area})
        return lambda: build_captioner(model, image_size=config.image.size, vocab_size=VOCABULARY)

    return {name: builder(area) for name, area in GRIDS.items()}, captions(config.image.size, VOCABULARY, device)


def make(builder: Callable[[], nn.Module], given: Sequence[Given], device: torch.device, half: bool) -> Callable[[], None]:
    """Return a round of a model: one training step on each batch."""
    torch.manual_seed(1)
    model = builder().to(device).train()
    optimizer = build_optimizer(model, TrainingConfig(learning_rate=1e-4))

    def step() -> None:
        for batch in given:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                sums = model(*batch, label_smoothing=0.1)
            (sums.loss / sums.tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return step


def measure(
    models: dict[str, Callable[[], nn.Module]], given: Sequence[Given], rounds: int, device: torch.device, half: bool
) -> dict[str, list[float]]:
    """Return the seconds of a step in each round, by model."""

    def contender(name: str) -> Callable[[int], float]:
        step = make(models[name], given, device, half)

        def once() -> None:
            with mock.patch.object(ops, "native_takes_items", return_value=False) if name == PYTORCHS else nullcontext():
                step()
            if device.type == "cuda":
                torch.cuda.synchronize()

        return lambda _: round(seconds(once) / BATCHES, 6)

    return interleaved({name: contender(name) for name in models}, rounds, warm_up=WARM_UP, title="seconds per step")


def main() -> None:
    parser = options(__doc__, rounds=9, tokens=4096)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true", help="under bfloat16 autocast")
    parser.add_argument("--captioner", action="store_true", help="of a captioner instead")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    load = os.getloadavg()[0]
    models, given = captioners(device) if arguments.captioner else translators(arguments.tokens, device)
    times = measure(models, given, arguments.rounds, device, arguments.bf16)
    first = next(iter(times.values()))
    published = not arguments.captioner
    rows = [[name, median(values, 3), *ratio(values, first), *([PAPER[name]] if published else [])] for name, values in times.items()]
    for row in rows:
        print(*row, sep="\t")
    where = machine(device=device.type)
    options_given = "".join(
        [
            " --captioner" if arguments.captioner else "",
            "" if device.type == "cpu" else f" --device {device.type}",
            " --bf16" if arguments.bf16 else "",
        ]
    )
    what = (
        f"the captioner of {CAPTIONER.relative_to(ROOT)} and its image encoder, batches of {CAPTIONS} images with captions of {WORDS} words"
        if arguments.captioner
        else f"Transformer Small (2 + 2 layers of 256, areas in all of them), batches of {arguments.tokens:,} padded tokens"
    )
    note = (
        f"`python benchmarks/area_step.py{options_given}`: one training step of {what}; medians of {arguments.rounds} interleaved rounds, "
        f"ratios round by round to the first row, whose repetition shows what a difference must exceed; {where}."
    )
    if published:
        note += " Published: Base (6 + 6 layers of 512, areas in the first two layers) on eight P100."
    columns = ["model", "seconds per step", "ratio", "min", "max", *(["published ratio"] if published else [])]
    write(arguments.out, columns, rows, note, machine=where, load_before=load, seconds=times)


if __name__ == "__main__":
    main()
