"""What the viewer shows: a record of one pair of token sequences and the attention weights between them.

A file of records is JSON Lines: one record a line, each with its format and version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import DataError
from regard.viewer.files import write_whole

FORMAT = "regard.record"
VERSION = 1
FIELDS = ("kind", "source", "target", "weights", "title", "source_text", "target_text", "scores", "meta")


@dataclass(frozen=True, eq=False)
class AttentionRecord:
    """One example: what was read, what was written, and where each written token looked.

    Attributes:
        source: S source tokens, as text.
        target: T target tokens, as text.
        weights: (T, S), finite and not negative: row t is what target token t attends to. Lists, an array or a tensor; kept
            as a read-only float64 array.
        kind: what the weights are; "alignment" is the only kind of version 1.
        title: a name for the example.
        source_text: the source as a reader would write it; may be empty.
        target_text: the target as a reader would write it; may be empty.
        scores: log-probability of each target token, or None.
        meta: facts to show beside it, text to text.

    Raises:
        DataError: tokens that are not text, weights that are not (T, S) finite numbers of 0 or more, scores that are not T
            finite numbers, or meta that is not text; names the field, what was found and what was expected.

    Example:
        >>> record = AttentionRecord(["das", "Haus"], ["the", "house"], [[0.9, 0.1], [0.2, 0.8]])
        >>> record.weights.shape
        (2, 2)
    """

    source: Sequence[str]
    target: Sequence[str]
    weights: Any
    kind: str = "alignment"
    title: str = ""
    source_text: str = ""
    target_text: str = ""
    scores: Sequence[float] | None = None
    meta: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            object.__setattr__(self, name, _tokens(name, getattr(self, name)))
        for name in ("kind", "title", "source_text", "target_text"):
            if not isinstance(getattr(self, name), str):
                raise DataError(f"{name}: expected text, found {type(getattr(self, name)).__name__}")
        if self.kind != "alignment":
            raise DataError(f"kind {self.kind!r}: expected alignment")
        object.__setattr__(self, "weights", _weights(self.weights, len(self.target), len(self.source)))
        if self.scores is not None:
            object.__setattr__(self, "scores", _scores(self.scores, len(self.target)))
        if not isinstance(self.meta, Mapping) or not all(isinstance(x, str) for pair in self.meta.items() for x in pair):
            raise DataError("meta: expected an object of text to text")
        object.__setattr__(self, "meta", dict(self.meta))

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values, with format and version; `from_json` reads it back unchanged.

        Example:
            >>> AttentionRecord(["a"], ["b"], [[1.0]]).to_json()["version"]
            1
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in FIELDS}
        values["weights"] = self.weights.tolist()
        return {"format": FORMAT, "version": VERSION, **values}

    @classmethod
    def from_json(cls, values: Any) -> AttentionRecord:
        """Build a record from JSON values.

        Args:
            values: an object as `to_json` returns it; fields other than source, target and weights may be missing.

        Raises:
            DataError: another format or version, a missing or unknown field, or one that does not fit; names it.

        Example:
            >>> AttentionRecord.from_json({"format": "regard.record", "version": 2})
            Traceback (most recent call last):
            regard.errors.DataError: version 2: this reader knows version 1
        """
        if not isinstance(values, Mapping):
            raise DataError(f"expected a record (an object), found {type(values).__name__}")
        if values.get("format") != FORMAT:
            raise DataError(f"format {values.get('format')!r}: expected {FORMAT!r}")
        if values.get("version") != VERSION or isinstance(values["version"], bool):
            raise DataError(f"version {values.get('version')!r}: this reader knows version {VERSION}")
        fields = {name: value for name, value in values.items() if name not in ("format", "version")}
        for name in ("source", "target", "weights"):
            if name not in fields:
                raise DataError(f"{name}: missing")
        for name in fields:
            if name not in FIELDS:
                raise DataError(f"{name}: unknown field; known ones: {', '.join(FIELDS)}")
        return cls(**fields)


def write_records(path: str | Path, records: Iterable[AttentionRecord]) -> None:
    """Write records as JSON Lines, whole or not at all.

    Args:
        path: the file.
        records: none gives an empty file.

    Raises:
        DataError: the file cannot be written; names it.

    Example:
        >>> write_records("/no/such/folder/a.jsonl", [])
        Traceback (most recent call last):
        regard.errors.DataError: /no/such/folder/a.jsonl: cannot be written (No such file or directory)
    """
    # Escaped to ASCII: no line separator can cut a record, and a lone surrogate survives.
    lines = [json.dumps(record.to_json(), allow_nan=False) + "\n" for record in records]
    write_whole(path, "".join(lines).encode("ascii"))


def read_records(path: str | Path) -> list[AttentionRecord]:
    """Read a file of records.

    Args:
        path: JSON Lines as `write_records` writes them.

    Returns:
        The records in file order; an empty list for an empty file.

    Raises:
        DataError: the file cannot be read, or a line is no record; names file and line.

    Example:
        >>> read_records("/no/such/file.jsonl")
        Traceback (most recent call last):
        regard.errors.DataError: /no/such/file.jsonl: cannot be read (No such file or directory)
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if lines[-1] == b"":
        lines.pop()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(AttentionRecord.from_json(json.loads(line)))
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: expected a record as JSON") from error
    return records


def _tokens(name: str, tokens: Any) -> list[str]:
    if isinstance(tokens, str) or not isinstance(tokens, Sequence) or not all(isinstance(token, str) for token in tokens):
        raise DataError(f"{name}: expected a list of tokens (text)")
    return list(tokens)


def _weights(weights: Any, rows: int, columns: int) -> np.ndarray:
    expected = f"expected {rows} x {columns} numbers (target x source tokens)"
    # Tensors may carry a gradient, lie on another device or hold bfloat16, none of which NumPy reads.
    plain = weights.detach().cpu().double().numpy() if hasattr(weights, "detach") else weights
    try:
        matrix = np.asarray(plain)
    except (TypeError, ValueError) as error:
        raise DataError(f"weights: {expected}, found rows of unequal length or other things than numbers") from error
    if matrix.size == 0 and rows * columns == 0 and matrix.shape[:1] in ((rows,), (0,)):
        matrix = np.zeros((rows, columns))
    if matrix.dtype.kind not in "fiu":
        raise DataError(f"weights: {expected}, found other things than numbers")
    if matrix.shape != (rows, columns):
        raise DataError(f"weights: {expected}, found shape {' x '.join(map(str, matrix.shape)) or 'of one number'}")
    matrix = matrix.astype(np.float64)
    wrong = ~np.isfinite(matrix) | (matrix < 0)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(f"weights[{row}][{column}] is {matrix[row, column]}: expected a finite number of 0 or more")
    matrix.flags.writeable = False
    return matrix


def _scores(scores: Any, count: int) -> list[float]:
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError("scores: expected a number for each target token") from error
    if values.shape != (count,):
        raise DataError(f"scores: expected {count} numbers (one for each target token), found shape {values.shape}")
    if not np.isfinite(values).all():
        raise DataError("scores: expected finite numbers")
    return values.tolist()
