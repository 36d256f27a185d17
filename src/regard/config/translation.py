"""What a translation run is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from regard.config.base import DecodingConfig, Frozen, RunConfig
from regard.config.models import ModelConfig, RNNConfig


class DataConfig(Frozen):
    """Which files a run reads. Paths are kept as given; `.gz` is read as it is."""

    source: str | None = Field(default=None, description="training source sentences, one a line; or one .jsonl / .tsv file of pairs")
    target: str | None = Field(default=None, description="training target sentences, line by line with `source`")
    valid_source: str | None = Field(default=None, description="validation sources; absent: `held_out` training pairs are held out")
    valid_target: str | None = Field(default=None, description="validation targets")
    held_out: int = Field(default=500, ge=1, description="pairs held out (at most a tenth) when there are no validation files")
    max_length: int = Field(default=200, ge=1, description="longer sequences, in tokens, are left out of training and counted")
    sharded: bool = Field(default=False, description="for text larger than memory: `source` and `target` name files like train-*.en")
    block: int = Field(default=65536, ge=1, description="sharded: pairs that are read, mixed and batched together")
    workers: int = Field(default=1, ge=0, le=256, description="sharded: processes that make tokens of the next blocks; 0: none, it waits")
    vocabulary_pairs: int = Field(default=1_000_000, ge=1, description="sharded: about so many pairs make the vocabulary")


class TranslationConfig(RunConfig):
    """All that a translation run is."""

    task: Literal["translation"] = "translation"
    data: DataConfig = DataConfig()
    model: ModelConfig = Field(default=RNNConfig(), discriminator="type")
    decoding: DecodingConfig = DecodingConfig()

    @field_validator("model", mode="before")
    @classmethod
    def _completed(cls, model: Any, info: ValidationInfo) -> Any:
        # Recurrent unless another is said; without one vocabulary no table can be of both sides.
        if not isinstance(model, Mapping):
            return model
        vocabulary = info.data.get("vocabulary")
        apart = {} if vocabulary is None or vocabulary.shared else {"share_embeddings": False}
        return {"type": RNNConfig().type, **apart, **model}
