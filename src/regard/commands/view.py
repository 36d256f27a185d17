"""The verb `regard view`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import progress
from regard.commands.options import Beam, refuse
from regard.commands.streaming import input_lines
from regard.commands.terminal import terminal_width, write_line
from regard.errors import ConfigError, DataError

commands = typer.Typer()


@commands.command()
def view(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN|FILE...", help="run folders to compare, or files of records")],
    text: Annotated[
        list[str] | None,
        typer.Option(help="a sentence, or a premise, a tab and a hypothesis, to look at; may be repeated; without, standard input"),
    ] = None,
    image: Annotated[list[Path] | None, typer.Option(help="captioning: an image to look at; may be repeated")] = None,
    target: Annotated[str | None, typer.Option(help="look at this translation or caption instead of the model's own")] = None,
    beam_size: Beam = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=".html page, .png .svg .pdf picture, .json records; without, the terminal")
    ] = None,
    map_: Annotated[str | None, typer.Option("--map", help="draw this map (in the terminal or a picture), not the alignment")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="draw this head, not the mean of all")] = None,
) -> None:
    """Look at what models attended to: in the terminal, as a picture, or as one offline page."""
    from regard.tasks.attention_records import save_records, side_by_side
    from regard.viewer import read_records, render_alignment

    if runs[0].is_file():
        refuse({"--text": text, "--image": image, "--target": target, "--beam-size": beam_size}, f"not with {runs[0]}, a file of records")
        records = [record for path in runs for record in read_records(path)]
        if not records:
            raise DataError(f"{runs[0]}: holds no records")
    else:
        if text is not None and image is not None:
            raise ConfigError("--text and --image: no run reads both")
        seen = image if image is not None else text if text is not None else list(input_lines("a line"))
        with progress.stage("Looking", unit="examples"):
            records = side_by_side(runs, seen, target=target, beam_size=beam_size)
    chosen: dict[str, Any] = {"map": map_, "head": None if head is None else head - 1}
    if output is not None:
        with progress.stage(f"Writing {output}"):
            save_records(records, output, **chosen)
        write_line(f"{output}: {len(records)} {'example' if len(records) == 1 else 'examples'}")
        return
    write_line("\n\n".join(render_alignment(record, width=terminal_width(), color=sys.stdout.isatty(), **chosen) for record in records))
