"""The verbs `regard export` and `regard import`. What they need is imported when it is used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from regard import progress

commands = typer.Typer()


Toolkit = Literal["marian", "fairseq", "joeynmt"]
Function = Literal["relu", "swish", "gelu"]


@commands.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder made by `regard train`")],
    out: Annotated[Path, typer.Option(help="the folder to write to")],
    format: Annotated[Literal["ctranslate2"], typer.Option(help="for which engine")] = "ctranslate2",
) -> None:
    """Write a trained Transformer for another engine."""
    from regard.integrations.ctranslate2 import export_run

    with progress.stage(f"Exporting {run}"):
        export_run(run, out)
    _say(f"{out}: a model of {format}")


@commands.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="what the toolkit left; weights as safetensors")],
    toolkit: Annotated[Toolkit, typer.Option("--from", help="which toolkit")],
    out: Annotated[Path, typer.Option(help="the run folder to make")],
    source_vocabulary: Annotated[Path | None, typer.Option(help="tokens of the source; without, the folder's own")] = None,
    target_vocabulary: Annotated[Path | None, typer.Option(help="tokens of the target; without, the folder's own")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="fairseq: attention heads of a layer")] = None,
    activation: Annotated[Function | None, typer.Option(help="fairseq: inside the feed-forward layers; without, relu")] = None,
) -> None:
    """Make a run of a Transformer trained with another toolkit; Marian's reads raw text, the others their toolkit's tokens."""
    from regard.integrations.migrate_files import read_any
    from regard.integrations.migrate_run import write_run

    with progress.stage(f"Importing {path}"):
        imported = read_any(path, toolkit, source_vocabulary, target_vocabulary, num_heads=heads, activation=activation)
        write_run(imported, out, origin=f"imported from {toolkit}, {path.name}")
    _say(f"{out}: {len(imported.source.words)} source and {len(imported.target.words)} target tokens")


def _say(line: str) -> None:
    # UTF-8 whatever the locale says, as every verb writes.
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
