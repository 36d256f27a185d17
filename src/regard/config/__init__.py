"""Configurations: frozen pydantic models, read from YAML, overridden by `key.sub=value`.

An unknown key is an error that names its path and the nearest known key. A configuration stops at the builder: modules
take ints, floats and bools.
"""

from regard.config.base import DecodingConfig, Frozen, RunConfig, TrainingConfig, VocabularyConfig
from regard.config.models import (
    AreaConfig,
    AreaSettings,
    AttentionConfig,
    CrossedConfig,
    KeyMode,
    ModelConfig,
    RNNConfig,
    Score,
    TransformerConfig,
    TransformerSettings,
)
from regard.config.reading import TASKS, differences, dump_config, load_config, submodels, task_of, validate
from regard.config.translation import DataConfig, TranslationConfig

__all__ = [
    "TASKS",
    "AreaConfig",
    "AreaSettings",
    "AttentionConfig",
    "CrossedConfig",
    "DataConfig",
    "DecodingConfig",
    "Frozen",
    "KeyMode",
    "ModelConfig",
    "RNNConfig",
    "RunConfig",
    "Score",
    "TrainingConfig",
    "TransformerConfig",
    "TransformerSettings",
    "TranslationConfig",
    "VocabularyConfig",
    "differences",
    "dump_config",
    "load_config",
    "submodels",
    "task_of",
    "validate",
]
