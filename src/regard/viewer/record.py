"""Attention records: one example, its items and all attention maps between them.

A file of records is JSON Lines: one record per line, each with format and version. `docs/viewer.md` describes every field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from regard.arguments import takes_arguments
from regard.errors import DataError, counted, listed, shortened, shown
from regard.input_files import open_input
from regard.strict_json import parse_json
from regard.viewer.atomic_write import write_atomically
from regard.viewer.items import Grid, Tokens, read_items
from regard.viewer.maps import KINDS, AttentionMap, read_map
from regard.viewer.outputs import HypothesisRecord, PredictionRecord, TrainingPoint, read_hypothesis, read_point, read_prediction
from regard.viewer.record_checks import check_alternatives, check_fields, check_mapping, check_numbers, check_text
from regard.viewer.text import plain_text, visible

FORMAT = "regard.record"
VERSION = 2
FIELDS = ("items", "maps", "scores", "hypotheses", "prediction", "model", "title", "meta", "point", "alternatives")
# Attention over an image is drawn as one image per query item, up to this many; of more, as a matrix.
MOST_STEPS = 60
Part = TypeVar("Part")


class Matrix(NamedTuple):
    """One matrix of a record for drawing.

    Attributes:
        query: T labels.
        key: S labels.
        weights: (T, S) float32.
        name: name of map and head.
        grid: the image whose S cells are the keys; None: draw a matrix, as the keys are tokens or T is above 60.
    """

    query: list[str]
    key: list[str]
    weights: np.ndarray
    name: str
    grid: Grid | None = None

    @property
    def limit(self) -> float:
        """The weight that is drawn darkest: the largest one, 1 if none is above 0."""
        return max(float(self.weights.max()), 0.0) or 1.0


@dataclass(frozen=True, eq=False)
class AttentionRecord:
    """One example: its items and attention maps.

    Attributes:
        items: item lists by name: `Tokens` (or a plain list of text) or a `Grid`.
        maps: attention maps between them.
        scores: log-probabilities of the items of some lists.
        hypotheses: outputs of a search, best first.
        prediction: a predicted label, or None.
        model: name of the model; records of the same items by different models can be compared.
        title: a name for the example.
        meta: facts to display, text to text.
        point: training step of the record, or None. Records of one model and title with different points belong together.
        alternatives: for some item lists the most probable tokens at each position, (text, probability), most probable first.

    Raises:
        DataError: an invalid field; the message names it, its value and what was expected.

    Example:
        >>> items = {"source": ["das", "Haus"], "target": ["the", "house"]}
        >>> cross = AttentionMap("cross 1", "cross", "target", "source", [[[0.9, 0.1], [0.2, 0.8]]], layer=0)
        >>> AttentionRecord(items, [cross]).maps[0].weights.shape
        (1, 2, 2)
    """

    items: Mapping[str, Any]
    maps: Sequence[AttentionMap] = ()
    scores: Mapping[str, Sequence[float]] = field(default_factory=dict)
    hypotheses: Sequence[HypothesisRecord] = ()
    prediction: PredictionRecord | None = None
    model: str = ""
    title: str = ""
    meta: Mapping[str, str] = field(default_factory=dict)
    point: TrainingPoint | None = None
    alternatives: Mapping[str, Sequence[Sequence[tuple[str, float]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if not isinstance(self.items, Mapping) or not all(isinstance(name, str) for name in self.items):
            raise DataError("items: expected an object of name to items")
        set_(self, "items", {name: _within(f"items: {shortened(name, 40)}", read_items, items) for name, items in self.items.items()})
        for name in ("model", "title"):
            check_text(name, getattr(self, name))
        set_(self, "maps", _parts("maps", self.maps, lambda given: read_map(given).fitted(self.items)))
        names = [found.name for found in self.maps]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise DataError(f"maps[{number}]: name {shown(name)}: another map has it, too")
        set_(self, "hypotheses", _parts("hypotheses", self.hypotheses, lambda given: read_hypothesis(given).fitted(self.items)))
        if self.prediction is not None:
            set_(self, "prediction", _within("prediction", read_prediction, self.prediction))
        if self.point is not None:
            set_(self, "point", _within("point", read_point, self.point))
        set_(self, "meta", check_mapping("meta", self.meta))
        self._check_items("scores", self.scores, "numbers")
        self._check_items("alternatives", self.alternatives, "lists of tokens")
        scores = {
            name: check_numbers(f"scores: {shortened(name, 40)}", given, len(self.items[name]), "item")
            for name, given in self.scores.items()
        }
        set_(self, "scores", scores)
        found = {
            name: check_alternatives(f"alternatives: {shortened(name, 40)}", given, len(self.items[name]))
            for name, given in self.alternatives.items()
        }
        set_(self, "alternatives", found)

    def _check_items(self, name: str, values: Any, what: str) -> None:
        if not isinstance(values, Mapping):
            raise DataError(f"{name}: expected an object of items to {what}, found {type(values).__name__}")
        for items in values:
            if items not in self.items:
                raise DataError(f"{name}: {shortened(items, 40)}: no such items; known ones: {listed(self.items) or 'none'}")

    @classmethod
    def alignment(
        cls,
        source: Sequence[str],
        target: Sequence[str],
        weights: Any,
        *,
        texts: tuple[str, str] = ("", ""),
        marks: str = "",
        scores: Sequence[float] | None = None,
        title: str = "",
    ) -> AttentionRecord:
        """Build the record of one alignment.

        Args:
            source: S tokens.
            target: T tokens.
            weights: (T, S), or (H, T, S) with heads: row t is the attention of target token t.
            texts: source and target, detokenized.
            marks: how the tokens mark words; see `Tokens`.
            scores: log-probability of each target token, or None.
            title: a name for the example.

        Raises:
            DataError: an invalid value; see `AttentionRecord`.

        Example:
            >>> AttentionRecord.alignment(["das", "Haus"], ["the", "house"], [[0.9, 0.1], [0.2, 0.8]]).weights.shape
            (2, 2)
        """
        sides = {"source": source, "target": target}
        items = {name: _within(name, Tokens, tokens, text, marks) for (name, tokens), text in zip(sides.items(), texts, strict=True)}
        found = AttentionMap("alignment", "alignment", "target", "source", weights)
        return cls(items, [found], scores={} if scores is None else {"target": scores}, title=title)

    @property
    def main(self) -> AttentionMap | None:
        """The map shown first: attention before explanations, an alignment before all others; None without maps."""
        return min(self.maps, key=lambda found: (bool(found.method), KINDS.index(found.kind)), default=None)

    def matrix(self, name: str | None = None, head: int | None = None) -> Matrix:
        """Return one matrix of weights.

        Args:
            name: name of a map; None: the `main` one.
            head: index of a head; None: the mean over heads.

        Raises:
            DataError: no such map or head, or no maps; the message lists those available.

        Example:
            >>> AttentionRecord.alignment(["a"], ["b"], [[[0.25]], [[0.75]]]).matrix().weights.tolist()
            [[0.5]]
        """
        found = self.main if name is None else next((item for item in self.maps if item.name == name), None)
        if found is None and name is None:
            raise DataError("the record holds no attention")
        if found is None:
            raise DataError(f"map {shown(name)}: no such map; known ones: {listed(item.name for item in self.maps) or 'none'}")
        heads = len(found.weights)
        if head is not None and head < 0:
            raise DataError(f"head {head}: expected a number of 0 or more")
        if head is not None and head >= heads:
            raise DataError(f"head: map {shown(found.name)} has only {counted(heads, 'head')}")
        weights = found.weights[0 if heads == 1 else head] if heads == 1 or head is not None else found.weights.mean(0)
        of_head = f", head {found.heads[head] if found.heads else head + 1}" if head is not None else ""
        key = self.items[found.key]
        grid = key if isinstance(key, Grid) and len(weights) <= MOST_STEPS else None
        return Matrix(self.labels(found.query), self.labels(found.key), weights, found.name + of_head, grid)

    def matrices(self, name: str | None = None, head: int | None = None) -> list[Matrix]:
        """Return what a picture shows: one matrix, or for a text with an image the matrix of the text and the one over the image.

        Args:
            name: name of a map; None: the `main` one, and the one of the same items over an image.
            head: index of a head; None: the mean over heads. A head or a name chooses one matrix.

        Raises:
            DataError: see `matrix`.

        Example:
            >>> items = {"source": ["a", "b"], "image": Grid(1, 2), "target": ["x"]}
            >>> maps = [AttentionMap(key, kind, "target", key, [[0.5, 0.5]]) for key, kind in [("source", "cross"), ("image", "image")]]
            >>> [matrix.name for matrix in AttentionRecord(items, maps).matrices()]
            ['source', 'image']
        """
        first, main = self.matrix(name, head), self.main
        if name is not None or head is not None or main is None or isinstance(self.items[main.key], Grid):
            return [first]
        over = (self.matrix(each.name) for each in self.maps if (each.kind, each.query, each.method) == ("image", main.query, main.method))
        return [first, *(own for own in over if own.grid is not None)][:2]

    def labels(self, name: str) -> list[str]:
        """Return the items of a list as printable labels, white space visible except in names of hops."""
        items = self.items[name]
        hops = isinstance(items, Tokens) and any(found.kind == "hops" and found.query == name for found in self.maps)
        return [plain_text(token) or visible(token) for token in items.tokens] if hops else items.labels

    @property
    def weights(self) -> np.ndarray:
        """The weights (T, S) of the `main` map: of its head, or the mean over heads."""
        return self.matrix().weights

    @property
    def source(self) -> list[str]:
        """The key tokens of the `main` map."""
        return self._side("key")

    @property
    def target(self) -> list[str]:
        """The query tokens of the `main` map."""
        return self._side("query")

    @property
    def source_text(self) -> str:
        """The key text of the `main` map, detokenized."""
        return self.items[self.main.key].text if self.main else ""

    @property
    def target_text(self) -> str:
        """The query text of the `main` map, detokenized."""
        return self.items[self.main.query].text if self.main else ""

    def _side(self, side: str) -> list[str]:
        if self.main is None:
            return []
        items = self.items[getattr(self.main, side)]
        return list(items.tokens) if isinstance(items, Tokens) else items.labels

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values, with format and version; `from_json` reads it back unchanged.

        Example:
            >>> AttentionRecord.alignment(["a"], ["b"], [[1.0]]).to_json()["version"]
            2
        """
        more: dict[str, Any] = {} if self.point is None else {"point": self.point.to_json()}
        if self.alternatives:
            more["alternatives"] = {name: [[list(pair) for pair in pairs] for pairs in given] for name, given in self.alternatives.items()}
        return {
            "format": FORMAT,
            "version": VERSION,
            "title": self.title,
            "model": self.model,
            "items": {name: items.to_json() for name, items in self.items.items()},
            "maps": [found.to_json() for found in self.maps],
            "scores": {name: list(scores) for name, scores in self.scores.items()},
            "hypotheses": [found.to_json() for found in self.hypotheses],
            "prediction": self.prediction and self.prediction.to_json(),
            "meta": dict(self.meta),
            **more,
        }

    @classmethod
    def from_json(cls, values: Any) -> AttentionRecord:
        """Build a record from JSON values.

        Args:
            values: an object as `to_json` returns it; only format, version and items are needed.

        Raises:
            DataError: another format or version, or a field that is missing, unknown or invalid; the message names it.

        Example:
            >>> AttentionRecord.from_json({"format": "regard.record", "version": 1})
            Traceback (most recent call last):
            regard.errors.DataError: version 1: this reader knows version 2
        """
        if not isinstance(values, Mapping):
            raise DataError(f"expected a record (an object), found {type(values).__name__}")
        if values.get("format") != FORMAT:
            raise DataError(f"format {shown(values.get('format'))}: expected {FORMAT!r}")
        if values.get("version") != VERSION or isinstance(values["version"], bool):
            raise DataError(f"version {shown(values.get('version'))}: this reader knows version {VERSION}")
        fields = {name: value for name, value in values.items() if name not in ("format", "version")}
        return cls(**check_fields("a record", fields, FIELDS, ("items",)))


def record_list(operation: str, records: Iterable[AttentionRecord], *, some: bool = False) -> list[AttentionRecord]:
    """Return the records of any iterable as a list.

    Args:
        operation: name of the function that takes them, for messages.
        records: an iterable of records, read once.
        some: refuse none.

    Raises:
        DataError: one record instead of several, none, or an item that is no record; the message has its index.

    Example:
        >>> record_list("save_page", [3])
        Traceback (most recent call last):
        regard.errors.DataError: save_page: records[0]: expected an AttentionRecord, found int; weights need their tokens
    """
    if isinstance(records, AttentionRecord):
        raise DataError(f"{operation}: records: expected a list of records, found one; write [record]")
    found = list(records)
    for number, record in enumerate(found):
        if not isinstance(record, AttentionRecord):
            what = type(record).__name__
            raise DataError(f"{operation}: records[{number}]: expected an AttentionRecord, found {what}; weights need their tokens")
    if some and not found:
        raise DataError(f"{operation}: records: expected one or more, found none; the page would be empty")
    return found


@takes_arguments
def write_records(path: str | Path, records: Iterable[AttentionRecord]) -> None:
    """Write records as JSON Lines, completely or not at all.

    Args:
        path: the file.
        records: an empty list gives an empty file.

    Raises:
        DataError: the file cannot be written; the message names it. Or see `record_list`.

    Example:
        >>> write_records("/no/such/folder/a.jsonl", [])
        Traceback (most recent call last):
        regard.errors.DataError: /no/such/folder/a.jsonl: cannot be written (No such file or directory)
    """
    # Escaped to ASCII: no line separator can split a record, and a lone surrogate survives.
    lines = [json.dumps(record.to_json(), allow_nan=False) + "\n" for record in record_list("write_records", records)]
    write_atomically(path, "".join(lines).encode("ascii"))


@takes_arguments
def read_records(path: str | Path) -> list[AttentionRecord]:
    """Read a file of records.

    Args:
        path: a JSON Lines file from `write_records`.

    Returns:
        The records in file order; an empty list for an empty file.

    Raises:
        DataError: the file cannot be read, or a line is not a record; the message names file and line.

    Example:
        >>> read_records("/no/such/file.jsonl")
        Traceback (most recent call last):
        regard.errors.DataError: /no/such/file.jsonl: cannot be read (No such file or directory)
    """
    try:
        with open_input(path) as file:
            content = file.read()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return parse_records(content, path)


def parse_records(content: bytes, path: str | Path) -> list[AttentionRecord]:
    """Return the records of a file's content.

    Raises:
        DataError: a line is not a record; the message names file and line.
    """
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(AttentionRecord.from_json(parse_json(line)))
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: expected a record as JSON") from error
    return records


def _parts(name: str, values: Any, read: Callable[[Any], Part]) -> list[Part]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise DataError(f"{name}: expected a list, found {type(values).__name__}")
    return [_within(f"{name}[{number}]", read, value) for number, value in enumerate(values)]


def _within(place: str, read: Callable[..., Part], *values: Any) -> Part:
    """Read a part; errors name its location."""
    try:
        return read(*values)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
