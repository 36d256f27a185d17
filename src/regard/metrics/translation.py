"""BLEU and chrF by sacrebleu, and BLEU by source length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.arguments import takes_arguments
from regard.errors import DataError, shown
from regard.metrics.checks import check_least, check_lengths
from regard.metrics.score import Score

# sacrebleu's tokenizers without a download or another package.
TOKENIZERS = ("13a", "intl", "zh", "char", "none")


@dataclass(frozen=True)
class BleuDetails:
    """BLEU and its components.

    Attributes:
        score: BLEU as `bleu` returns it.
        precisions: modified n-gram precisions for n = 1 up to the order, 0 to 100, smoothed as the signature says.
        matches: the n-grams of hypotheses that are in their references, for each n; of none, the precision is smoothing alone.
        brevity_penalty: 0 to 1; 1 if the hypotheses are at least as long as the references.
        hypothesis_length: tokens in all hypotheses.
        reference_length: tokens in all references.
    """

    score: Score
    precisions: tuple[float, ...]
    matches: tuple[int, ...]
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int


@dataclass(frozen=True)
class LengthRow:
    """BLEU of sentences in one range of source lengths.

    Attributes:
        range: inclusive, in words: "0-10", "11-20", "21+".
        count: sentences in the range.
        score: their BLEU, or None for an empty range.
    """

    range: str
    count: int
    score: Score | None


@takes_arguments
def bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False, tokenize: str = "13a", max_order: int = 4
) -> Score:
    """Compute corpus BLEU (Papineni et al., 2002) with sacrebleu (Post, 2018).

    Args:
        hypotheses: detokenized output lines.
        references: detokenized reference lines, one per hypothesis.
        lowercase: ignore case.
        tokenize: "13a", "intl", "zh", "char", or "none" for tokenized text.
        max_order: maximum n-gram order: 1 gives BLEU-1, 4 standard BLEU.

    Returns:
        A `Score` from 0 to 100 with sacrebleu's signature. Empty hypotheses score 0.

    Raises:
        DataError: empty lists, unequal lengths, an unknown tokenizer or an order below 1.

    Example:
        >>> bleu(["the house is small ."], ["the house is small ."]).value
        100.0
    """
    check_lengths("bleu", hypotheses=hypotheses, references=references)
    return _details(make_bleu("bleu", lowercase=lowercase, tokenize=tokenize, max_order=max_order), hypotheses, references).score


@takes_arguments
def bleu_details(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False, tokenize: str = "13a", max_order: int = 4
) -> BleuDetails:
    """Compute corpus BLEU with its n-gram precisions, brevity penalty and lengths.

    Args:
        hypotheses: as for `bleu`.
        references: as for `bleu`.
        lowercase: as for `bleu`.
        tokenize: as for `bleu`.
        max_order: as for `bleu`.

    Returns:
        `BleuDetails`; `precisions` has `max_order` numbers.

    Raises:
        DataError: as for `bleu`.

    Example:
        >>> bleu_details(["a b c d"], ["a b c e"]).precisions[:3]
        (75.0, 66.66666666666667, 50.0)
    """
    check_lengths("bleu_details", hypotheses=hypotheses, references=references)
    return _details(make_bleu("bleu_details", lowercase=lowercase, tokenize=tokenize, max_order=max_order), hypotheses, references)


def _details(metric: BLEU, hypotheses: Sequence[str], references: Sequence[str]) -> BleuDetails:
    result = metric.corpus_score(list(hypotheses), [list(references)])
    name = "BLEU" if metric.max_ngram_order == 4 else f"BLEU-{metric.max_ngram_order}"
    # exp(log(100)) rounds to slightly above 100, the maximum.
    score = Score(name, min(float(result.score), 100.0), "0-100", str(metric.get_signature()))
    precisions, matches = tuple(map(float, result.precisions)), tuple(map(int, result.counts))
    return BleuDetails(score, precisions, matches, float(result.bp), int(result.sys_len), int(result.ref_len))


@takes_arguments
def has_four_words(references: Iterable[str], *, tokenize: str = "13a") -> bool:
    """Return whether any reference has the four words that BLEU counts runs of; without, BLEU is 0 whatever the hypotheses.

    Args:
        references: detokenized reference lines.
        tokenize: as for `bleu`.

    Raises:
        DataError: an unknown tokenizer, or references that are no list of texts.

    Example:
        >>> has_four_words(["a dog", "a red dog ."]), has_four_words(["a red dog"]), has_four_words(["a dog"], tokenize="char")
        (True, False, True)
    """
    divide = make_bleu("has_four_words", tokenize=tokenize).tokenizer
    return any(len(divide(line).split()) >= 4 for line in references)


@takes_arguments
def chrf(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False, word_order: int = 0) -> Score:
    """Compute corpus chrF (Popovic, 2015), or chrF++ with `word_order=2`, with sacrebleu.

    Args:
        hypotheses: detokenized output lines.
        references: detokenized reference lines, one per hypothesis.
        lowercase: ignore case.
        word_order: maximum word n-gram order beside character n-grams up to 6; 0 or more.

    Returns:
        A `Score` from 0 to 100 with sacrebleu's signature.

    Raises:
        DataError: empty lists, unequal lengths, or a negative word order.

    Example:
        >>> score = chrf(["house"], ["house"])
        >>> score.name, score.value
        ('chrF2', 100.0)
    """
    check_lengths("chrf", hypotheses=hypotheses, references=references)
    metric = make_chrf("chrf", lowercase=lowercase, word_order=word_order)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(result.name, min(float(result.score), 100.0), "0-100", str(metric.get_signature()))


@takes_arguments
def bleu_by_length(
    hypotheses: Sequence[str],
    references: Sequence[str],
    sources: Sequence[str],
    edges: Sequence[int],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> list[LengthRow]:
    """Compute BLEU by source length (as in the figure of Bahdanau et al., 2015, section 5.1).

    Args:
        hypotheses: output lines.
        references: reference lines.
        sources: source lines; length in white-space separated words.
        edges: maximum length of each range but the last, whole and increasing: (10, 20) gives 0-10, 11-20 and 21+.
        lowercase: as for `bleu`.
        tokenize: as for `bleu`.

    Returns:
        `len(edges) + 1` rows in rising order; an empty range has count 0 and score None.

    Raises:
        DataError: empty lists, unequal lengths, an unknown tokenizer, or edges that are not whole or do not increase from 0 or more.

    Example:
        >>> rows = bleu_by_length(["a b c d"] * 2, ["a b c d"] * 2, ["x", "x y z"], [2])
        >>> [(row.range, row.count, row.score.value) for row in rows]
        [('0-2', 1, 100.0), ('3+', 1, 100.0)]
    """
    check_lengths("bleu_by_length", hypotheses=hypotheses, references=references, sources=sources)
    for number, (low, high) in enumerate(pairwise([-1, *edges]), 1):
        if low >= high:
            raise DataError(f"bleu_by_length: edges must be at least 0 and increase, item {number} is {high} in {shown(list(edges))}")
    metric = make_bleu("bleu_by_length", lowercase=lowercase, tokenize=tokenize)
    lengths = [len(source.split()) for source in sources]
    rows = []
    for first, last in zip([0, *(edge + 1 for edge in edges)], [*edges, None], strict=True):
        chosen = [i for i, length in enumerate(lengths) if length >= first and (last is None or length <= last)]
        score = None
        if chosen:
            score = _details(metric, [hypotheses[i] for i in chosen], [references[i] for i in chosen]).score
        rows.append(LengthRow(f"{first}+" if last is None else f"{first}-{last}", len(chosen), score))
    return rows


@takes_arguments
def make_bleu(operation: str, *, lowercase: bool = False, tokenize: str = "13a", max_order: int = 4) -> BLEU:
    """Return sacrebleu's BLEU with these settings, for a function that messages name.

    Raises:
        DataError: the tokenizer is unknown or the order is below 1.

    Example:
        >>> make_bleu("bleu", tokenize="none").tokenizer.signature()
        'none'
    """
    if tokenize not in TOKENIZERS:
        raise DataError(f"{operation}: tokenize must be one of {', '.join(TOKENIZERS)}, found {shown(tokenize)}")
    check_least(operation, "max_order", max_order, 1)
    # Without `force` sacrebleu would warn of text that looks tokenized, once per score and to standard error; evaluations warn once.
    return BLEU(lowercase=lowercase, tokenize=tokenize, max_ngram_order=max_order, force=True)


@takes_arguments
def make_chrf(operation: str, *, lowercase: bool = False, word_order: int = 0) -> CHRF:
    """Return sacrebleu's chrF with these settings, for a function that messages name.

    Raises:
        DataError: the word order is negative.

    Example:
        >>> make_chrf("chrf").beta
        2
    """
    check_least(operation, "word_order", word_order, 0)
    return CHRF(lowercase=lowercase, word_order=word_order)
