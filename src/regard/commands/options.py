"""Options that several commands take, and the choices of those that are one of a few."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard.errors import ConfigError

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder made by `regard train`")]
Files = Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="files of lines; without, standard input")]
Beam = Annotated[int | None, typer.Option(min=1, help="hypotheses kept; 1 is greedy search")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="sentences decoded together")]
MaxLength = Annotated[int | None, typer.Option(min=1, help="tokens generated at most")]
EnsembleRuns = Annotated[
    list[Path] | None, typer.Option("--ensemble", metavar="RUN", help="average the probabilities with another run's; may be repeated")
]
LengthPenalty = Annotated[float | None, typer.Option(min=0.0, help="alpha of ((5 + length) / 6) ** alpha")]

JsonInput = Annotated[
    bool, typer.Option("--json-input", help='read JSON objects, {"id": ..., "text": "..."}; answer with JSON objects of the same id')
]

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key.sub=value]...", help="settings, see `regard list settings`")]
Out = Annotated[Path | None, typer.Option(help="the run folder; an interrupted run there is resumed")]
From = Annotated[
    Path | None, typer.Option("--from", metavar="RUN", help="go on from a trained or imported run: its settings, weights and vocabulary")
]
Config = Annotated[Path | None, typer.Option(help="settings in a YAML file")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="print the resolved settings and leave")]


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Refuse options that do not go with the rest of a command line; those that are None were not given.

    Raises:
        ConfigError: names those given, and the reason.
    """
    if given := [name for name, value in options.items() if value is not None]:
        raise ConfigError(f"{', '.join(given)}: {reason}")


class DecodingPrecision(StrEnum):
    """Precision of the matrix products in decoding."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class LinkUnit(StrEnum):
    """What the numbers of a links file count."""

    word = "word"
    character = "character"


class GeneratedSet(StrEnum):
    """The generated sets."""

    dates = "dates"
    copy = "copy"
    reverse = "reverse"
    sort = "sort"
    scenes = "scenes"


class HardMode(StrEnum):
    """How hard attention chooses a cell."""

    sample = "sample"
    argmax = "argmax"
    expected = "expected"


class ListedTable(StrEnum):
    """What can be listed."""

    mechanisms = "mechanisms"
    tasks = "tasks"
    settings = "settings"


class Device(StrEnum):
    """What a model is trained on."""

    cpu = "cpu"
    cuda = "cuda"
