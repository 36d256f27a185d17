"""Configuration of translation runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from regard.config.base import (
    MAX_COUNT,
    MAX_LAYERS,
    MAX_LENGTH,
    MAX_RATE,
    MAX_SIZE,
    DecodingConfig,
    Frozen,
    RunConfig,
    TrainingConfig,
    VocabularyConfig,
    unused_if,
)
from regard.config.models import ModelConfig, RNNConfig, SecondInputSettings, TransformerConfig

NO_LINKS = {"links": (None,), "links_from": (None,)}


class TranslationDataConfig(Frozen):
    """Files of a run. Paths are stored as given; `.gz` is supported, and `train-*.en` stands for all matching files in order."""

    source: str | None = Field(
        default=None, description="training source sentences, one per line; or one .jsonl / .tsv / .csv / .tmx file of pairs"
    )
    target: str | None = Field(default=None, description="training target sentences, line by line with `source`")
    languages: tuple[str, str] | None = Field(
        default=None,
        description="source and target of .tmx files, or columns of tables and keys of .jsonl: [en, de]; absent: the source language of a "
        ".tmx file and the other",
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
    max_training_length: int | None = Field(
        default=None, ge=1, le=MAX_LENGTH, description="a smaller limit of the training pairs alone; lines to translate keep `max_length`"
    )
    block_size: int = Field(
        default=2**22, ge=1, le=2**31 - 1, description="pairs shuffled together; a larger corpus is read in blocks of this size"
    )

    @property
    def longest_trained(self) -> int:
        """The most tokens of a training sequence."""
        return min(self.max_length, self.max_training_length or self.max_length)


class TranslationVocabularyConfig(VocabularyConfig):
    """Tokenization; trained on the run's training text, or imported with a model."""

    kind: Literal["bpe", "unigram", "word", "character", "sentencepiece"] = Field(
        default="bpe", description="byte-level BPE is lossless; sentencepiece comes with an imported model only"
    )


class TranslationTrainingConfig(TrainingConfig):
    """Training settings of translation.

    `links` or `links_from` teach an attention to point (Garg et al. 2019, arXiv:1909.02074); `r_drop`: Liang et al. 2021, arXiv:2106.14448.
    """

    r_drop: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="alpha of R-Drop: two passes with different dropout per update that shall predict the same; 5 in the paper; 0: one",
    )
    links: str | None = Field(
        default=None, description="word links of the training pairs that an attention learns, one line per pair, such as 0-0 2-1"
    )
    links_from: str | None = Field(default=None, description="run whose attention links the training pairs, instead of `links`")
    links_unit: Literal["word", "character"] = Field(
        default="word", description="what the numbers of the links count", json_schema_extra=unused_if(**NO_LINKS)
    )
    links_weight: float = Field(
        default=0.05, gt=0, le=MAX_RATE, description="weight of their loss", json_schema_extra=unused_if(**NO_LINKS)
    )
    links_layer: int | None = Field(
        default=None,
        ge=1,
        le=MAX_LAYERS,
        description="decoder layer whose attention learns them, from 1; null: the second to last",
        json_schema_extra=unused_if(**NO_LINKS),
    )
    links_head: int | None = Field(
        default=None, ge=1, le=MAX_SIZE, description="its head, from 1; null: the first", json_schema_extra=unused_if(**NO_LINKS)
    )
    links_step: Literal["predicts", "reads"] = Field(
        default="predicts",
        description="step whose attention links a target token: the one that predicts it, or the next, which reads it",
        json_schema_extra=unused_if(**NO_LINKS),
    )

    @model_validator(mode="after")
    def _check_links(self) -> Self:
        if self.links is not None and self.links_from is not None:
            raise ValueError("links and links_from: both name the links to learn; give one")
        return self

    @property
    def guided(self) -> bool:
        """Whether an attention learns links."""
        return self.links is not None or self.links_from is not None


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
    training: TranslationTrainingConfig = TranslationTrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="after")
    def _check_r_drop(self) -> Self:
        if self.training.r_drop:
            student = self.model.recurrent if isinstance(self.model, TransformerConfig) and self.model.decoder == "recurrent" else None
            name = "model" if student is None else "model.recurrent"
            attention = getattr(student or self.model, "attention", None)
            reasons = {
                "training.links": self.training.guided,
                "model.copy_attention": getattr(self.model, "copy_attention", False),
                f"{name}.attention.coverage_loss": getattr(attention, "coverage_loss", 0.0) > 0,
            }
            if found := [name for name, here in reasons.items() if here]:
                raise ValueError(f"training.r_drop: not with {found[0]}, whose loss has one pass; leave out one of them")
            rates = [name for name, _ in self.model if name.endswith("dropout")]
            if not any(getattr(self.model, name) for name in rates):
                raise ValueError(
                    f"training.r_drop: compares two passes with different dropout; set {' or '.join(f'model.{n}' for n in rates)}"
                )
        return self

    @property
    def second(self) -> SecondInputSettings | None:
        """Settings of the second input; None for a model of one input."""
        return self.model.second

    @property
    def pair_columns(self) -> tuple[int, ...]:
        """The allowed numbers of columns in a line of pairs: source, second input for models with two, and target."""
        return (2,) if self.second is None else (2, 3) if self.second.drop else (3,)

    @field_validator("model", mode="before")
    @classmethod
    def _completed(cls, model: Any, info: ValidationInfo) -> Any:
        # Recurrent by default; without a joint vocabulary no table can serve both sides.
        if not isinstance(model, Mapping):
            return model
        vocabulary = info.data.get("vocabulary")
        apart = {} if vocabulary is None or vocabulary.shared else {"share_embeddings": False}
        return {"type": RNNConfig().type, **apart, **model}
