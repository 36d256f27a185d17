"""Tables the command line prints: the mechanisms with their authors' names, equations and costs, and every setting with its default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pydantic import BaseModel

from regard.config import submodels
from regard.mechanisms import MECHANISMS, Mechanism

COLUMNS = ("mechanism", "also known as", "in the library", "setting", "source", "equation", "time", "memory")


def cells(row: Mechanism) -> tuple[str, ...]:
    """Return what a row prints, in the order of `COLUMNS`.

    Example:
        >>> cells(MECHANISMS[0])[:3]
        ('additive score', 'Bahdanau attention, MLP attention', 'AdditiveScore')
    """
    return (row.name, row.aliases, row.where, row.setting, row.source, row.equation, *row.cost)


def mechanisms(width: int | None = None) -> Iterator[str]:
    """Yield the table of all mechanisms.

    Args:
        width: columns of a terminal, 40 or more: a paragraph a mechanism, wrapped. None: a line a mechanism, however long, under a heading.

    Example:
        >>> next(mechanisms()).split()[:7]
        ['mechanism', 'also', 'known', 'as', 'in', 'the', 'library']
        >>> list(mechanisms(60))[:3]
        ['additive score', '  also known as   Bahdanau attention, MLP attention', '  in the library  AdditiveScore']
    """
    rows = [COLUMNS, *(cells(row) for row in MECHANISMS)]
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


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield a line a setting: its path, default and meaning; after them those of the other families of models, each under a heading.

    Example:
        >>> from regard.config import TranslationConfig
        >>> next(line for line in settings(TranslationConfig) if line.startswith("training.seed"))
        'training.seed = 1'
    """
    others: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        inner = submodels(field.annotation)
        if inner:
            yield from settings(inner[0], f"{prefix}{name}.")
            others += [(f"{prefix}{name}.", one) for one in inner[1:]]
        else:
            about = f"    # {field.description}" if field.description else ""
            default = "null" if field.default is None else str(field.default).lower() if isinstance(field.default, bool) else field.default
            yield f"{prefix}{name} = {default}{about}"
    for path, one in others:
        yield ""
        yield f"# {one.__doc__}"
        yield from settings(one, path)
