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
# Where a sentence that is too long is rather divided: behind punctuation, else at a space.
PAUSES = (re.compile(r"[;:.!?\u2026][\"')\u201d]?\s"), re.compile(r"[,)\u2014\u2013]\s"), re.compile(r"\s"))


class DocumentTranslation(NamedTuple):
    """Result for a document.

    Attributes:
        text: the translated document.
        sentences: number of translated sentences.
        divided: each sentence that is longer than the model reads, and in how many parts it was translated.
    """

    text: str
    sentences: int
    divided: list[tuple[str, int]]


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Split a text into sentences, each with the white space after it; joined they are the text. A tag stays at the words it is at.

    Args:
        text: one line, perhaps with tags; see `regard.data.markup`.
        language: a code such as "de"; others have other abbreviations.

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
    # Cut a text where so many characters that are in no tag have passed; closing tags stay with what they close.
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
    """Translate a document; paragraphs, markup and what is code stay.

    Sentences are translated one by one, tags in them by word links (see `Translator.translate_tagged`). One that is longer than the model
    reads (`data.max_length`) is divided, rather at punctuation, and its parts are joined.

    Args:
        translator: a trained run, or several.
        text: the document.
        name: of its file; says how it is read, see `regard.data.documents.read_document`.
        language: of the document; decides where sentences end.
        decoding: decoding settings; None: the run's.
        terms: words with the translation that they must get.

    Raises:
        ConfigError: the model reads two inputs; or there is markup in a sentence and no attention to place it by.
        DataError: a document of another kind.
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
    places: list[list[list[int]]] = []  # of each block, of each sentence, the numbers of its pieces
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
    # A sentence in parts that the model reads whole.
    limit, vocabulary = translator.run.config.data.max_length, translator.run.vocabularies.source
    plain = TAGS.sub("", sentence)
    if len(plain) < 2 or len(vocabulary.encode(plain).ids) <= limit:
        yield sentence
        return
    middle = len(plain) / 2
    for pause in PAUSES:
        # Not at the very ends, where a part would hardly be shorter.
        ends = [found.end() for found in pause.finditer(plain, len(plain) // 5, len(plain) - len(plain) // 5)]
        if ends:
            break
    else:
        ends = [int(middle)]
    for part in _cut(sentence, [min(ends, key=lambda end: abs(end - middle))]):
        yield from _fitting(translator, part)
