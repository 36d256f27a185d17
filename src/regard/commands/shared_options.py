"""Options that every command has."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from regard.commands.options import Device
from regard.progress import Display

TRAINING = ("train", "demo", "compare", "doctor")
"""The commands, and those within them, that choose where a model is trained."""


def with_shared_options(app: typer.Typer) -> Any:
    """Return the command of an app, each of whose commands takes the shared options as well.

    Run it with `obj`, the `Display` it shows its progress on.
    """
    root = typer.main.get_command(app)
    everywhere, training = _options(_shared), _options(_trains)
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        command, trains = waiting.pop()
        trains = trains or command.name in TRAINING
        if parts := getattr(command, "commands", None):
            waiting += [(part, trains) for part in parts.values()]
        else:
            command.params += [*everywhere, *(training if trains else ())]
    return root


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
    """Hold the options of every command; never run."""


def _trains(
    device: Annotated[
        Device | None,
        typer.Option(callback=_device, expose_value=False, envvar="REGARD_DEVICE", help="where to train; default: CUDA if there is any"),
    ] = None,
) -> None:
    """Hold the options of the commands that train; never run."""
