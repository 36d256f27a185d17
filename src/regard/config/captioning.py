"""Configuration of captioning runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from regard.config.base import (
    MAX_COUNT,
    MAX_ENTRIES,
    MAX_LAYERS,
    MAX_LENGTH,
    MAX_RATE,
    MAX_SIZE,
    DecodingConfig,
    Frozen,
    NormalizerName,
    RunConfig,
    VocabularyConfig,
    unused_if,
)
from regard.config.images import GridAreaConfig, ImageConfig, Size, SmallCNNConfig


class CaptionDataConfig(Frozen):
    """Images and captions of a run. Paths are stored as given."""

    captions: str | None = Field(
        default=None, description="training captions: Karpathy or COCO JSON, Flickr tokens, .csv, .jsonl, image<TAB>caption"
    )
    images: str | None = Field(default=None, description="folder or tar of the images; absent: the folder of the captions")
    split: str | None = Field(default=None, description="part of the captions: a Karpathy split, or a file of image names")
    valid_captions: str | None = Field(default=None, description="validation captions; absent: `captions`, with `valid_split`")
    valid_images: str | None = Field(default=None, description="validation images; absent: `images`, or the folder of their captions")
    valid_split: str | None = Field(
        default=None, description="part of the captions to validate on; absent: `valid_size` images are held out"
    )
    valid_size: int = Field(
        default=500, ge=1, le=MAX_COUNT, description="images held out (at most a tenth) when there is no other validation data"
    )
    features: str | None = Field(default=None, description="precomputed features by image; with model.encoder.type=features")
    lowercase: bool = Field(default=True, description="lowercase the captions")
    max_length: int = Field(default=60, ge=1, le=MAX_LENGTH, description="longer captions, in tokens, are left out of training and counted")
    captions_per_image: int = Field(
        default=1,
        ge=1,
        le=MAX_COUNT,
        description="captions per image in one batch; the image is encoded once for all of them",
    )
    shuffle_images: bool = Field(default=False, description="image-blind control: captions are shuffled between images")
    cache: str | None = Field(default=None, description="folder of decoded images, to share between runs; absent: inside the run")


class TimmConfig(Frozen):
    """A timm model as a feature grid (`pip install '.[vision]'` in the clone)."""

    type: Literal["timm"] = "timm"
    name: str = Field(default="resnet50", min_length=1, description="model name in `timm.list_models()`")
    pretrained: bool = Field(default=True, description="download the weights when training starts; they become part of the run")
    level: int = Field(default=-1, ge=-MAX_LAYERS, le=MAX_LAYERS, description="index of the stage; -1: the last")
    learning_rate_factor: float = Field(
        default=0.0, ge=0, le=MAX_RATE, description="learning rate relative to the rest of the model; 0: frozen"
    )


class FeaturesConfig(Frozen):
    """No encoder: precomputed features (data.features)."""

    type: Literal["features"] = "features"
    grid: tuple[Size, Size] | None = Field(default=None, description="rows and columns; filled in from the file")
    dim: int | None = Field(default=None, ge=1, le=MAX_SIZE, description="size of a cell's features; filled in from the file")


ImageEncoderConfig = SmallCNNConfig | TimmConfig | FeaturesConfig


class HardConfig(Frozen):
    """Hard attention: one cell per word, and how the choice is trained (Xu et al. 2015, 4.1); see docs/mechanisms.md."""

    mode: Literal["sample", "argmax", "expected"] = Field(
        default="argmax", description="decoding: sample a cell, take the best, or average"
    )
    half_soft: float = Field(default=0.5, ge=0, le=1, description="probability of training an example on expected weights")
    half_soft_per: Literal["example", "batch"] = "example"
    soft_batches: int = Field(
        default=0, ge=0, le=MAX_COUNT, description="number of first batches trained on expected weights (soft attention)"
    )
    reward: Literal["sentence", "step", "return"] = Field(default="sentence", description="reward of a choice")
    scaling: Literal["paper", "code"] = Field(default="paper", description="of reward and entropy, as in the paper or in its authors' code")
    reward_weight: float | None = Field(default=None, ge=0, le=MAX_RATE, description="lambda_r; absent: the value of the scaling")
    entropy_weight: float | None = Field(default=None, ge=0, le=MAX_RATE, description="lambda_e; absent: the value of the scaling")


class CaptionerSettings(Frozen):
    """Settings of all captioners."""

    encoder: ImageEncoderConfig = Field(default=SmallCNNConfig(), discriminator="type", description="from the image to a grid of features")
    bag_of_words_weight: float = Field(
        default=0.0,
        ge=0,
        le=MAX_RATE,
        description="weight of a loss that trains the encoder: predict the words of a caption from the mean of the cells",
    )

    @field_validator("encoder", mode="before")
    @classmethod
    def _small_unless_said(cls, encoder: Any) -> Any:
        return {"type": SmallCNNConfig().type, **encoder} if isinstance(encoder, Mapping) else encoder

    @property
    def attends(self) -> bool:
        """Whether there is attention over the image: always."""
        return True

    @property
    def sequential(self) -> bool:
        """Whether layers take a step per position: those of Show, Attend and Tell."""
        return isinstance(self, ShowConfig)


class ShowConfig(CaptionerSettings):
    """Show, Attend and Tell (Xu et al. 2015): an LSTM that attends to the image before each word."""

    type: Literal["show"] = "show"
    embed_dim: int = Field(default=256, ge=1, le=MAX_SIZE)
    decoder_dim: int = Field(default=512, ge=1, le=MAX_SIZE)
    attention_dim: int = Field(default=256, ge=1, le=MAX_SIZE, description="width of the additive score")
    feature_dim: int = Field(default=256, ge=1, le=MAX_SIZE, description="D: features per cell, after a linear layer")
    attention: Literal["soft", "hard"] = "soft"
    normalizer: NormalizerName = Field(default="softmax", description="sparsemax, entmax15: many attention weights are exactly 0")
    hard: HardConfig = Field(default=HardConfig(), json_schema_extra=unused_if(attention=("soft",)))
    area: GridAreaConfig | None = Field(default=None, description="null: attend to single cells")
    query_state: Literal["previous", "current"] = Field(
        default="previous", description="previous: attend before reading the last word, as published; current: after it"
    )
    doubly_stochastic: float = Field(
        default=0.0, ge=0, le=MAX_RATE, description="lambda of the penalty on cells with too much or too little attention"
    )
    penalty: Literal["paper", "mean"] = Field(
        default="paper",
        description="scaling of that penalty: summed over cells, or their mean",
        json_schema_extra=unused_if(doubly_stochastic=(0.0,)),
    )
    dropout: float = Field(default=0.3, ge=0.0, lt=1.0, description="on embeddings, the state and before the output layer")


class CaptionTransformerConfig(CaptionerSettings):
    """Transformer captioner (Li et al. 2018, 4.3): image grid, encoder, decoder; with or without areas of the grid."""

    type: Literal["transformer"] = "transformer"
    embed_dim: int = Field(default=256, ge=1, le=MAX_SIZE)
    ff_dim: int = Field(default=1024, ge=1, le=MAX_SIZE, description="hidden size of the feed-forward layers")
    num_heads: int = Field(default=4, ge=1, le=MAX_SIZE)
    encoder_layers: int = Field(default=2, ge=0, le=MAX_LAYERS, description="layers of self-attention between cells; 0: none")
    decoder_layers: int = Field(default=2, ge=1, le=MAX_LAYERS)
    norm: Literal["post", "pre"] = Field(default="pre", description="LayerNorm after each residual (as published) or before each part")
    activation: Literal["relu", "swish", "gelu"] = Field(default="relu", description="inside the feed-forward layers")
    normalizer: NormalizerName = Field(default="softmax", description="sparsemax, entmax15: many attention weights are exactly 0")
    area: GridAreaConfig | None = Field(default=None, description="null: every layer attends to single cells")
    area_layers: int = Field(
        default=2,
        ge=1,
        le=MAX_LAYERS,
        description="areas in this many first layers of the encoder, and of the attention to the image",
        json_schema_extra=unused_if(area=(None,)),
    )
    tie_embeddings: bool = Field(default=True, description="output layer = embedding")
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0, description="on embeddings and residual branches")
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="on attention weights")
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="inside the feed-forward layers")
    alignment_layer: int | None = Field(
        default=None, ge=1, le=MAX_LAYERS, description="decoder layer whose attention is shown, from 1; null: the last"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.embed_dim % self.num_heads:
            raise ValueError(f"embed_dim ({self.embed_dim}) must be a multiple of num_heads ({self.num_heads})")
        if self.alignment_layer is not None and self.alignment_layer > self.decoder_layers:
            raise ValueError(f"alignment_layer ({self.alignment_layer}) must be one of the decoder_layers ({self.decoder_layers})")
        return self


CaptionModelConfig = ShowConfig | CaptionTransformerConfig


class CaptionVocabularyConfig(VocabularyConfig):
    """Tokenization of captions; trained on the run's captions."""

    kind: Literal["bpe", "unigram", "word", "character"] = Field(default="word", description="word: attention is shown word by word")
    size: int = Field(default=10000, ge=8, le=MAX_ENTRIES, description="max entries, special tokens included")


class CaptionDecodingConfig(DecodingConfig):
    """Decoding of captions."""

    max_length: int = Field(default=60, ge=1, le=MAX_LENGTH, description="max number of generated tokens")


class CaptioningConfig(RunConfig):
    """Settings of a captioning run."""

    task: Literal["captioning"] = "captioning"
    data: CaptionDataConfig = CaptionDataConfig()
    image: ImageConfig = ImageConfig()
    vocabulary: CaptionVocabularyConfig = CaptionVocabularyConfig()
    model: CaptionModelConfig = Field(default=ShowConfig(), discriminator="type")
    decoding: CaptionDecodingConfig = CaptionDecodingConfig()

    @field_validator("model", mode="before")
    @classmethod
    def _show_unless_said(cls, model: Any) -> Any:
        return {"type": ShowConfig().type, **model} if isinstance(model, Mapping) else model
