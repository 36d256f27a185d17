"""Wiring: data, model, training, decoding and metrics into tasks."""

from regard.tasks.caption import Captioner
from regard.tasks.captioning import train_captioning
from regard.tasks.classification import Classifier, train_classification
from regard.tasks.entailment import Entailer, train_entailment
from regard.tasks.evaluate import Evaluation, evaluate_translation
from regard.tasks.generate import generate
from regard.tasks.language import train_language
from regard.tasks.language_use import LanguageModel
from regard.tasks.run import Run, open_run
from regard.tasks.translate import Translation, Translator
from regard.tasks.translation import train_translation

__all__ = [
    "Captioner",
    "Classifier",
    "Entailer",
    "Evaluation",
    "LanguageModel",
    "Run",
    "Translation",
    "Translator",
    "evaluate_translation",
    "generate",
    "open_run",
    "train_captioning",
    "train_classification",
    "train_entailment",
    "train_language",
    "train_translation",
]
