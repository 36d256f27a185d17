"""What the options of the command line can be, where it is one of a few."""

from __future__ import annotations

from enum import StrEnum


class Precision(StrEnum):
    """Precision of the matrix products in decoding."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class LinkUnit(StrEnum):
    """What the numbers of a links file count."""

    word = "word"
    character = "character"


class Generated(StrEnum):
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


class Table(StrEnum):
    """What can be listed."""

    mechanisms = "mechanisms"
    tasks = "tasks"
    settings = "settings"
