"""Options shared by all commands."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand
from typer.models import CommandInfo

from regard.commands.examples import examples_of
from regard.commands.options import Cpus, Device, Gpus, On, Workers, refuse
from regard.commands.streaming import WORKER
from regard.errors import ConfigError
from regard.progress import Display

TRAINING = ("train", "demo", "compare", "doctor")
"""Commands, and groups of them, that choose a training device."""
LINES = ("translate", "caption", "classify", "entail", "score", "align", "generate", "evaluate")
"""Commands that answer lines or evaluate a file: they also accept many files."""


def with_shared_options(app: typer.Typer) -> Any:
    """Return the click command of an app with the shared options on each command.

    Run it with `obj`, the `Display` for progress.
    """
    return typer.main.get_command(_outlined(app))


class Outline(TyperCommand):
    """The name and the help of a command, which its callback makes: to read the signatures of all takes as long as to import them."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Return the context of the command itself."""
        return cast(Any, self.callback)().make_context(*args, **kwargs)


def _outlined(app: typer.Typer, group: str = "") -> typer.Typer:
    outlined = copy.copy(app)
    outlined.registered_commands = [_outline(info, group) for info in app.registered_commands]
    outlined.registered_groups = []
    for info in app.registered_groups:
        inner = copy.copy(info)
        inner.typer_instance = _outlined(cast(typer.Typer, info.typer_instance), info.name if isinstance(info.name, str) else "")
        outlined.registered_groups.append(inner)
    return outlined


def _outline(info: CommandInfo, group: str) -> CommandInfo:
    function = cast(Callable[..., Any], info.callback)
    name = info.name or function.__name__

    def made() -> Any:
        command: Any = typer.main.get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)
        command.epilog = examples_of(f"{group} {name}".strip())
        command.params += [*_options(_shared), *(_options(_trains) if group in TRAINING or name in TRAINING else ())]
        if name in LINES:
            own = {option.name for option in command.params}  # `evaluate` has --output
            lines = _options(_answers)
            added = [option for option in lines if option.name not in own]
            command.params += added
            command.invoke = _with_batch(command, {option.name for option in lines}, {option.name for option in added})
        return command

    return CommandInfo(name, cls=Outline, help=inspect.getdoc(function), callback=made)


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
        patterns = chosen.pop("shards")
        if not patterns:
            refuse({f"--{name}": value for name, value in chosen.items() if name in added}, "only with --input")
            return own(context)
        context.params.pop("output", None)  # the folder
        from regard.commands.batch import ONE_PATTERN, run_batch

        if len(patterns) > 1:
            raise ConfigError(ONE_PATTERN)
        return run_batch(command.name, context.params, patterns[0], **chosen)

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
        list[str] | None, typer.Option("--input", metavar="PATTERN", help="answer each of these files, such as 'shards/*.en'")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="with --input: folder of the answers, a file for each, and manifest.jsonl")] = None,
    on: On = None,
    workers: Workers = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
) -> None:
    """Holds the options of commands that answer lines; never run."""
