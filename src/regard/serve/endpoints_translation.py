"""What can be asked of a translator."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from regard.data.lines import whole_characters
from regard.serve.endpoints import (
    RECORD,
    RECORDS,
    DecodingRequest,
    ServedModel,
    as_list,
    body_schema,
    line_schema,
    one_or_more,
    require_attention,
    to_json,
)
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import Schema
from regard.serve.limits import Limits
from regard.tasks import Translator
from regard.viewer import page_records


class TranslateEndpoint:
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

    def __init__(self, models: Sequence[ServedModel[Translator]], limits: Limits) -> None:
        self._models = models
        self.max_body = limits.max_body
        text = one_or_more(line_schema(limits), limits, "one line, or a list of lines")
        self.request = body_schema(models, {"text": text}, limits, searches=True)

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[str]]:
        """Return the search and the lines."""
        return DecodingRequest.asked(self._models, body), [whole_characters(line) for line in as_list(body["text"])]

    def width(self, item: str) -> int:
        """Return the characters of a line."""
        return len(item)

    def compute(self, settings: Hashable, items: Sequence[str]) -> list[str | HTTPError]:
        """Translate lines together."""
        assert isinstance(settings, DecodingRequest)
        translator = self._models[settings.model].worker
        # Lines are already as many as fit together; those of one batch must not be divided by who called.
        decoding = settings.decoding.model_copy(update={"batch_size": len(items)})
        answers: list[str | HTTPError] = []
        for found in translator.translate(items, decoding=decoding):
            score = found.hypotheses[0].score if found.hypotheses else None
            finite = score if score is not None and math.isfinite(score) else None
            answers.append(to_json({"text": found.text, "score": finite, "truncated": found.truncated}))
        return answers


class TranslationAttentionEndpoint(TranslateEndpoint):
    """POST /attention: the records that `regard view` shows."""

    path: ClassVar[str] = "/attention"
    summary: ClassVar[str] = "Translate lines and return what the model attended to, as `regard view` does; a blank line has no record."
    result: ClassVar[str] = RECORDS
    item: ClassVar[Schema] = RECORD

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[str]]:
        """Return the search and the lines; raises Refused for a model without attention."""
        search, lines = super().plan(body)
        assert isinstance(search, DecodingRequest)
        require_attention(self._models[search.model])
        return search, [line for line in lines if line.strip()]

    def compute(self, settings: Hashable, items: Sequence[str]) -> list[str | HTTPError]:
        """Translate lines together and record what was attended to, by every hypothesis of the search."""
        assert isinstance(settings, DecodingRequest)
        name, translator = self._models[settings.model]
        decoding = settings.decoding.model_copy(update={"batch_size": len(items)})
        found = translator.translate(items, decoding=decoding, n_best=decoding.beam_size, need_attention=True)
        records = [translator.record(line, item) for line, item in zip(items, found, strict=True)]
        return ["" if record is None else to_json(page_records([replace(record, model=name)])[0]) for record in records]
