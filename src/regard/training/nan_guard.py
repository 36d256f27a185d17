"""Detect non-finite losses and gradients before anything is saved."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.training.distributed import ProcessGroup


class FigurePosition(NamedTuple):
    """Position of a figure. Ordered: earlier updates first, and losses before gradients.

    Attributes:
        step: number of the update, from 1.
        group: 0 for a loss; for a gradient, the number of summed batches.
        epoch: from 0.
        batch: position in the epoch's plan, from 0; for a gradient, of its first batch.
    """

    step: int
    group: int
    epoch: int
    batch: int


class NanGuard:
    """Collect figures without reading them, and check all at once."""

    def __init__(self, world: ProcessGroup) -> None:
        self._world = world
        self._figures: list[tuple[FigurePosition, Tensor]] = []

    def add(self, place: FigurePosition, figure: Tensor) -> None:
        """Store a 0-dimensional tensor."""
        self._figures.append((place, figure.detach()))

    def agree(self, signal: int, *, check: bool) -> tuple[int, FigurePosition | None]:
        """Exchange signals and checks between processes (collective).

        Args:
            signal: number of the signal this process received, or 0.
            check: whether to check the figures, which synchronises with the device.

        Returns:
            A signal that some process received, or 0; and the position of the first non-finite figure, or None.
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
