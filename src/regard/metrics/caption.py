"""Caption metrics equal to the official tool (coco-caption, pycocoevalcap): BLEU-1 to 4, ROUGE-L, CIDEr-D and CIDEr."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

import numpy as np

from regard.arguments import list_of, takes_arguments
from regard.errors import DataError, shown
from regard.metrics.caption_tokens import TOKENIZER, caption_tokens
from regard.metrics.checks import check_lengths, read_counts
from regard.metrics.score import Score

CaptionTokens = Sequence[str]
NGram = tuple[str, ...]

ORDER = 4
COUNTS = 2 * ORDER + 2
"""Columns of `caption_bleu_counts`."""
# The official BLEU's guards against division by zero; they determine scores of captions without a match.
TINY, SMALL = 1e-15, 1e-9
BETA = 1.2
SIGMA = 6.0
CIDER_SCALE = 10.0


@dataclass(frozen=True)
class CaptionScores:
    """Scores of captions.

    Attributes:
        corpus: `Score` by name: "BLEU-1" to "BLEU-4" and "ROUGE-L" (0 to 1), "CIDEr-D" and "CIDEr" (0 to 10); the scales are the official
            tool's. Papers print BLEU and ROUGE-L times 100, CIDEr-D times 10 or 100.
        items: a number per image, by the same names. Corpus BLEU is not their mean.
    """

    corpus: Mapping[str, Score]
    items: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class DocumentFrequencies:
    """Document frequencies (images) of n-grams of 1 to 4 tokens, for CIDEr.

    Attributes:
        counts: images by n-gram; missing n-grams count as 1.
        documents: the number of images, at least 1.
    """

    counts: Mapping[NGram, int]
    documents: int

    def __post_init__(self) -> None:
        if not isinstance(self.documents, Integral) or self.documents < 1:
            raise DataError(f"DocumentFrequencies: documents must be a whole number of at least 1, found {shown(self.documents)}")


@takes_arguments
def document_frequencies(references: Sequence[Sequence[str | CaptionTokens]]) -> DocumentFrequencies:
    """Count document frequencies, so that CIDEr on a few images can use those of many.

    Args:
        references: captions per image; texts are split by `caption_tokens`, lists of tokens used unchanged.

    Returns:
        The frequencies.

    Raises:
        DataError: no images, an image without references, or a caption that is neither text nor a list of tokens.

    Example:
        >>> document_frequencies([[["a", "dog"], ["a", "cat"]], [["a", "bus"]]]).counts["a",]
        2
    """
    tokens = _tokenized("document_frequencies", references)
    return _frequencies([[_ngrams(reference) for reference in item] for item in tokens])


@takes_arguments
def caption_scores(
    references: Sequence[Sequence[str | CaptionTokens]],
    hypotheses: Sequence[str | CaptionTokens],
    *,
    frequencies: DocumentFrequencies | None = None,
) -> CaptionScores:
    """Score captions with BLEU-1 to 4, ROUGE-L, CIDEr-D and CIDEr.

    - BLEU (Papineni et al., 2002): closest reference length (ties: the shorter), no smoothing but the official tool's 1e-15 and 1e-9.
      Corpus counts are summed before the division.
    - ROUGE-L (Lin, 2004): (1 + b^2) P R / (R + b^2 P) with b = 1.2, P and R the maximum precision and recall over the references, taken
      separately; the corpus value is the mean.
    - CIDEr-D (Vedantam et al., 2015): ten times the mean over n = 1 to 4 and over references of the cosine of tf-idf vectors, the
      hypothesis's counts clipped to the reference's, times exp(-(l - l')^2 / (2 6^2)). The official tool prints it as "CIDEr".
    - CIDEr: the same without clipping and length factor; no stemming.

    Args:
        references: captions per image, one or more.
        hypotheses: one caption per image, possibly empty. Texts are split by `caption_tokens`, lists of tokens used unchanged; do not mix
            them.
        frequencies: document frequencies for CIDEr; None counts the given references, as the official tool does; a single image then has
            CIDEr 0, since every n-gram occurs in all documents.

    Returns:
        `CaptionScores`, equal to pycocoevalcap 1.2 on the same tokens (its CIDEr is CIDEr-D here).

    Raises:
        DataError: no images, unequal numbers of them, an image without references, a caption that is neither text nor a list of tokens, or
            texts mixed with lists of tokens.

    Example:
        >>> scores = caption_scores([["A dog runs.", "The dog is running."], ["Two red buses."]], ["A dog runs!", "Two buses"])
        >>> print(scores.corpus["BLEU-1"], scores.items["BLEU-2"][0] > 0.999)
        BLEU-1 0.8187 [nimgs:2|nrefs:1-2|case:lower|tok:regard-ptb|ref:closest|smooth:none] True
    """
    tokens, guesses, text = tokenized_captions("caption_scores", references, hypotheses)
    counts = [[_ngrams(reference) for reference in item] for item in tokens]
    guess_counts = [_ngrams(guess) for guess in guesses]
    bleu, items = _bleu(tokens, guesses, counts, guess_counts)
    corpus = {f"BLEU-{order}": value for order, value in enumerate(bleu, start=1)}
    items["ROUGE-L"] = tuple(_rouge(item, guess) for item, guess in zip(tokens, guesses, strict=True))
    weigh = _Weigher(frequencies or _frequencies(counts))
    both = [_cider(weigh, item, guess) for item, guess in zip(counts, guess_counts, strict=True)]
    items["CIDEr-D"], items["CIDEr"] = (tuple(values) for values in zip(*both, strict=True))
    corpus |= {name: math.fsum(items[name]) / len(guesses) for name in ("ROUGE-L", "CIDEr-D", "CIDEr")}
    common = _common_signature(tokens, text=text)
    return CaptionScores({name: _score(name, value, common, frequencies) for name, value in corpus.items()}, items)


@takes_arguments
def caption_bleu_counts(references: Sequence[Sequence[str | CaptionTokens]], hypotheses: Sequence[str | CaptionTokens]) -> np.ndarray:
    """Return each image's BLEU counts; the counterpart of `regard.metrics.significance.item_counts`.

    Args:
        references: as in `caption_scores`.
        hypotheses: as in `caption_scores`.

    Returns:
        (N, 10): correct 1-grams to 4-grams, all 1-grams to 4-grams, length of the hypothesis, closest length of a reference.

    Raises:
        DataError: see `caption_scores`.

    Example:
        >>> caption_bleu_counts([["A dog runs.", "The dog is running."]], ["A dog runs off!"]).astype(int).tolist()
        [[3, 2, 1, 0, 4, 3, 2, 1, 4, 4]]
    """
    tokens, guesses, _ = tokenized_captions("caption_bleu_counts", references, hypotheses)
    return _bleu_counts(tokens, guesses, [[_ngrams(each) for each in item] for item in tokens], [_ngrams(guess) for guess in guesses])


@takes_arguments
def bleu_of_caption_counts(counts: np.ndarray) -> list[float]:
    """Return BLEU-1 to 4 (0 to 1) from the counts (10,) of `caption_bleu_counts`, of one image or summed over several.

    Raises:
        DataError: the counts are no array (10,) of numbers.

    Example:
        >>> counts = caption_bleu_counts([["A dog runs fast."]], ["A dog runs fast!"]).sum(0)
        >>> [round(value, 6) for value in bleu_of_caption_counts(counts)]
        [1.0, 1.0, 1.0, 1.0]
    """
    counts = read_counts("bleu_of_caption_counts", counts, axes=1, columns=COUNTS)
    *grams, length, reference_length = counts.tolist()
    ratio = (length + TINY) / (reference_length + SMALL)
    # exp underflows to 0 for an empty hypothesis, as it does in the official tool.
    brevity = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    product, values = 1.0, []
    for order, (correct, guessed) in enumerate(zip(grams[:ORDER], grams[ORDER:], strict=True), start=1):
        product *= (correct + TINY) / (guessed + SMALL)
        values.append(product ** (1 / order) * brevity)
    return values


def tokenized_captions(
    operation: str, references: Sequence[Sequence[str | CaptionTokens]], hypotheses: Sequence[str | CaptionTokens]
) -> tuple[list[list[list[str]]], list[list[str]], bool]:
    """Check captions and split them into tokens.

    Args:
        operation: name that begins the messages.
        references: as in `caption_scores`.
        hypotheses: as in `caption_scores`.

    Returns:
        The tokens of the references and of the hypotheses, and whether they were texts.

    Raises:
        DataError: see `caption_scores`.

    Example:
        >>> tokenized_captions("meteor", [["A dog."]], ["The dog"])
        ([[['a', 'dog']]], [['the', 'dog']], True)
    """
    if isinstance(hypotheses, str):
        raise DataError(f"{operation}: hypotheses must be a list with a caption of each image, found {shown(hypotheses)}")
    tokens = _tokenized(operation, references)
    check_lengths(operation, references=references, hypotheses=hypotheses)
    guesses = [_split(f"{operation}: hypothesis {number}", hypothesis) for number, hypothesis in enumerate(hypotheses, start=1)]
    texts = {isinstance(caption, str) for item in (*references, hypotheses) for caption in item}
    if len(texts) > 1:
        raise DataError(f"{operation}: captions must be all texts or all lists of tokens, found both")
    return tokens, guesses, texts == {True}


def _tokenized(operation: str, references: Sequence[Sequence[str | CaptionTokens]]) -> list[list[list[str]]]:
    if isinstance(references, str) or not len(references):
        raise DataError(f"{operation}: references must be a list with captions of at least one image, found {shown(references)}")
    tokens = []
    for number, item in enumerate(references, start=1):
        argument = f"{operation}: references of image {number}"
        if isinstance(item, str) or not len(item):
            raise DataError(f"{argument} must be a list of one caption or more, found {shown(item)}")
        tokens.append([_split(f"{argument}, caption {place}", caption) for place, caption in enumerate(item, start=1)])
    return tokens


def _split(argument: str, caption: str | CaptionTokens) -> list[str]:
    return caption_tokens(caption) if isinstance(caption, str) else [*list_of(argument, caption, "tokens, or one text", str)]


def _common_signature(references: Sequence[Sequence[CaptionTokens]], *, text: bool) -> str:
    numbers = sorted({len(item) for item in references})
    spread = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
    return f"nimgs:{len(references)}|nrefs:{spread}|case:{'lower' if text else 'mixed'}|tok:{TOKENIZER if text else 'none'}"


def _score(name: str, value: float, common: str, frequencies: DocumentFrequencies | None) -> Score:
    if name.startswith("BLEU"):
        return Score(name, value, "0-1", f"{common}|ref:closest|smooth:none")
    if name == "ROUGE-L":
        return Score(name, value, "0-1", f"{common}|beta:{BETA}")
    documents = "refs" if frequencies is None else f"given:{frequencies.documents}"
    return Score(name, value, "0-10", f"{common}|n:{ORDER}|df:{documents}" + (f"|sigma:{SIGMA:g}" if name == "CIDEr-D" else ""))


def _ngrams(tokens: CaptionTokens) -> Counter[NGram]:
    return Counter(tuple(tokens[i : i + n]) for n in range(1, ORDER + 1) for i in range(len(tokens) - n + 1))


def _frequencies(counts: Sequence[Sequence[Counter[NGram]]]) -> DocumentFrequencies:
    found: Counter[NGram] = Counter()
    for item in counts:
        found.update(set().union(*item))
    return DocumentFrequencies(found, len(counts))


def _bleu(
    references: Sequence[Sequence[CaptionTokens]],
    guesses: Sequence[CaptionTokens],
    counts: Sequence[Sequence[Counter[NGram]]],
    guess_counts: Sequence[Counter[NGram]],
) -> tuple[list[float], dict[str, tuple[float, ...]]]:
    rows = _bleu_counts(references, guesses, counts, guess_counts)
    values = [bleu_of_caption_counts(row) for row in rows]
    items = {f"BLEU-{order + 1}": tuple(row[order] for row in values) for order in range(ORDER)}
    return bleu_of_caption_counts(rows.sum(0)), items


def _bleu_counts(
    references: Sequence[Sequence[CaptionTokens]],
    guesses: Sequence[CaptionTokens],
    counts: Sequence[Sequence[Counter[NGram]]],
    guess_counts: Sequence[Counter[NGram]],
) -> np.ndarray:
    rows = []
    for item, guess, item_counts, found in zip(references, guesses, counts, guess_counts, strict=True):
        correct = [0] * ORDER
        for ngram, count in found.items():
            correct[len(ngram) - 1] += min(count, max(reference[ngram] for reference in item_counts))
        closest = min((abs(len(reference) - len(guess)), len(reference)) for reference in item)[1]
        rows.append([*correct, *(max(0, len(guess) - n) for n in range(ORDER)), len(guess), closest])
    return np.array(rows, dtype=np.float64)


def _rouge(references: Sequence[CaptionTokens], guess: CaptionTokens) -> float:
    # The official tool treats an empty caption as one empty token.
    guess = guess or [""]
    common = [_common_length(reference or [""], guess) for reference in references]
    precision = max(length / len(guess) for length in common)
    recall = max(length / max(1, len(reference)) for length, reference in zip(common, references, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _common_length(first: CaptionTokens, second: CaptionTokens) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for one in first:
        diagonal = 0
        for place, other in enumerate(second, start=1):
            above = row[place]
            row[place] = diagonal + 1 if one == other else max(above, row[place - 1])
            diagonal = above
    return row[-1]


@dataclass(frozen=True)
class _Vector:
    """tf-idf weights and their norm per order, and the caption's length."""

    weights: list[dict[NGram, float]]
    norms: list[float]
    length: int


class _Weigher:
    """Converts n-gram counts to tf-idf weights."""

    def __init__(self, frequencies: DocumentFrequencies) -> None:
        counts, total = frequencies.counts, math.log(frequencies.documents)
        self.idf = lru_cache(maxsize=None)(lambda ngram: total - math.log(max(1.0, counts.get(ngram, 0))))

    def __call__(self, counts: Counter[NGram]) -> _Vector:
        weights: list[dict[NGram, float]] = [{} for _ in range(ORDER)]
        for ngram, count in counts.items():
            weights[len(ngram) - 1][ngram] = count * self.idf(ngram)
        norms = [math.sqrt(math.fsum(weight**2 for weight in one.values())) for one in weights]
        # The official tool uses the number of bigrams as length; only length differences matter.
        return _Vector(weights, norms, sum(count for ngram, count in counts.items() if len(ngram) == 2))


def _cider(weigh: _Weigher, references: Sequence[Counter[NGram]], guess: Counter[NGram]) -> tuple[float, float]:
    """Return CIDEr-D and CIDEr of one image."""
    found = weigh(guess)
    clipped = plain = 0.0
    for reference in map(weigh, references):
        factor = math.exp(-((found.length - reference.length) ** 2) / (2 * SIGMA**2))
        for order in range(ORDER):
            norm = found.norms[order] * reference.norms[order]
            if not norm:
                continue
            others = reference.weights[order]
            shared = [(weight, others[ngram]) for ngram, weight in found.weights[order].items() if ngram in others]
            clipped += factor * sum(min(pair) * pair[1] for pair in shared) / norm
            plain += sum(weight * other for weight, other in shared) / norm
    scale = CIDER_SCALE / (ORDER * len(references))
    return clipped * scale, plain * scale
