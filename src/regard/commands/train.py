"""The verb `regard train`, which has a command for each task, and what they share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from regard.commands.terminal import write_line, write_message
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.config import RunConfig
    from regard.training import TrainResult

training = typer.Typer(
    help="Train a model; the same command resumes it. Exit code 143, 138 or 130 after SIGTERM, SIGUSR1 or Ctrl-C, when all is saved.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
AnyConfig = TypeVar("AnyConfig", bound="RunConfig")


def settings_for(
    kind: type[AnyConfig],
    config: Path | None,
    overrides: Sequence[str] | None,
    files: Mapping[str, str | None],
    print_config: bool,
    *,
    start: Path | None = None,
) -> AnyConfig:
    """Return the settings of a command line; print them and leave when that is all that is asked for.

    Args:
        kind: the configuration of the task.
        config: a YAML file, or None.
        overrides: `key.sub=value`.
        files: the `data` settings that have options of their own; None where not given.
        print_config: print and leave.
        start: the run to go on from, or None. Its files are kept where no others are named.

    Raises:
        ConfigError: see `load_config`.
        CheckpointError: `start` is not a run of this task.
    """
    from regard.config import dump_config, load_config

    # A configuration file is a recipe of its own.
    base: dict[str, Any] | None = {"recipe": "auto"} if config is None and "recipe" in kind.model_fields else None
    if start is not None:
        from regard.tasks.fine_tuning import data_files, settings_from_run

        named = {name for name, path in files.items() if path is not None} | set(_names_of_data(config, overrides or []))
        base = settings_from_run(start, kind, keep_data=not named & set(data_files(kind)))
    settings = load_config(config, overrides or [], base=base, kind=kind)
    given = {name: path for name, path in files.items() if path is not None}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update=given)})
    if print_config:
        sys.stdout.write(dump_config(settings))
        raise typer.Exit
    return settings


def _names_of_data(config: Path | None, overrides: Sequence[str]) -> list[str]:
    from regard.config.load import read_yaml

    data = {} if config is None else read_yaml(config).get("data")
    of_file = [str(name) for name in data] if isinstance(data, Mapping) else []
    return of_file + [item.partition("=")[0].removeprefix("data.") for item in overrides if item.startswith("data.")]


def run_training(train: Callable[..., TrainResult], settings: RunConfig, out: Path | None) -> None:
    """Train, and tell how it ended: `train` takes the settings and the folder.

    Raises:
        ConfigError: no folder is given.
    """
    if out is None:
        raise ConfigError("--out RUN: needed, the folder the run goes to")
    result = train(settings, out)
    if result.interrupted is not None:
        write_message(f"stopped by signal {result.interrupted} after update {result.step}; the same command resumes")
        raise typer.Exit(128 + result.interrupted)
    write_line(f"{result.step} updates ({result.reason}); model in {result.model}; sha256 of the last weights {result.weights_sha256}")
