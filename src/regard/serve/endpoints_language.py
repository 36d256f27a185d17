"""What can be asked of a language model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from regard.data.lines import whole_characters
from regard.serve.endpoints import RECORD, RECORDS, ServedModel, as_list, body_schema, line_schema, one_or_more, require_attention, to_json
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import Schema
from regard.serve.limits import Limits
from regard.tasks.language_prediction import LanguageModel
from regard.viewer import page_records


class ScoreEndpoint:
    """POST /score: how likely each line is."""

    path: ClassVar[str] = "/score"
    summary: ClassVar[str] = "Return how likely lines are, as `regard score` does."
    result: ClassVar[str] = "scores"
    item: ClassVar[Schema] = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "the line"},
            "log_prob": {"type": "number", "description": "of the line and its end, in nats"},
            "log_prob_per_token": {"type": "number", "description": "the same, divided by the number of tokens"},
            "tokens": {"type": "array", "items": {"type": "string"}, "description": "the tokens, its end among them"},
            "log_probs": {"type": "array", "items": {"type": "number"}, "description": "of each token after those before it"},
        },
        "required": ["text", "log_prob", "log_prob_per_token", "tokens", "log_probs"],
        "additionalProperties": False,
    }

    def __init__(self, models: Sequence[ServedModel[LanguageModel]], limits: Limits) -> None:
        self._models = models
        self.max_body = limits.max_body
        self.request = body_schema(models, {"text": one_or_more(line_schema(limits), limits, "one line, or a list of lines")}, limits)

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[str]]:
        """Return which model, and the lines."""
        return body.get("model", 0), [whole_characters(line) for line in as_list(body["text"])]

    def width(self, item: str) -> int:
        """Return the characters of a line."""
        return len(item)

    def compute(self, settings: Hashable, items: Sequence[str]) -> list[str | HTTPError]:
        """Score lines together."""
        assert isinstance(settings, int)
        return [to_json(found.to_json()) for found in self._models[settings].worker.score(items)]


class LanguageAttentionEndpoint(ScoreEndpoint):
    """POST /attention: the records that `regard view` shows."""

    path: ClassVar[str] = "/attention"
    summary: ClassVar[str] = "Return what the model looked at while it predicted each token of the lines, as `regard view` does."
    result: ClassVar[str] = RECORDS
    item: ClassVar[Schema] = RECORD

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[str]]:
        """Return which model and the lines; raises Refused for a model without attention."""
        number, lines = super().plan(body)
        assert isinstance(number, int)
        require_attention(self._models[number])
        return number, lines

    def compute(self, settings: Hashable, items: Sequence[str]) -> list[str | HTTPError]:
        """Record what was looked at in each line."""
        assert isinstance(settings, int)
        name, worker = self._models[settings]
        records = [worker.record(line) for line in items]
        return ["" if record is None else to_json(page_records([replace(record, model=name)])[0]) for record in records]
