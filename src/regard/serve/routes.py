"""What can be asked for: one table of operations, from which requests are checked, answered and described."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

from regard.config import DecodingConfig
from regard.data.lines import whole_characters
from regard.serve.limits import Limits
from regard.serve.refusal import Refused
from regard.serve.schema import Schema
from regard.tasks import Translator
from regard.viewer import page_records

LINE = "one line of text, without a line feed"


class Model(NamedTuple):
    """A run that is served, under a name."""

    name: str
    translator: Translator


class Job(Protocol):
    """An operation that a model works on: it turns a checked body into lines with settings, and lines into JSON texts."""

    path: ClassVar[str]
    summary: ClassVar[str]
    result: ClassVar[str]
    item: ClassVar[Schema]
    request: Schema

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[str]]:
        """Return the settings and the lines of a body; raises Refused where the model cannot do it."""
        ...

    def compute(self, settings: Hashable, lines: Sequence[str]) -> list[str]:
        """Return what is to be answered for each line, as JSON; an empty text leaves the line out."""
        ...


@dataclass(frozen=True)
class Search:
    """How to translate: which model, with which settings of its search."""

    model: int
    decoding: DecodingConfig


class Translate:
    """POST /translate: what `regard translate` writes for each line."""

    path: ClassVar[str] = "/translate"
    summary: ClassVar[str] = "Translate lines, as `regard translate` does."
    result: ClassVar[str] = "translations"
    item: ClassVar[Schema] = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "the translation; empty for a blank line"},
            "score": {"type": ["number", "null"], "description": "by which it was chosen; null for a blank line"},
            "truncated": {"type": "integer", "minimum": 0, "description": "tokens of the line that were cut off"},
        },
        "required": ["text", "score", "truncated"],
        "additionalProperties": False,
    }

    def __init__(self, models: Sequence[Model], limits: Limits) -> None:
        self._models = models
        self.request = _request(models, limits)

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[str]]:
        """Return the search and the lines."""
        return _plan(self._models, body)

    def compute(self, settings: Hashable, lines: Sequence[str]) -> list[str]:
        """Translate lines together."""
        assert isinstance(settings, Search)
        translator = self._models[settings.model].translator
        # All together: how many was decided by who called.
        decoding = settings.decoding.model_copy(update={"batch_size": len(lines)})
        answers = []
        for found in translator.translate(lines, decoding=decoding):
            score = found.hypotheses[0].score if found.hypotheses else None
            finite = score if score is not None and math.isfinite(score) else None
            answers.append(_json({"text": found.text, "score": finite, "truncated": found.truncated}))
        return answers


class Attention:
    """POST /attention: the records that `regard view` shows."""

    path: ClassVar[str] = "/attention"
    summary: ClassVar[str] = "Translate lines and return what the model attended to, as `regard view` does; a blank line has no record."
    result: ClassVar[str] = "records"
    item: ClassVar[Schema] = {"type": "object", "description": "a record as the page shows it", "required": ["items", "maps"]}

    def __init__(self, models: Sequence[Model], limits: Limits) -> None:
        self._models = models
        self.request = _request(models, limits)

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[str]]:
        """Return the search and the lines; raises Refused for a model without attention."""
        search, lines = _plan(self._models, body)
        model = self._models[search.model]
        if not model.translator.run.model.attends:
            raise Refused(422, f"model: {model.name} has no attention to look at")
        return search, [line for line in lines if line.strip()]

    def compute(self, settings: Hashable, lines: Sequence[str]) -> list[str]:
        """Translate lines together and record what was attended to."""
        assert isinstance(settings, Search)
        model = self._models[settings.model]
        translator = model.translator
        decoding = settings.decoding.model_copy(update={"batch_size": len(lines)})
        answers = []
        for line, found in zip(lines, translator.translate(lines, decoding=decoding, need_attention=True), strict=True):
            record = translator.record(line, found)
            answers.append(_json(page_records([replace(record, model=model.name)])[0]) if record is not None else "")
        return answers


def jobs(models: Sequence[Model], limits: Limits) -> list[Job]:
    """Return every operation that works on text; a new one is a class as above and a line here."""
    return [Translate(models, limits), Attention(models, limits)]


def _request(models: Sequence[Model], limits: Limits) -> Schema:
    line = {"type": "string", "maxLength": limits.max_text, "pattern": "^[^\\n]*$", "description": LINE}
    lines = {"type": "array", "items": line, "minItems": 1, "maxItems": limits.max_lines}
    names = ", ".join(f"{number} is {model.name}" for number, model in enumerate(models))
    return {
        "type": "object",
        "properties": {
            "text": {"anyOf": [line, lines], "description": "one line, or a list of lines"},
            "model": {"type": "integer", "minimum": 0, "maximum": len(models) - 1, "default": 0, "description": f"which run: {names}"},
            "beam": {"type": "integer", "minimum": 1, "maximum": limits.max_beam, "description": "hypotheses kept; 1 is greedy search"},
            "length_penalty": {"type": "number", "minimum": 0, "maximum": 10, "description": "alpha of ((5 + length) / 6) ** alpha"},
            "max_length": {"type": "integer", "minimum": 1, "maximum": limits.max_output, "description": "tokens generated at most"},
        },
        "required": ["text"],
        "additionalProperties": False,
    }


def _plan(models: Sequence[Model], body: dict[str, Any]) -> tuple[Search, list[str]]:
    number = body.get("model", 0)
    changes = {name: body[name] for name in ("beam", "length_penalty", "max_length") if name in body}
    decoding = models[number].translator.run.config.decoding.model_copy(update=changes)
    lines = [body["text"]] if isinstance(body["text"], str) else body["text"]
    return Search(number, decoding), [whole_characters(line) for line in lines]


def _json(value: Any) -> str:
    # ASCII: no character of a text can be taken for the end of a line or for markup by whoever reads it.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
