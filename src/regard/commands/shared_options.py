"""Options shared by all commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.commands.options import Cpus, Device, Gpus, On, Workers, refuse
from regard.commands.streaming import WORKER
from regard.progress import Display

TRAINING = ("train", "demo", "compare", "doctor")
"""Commands and subcommands that choose a training device."""
LINES = ("translate", "caption", "classify", "entail", "score", "align", "generate", "evaluate")
"""Commands that answer lines or evaluate a file: they also accept many files."""


def with_shared_options(app: typer.Typer) -> Any:
    """Return the click command of an app with the shared options on each command.

    Run it with `obj`, the `Display` for progress.
    """
    root = typer.main.get_command(app)
    everywhere, training, lines = _options(_shared), _options(_trains), _options(_answers)
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        command, trains = waiting.pop()
        trains = trains or command.name in TRAINING
        if parts := getattr(command, "commands", None):
            waiting += [(part, trains) for part in parts.values()]
        else:
            command.params += [*everywhere, *(training if trains else ())]
            if command.name in LINES:
                own = {option.name for option in command.params}  # `evaluate` has --output
                added = [option for option in lines if option.name not in own]
                command.params += added
                command.invoke = _with_batch(command, {option.name for option in lines}, {option.name for option in added})
    return root


def _with_batch(command: Any, names: set[str], added: set[str]) -> Callable[[Any], Any]:
    """Return a wrapper of a command that runs it or, with `--input`, its batch version.

    Args:
        command: the command.
        names: the batch options.
        added: those of them that the command itself does not have.
    """
    own = command.invoke

    def invoke(context: Any) -> Any:
        chosen = {name: context.params[name] for name in names}
        for name in added:
            del context.params[name]
        if WORKER in os.environ:
            return own(context)
        if chosen["shards"] is None:
            refuse({f"--{name}": value for name, value in chosen.items() if name in added}, "only with --input")
            return own(context)
        context.params.pop("output", None)  # the folder
        from regard.commands.batch import run_batch

        return run_batch(command.name, context.params, **chosen)

    return invoke


def _options(function: Callable[..., None]) -> list[Any]:
    holder = typer.Typer(add_completion=False)
    holder.command()(function)
    return [option for option in typer.main.get_command(holder).params if option.name != "help"]


def _device(value: Device | None) -> None:
    if value is not None:
        os.environ["REGARD_DEVICE"] = value


def _quiet(context: typer.Context, value: bool) -> None:
    display = context.find_object(Display)
    if display is None:
        return
    if value:
        display.quiet()
    else:
        display.start_up("starting")


def _shared(
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", callback=_quiet, expose_value=False, envvar="REGARD_QUIET", help="no progress on standard error, only warnings"
        ),
    ] = False,
) -> None:
    """Holds the options of every command; never run."""


def _trains(
    device: Annotated[
        Device | None,
        typer.Option(callback=_device, expose_value=False, envvar="REGARD_DEVICE", help="where to train; default: CUDA if there is any"),
    ] = None,
) -> None:
    """Holds the options of training commands; never run."""


def _answers(
    shards: Annotated[
        str | None, typer.Option("--input", metavar="PATTERN", help="answer each of these files, such as 'shards/*.en'")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="with --input: folder of the answers, a file for each, and manifest.jsonl")] = None,
    on: On = None,
    workers: Workers = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
) -> None:
    """Holds the options of commands that answer lines; never run."""
