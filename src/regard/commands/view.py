"""The command `regard view`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard import progress
from regard.commands.hugging_face import load_model
from regard.commands.options import Beam, refuse, refuse_model_folder, refuse_overwriting
from regard.commands.streaming import input_lines
from regard.commands.terminal import terminal_width, uses_color, write_line
from regard.errors import ConfigError, DataError, counted, listed, shown

if TYPE_CHECKING:
    from regard.viewer import AttentionRecord

commands = typer.Typer()


@commands.command()
def view(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="[RUN|FILE...]", help="run folders to compare, or record files")] = None,
    hf: Annotated[
        Path | None,
        typer.Option("--hf", metavar="FOLDER", help="a Hugging Face model instead: config.json, safetensors weights, tokenizer"),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="a sentence, or two inputs with a tab between them; may be repeated; default: standard input"),
    ] = None,
    image: Annotated[list[Path] | None, typer.Option(help="an image, of a text if --text is given; may be repeated")] = None,
    features: Annotated[Path | None, typer.Option(help="feature file with those of the image, for a model of precomputed features")] = None,
    target: Annotated[str | None, typer.Option(help="show the attention for this translation or caption, not the model's own")] = None,
    beam_size: Beam = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="add the scores of a method of explanation: rollout, value-norms, alti, leave-one-out ...; may be repeated; or all"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help=".html page, .png .svg .pdf picture, .gif animation, .json records; default: the terminal"),
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="show the attention recorded during training (training.watch)")] = False,
    example: Annotated[int | None, typer.Option(min=1, help="picture, animation: number of the example, from 1")] = None,
    map_: Annotated[
        str | None, typer.Option("--map", help="terminal, picture: name of the map; default: the method or the alignment")
    ] = None,
    head: Annotated[int | None, typer.Option(min=1, help="draw this head, from 1; default: the mean of all")] = None,
) -> None:
    """Show the attention of models.

    In the terminal, as a picture, or as one offline HTML page.
    """
    from regard.tasks.attention_records import choose_example, save_records, side_by_side
    from regard.viewer import group_by_example, read_records, render_alignment
    from regard.viewer.history import share_images

    refuse_overwriting({"--output": output}, [*(runs or []), *(image or []), features, hf], pictures=True)
    if (runs is None) == (hf is None):
        raise ConfigError("view: give run folders or record files, or --hf and the folder of a Hugging Face model")
    if hf is not None:
        refuse({"--beam-size": beam_size, "--history": history or None, "--features": features}, "not with --hf")
        records = _pretrained(hf, _inputs(text, image), target, method or [])
    else:
        paths = runs or []
        asked = {"--text": text, "--image": image, "--features": features, "--target": target, "--beam-size": beam_size, "--method": method}
        if history or paths[0].is_file():
            refuse(asked, "not with --history" if history else f"not with {paths[0]}, a file of records")
            records = _histories(paths) if history else share_images([record for path in paths for record in read_records(path)])
            if not records:
                raise DataError(f"{paths[0]}: holds no records")
        else:
            for path in paths:
                refuse_model_folder(path, "show")
            seen = _inputs(text, image, paths)
            second = [Path(part) for line in seen if isinstance(line, str) for part in line.split("\t")[1:]]
            refuse_overwriting({"--output": output}, (), named=second, pictures=True)
            with progress.stage("Recording attention", unit="examples"):
                records = side_by_side(
                    paths, seen, target=target, beam_size=beam_size, methods=method or (), images=Path(), features=features
                )
    asked = [map_]
    if map_ is None and (output is None or output.suffix.lower() not in (".html", ".json")):
        asked = _asked_maps(records, method or []) or [None]
    chosen: dict[str, Any] = {"map": asked[0], "head": None if head is None else head - 1}
    if example is not None:
        records = choose_example(records, example)
    if output is not None:
        if len(asked) > 1:
            others = ", ".join(f"--map {shown(name)}" for name in asked[1:] if name)
            progress.message(f"{output}: draws {asked[0] or 'the alignment'}; for the others: {others}", warning=True)
        with progress.stage(f"Writing {output}"):
            save_records(records, output, **chosen)
        write_line(f"{output}: {counted(len(group_by_example(records)), 'example')}")
        return
    last = [group[-1] for group in group_by_example(records)]
    size = {"width": terminal_width(), "color": uses_color()}
    drawn = [(record, {**chosen, "map": name}) for record in last for name in asked]
    write_line("\n\n".join(f"{_told(record, **which)}{render_alignment(record, **size, **which)}" for record, which in drawn))


def _told(record: AttentionRecord, *, map: str | None, head: int | None) -> str:
    """Describe the drawn map, head and update; empty if the record has a single matrix."""
    found = record.main if map is None else next((each for each in record.maps if each.name == map), None)
    if found is None:
        return ""
    heads = len(found.weights)
    mean = f", mean of {heads} heads" if head is None and heads > 1 else ""
    update = f", update {record.point.update}" if record.point is not None else ""
    others = [each.name for each in record.maps if each is not found and not each.method] if map is None else []
    told = record.matrix(map, head).name + mean + update + (f" (others, by --map: {listed(others, most=3)})" if others else "")
    return f"{told}\n" if len(record.maps) > 1 or heads > 1 or update else ""


def _asked_maps(records: Sequence[AttentionRecord], methods: list[str]) -> list[str | None]:
    """Return the names of the maps of the requested methods: of each one, or two for a text and an image; None is the alignment."""
    if not methods:
        return []
    own = dict.fromkeys(found.name for record in records for found in record.maps if found.method)
    return [*([None] if "weights" in methods else []), *own]


def _inputs(text: list[str] | None, image: list[Path] | None, runs: Sequence[Path] = ()) -> list[str] | list[Path]:
    if text is not None and image is not None:
        from regard.data.parallel import join_inputs
        from regard.tasks.run_folder import run_task

        if not runs:
            raise ConfigError("--text and --image: no model here reads both")
        if other := next((run for run in runs if run_task(run) != "translation" or not _reads_images(run)), None):
            raise ConfigError(f"--text and --image: {other} does not read both")
        if wrong := next((line for line in text if "\t" in line), None):
            raise ConfigError(f"--text {shown(wrong)}: a tab; with --image it is the first input alone")
        if len(text) != len(image):
            raise ConfigError(f"--text and --image: {len(text)} and {len(image)}, expected an image for each text")
        if gone := next((path for path in image if not path.is_file()), None):
            raise ConfigError(f"--image {gone}: no such file")
        return [join_inputs(line, str(path.resolve())) for line, path in zip(text, image, strict=True)]
    return image if image is not None else text if text is not None else list(input_lines("a line"))


def _reads_images(run: Path) -> bool:
    from regard.config import TranslationConfig
    from regard.tasks.run_folder import read_config

    second = read_config(run, TranslationConfig).second
    return second is not None and second.image is not None


def _pretrained(folder: Path, seen: list[str] | list[Path], target: str | None, methods: list[str]) -> list[AttentionRecord]:
    """Run a Hugging Face model and record its attention."""
    from regard.observe.explained import check_methods
    from regard.observe.pretrained import load_processor, records_of

    methods, images = check_methods(methods), bool(seen) and isinstance(seen[0], Path)
    model = load_model(folder)
    if methods:  # some are differences that half precision cannot hold
        model.float()
    with progress.stage("Recording attention", unit="examples"):
        return records_of(model, load_processor(folder, images=images), seen, output=target, methods=methods)


def _histories(runs: list[Path]) -> list[AttentionRecord]:
    """Read the records made during training; each gets the name of its run."""
    from regard.tasks.run_folder import run_task
    from regard.viewer import read_history

    names = [path.resolve().name for path in runs]
    if len(set(names)) < len(names):
        names = [str(path) for path in runs]
    found = []
    for path, name in zip(runs, names, strict=True):
        if not path.is_file():
            run_task(path)  # reports a folder that is not a run
        found += [replace(record, model=record.model or name) for record in read_history(path)]
    return found
