"""Tables the command line prints: the mechanisms with their authors' names, and every setting with its default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel


class Mechanism(NamedTuple):
    """A mechanism: its name here, what others call it, its class, the setting that selects it, its source."""

    name: str
    aliases: str
    where: str
    setting: str
    source: str


MECHANISMS = (
    Mechanism(
        "additive score", "Bahdanau attention, MLP attention", "AdditiveScore", "model.attention.score=additive", "Bahdanau 2015, A.1.2"
    ),
    Mechanism("concat score", "Luong concat", "ConcatScore", "model.attention.score=concat", "Luong 2015, 3.1"),
    Mechanism("dot score", "Luong dot", "DotScore()", "model.attention.score=dot", "Luong 2015, 3.1"),
    Mechanism("scaled dot score", "Vaswani attention", "DotScore(scaled=True)", "model.attention.score=scaled_dot", "Vaswani 2017, Eq. 1"),
    Mechanism(
        "general score", "Luong attention, bilinear, multiplicative", "GeneralScore", "model.attention.score=general", "Luong 2015, 3.1"
    ),
    Mechanism("location score", "Luong location", "LocationScore", "model.attention.score=location", "Luong 2015, Eq. 8"),
    Mechanism("cosine score", "Graves content addressing, NTM", "CosineScore", "model.attention.score=cosine", "Graves 2014, Eq. 5"),
    Mechanism("whole source", "global, soft attention", "SourceAttention(score)", "model.attention.window=global", "Bahdanau 2015, Eq. 5"),
    Mechanism("monotonic window", "Luong local-m", "MonotonicWindow", "model.attention.window=local_m", "Luong 2015, 3.2"),
    Mechanism("predictive window", "Luong local-p", "PredictiveWindow", "model.attention.window=local_p", "Luong 2015, Eq. 9-10"),
    Mechanism("attend before the cell", "Bahdanau's order", "", "model.attention.query_state=previous", "Bahdanau 2015, Eq. 4"),
    Mechanism("attend after the cell", "Luong's order", "", "model.attention.query_state=current", "Luong 2015, 3"),
    Mechanism("input feeding", "Luong input feeding", "", "model.attention.input_feeding=true", "Luong 2015, 3.3"),
    Mechanism("no attention", "Sutskever, Cho: a fixed context vector", "", "model.attention=null", "Cho 2014, 2.2"),
)


def mechanisms() -> Iterator[str]:
    """Yield a line a mechanism, under a heading.

    Example:
        >>> next(mechanisms()).split()
        ['mechanism', 'also', 'known', 'as', 'in', 'the', 'library', 'setting', 'source']
    """
    rows = [("mechanism", "also known as", "in the library", "setting", "source"), *MECHANISMS]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield a line a setting: its path, default and meaning.

    Example:
        >>> from regard.config import RunConfig
        >>> next(line for line in settings(RunConfig) if line.startswith("training.seed"))
        'training.seed = 1'
    """
    for name, field in model.model_fields.items():
        inner = next(
            (c for c in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(c, type) and issubclass(c, BaseModel)),
            None,
        )
        if inner is not None:
            yield from settings(inner, f"{prefix}{name}.")
        else:
            about = f"    # {field.description}" if field.description else ""
            default = "null" if field.default is None else str(field.default).lower() if isinstance(field.default, bool) else field.default
            yield f"{prefix}{name} = {default}{about}"
