"""The operations of each task: one table validates, answers and documents requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.config import DecodingConfig, EntailmentConfig, with_options
from regard.config.captioning import FeaturesConfig
from regard.data.image_tokens import INLINE
from regard.data.lines import whole_characters
from regard.data.markup import split_markup
from regard.data.markup_placement import place_markup
from regard.data.parallel import join_inputs
from regard.errors import ConfigError, DataError, counted
from regard.serve.endpoints import (
    LINE,
    Answer,
    Endpoint,
    RecordOrError,
    ServedModel,
    ServedTask,
    as_list,
    line_schema,
    object_schema,
    one_or_more,
    reads_images,
    too_long,
    two_inputs,
)
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import Schema
from regard.serve.limits import Limits
from regard.serve.pair_routes import ALIGNING, COUNT, LINKS, SCORING, score_fields
from regard.serve.sent_image import SentImage, decode_image, image_schema, refuse_large
from regard.tasks import Captioner, Classifier, Entailer, Translator, open_any
from regard.tasks.attention_records import explained_label, explained_line, explained_translation
from regard.tasks.classification_prediction import label_texts
from regard.tasks.forced_text import SOURCE_TERM, Glossary, Term
from regard.tasks.hop_attention import example_record
from regard.tasks.predict import check_precision
from regard.tasks.run_folder import device_of, run_task
from regard.tasks.word_links import find_links, find_part_links
from regard.viewer import AttentionRecord

SIDES = ("premise", "hypothesis")
FIELDS = '"text" and "second"'
# As in `regard caption`: sampled hard attention draws for each image as if it were alone.
SEED = 1


def _lines_field(models: Sequence[ServedModel[Any]], limits: Limits) -> dict[str, Schema]:
    return {"text": one_or_more(line_schema(limits), limits, "one line, or a list of lines")}


def _lines(body: dict[str, Any]) -> list[str]:
    return [whole_characters(line) for line in as_list(body["text"])]


def _score(hypotheses: Sequence[Any]) -> float | None:
    score = hypotheses[0].score if hypotheses else math.nan
    return score if math.isfinite(score) else None


class _Line(NamedTuple):
    text: str
    keep_tags: bool
    prefix: str
    terms: Glossary
    links: bool


def _translation_fields(models: Sequence[ServedModel[Any]], limits: Limits) -> dict[str, Schema]:
    line = {"type": "string", "maxLength": limits.max_text, "description": f"{LINE}; with keep_tags it may have some"}
    fields: dict[str, Schema] = {"text": one_or_more(line, limits, "one line, or a list of lines")}
    if two_inputs(models[0].worker):
        one = {**line_schema(limits), "pattern": "^[^\\n\\t]*$", "description": f"{LINE} or a tab"}
        fields["text"] = one_or_more(one, limits, "the first input of a line, or a list of them")
        about = 'the second input of each line of "text", as many; an empty text for none, which only some models can do without'
        if reads_images(models[0].worker):
            fields["second"] = one_or_more(image_schema(limits), limits, about)
            return fields
        fields["second"] = one_or_more(one, limits, about)
    return fields


def _translation_lines(body: dict[str, Any]) -> list[_Line]:
    lines, tagged = _lines(body), body.get("keep_tags", False)
    try:
        terms = Glossary([Term(**term) for term in body.get("terms", ())])
    except ConfigError as error:
        raise HTTPError(422, str(error)) from error
    if not tagged and any("\n" in line for line in lines):
        raise HTTPError(422, f"text: expected {LINE}; with keep_tags it may have some")
    if tagged and body.get("links", False):
        raise HTTPError(422, "links: not with keep_tags, which takes the tags out of the lines that links count the words of")
    prefix = body.get("prefix", "")
    prefixes = prefix if isinstance(prefix, list) else [prefix] * len(lines)
    if len(prefixes) != len(lines):
        raise HTTPError(422, f"prefix: expected one for each of {counted(len(lines), 'line')}, found {len(prefixes)}")
    if "second" in body:
        seconds = [whole_characters(line) for line in as_list(body["second"])]
        if len(seconds) != len(lines):
            raise HTTPError(422, f"second: {counted(len(seconds), 'line')}, but text has {len(lines)}")
        lines = [join_inputs(*both) for both in zip(lines, seconds, strict=True)]
    return [_Line(line, tagged, begin, terms, body.get("links", False)) for line, begin in zip(lines, prefixes, strict=True)]


def _readable(translator: Translator, lines: Sequence[_Line], limits: Limits) -> tuple[list[_Line], list[str]]:
    """Return lines in the translator's format, and the error of each ("" if none). Image names cannot refer to files of the server."""
    images = reads_images(translator)
    read = [line._replace(text=_with_image(line.text)) if images else line for line in lines]
    missing = [translator.run.vocabularies.source.missing(line.text, FIELDS) for line in read] if not images else []
    for line in lines if images else ():
        found = _image_error(line.text.partition("\t")[2], limits)
        missing.append(found or translator.run.vocabularies.source.missing(_with_image(line.text), FIELDS))
    return read, missing


def _with_image(line: str) -> str:
    first, tab, second = line.partition("\t")
    return f"{first}{tab}{INLINE}sent;base64,{second}" if second.strip() else line


def _image_error(text: str, limits: Limits) -> str:
    try:
        refused = refuse_large(decode_image(text), limits) if text.strip() else None
    except HTTPError as error:
        refused = error
    return "" if refused is None else str(refused)


def _translate(translator: Translator, lines: Sequence[_Line], decoding: DecodingConfig, limits: Limits) -> list[Answer]:
    """Translate lines together; a line with a missing input, or tags that the model cannot place, is refused (422)."""
    lines, missing = _readable(translator, lines, limits)
    refused = [lack or _unlinked(translator, line) for lack, line in zip(missing, lines, strict=True)]
    answers: list[Answer] = [HTTPError(422, told) for told in refused]
    for tagged, translate in ((False, translator.translate), (True, translator.translate_tagged)):
        numbers = [number for number, line in enumerate(lines) if line.keep_tags == tagged and not refused[number]]
        if not numbers:
            continue
        # The lines already form one batch; do not split it again by caller.
        own, search = [lines[number] for number in numbers], decoding.model_copy(update={"batch_size": len(numbers)})
        prefixes, terms = [line.prefix for line in own], [line.terms for line in own]
        found = translate([line.text for line in own], decoding=search, prefixes=prefixes, terms=terms)
        pairs = [(line.text, item.part_texts()) for line, item in zip(own, found, strict=True) if line.links]
        linked = iter(find_part_links(translator.run, pairs) if pairs else ())
        for number, line, item in zip(numbers, own, found, strict=True):
            links = sorted([source, target] for target, source in next(linked)) if line.links else None
            answer = {"text": item.text, "score": _score(item.hypotheses), "confidence": item.confidence, "links": links}
            answers[number] = {**answer, "truncated": item.truncated, "parts": max(1, len(item.parts)), "unplaced": item.unplaced}
    return answers


def _unlinked(translator: Translator, line: _Line) -> str:
    # Why a line cannot be answered without word links; "" if it can.
    if line.keep_tags and two_inputs(translator):
        return "keep_tags: this model reads two inputs"
    if (line.keep_tags or line.links) and not translator.run.model.attends:
        return (
            f"{'keep_tags' if line.keep_tags else 'links'}: this model has no attention over the source"
            + " to place tags by" * line.keep_tags
        )
    return ""


def _translation_records(
    translator: Translator, lines: Sequence[_Line], decoding: DecodingConfig, limits: Limits, methods: Sequence[str]
) -> list[RecordOrError]:
    decoding = decoding.model_copy(update={"batch_size": len(lines)})
    lines, missing = _readable(translator, lines, limits)
    lacks = [lack or _unlinked(translator, line) for lack, line in zip(missing, lines, strict=True)]
    marked = [split_markup(line.text) if line.keep_tags else None for line in lines]
    plain = [line.text if tags is None else tags.plain for line, tags in zip(lines, marked, strict=True)]
    texts = ["" if lack else text for lack, text in zip(lacks, plain, strict=True)]
    prefixes = [split_markup(line.prefix).plain if line.keep_tags else line.prefix for line in lines]
    forced = {"prefixes": prefixes, "terms": [line.terms for line in lines]}
    found = translator.translate(texts, decoding=decoding, n_best=decoding.beam_size, need_attention=True, **forced)
    own = [translator.record(line, item) for line, item in zip(texts, found, strict=True)]
    explain = partial(explained_translation, translator.run, methods=methods)
    records = _explained(own, found, explain, limits) if methods else [*own]
    for number, (tags, item, record) in enumerate(zip(marked, found, records, strict=True)):
        if isinstance(record, AttentionRecord) and tags is not None:
            (links,) = find_links(translator.run, [(tags.plain, item.text)], unit="markup")
            records[number] = replace(record, meta={**record.meta, "with tags": place_markup(tags, item.text, links)})
    return [HTTPError(422, lack) if lack else record for lack, record in zip(lacks, records, strict=True)]


def _caption(captioner: Captioner, images: Sequence[bytes], decoding: DecodingConfig, limits: Limits) -> list[Answer]:
    """Caption images together; an unreadable one is refused (422)."""
    answers: list[Any] = [refuse_large(data, limits) for data in images]
    left = [number for number, answer in enumerate(answers) if answer is None]
    settings: Any = captioner.run.config.model
    draws = getattr(settings, "attention", "soft") == "hard" and settings.hard.mode == "sample"
    for numbers in filter(None, [[number] for number in left] if draws else [left]):
        torch.manual_seed(SEED)
        own = decoding.model_copy(update={"batch_size": len(numbers)})
        found = captioner.caption([SentImage(images[number]) for number in numbers], decoding=own)
        for number, item in zip(numbers, found, strict=True):
            answer = {"text": item.text, "score": _score(item.hypotheses)}
            answers[number] = answer if item.error is None else HTTPError(422, item.error)
    return answers


def _caption_records(
    captioner: Captioner, images: Sequence[bytes], decoding: DecodingConfig, limits: Limits, methods: Sequence[str]
) -> list[RecordOrError]:
    def record(data: bytes) -> AttentionRecord | HTTPError:
        torch.manual_seed(SEED)
        try:
            return replace(captioner.record(SentImage(data), decoding=decoding, methods=methods), title="")
        except DataError as error:
            return HTTPError(422, " ".join(str(error).splitlines()))

    return [refuse_large(data, limits) or record(data) for data in images]


def _label_fields(models: Sequence[ServedModel[Any]], limits: Limits) -> dict[str, Schema]:
    if not isinstance(models[0].worker.run.config, EntailmentConfig):
        return _lines_field(models, limits)
    sides = object_schema(**dict.fromkeys(SIDES, line_schema(limits)))
    return {"pair": one_or_more(sides, limits, "one pair of texts, or a list of pairs")}


def _examples(body: dict[str, Any]) -> list[tuple[str, ...]]:
    examples = [[pair[name] for name in SIDES] for pair in as_list(body["pair"])] if "pair" in body else zip(as_list(body["text"]))
    return [tuple(whole_characters(text) for text in texts) for texts in examples]


def _label(worker: Classifier | Entailer, examples: Sequence[tuple[str, ...]], *_: object) -> list[Answer]:
    return [{**found.to_json(), "truncated": found.truncated} for found in label_texts(worker.run, examples)]


def _label_records(
    worker: Classifier | Entailer, examples: Sequence[tuple[str, ...]], decoding: Any, limits: Limits, methods: Sequence[str]
) -> list[RecordOrError]:
    labellings = label_texts(worker.run, examples, need_weights=True)
    records = [example_record(worker.run, texts, found) for texts, found in zip(examples, labellings, strict=True)]
    return _explained(records, examples, lambda record, _: explained_label(worker.run, record, methods), limits) if methods else [*records]


def _line_records(worker: Any, lines: Sequence[str], decoding: Any, limits: Limits, methods: Sequence[str]) -> list[RecordOrError]:
    records = [worker.record(line) for line in lines]
    return _explained(records, lines, lambda record, _: explained_line(worker.run, record, methods), limits) if methods else [*records]


def _explained(
    records: Sequence[AttentionRecord | None],
    items: Sequence[Any],
    explain: Callable[[AttentionRecord, Any], AttentionRecord],
    limits: Limits,
) -> list[RecordOrError]:
    return [
        record and (too_long(max(map(len, record.items.values())), limits) or explain(record, item))
        for record, item in zip(records, items, strict=True)
    ]


PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}
KEEP_TAGS = {
    "type": "boolean",
    "default": False,
    "description": "carry tags, placeholders, numbers, addresses and line breaks over, as `regard translate --keep-tags` does",
}
# More than any line can use; longer texts are cut to the available length.
SHORT = {"type": "string", "maxLength": 1000, "pattern": "^[^\\n]*$", "description": LINE}
WITH_LINKS = {"type": "boolean", "default": False, "description": "return the word links of each translation"}
PREFIX = {
    "anyOf": [SHORT, {"type": "array", "items": SHORT, "maxItems": 1000}],
    "description": "forced beginning of each translation: one text for all lines, or a list with one per line",
}
TERMS = {
    "type": "array",
    "items": object_schema(
        source={**SHORT, "pattern": f"^{SOURCE_TERM}$", "description": "one line of text with a letter or a digit"},
        target={**SHORT, "pattern": r"^[^\n]*\S[^\n]*$", "description": "one line of text that is not blank"},
    ),
    "maxItems": 1000,
    "description": "terms and their required translations, as in `regard translate --terms`",
}
TRANSLATION = ServedTask(
    path="/translate",
    summary="Translate lines, as `regard translate` does.",
    attention_summary="Translate lines and return the attention, as `regard view` does; a blank line has no record.",
    result="translations",
    item=object_schema(
        text={"type": "string", "description": "the translation; empty for a blank line"},
        score={"type": ["number", "null"], "description": "ranking score; null for a blank line"},
        confidence={"type": ["number", "null"], "description": "expected chrF, 0 to 100; null without a calibration"},
        links={**LINKS, "type": ["array", "null"], "description": "word links [source, target], from 0; null unless requested"},
        truncated={**COUNT, "description": "tokens of the line that were cut off"},
        parts={"type": "integer", "minimum": 1, "description": "parts in which the line was translated; 1 unless it is too long"},
        unplaced={"type": "array", "items": {"type": "string"}, "description": "prefix and terms that could not be placed"},
    ),
    fields=_translation_fields,
    items=_translation_lines,
    width=lambda line: len(line.text),
    answer=_translate,
    records=_translation_records,
    has_content=lambda line: line.text.strip(),
    options={"keep_tags": KEEP_TAGS, "prefix": PREFIX, "terms": TERMS, "links": WITH_LINKS},
    shown={"keep_tags": KEEP_TAGS, "prefix": PREFIX, "terms": TERMS},
    generates=True,
)
CAPTIONING = ServedTask(
    path="/caption",
    summary="Caption an image, as `regard caption` does.",
    attention_summary="Caption an image and return the attention of each word, as `regard view` does.",
    result="captions",
    item=object_schema(
        text={"type": "string", "description": "the caption"},
        score={"type": ["number", "null"], "description": "ranking score"},
    ),
    fields=lambda models, limits: {"image": image_schema(limits)},
    items=lambda body: [decode_image(body["image"])],
    width=lambda image: 0,  # every image is resized to the same size
    answer=_caption,
    records=_caption_records,
    generates=True,
    max_body=lambda limits: limits.max_image_body,
)
LABELLING = ServedTask(
    path="/classify",
    summary="Classify lines as `regard classify` does, or pairs of premise and hypothesis as `regard entail` does.",
    attention_summary="Classify texts and return the attention, as `regard view` does; a blank text has no record.",
    result="labels",
    item=object_schema(
        label={"type": ["string", "null"], "description": "the most probable label; null for a blank text"},
        probabilities={"type": "object", "additionalProperties": PROBABILITY, "description": "by label; none for a blank text"},
        truncated={**COUNT, "description": "tokens that were cut off"},
    ),
    fields=_label_fields,
    items=_examples,
    width=lambda texts: sum(map(len, texts)),
    answer=_label,
    records=_label_records,
    has_content=lambda texts: all(text.strip() for text in texts),
)
LANGUAGE = ServedTask(
    path="/score",
    summary="Return the log-probabilities of lines, as `regard score` does.",
    attention_summary="Return the attention at each token of the lines, as `regard view` does.",
    result="scores",
    item=object_schema(
        text={"type": "string", "description": "the line"},
        **score_fields("line"),
    ),
    fields=_lines_field,
    items=_lines,
    width=len,
    answer=lambda worker, lines, *_: [found.to_json() for found in worker.score(lines)],
    records=_line_records,
)
TASKS = {
    "translation": TRANSLATION,
    "classification": LABELLING,
    "entailment": LABELLING,
    "captioning": CAPTIONING,
    "lm": LANGUAGE,
}


def served_task(models: Sequence[ServedModel[Any]]) -> str:
    """Return the task of the served runs, which must be equal."""
    return models[0].worker.run.config.task


def endpoints(models: Sequence[ServedModel[Any]], limits: Limits) -> list[Endpoint]:
    """Return the operations of these runs: those of their task, and `/attention`."""
    task = TASKS[served_task(models)]
    pairs = (SCORING, ALIGNING) if task is TRANSLATION and not reads_images(models[0].worker) else ()
    if reads_images(models[0].worker):
        task = task._replace(max_body=lambda limits: limits.max_image_body, width=lambda line: len(line.text.partition("\t")[0]))
    own = [Endpoint(task, models, limits, attention=attention) for attention in (False, True)]
    return [*own, *(Endpoint(each, models, limits, attention=False) for each in pairs)]


def _set_precision(folder: Path, worker: Any, precision: str | None) -> None:
    """Set the precision that a predictor decodes in, if given; check that it can."""
    run = worker.run
    if not TASKS[run.config.task].generates:
        if precision is not None:
            raise ConfigError(f"--precision: not for a run of the task {run.config.task} ({folder})")
        return
    decoding = with_options(run.config.decoding, {"precision": precision})
    check_precision(decoding.precision, device_of(run.model))
    worker.run = run._replace(config=run.config.model_copy(update={"decoding": decoding}))


def open_models(folders: Sequence[Path], *, precision: str | None = None) -> list[ServedModel[Any]]:
    """Open run folders of one task; models are named by folder, or by path if folder names repeat.

    Args:
        folders: the run folders.
        precision: `decoding.precision` of all runs; None: their own.

    Raises:
        ConfigError: runs of several tasks, of a captioner that reads no images, or of a task without a precision; a precision that this
            machine does not decode in.
        CheckpointError: a run cannot be opened.

    Example:
        >>> open_models([Path("no-such-run")])
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    tasks = [run_task(folder) for folder in folders]
    if len(set(tasks)) > 1:
        found = ", ".join(f"{folder} of {task}" for folder, task in zip(folders, tasks, strict=True))
        raise ConfigError(f"{found}: only runs of one task are served side by side")
    workers = [open_any(folder) for folder in folders]
    for folder, worker in zip(folders, workers, strict=True):
        if isinstance(worker, Captioner) and isinstance(worker.run.config.model.encoder, FeaturesConfig):
            raise ConfigError(f"{folder}: reads precomputed features; an uploaded image has none")
        _set_precision(folder, worker, precision)
    if len({two_inputs(worker) for worker in workers}) > 1:
        raise ConfigError(f"{', '.join(map(str, folders))}: runs of one input and of two are not served side by side")
    if len({reads_images(worker) for worker in workers}) > 1:
        raise ConfigError(f"{', '.join(map(str, folders))}: runs that read images and runs of text are not served side by side")
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [ServedModel(name, worker) for name, worker in zip(names, workers, strict=True)]
