"""Configurations: frozen pydantic models, read from YAML, overridden by `key.sub=value`.

An unknown key is an error that names its path and the nearest known key. A configuration stops at the builder: modules
take ints, floats and bools.
"""

from regard.config.base import DecodingConfig, Frozen, RunConfig, TrainingConfig, VocabularyConfig
from regard.config.captioning import (
    CaptionDataConfig,
    CaptioningConfig,
    CaptionModelConfig,
    CaptionTransformerConfig,
    EncoderConfig,
    ImageConfig,
    ShowConfig,
)
from regard.config.language import LanguageConfig, LanguageDataConfig, LanguageModelConfig, LanguageTrainingConfig
from regard.config.models import (
    AreaConfig,
    AreaSettings,
    AttentionConfig,
    CrossedConfig,
    ModelConfig,
    RNNConfig,
    TransformerConfig,
    TransformerSettings,
)
from regard.config.reading import TASKS, differences, dump_config, load_config, merged, submodels, task_of, validate
from regard.config.sentences import (
    ClassificationConfig,
    ClassifierConfig,
    CrossedReadingConfig,
    EntailmentConfig,
    EntailmentModelConfig,
    RecurrentReadingConfig,
    SentenceModelSettings,
    TransformerReadingConfig,
    TransformerReadingSettings,
)
from regard.config.translation import DataConfig, TranslationConfig

__all__ = [
    "TASKS",
    "AreaConfig",
    "AreaSettings",
    "AttentionConfig",
    "CaptionDataConfig",
    "CaptionModelConfig",
    "CaptionTransformerConfig",
    "CaptioningConfig",
    "ClassificationConfig",
    "ClassifierConfig",
    "CrossedConfig",
    "CrossedReadingConfig",
    "DataConfig",
    "DecodingConfig",
    "EncoderConfig",
    "EntailmentConfig",
    "EntailmentModelConfig",
    "Frozen",
    "ImageConfig",
    "LanguageConfig",
    "LanguageDataConfig",
    "LanguageModelConfig",
    "LanguageTrainingConfig",
    "ModelConfig",
    "RNNConfig",
    "RecurrentReadingConfig",
    "RunConfig",
    "SentenceModelSettings",
    "ShowConfig",
    "TrainingConfig",
    "TransformerConfig",
    "TransformerReadingConfig",
    "TransformerReadingSettings",
    "TransformerSettings",
    "TranslationConfig",
    "VocabularyConfig",
    "differences",
    "dump_config",
    "load_config",
    "merged",
    "submodels",
    "task_of",
    "validate",
]
