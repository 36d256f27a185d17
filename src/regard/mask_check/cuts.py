"""Chooses from which positions on later tokens are changed, and in which rows of the user's batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from regard.mask_check.adapter import Sequence
from regard.mask_check.examples import ROWS, Example
from regard.mask_check.report import places

MOST_ROWS = 32
"""Max rows of the user's batch that are run."""
AT_ONCE = 2**12
"""Max positions of one pass if that leaves enough rows: logits of a large vocabulary take memory."""
POSITIONS = 2**16
"""Max positions of all passes: rows of up to 256 tokens are changed from every position on."""
ENDS = 3
"""Positions at each end of a row that are always tried."""


class Round(NamedTuple):
    """One pass: each row is changed from one position on.

    Attributes:
        examples: the rows.
        starts: where the change of each row begins.
        copied: the row of the user's batch that all rows are copies of, or None if they are the user's.
    """

    examples: list[Example]
    starts: list[int]
    copied: int | None


def rounds(examples: list[Example], sequence: Sequence) -> tuple[list[Round], str]:
    """Distribute the positions over the user's rows, uncut, then over copies of the longest one; and say what is not tried."""
    given = [examples[row % len(examples)] for row in range(max(len(examples), ROWS))]
    width = max(example.length(sequence.name) for example in given)
    rows = given[: max(ROWS, min(MOST_ROWS, AT_ONCE // width))]
    lengths = [example.length(sequence.name) for example in rows]
    longest = lengths.index(max(lengths))
    first = 0 if sequence.causal == "strict" else 1
    tried = chosen(range(first, lengths[longest]))
    pending = list(tried)
    made = [Round(rows, _taken(pending, lengths, first), None)]
    same = min(lengths) == max(lengths)
    copies = rows if same else [rows[longest]] * len(rows)
    while pending:
        made.append(Round(copies, _taken(pending, [lengths[longest]] * len(rows), first), None if same else longest))
    left = []
    every = lengths[longest] - first
    if len(tried) < every:
        left.append(f"tokens were changed from {len(tried)} of {every} positions on, {places(tried)}")
    if len(rows) < len(given):
        left.append(f"rows {len(rows)} to {len(given) - 1} of the batch were not run")
    return made, "; ".join(left)


def _taken(pending: list[int], lengths: list[int], first: int) -> list[int]:
    """Take the next position for each row, the shortest row first; a row for which none is left is changed from its middle on."""
    starts = [0] * len(lengths)
    for row in sorted(range(len(lengths)), key=lambda one: lengths[one]):
        starts[row] = next((start for start in pending if start < lengths[row]), max(first, lengths[row] // 2))
        if starts[row] in pending:
            pending.remove(starts[row])
    return starts


def chosen(every: range) -> list[int]:
    """Return all positions; in a very long row its ends, powers of two, and others evenly spread.

    Example:
        >>> chosen(range(1, 6)), len(chosen(range(1, 256))), len(chosen(range(1, 4096)))
        ([1, 2, 3, 4, 5], 255, 18)
    """
    most = POSITIONS // every.stop
    if len(every) <= most:
        return list(every)
    ends: Iterable[int] = (*every[:ENDS], *every[-ENDS:], *(2**power for power in range(1, every.stop.bit_length()) if 2**power in every))
    found = set(ends)
    spread = max(most - len(found), ENDS)
    return sorted(found | {every[(2 * part + 1) * len(every) // (2 * spread)] for part in range(spread)})
