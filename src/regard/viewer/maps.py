"""Attention maps: weights between two item lists per head, and weights of areas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regard.errors import DataError, shown
from regard.viewer.items import Grid, Tokens
from regard.viewer.record_checks import check_count, check_extents, check_fields, check_shape, check_text, check_texts, check_weights, pack

# Preference order of a record's maps: alignments first.
KINDS = ("alignment", "cross", "image", "co-attention", "hops", "self")
FIELDS = ("name", "kind", "query", "key", "weights", "layer", "heads", "areas", "method")
AREA_FIELDS = ("extents", "weights")


@dataclass(frozen=True, eq=False)
class AreaMap:
    """Areas of neighbouring items, and the weight of each.

    Attributes:
        extents: (N, 2) start and length in a sequence, or (N, 4) top, left, height and width in a grid; from 0.
        weights: (H, T, N), or (T, N) for one head; finite and non-negative.

    Raises:
        DataError: extents of another shape, or invalid weights.

    Example:
        >>> AreaMap([[0, 1], [0, 2]], [[0.25, 0.75]]).weights.shape
        (1, 1, 2)
    """

    extents: Any
    weights: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "extents", check_extents("areas: extents", self.extents))
        count = len(self.extents)
        expected = f"expected H x T x {count} numbers (heads x queries x areas)"
        weights = _by_head("areas: weights", self.weights, expected)
        if weights.size and weights.shape[2] != count:
            raise DataError(f"areas: weights: {expected}, found shape {' x '.join(map(str, weights.shape))}")
        object.__setattr__(self, "weights", weights)

    def cells(self, items: Tokens | Grid) -> list[np.ndarray]:
        """Return the item indices of each area.

        Raises:
            DataError: an area exceeds the items, or has the other form.
        """
        wide = 4 if isinstance(items, Grid) else 2
        if self.extents.shape[1] != wide:
            raise DataError(f"areas: extents: expected rows of {wide} numbers for {'a grid' if wide == 4 else 'a sequence'}")
        rows, columns = (items.rows, items.columns) if isinstance(items, Grid) else (1, len(items))
        places = np.arange(rows * columns).reshape(rows, columns)
        found = []
        for number, extent in enumerate(self.extents.tolist()):
            top, left, height, width = extent if wide == 4 else (0, extent[0], 1, extent[1])
            if min(top, left) < 0 or min(height, width) < 1 or top + height > rows or left + width > columns:
                size = f"{rows} x {columns} cells" if wide == 4 else f"{columns} items"
                raise DataError(f"areas: extents[{number}] is {extent}: expected an area within {size}")
            found.append(places[top : top + height, left : left + width].ravel())
        return found

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"extents": self.extents.tolist(), "weights": pack(self.weights)}


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """Weights of one attention: its query items, its key items, and the weights.

    Attributes:
        name: unique within the record ("cross 2").
        kind: "alignment", "cross", "self", "image", "co-attention" or "hops".
        query: name of the T query items.
        key: name of the S key items.
        weights: (H, T, S), or (T, S) for one head; finite and non-negative; stored as a read-only float32 array. None with areas: each item
            then gets the sum of the weights of its areas.
        layer: index of its layer; None if there are none.
        heads: H names of heads; None: numbered.
        areas: the attended areas, or None.
        method: the explanation method of the weights ("leave-one-out"); empty for the model's attention. Scores of a method may be
            negative: evidence against the output.

    Raises:
        DataError: an invalid field; the message names it, its value and what was expected.

    Example:
        >>> AttentionMap("cross", "cross", "target", "source", [[0.5, 0.5]]).weights.shape
        (1, 1, 2)
    """

    name: str
    kind: str
    query: str
    key: str
    weights: Any = None
    layer: int | None = None
    heads: Sequence[str] = ()
    areas: AreaMap | None = None
    method: str = ""

    def __post_init__(self) -> None:
        for name in ("name", "kind", "query", "key", "method"):
            check_text(name, getattr(self, name))
        if not self.name:
            raise DataError("name: expected text, found none")
        if self.kind not in KINDS:
            raise DataError(f"kind {shown(self.kind)}: expected {', '.join(KINDS[:-1])} or {KINDS[-1]}")
        if self.layer is not None:
            object.__setattr__(self, "layer", check_count("layer", self.layer))
        object.__setattr__(self, "heads", check_texts("heads", self.heads, "names"))
        if isinstance(self.areas, Mapping):
            object.__setattr__(self, "areas", AreaMap(**check_fields("areas", self.areas, AREA_FIELDS, AREA_FIELDS)))
        if self.areas is not None and not isinstance(self.areas, AreaMap):
            raise DataError(f"areas: expected areas (an object), found {type(self.areas).__name__}")
        if self.weights is not None:
            object.__setattr__(
                self, "weights", _by_head("weights", self.weights, "expected numbers (heads x queries x keys)", signed=bool(self.method))
            )
        elif self.areas is None:
            raise DataError("weights: missing")

    def fitted(self, items: Mapping[str, Tokens | Grid]) -> AttentionMap:
        """Return the map with validated weights for these items.

        Raises:
            DataError: an item list is missing or has another size.
        """
        for side in ("query", "key"):
            if getattr(self, side) not in items:
                known = ", ".join(items) or "none"
                raise DataError(f"{side} {shown(getattr(self, side))}: no such items; known ones: {known}")
        rows, columns = len(items[self.query]), len(items[self.key])
        areas, weights = self.areas, self.weights
        if areas is not None:
            cells = areas.cells(items[self.key])
            heads = len(areas.weights) if areas.weights.ndim == 3 else 1
            shape = (heads, rows, len(cells))
            wanted = f"expected {' x '.join(map(str, shape))} numbers (heads x {self.query} x areas)"
            areas = replace(areas, weights=check_shape("areas: weights", areas.weights, shape, wanted))
            weights = _projected(areas, cells, columns) if weights is None else weights
        # A single head is not mentioned: the user passed a matrix.
        heads = len(weights) if weights.ndim == 3 else 1
        wanted = f"expected {rows} x {columns} numbers ({self.query} x {self.key})"
        if heads > 1:
            wanted = f"expected {heads} x {rows} x {columns} numbers (heads x {self.query} x {self.key})"
        if weights.ndim == 3 and weights.shape[0] == 1 and weights.shape[1:] != (rows, columns) and weights.size:
            raise DataError(f"weights: {wanted}, found shape {weights.shape[1]} x {weights.shape[2]}")
        weights = check_shape("weights", weights, (heads, rows, columns), wanted)
        if self.heads and len(self.heads) != heads:
            raise DataError(f"heads: expected {heads} names (one for each head), found {len(self.heads)}")
        if areas is not None and areas.weights.shape[0] != heads:
            raise DataError(f"areas: weights: expected {heads} heads as in weights, found {areas.weights.shape[0]}")
        return replace(self, weights=weights, areas=areas)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        values = {name: getattr(self, name) for name in FIELDS if name != "method" or self.method}
        return {**values, "weights": pack(self.weights), "areas": self.areas and self.areas.to_json()}


def read_map(values: Any) -> AttentionMap:
    """Build a map from JSON values, or return an existing one.

    Raises:
        DataError: a field is unknown, missing or invalid.

    Example:
        >>> read_map({"name": "a"})
        Traceback (most recent call last):
        regard.errors.DataError: kind: missing
    """
    if isinstance(values, AttentionMap):
        return values
    return AttentionMap(**check_fields("a map", values, FIELDS, FIELDS[:4]))


def _by_head(name: str, values: Any, expected: str, *, signed: bool = False) -> np.ndarray:
    """Return (H, T, S) weights from (H, T, S) or (T, S); empty arrays keep their shape."""
    depth = _depth(values)
    weights = check_weights(name, values, 3 if depth == 3 else 2, expected, signed=signed)
    return weights[None] if weights.ndim == 2 else weights


def _depth(values: Any) -> int:
    if isinstance(values, Mapping):
        shape = values.get("shape")
        return len(shape) if isinstance(shape, list) else 0
    if hasattr(values, "ndim"):
        return int(values.ndim)
    depth = 0
    while isinstance(values, Sequence) and not isinstance(values, str):
        depth += 1
        values = values[0] if len(values) else None
    return depth


def _projected(areas: AreaMap, cells: list[np.ndarray], columns: int) -> np.ndarray:
    weights = np.zeros((*areas.weights.shape[:2], columns), np.float32)
    for number, places in enumerate(cells):
        weights[:, :, places] += areas.weights[:, :, number, None]
    weights.flags.writeable = False
    return weights
