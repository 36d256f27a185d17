"""Tasks: combine data, model, training, decoding and metrics."""

from typing import TYPE_CHECKING

from regard.lazy_names import lazy_names

if TYPE_CHECKING:
    from regard.tasks.captioning_prediction import Captioner
    from regard.tasks.captioning_training import train_captioning
    from regard.tasks.classification_prediction import Classifier, Entailer
    from regard.tasks.classification_training import train_classification, train_entailment
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "captioning_prediction": "Captioner",
        "captioning_training": "train_captioning",
        "classification_prediction": "Classifier Entailer",
        "classification_training": "train_classification train_entailment",
        "document_translation": "DocumentTranslation translate_document",
        "language_prediction": "LanguageModel",
        "language_training": "train_language",
        "synthetic_data": "generate",
        "table": "open_any",
        "translation_evaluation": "Evaluation evaluate_translation",
        "translation_prediction": "Translation Translator",
        "translation_run": "TranslationRun open_translation_run",
        "translation_training": "train_translation",
    },
)
