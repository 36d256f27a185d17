"""The error rule: what is computed fast may be off from float64 by little more than what is computed plainly in the same type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

# Roundings of the last operations of both contenders; without them a plain result that is exact by luck would allow no error at all.
FLOOR = 8


class Errors(NamedTuple):
    """Of one result: the largest error of the fast computation, that of the plain one, and what is mere rounding."""

    fast: float
    plain: float
    room: float


C = TypeVar("C")


def broken(found: Sequence[Errors]) -> list[str]:
    """Name what breaks the rule: an error of more than twice the plain one's, of a gradient (all but the first) thrice."""
    names = ["result", *(f"gradient {number}" for number in range(1, len(found)))]
    limits = zip(names, (2, *(3,) * (len(found) - 1)), found, strict=True)
    return [f"{name}: {fast:.3g}, plain {plain:.3g}" for name, factor, (fast, plain, room) in limits if not fast <= factor * plain + room]


def assert_rule(errors: Callable[[C], list[Errors]], case: C, neighbours: Iterable[C]) -> None:
    """Hold the results of a case to the rule, and where it is broken at once the worst of the case's neighbours, fast and plain alike.

    Two areas may all but tie for a query, or a hidden unit may be all but 0, on either side of which its gradient is another: all error is
    then the rounding of one number, drawn anew by every way of computing it, and small by luck in one of them. That does not happen to
    eight neighbours at a time; what is computed wrongly does.

    Args:
        errors: of a case: of its result and its gradients.
        case: to be held to the rule.
        neighbours: cases that differ a little from it.
    """
    if not broken(errors(case)):
        return
    found = [errors(each) for each in neighbours]
    worst = [Errors(max(one.fast for one in part), max(one.plain for one in part), part[0].room) for part in zip(*found, strict=True)]
    assert not broken(worst)
