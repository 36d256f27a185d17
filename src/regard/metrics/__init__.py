"""Scores with their signatures: BLEU, chrF, significance, accuracy, exact match, perplexity, alignment error rate."""

from regard.metrics.accuracy import exact_match, perplexity, token_accuracy
from regard.metrics.alignment import alignment_error_rate, links_from_weights
from regard.metrics.score import Score
from regard.metrics.significance import Comparison, paired_bootstrap
from regard.metrics.translation import BleuDetails, LengthRow, bleu, bleu_by_length, bleu_details, chrf

__all__ = [
    "BleuDetails",
    "Comparison",
    "LengthRow",
    "Score",
    "alignment_error_rate",
    "bleu",
    "bleu_by_length",
    "bleu_details",
    "chrf",
    "exact_match",
    "links_from_weights",
    "paired_bootstrap",
    "perplexity",
    "token_accuracy",
]
