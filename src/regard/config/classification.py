"""Configurations of classification and entailment runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from regard.config.base import (
    MAX_COUNT,
    MAX_ENTRIES,
    MAX_LAYERS,
    MAX_LENGTH,
    MAX_RATE,
    MAX_SIZE,
    Frozen,
    Metric,
    NormalizerName,
    RunConfig,
    TrainingConfig,
    VocabularyConfig,
    unused_if,
)

NOT_STRUCTURED = {"pooling": ("max", "mean", "last")}


class LabelledDataConfig(Frozen):
    """Files of a run. Paths are stored as given; `.gz` is supported."""

    train: str | None = Field(default=None, description="labelled training examples: .jsonl, .tsv, .csv, or lines of a label and a text")
    valid: str | None = Field(default=None, description="validation examples; absent: `valid_size` training examples are held out")
    valid_size: int = Field(
        default=500, ge=1, le=MAX_COUNT, description="examples held out (at most a tenth) when there is no validation file"
    )
    max_length: int = Field(default=200, ge=1, le=MAX_LENGTH, description="longer texts, in tokens, are left out of training and counted")
    encoding: Literal["utf-8", "latin-1"] = Field(default="utf-8", description="of the files; some old collections are latin-1")
    vectors: str | None = Field(default=None, description="word vectors to start from: the text format of GloVe and word2vec")


class LabelledVocabularyConfig(VocabularyConfig):
    """Tokenization; trained on the run's training text."""

    kind: Literal["bpe", "unigram", "word", "character"] = Field(
        default="word", description="word needs tokenized punctuation; bpe takes raw text"
    )
    size: int = Field(default=20_000, ge=8, le=MAX_ENTRIES, description="max entries, special tokens included")
    lowercase: bool = Field(default=False, description="lowercase all text")


class LabelledTrainingConfig(TrainingConfig):
    """Training settings; validation accuracy selects the best weights."""

    epochs: int = Field(default=15, ge=1, le=MAX_COUNT)
    batch_tokens: int = Field(default=1000, ge=1, le=MAX_COUNT, description="max padded tokens per batch (of pairs: of the longer texts)")
    metric: Metric = Field(default="accuracy", description="metric that selects the best weights: accuracy, macro_f1 or loss")


class RecurrentEncoderConfig(Frozen):
    """Recurrent encoder."""

    type: Literal["rnn"] = "rnn"
    cell: Literal["lstm", "gru", "tanh"] = "lstm"
    hidden_size: int = Field(default=128, ge=1, le=MAX_SIZE, description="u: hidden size of each direction")
    num_layers: int = Field(default=1, ge=1, le=MAX_LAYERS)
    bidirectional: bool = True
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="between layers")


class TransformerEncoderSettings(Frozen):
    """Settings of all Transformer encoders; the width is model.embed_dim."""

    num_layers: int = Field(default=2, ge=1, le=MAX_LAYERS)
    num_heads: int = Field(default=4, ge=1, le=MAX_SIZE)
    ff_dim: int = Field(default=256, ge=1, le=MAX_SIZE, description="hidden size of the feed-forward layers")
    norm: Literal["post", "pre"] = Field(default="pre", description="LayerNorm after each residual (as published) or before each part")
    normalizer: NormalizerName = Field(default="softmax", description="sparsemax, entmax15: many attention weights are exactly 0")
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0, description="on residual branches, and inside the feed-forward layers")


class TransformerEncoderConfig(TransformerEncoderSettings):
    """Transformer encoder."""

    type: Literal["transformer"] = "transformer"


class CrossedEncoderConfig(TransformerEncoderSettings):
    """Encoder of a crossed co-attention network for two texts (Li et al. 2019): each text attends to the other."""

    type: Literal["crossed"] = "crossed"
    shared: bool = Field(default=True, description="one set of weights for both directions, for two texts of one kind")
    residual: Literal["own", "asking"] = Field(
        default="asking",
        description="add the output to the text of the queries (asking), or position by position to the text attended to (own)",
    )


class SentenceModelSettings(Frozen):
    """Settings of all classifiers."""

    embed_dim: int = Field(default=100, ge=1, le=MAX_SIZE)
    tune_embeddings: bool = Field(default=True, description="false: freeze the word vectors")
    pooling: Literal["structured", "max", "mean", "last"] = Field(default="structured", description="pooling of the states to one vector")
    hops: int = Field(
        default=4,
        ge=1,
        le=MAX_LAYERS,
        description="r: weighted sums of structured self-attention",
        json_schema_extra=unused_if(**NOT_STRUCTURED),
    )
    attention_dim: int = Field(
        default=64,
        ge=1,
        le=MAX_SIZE,
        description="d_a: width of the hidden layer of structured self-attention",
        json_schema_extra=unused_if(**NOT_STRUCTURED),
    )
    normalizer: NormalizerName = Field(
        default="softmax",
        description="structured pooling; sparsemax, entmax15: many weights are exactly 0",
        json_schema_extra=unused_if(**NOT_STRUCTURED),
    )
    penalty: float = Field(
        default=0.0,
        ge=0,
        le=MAX_RATE,
        description="coefficient of ||A A^T - I||_F^2, which keeps hops apart",
        json_schema_extra=unused_if(**NOT_STRUCTURED),
    )
    penalty_reduction: Literal["sum", "mean"] = Field(
        default="mean", description="mean: the authors' code; sum: as published, r^2 times", json_schema_extra=unused_if(penalty=(0.0,))
    )
    mlp_dim: int | None = Field(default=128, ge=1, le=MAX_SIZE, description="hidden units of the output layers; null: one linear layer")
    dropout: float = Field(default=0.5, ge=0.0, lt=1.0, description="before and after the hidden units of the last layers")
    embed_dropout: float = Field(default=0.5, ge=0.0, lt=1.0, description="on embedded words")
    word_dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="probability to replace a word by the unknown token in training")
    class_weights: Literal["none", "balanced"] | dict[str, Annotated[float, Field(ge=0.0, le=MAX_RATE)]] = Field(
        default="none", description="balanced: rare labels weigh more; or one number per label"
    )

    @field_validator("encoder", mode="before", check_fields=False)
    @classmethod
    def _recurrent_unless_said(cls, encoder: Any) -> Any:
        return {"type": RecurrentEncoderConfig().type, **encoder} if isinstance(encoder, Mapping) else encoder

    @model_validator(mode="after")
    def _check(self) -> Self:
        encoder = getattr(self, "encoder", None)  # declared by the models of each task
        if isinstance(encoder, TransformerEncoderSettings) and self.embed_dim % encoder.num_heads:
            raise ValueError(f"embed_dim ({self.embed_dim}) must be a multiple of encoder.num_heads ({encoder.num_heads})")
        return self

    @property
    def sequential(self) -> bool:
        """Whether layers take a step per position."""
        return isinstance(getattr(self, "encoder", None), RecurrentEncoderConfig)

    @property
    def attends(self) -> bool:
        """Whether there is attention to show: that of its pooling, or of its layers."""
        return self.pooling != "last" or not isinstance(getattr(self, "encoder", None), RecurrentEncoderConfig)


class ClassifierConfig(SentenceModelSettings):
    """An encoder, a pooling, and a multi-layer perceptron."""

    encoder: RecurrentEncoderConfig | TransformerEncoderConfig = Field(default=RecurrentEncoderConfig(), discriminator="type")


class EntailmentModelConfig(SentenceModelSettings):
    """One encoder for premise and hypothesis, a pooling, their fusion, and a multi-layer perceptron."""

    encoder: RecurrentEncoderConfig | TransformerEncoderConfig | CrossedEncoderConfig = Field(
        default=RecurrentEncoderConfig(), discriminator="type"
    )
    fusion: Literal["gated", "features"] = Field(
        default="gated", description="gated: (M_p W_p) * (M_h W_h), Lin et al. 2017; features: [p; h; |p - h|; p * h]"
    )
    fusion_dim: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SIZE,
        description="width of a gated hop; null: that of the states",
        json_schema_extra=unused_if(fusion=("features",)),
    )


class ClassificationConfig(RunConfig):
    """Settings of a classification run."""

    task: Literal["classification"] = "classification"
    data: LabelledDataConfig = LabelledDataConfig()
    vocabulary: LabelledVocabularyConfig = LabelledVocabularyConfig()
    model: ClassifierConfig = ClassifierConfig()
    training: LabelledTrainingConfig = LabelledTrainingConfig()


class EntailmentConfig(RunConfig):
    """Settings of an entailment run."""

    task: Literal["entailment"] = "entailment"
    data: LabelledDataConfig = LabelledDataConfig()
    vocabulary: LabelledVocabularyConfig = LabelledVocabularyConfig()
    model: EntailmentModelConfig = EntailmentModelConfig()
    training: LabelledTrainingConfig = LabelledTrainingConfig()
