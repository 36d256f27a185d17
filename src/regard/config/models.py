"""Configurations of encoder-decoders: recurrent, Transformer, crossed co-attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from regard.config.base import MAX_LAYERS, MAX_LENGTH, MAX_RATE, MAX_SIZE, Frozen, NormalizerName, unused_if
from regard.config.images import GridAreaConfig, KeyMode, LayeredImageConfig, SecondImageConfig

ScoreName = Literal["additive", "concat", "dot", "scaled_dot", "general", "location", "cosine"]
# Their queries and keys must have equal sizes.
SAME_SIZE_SCORES: frozenset[ScoreName] = frozenset({"dot", "scaled_dot", "cosine"})


class AreaSettings(Frozen):
    """Area attention (Li et al. 2018): spans of tokens instead of single ones."""

    max_area: int = Field(default=5, ge=1, le=MAX_SIZE, description="A: an area is 1 to A adjacent tokens")
    key_mode: KeyMode = Field(default="mean", description="mean: Eq. 3; features: Eq. 9, learned; the others as in the authors' code")
    value_mode: Literal["sum", "mean", "max"] = Field(default="sum", description="sum: Eq. 4")
    top_k: int | None = Field(default=None, ge=1, le=MAX_LENGTH, description="attend to the best areas of each query only")
    temperature: float = Field(default=1.0, gt=0, le=MAX_RATE, description="scores of areas are divided by it")


class AreaConfig(AreaSettings):
    """Area attention in a Transformer's first layers, in each of their attentions."""

    layers: int = Field(
        default=2, ge=1, le=MAX_LAYERS, description="areas in this many first layers of encoder and decoder; more than there are: all"
    )


class AttentionConfig(Frozen):
    """The decoder's attention over the source."""

    score: ScoreName = Field(default="additive", description="the score function")
    num_heads: int | None = Field(
        default=None, ge=1, le=MAX_SIZE, description="null: one, without projections; a number: multi-head attention"
    )
    area: AreaSettings | None = Field(default=None, description="null: single source tokens")
    normalizer: NormalizerName = Field(default="softmax", description="sparsemax, entmax15: many attention weights are exactly 0")
    query_state: Literal["previous", "current"] = Field(
        default="previous", description="previous: Bahdanau, attend before the cell; current: Luong, attend after it"
    )
    attention_dim: int = Field(
        default=256,
        ge=1,
        le=MAX_SIZE,
        description="width of additive and concat scores",
        json_schema_extra=unused_if(**{"score": ("dot", "scaled_dot", "general", "location", "cosine"), "model.second": (None,)}),
    )
    window: Literal["global", "local_m", "local_p"] = Field(
        default="global", description="all positions, or Luong's monotonic or predicted window"
    )
    radius: int = Field(
        default=10, ge=1, le=MAX_SIZE, description="D: a local window spans 2D+1 positions", json_schema_extra=unused_if(window=("global",))
    )
    input_feeding: bool = Field(default=False, description="feed the last attentional state to the next step (current only)")
    max_source_length: int = Field(
        default=200,
        ge=1,
        le=MAX_SIZE,
        description="positions a location score can reach",
        json_schema_extra=unused_if(score=("additive", "concat", "dot", "scaled_dot", "general", "cosine")),
    )
    coverage: bool = Field(default=False, description="score by the attention of all earlier steps, too (additive only; See et al. 2017)")
    coverage_loss: float = Field(default=0.0, ge=0, le=MAX_RATE, description="lambda of the loss on attending twice; 1 in the paper")

    @model_validator(mode="after")
    def _check(self) -> AttentionConfig:
        if self.input_feeding and self.query_state == "previous":
            raise ValueError("input_feeding needs query_state: current (with previous, the context already enters the cell)")
        if self.num_heads is not None and (self.score, self.window) != ("scaled_dot", "global"):
            raise ValueError(f"num_heads needs score: scaled_dot and window: global, found {self.score} and {self.window}")
        if self.coverage and (self.score, self.num_heads, self.area) != ("additive", None, None):
            raise ValueError(f"coverage needs score: additive, without num_heads and area; found score {self.score}")
        if self.coverage_loss and not self.coverage:
            raise ValueError("coverage_loss needs coverage: true, so that the attention can see what it attended to")
        if self.area is not None and self.score == "location":
            raise ValueError("area: a location score has no keys that an area could be made of")
        return self


IMAGES = "null: text; else images, which `data.second_source` names (size, encoder.channels, area.height ...)"
OWN_AREAS = "areas of a second text; null: as in the first input"


class SecondInputSettings(Frozen):
    """A second input beside the source: another language, a hint, or an image (`data.second_source`)."""

    image: SecondImageConfig | None = Field(default=None, description=IMAGES)
    area: AreaSettings | None = Field(default=None, description=OWN_AREAS)
    drop: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="probability of hiding one of the two inputs in training; above 0 either may be missing when the model is used",
    )

    def own_areas(self, first: AreaSettings | None) -> AreaSettings | GridAreaConfig | None:
        """Return the areas of the second input, where the first has `first`."""
        return self.image.area if self.image is not None else self.area or first


class RecurrentSecondConfig(SecondInputSettings):
    """How a Transformer or a recurrent model combines two inputs.

    - joined: one sequence of both, with segment embeddings.
    - serial, parallel, flat, hierarchical: two encoders, and a decoder that attends to one after the other, to both and adds the results,
      to all states as one source, or to the result from each (Libovický et al. 2018). A recurrent decoder concatenates the two contexts
      instead of adding them (Zoph and Knight 2016; Libovický and Helcl 2017).
    """

    kind: Literal["joined", "serial", "parallel", "flat", "hierarchical"] = Field(
        default="serial", description="one sequence of both, or two encoders and how the decoder combines them"
    )


class SecondInputConfig(RecurrentSecondConfig):
    """The same for a Transformer, whose areas are in its first layers."""

    image: LayeredImageConfig | None = Field(default=None, description=IMAGES)
    area: AreaConfig | None = Field(default=None, description=OWN_AREAS)


class RNNConfig(Frozen):
    """Recurrent encoder-decoder: without attention, additive (Bahdanau) or multiplicative (Luong).

    `init` selects the initialization:

    - scaled: words enter the cells with variance 1 (an embedding from N(0, 1/E) times sqrt(E)), recurrent matrices are orthogonal, the
      other weights of gates uniform in 1 / sqrt(H), their biases zero but for an LSTM's forget gate, 1. Other layers start as
      their classes say.
    - bahdanau: embeddings and weights from N(0, 0.01^2), recurrent matrices orthogonal, the score's two matrices from N(0, 0.001^2), its
      vector and all biases zero (Bahdanau et al. 2015, B.1).
    - luong: embeddings, weights and biases uniform in [-0.1, 0.1] (Luong et al. 2015, section 4.1).

    The last two use embeddings without the factor sqrt(E).
    """

    type: Literal["rnn"] = "rnn"
    second: RecurrentSecondConfig | None = Field(default=None, description="null: one input")
    cell: Literal["gru", "lstm", "tanh"] = "gru"
    embed_dim: int = Field(default=256, ge=1, le=MAX_SIZE)
    encoder_dim: int = Field(default=256, ge=1, le=MAX_SIZE, description="hidden size of each encoder direction")
    encoder_layers: int = Field(default=1, ge=1, le=MAX_LAYERS)
    bidirectional: bool = True
    reverse_source: bool = Field(
        default=False, description="the encoder reads the source from its end (Sutskever et al. 2014); needs bidirectional: false"
    )
    decoder_dim: int = Field(default=512, ge=1, le=MAX_SIZE)
    decoder_layers: int = Field(default=1, ge=1, le=MAX_LAYERS)
    attention: AttentionConfig | None = Field(default=AttentionConfig(), description="null: a fixed context vector")
    readout: Literal["deep", "tanh"] = Field(default="deep", description="deep output with maxout (Bahdanau) or tanh(W[c;h]) (Luong)")
    readout_dim: int = Field(default=256, ge=1, le=MAX_SIZE, description="input size of the output layer")
    tie_embeddings: bool = Field(default=False, description="output layer = target embedding; needs readout_dim = embed_dim")
    share_embeddings: bool = Field(default=False, description="source embedding = target embedding; needs a shared vocabulary")
    init: Literal["scaled", "bahdanau", "luong"] = Field(
        default="scaled", description="initialization; bahdanau, luong: as in the papers, without sqrt(E) on embeddings"
    )
    copy_attention: bool = Field(default=False, description="pointer-generator: also copy source words, unknown ones too (See et al. 2017)")
    dropout: float = Field(default=0.2, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _check(self) -> RNNConfig:
        if self.tie_embeddings and self.readout_dim != self.embed_dim:
            raise ValueError(f"tie_embeddings needs readout_dim ({self.readout_dim}) = embed_dim ({self.embed_dim})")
        if self.reverse_source and self.bidirectional:
            raise ValueError("reverse_source needs bidirectional: false (both directions read the source either way)")
        if self.second is not None:
            self._check_second(self.second)
        if self.copy_attention and self.attention is None:
            raise ValueError("copy_attention: copies by attention weights, but attention is null")
        _refuse_copying(self.copy_attention, self.second)
        return self

    def _check_second(self, second: RecurrentSecondConfig) -> None:
        attention = self.attention
        if attention is None and second.kind not in ("joined", "flat"):
            raise ValueError(f"second.kind {second.kind} combines two attentions, but attention is null; joined and flat need none")
        if attention is None and second.image is not None and second.kind == "flat":
            raise ValueError("second.image: the decoder attends to the cells, but attention is null; second.kind joined needs none")
        if attention is None and (second.area or (second.image and second.image.area)):
            raise ValueError("second.area: attention is null")
        if attention is None:
            return
        _check_areas(attention.area, second)
        if attention.coverage:
            raise ValueError("attention.coverage: of one source, but second is set")
        if second.image is not None and attention.window != "global":
            raise ValueError(f"attention.window {attention.window}: of positions in a sentence, but second.image is a grid")
        if attention.score == "location" and second.own_areas(attention.area) is not None:
            raise ValueError("second.area: a location score has no keys that an area could be made of")

    @property
    def sequential(self) -> bool:
        """Whether layers take a step per position: always."""
        return True

    @property
    def attends(self) -> bool:
        """Whether there is attention over the source to show."""
        return self.attention is not None

    @property
    def decoder_attentions(self) -> int:
        """Number of layers with attention over the source: 0, a recurrent decoder has one attention, without layers."""
        return 0


class TransformerSettings(Frozen):
    """Settings of all Transformer models."""

    embed_dim: int = Field(default=256, ge=1, le=MAX_SIZE)
    ff_dim: int = Field(default=1024, ge=1, le=MAX_SIZE, description="hidden size of the feed-forward layers")
    num_heads: int = Field(default=4, ge=1, le=MAX_SIZE)
    encoder_layers: int = Field(default=3, ge=1, le=MAX_LAYERS)
    decoder_layers: int = Field(default=3, ge=1, le=MAX_LAYERS, json_schema_extra=unused_if(decoder=("recurrent",)))
    norm: Literal["post", "pre"] = Field(default="post", description="LayerNorm after each residual (as published) or before each part")
    norm_eps: float = Field(default=1e-5, gt=0, le=MAX_RATE, description="epsilon of LayerNorm")
    activation: Literal["relu", "swish", "gelu"] = Field(default="relu", description="inside the feed-forward layers")
    normalizer: NormalizerName = Field(default="softmax", description="sparsemax, entmax15: many attention weights are exactly 0")
    positions: Literal["paper", "fairseq"] = Field(default="paper", description="wavelengths and first position of the sines")
    output_bias: bool = Field(default=False, description="bias of the output layer")
    area: AreaConfig | None = Field(default=None, description="null: every layer attends to single tokens")
    tie_embeddings: bool = Field(default=True, description="output layer = target embedding")
    share_embeddings: bool = Field(default=True, description="source embedding = target embedding; absent: where the vocabulary is shared")
    copy_attention: bool = Field(default=False, description="pointer-generator: also copy source words, unknown ones too (See et al. 2017)")
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

    @property
    def sequential(self) -> bool:
        """Whether layers take a step per position."""
        return False

    @property
    def attends(self) -> bool:
        """Whether there is attention over the source to show: always."""
        return True

    @property
    def decoder_attentions(self) -> int:
        """Number of layers with attention over the source."""
        return self.decoder_layers


class RecurrentDecoderAttentionConfig(AttentionConfig):
    """The attention of a recurrent decoder on a Transformer's encoder: as in `type: rnn`, but after the cell by default."""

    query_state: Literal["previous", "current"] = Field(
        default="current", description="previous: Bahdanau, attend before the cell; current: Luong, attend after it"
    )


class RecurrentDecoderConfig(Frozen):
    """A recurrent decoder on a Transformer's encoder: one attention, and a step of constant cost."""

    cell: Literal["gru", "lstm", "tanh"] = "gru"
    dim: int = Field(default=256, ge=1, le=MAX_SIZE, description="hidden size of the decoder")
    layers: int = Field(default=1, ge=1, le=MAX_LAYERS)
    attention: RecurrentDecoderAttentionConfig = Field(default=RecurrentDecoderAttentionConfig(), description="over the encoder's states")
    readout: Literal["deep", "tanh"] = Field(default="tanh", description="as in `type: rnn`; its size is `embed_dim`")


class TransformerConfig(TransformerSettings):
    """Transformer (Vaswani et al. 2017), with or without area attention; or its encoder with a recurrent decoder (`decoder: recurrent`)."""

    type: Literal["transformer"] = "transformer"
    second: SecondInputConfig | None = Field(default=None, description="null: one input")
    decoder: Literal["transformer", "recurrent"] = Field(
        default="transformer", description="recurrent: a decoder of `recurrent` settings instead of `decoder_layers` layers"
    )
    recurrent: RecurrentDecoderConfig = Field(
        default=RecurrentDecoderConfig(), description="of `decoder: recurrent`", json_schema_extra=unused_if(decoder=("transformer",))
    )

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        _check_areas(self.area, self.second)
        _refuse_copying(self.copy_attention, self.second)
        if self.decoder == "recurrent" and self.second is not None:
            raise ValueError("decoder: recurrent reads one input; `type: rnn` reads two")
        if self.decoder == "recurrent" and self.alignment_layer is not None:
            raise ValueError("alignment_layer: a recurrent decoder has one attention; leave it null")
        if self.decoder == "recurrent":
            self._check_recurrent()
        return self

    def _check_recurrent(self) -> None:
        own, heads = self.recurrent, self.recurrent.attention.num_heads
        if heads is not None and own.dim % heads:
            raise ValueError(f"recurrent.dim ({own.dim}) must be a multiple of recurrent.attention.num_heads ({heads})")
        if heads is None and own.attention.score in SAME_SIZE_SCORES and own.dim != self.embed_dim:
            raise ValueError(
                f"recurrent.attention.score {own.attention.score} needs recurrent.dim ({own.dim}) = embed_dim ({self.embed_dim})"
            )

    @property
    def sequential(self) -> bool:
        """Whether layers take a step per position: those of a recurrent decoder."""
        return self.decoder == "recurrent"

    @property
    def decoder_attentions(self) -> int:
        """Number of layers with attention over the source, 0 for the one attention of a recurrent decoder."""
        return 0 if self.decoder == "recurrent" else self.decoder_layers


class CrossedInputConfig(SecondInputSettings):
    """The second input of a crossed co-attention network."""

    image: LayeredImageConfig | None = Field(default=None, description=IMAGES)
    area: AreaConfig | None = Field(default=None, description=OWN_AREAS)
    kind: Literal["crossed"] = "crossed"


class CrossedConfig(TransformerSettings):
    """Crossed co-attention network (Li et al. 2019): a Transformer with two encoder branches that attend to each other."""

    type: Literal["crossed"] = "crossed"
    second: CrossedInputConfig | None = Field(default=None, description="null: both branches read the source")
    swap_probability: float = Field(default=0.1, ge=0, le=1, description="probability of two swapped tokens, for each sentence and branch")
    residual: Literal["own", "asking"] = Field(
        default="own",
        description="add the output of a branch to its own stream, or to the stream of its queries (asking); two inputs: asking",
    )

    @model_validator(mode="before")
    @classmethod
    def _asking(cls, values: Any) -> Any:
        # Two inputs differ in length, so a context can only go to the querying branch.
        two = isinstance(values, Mapping) and values.get("second") is not None
        return {"residual": "asking", **values} if two else values

    @model_validator(mode="after")
    def _check_residual(self) -> Self:
        if self.second is not None and self.residual == "own":
            raise ValueError("residual: own needs two inputs of one length; with `second` it is asking")
        _check_areas(self.area, self.second)
        _refuse_copying(self.copy_attention, self.second)
        if self.copy_attention and self.swap_probability:
            raise ValueError(f"copy_attention needs swap_probability 0, found {self.swap_probability}: it would copy neighbours")
        return self


def _refuse_copying(copying: bool, second: SecondInputSettings | None) -> None:
    if copying and second is not None:
        raise ValueError("copy_attention: copies from one source, but second is set")


def _check_areas(area: AreaSettings | None, second: RecurrentSecondConfig | CrossedInputConfig | None) -> None:
    if second is None:
        return
    image, own = second.image, second.area
    if image is not None and own is not None:
        raise ValueError("second.area: runs of tokens, but the second input is an image; second.image.area are rectangles of its cells")
    if second.kind not in ("joined", "flat"):
        return
    if own is not None:
        raise ValueError("second.area: second.kind joined and flat attend to both inputs as one sequence, with the areas of the first")
    if image is not None and (area is not None or image.area is not None):
        raise ValueError("area: second.kind joined and flat mix words and cells in one sequence, without runs or rectangles")


ModelConfig = RNNConfig | TransformerConfig | CrossedConfig
