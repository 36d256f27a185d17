"""Deterministic samples from an entire text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


def in_sample(total: int, count: int, first: int, size: int) -> np.ndarray:
    """Return which of `size` items from number `first` of `total` are in a sample of `count`.

    Each block contributes its share, at random. Other block sizes give another sample.

    Args:
        total: number of all items.
        count: size of the sample, at most all items.
        first: index of the block's first item.
        size: size of the block.

    Returns:
        (size,) booleans.

    Example:
        >>> [int(in_sample(10, 4, first, 5).sum()) for first in (0, 5)], int(in_sample(3, 4, 0, 3).sum())
        ([2, 2], 3)
    """
    if count >= total:
        return np.ones(size, bool)
    taken = (first + size) * count // total - first * count // total
    chosen = np.zeros(size, bool)
    # Only `random` and stable sorts: numpy promises their streams more firmly than those of `choice`.
    chosen[np.argsort(np.random.default_rng([first, total]).random(size), kind="stable")[:taken]] = True
    return chosen


def sampled(items: Sequence[Item], count: int) -> Iterator[Item]:
    """Yield an even sample of up to `count` items, in order.

    Example:
        >>> list(sampled("abc", 5)), len(list(sampled("abcdefgh", 5)))
        (['a', 'b', 'c'], 5)
    """
    return (items[number] for number in np.flatnonzero(in_sample(len(items), count, 0, len(items))).tolist())
