"""What the operations of every task share: the run they work with, their fields, and how their answers are written."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from regard.config import DecodingConfig
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import Schema
from regard.serve.limits import Limits

RECORDS = "records"
RECORD: Schema = {"type": "object", "description": "a record as the page shows it", "required": ["items", "maps"]}
PROBABILITY: Schema = {"type": "number", "minimum": 0, "maximum": 1}
LINE = "one line of text, without a line feed"
DECODING_FIELDS = ("beam_size", "length_penalty", "max_length")

Worker = TypeVar("Worker")


class ServedModel(NamedTuple, Generic[Worker]):
    """A run that is served, under a name; its worker is what a task uses a run with, such as `regard.tasks.Translator`."""

    name: str
    worker: Worker


class Endpoint(Protocol):
    """An operation that a model works on: it turns a checked body into items with settings, and items into JSON texts."""

    path: ClassVar[str]
    summary: ClassVar[str]
    result: ClassVar[str]
    item: ClassVar[Schema]
    request: Schema
    max_body: int

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[Any]]:
        """Return the settings and the items of a body; raises Refused where the model cannot do it."""
        ...

    def width(self, item: Any) -> int:
        """Return how much there is to an item, in characters; 0 where batches need no other limit than their number."""
        ...

    def compute(self, settings: Hashable, items: Sequence[Any]) -> list[str | HTTPError]:
        """Return what is to be answered for each item, as JSON; an empty text leaves the item out."""
        ...


@dataclass(frozen=True)
class DecodingRequest:
    """How to generate text: which model, with which settings of its search."""

    model: int
    decoding: DecodingConfig

    @classmethod
    def asked(cls, models: Sequence[ServedModel[Any]], body: dict[str, Any]) -> DecodingRequest:
        """Return what a body asks for; what it leaves out is as the run was configured."""
        number = body.get("model", 0)
        changes = {name: body[name] for name in DECODING_FIELDS if name in body}
        return cls(number, models[number].worker.run.config.decoding.model_copy(update=changes))


def line_schema(limits: Limits) -> Schema:
    """Return the schema of one line of text."""
    return {"type": "string", "maxLength": limits.max_text, "pattern": "^[^\\n]*$", "description": LINE}


def one_or_more(item: Schema, limits: Limits, description: str) -> Schema:
    """Return the schema of one item or a list of them."""
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1, "maxItems": limits.max_lines}], "description": description}


def as_list(value: Any) -> list[Any]:
    """Return the items of a field of `one_or_more`."""
    return value if isinstance(value, list) else [value]


def body_schema(models: Sequence[ServedModel[Any]], fields: dict[str, Schema], limits: Limits, *, searches: bool = False) -> Schema:
    """Return the schema of a body: these fields, all of them required, which model, and for text that is generated how to search.

    Example:
        >>> list(body_schema([ServedModel("a", None)], {"text": {"type": "string"}}, Limits())["properties"])
        ['text', 'model']
    """
    names = ", ".join(f"{number} is {model.name}" for number, model in enumerate(models))
    model = {"type": "integer", "minimum": 0, "maximum": len(models) - 1, "default": 0, "description": f"which run: {names}"}
    properties: dict[str, Schema] = {**fields, "model": model}
    if searches:
        properties |= {
            "beam_size": {
                "type": "integer",
                "minimum": 1,
                "maximum": limits.max_beam,
                "description": "hypotheses kept; 1 is greedy search",
            },
            "length_penalty": {"type": "number", "minimum": 0, "maximum": 10, "description": "alpha of ((5 + length) / 6) ** alpha"},
            "max_length": {"type": "integer", "minimum": 1, "maximum": limits.max_output, "description": "tokens generated at most"},
        }
    return {"type": "object", "properties": properties, "required": [*fields], "additionalProperties": False}


def has_attention(model: ServedModel[Any]) -> bool:
    """Whether there is anything to look at in this run."""
    settings = model.worker.run.config.model
    if hasattr(settings, "pooling"):  # one that labels: what it pools, or its layers
        return settings.pooling != "last" or settings.encoder.type != "rnn"
    return settings.attends


def require_attention(model: ServedModel[Any]) -> None:
    """Refuse (422) to look at what a run without attention attends to."""
    if not has_attention(model):
        raise HTTPError(422, f"model: {model.name} has no attention to look at")


def to_json(value: Any) -> str:
    """Return a value as JSON in ASCII: no character of a text can be taken for the end of a line or for markup by whoever reads it.

    Example:
        >>> to_json({"text": "\\u2028"})
        '{"text":"\\\\u2028"}'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
