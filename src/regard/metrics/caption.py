"""Caption scores as the official tool (coco-caption) computes them: BLEU-1 to 4, ROUGE-L, CIDEr-D and CIDEr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.metrics.score import Score

Tokens = Sequence[str]


@dataclass(frozen=True)
class CaptionScores:
    """`corpus`: a `Score` by name; `items`: a number for each image by the same names.

    Names: "BLEU-1" ... "BLEU-4", "ROUGE-L", "CIDEr-D", "CIDEr" (in the official tool's scales: 0 to 1, CIDEr 0 to 10).
    """

    corpus: dict[str, Score]
    items: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class DocumentFrequencies:
    """In how many of `documents` (images) each n-gram occurs; `document_frequencies(references)` counts them."""

    counts: dict[tuple[str, ...], int]
    documents: int


def caption_scores(
    references: Sequence[Sequence[str | Tokens]], hypotheses: Sequence[str | Tokens], *, frequencies: DocumentFrequencies | None = None
) -> CaptionScores:
    """Score captions; a str is split by `caption_tokens`, a list of tokens is taken as it is."""
    raise NotImplementedError
