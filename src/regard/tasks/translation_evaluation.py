"""Evaluate a trained run on sentence pairs."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from regard import progress
from regard.config import DecodingConfig
from regard.data.lines import read_lines
from regard.data.link_lines import parse_links
from regard.data.parallel import SentencePair
from regard.data.scripts import UNSPACED
from regard.errors import DataError, counted
from regard.metrics import Comparison, Score, alignment_error_rate, bleu_by_length, bleu_details, chrf, exact_match
from regard.metrics.alignment import Links
from regard.metrics.translation import has_four_words
from regard.tasks.translation_prediction import Translator
from regard.tasks.translation_training import encode_corpus, translation_likelihood
from regard.tasks.unknown_tokens import UnknownTokenWarning
from regard.tasks.word_links import LinkUnit, check_links, find_links, judged_links, read_choice

LENGTH_EDGES = (8, 11, 14, 18, 29, 39, 49, 59)
"""The longest source, in words, of each row of BLEU by length but the last; rows of few sentences are joined."""
SMALLEST_ROW = 0.05
"""Part of the sentences that a row has at least."""
TOKENIZED_LINES = 100
"""References that end like tokenized text from which on an evaluation warns."""


class KnownLinks(NamedTuple):
    """Known alignments: for each sentence pair sets of (target, source) numbers; sure links are possible too.

    `name` is that of the file, `setting` the option of the unit, for errors; see `regard.tasks.word_links.check_links`.
    """

    sure: list[Links]
    possible: list[Links]
    unit: LinkUnit
    name: str = "links"
    setting: str = "--link-unit "


class Evaluation(NamedTuple):
    """Test results of a run.

    Attributes:
        scores: each with its signature.
        by_length: rows (words of the source, sentences, BLEU).
        outputs: the translations.
        seconds: decoding time.
    """

    scores: list[Score]
    by_length: list[tuple[str, int, float]]
    outputs: list[str]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON value."""
        return {
            "scores": [{"name": s.name, "value": s.value, "unit": s.unit, "signature": s.signature} for s in self.scores],
            "by_length": [{"source_words": r, "sentences": n, "bleu": b} for r, n, b in self.by_length],
        }


def evaluate_translation(
    translator: Translator,
    pairs: Sequence[SentencePair],
    *,
    decoding: DecodingConfig | None = None,
    links: KnownLinks | None = None,
    tokenize: str = "13a",
) -> Evaluation:
    """Translate the sources and compare with the targets; also measure how well the targets are predicted.

    Args:
        translator: an opened run.
        pairs: (source, reference).
        decoding: decoding settings; None: the run's.
        links: known alignments, for the alignment error rate of the attention on the references.
        tokenize: how BLEU divides text, see `regard.metrics.bleu`.

    Returns:
        BLEU, chrF, exact match, perplexity, token accuracy, and with links the alignment error rate.

    Raises:
        DataError: no pair can be used, a link is outside its pair, or links are given for a model without attention.

    Example:
        >>> def bleu_of(run, pairs):
        ...     return evaluate_translation(Translator.open(run), pairs).scores[0]
        >>> bleu_of("no-such-run", [("ein Hund", "a dog")])
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    if links is not None:
        check_known_links(pairs, links)
        if not translator.run.model.attends:
            raise DataError("links: this model has no attention to compare them with")
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    begun = time.perf_counter()
    translations = translator.translate(sources, decoding=decoding)
    seconds = time.perf_counter() - begun
    outputs = [item.text for item in translations]
    unknown = UnknownTokenWarning(translator.run.vocabularies.source.kind)
    for item in translations:
        unknown.add(item.source)
    # What translation would cut off is left out here: a line of a million characters has no likelihood worth its memory.
    corpus = encode_corpus(pairs, translator.run.vocabularies, max_length=translator.run.config.data.max_length, name="test data")
    figures = translation_likelihood(translator.run.model, corpus)
    used = f"pairs:{len(corpus.pairs)}/{len(pairs)}|eos:yes"
    with progress.stage("Scoring the translations"):
        details = bleu_details(outputs, references, tokenize=tokenize)
        scores = [details.score, chrf(outputs, references), exact_match(outputs, references)]
        # By the words of the first input, where there are two.
        first = sources if translator.run.config.second is None else [source.split("\t")[0] for source in sources]
        edges = length_edges([len(source.split()) for source in first])
        defined = has_four_words(references, tokenize=tokenize)
        rows = bleu_by_length(outputs, references, first, edges, tokenize=tokenize) if defined else []
    scores.append(Score("perplexity", figures["perplexity"], "per target token", f"{used}|smoothing:none"))
    scores.append(Score("token accuracy", 100 * figures["token_accuracy"], "%", f"{used}|teacher forcing"))
    if links is not None:
        scores.append(_alignment_error(translator, pairs, links))
    unknown.tell()  # last: an error is told alone
    _warn_of(references, tokenize, defined=defined, matched=details.matches[-1] > 0)
    return Evaluation(scores, [(row.range, row.count, row.score.value) for row in rows if row.score is not None], outputs, seconds)


def length_edges(lengths: Sequence[int]) -> list[int]:
    """Return the longest source of each row of BLEU by length but the last, so that no row has few sentences.

    Example:
        >>> length_edges([5] * 50 + [12] * 50 + [17]), length_edges([25, 35, 45])
        ([8, 18], [29, 39, 49])
    """
    edges, sorted_lengths, inside = list[int](), sorted(lengths), 0
    for edge in LENGTH_EDGES:
        up_to = bisect_right(sorted_lengths, edge)
        if min(up_to - inside, len(lengths) - up_to or len(lengths)) >= max(1, SMALLEST_ROW * len(lengths)):
            edges.append(edge)
            inside = up_to
    return edges


def _warn_of(references: Sequence[str], tokenize: str, *, defined: bool, matched: bool) -> None:
    """Warn of references and outputs whose BLEU would mislead."""
    if tokenize == "13a" and 2 * sum(bool(re.search(f"[{UNSPACED}]", line)) for line in references) > len(references):
        progress.message("BLEU takes text without spaces for one word; --tokenize zh (Chinese) or char counts its characters", warning=True)
    elif not defined:
        progress.message("no reference has four words, so BLEU is 0 whatever the output; see chrF and exact match", warning=True)
    elif not matched:
        progress.message("no output has four words in a row of its reference, so BLEU is smoothing alone; see chrF", warning=True)
    if (count := sum(line.endswith(" .") for line in references)) >= TOKENIZED_LINES:
        progress.message(f'{count} references end in " .", as tokenized text does; BLEU is comparable on raw text only', warning=True)


def read_links(path: str | Path, unit: LinkUnit, *, setting: str = "--link-unit ") -> KnownLinks:
    """Read known links, one line a sentence pair: `source-target` sure and `source?target` possible, numbers from 0.

    Args:
        path: the file, in the format of fast_align and of the published gold alignments.
        unit: what the numbers count, words or characters.
        setting: the option of the unit, to be followed by its value, for errors.

    Raises:
        DataError: a link that is not of this form.
    """
    known = KnownLinks([], [], unit, str(path), setting)
    for number, line in enumerate(read_lines(path), start=1):
        sure, possible = parse_links(line, f"{path}, line {number}")
        known.sure.append(sure)
        known.possible.append(possible)
    return known


def check_known_links(pairs: Sequence[SentencePair | None], known: KnownLinks) -> None:
    """Check that there is a line of links for each pair, and that no link is outside its pair.

    Args:
        pairs: sentence pairs; None for one that is left out, whose links are not read.
        known: their links.

    Raises:
        DataError: the message names the file, and the line of a link.

    Example:
        >>> check_known_links([("ab cd", "x")], KnownLinks([{(0, 1)}], [{(0, 1)}], "word"))
    """
    if len(known.sure) != len(pairs):
        raise DataError(f"{known.name}: {counted(len(known.sure), 'line')}, but {counted(len(pairs), 'sentence pair')}")
    for number, (pair, links) in enumerate(zip(pairs, known.possible, strict=True), start=1):
        if pair is not None:
            check_links(links, pair, known.unit, f"{known.name}, line {number}", setting=known.setting)


def _alignment_error(translator: Translator, pairs: Sequence[SentencePair], known: KnownLinks) -> Score:
    found = []
    for chosen, links in zip(find_links(translator.run, pairs, unit=known.unit), known.possible, strict=True):
        found.append(judged_links(chosen, links, known.unit))
    error = alignment_error_rate(found, known.sure, known.possible)
    choice = read_choice(translator.run)
    return error if choice is None else replace(error, signature=f"{error.signature}|attention:{choice}")


def describe_translation_scores(evaluation: Evaluation, say: Callable[[str], None]) -> None:
    """Report the scores, one a line, then BLEU by source length."""
    for score in evaluation.scores:
        say(f"{score.name:<22}{score.number:>9} {score.unit:<18}{score.signature}")
    if len(evaluation.by_length) > 1:
        say("BLEU by words of the source (sentences): " + ", ".join(f"{r}: {b:.1f} ({n})" for r, n, b in evaluation.by_length))


def describe_comparison(found: Comparison, name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Report in one line how BLEU compares with that of another run, and return the figures as a JSON value."""
    low, high = found.difference_interval
    against = f"BLEU {found.system.value:.2f} against {found.baseline.value:.2f} of {name}"
    say(f"{against}: {found.difference:+.2f} [{low:+.2f}, {high:+.2f}], p = {found.p_value:.4f}")
    figures = {"bleu": found.baseline.value, "difference": found.difference, "interval": [low, high], "p_value": found.p_value}
    return {"run": name, **figures}
