"""Alignment error rate: attention weights against known word links.

A link is a pair (target position, source position), both from 0.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from numbers import Integral
from typing import Any

import numpy as np

from regard.arguments import takes_arguments
from regard.errors import DataError, shown
from regard.metrics.checks import check_lengths, read_numbers, refuse_where
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
    return _strongest_links("links_from_weights: weights", read_numbers("links_from_weights: weights", weights))


@takes_arguments
def alignment_error_rate(found: Any, sure: Any, possible: Any = None) -> Score:
    """Compute the alignment error rate (Och and Ney, 2003, section 6).

        AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)

    A are the found, S the sure and P the possible links; sure links are possible, too. Counts are summed over sentences before the
    division.

    Args:
        found: per sentence a set of (target, source), or attention weights (T, S), converted by `links_from_weights`. Lists of links are
            not taken: two columns of whole numbers might also be weights. Make sets of the links, or floats of the weights.
        sure: per sentence the set of sure links. If it is a bare set, all three are of a single sentence.
        possible: per sentence the set of possible links; None: the sure links.

    Returns:
        A `Score` in percent, 0 is best; 0 without found and sure links.

    Raises:
        DataError: no sentences, lists of unequal length, links that are not pairs of whole numbers in a set, or weights that
            `links_from_weights` refuses or that might be links.

    Example:
        >>> alignment_error_rate({(0, 0), (1, 2)}, {(0, 0)}, {(1, 1)}).value
        33.333333333333336
    """
    if isinstance(sure, AbstractSet):
        found, sure, possible = [found], [sure], None if possible is None else [possible]
    possible = sure if possible is None else possible
    lists = {"found": found, "sure": sure, "possible": possible}
    for name, given in lists.items():
        if isinstance(given, AbstractSet):
            raise DataError(f"alignment_error_rate: {name} must be a list with a set for each sentence, as sure is, found {shown(given)}")
    check_lengths("alignment_error_rate", **lists)
    hits = total = 0
    for number in range(len(sure)):
        one_found, one_sure, one_possible = (
            _links(f"alignment_error_rate: {name}, sentence {number + 1},", given[number], weights=name == "found")
            for name, given in lists.items()
        )
        hits += len(one_found & one_sure) + len(one_found & (one_possible | one_sure))
        total += len(one_found) + len(one_sure)
    value = 100.0 * (total - hits) / total if total else 0.0
    return Score("AER", value, "%", f"nsents:{len(sure)}|possible:{'no' if possible is sure else 'yes'}|links:target-source")


def _links(argument: str, given: Any, *, weights: bool) -> Links:
    """Return the links of a sentence, from a set or, if taken, from weights."""
    if isinstance(given, AbstractSet):
        for link in given:
            numbers: tuple[Any, ...] = link if isinstance(link, tuple) and len(link) == 2 else (None,)
            if not all(isinstance(each, Integral) and not isinstance(each, bool) and int(each) >= 0 for each in numbers):
                raise DataError(f"{argument} must hold links (target, source), two whole numbers of at least 0, found {shown(link)}")
        return given
    if not weights:
        raise DataError(f"{argument} must be a set of links (target, source), found {shown(given)}")
    matrix = read_numbers(argument, given)
    if matrix.dtype.kind in "iu" and matrix.ndim == 2 and matrix.shape[1] == 2:
        raise DataError(
            f"{argument} may be links or weights, whole numbers in two columns: make a set of the links, or floats of the weights; "
            f"found {shown(given)}"
        )
    return _strongest_links(argument, matrix)


def _strongest_links(argument: str, matrix: np.ndarray) -> set[tuple[int, int]]:
    if matrix.size == 0:
        return set()
    if matrix.ndim != 2:
        raise DataError(f"{argument} must be a matrix (T, S), found shape {matrix.shape}")
    refuse_where(~np.isfinite(matrix), matrix, f"{argument} must be finite")
    best = matrix.argmax(axis=1)
    return {(target, int(source)) for target, source in enumerate(best) if matrix[target].any()}
