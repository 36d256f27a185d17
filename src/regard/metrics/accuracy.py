"""Token accuracy, exact match and perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regard.arguments import takes_arguments
from regard.errors import DataError
from regard.metrics.checks import check_correct, check_least, check_lengths
from regard.metrics.score import Score


@takes_arguments
def token_accuracy(correct: int, tokens: int) -> Score:
    """Compute the share of target tokens that the model ranks first under teacher forcing.

    Args:
        correct: tokens ranked first, 0 up to `tokens`.
        tokens: target tokens, end of sentence included, at least 1.

    Returns:
        A `Score` in percent.

    Raises:
        DataError: no tokens, or `correct` outside 0 up to `tokens`.

    Example:
        >>> token_accuracy(3, 4).value
        75.0
    """
    check_correct("token_accuracy", correct, tokens=tokens)
    return Score("token accuracy", 100.0 * correct / tokens, "%", f"ntokens:{tokens}|prefix:reference")


@takes_arguments
def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute the share of lines that equal their reference character by character.

    Args:
        hypotheses: output lines.
        references: expected lines.

    Returns:
        A `Score` in percent. White space and case count; an empty line equals an empty line.

    Raises:
        DataError: empty lists or unequal lengths.

    Example:
        >>> exact_match(["2024-02-29", "2024-03-01"], ["2024-02-29", "2024-03-02"]).value
        50.0
    """
    check_lengths("exact_match", hypotheses=hypotheses, references=references)
    equal = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Score("exact match", 100.0 * equal / len(references), "%", f"nlines:{len(references)}|case:mixed|space:yes")


@takes_arguments
def perplexity(nll_sum: float, tokens: int) -> Score:
    """Compute perplexity, exp(nll_sum / tokens).

    Args:
        nll_sum: negative log-likelihood of all tokens in nats, without label smoothing.
        tokens: the number of tokens, at least 1.

    Returns:
        A `Score`, 1 or more; infinite on overflow, NaN for NaN.

    Raises:
        DataError: no tokens, or a negative sum.

    Example:
        >>> round(perplexity(2 * math.log(7), 2).value, 6)
        7.0
    """
    check_least("perplexity", "tokens", tokens, 1)
    if nll_sum < 0:
        raise DataError(f"perplexity: nll_sum must be at least 0, found {nll_sum}")
    try:
        value = math.exp(nll_sum / tokens)
    except OverflowError:
        value = math.inf
    return Score("perplexity", value, "", f"ntokens:{tokens}|smoothing:none")
