"""Build models from configurations: one function per family, and one for runs of any task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from torch import nn

from regard import ops
from regard.attention import (
    AdditiveScore,
    Areas,
    Attention,
    ConcatScore,
    CosineScore,
    CrossedAttention,
    DotScore,
    GeneralScore,
    LocationScore,
    MonotonicWindow,
    MultiHeadAttention,
    PredictiveWindow,
)
from regard.attention.scores import ScoreModule
from regard.attention.windows import WindowModule
from regard.config import (
    AreaSettings,
    AttentionConfig,
    CaptioningConfig,
    ClassificationConfig,
    CrossedConfig,
    EntailmentConfig,
    LanguageConfig,
    ModelConfig,
    RNNConfig,
    RunConfig,
    TransformerConfig,
    TransformerSettings,
    TranslationConfig,
)
from regard.config.images import GridAreaConfig, ImageAreaConfig, SecondImageConfig
from regard.config.models import SAME_SIZE_SCORES, AreaConfig, SecondInputSettings
from regard.errors import ConfigError
from regard.models.captioning import build_captioner
from regard.models.classifier import build_classifier
from regard.models.crossed import CrossedEncoder, CrossedEncoderLayer, CrossedSourceAttention, CrossedTransformer
from regard.models.embedding import ScaledEmbedding
from regard.models.encoder_decoder import EncoderDecoder, RecurrentEncoderDecoder
from regard.models.image_embedding import ImageEmbedding
from regard.models.image_encoder import build_image_encoder
from regard.models.initialization import initialize
from regard.models.language_model import build_language_model
from regard.models.pointer_generator import PointerGenerator
from regard.models.readout import DeepReadout, Readout, TanhReadout
from regard.models.rnn_attention import DecoderAttention, TwoAttentions
from regard.models.rnn_cells import RecurrentStack
from regard.models.rnn_decoder import Bridge, RecurrentDecoder
from regard.models.rnn_encoder import RecurrentEncoder
from regard.models.rnn_two_inputs import TwoInputRecurrent
from regard.models.transformer import Transformer
from regard.models.transformer_decoder import Decoder
from regard.models.transformer_layers import DecoderLayer, Encoder, EncoderLayer, FeedForward, SourceAttention
from regard.models.transformer_recurrent import TransformerRecurrent
from regard.models.two_inputs import (
    Corruption,
    JoinedEncoder,
    SerialDecoderLayer,
    TwoEncoders,
    TwoInputTransformer,
    TwoSourceAttention,
)


def build_for_run(config: RunConfig, *, source_size: int, target_size: int, classes: int, unknown: int) -> nn.Module:
    """Build the model of a run, with new weights; downloads none for a timm encoder.

    Args:
        config: configuration of a run of any task.
        source_size: entries of the source vocabulary, if there are two.
        target_size: entries of the target vocabulary, or of the only one.
        classes: number of labels, if any.
        unknown: id of the unknown word.

    Raises:
        ConfigError: invalid settings, or a task without a model.

    Example:
        >>> model = build_for_run(TranslationConfig(), source_size=11, target_size=13, classes=2, unknown=1)
        >>> model.output.weight.shape[0]
        13
    """
    match config:
        case CaptioningConfig():
            return build_captioner(config.model, image_size=config.image.size, vocab_size=target_size)
        case ClassificationConfig() | EntailmentConfig():
            return build_classifier(config.model, vocab_size=target_size, classes=classes, unknown=unknown)
        case LanguageConfig():
            return build_language_model(config.model, vocab_size=target_size)
        case TranslationConfig():
            return build(config.model, source_size=source_size, target_size=target_size)
    raise ConfigError(f"{config.task}: no model to build")


AnyTransformer = TypeVar("AnyTransformer", Transformer, TransformerRecurrent)


def build(config: ModelConfig, *, source_size: int, target_size: int, second_size: int | None = None) -> EncoderDecoder[Any]:
    """Build the configured model, with new weights.

    Args:
        config: the model part of a run's configuration.
        source_size: entries of the source vocabulary.
        target_size: entries of the target vocabulary.
        second_size: size of the second input's vocabulary, for a model of two inputs; None: `source_size`.

    Returns:
        The model, in training mode; a `TransformerRecurrent` for `decoder: recurrent`.

    Raises:
        ConfigError: incompatible sizes.

    Example:
        >>> model = build(RNNConfig(decoder_dim=32), source_size=11, target_size=13)
        >>> model.output.weight.shape
        torch.Size([13, 256])
    """
    if config.share_embeddings and source_size != target_size:
        raise ConfigError(f"model.share_embeddings: needs vocabulary.shared; the vocabularies have {source_size} and {target_size} entries")
    if config.copy_attention and source_size != target_size:
        raise ConfigError(f"model.copy_attention: needs vocabulary.shared; the vocabularies have {source_size} and {target_size} entries")
    model = _model(config, (source_size, source_size if second_size is None else second_size), target_size)
    return PointerGenerator(model) if config.copy_attention else model


def _model(config: ModelConfig, source_sizes: tuple[int, int], target_size: int) -> EncoderDecoder[Any]:
    match config:
        case RNNConfig():
            return _recurrent(config, source_sizes, target_size)
        case TransformerConfig() | CrossedConfig() if config.second is not None:
            return _settled(_two_inputs(config, source_sizes, target_size), config)
        case TransformerConfig() if config.decoder == "recurrent":
            return _settled(_transformer_recurrent(config, source_sizes[0], target_size), config)
        case TransformerConfig():
            return _settled(_transformer(config, source_sizes[0], target_size), config)
        case CrossedConfig():
            return _settled(_crossed(config, source_sizes[0], target_size), config)


def _settled(model: AnyTransformer, config: TransformerSettings) -> AnyTransformer:
    model.positions = config.positions
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = config.norm_eps
    return model


def _recurrent_encoder(config: RNNConfig) -> RecurrentEncoder:
    return RecurrentEncoder(
        config.cell,
        config.embed_dim,
        config.encoder_dim,
        num_layers=config.encoder_layers,
        bidirectional=config.bidirectional,
        dropout=config.dropout,
        reverse=config.reverse_source,
    )


def _recurrent(config: RNNConfig, source_sizes: tuple[int, int], target_size: int) -> RecurrentEncoderDecoder:
    encoder, source_size = _recurrent_encoder(config), source_sizes[0]
    # The papers' models use unscaled embeddings: a factor would change their distribution and the size of updates.
    embedding = ScaledEmbedding if config.init == "scaled" else nn.Embedding
    target_embedding = embedding(target_size, config.embed_dim)
    source_embedding = target_embedding if config.share_embeddings else embedding(source_size, config.embed_dim)
    attention = config.attention
    attend_first = attention is not None and attention.query_state == "previous"
    feeding = attention is not None and attention.input_feeding
    context_dim = _context_dim(config, encoder.output_dim)
    stack = RecurrentStack(
        config.cell,
        config.embed_dim,
        config.decoder_dim,
        num_layers=config.decoder_layers,
        extra_dim=config.readout_dim if feeding else context_dim if attend_first or attention is None else 0,
        dropout=config.dropout,
    )
    decoder = RecurrentDecoder(
        target_embedding,
        stack,
        _readout(config, context_dim),
        attention=_decoder_attention(config, encoder.output_dim),
        attend_first=attend_first,
        input_feeding=feeding,
        dropout=config.dropout,
    )
    bridge = Bridge(
        config.cell,
        config.encoder_dim,
        config.encoder_layers,
        directions=encoder.directions,
        decoder_dim=config.decoder_dim,
        decoder_layers=config.decoder_layers,
    )
    output = ops.Linear(config.readout_dim, target_size)
    nn.init.zeros_(output.bias)
    if config.tie_embeddings:
        output.weight = target_embedding.weight
    if config.second is None:
        weight = 0.0 if attention is None else attention.coverage_loss
        parts = (source_embedding, encoder, bridge, decoder, output)
        model = RecurrentEncoderDecoder(*parts, dropout=config.dropout, coverage_loss=weight)
    else:
        joined, image = config.second.kind == "joined", config.second.image
        if image is not None:
            second = _image_embedding(image, config.embed_dim if joined else encoder.output_dim)
        else:
            second = target_embedding if config.share_embeddings else embedding(source_sizes[1], config.embed_dim)
        encoders = (encoder,) if joined else (encoder, _recurrent_encoder(config) if image is None else None)
        parts = ((source_embedding, second), encoders, bridge, decoder, output)
        model = TwoInputRecurrent(*parts, dropout=config.dropout, drop=config.second.drop)
    initialize(model, config.init)
    return model


def _context_dim(config: RNNConfig, states_dim: int) -> int:
    # Several heads give a context of the query's size; two attentions side by side, two contexts.
    one = states_dim if config.attention is None or config.attention.num_heads is None else config.decoder_dim
    return 2 * one if config.second is not None and config.second.kind in ("serial", "parallel") else one


def _decoder_attention(config: RNNConfig, states_dim: int) -> DecoderAttention | None:
    attention = config.attention
    if attention is None:
        return None
    if config.second is None or config.second.kind in ("flat", "joined"):
        return _attention(attention, config.decoder_dim, states_dim)
    left, right = (_attention(attention, config.decoder_dim, states_dim, second) for second in (None, config.second))
    one = states_dim if attention.num_heads is None else config.decoder_dim
    return TwoAttentions(left, right, config.decoder_dim, one, combine=config.second.kind, attention_dim=attention.attention_dim)


def _readout(config: RNNConfig, context_dim: int) -> Readout:
    match config.readout:
        case "deep":
            return DeepReadout(config.decoder_dim, config.embed_dim, context_dim, config.readout_dim)
        case "tanh":
            return TanhReadout(config.decoder_dim, context_dim, config.readout_dim)


def _attention(
    config: AttentionConfig, query_dim: int, key_dim: int, second: SecondInputSettings | None = None
) -> Attention | MultiHeadAttention:
    area = config.area if second is None else second.own_areas(config.area)
    if config.num_heads is None:
        return Attention(
            _score(config, query_dim, key_dim),
            window=_window(config, query_dim),
            areas=_areas(area, key_dim, _grid(second)),
            normalizer=config.normalizer,
        )
    if query_dim % config.num_heads:
        raise ConfigError(f"model.attention.num_heads: {config.num_heads} must divide model.decoder_dim, which is {query_dim}")
    areas = _areas(area, query_dim // config.num_heads, _grid(second))
    return MultiHeadAttention(query_dim, config.num_heads, memory_dim=key_dim, areas=areas, normalizer=config.normalizer)


def _image_embedding(image: SecondImageConfig, dim: int) -> ImageEmbedding:
    encoder = build_image_encoder(image.encoder, image_size=image.size)
    return ImageEmbedding(encoder, dim, cells_only=image.area is not None)


def _grid(second: SecondInputSettings | None) -> tuple[int, int] | None:
    return None if second is None or second.image is None else second.image.grid


def _areas(config: AreaSettings | GridAreaConfig | None, dim: int, grid: tuple[int, int] | None = None) -> Areas | None:
    if config is None:
        return None
    if isinstance(config, GridAreaConfig):
        return Areas((config.height, config.width), grid, key_mode=config.key_mode, value_mode=config.value_mode, dim=dim)
    return Areas(
        config.max_area,
        key_mode=config.key_mode,
        value_mode=config.value_mode,
        dim=dim,
        top_k=config.top_k,
        temperature=config.temperature,
    )


def _score(config: AttentionConfig, query_dim: int, key_dim: int) -> ScoreModule:
    if config.score in SAME_SIZE_SCORES and query_dim != key_dim:
        raise ConfigError(
            f"model.attention.score: {config.score} needs equal sizes; model.decoder_dim is {query_dim}, "
            f"the source states have {key_dim} (model.encoder_dim times the directions)"
        )
    match config.score:
        case "additive":
            return AdditiveScore(query_dim, key_dim, config.attention_dim, coverage=config.coverage)
        case "concat":
            return ConcatScore(query_dim, key_dim, config.attention_dim)
        case "general":
            return GeneralScore(query_dim, key_dim)
        case "location":
            return LocationScore(query_dim, config.max_source_length)
        case "dot" | "scaled_dot":
            return DotScore(scaled=config.score == "scaled_dot")
        case "cosine":
            return CosineScore()


def _window(config: AttentionConfig, query_dim: int) -> WindowModule | None:
    match config.window:
        case "global":
            return None
        case "local_m":
            return MonotonicWindow(config.radius)
        case "local_p":
            return PredictiveWindow(query_dim, config.radius)


def _transformer(config: TransformerConfig, source_size: int, target_size: int) -> Transformer:
    encoder = _encoder(config)
    cross_attentions = [_source_attention(config, number) for number in range(config.decoder_layers)]
    source_embedding, target_embedding, output = _tables(config, source_size, target_size)
    return Transformer(
        source_embedding,
        target_embedding,
        encoder,
        _decoder(config, cross_attentions, _last_norm(config)),
        output,
        dropout=config.dropout,
    )


def _transformer_recurrent(config: TransformerConfig, source_size: int, target_size: int) -> TransformerRecurrent:
    own, embed_dim = config.recurrent, config.embed_dim
    attend_first = own.attention.query_state == "previous"
    feeding = own.attention.input_feeding
    context_dim = embed_dim if own.attention.num_heads is None else own.dim
    extra_dim = embed_dim if feeding else context_dim if attend_first else 0
    source_embedding, target_embedding, output = _tables(config, source_size, target_size)
    stack = RecurrentStack(own.cell, embed_dim, own.dim, num_layers=own.layers, extra_dim=extra_dim, dropout=config.dropout)
    deep = own.readout == "deep"
    decoder = RecurrentDecoder(
        target_embedding,
        stack,
        DeepReadout(own.dim, embed_dim, context_dim, embed_dim) if deep else TanhReadout(own.dim, context_dim, embed_dim),
        attention=_attention(own.attention, own.dim, embed_dim),
        attend_first=attend_first,
        input_feeding=feeding,
        dropout=config.dropout,
    )
    bridge = Bridge(own.cell, embed_dim, 1, directions=2, decoder_dim=own.dim, decoder_layers=own.layers)
    parts = source_embedding, _encoder(config), bridge, decoder, output
    return TransformerRecurrent(*parts, dropout=config.dropout, coverage_loss=own.attention.coverage_loss)


def _encoder(config: TransformerConfig, *, second: SecondInputSettings | None = None) -> Encoder:
    layers = [
        EncoderLayer(_heads(config, number, second), _feed_forward(config), pre=config.norm == "pre", dropout=config.dropout)
        for number in range(config.encoder_layers)
    ]
    return Encoder(layers, _last_norm(config))


def _last_norm(config: TransformerSettings) -> nn.LayerNorm | None:
    return nn.LayerNorm(config.embed_dim) if config.norm == "pre" else None


def _crossed(config: CrossedConfig, source_size: int, target_size: int) -> CrossedTransformer:
    encoder, cross_attentions = _crossed_parts(config)
    source_embedding, target_embedding, output = _tables(config, source_size, target_size)
    return CrossedTransformer(
        source_embedding,
        target_embedding,
        encoder,
        # The published parameter counts include one more LayerNorm than the layers have.
        _decoder(config, cross_attentions, nn.LayerNorm(config.embed_dim)),
        output,
        dropout=config.dropout,
        swap_probability=config.swap_probability,
    )


def _two_inputs(config: TransformerConfig | CrossedConfig, source_sizes: tuple[int, int], target_size: int) -> TwoInputTransformer:
    assert config.second is not None
    kind, norm, swap = config.second.kind, _last_norm(config), 0.0
    if isinstance(config, CrossedConfig):
        encoder, cross_attentions = _crossed_parts(config)
        norm, swap = nn.LayerNorm(config.embed_dim), config.swap_probability
    else:
        if kind == "joined":
            encoder = JoinedEncoder(_encoder(config), config.embed_dim)
        else:
            encoder = TwoEncoders(_encoder(config), _encoder(config, second=config.second), flat=kind == "flat")
        cross_attentions = [_source_attention(config, number) for number in range(config.decoder_layers)]
    first, target_embedding, output = _tables(config, source_sizes[0], target_size)
    if image := config.second.image:
        second = _image_embedding(image, config.embed_dim)
    else:
        second = target_embedding if config.share_embeddings else ScaledEmbedding(source_sizes[1], config.embed_dim)
    decoder = _decoder(config, cross_attentions, norm, layer=SerialDecoderLayer if kind == "serial" else DecoderLayer)
    corruption = Corruption(config.second.drop, swap)
    return TwoInputTransformer((first, second), target_embedding, encoder, decoder, output, dropout=config.dropout, corruption=corruption)


def _source_attention(config: TransformerConfig, layer: int) -> SourceAttention | TwoSourceAttention:
    kind = None if config.second is None else config.second.kind
    if kind in ("serial", "parallel", "hierarchical"):
        # Attention over the two inputs has two items, which form no areas.
        share = None
        if kind == "hierarchical":
            share = MultiHeadAttention(config.embed_dim, config.num_heads, dropout=config.attention_dropout, normalizer=config.normalizer)
        return TwoSourceAttention(_heads(config, layer), _heads(config, layer, config.second), share)
    return SourceAttention(_heads(config, layer))


def _crossed_parts(config: CrossedConfig) -> tuple[CrossedEncoder, list[CrossedSourceAttention]]:
    encoder_layers = [
        CrossedEncoderLayer(
            CrossedAttention(_heads(config, number), _heads(config, number, config.second)),
            _feed_forward(config),
            _feed_forward(config),
            pre=config.norm == "pre",
            dropout=config.dropout,
            residual=config.residual,
        )
        for number in range(config.encoder_layers)
    ]
    cross_attentions = [
        CrossedSourceAttention(
            _heads(config, number),
            _heads(config, number, config.second),
            _feed_forward(config),
            _feed_forward(config),
            two_inputs=config.second is not None,
        )
        for number in range(config.decoder_layers)
    ]
    norms = (nn.LayerNorm(config.embed_dim), nn.LayerNorm(config.embed_dim)) if config.norm == "pre" else None
    return CrossedEncoder(encoder_layers, norms), cross_attentions


def _tables(config: TransformerSettings, source_size: int, target_size: int) -> tuple[nn.Embedding, nn.Embedding, ops.Linear]:
    target_embedding = ScaledEmbedding(target_size, config.embed_dim)
    source_embedding = target_embedding if config.share_embeddings else ScaledEmbedding(source_size, config.embed_dim)
    output = ops.Linear(config.embed_dim, target_size, bias=config.output_bias)
    if output.bias is not None:
        nn.init.zeros_(output.bias)
    if config.tie_embeddings:
        output.weight = target_embedding.weight
    else:
        nn.init.normal_(output.weight, std=config.embed_dim**-0.5)
    return source_embedding, target_embedding, output


def _decoder(
    config: TransformerSettings, cross_attentions: Sequence[Any], norm: nn.LayerNorm | None, *, layer: type[DecoderLayer] = DecoderLayer
) -> Decoder:
    layers = [
        layer(_heads(config, number), cross_attention, _feed_forward(config), pre=config.norm == "pre", dropout=config.dropout)
        for number, cross_attention in enumerate(cross_attentions)
    ]
    return Decoder(layers, norm, alignment_layer=-1 if config.alignment_layer is None else config.alignment_layer - 1)


def _feed_forward(config: TransformerSettings) -> FeedForward:
    return FeedForward(config.embed_dim, config.ff_dim, dropout=config.activation_dropout, activation=config.activation)


def _heads(config: TransformerSettings, layer: int, second: SecondInputSettings | None = None) -> MultiHeadAttention:
    # Attention to the second input has the areas of `second`.
    area = cast(AreaConfig | ImageAreaConfig | None, config.area if second is None else second.own_areas(config.area))
    areas = None if area is None or layer >= area.layers else _areas(area, config.embed_dim // config.num_heads, _grid(second))
    return MultiHeadAttention(
        config.embed_dim, config.num_heads, dropout=config.attention_dropout, areas=areas, normalizer=config.normalizer
    )
