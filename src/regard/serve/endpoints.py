"""Operations on runs: fields, conversion of bodies to items and settings, and answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from regard.config import DecodingConfig
from regard.errors import ConfigError
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import Schema
from regard.serve.limits import Limits
from regard.tasks import Translator
from regard.tasks.explained_records import ASKED
from regard.viewer import AttentionRecord, page_records

RECORD: Schema = {"type": "object", "description": "a record as the page shows it", "required": ["items", "maps"]}
LINE = "one line of text, without a line feed"
DECODING_FIELDS = ("beam_size", "length_penalty", "max_length")

Worker = TypeVar("Worker")
Answer = dict[str, Any] | HTTPError
RecordOrError = AttentionRecord | HTTPError | None


class ServedModel(NamedTuple, Generic[Worker]):
    """A named, served run; its worker is the task's predictor, such as `regard.tasks.Translator`."""

    name: str
    worker: Worker


class DecodingRequest(NamedTuple):
    """Key of items that may share a batch: the model, for generated text decoding settings, and the method of explanation."""

    model: int
    decoding: DecodingConfig | None
    method: str | None = None


class ServedTask(NamedTuple):
    """Serving description of a task.

    Attributes:
        path: of the operation.
        summary: what it does.
        attention_summary: summary of `/attention`.
        result: the field of the answers.
        item: the schema of an answer.
        fields: fields of a body, given runs and limits.
        items: items of a body.
        width: width of an item in characters; 0 if batches are limited by number only.
        answer: answers of items, given worker, decoding settings and limits; called in the model's thread.
        records: attention records, likewise, with the scores of methods of explanation; None omits an item.
        has_content: whether an item is not empty.
        options: optional fields of the task's operation.
        shown: likewise of `/attention`.
        generates: whether text is generated.
        max_body: maximum bytes of a body.
    """

    path: str
    summary: str
    attention_summary: str
    result: str
    item: Schema
    fields: Callable[[Sequence[ServedModel[Any]], Limits], dict[str, Schema]]
    items: Callable[[dict[str, Any]], list[Any]]
    width: Callable[[Any], int]
    answer: Callable[[Any, Sequence[Any], Any, Limits], Sequence[Answer]]
    records: Callable[[Any, Sequence[Any], Any, Limits, Sequence[str]], Sequence[RecordOrError]]
    has_content: Callable[[Any], object] = lambda item: True
    options: Mapping[str, Schema] = MappingProxyType({})
    shown: Mapping[str, Schema] = MappingProxyType({})
    generates: bool = False
    max_body: Callable[[Limits], int] = lambda limits: limits.max_body


class Endpoint:
    """A model operation: converts a checked body to items with settings, and items to JSON.

    Args:
        task: task of the runs.
        models: the runs.
        limits: request limits.
        attention: POST /attention, the records that `regard view` shows, instead of the task's own operation.
    """

    def __init__(self, task: ServedTask, models: Sequence[ServedModel[Any]], limits: Limits, *, attention: bool) -> None:
        self._task, self._models, self._limits, self._attention = task, models, limits, attention
        self.path, self.summary = ("/attention", task.attention_summary) if attention else (task.path, task.summary)
        self.result, self.item = ("records", RECORD) if attention else (task.result, task.item)
        options = {"method": METHOD, **task.shown} if attention else task.options
        self.request = body_schema(models, task.fields(models, limits), limits, options=options, generates=task.generates)
        self.max_body = task.max_body(limits)

    def plan(self, body: dict[str, Any]) -> tuple[DecodingRequest, list[Any]]:
        """Return settings and items of a body; omitted settings are the run's.

        Raises:
            HTTPError: 422, the model cannot do it, or a field cannot be read.
        """
        number = body.get("model", 0)
        name, worker = self._models[number]
        changes = {name: body[name] for name in DECODING_FIELDS if name in body}
        decoding = worker.run.config.decoding.model_copy(update=changes) if self._task.generates else None
        items = self._task.items(body)
        if self._attention:
            if not has_attention(self._models[number]):
                raise HTTPError(422, f"model: {name} has no attention to show")
            items = list(filter(self._task.has_content, items))
        return DecodingRequest(number, decoding, body.get("method") if self._attention else None), items

    def width(self, settings: DecodingRequest, item: Any) -> int:
        """Return the width of an item in characters; an item to explain fills a batch, so that others wait for one only."""
        return self._task.width(item) if settings.method is None else self._limits.batch_characters

    def compute(self, settings: DecodingRequest, items: Sequence[Any]) -> list[str | HTTPError]:
        """Return the JSON answer of each item; an empty text omits the item."""
        name, worker = self._models[settings.model]
        if not self._attention:
            answers = self._task.answer(worker, items, settings.decoding, self._limits)
            return [each if isinstance(each, HTTPError) else to_json(each) for each in answers]
        try:
            found = self._task.records(worker, items, settings.decoding, self._limits, [settings.method] if settings.method else [])
        except ConfigError as error:  # the method is not defined for this model
            return [HTTPError(422, f"method: {' '.join(str(error).split())}")] * len(items)
        return [
            each if isinstance(each, HTTPError) else "" if each is None else to_json(page_records([replace(each, model=name)])[0])
            for each in found
        ]


METHOD: Schema = {
    "type": "string",
    "pattern": "^(" + "|".join(ASKED) + ")$",
    "description": f"one of {', '.join(ASKED)}, whose scores are added to the records; 422 where it is not defined for the model",
}


def object_schema(**properties: Schema) -> Schema:
    """Return the schema of an object with these fields, all of them required, and no others."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def line_schema(limits: Limits) -> Schema:
    """Return the schema of one line of text."""
    return {"type": "string", "maxLength": limits.max_text, "pattern": "^[^\\n]*$", "description": LINE}


def one_or_more(item: Schema, limits: Limits, description: str) -> Schema:
    """Return the schema of one item or a list of them."""
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1, "maxItems": limits.max_lines}], "description": description}


def too_long(tokens: int, limits: Limits) -> HTTPError | None:
    """Refuse a text of too many tokens for a method that may take a pass of the model for each of them."""
    return None if tokens <= limits.max_explained else HTTPError(422, f"method: {tokens} tokens, expected at most {limits.max_explained}")


def as_list(value: Any) -> list[Any]:
    """Return the items of a field of `one_or_more`."""
    return value if isinstance(value, list) else [value]


def body_schema(
    models: Sequence[ServedModel[Any]],
    fields: dict[str, Schema],
    limits: Limits,
    *,
    options: Mapping[str, Schema] = MappingProxyType({}),
    generates: bool = False,
) -> Schema:
    """Return the schema of a body: required fields, options, model, and for generated text decoding settings.

    Example:
        >>> list(body_schema([ServedModel("a", None)], {"text": {"type": "string"}}, Limits())["properties"])
        ['text', 'model']
    """
    names = ", ".join(f"{number} is {model.name}" for number, model in enumerate(models))
    model = {"type": "integer", "minimum": 0, "maximum": len(models) - 1, "default": 0, "description": f"which run: {names}"}
    properties: dict[str, Schema] = {**fields, **options, "model": model}
    if generates:
        kept = {"type": "integer", "minimum": 1, "maximum": limits.max_beam, "description": "beam width; 1 is greedy decoding"}
        alpha = {"type": "number", "minimum": 0, "maximum": 10, "description": "alpha: scores are divided by ((5 + length) / 6) ** alpha"}
        most = {"type": "integer", "minimum": 1, "maximum": limits.max_output, "description": "max number of generated tokens"}
        properties |= dict(zip(DECODING_FIELDS, (kept, alpha, most), strict=True))
    return {"type": "object", "properties": properties, "required": [*fields], "additionalProperties": False}


def has_attention(model: ServedModel[Any]) -> bool:
    """Whether this run has attention."""
    return model.worker.run.config.model.attends


def two_inputs(worker: Any) -> bool:
    """Whether a worker translates two inputs."""
    return isinstance(worker, Translator) and worker.run.config.second is not None


def reads_images(worker: Any) -> bool:
    """Whether a worker translates a sentence with an image."""
    return isinstance(worker, Translator) and worker.run.vocabularies.images is not None


def to_json(value: Any) -> str:
    r"""Return a value as ASCII JSON, so that no character can be read as a line end or markup.

    Example:
        >>> to_json({"text": "\u2028"})
        '{"text":"\\u2028"}'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
