"""Image captioning models with the interface of encoder-decoders."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.attention import AdditiveScore, Areas, Attention, HardChoice, MultiHeadAttention, ScoreFunctionEstimator
from regard.config.captioning import CaptionModelConfig, CaptionTransformerConfig, GridAreaConfig, ShowConfig
from regard.constructor_checks import Dropout, Weight, checked
from regard.models.bag_of_words_loss import BagOfWordsLoss
from regard.models.cross_attention import Source
from regard.models.embedding import ScaledEmbedding, grid_positions, sinusoidal_positions
from regard.models.encoder_decoder import AnyState, EncoderDecoder, unpadded_loss
from regard.models.image_encoder import ImageEncoder, build_image_encoder
from regard.models.loss_guides import LinkGuide, RDrop, refuse_guide
from regard.models.rnn_cells import RecurrentStack
from regard.models.rnn_decoder import DecoderOutput
from regard.models.rnn_state import DecoderState
from regard.models.show_attend_tell import ShowDecoder
from regard.models.transformer import greedy_words, mean_source_weights
from regard.models.transformer_cache import TransformerState
from regard.models.transformer_decoder import Decoder
from regard.models.transformer_layers import DecoderLayer, Encoder, EncoderLayer, FeedForward, SourceAttention
from regard.ops.kernels.greedy_cpu import GreedyRules, GreedyTokens
from regard.ops.lazy_logits import output_plan


class CaptionModel(EncoderDecoder[AnyState]):
    """An `EncoderDecoder` whose sources are images (B, 3, H, W) or precomputed features (B, L, D).

    All images have L cells: `source_lengths` holds L B times, and attention weights have L columns. Training and `decode` accept G captions
    per image: B G target rows, grouped by image.

    Attributes:
        image_encoder: images to features, with the `grid` of cells.
        words: bag-of-words loss in training, or None.

    Example:
        >>> model = build_captioner(ShowConfig(), image_size=16, vocab_size=11)
        >>> isinstance(model, CaptionModel), model.image_encoder.grid
        (True, (2, 2))
    """

    image_encoder: ImageEncoder
    bag_of_words: BagOfWordsLoss | None

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the cells."""
        return self.image_encoder.grid

    @property
    def max_area(self) -> tuple[int, int] | None:
        """Maximum area of the displayed attention; None: single cells."""
        return None

    def with_words(self, sums: ops.SequenceLoss, features: Tensor, goals: Tensor, lengths: Tensor) -> ops.SequenceLoss:
        """Add the bag-of-words loss of captions (B G, T) from features (B, L, D) in training."""
        if not self.training or self.bag_of_words is None:
            return sums
        return sums._replace(loss=sums.loss + self.bag_of_words(features, goals, lengths))


class ShowAttendTell(CaptionModel[DecoderState]):
    """Show, Attend and Tell (Xu et al. 2015), soft or hard, optionally with areas.

    Args:
        image_encoder: images to features (B, L, D).
        project: D to F.
        decoder: generates the caption.
        output: E to vocabulary (V).
        estimator: for hard attention; None for soft attention.
        doubly_stochastic: lambda of `regard.ops.doubly_stochastic_penalty`, beside a cross-entropy summed over words.
        penalty: its reduction, "paper" or "mean".

    Parameters: `image_encoder.*`, `project.*`, `decoder.*`, `output.*`, perhaps `words.*`; buffer `estimator.baseline` for hard attention.

    Example:
        >>> model = build_captioner(ShowConfig(), image_size=16, vocab_size=11)
        >>> images, cells, target = torch.zeros(1, 3, 16, 16), torch.tensor([4]), torch.tensor([[2, 6]])
        >>> loss = model(images, cells, target, torch.tensor([[6, 3]]), torch.tensor([2]))
        >>> int(loss.tokens), model.decode(images, cells, target).weights.shape
        (2, torch.Size([1, 2, 4]))
    """

    @checked
    def __init__(
        self,
        image_encoder: ImageEncoder,
        project: ops.Linear,
        decoder: ShowDecoder,
        output: ops.Linear,
        *,
        estimator: ScoreFunctionEstimator | None,
        doubly_stochastic: Weight,
        penalty: Literal["paper", "mean"],
    ) -> None:
        super().__init__()
        self.image_encoder = image_encoder
        self.project = project
        self.decoder = decoder
        self.output = output
        self.estimator = estimator
        self.doubly_stochastic = doubly_stochastic
        self.penalty: Literal["paper", "mean"] = penalty
        self.bag_of_words = None

    @property
    def max_area(self) -> tuple[int, int] | None:
        """Maximum area of the attention; None: single cells."""
        return _size(self.decoder.attention.areas)

    def start(self, source: Tensor, source_lengths: Tensor) -> DecoderState:
        """Encode images and return the initial state, one hypothesis per image."""
        return self._begin(self.image_encoder(source))

    def decoder_step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, Tensor | None, DecoderState]:
        """Decode the last word of each hypothesis (B, K): readouts (B, K, E), weights (B, K, L), and the new state."""
        return self.decoder.step(tokens, state)

    def decode(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, need_weights: bool = True) -> DecoderOutput:
        """Run the decoder over given captions (B, T): readouts (B, T, E) and, if requested, attention weights (B, T, L)."""
        readout, look = self.decoder(target_input, self.start(source, source_lengths), need_weights=need_weights)
        return DecoderOutput(readout, look.weights)

    def forward(
        self,
        source: Tensor,
        source_lengths: Tensor,
        target_input: Tensor,
        target_output: Tensor,
        target_lengths: Tensor,
        *,
        label_smoothing: float = 0.0,
        guide: LinkGuide | RDrop | None = None,
    ) -> ops.SequenceLoss:
        """Return the summed loss of the captions; in training with the attention losses.

        These are lambda times the doubly stochastic penalty of each caption (Xu et al. 2015, Eq. 14), and for hard attention the terms of
        `regard.attention.ScoreFunctionEstimator`. Arguments as in `EncoderDecoder.forward`.

        Raises:
            ConfigError: links to learn.
        """
        refuse_guide(guide, "ShowAttendTell")
        choice = self.decoder.attention.choice
        soft = choice.soft_rows(len(source), device=target_input.device) if choice is not None and self.training else None
        penalised = self.training and self.doubly_stochastic > 0
        features = self.image_encoder(source)
        readout, look = self.decoder(target_input, self._begin(features), need_weights=penalised, soft=soft)
        real = ops.length_mask(target_lengths, target_output.shape[1])
        sums = unpadded_loss(self.output, readout, target_output, target_lengths, label_smoothing=label_smoothing)
        extra = sums.loss.new_zeros(())
        if penalised and look.weights is not None:
            found = ops.doubly_stochastic_penalty(look.weights, query_mask=real, reduction=self.penalty)
            extra = extra + self.doubly_stochastic * found
        if self.training and self.estimator is not None and look.log_prob is not None and look.entropy is not None:
            with torch.no_grad():
                logits = self.logits(readout).transpose(1, 2)
                nll = F.cross_entropy(logits, target_output, reduction="none")
            extra = extra + self.estimator(nll, look.log_prob, look.entropy, look.sampled, real)
        # Both are defined for a cross-entropy averaged over captions; here everything is summed.
        return self.with_words(sums._replace(loss=sums.loss + extra * len(target_input)), features, target_output, target_lengths)

    def _begin(self, features: Tensor) -> DecoderState:
        return self.decoder.start(self.project(features))


class CaptionTransformer(CaptionModel[TransformerState]):
    """Transformer captioner (Li et al. 2018, section 4.3): self-attention of cells, and of words; cross-attention to cells or areas.

    Args:
        image_encoder: images to features (B, L, D).
        project: D to E.
        encoder: Transformer encoder of the cells.
        embedding: (V, E), scaled.
        decoder: generates the caption.
        output: E to vocabulary (V).
        dropout: on the sums of embeddings, or cells, and positions.

    Parameters: `image_encoder.*`, `project.*`, `encoder.*`, `embedding.*`, `decoder.*`, `output.weight`, perhaps `words.*`.

    Example:
        >>> model = build_captioner(CaptionTransformerConfig(area=GridAreaConfig()), image_size=16, vocab_size=11)
        >>> model.decode(torch.zeros(1, 3, 16, 16), torch.tensor([4]), torch.tensor([[2, 6]])).weights.shape
        torch.Size([1, 2, 4])
    """

    @checked
    def __init__(
        self,
        image_encoder: ImageEncoder,
        project: ops.Linear,
        encoder: Encoder,
        embedding: nn.Embedding,
        decoder: Decoder,
        output: ops.Linear,
        *,
        dropout: Dropout,
    ) -> None:
        super().__init__()
        self.bag_of_words = None
        self.image_encoder = image_encoder
        self.project = project
        self.encoder = encoder
        self.embedding = embedding
        self.decoder = decoder
        self.output = output
        self.dropout = dropout

    @property
    def max_area(self) -> tuple[int, int] | None:
        """Maximum area of the displayed layer; None: single cells."""
        layer = self.decoder.layers[self.decoder.alignment_layer]
        assert isinstance(layer, DecoderLayer)
        assert isinstance(layer.cross_attention, SourceAttention)
        return _size(layer.cross_attention.attention.areas)

    def start(self, source: Tensor, source_lengths: Tensor) -> TransformerState:
        """Encode images and return the initial state, one hypothesis per image."""
        return self.decoder.start((self._encode(self.image_encoder(source)),))

    def decoder_step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, Tensor | None, TransformerState]:
        """Decode the last word of each hypothesis (B, K): readouts (B, K, E), weights (B, K, L), and the new state."""
        embedded = self._embed(tokens.reshape(-1, 1), state.position).view(*tokens.shape, -1)
        readout, weights, state = self.decoder.step(embedded, state)
        return readout, mean_source_weights(weights), state

    def greedy(self, state: TransformerState, rules: GreedyRules, shortlist: ops.OutputShortlist | None = None) -> GreedyTokens | None:
        """Run a greedy search in native code; None if unsupported, or outside `regard.ops.packed_weights`."""
        output = output_plan(self.output) if shortlist is None else shortlist.plan
        words = greedy_words(self.embedding, rules)
        return None if output is None or words is None else self.decoder.greedy(state, output, words, rules)

    def decode(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, need_weights: bool = True) -> DecoderOutput:
        """Run the decoder over given captions (B, T): readouts (B, T, E) and, if requested, attention weights (B, T, L)."""
        return self._decode(self.image_encoder(source), target_input, need_weights)

    def forward(
        self,
        source: Tensor,
        source_lengths: Tensor,
        target_input: Tensor,
        target_output: Tensor,
        target_lengths: Tensor,
        *,
        label_smoothing: float = 0.0,
        guide: LinkGuide | RDrop | None = None,
    ) -> ops.SequenceLoss:
        """Return the summed loss of the captions, in training with the bag-of-words loss (see `EncoderDecoder`).

        Raises:
            ConfigError: links to learn.
        """
        refuse_guide(guide, "CaptionTransformer")
        features = self.image_encoder(source)
        readout = self._decode(features, target_input, need_weights=False).readout
        sums = unpadded_loss(self.output, readout, target_output, target_lengths, label_smoothing=label_smoothing)
        return self.with_words(sums, features, target_output, target_lengths)

    def _decode(self, features: Tensor, target_input: Tensor, need_weights: bool) -> DecoderOutput:
        layer = self.decoder.alignment_layer if need_weights else None
        readout, weights = self.decoder(self._embed(target_input), (self._encode(features),), weights_of=layer)
        return DecoderOutput(readout, mean_source_weights(weights))

    def _encode(self, features: Tensor) -> Source:
        cells = self.project(features)
        return Source(self.encoder(self._dropped(cells + grid_positions(self.grid, cells.shape[-1]).to(cells))), None)

    def _embed(self, tokens: Tensor, start: int = 0) -> Tensor:
        vectors = self.embedding(tokens)
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        return self._dropped(vectors + sinusoidal_positions(places, vectors.shape[-1], dtype=vectors.dtype))

    def _dropped(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.dropout) if self.training else x


def build_captioner(
    config: CaptionModelConfig, *, image_size: int, vocab_size: int, pretrained: bool = False
) -> ShowAttendTell | CaptionTransformer:
    """Build the configured captioner, with new weights.

    Args:
        config: the model part of a run's configuration.
        image_size: height and width of its images in pixels.
        vocab_size: entries of the vocabulary.
        pretrained: download a timm encoder's weights; False if weights are loaded later.

    Returns:
        The model, in training mode.

    Raises:
        ConfigError: invalid settings; see `regard.models.image_encoder.build_image_encoder`.
        MissingExtraError: the encoder's package is not installed.

    Example:
        >>> build_captioner(ShowConfig(embed_dim=7), image_size=16, vocab_size=11).output.weight.shape
        torch.Size([11, 7])
    """
    encoder = build_image_encoder(config.encoder, image_size=image_size, pretrained=pretrained)
    match config:
        case ShowConfig():
            model = _show(config, encoder, vocab_size)
        case CaptionTransformerConfig():
            model = _transformer(config, encoder, vocab_size)
    if config.bag_of_words_weight:
        model.bag_of_words = BagOfWordsLoss(encoder.output_dim, vocab_size, config.bag_of_words_weight)
    return model


def _show(config: ShowConfig, encoder: ImageEncoder, vocab_size: int) -> ShowAttendTell:
    hard = config.hard
    choice, estimator = None, None
    if config.attention == "hard":
        choice = HardChoice(hard.mode, half_soft=hard.half_soft, half_soft_per=hard.half_soft_per, soft_batches=hard.soft_batches)
        estimator = ScoreFunctionEstimator(
            reward=hard.reward, scaling=hard.scaling, reward_weight=hard.reward_weight, entropy_weight=hard.entropy_weight
        )
    attention = Attention(
        AdditiveScore(config.decoder_dim, config.feature_dim, config.attention_dim),
        areas=_areas(config.area, encoder.grid, config.feature_dim),
        choice=choice,
        normalizer=config.normalizer,
    )
    decoder = ShowDecoder(
        ScaledEmbedding(vocab_size, config.embed_dim),
        RecurrentStack("lstm", config.embed_dim, config.decoder_dim, num_layers=1, extra_dim=config.feature_dim, dropout=0.0),
        attention,
        config.feature_dim,
        look_last=config.query_state == "current",
        dropout=config.dropout,
    )
    return ShowAttendTell(
        encoder,
        ops.Linear(encoder.output_dim, config.feature_dim),
        decoder,
        _output(config.embed_dim, vocab_size),
        estimator=estimator,
        doubly_stochastic=config.doubly_stochastic,
        penalty=config.penalty,
    )


def _transformer(config: CaptionTransformerConfig, encoder: ImageEncoder, vocab_size: int) -> CaptionTransformer:
    pre = config.norm == "pre"

    def heads(number: int, areas: bool) -> MultiHeadAttention:
        own = _areas(config.area, encoder.grid, config.embed_dim // config.num_heads) if areas and number < config.area_layers else None
        return MultiHeadAttention(
            config.embed_dim, config.num_heads, dropout=config.attention_dropout, areas=own, normalizer=config.normalizer
        )

    def feed_forward() -> FeedForward:
        return FeedForward(config.embed_dim, config.ff_dim, dropout=config.activation_dropout, activation=config.activation)

    def norm() -> nn.LayerNorm | None:
        return nn.LayerNorm(config.embed_dim) if pre else None

    cells = [EncoderLayer(heads(n, True), feed_forward(), pre=pre, dropout=config.dropout) for n in range(config.encoder_layers)]
    words = [
        DecoderLayer(heads(n, False), SourceAttention(heads(n, True)), feed_forward(), pre=pre, dropout=config.dropout)
        for n in range(config.decoder_layers)
    ]
    embedding = ScaledEmbedding(vocab_size, config.embed_dim)
    output = ops.Linear(config.embed_dim, vocab_size, bias=False)
    if config.tie_embeddings:
        output.weight = embedding.weight
    else:
        nn.init.normal_(output.weight, std=config.embed_dim**-0.5)
    return CaptionTransformer(
        encoder,
        ops.Linear(encoder.output_dim, config.embed_dim),
        Encoder(cells, norm()),
        embedding,
        Decoder(words, norm(), alignment_layer=-1 if config.alignment_layer is None else config.alignment_layer - 1),
        output,
        dropout=config.dropout,
    )


def _output(dim: int, vocab_size: int) -> ops.Linear:
    output = ops.Linear(dim, vocab_size)
    nn.init.zeros_(output.bias)
    return output


def _areas(config: GridAreaConfig | None, grid: tuple[int, int], dim: int) -> Areas | None:
    if config is None:
        return None
    return Areas((config.height, config.width), grid, key_mode=config.key_mode, value_mode=config.value_mode, dim=dim)


def _size(areas: Areas | None) -> tuple[int, int] | None:
    return areas.max_area if areas is not None and isinstance(areas.max_area, tuple) else None
