"""Infers which axis of a tensor holds examples and which positions, by changing the sizes of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from regard.mask_check.adapter import BATCH


class Axis(NamedTuple):
    """Meaning of one axis of a tensor.

    Attributes:
        label: "batch", the name of a sequence, or None for anything else.
        factor: entries per example, if the axis also holds beams or heads.
        offset: number of entries beyond the sequence's positions, as from a padded convolution.
        joined: a sequence whose positions are folded into the batch axis, or None.
    """

    label: str | None
    factor: int = 1
    offset: int = 0
    joined: str | None = None


Layout = tuple[Axis, ...]
PLAIN = Axis(None)


class Sizes(NamedTuple):
    """Sizes of one run: number of examples, and columns per sequence."""

    rows: int
    widths: Mapping[str, int]


class Shapes(NamedTuple):
    """Shapes of one tensor in runs of different sizes.

    Attributes:
        base: in the base run.
        fewer: with one example less, or None if that run failed.
        shorter: with one column less, by sequence.
    """

    base: torch.Size
    fewer: torch.Size | None
    shorter: Mapping[str, torch.Size]


def layout_of(shapes: Shapes, sizes: Sizes) -> Layout | None:
    """Return the meaning of each axis; None if one of them changes with the batch in an unknown way."""
    others = [shape for shape in (shapes.fewer, *shapes.shorter.values()) if shape is not None]
    if any(len(shape) != len(shapes.base) for shape in others):
        return None
    axes: list[Axis] = []
    for at, size in enumerate(shapes.base):
        follows = [name for name, shape in shapes.shorter.items() if shape[at] != size]
        batch = shapes.fewer is not None and shapes.fewer[at] != size
        axis = _axis(size, sizes, None if not batch or shapes.fewer is None else shapes.fewer[at], follows, shapes, at)
        if axis is None:
            return None
        axes.append(axis)
    return tuple(_with_fixed(axes, shapes, sizes))


def _axis(size: int, sizes: Sizes, fewer: int | None, follows: list[str], shapes: Shapes, at: int) -> Axis | None:
    if fewer is None and not follows:
        return PLAIN
    if len(follows) > 1:
        return None
    if fewer is not None:
        factor = size - fewer
        if factor * sizes.rows != size:
            return None
        if not follows:
            return Axis(BATCH, factor)
        return Axis(BATCH, factor, joined=follows[0]) if factor == sizes.widths[follows[0]] else None
    name = follows[0]
    return Axis(name, offset=size - sizes.widths[name]) if size - shapes.shorter[name][at] == 1 else None


def _with_fixed(axes: list[Axis], shapes: Shapes, sizes: Sizes) -> list[Axis]:
    # A model for one fixed length cannot run with another: here the size decides.
    for name, width in sizes.widths.items():
        if name not in shapes.shorter and not any(name in (axis.label, axis.joined) for axis in axes):
            found = [at for at, axis in enumerate(axes) if axis == PLAIN and shapes.base[at] == width]
            if found and axes[found[0] - 1 if found[0] else 0].label in (BATCH, None):
                axes[found[0]] = Axis(name)
    return axes


class Match(NamedTuple):
    """Parts of two runs that must be equal.

    Attributes:
        rows: pairs of examples (first run, second run).
        positions: per sequence and pair of examples, the columns to compare: (first run (N,), second run (N,)).
        changed: the sequence whose later tokens were changed, or None; tensors without its positions may differ.
    """

    rows: list[tuple[int, int]]
    positions: dict[str, list[tuple[Tensor, Tensor]]]
    changed: str | None = None


class Difference(NamedTuple):
    """Largest difference between two tensors where they must be equal.

    Attributes:
        size: the largest difference; 0 if nothing is compared.
        compared: whether anything is compared.
        positions: largest difference per compared column, for the sequence in question or the tensor's last one.
        rows: largest difference per pair of examples.
    """

    size: float
    compared: bool
    positions: dict[int, float]
    rows: list[float]


NOTHING = Difference(0.0, False, {}, [])


def split(tensor: Tensor, layout: Layout, rows: int) -> list[tuple[Tensor, list[Axis]]]:
    """Unfold each folded axis of a tensor, in each possible order."""
    views: list[tuple[Tensor, list[Axis]]] = [(tensor, list(layout))]
    for at in range(len(layout) - 1, -1, -1):
        axis = layout[at]
        if axis.label != BATCH or (axis.factor == 1 and axis.joined is None):
            continue
        inner = Axis(axis.joined) if axis.joined else PLAIN
        parts: list[tuple[Tensor, list[Axis]]] = []
        for view, axes in views:
            count, rest = divmod(view.shape[at], rows)
            if rest:  # holds something else in this run
                continue
            for shape, names in (((rows, count), [Axis(BATCH), inner]), ((count, rows), [inner, Axis(BATCH)])):
                parts.append((view.unflatten(at, shape), [*axes[:at], *names, *axes[at + 1 :]]))
        views = parts
    return views


def difference(
    pair: tuple[Tensor, Tensor], layout: Layout | None, match: Match, sizes: tuple[Sizes, Sizes], *, farthest: bool = False
) -> Difference:
    """Compare one tensor in two runs where it must be equal.

    If a folded axis can be read in several ways, the closest counts; with `farthest`, for values that should differ, the farthest.
    """
    if layout is None or not any(axis.label == BATCH for axis in layout) or any(t.ndim != len(layout) for t in pair):
        return NOTHING
    if match.changed is not None and not any(match.changed in (axis.label, axis.joined) for axis in layout):
        return NOTHING
    views = split(pair[0], layout, sizes[0].rows), split(pair[1], layout, sizes[1].rows)
    if not views[0] or not views[1]:
        return NOTHING
    found = [_difference(first, second, axes, match) for (first, axes), (second, _) in zip(*views, strict=True)]
    return (max if farthest else min)(found, key=lambda one: one.size)


def _difference(first: Tensor, second: Tensor, axes: list[Axis], match: Match) -> Difference:
    named = [axis.label for axis in axes if axis.label not in (None, BATCH)]
    shown = (match.changed if match.changed in named else named[0]) if named else None
    if (quick := _in_place(first, second, axes, match, shown)) is not None:
        return quick
    by_position: dict[int, float] = {}
    by_row: list[float] = []
    compared = False
    for number, rows in enumerate(match.rows):
        parts, columns = [], torch.empty(0, dtype=torch.long)
        for which, tensor in enumerate((first, second)):
            part, left = _row(tensor, axes, rows[which])
            for at, axis in enumerate(left):
                if axis.label is not None:
                    index, own = _indices(axis, match.positions[axis.label][number], which)
                    if len(index) and int(index[-1]) >= part.shape[at]:
                        return NOTHING
                    part = part.index_select(at, index.to(part.device))
                    columns = own if axis.label == shown else columns
            parts.append(part)
        if parts[0].shape != parts[1].shape or not parts[0].numel():
            by_row.append(0.0)
            continue
        compared = True
        gap = gaps(*parts)
        by_row.append(float(gap.max()))
        place = next((at for at, axis in enumerate(left) if axis.label == shown), None) if shown else None
        if place is not None:
            for column, size in zip(columns.tolist(), gap.movedim(place, 0).reshape(len(columns), -1).amax(1).tolist(), strict=True):
                by_position[column] = max(by_position.get(column, 0.0), size)
    return Difference(max(by_row, default=0.0), compared, by_position, by_row)


def _in_place(first: Tensor, second: Tensor, axes: list[Axis], match: Match, shown: str | None) -> Difference | None:
    """Compare two tensors entry by entry if each entry belongs to the same row and position; None otherwise."""
    labels = [axis.label for axis in axes]
    named = [name for name in labels if name not in (None, BATCH)]
    plain = first.shape == second.shape and first.numel() and labels.count(BATCH) == 1 and len(set(named)) == len(named)
    if not plain or any(axis.offset for axis in axes) or any(a != b for a, b in match.rows):
        return None
    batch = labels.index(BATCH)
    keep = torch.ones((), dtype=torch.bool)
    for name in named or [None]:
        at = batch if name is None else labels.index(name)
        marks = torch.zeros(first.shape[batch], 1 if name is None else first.shape[at], dtype=torch.bool)
        for number, (row, _) in enumerate(match.rows):
            if name is None:
                marks[row] = True
                continue
            one, two = match.positions[name][number]
            if (one is not two and not torch.equal(one, two)) or (len(one) and int(one[-1]) >= marks.shape[1]):
                return None
            marks[row, one] = True
        shape = [1] * first.ndim
        shape[batch] = first.shape[batch]
        if name is not None:
            shape[at] = first.shape[at]
            marks = marks if batch < at else marks.T
        keep = keep & marks.reshape(shape)
    gap = torch.where(keep.to(first.device), gaps(first, second), 0.0)
    rows = gap.movedim(batch, 0).flatten(1).amax(1) if gap.ndim > 1 else gap
    by_row = rows[[row for row, _ in match.rows]].tolist()
    by_position: dict[int, float] = {}
    if shown is not None:
        largest = gap.movedim(labels.index(shown), 0).flatten(1).amax(1).tolist()
        columns = sorted({column for number in range(len(match.rows)) for column in match.positions[shown][number][0].tolist()})
        by_position = {column: largest[column] for column in columns}
    return Difference(max(by_row, default=0.0), bool(by_row), by_position, by_row)


def _row(tensor: Tensor, axes: list[Axis], row: int) -> tuple[Tensor, list[Axis]]:
    at = next(i for i, axis in enumerate(axes) if axis.label == BATCH)
    left = [*axes[:at], *axes[at + 1 :]]
    # A tensor has one batch axis only; another axis of that size is left alone.
    return tensor.select(at, row), [PLAIN if axis.label == BATCH else axis for axis in left]


def _indices(axis: Axis, pairs: tuple[Tensor, Tensor], which: int) -> tuple[Tensor, Tensor]:
    """Return the entries of an axis that belong to compared positions only, and their columns in the first run."""
    keep = torch.ones(len(pairs[0]), dtype=torch.bool)
    if axis.offset:
        # Entry j belongs to positions between j - before and j + after.
        before, after = max(axis.offset, 0), max(-axis.offset, 0)
        for one in pairs:
            known = set(one.tolist())
            fits = [all(j + d in known or j + d < 0 for d in range(-before, after + 1)) for j in one.tolist()]
            keep &= torch.tensor(fits, dtype=torch.bool)
    return pairs[which][keep], pairs[0][keep]


def gaps(first: Tensor, second: Tensor) -> Tensor:
    """Return the distances of the entries of two tensors in double precision; 0 for two NaNs, infinity for one."""
    a, b = first.to(torch.float64), second.to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=torch.inf, posinf=torch.inf))


def spread(tensor: Tensor) -> float:
    """Return the standard deviation of the finite values of a tensor, or their magnitude if they are all equal."""
    values = tensor[tensor.isfinite()].to(torch.float64)
    if not values.numel():
        return 1.0
    deviation = float(values.std(correction=0))
    return deviation if deviation > 1e-12 * float(values.abs().max()) else max(float(values.abs().max()), 1e-30)


def same_rows(rows: int, positions: Mapping[str, list[Tensor]]) -> Match:
    """Return the match of two runs on the same batch."""
    return Match([(row, row) for row in range(rows)], {name: [(at, at) for at in each] for name, each in positions.items()})


def entries(layouts: Mapping[str, Layout | None]) -> Iterator[str]:
    """Return the names of comparable tensors."""
    for name, layout in layouts.items():
        if layout is not None and any(axis.label == BATCH for axis in layout):
            yield name
