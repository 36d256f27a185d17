"""Alignment error rate: attention weights against known word links.

A link is a pair (target position, source position), both from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from regard.arguments import takes_arguments
from regard.errors import DataError
from regard.metrics.score import Score

Links = AbstractSet[tuple[int, int]]


@takes_arguments
def links_from_weights(weights: Any) -> set[tuple[int, int]]:
    """Link every target token to the source token it attends to most.

    Args:
        weights: attention weights (T, S): nested lists, an array or a tensor; finite.

    Returns:
        At most T links (target, source). Ties go to the first; a row of zeros, or without sources, has no link.

    Raises:
        DataError: not a (T, S) matrix of finite numbers.

    Example:
        >>> sorted(links_from_weights([[0.1, 0.9], [0.8, 0.2], [0.0, 0.0]]))
        [(0, 1), (1, 0)]
    """
    # Tensors may carry a gradient, lie on another device or hold bfloat16, which NumPy cannot read.
    plain = weights.detach().cpu().double().numpy() if hasattr(weights, "detach") else weights
    try:
        matrix = np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError("weights: expected a (T, S) matrix of numbers, rows of equal length") from error
    if matrix.size == 0:
        return set()
    if matrix.ndim != 2:
        raise DataError(f"weights: expected two axes (T, S), found shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise DataError(f"weights {matrix.shape}: expected finite numbers")
    best = matrix.argmax(axis=1)
    return {(target, int(source)) for target, source in enumerate(best) if matrix[target].any()}


@takes_arguments
def alignment_error_rate(found: Any, sure: Any, possible: Any = None) -> Score:
    """Compute the alignment error rate (Och and Ney, 2003, section 6).

        AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)

    A are the found, S the sure and P the possible links; sure links are possible, too. Counts are summed over sentences before the
    division.

    Args:
        found: per sentence a set of (target, source), or attention weights (T, S), converted by `links_from_weights`.
        sure: per sentence the set of sure links. A bare set means a single sentence, also for `found` and `possible`.
        possible: per sentence the set of possible links; None: the sure links.

    Returns:
        A `Score` in percent, 0 is best; 0 without found and sure links.

    Raises:
        DataError: no sentences, or lists of unequal length.

    Example:
        >>> alignment_error_rate({(0, 0), (1, 2)}, {(0, 0)}, {(1, 1)}).value
        33.333333333333336
    """
    if isinstance(sure, AbstractSet):
        found, sure, possible = [found], [sure], None if possible is None else [possible]
    possible = sure if possible is None else possible
    if not len(found) == len(sure) == len(possible):
        raise DataError(f"{len(found)} alignments, but {len(sure)} sets of sure and {len(possible)} of possible links")
    if len(sure) == 0:
        raise DataError("no alignments to score")
    hits = total = 0
    for one_found, one_sure, one_possible in zip(_all_links(found), sure, possible, strict=True):
        hits += len(one_found & one_sure) + len(one_found & (one_possible | one_sure))
        total += len(one_found) + len(one_sure)
    value = 100.0 * (total - hits) / total if total else 0.0
    return Score("AER", value, "%", f"nsents:{len(sure)}|possible:{'no' if possible is sure else 'yes'}|links:target-source")


def _all_links(found: Sequence[Any]) -> list[Links]:
    return [item if isinstance(item, AbstractSet) else links_from_weights(item) for item in found]
