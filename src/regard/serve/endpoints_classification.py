"""What can be asked of a run that labels: sentences, or pairs of a premise and a hypothesis."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from regard.config import EntailmentConfig
from regard.data.lines import whole_characters
from regard.serve.endpoints import (
    PROBABILITY,
    RECORD,
    RECORDS,
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
from regard.tasks.classification import Classifier
from regard.tasks.classification_prediction import label_texts
from regard.tasks.entailment import Entailer
from regard.tasks.hop_attention import example_record
from regard.viewer import page_records

SIDES = ("premise", "hypothesis")
Texts = tuple[str, ...]


class ClassifyEndpoint:
    """POST /classify: what `regard classify --json` or `regard entail --json` writes for each line."""

    path: ClassVar[str] = "/classify"
    summary: ClassVar[str] = "Label lines as `regard classify` does, or pairs of premise and hypothesis as `regard entail` does."
    result: ClassVar[str] = "labels"
    item: ClassVar[Schema] = {
        "type": "object",
        "properties": {
            "label": {"type": ["string", "null"], "description": "the most probable one; null for a blank text"},
            "probabilities": {"type": "object", "additionalProperties": PROBABILITY, "description": "of each label; none for a blank text"},
            "truncated": {"type": "integer", "minimum": 0, "description": "tokens that were cut off"},
        },
        "required": ["label", "probabilities", "truncated"],
        "additionalProperties": False,
    }

    def __init__(self, models: Sequence[ServedModel[Classifier | Entailer]], limits: Limits) -> None:
        self._models = models
        self.max_body = limits.max_body
        line = line_schema(limits)
        fields: dict[str, Schema] = {"text": one_or_more(line, limits, "one line, or a list of lines")}
        if isinstance(models[0].worker.run.config, EntailmentConfig):
            sides = {"type": "object", "properties": {name: line for name in SIDES}, "required": [*SIDES], "additionalProperties": False}
            fields = {"pair": one_or_more(sides, limits, "one pair of texts, or a list of pairs")}
        self.request = body_schema(models, fields, limits)

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[Texts]]:
        """Return which model, and the texts of each example."""
        examples = [[pair[name] for name in SIDES] for pair in as_list(body["pair"])] if "pair" in body else zip(as_list(body["text"]))
        return body.get("model", 0), [tuple(whole_characters(text) for text in texts) for texts in examples]

    def width(self, item: Texts) -> int:
        """Return the characters of an example."""
        return sum(map(len, item))

    def compute(self, settings: Hashable, items: Sequence[Texts]) -> list[str | HTTPError]:
        """Label examples together."""
        assert isinstance(settings, int)
        run = self._models[settings].worker.run
        return [to_json({**found.to_json(), "truncated": found.truncated}) for found in label_texts(run, items)]


class LabelAttentionEndpoint(ClassifyEndpoint):
    """POST /attention: the records that `regard view` shows."""

    path: ClassVar[str] = "/attention"
    summary: ClassVar[str] = "Label texts and return what the model attended to, as `regard view` does; a blank text has none."
    result: ClassVar[str] = RECORDS
    item: ClassVar[Schema] = RECORD

    def plan(self, body: dict[str, Any]) -> tuple[Hashable, list[Texts]]:
        """Return which model and the examples; raises Refused for a model without attention."""
        number, examples = super().plan(body)
        assert isinstance(number, int)
        require_attention(self._models[number])
        return number, [texts for texts in examples if all(text.strip() for text in texts)]

    def compute(self, settings: Hashable, items: Sequence[Texts]) -> list[str | HTTPError]:
        """Label examples together and record what was attended to in each."""
        assert isinstance(settings, int)
        name, worker = self._models[settings]
        labellings = label_texts(worker.run, items, need_weights=True)
        records = [example_record(worker.run, texts, found) for texts, found in zip(items, labellings, strict=True)]
        return ["" if record is None else to_json(page_records([replace(record, model=name)])[0]) for record in records]
