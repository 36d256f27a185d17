"""Metrics with signatures: BLEU, chrF, caption scores, pointing, significance, accuracy, perplexity, alignment error rate."""

from typing import TYPE_CHECKING

from regard.lazy_names import lazy_names
from regard.metrics.accuracy import exact_match, perplexity, token_accuracy
from regard.metrics.alignment import alignment_error_rate, links_from_weights
from regard.metrics.caption import CaptionScores, DocumentFrequencies, caption_scores, document_frequencies
from regard.metrics.caption_tokens import caption_tokens
from regard.metrics.classification import (
    AccuracyComparison,
    ConfusionMatrix,
    accuracy,
    calibration_error,
    compare_accuracy,
    confusion_matrix,
    macro_f1,
)
from regard.metrics.meteor import meteor
from regard.metrics.pointing import (
    CorrectnessScores,
    PointingScores,
    attention_correctness,
    attention_entropy,
    box_region,
    cell_coverage,
    cell_hits,
    pointing_accuracy,
)
from regard.metrics.score import Score

if TYPE_CHECKING:
    from regard.metrics.significance import Comparison, paired_bootstrap
    from regard.metrics.translation import BleuDetails, LengthRow, bleu, bleu_by_length, bleu_details, chrf

__all__ = [
    "AccuracyComparison",
    "BleuDetails",
    "CaptionScores",
    "Comparison",
    "ConfusionMatrix",
    "CorrectnessScores",
    "DocumentFrequencies",
    "LengthRow",
    "PointingScores",
    "Score",
    "accuracy",
    "alignment_error_rate",
    "attention_correctness",
    "attention_entropy",
    "bleu",
    "bleu_by_length",
    "bleu_details",
    "box_region",
    "calibration_error",
    "caption_scores",
    "caption_tokens",
    "cell_coverage",
    "cell_hits",
    "chrf",
    "compare_accuracy",
    "confusion_matrix",
    "document_frequencies",
    "exact_match",
    "links_from_weights",
    "macro_f1",
    "meteor",
    "paired_bootstrap",
    "perplexity",
    "pointing_accuracy",
    "token_accuracy",
]

# What imports sacrebleu. The other names stay with their modules: some modules are named like a function of theirs.
__getattr__, _ = lazy_names(
    __name__,
    {
        "significance": "Comparison paired_bootstrap",
        "translation": "BleuDetails LengthRow bleu bleu_by_length bleu_details chrf",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
