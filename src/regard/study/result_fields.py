"""The fields of a run's result, as reports read them."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from regard.config.study import StudyCell
from regard.errors import DataError
from regard.metrics.significance import read_metric_counts, score_of_counts

Number = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(allow_inf_nan=False, ge=0)]
AreaSize = Annotated[str, Field(pattern=r"^[1-9][0-9]*$")]
Row = Annotated[tuple[str, int, Number], Field(strict=False)]
Point = Annotated[tuple[int, Number, Number], Field(strict=False)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Evaluation(_Fields):
    __pydantic_extra__: dict[str, float | None]
    step: int
    loss: float | None = None  # null: not finite


class _Scored(_Fields):
    metric: str
    value: Number | None
    updates: list[int] = Field(min_length=1)


class _Attention(_Fields):
    entropy: NotNegative = 0.0
    areas: dict[AreaSize, NotNegative] = {}


class _Selection(_Fields):
    of: int
    rank: int
    points: list[Point]


class _Figure(_Fields):
    value: Number
    low: Number
    high: Number


class _Method(_Fields):
    __pydantic_extra__: dict[str, _Figure | None]
    method: str
    seconds: Number
    refused: str | None = None


class _Methods(_Fields):
    asked: list[str | int]
    figures: list[_Method]


class _MostFrequent(_Fields):
    accuracy: Number


class _Result(_Fields):
    cell: StudyCell
    command: str
    metric: str
    main: str
    scores: dict[str, Number]
    attention: _Attention
    curve: list[_Evaluation]
    counts: list[list[Number]] | None
    by_length: list[Row] = []
    tested: dict[str, str] | None = None
    signatures: dict[str, str] = {}
    scored: _Scored | None = None
    selection: _Selection | None = None
    methods: _Methods | None = None
    equal_to: str | None = None
    seen: int | None = None
    parameters: Number | None = None
    updates: int | None = None
    seconds: Number | None = None
    seconds_per_update: Number | None = None
    tokens_per_second: Number | None = None
    megabytes: Number | None = None
    lines_per_second: Number | None = None
    epochs: NotNegative = 0.0
    training_examples: int = 0
    validation_examples: int = 0
    trained_on: str | None = None
    most_frequent: _MostFrequent | None = None

    @field_validator("counts")
    @classmethod
    def _of_one_length(cls, counts: list[list[float]] | None) -> list[list[float]] | None:
        if counts is not None and len({len(row) for row in counts}) > 1:
            raise ValueError("rows of different lengths")
        return counts


def wrong_fields(result: dict[str, Any]) -> list[str]:
    """Return the names of fields that are missing or wrong; fields that no report reads may be anything.

    Example:
        >>> wrong_fields({"metric": "loss"})[:3]
        ['cell', 'command', 'main']
    """
    try:
        found = _Result.model_validate(result)
    except ValidationError as error:
        return list(dict.fromkeys(".".join(map(str, each["loc"])) for each in error.errors(include_input=False, include_url=False)))
    if found.main not in found.scores:
        return [f"scores.{found.main}"]
    return _wrong_counts(found) if found.counts else []


def _wrong_counts(found: _Result) -> list[str]:
    try:
        counts = read_metric_counts("counts", found.metric, np.array(found.counts), axes=2)
        with np.errstate(all="ignore"):
            score = score_of_counts(found.metric, counts.sum(0))
    except DataError:
        return ["metric", "counts"]
    return [] if math.isclose(score, found.scores[found.main], rel_tol=1e-6, abs_tol=1e-6) else [f"scores.{found.main}", "counts"]
