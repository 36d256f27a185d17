"""Translate documents: split into sentences, translate, and reassemble."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.config import DecodingConfig
from regard.data.documents import Block, read_document
from regard.data.markup import TAG, split_markup
from regard.errors import ConfigError, missing_extra
from regard.tasks.translation_prediction import Terms, Translator

TAGS = re.compile(TAG)
# Preferred split points of a long sentence: after punctuation, else at a space.
PAUSES = (re.compile(r"[;:.!?\u2026][\"')\u201d]?\s"), re.compile(r"[,)\u2014\u2013]\s"), re.compile(r"\s"))


class DocumentTranslation(NamedTuple):
    """Result for a document.

    Attributes:
        text: the translated document.
        sentences: number of translated sentences.
        divided: sentences longer than the model's limit, with their number of parts.
    """

    text: str
    sentences: int
    divided: list[tuple[str, int]]


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Split a text into sentences with their trailing white space; tags stay at their words.

    Args:
        text: one line, perhaps with tags; see `regard.data.markup`.
        language: a code such as "de", for its abbreviations.

    Raises:
        MissingExtraError: sentencex is not installed.

    Example:
        >>> split_sentences("Dr. Smith <b>sleeps. </b>The dog, too.")
        ['Dr. Smith <b>sleeps. </b>', 'The dog, too.']
    """
    try:
        sentencex: Any = importlib.import_module("sentencex")
    except ImportError as error:
        raise missing_extra("splitting a document into sentences needs sentencex", "documents") from error
    plain = TAGS.sub("", text)
    if not plain.strip():
        return [text]
    ends, size = [], 0
    for sentence in sentencex.segment(language, plain)[:-1]:
        size += len(sentence)
        ends.append(size)
    return _cut(text, ends)


def _cut(text: str, ends: Sequence[int]) -> list[str]:
    # Split a text at character counts that ignore tags; closing tags stay with their content.
    pieces, start, passed, remaining = [], 0, 0, list(ends)
    at = 0
    while remaining:
        tag = TAGS.match(text, at)
        if passed == remaining[0] and not (tag and tag["close"]):
            pieces.append(text[start:at])
            start, remaining = at, remaining[1:]
        elif tag:
            at = tag.end()
        else:
            at, passed = at + 1, passed + 1
    return [*pieces, text[start:]]


def translate_document(
    translator: Translator,
    text: str,
    name: str | Path,
    *,
    language: str = "en",
    decoding: DecodingConfig | None = None,
    terms: Terms = None,
) -> DocumentTranslation:
    """Translate a document; its structure, markup and code are kept.

    Sentences are translated one by one, with tags placed by word links (see `Translator.translate_tagged`). A sentence longer than
    `data.max_length` is split, preferably after punctuation, and the translations are joined.

    Args:
        translator: one or several trained runs.
        text: the document.
        name: its file name, which determines the format; see `regard.data.documents.read_document`.
        language: its language, for sentence splitting.
        decoding: decoding settings; None: the run's.
        terms: required translations of words.

    Raises:
        ConfigError: the model reads two inputs, or a sentence has markup and the model no attention to place it.
        DataError: the format is not supported.
        MissingExtraError: sentencex is not installed.

    Example:
        >>> translate_document(Translator.open("no-such-run"), "A red ball.", "a.txt")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    if translator.run.config.second is not None:
        raise ConfigError("documents: not with a model of two inputs")
    parts = read_document(text, name)
    pieces: list[str] = []
    places: list[list[list[int]]] = []  # per block and sentence, the indices of its parts
    divided: list[tuple[str, int]] = []
    for part in parts:
        sentences = split_sentences(part.text, language) if isinstance(part, Block) else []
        places.append([])
        for sentence in sentences:
            found = list(_fitting(translator, sentence))
            if len(found) > 1:
                divided.append((sentence.strip(), len(found)))
            places[-1].append(list(range(len(pieces), len(pieces) + len(found))))
            pieces += found
    marked = Path(name).suffix.lower() != ".txt" and any(split_markup(piece).marked for piece in pieces)
    ask = translator.translate_tagged if marked else translator.translate
    answers = [item.text for item in ask([piece.strip() for piece in pieces], decoding=decoding, terms=terms)]
    written: list[str] = []
    for part, sentences in zip(parts, places, strict=True):
        joined = " ".join(answers[number] for numbers in sentences for number in numbers)
        written.append(part.finish(joined) if isinstance(part, Block) else part)
    return DocumentTranslation("".join(written), sum(map(len, places)), divided)


def _fitting(translator: Translator, sentence: str) -> Iterator[str]:
    # A sentence in parts within the model's limit.
    limit, vocabulary = translator.run.config.data.max_length, translator.run.vocabularies.source
    plain = TAGS.sub("", sentence)
    if len(plain) < 2 or len(vocabulary.encode(plain).ids) <= limit:
        yield sentence
        return
    middle = len(plain) / 2
    for pause in PAUSES:
        # Not near the ends, where a part would hardly be shorter.
        ends = [found.end() for found in pause.finditer(plain, len(plain) // 5, len(plain) - len(plain) // 5)]
        if ends:
            break
    else:
        ends = [int(middle)]
    for part in _cut(sentence, [min(ends, key=lambda end: abs(end - middle))]):
        yield from _fitting(translator, part)
