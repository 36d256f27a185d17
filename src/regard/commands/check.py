"""The command `regard check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.commands.hugging_face import load_model
from regard.commands.options import refuse_model_folder, refuse_overwriting
from regard.commands.terminal import write_line
from regard.errors import ConfigError
from regard.progress import stage
from regard.strict_json import dump_json

commands = typer.Typer()


@commands.command()
def check(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="a run folder made by `regard train`")] = None,
    hf: Annotated[
        Path | None, typer.Option("--hf", metavar="FOLDER", help="a Hugging Face model instead: config.json and safetensors weights")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the results to this JSON file")] = None,
) -> None:
    """Find mask errors of a model.

    Does it attend to later tokens, padding, or other rows, and in which layer does that begin?

    Exit code: 0 without a leak, 1 with one, 2 for an error.
    """
    if (run is None) == (hf is None):
        raise ConfigError("check: give a run folder, or --hf and the folder of a Hugging Face model")
    if run is not None:
        refuse_model_folder(run, "check")
    refuse_overwriting({"--json": json_file}, [run, hf])

    from regard.data.lines import write_files
    from regard.mask_check import check
    from regard.tasks.mask_check import check_run

    with stage(f"Checking {run or hf}"):
        report = check(load_model(hf)) if hf is not None else check_run(run or Path())
    for line in report.lines():
        write_line(line)
    if json_file is not None:
        write_files({json_file: (dump_json(report.to_json(), indent=1) + "\n").encode()})
    if not report.ok:
        raise typer.Exit(1)
