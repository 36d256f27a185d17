"""Configuration of translation runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from regard.config.base import MAX_COUNT, MAX_LENGTH, DecodingConfig, Frozen, RunConfig, VocabularyConfig
from regard.config.models import ModelConfig, RNNConfig, SecondInputSettings


class TranslationDataConfig(Frozen):
    """Files of a run. Paths are stored as given; `.gz` is supported, and `train-*.en` stands for all matching files in order."""

    source: str | None = Field(
        default=None, description="training source sentences, one per line; or one .jsonl / .tsv / .tmx file of pairs"
    )
    target: str | None = Field(default=None, description="training target sentences, line by line with `source`")
    languages: tuple[str, str] | None = Field(
        default=None, description="source and target of .tmx files, such as [en, de]; absent: the file's source language, and the other one"
    )
    second_source: str | None = Field(
        default=None, description="a second input beside the sources, line by line with them; needs `model.second`"
    )
    valid_second_source: str | None = Field(default=None, description="the same of the validation sources")
    images: str | None = Field(
        default=None, description="folder of the images that the second sources name; absent: the folder of these files"
    )
    valid_source: str | None = Field(default=None, description="validation sources; absent: `valid_size` training pairs are held out")
    valid_target: str | None = Field(default=None, description="validation targets")
    valid_size: int = Field(
        default=500, ge=1, le=MAX_COUNT, description="pairs held out (at most a tenth) when there are no validation files"
    )
    max_length: int = Field(
        default=200, ge=1, le=MAX_LENGTH, description="longer sequences, in tokens, are left out of training and counted"
    )
    block_size: int = Field(
        default=2**22, ge=1, le=2**31 - 1, description="pairs shuffled together; a larger corpus is read in blocks of this size"
    )


class TranslationVocabularyConfig(VocabularyConfig):
    """Tokenization; trained on the run's training text, or imported with a model."""

    kind: Literal["bpe", "unigram", "word", "character", "sentencepiece"] = Field(
        default="bpe", description="byte-level BPE is lossless; sentencepiece comes with an imported model only"
    )


class TranslationConfig(RunConfig):
    """Settings of a translation run."""

    task: Literal["translation"] = "translation"
    recipe: str = Field(
        default="none",
        description="default settings: auto (by model and number of pairs), the name of a recipe, or none",
    )
    data: TranslationDataConfig = TranslationDataConfig()
    vocabulary: TranslationVocabularyConfig = TranslationVocabularyConfig()
    model: ModelConfig = Field(default=RNNConfig(), discriminator="type")
    decoding: DecodingConfig = DecodingConfig()

    @property
    def second(self) -> SecondInputSettings | None:
        """Settings of the second input; None for a model of one input."""
        return self.model.second

    @field_validator("model", mode="before")
    @classmethod
    def _completed(cls, model: Any, info: ValidationInfo) -> Any:
        # Recurrent by default; without a joint vocabulary no table can serve both sides.
        if not isinstance(model, Mapping):
            return model
        vocabulary = info.data.get("vocabulary")
        apart = {} if vocabulary is None or vocabulary.shared else {"share_embeddings": False}
        return {"type": RNNConfig().type, **apart, **model}
