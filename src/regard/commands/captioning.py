"""The command `regard caption`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard import progress
from regard.commands.options import (
    BatchSize,
    Beam,
    HardMode,
    LengthPenalty,
    MaxLength,
    Precision,
    RunFolder,
)
from regard.commands.streaming import answer_lines, input_chunks, text_reader
from regard.commands.terminal import write_message
from regard.errors import ConfigError, counted

if TYPE_CHECKING:
    from regard.data.images import ImageSource

commands = typer.Typer()


@commands.command()
def caption(
    run: RunFolder,
    images: Annotated[
        list[Path] | None, typer.Argument(metavar="IMAGE...", help="image files or folders; with --features, names of images in it")
    ] = None,
    listing: Annotated[Path | None, typer.Option("--list", help="file of image paths, one per line; - is standard input")] = None,
    features: Annotated[Path | None, typer.Option(help="feature file, for a model of precomputed features")] = None,
    beam_size: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = None,
    precision: Precision = None,
    hard: Annotated[HardMode | None, typer.Option(help="hard attention: sample a cell, take the best, or average")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="with --hard sample")] = 1,
    n_best: Annotated[int, typer.Option(min=1, help="hypotheses per image, written as JSON")] = 1,
    names: Annotated[bool, typer.Option("--names", help="start each line with the image path and a tab")] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="one JSON object per line: image, text, tokens, score")] = False,
    json_input: Annotated[
        bool, typer.Option("--json-input", help='read JSON objects from standard input, {"id": ..., "image": "PATH"}; answer with JSON')
    ] = False,
) -> None:
    """Caption images.

    Writes one line per image. An image that cannot be read gives an empty line and exit code 1 at the end.
    """
    import torch

    from regard.config import with_options
    from regard.data.image_features import FeatureFile
    from regard.data.lines import single_line
    from regard.tasks.captioning_prediction import Caption, Captioner
    from regard.tasks.chunking import in_chunks
    from regard.tasks.predict import check_precision
    from regard.tasks.run_folder import device_of

    if json_input and (images or features is not None or listing not in (None, Path("-"))):
        raise ConfigError("--json-input: reads standard input (--list -), so give no IMAGE, other --list or --features")
    awaits = json_input or listing == Path("-")
    if features is not None and (awaits or listing is not None):
        raise ConfigError("--features: goes with names of images or none, for all of them, not with --list")
    if awaits + bool(images or (listing and not awaits) or features) != 1:
        raise ConfigError("caption: give it images (files, folders, --list FILE), --list - for standard input, or --features FILE")
    captioner = Captioner.open(run)
    captioner.choose(hard)
    torch.manual_seed(seed)
    changes = {"beam_size": beam_size, "length_penalty": length_penalty, "max_length": max_length, "batch_size": batch_size}
    decoding = with_options(captioner.run.config.decoding, {**changes, "precision": precision})
    check_precision(decoding.precision, device_of(captioner.run.model))
    total = None

    def show(_: int, item: Caption) -> str:
        if item.error is not None:
            write_message(f"error: {item.error}")
        return f"{single_line(str(item.source))}\t{item.text}" if names else item.text

    read, work = text_reader(("image",) if json_input else None), lambda paths: captioner.stream(paths, decoding=decoding, n_best=n_best)
    if awaits:
        chunks = input_chunks("the path of an image", most=decoding.batch_size)
    elif features is None:
        paths = _image_files(images or [], listing)
        chunks, total = in_chunks(paths, lambda _: 0, most=decoding.batch_size), len(paths)
    else:
        file = FeatureFile(features)
        chosen = [file.id_of(str(image)) for image in images] if images else list(file.ids)
        total, chunks = len(chosen), [chosen]
        work = partial(captioner.caption_features, file, decoding=decoding, n_best=n_best)
    _, bad = answer_lines(chunks, read, work, show, json_lines=json_lines or json_input or n_best > 1, total=total)
    if bad:
        raise typer.Exit(1)


def _image_files(images: Sequence[Path], listing: Path | None) -> Sequence[ImageSource]:
    from regard.data.images import expand_images
    from regard.data.lines import read_lines

    listed = [] if listing is None else [listing.parent / line for line in read_lines(listing) if line.strip()]
    if not images and not listed:
        raise ConfigError(f"{listing}: names no image")
    with progress.stage("Finding images"):
        expanded = expand_images([*images, *listed])
    if expanded.ignored:
        write_message(f"ignored {counted(expanded.ignored, 'file')} without an image in the folders")
    return expanded.paths
