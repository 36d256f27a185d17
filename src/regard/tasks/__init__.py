"""Wiring: data, model, training, decoding and metrics into tasks."""

from regard.tasks.classification import Classifier, train_classification
from regard.tasks.entailment import Entailer, train_entailment
from regard.tasks.evaluate import Evaluation, evaluate_translation
from regard.tasks.generate import generate
from regard.tasks.run import Run, open_run
from regard.tasks.translate import Translation, Translator
from regard.tasks.translation import train_translation

__all__ = [
    "Classifier",
    "Entailer",
    "Evaluation",
    "Run",
    "Translation",
    "Translator",
    "evaluate_translation",
    "generate",
    "open_run",
    "train_classification",
    "train_entailment",
    "train_translation",
]
