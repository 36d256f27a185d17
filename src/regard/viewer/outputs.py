"""A model's output: hypotheses of a search, or a label with its probabilities; and the training step of the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from regard.errors import DataError, listed, shown
from regard.viewer.items import Grid, Tokens
from regard.viewer.record_checks import (
    check_count,
    check_fields,
    check_number,
    check_numbers,
    check_shape,
    check_text,
    check_texts,
    check_weights,
    pack,
)

HYPOTHESIS = ("tokens", "score", "text", "log_probs", "key", "weights")
PREDICTION = ("label", "probabilities")
POINT = ("update", "loss")


@dataclass(frozen=True, eq=False)
class HypothesisRecord:
    """One output of a search. Hypotheses with a common prefix share a path in the drawn tree.

    Attributes:
        tokens: T tokens.
        score: ranking score; higher is better.
        text: the detokenized output; may be empty.
        log_probs: log-probability of each token, or None.
        key: name of the S items that `weights` are over.
        weights: (T, S) attention of each token, or None.

    Raises:
        DataError: an invalid field; the message names it, its value and what was expected.

    Example:
        >>> HypothesisRecord(["the", "house"], -1.25).log_probs is None
        True
    """

    tokens: Sequence[str]
    score: float
    text: str = ""
    log_probs: Sequence[float] | None = None
    key: str = "source"
    weights: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", check_texts("tokens", self.tokens))
        object.__setattr__(self, "score", check_number("score", self.score))
        check_text("text", self.text)
        check_text("key", self.key)
        if self.log_probs is not None:
            object.__setattr__(self, "log_probs", check_numbers("log_probs", self.log_probs, len(self.tokens), "token"))
        if self.weights is not None:
            expected = f"expected {len(self.tokens)} rows of numbers (tokens x {self.key})"
            object.__setattr__(self, "weights", check_weights("weights", self.weights, 2, expected))

    @property
    def labels(self) -> list[str]:
        """The tokens as printable labels."""
        return Tokens(self.tokens).labels

    def fitted(self, items: Mapping[str, Tokens | Grid]) -> HypothesisRecord:
        """Return the hypothesis with validated weights for these items.

        Raises:
            DataError: an item list is missing or has another size.
        """
        if self.weights is None:
            return self
        if self.key not in items:
            raise DataError(f"key {shown(self.key)}: no such items; known ones: {listed(items) or 'none'}")
        shape = (len(self.tokens), len(items[self.key]))
        wanted = f"expected {shape[0]} x {shape[1]} numbers (tokens x {self.key})"
        return replace(self, weights=check_shape("weights", self.weights, shape, wanted))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        values = {name: getattr(self, name) for name in HYPOTHESIS}
        return {**values, "weights": None if self.weights is None else pack(self.weights)}


@dataclass(frozen=True)
class PredictionRecord:
    """A predicted label.

    Attributes:
        label: its name.
        probabilities: by label; may be empty.

    Raises:
        DataError: the label is not text, or a probability is negative or not finite.

    Example:
        >>> PredictionRecord("entailment", {"entailment": 0.9, "neutral": 0.1}).label
        'entailment'
    """

    label: str
    probabilities: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text("label", self.label)
        if not isinstance(self.probabilities, Mapping):
            raise DataError(f"probabilities: expected an object of label to number, found {type(self.probabilities).__name__}")
        found = {}
        for label, value in self.probabilities.items():
            found[check_text("probabilities", label)] = check_number(f"probabilities: {label}", value)
            if value < 0:
                raise DataError(f"probabilities: {label}: expected a number of 0 or more, found {value}")
        object.__setattr__(self, "probabilities", found)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"label": self.label, "probabilities": dict(self.probabilities)}


@dataclass(frozen=True)
class TrainingPoint:
    """Training step of a record. Records of one model and title at different points show how attention is learned.

    Attributes:
        update: number of updates done.
        loss: validation loss; None if not measured, as before training.

    Raises:
        DataError: the update is not a non-negative integer, or the loss is not finite.

    Example:
        >>> TrainingPoint(300, 2.5).name
        'update 300, loss 2.5'
    """

    update: int
    loss: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "update", check_count("update", self.update))
        if self.loss is not None:
            object.__setattr__(self, "loss", check_number("loss", self.loss))

    @property
    def name(self) -> str:
        """A description of the point."""
        return f"update {self.update:,}" + ("" if self.loss is None else f", loss {self.loss:.4g}")

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"update": self.update, "loss": self.loss}


def read_point(values: Any) -> TrainingPoint:
    """Build a point from JSON values, or return an existing one.

    Raises:
        DataError: a field is unknown, missing or invalid.
    """
    if isinstance(values, TrainingPoint):
        return values
    return TrainingPoint(**check_fields("a point of a training", values, POINT, POINT[:1]))


def read_hypothesis(values: Any) -> HypothesisRecord:
    """Build a hypothesis from JSON values, or return an existing one.

    Raises:
        DataError: a field is unknown, missing or invalid.
    """
    if isinstance(values, HypothesisRecord):
        return values
    return HypothesisRecord(**check_fields("a hypothesis", values, HYPOTHESIS, HYPOTHESIS[:2]))


def read_prediction(values: Any) -> PredictionRecord:
    """Build a prediction from JSON values, or return an existing one.

    Raises:
        DataError: a field is unknown, missing or invalid.
    """
    if isinstance(values, PredictionRecord):
        return values
    return PredictionRecord(**check_fields("a prediction", values, PREDICTION, PREDICTION[:1]))
