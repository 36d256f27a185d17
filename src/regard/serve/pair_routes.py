"""The operations on given pairs of a translation run: scores and word links."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from regard.data.lines import whole_characters
from regard.data.parallel import join_inputs
from regard.errors import ConfigError
from regard.serve.endpoints import Answer, ServedModel, ServedTask, as_list, line_schema, object_schema, one_or_more, too_long, two_inputs
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import Schema
from regard.serve.limits import Limits
from regard.tasks import Translator
from regard.tasks.pair_scores import score_pairs
from regard.tasks.word_links import LinkMethod, LinkUnit, find_links

FIELDS = '"source" and "second"'
COUNT: Schema = {"type": "integer", "minimum": 0}
LINKS: Schema = {
    "type": "array",
    "items": {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2},
    "description": "word links [source, target], from 0",
}


def score_fields(what: str) -> dict[str, Schema]:
    """Return the fields of an answer with the log-probabilities of `what`: a line or a target.

    Example:
        >>> list(score_fields("line"))
        ['log_prob', 'log_prob_per_token', 'tokens', 'log_probs']
    """
    numbers: Schema = {"type": "array", "items": {"type": "number"}}
    return {
        "log_prob": {"type": "number", "description": f"log-probability of the {what} with EOS, in nats"},
        "log_prob_per_token": {"type": "number", "description": "the same, divided by the number of tokens"},
        "tokens": {"type": "array", "items": {"type": "string"}, "description": f"the tokens of the {what}, EOS included"},
        "log_probs": {**numbers, "description": "log-probability of each token given those before it"},
    }


class _Pair(NamedTuple):
    source: str
    target: str
    unit: LinkUnit
    method: LinkMethod


def _fields(models: Sequence[ServedModel[Any]], limits: Limits) -> dict[str, Schema]:
    line = line_schema(limits)
    if not two_inputs(models[0].worker):
        return {"pair": one_or_more(object_schema(source=line, target=line), limits, "a source and a target, or a list of these")}
    first = {**line, "pattern": "^[^\\n\\t]*$", "description": "one line of text, without a line feed or a tab"}
    sides = object_schema(source=first, second=first, target=line)
    return {"pair": one_or_more(sides, limits, "a source, its second input and a target, or a list of these")}


def _pairs(body: dict[str, Any]) -> list[_Pair]:
    unit, method = body.get("unit", "word"), body.get("method", "attention")
    found = [{name: whole_characters(text) for name, text in pair.items()} for pair in as_list(body["pair"])]
    sources = [join_inputs(pair["source"], pair["second"]) if "second" in pair else pair["source"] for pair in found]
    return [_Pair(source, pair["target"], unit, method) for source, pair in zip(sources, found, strict=True)]


def _missing(translator: Translator, pairs: Sequence[_Pair]) -> list[str]:
    return [translator.run.vocabularies.source.missing(pair.source, FIELDS) for pair in pairs]


def _score(translator: Translator, pairs: Sequence[_Pair], *_: object) -> list[Answer]:
    missing = _missing(translator, pairs)
    found = iter(score_pairs(translator.run, [(pair.source, pair.target) for pair, lack in zip(pairs, missing, strict=True) if not lack]))
    answers: list[Answer] = []
    for lack in missing:
        if lack:
            answers.append(HTTPError(422, lack))
            continue
        item = next(found)
        figures = {"log_prob": item.total, "log_prob_per_token": item.mean, "tokens": item.pieces, "log_probs": item.log_probs}
        answers.append({**figures, "truncated": list(item.truncated)})
    return answers


def _width(pair: _Pair) -> int:
    """Return the characters of a pair; one that takes a pass for each token fills a batch, so that others wait for one only."""
    return len(pair.source) + len(pair.target) if pair.method == "attention" else sys.maxsize


def _align(translator: Translator, pairs: Sequence[_Pair], _: object, limits: Limits) -> list[Answer]:
    vocabularies, limit = translator.run.vocabularies, translator.run.config.data.max_length

    def link(pair: _Pair, lack: str) -> Answer:
        if lack:
            return HTTPError(422, lack)
        if pair.method != "attention":
            sides = (vocabularies.source, pair.source), (vocabularies.target, pair.target)
            refused = too_long(min(limit, max(len(side.encode_ids([text])[0]) for side, text in sides)), limits)
            if refused is not None:
                return refused
        try:
            (links,) = find_links(translator.run, [(pair.source, pair.target)], unit=pair.unit, method=pair.method)
        except ConfigError as error:
            return HTTPError(422, f"method: {error}")
        return {"links": sorted([source, target] for target, source in links)}

    return [link(pair, lack) for pair, lack in zip(pairs, _missing(translator, pairs), strict=True)]


SCORING = ServedTask(
    path="/score",
    summary="Return the log-probabilities of targets given their sources, as `regard score` does.",
    attention_summary="",
    result="scores",
    item=object_schema(
        **score_fields("target"),
        truncated={"type": "array", "items": COUNT, "description": "tokens of the source and of the target that were cut off"},
    ),
    fields=_fields,
    items=_pairs,
    width=_width,
    answer=_score,
    records=lambda *_: [],
)
ALIGNING = SCORING._replace(
    path="/align",
    summary="Link the words of targets to those of their sources, as `regard align` does.",
    result="alignments",
    item=object_schema(links=LINKS),
    answer=_align,
    options={
        "unit": {"type": "string", "pattern": "^(word|character)$", "default": "word", "description": "word or character"},
        "method": {
            "type": "string",
            "pattern": "^(attention|leave-one-out)$",
            "default": "attention",
            "description": "attention, or leave-one-out, which takes one forward pass per source token",
        },
    },
)
