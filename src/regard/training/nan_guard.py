"""Watching losses and gradients: a figure that is not finite is found before anything made of it is saved."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.training.distributed import ProcessGroup


class FigurePosition(NamedTuple):
    """Where a figure came from. Ordered: earlier updates first, and losses before the gradient they spoil.

    Attributes:
        step: number of the update, from 1.
        group: 0 for a loss; for a gradient, how many batches it is the sum of.
        epoch: from 0.
        batch: place in the epoch's plan, from 0; of a gradient, of its first batch.
    """

    step: int
    group: int
    epoch: int
    batch: int


class NanGuard:
    """Collect figures without looking at them, and look at all of them at once."""

    def __init__(self, world: ProcessGroup) -> None:
        self._world = world
        self._figures: list[tuple[FigurePosition, Tensor]] = []

    def add(self, place: FigurePosition, figure: Tensor) -> None:
        """Remember a 0-dim tensor."""
        self._figures.append((place, figure.detach()))

    def agree(self, signal: int, *, check: bool) -> tuple[int, FigurePosition | None]:
        """Exchange what the processes know (collective).

        Args:
            signal: number of the signal this process received, or 0.
            check: whether to look at the figures, which waits for the device that computes them.

        Returns:
            A signal some process received, or 0; and the first place where a figure was not finite, or None.
        """
        found = self._first() if check else None
        rows = self._world.gather([signal, int(found is not None), *(found or (0, 0, 0, 0))])
        places = [FigurePosition(*row[2:]) for row in rows if row[1]]
        return max(row[0] for row in rows), min(places) if places else None

    def _first(self) -> FigurePosition | None:
        figures, self._figures = self._figures, []
        if not figures:
            return None
        values = torch.stack([figure.float() for _, figure in figures]).tolist()
        return min((place for (place, _), value in zip(figures, values, strict=True) if not math.isfinite(value)), default=None)
