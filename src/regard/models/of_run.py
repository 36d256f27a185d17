"""The model of a run of any task."""

from __future__ import annotations

from torch import nn

from regard.config import CaptioningConfig, ClassificationConfig, EntailmentConfig, LanguageConfig, RunConfig, TranslationConfig
from regard.errors import ConfigError
from regard.models.build import build
from regard.models.captioning import build_captioner
from regard.models.labeller import build_labeller
from regard.models.language import build_language_model


def build_for(config: RunConfig, *, source_size: int, target_size: int, classes: int, unknown: int) -> nn.Module:
    """Build the model of a run, with fresh weights; a timm encoder fetches none.

    Args:
        config: of a run of any task.
        source_size: entries of the source vocabulary, where there are two.
        target_size: entries of the target vocabulary, or of the only one.
        classes: labels, where there are any.
        unknown: the token of an unknown word.

    Raises:
        ConfigError: settings that mean nothing, or a task without a model.

    Example:
        >>> model = build_for(TranslationConfig(), source_size=11, target_size=13, classes=2, unknown=1)
        >>> model.output.weight.shape[0]
        13
    """
    match config:
        case CaptioningConfig():
            return build_captioner(config.model, image_size=config.image.size, vocabulary_size=target_size)
        case ClassificationConfig() | EntailmentConfig():
            return build_labeller(config.model, vocabulary_size=target_size, classes=classes, unknown=unknown)
        case LanguageConfig():
            return build_language_model(config.model, vocabulary_size=target_size)
        case TranslationConfig():
            return build(config.model, source_size=source_size, target_size=target_size)
    raise ConfigError(f"{config.task}: no model to build")
