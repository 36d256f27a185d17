"""The fields of a run's result, as reports read them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from regard.config.study import StudyCell

Number = Annotated[float, Field(allow_inf_nan=False)]
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
    entropy: Number = 0.0
    areas: dict[str, Number] = {}


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
    training_examples: int | None = None
    validation_examples: int | None = None

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
    return [] if found.main in found.scores else [f"scores.{found.main}"]
