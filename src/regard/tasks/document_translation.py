"""Translate documents: split into sentences, translate, and reassemble."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.config import DecodingConfig
from regard.data.document_blocks import Block, has_letters
from regard.data.documents import read_document
from regard.data.markup import TAG, split_markup
from regard.data.scripts import UNSPACED, UNSPACED_PUNCTUATION
from regard.errors import ConfigError, missing_extra, shown
from regard.progress import message
from regard.tasks.translation_prediction import Terms, Translator

TAGS = re.compile(TAG)
LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_]\w+)*")
_CODES = "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk zh"
SPLIT_LANGUAGES = tuple(_CODES.split())
"""Languages for which sentencex has rules of sentence splitting, and Chinese, which needs none."""


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
        language: a code such as "de" or "de-AT", for its abbreviations; any not in `SPLIT_LANGUAGES` uses the rules of
            a related language or of English.

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
    for sentence in sentencex.segment(_rules(language), plain)[:-1]:
        size += len(sentence)
        ends.append(size)
    return _cut(text, ends)


def _rules(language: str) -> str:
    # sentencex knows codes in small letters only, and few regions.
    code = language.lower().replace("_", "-")
    own = code.partition("-")[0]
    return own if own in SPLIT_LANGUAGES else code


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
    `data.max_length` is translated in parts, see `Translator.translate`.

    Args:
        translator: one or several trained runs.
        text: the document.
        name: its file name, which determines the format; see `regard.data.documents.read_document`.
        language: its language, for sentence splitting; a warning names one without rules of its own.
        decoding: decoding settings; None: the run's.
        terms: required translations of words.

    Raises:
        ConfigError: the language is no code, the model reads two inputs, or a sentence has markup and the model no attention to place it.
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
    if not LANGUAGE.fullmatch(language):
        raise ConfigError(f"--language: {shown(language)}, expected a code of two or three letters, such as de")
    if _rules(language) not in SPLIT_LANGUAGES:
        message(
            f"--language {shown(language)}: no rules to split sentences; those of a related language or English are used; "
            f"known: {', '.join(SPLIT_LANGUAGES)}",
            warning=True,
        )
    parts = read_document(text, name)
    sentences = [split_sentences(part.text, language) if isinstance(part, Block) else [] for part in parts]
    lines = [sentence.strip() for own in sentences for sentence in own if has_letters(sentence)]
    ask = translator.translate_tagged if _needs_links(translator, lines, name) else translator.translate
    answers = ask(lines, decoding=decoding, terms=terms)
    divided = [(line, len(item.parts)) for line, item in zip(lines, answers, strict=True) if item.parts]
    left, written = (item.text for item in answers), list[str]()
    for part, own in zip(parts, sentences, strict=True):
        written.append(part.finish(_joined(own, left)) if isinstance(part, Block) else part)
    return DocumentTranslation("".join(written), len(lines), divided)


def _joined(sentences: Sequence[str], translations: Iterator[str]) -> str:
    # A sentence without letters, such as a reference to a footnote, is kept, and stays at the one before it.
    text, beside = "", True
    for sentence in sentences:
        kept = not has_letters(sentence)
        said = sentence.strip() if kept else next(translations)
        close = (kept and beside) or (_unspaced(text[-1:]) and _unspaced(said[:1]))
        text += " " * (bool(text) and not close) + said
        beside = not sentence[-1:].isspace()
    return text


def _unspaced(letter: str) -> bool:
    return re.fullmatch(f"[{UNSPACED}{UNSPACED_PUNCTUATION}]", letter) is not None


def _needs_links(translator: Translator, lines: Sequence[str], name: str | Path) -> bool:
    if Path(name).suffix.lower() == ".txt":
        return False
    marked = [split_markup(line) for line in lines]
    if translator.run.model.attends:
        return any(line.marked for line in marked)
    # Numbers alone are no reason to refuse a model.
    return any(line.pairs or line.empty or len(line.opaque) > len(line.numbers) for line in marked)
