"""The verb `regard train`, which has a command for each task, and what they share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from regard.commands.terminal import note, say
from regard.config import RunConfig, dump_config, load_config
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.training import TrainResult

training = typer.Typer(
    help="Train a model; the same command resumes it. Exit code 143, 138 or 130 after SIGTERM, SIGUSR1 or Ctrl-C, when all is saved.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
AnyConfig = TypeVar("AnyConfig", bound=RunConfig)


def settings_for(
    kind: type[AnyConfig], config: Path | None, overrides: Sequence[str] | None, files: Mapping[str, str | None], print_config: bool
) -> AnyConfig:
    """Return the settings of a command line; print them and leave when that is all that is asked for.

    Args:
        kind: the configuration of the task.
        config: a YAML file, or None.
        overrides: `key.sub=value`.
        files: the `data` settings that have options of their own; None where not given.
        print_config: print and leave.

    Raises:
        ConfigError: see `load_config`.
    """
    settings = load_config(config, overrides or [], kind=kind)
    given = {name: path for name, path in files.items() if path is not None}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update=given)})
    if print_config:
        sys.stdout.write(dump_config(settings))
        raise typer.Exit
    return settings


def run_training(train: Callable[..., TrainResult], settings: RunConfig, out: Path | None) -> None:
    """Train, and tell how it ended: `train` takes the settings, the folder, and `say`.

    Raises:
        ConfigError: no folder is given.
    """
    if out is None:
        raise ConfigError("--out RUN: needed, the folder the run goes to")
    result = train(settings, out, say=say)
    if result.interrupted is not None:
        note(f"stopped by signal {result.interrupted} after update {result.step}; the same command resumes")
        raise typer.Exit(128 + result.interrupted)
    say(f"{result.step} updates ({result.reason}); model in {result.model}; sha256 of the last weights {result.weights_sha256}")
