"""The verbs `regard demo`, `list`, `parameters` and `doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from regard.choices import Table
from regard.commands.terminal import say, width
from regard.config import TASKS, load_config, task_of
from regard.errors import ConfigError

commands = typer.Typer()


@commands.command()
def demo(out: Annotated[Path, typer.Option(help="folder for everything it writes")] = Path("runs/demo")) -> None:
    """Train a small attention model on generated dates, score it, and show where it looked."""
    from regard.tasks.demo import run_demo

    run_demo(out, say=say, color=sys.stdout.isatty(), width=width())


@commands.command("list")
def list_(
    table: Annotated[Table, typer.Argument(help="what to list")] = Table.mechanisms,
    task: Annotated[str, typer.Option(help="with settings: of which task")] = "translation",
) -> None:
    """List the mechanisms, the tasks, or every setting with its default."""
    from regard.listing import mechanisms, settings

    if task not in TASKS:
        raise ConfigError(f"--task: expected one of {', '.join(TASKS)}, found {task!r}")
    match table:
        case Table.mechanisms:
            # A reader gets paragraphs, a program one line each.
            lines: Iterable[str] = mechanisms(width() if sys.stdout.isatty() else None)
        case Table.tasks:
            lines = list(TASKS)
        case Table.settings:
            lines = settings(TASKS[task])
    for line in lines:
        say(line)


@commands.command()
def parameters(
    config: Annotated[Path, typer.Argument(help="settings in a YAML file")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[key.sub=value]...")] = None,
    source_size: Annotated[int | None, typer.Option(min=4, help="entries of the source vocabulary; without, vocabulary.size")] = None,
    target_size: Annotated[
        int | None, typer.Option(min=4, help="entries of the target vocabulary, or of the only one; without, vocabulary.size")
    ] = None,
    classes: Annotated[int, typer.Option(min=2, help="classification, entailment: how many labels there are")] = 2,
) -> None:
    """Print how many parameters a configuration has, by part."""
    from regard.data.vocabulary import UNK
    from regard.models import build_for

    settings = load_config(config, overrides or [], kind=TASKS[task_of(config)])
    size = settings.vocabulary.size
    model = build_for(settings, source_size=source_size or size, target_size=target_size or size, classes=classes, unknown=UNK)
    for name, part in model.named_children():
        say(f"{name:<20}{sum(p.numel() for p in part.parameters()):>14,}")
    say(f"{'total (shared once)':<20}{sum(p.numel() for p in model.parameters()):>14,}")


@commands.command()
def doctor() -> None:
    """Say what this installation uses and why."""
    from regard.tasks.doctor import report

    for line in report():
        say(line)
