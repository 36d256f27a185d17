"""Configuration of language model runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from regard.config.base import MAX_COUNT, MAX_LAYERS, MAX_LENGTH, MAX_SIZE, Frozen, NormalizerName, RunConfig, TrainingConfig, unused_if

PARTS: dict[str, Literal[1, 2, 3]] = {"none": 1, "plain": 1, "key_value": 2, "key_value_predict": 3}
"""Number of parts into which each attention splits a hidden state; `ngram` splits it into `order - 1`."""
NO_ATTENTION: dict[str, tuple[str, ...]] = {"attention": ("none", "ngram")}
SEPARATE = {"data.context": ("separate",)}


class LanguageDataConfig(Frozen):
    """Text of a run. Paths are stored as given; `.gz` is supported.

    Example:
        >>> LanguageDataConfig(text="train.en").context
        'continuous'
    """

    text: str | None = Field(default=None, description="training text; a special token ends each line")
    valid_text: str | None = Field(default=None, description="validation text; absent: the last `valid_size` lines are held out")
    valid_size: int = Field(
        default=500, ge=1, le=MAX_COUNT, description="lines held out (at most a tenth) when there is no validation text"
    )
    context: Literal["continuous", "separate"] = Field(
        default="continuous",
        description="continuous: lines follow each other and the state is carried over; separate: each line is an example",
    )
    shuffle: bool = Field(
        default=False,
        description="continuous: put the lines in a new order for every epoch",
        json_schema_extra=unused_if(context=("separate",)),
    )


class LanguageModelConfig(Frozen):
    """LSTM language model, optionally with attention to its previous states, or an N-gram RNN (Daniluk et al. 2017).

    Example:
        >>> LanguageModelConfig().attends, LanguageModelConfig(attention="none").attends
        (True, False)
    """

    embed_dim: int = Field(default=256, ge=1, le=MAX_SIZE)
    hidden_size: int = Field(
        default=512,
        ge=1,
        le=MAX_SIZE,
        description="of each LSTM layer; split in 2 by key_value, 3 by key_value_predict, order - 1 by ngram",
    )
    num_layers: int = Field(default=1, ge=1, le=MAX_LAYERS)
    attention: Literal["none", "plain", "key_value", "key_value_predict", "ngram"] = Field(
        default="key_value",
        description="use of a hidden state by later steps: none, one vector as key and value, separate parts, or (ngram) one part per step",
    )
    normalizer: NormalizerName = Field(
        default="softmax",
        description="sparsemax, entmax15: many attention weights are exactly 0",
        json_schema_extra=unused_if(**NO_ATTENTION),
    )
    order: int = Field(
        default=4,
        ge=2,
        le=MAX_LAYERS,
        description="N of ngram: the last N - 1 states predict",
        json_schema_extra=unused_if(attention=("none", "plain", "key_value", "key_value_predict")),
    )
    window: int = Field(
        default=15, ge=1, le=MAX_SIZE, description="L: number of previous states to attend to", json_schema_extra=unused_if(**NO_ATTENTION)
    )
    tie_embeddings: bool = Field(default=True, description="output layer = embedding")
    dropout: float = Field(default=0.3, ge=0.0, lt=1.0, description="on embeddings, between layers and before the output layer")
    attention_dropout: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="on attention weights", json_schema_extra=unused_if(**NO_ATTENTION)
    )

    @model_validator(mode="after")
    def _check(self) -> LanguageModelConfig:
        if self.hidden_size % self.parts:
            raise ValueError(f"hidden_size ({self.hidden_size}) must be a multiple of {self.parts} for attention {self.attention}")
        return self

    @property
    def parts(self) -> int:
        """Number of parts of a hidden state."""
        return self.order - 1 if self.attention == "ngram" else PARTS[self.attention]

    @property
    def sequential(self) -> bool:
        """Whether layers take a step per position: always."""
        return True

    @property
    def attends(self) -> bool:
        """Whether there is attention to show."""
        return self.attention not in ("none", "ngram")


class LanguageTrainingConfig(TrainingConfig):
    """Training of a language model: an update takes `processes * gradient_accumulation_steps` batches, each of `streams * chunk_length`
    tokens.

    Example:
        >>> LanguageTrainingConfig().streams
        32
    """

    batch_tokens: int = Field(
        default=4096,
        ge=1,
        le=MAX_COUNT,
        description="separate: max padded tokens per batch",
        json_schema_extra=unused_if(**{"data.context": ("continuous",)}),
    )
    chunk_length: int = Field(
        default=35,
        ge=1,
        le=MAX_LENGTH,
        description="continuous: tokens per stream and batch; gradients go no further back",
        json_schema_extra=unused_if(**SEPARATE),
    )
    streams: int = Field(
        default=32, ge=1, le=MAX_COUNT, description="continuous: streams of the text per batch", json_schema_extra=unused_if(**SEPARATE)
    )
    stream_groups: int = Field(
        default=1,
        ge=1,
        le=MAX_COUNT,
        description="continuous: interleaved batches with separate streams; a multiple of the processes",
        json_schema_extra=unused_if(**SEPARATE),
    )


class LanguageConfig(RunConfig):
    """Settings of a language model run.

    Example:
        >>> LanguageConfig().task
        'lm'
    """

    task: Literal["lm"] = "lm"
    data: LanguageDataConfig = LanguageDataConfig()
    model: LanguageModelConfig = LanguageModelConfig()
    training: LanguageTrainingConfig = LanguageTrainingConfig()
