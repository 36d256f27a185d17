"""Tasks: combine data, model, training, decoding and metrics."""

from regard.tasks.captioning_prediction import Captioner
from regard.tasks.captioning_training import train_captioning
from regard.tasks.classification import Classifier, Entailer, train_classification, train_entailment
from regard.tasks.document_translation import DocumentTranslation, translate_document
from regard.tasks.language_prediction import LanguageModel
from regard.tasks.language_training import train_language
from regard.tasks.synthetic_data import generate
from regard.tasks.table import open_any
from regard.tasks.translation_evaluation import Evaluation, evaluate_translation
from regard.tasks.translation_prediction import Translation, Translator
from regard.tasks.translation_run import TranslationRun, open_translation_run
from regard.tasks.translation_training import train_translation

__all__ = [
    "Captioner",
    "Classifier",
    "DocumentTranslation",
    "Entailer",
    "Evaluation",
    "LanguageModel",
    "Translation",
    "TranslationRun",
    "Translator",
    "evaluate_translation",
    "generate",
    "open_any",
    "open_translation_run",
    "train_captioning",
    "train_classification",
    "train_entailment",
    "train_language",
    "train_translation",
    "translate_document",
]


def __dir__() -> list[str]:
    return sorted(__all__)
