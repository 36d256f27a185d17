"""Evaluate a trained run on labelled examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from regard.data.labelled import LabelledFile
from regard.errors import DataError, listed, shown
from regard.metrics.classification import (
    AccuracyComparison,
    ConfusionMatrix,
    accuracy,
    calibration_error,
    compare_accuracy,
    confusion_matrix,
    macro_f1,
)
from regard.metrics.score import Score
from regard.tasks.classification_prediction import LabelPrediction, label_texts
from regard.tasks.classification_run import SentenceRun


class LabelEvaluation(NamedTuple):
    """Test results of a run.

    Attributes:
        scores: accuracy with its interval, macro-F1, calibration error, log loss.
        confusion: the confusion matrix.
        outputs: predicted labels; "" for an empty text, which is wrong.
    """

    scores: list[Score]
    confusion: ConfusionMatrix
    outputs: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON value."""
        names = ("label", "precision", "recall", "f1", "examples")
        return {
            "scores": [{"name": s.name, "value": s.value, "unit": s.unit, "signature": s.signature} for s in self.scores],
            "labels": list(self.confusion.labels),
            "confusion": self.confusion.counts.tolist(),
            "by_label": [dict(zip(names, row, strict=True)) for row in self.confusion.by_label()],
        }


def evaluate_labels(run: SentenceRun, file: LabelledFile) -> LabelEvaluation:
    """Label the examples of a file and compare.

    Args:
        run: an opened run of classification or entailment.
        file: as `regard.tasks.classification_data.read_labelled_file` reads it.

    Raises:
        DataError: a label that the run does not know.
    """
    for example in file.examples:
        if example.label not in run.labels:
            raise DataError(f"{file.path}, line {example.line}: label {shown(example.label)}, this run knows {listed(run.labels)}")
    expected = [example.label for example in file.examples]
    found = label_texts(run, [example.texts for example in file.examples])
    outputs = [item.label for item in found]
    scores = [accuracy(outputs, expected), macro_f1(outputs, expected)]
    told = [(item, label) for item, label in zip(found, expected, strict=True) if item.label]
    if told:
        scores.append(
            calibration_error([item.probabilities[item.label] for item, _ in told], [item.label == label for item, label in told])
        )
        scores.append(_log_loss(told, len(found)))
    return LabelEvaluation(scores, confusion_matrix(outputs, expected, run.labels), outputs)


def _log_loss(told: Sequence[tuple[LabelPrediction, str]], total: int) -> Score:
    # A probability of 0 is a smaller one after rounding.
    losses = [-math.log(max(item.probabilities[label], float(np.finfo(np.float64).tiny))) for item, label in told]
    return Score("log loss", sum(losses) / len(losses), "nats", f"n:{len(told)}/{total}")


def describe_labels(evaluation: LabelEvaluation, say: Callable[[str], None]) -> None:
    """Report the scores, one per line, then the confusion matrix."""
    for score in evaluation.scores:
        say(f"{score.name:<22}{score.value:9.2f} {score.unit:<8}{score.signature}")
    labels, counts = evaluation.confusion.labels, evaluation.confusion.counts
    if len(labels) > 20:
        return
    wide = max(8, *(len(label) + 2 for label in labels))
    say("expected (rows), found (columns):")
    say(" " * wide + "".join(f"{label:>{wide}}" for label in labels) + "".join(f"{name:>11}" for name in ("precision", "recall", "F1")))
    for label, row, (_, precision, recall, f1, _) in zip(labels, counts.tolist(), evaluation.confusion.by_label(), strict=True):
        say(f"{label:<{wide}}" + "".join(f"{count:>{wide}}" for count in row) + "".join(f"{v:>11.1%}" for v in (precision, recall, f1)))


def describe_label_comparison(
    evaluation: LabelEvaluation, other: LabelEvaluation, expected: Sequence[str], name: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Report in one line how the accuracy compares with that of another run, and return the figures as a JSON value."""
    found: AccuracyComparison = compare_accuracy(evaluation.outputs, other.outputs, expected)
    low, high = found.interval
    values = f"accuracy {evaluation.scores[0].value:.2f} against {other.scores[0].value:.2f} of {name}"
    say(f"{values}: {found.difference:+.2f} [{low:+.2f}, {high:+.2f}], McNemar p = {found.p_value:.4f}")
    return {
        "run": name,
        "accuracy": other.scores[0].value,
        "difference": found.difference,
        "interval": [low, high],
        "only_this": found.only_system,
        "only_other": found.only_baseline,
        "p_value": found.p_value,
    }
