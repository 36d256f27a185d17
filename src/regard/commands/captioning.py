"""The verbs `regard train captioning` and `regard caption`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.choices import HardMode
from regard.commands.options import BatchSize, Beam, Config, LengthPenalty, MaxLength, Out, Overrides, PrintConfig, RunFolder
from regard.commands.terminal import note, write
from regard.commands.train import run_training, settings_for, training
from regard.config.captioning import CaptioningConfig
from regard.errors import ConfigError

commands = typer.Typer()


@training.command("captioning")
def train_captioning(
    overrides: Overrides = None,
    out: Out = None,
    config: Config = None,
    captions: Annotated[str | None, typer.Option(help="captions: Karpathy or COCO JSON, Flickr8k.token.txt, or image<TAB>caption")] = None,
    images: Annotated[str | None, typer.Option(help="folder or tar of the images; without, the folder of the captions")] = None,
    split: Annotated[str | None, typer.Option(help="part to train on: a Karpathy split, or a file of image names")] = None,
    valid_captions: Annotated[str | None, typer.Option(help="validation captions; without, the same file")] = None,
    valid_images: Annotated[str | None, typer.Option(help="validation images; without, the same folder or tar")] = None,
    valid_split: Annotated[str | None, typer.Option(help="part to validate on; without, some images are held out")] = None,
    features: Annotated[str | None, typer.Option(help="features of all images, computed beforehand (model.encoder.type=features)")] = None,
    print_config: PrintConfig = False,
) -> None:
    """Train a model that describes images."""
    files = {
        "captions": captions,
        "images": images,
        "split": split,
        "valid_captions": valid_captions,
        "valid_images": valid_images,
        "valid_split": valid_split,
        "features": features,
    }
    settings = settings_for(CaptioningConfig, config, overrides, files, print_config)
    from regard.tasks.captioning import train_captioning as train

    run_training(train, settings, out)


@commands.command()
def caption(
    run: RunFolder,
    images: Annotated[list[Path] | None, typer.Argument(metavar="IMAGE...", help="image files, or folders of them")] = None,
    listing: Annotated[Path | None, typer.Option("--list", help="a file with the path of an image on each line")] = None,
    features: Annotated[Path | None, typer.Option(help="a file of features, for a run that reads these")] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = None,
    hard: Annotated[HardMode | None, typer.Option(help="how hard attention chooses: draw, take the best, or average")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="with --hard sample")] = 1,
    n_best: Annotated[int, typer.Option(min=1, help="hypotheses for each image (as JSON lines)")] = 1,
    names: Annotated[bool, typer.Option("--names", help="begin each line with the image's path and a tab")] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="one JSON object a line: image, text, tokens, score")] = False,
) -> None:
    """Describe images: one line out for each, empty where one cannot be read; exit code 1 if there was such a one."""
    import torch

    from regard.data.features import FeatureFile
    from regard.data.images import expand_images
    from regard.data.lines import read_lines, single_line
    from regard.tasks.caption import Captioner

    given: list[str | Path] = [*(images or [])]
    if listing is not None:
        given += [listing.parent / line for line in read_lines(listing) if line.strip()]
    if bool(given) == (features is not None):
        raise ConfigError("caption: give it images (files, folders, --list FILE), or --features FILE")
    captioner = Captioner.open(run)
    captioner.choose(None if hard is None else hard.value)
    torch.manual_seed(seed)
    changes = {"beam": beam, "length_penalty": length_penalty, "max_length": max_length, "batch_size": batch_size}
    decoding = captioner.run.config.decoding.model_copy(update={name: value for name, value in changes.items() if value is not None})
    if features is not None:
        found = iter(captioner.caption_features(FeatureFile(features), decoding=decoding))
    else:
        expanded = expand_images(given)
        if expanded.ignored:
            note(f"{expanded.ignored} files of the folders are no images")
        found = captioner.stream(expanded.paths, decoding=decoding, n_best=n_best)
    bad = 0
    for item in found:
        if item.error is not None:
            bad += 1
            note(f"error: {item.error}")
        if json_lines or n_best > 1:
            write(json.dumps(item.to_json(), ensure_ascii=False))
        else:
            write(f"{single_line(str(item.source))}\t{item.text}" if names else item.text)
    if bad:
        raise typer.Exit(1)
