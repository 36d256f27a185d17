"""The commands `regard demo`, `list`, `parameters` and `doctor`, and the tables they print."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from regard.commands.options import ListedTable
from regard.commands.terminal import terminal_width, uses_color, write_line
from regard.errors import ConfigError, shown
from regard.mechanisms import MECHANISMS, Mechanism
from regard.progress import stage

if TYPE_CHECKING:
    from pydantic import BaseModel

commands = typer.Typer()


@commands.command()
def demo(out: Annotated[Path, typer.Option(help="output folder")] = Path("runs/demo")) -> None:
    """Train a small model, score it, show its attention.

    The data are generated dates. It takes a minute or two on two cores.
    """
    from regard.tasks.demo import run_demo

    run_demo(out, say=write_line, color=uses_color(), width=terminal_width())


@commands.command("list")
def list_(
    table: Annotated[ListedTable, typer.Argument(help="what to list")] = "mechanisms",
    task: Annotated[str, typer.Option(help="with settings: the task")] = "translation",
    wide: Annotated[bool, typer.Option("--wide", help="never wrap lines, even on a terminal")] = False,
) -> None:
    """List mechanisms, tasks, or settings with defaults."""
    from regard.commands.info import mechanism_table, setting_lines
    from regard.config import TASKS

    if task not in TASKS:
        raise ConfigError(f"--task: expected one of {', '.join(TASKS)}, found {shown(task)}")
    # Paragraphs for a terminal, one line per entry for a program.
    columns = terminal_width() if sys.stdout.isatty() and not wide else None
    match table:
        case "mechanisms":
            lines: Iterable[str] = mechanism_table(columns)
        case "tasks":
            lines = list(TASKS)
        case "settings":
            lines = (part for line in setting_lines(TASKS[task]) for part in _folded(line, columns))
    for line in lines:
        write_line(line)


def _folded(line: str, columns: int | None) -> list[str]:
    if columns is None or len(line) <= columns:
        return [line]
    setting, mark, about = line.partition("    # ")
    if not mark:  # a heading
        return textwrap.wrap(line, columns, subsequent_indent="# ")
    return [setting, *textwrap.wrap(about, columns, initial_indent="    # ", subsequent_indent="    # ")]


@commands.command()
def parameters(
    config: Annotated[Path, typer.Argument(help="settings in a YAML file")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[key.sub=value]...", help="settings that override the file's")] = None,
    source_size: Annotated[int | None, typer.Option(min=4, help="source vocabulary entries; default: vocabulary.size")] = None,
    target_size: Annotated[
        int | None, typer.Option(min=4, help="target vocabulary entries, or those of the only one; default: vocabulary.size")
    ] = None,
    classes: Annotated[int, typer.Option(min=2, help="classification, entailment: number of labels")] = 2,
) -> None:
    """Print how many parameters a configuration has, by part."""
    from regard.config import TASKS, load_config, task_of
    from regard.data.vocabulary import UNK
    from regard.models import build_for_run

    settings = load_config(config, overrides or [], kind=TASKS[task_of(config)])
    size = settings.vocabulary.size
    with stage("Building the model"):
        model = build_for_run(settings, source_size=source_size or size, target_size=target_size or size, classes=classes, unknown=UNK)
    for name, part in model.named_children():
        write_line(f"{name:<20}{sum(p.numel() for p in part.parameters()):>14,}")
    write_line(f"{'total (shared once)':<20}{sum(p.numel() for p in model.parameters()):>14,}")


@commands.command()
def doctor(
    benchmark: Annotated[
        bool, typer.Option("--benchmark", help="then measure the speed of this CPU, about a minute with nothing else running")
    ] = False,
) -> None:
    """Show what this installation uses and why."""
    from regard.tasks.doctor import report

    with stage("Inspecting the installation"):
        lines = report()
    for line in lines:
        write_line(line)
    if benchmark:
        from regard.tasks.benchmark import measure_speed

        write_line("")
        for line in measure_speed():
            write_line(line)


COLUMNS = ("mechanism", "also known as", "in the library", "setting", "source", "equation", "time", "memory")


def mechanism_cells(row: Mechanism) -> tuple[str, ...]:
    """Return the cells of a row, in the order of `COLUMNS`.

    Example:
        >>> mechanism_cells(MECHANISMS[0])[:3]
        ('additive score', 'Bahdanau attention, MLP attention', 'AdditiveScore')
    """
    return (row.name, row.aliases, row.where, row.setting, row.source, row.equation, *row.cost)


def mechanism_table(width: int | None = None) -> Iterator[str]:
    """Yield the table of all mechanisms.

    Args:
        width: terminal width, at least 40: one wrapped paragraph per mechanism. None: one line per mechanism, under a heading.

    Example:
        >>> next(mechanism_table()).split()[:7]
        ['mechanism', 'also', 'known', 'as', 'in', 'the', 'library']
        >>> list(mechanism_table(60))[:3]
        ['additive score', '  also known as   Bahdanau attention, MLP attention', '  in the library  AdditiveScore']
    """
    rows = [COLUMNS, *(mechanism_cells(row) for row in MECHANISMS)]
    if width is None:
        widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
        for row in rows:
            yield "  ".join(cell.ljust(room) for cell, room in zip(row, widths, strict=True)).rstrip()
        return
    for row in rows[1:]:
        yield row[0]
        for column, cell in zip(COLUMNS[1:], row[1:], strict=True):
            for number, line in enumerate(textwrap.wrap(cell, max(width, 40) - 18, break_on_hyphens=False)):
                yield f"  {'' if number else column:<14}  {line}"
        yield ""


def _choices(annotation: Any) -> tuple[Any, ...]:
    # A setting with a few allowed words.
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) is Literal and len(get_args(part)) > 1:
            return get_args(part)
    return ()


def setting_lines(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield one line per setting: path, default and meaning; other model families follow, each under a heading.

    Example:
        >>> from regard.config import TranslationConfig
        >>> next(line for line in setting_lines(TranslationConfig) if line.startswith("training.seed"))
        'training.seed = 1'
    """
    from regard.config import submodels

    others: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        inner = submodels(field.annotation)
        # An optional part whose settings have no defaults is listed as a whole.
        if inner and not any(part.is_required() for part in inner[0].model_fields.values()):
            if field.default is None:
                yield f"{prefix}{name} = null    # the following settings apply once one of them is set"
            yield from setting_lines(inner[0], f"{prefix}{name}.")
            others += [(f"{prefix}{name}.", one) for one in inner[1:]]
        else:
            notes = [" | ".join(map(str, _choices(field.annotation))), field.description or ""]
            about = f"    # {'; '.join(filter(None, notes))}" if any(notes) else ""
            default = field.default
            if default is None or isinstance(default, bool | tuple):  # as settings are written
                default = json.dumps(default)
            yield f"{prefix}{name} = {default}{about}"
    for path, one in others:
        yield ""
        yield f"# {one.__doc__}"
        yield from setting_lines(one, path)
