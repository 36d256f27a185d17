"""The commands `regard export` and `regard import`; their dependencies are imported on use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from regard import progress
from regard.errors import ConfigError
from regard.input_files import check_run_exists

commands = typer.Typer()


WeightKind = Literal["float32", "float16", "int8"]
Toolkit = Literal["marian", "fairseq", "joeynmt"]
Function = Literal["relu", "swish", "gelu"]
Format = Literal["ctranslate2", "onnx", "html"]
WRITTEN = {
    "ctranslate2": "a model for CTranslate2",
    "onnx": "ONNX graphs, described in interface.json",
    "html": "a page with the model inside",
}


@commands.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder made by `regard train`", callback=check_run_exists)],
    out: Annotated[Path, typer.Option("--out", "-o", help="output folder; html: the file")],
    format: Annotated[Format | None, typer.Option(help="format of the export; default: html for a file named *.html")] = None,
    weights: Annotated[WeightKind, typer.Option(help="onnx, html: how matrices are stored")] = "float32",
) -> None:
    """Export a run to ONNX, CTranslate2 or one offline page.

    ONNX and the page take runs of every task, CTranslate2 standard Transformers.
    """
    format = _export_format(format, out)
    with progress.stage(f"Exporting {run}"):
        if format == "onnx":
            from regard.integrations import onnx

            onnx.export_run(run, out, weights=weights)
        elif format == "html":
            from regard.integrations.page_model import export_page

            if weights == "int8":
                raise ConfigError("--weights int8: with --format onnx; the page takes float32 or float16")
            export_page(run, out, weights=weights)
        elif weights != "float32":
            raise ConfigError(f"--weights {weights}: with --format onnx or html; CTranslate2 converts as it loads (compute_type)")
        else:
            from regard.integrations import ctranslate2

            ctranslate2.export_run(run, out)
    _say(f"{out}: {WRITTEN[format]}")


def _export_format(given: Format | None, out: Path) -> Format:
    """Return the format that is given, or that the name of a page has.

    Raises:
        ConfigError: neither is there, or a folder has the name of a page.
    """
    page = out.suffix.lower() in (".html", ".htm")
    if given is None and not page:
        raise ConfigError("--format: missing; expected ctranslate2, onnx or html")
    if page and given not in (None, "html"):
        raise ConfigError(f"--out {out}: the name of a page, but --format {given} writes a folder")
    return given or "html"


@commands.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="model of the other toolkit; weights as safetensors")],
    toolkit: Annotated[Toolkit, typer.Option("--from", help="the other toolkit")],
    out: Annotated[Path, typer.Option(help="run folder to create")],
    source_vocabulary: Annotated[Path | None, typer.Option(help="source vocabulary; default: that of the folder")] = None,
    target_vocabulary: Annotated[Path | None, typer.Option(help="target vocabulary; default: that of the folder")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="fairseq: attention heads per layer")] = None,
    activation: Annotated[Function | None, typer.Option(help="fairseq: activation of the feed-forward layers; default: relu")] = None,
) -> None:
    """Import a Transformer of another toolkit.

    A Marian model then reads raw text, a fairseq or JoeyNMT model reads the tokens of its toolkit.
    """
    from regard.integrations.migrate_files import read_any
    from regard.integrations.migrate_run import write_run

    with progress.stage(f"Importing {path}"):
        imported = read_any(path, toolkit, source_vocabulary, target_vocabulary, num_heads=heads, activation=activation)
        write_run(imported, out, origin=f"imported from {toolkit}, {path.name}")
    _say(f"{out}: {len(imported.source.words)} source and {len(imported.target.words)} target tokens")


def _say(line: str) -> None:
    # UTF-8 whatever the locale, like every command's output.
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
