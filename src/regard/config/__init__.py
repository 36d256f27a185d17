"""Configurations: frozen pydantic models, read from YAML, overridden by `key.sub=value`.

An unknown key is an error that names its path and the nearest known key. A configuration stops at the builder: modules
take ints, floats and bools.
"""

from regard.config.base import DecodingConfig, Frozen, RunConfig, StartConfig, TrainingConfig, VocabularyConfig
from regard.config.captioning import (
    CaptionDataConfig,
    CaptioningConfig,
    CaptionModelConfig,
    CaptionTransformerConfig,
    ImageConfig,
    ImageEncoderConfig,
    ShowConfig,
)
from regard.config.classification import (
    ClassificationConfig,
    ClassifierConfig,
    CrossedEncoderConfig,
    EntailmentConfig,
    EntailmentModelConfig,
    RecurrentEncoderConfig,
    SentenceModelSettings,
    TransformerEncoderConfig,
    TransformerEncoderSettings,
)
from regard.config.language import LanguageConfig, LanguageDataConfig, LanguageModelConfig, LanguageTrainingConfig
from regard.config.load import (
    TASKS,
    changed_values,
    describe_changes,
    dump_config,
    load_config,
    merge_configs,
    task_of,
    validate,
    with_options,
)
from regard.config.models import (
    AreaConfig,
    AreaSettings,
    AttentionConfig,
    CrossedConfig,
    CrossedInputConfig,
    ModelConfig,
    RecurrentSecondConfig,
    RNNConfig,
    SecondInputConfig,
    TransformerConfig,
    TransformerSettings,
)
from regard.config.recipes import RECIPES, Recipe, recipe_for, unsettled_settings, with_recipe
from regard.config.suggestions import submodels
from regard.config.translation import TranslationConfig, TranslationDataConfig, TranslationTrainingConfig

__all__ = [
    "RECIPES",
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
    "CrossedEncoderConfig",
    "CrossedInputConfig",
    "DecodingConfig",
    "EntailmentConfig",
    "EntailmentModelConfig",
    "Frozen",
    "ImageConfig",
    "ImageEncoderConfig",
    "LanguageConfig",
    "LanguageDataConfig",
    "LanguageModelConfig",
    "LanguageTrainingConfig",
    "ModelConfig",
    "RNNConfig",
    "Recipe",
    "RecurrentEncoderConfig",
    "RecurrentSecondConfig",
    "RunConfig",
    "SecondInputConfig",
    "SentenceModelSettings",
    "ShowConfig",
    "StartConfig",
    "TrainingConfig",
    "TransformerConfig",
    "TransformerEncoderConfig",
    "TransformerEncoderSettings",
    "TransformerSettings",
    "TranslationConfig",
    "TranslationDataConfig",
    "TranslationTrainingConfig",
    "VocabularyConfig",
    "changed_values",
    "describe_changes",
    "dump_config",
    "load_config",
    "merge_configs",
    "recipe_for",
    "submodels",
    "task_of",
    "unsettled_settings",
    "validate",
    "with_options",
    "with_recipe",
]


def __dir__() -> list[str]:
    return sorted(__all__)
