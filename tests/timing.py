"""Times that neither other work on the machine nor the age of its processor decide."""

from __future__ import annotations

import time
from collections.abc import Callable


def growth(action: Callable[[int], object], few: int, many: int) -> float:
    """Return how many times as long `action(many)` takes as `action(few)`, in processor time, each the best of three in turns."""
    best = {few: float("inf"), many: float("inf")}
    for _ in range(3):
        for size in best:
            start = time.process_time()
            action(size)
            best[size] = min(best[size], time.process_time() - start)
    return best[many] / best[few]
