"""Sentence classifier: one text, or premise and hypothesis, to a label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.attention import CrossedAttention, MultiHeadAttention, StructuredAttention
from regard.config import (
    ClassifierConfig,
    CrossedEncoderConfig,
    EntailmentModelConfig,
    RecurrentEncoderConfig,
    SentenceModelSettings,
    TransformerEncoderConfig,
    TransformerEncoderSettings,
)
from regard.constructor_checks import checked
from regard.models.crossed import CrossedEncoder, CrossedEncoderLayer
from regard.models.pooling import (
    FeatureFusion,
    GatedFusion,
    LabelHead,
    PoolingOutput,
    RecurrentSentenceEncoder,
    StatePooling,
    TransformerSentenceEncoder,
)
from regard.models.rnn_encoder import RecurrentEncoder
from regard.models.transformer_layers import Encoder, EncoderLayer, FeedForward


class ClassifierOutput(NamedTuple):
    """Output of a classifier.

    Attributes:
        logits: (B, C).
        pooled: one per text.
    """

    logits: Tensor
    pooled: list[PoolingOutput]


class SentenceClassifier(nn.Module):
    """Classify a text, or premise and hypothesis: Lin et al. 2017 (arXiv:1703.03130) and its baselines, depending on the modules.

        states = encoder(embedding(words));  M = pooling(states);  logits = head(M) or head(fusion(M_premise, M_hypothesis))

    Padding does not change results, up to rounding.

    Args:
        embedding: (V, E).
        encoder: words to states, see `regard.models.pooling.SentenceEncoder`; premise and hypothesis share it.
        pooling: states to R vectors; `StructuredAttention` or `StatePooling`.
        fusion: joins two texts; None for one.
        head: vectors to logits.

    Attributes:
        embed_dropout: on embedded words.
        word_dropout: probability of replacing a word by `unknown` in training.
        unknown: id of the unknown word.
        penalty: coefficient of `ops.redundancy_penalty`, summed over texts.
        penalty_reduction: "sum" or "mean".

    Parameters: `embedding.weight` (V, E), `encoder.*`, `pooling.*`, `fusion.*`, `head.*`.

    Example:
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1)
        >>> sums = model([torch.tensor([[4, 5, 0], [6, 7, 8]])], [torch.tensor([2, 3])], torch.tensor([0, 2]))
        >>> int(sums.tokens), model.classify([torch.tensor([[4, 5]])], [torch.tensor([2])]).pooled[0].weights.shape
        (2, torch.Size([1, 4, 2]))
    """

    @checked
    def __init__(
        self,
        embedding: nn.Embedding,
        encoder: RecurrentSentenceEncoder | TransformerSentenceEncoder,
        pooling: StructuredAttention | StatePooling,
        fusion: GatedFusion | FeatureFusion | None,
        head: LabelHead,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.encoder = encoder
        self.pooling = pooling
        self.fusion = fusion
        self.head = head
        self.embed_dropout = 0.0
        self.word_dropout = 0.0
        self.unknown = 0
        self.penalty = 0.0
        self.penalty_reduction: Literal["sum", "mean"] = "sum"

    def forward(
        self,
        tokens: Sequence[Tensor],
        lengths: Sequence[Tensor],
        labels: Tensor,
        weights: Tensor | None = None,
        *,
        label_smoothing: float = 0.0,
    ) -> ops.SequenceLoss:
        """Compute the loss.

        Args:
            tokens: (B, S) per text, padded.
            lengths: (B,) per text.
            labels: (B,) class numbers.
            weights: (B,) example weights in the loss; None: 1.
            label_smoothing: as in `ops.linear_cross_entropy`.

        Returns:
            Sums over the batch; each example counts as one token. `loss` includes the penalty.
        """
        reading = self.classify(tokens, lengths, need_weights=self.penalty > 0)
        logits = reading.logits.float() if reading.logits.dtype != torch.float64 else reading.logits
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
        loss = losses.sum() if weights is None else (losses * weights.to(losses.dtype)).sum()
        if self.penalty:
            for pooled in reading.pooled:
                if pooled.weights is not None:
                    penalty = ops.redundancy_penalty(pooled.weights, reduction=self.penalty_reduction)
                    loss = loss + self.penalty * labels.shape[0] * penalty
        with torch.no_grad():
            nll = F.cross_entropy(logits, labels, reduction="sum")
            correct = (logits.argmax(-1) == labels).sum().to(nll.dtype)
        return ops.SequenceLoss(loss, nll, torch.tensor(labels.shape[0], device=labels.device), correct)

    def classify(self, tokens: Sequence[Tensor], lengths: Sequence[Tensor], *, need_weights: bool = True) -> ClassifierOutput:
        """Classify texts (B, S) of lengths (B,): logits (B, C), and the pooled texts, with weights if requested."""
        embedded = [self._embed(words) for words in tokens]
        states = self.encoder(embedded, lengths)
        pooled = []
        for own, count in zip(states, lengths, strict=True):
            mask = ops.length_mask(count, own.shape[1])
            if isinstance(self.pooling, StructuredAttention):
                pooled.append(PoolingOutput(*self.pooling(own, key_mask=mask, need_weights=need_weights)))
            else:
                pooled.append(self.pooling(own, mask))
        joined = pooled[0].context.flatten(1) if self.fusion is None else self.fusion(pooled[0].context, pooled[1].context)
        return ClassifierOutput(self.head(joined), pooled)

    def _embed(self, tokens: Tensor) -> Tensor:
        if self.training and self.word_dropout:
            hidden = torch.rand(tokens.shape, device=tokens.device) < self.word_dropout
            tokens = tokens.masked_fill(hidden, self.unknown)
        embedded = self.embedding(tokens)
        return ops.dropout(embedded, self.embed_dropout) if self.training else embedded

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"embed_dropout={self.embed_dropout}, word_dropout={self.word_dropout}, penalty={self.penalty} ({self.penalty_reduction})"


def build_classifier(
    config: ClassifierConfig | EntailmentModelConfig, *, vocab_size: int, classes: int, unknown: int
) -> SentenceClassifier:
    """Build the configured model, with new weights.

    Args:
        config: the model part of a run's configuration; for entailment, with two texts.
        vocab_size: V.
        classes: C.
        unknown: id of the unknown word, for `word_dropout`.

    Returns:
        The model, in training mode.

    Example:
        >>> build_classifier(EntailmentModelConfig(), vocab_size=11, classes=3, unknown=1).fusion.premise.shape
        torch.Size([4, 256, 256])
    """
    encoder, dim, backward_dim = _encoder(config.encoder, config.embed_dim)
    hops = config.hops if config.pooling == "structured" else 1
    pooling = (
        StructuredAttention(dim, config.attention_dim, config.hops, normalizer=config.normalizer)
        if config.pooling == "structured"
        else StatePooling(config.pooling, backward_dim)
    )
    fusion, joined = None, hops * dim
    if isinstance(config, EntailmentModelConfig):
        width = config.fusion_dim or dim
        fusion = GatedFusion(hops, dim, width) if config.fusion == "gated" else FeatureFusion()
        joined = hops * width if config.fusion == "gated" else 4 * hops * dim
    embedding = nn.Embedding(vocab_size, config.embed_dim)
    # Scale words for sinusoidal positions of about 1; recurrent encoders learned better from smaller vectors.
    nn.init.normal_(embedding.weight, std=0.3 if isinstance(config.encoder, RecurrentEncoderConfig) else 1.0)
    embedding.weight.requires_grad_(config.tune_embeddings)
    model = SentenceClassifier(embedding, encoder, pooling, fusion, LabelHead(joined, config.mlp_dim, classes, dropout=config.dropout))
    _set(model, config, unknown)
    return model


def _set(model: SentenceClassifier, config: SentenceModelSettings, unknown: int) -> None:
    model.embed_dropout, model.word_dropout, model.unknown = config.embed_dropout, config.word_dropout, unknown
    if config.pooling == "structured":
        model.penalty, model.penalty_reduction = config.penalty, config.penalty_reduction


def _encoder(
    config: RecurrentEncoderConfig | TransformerEncoderConfig | CrossedEncoderConfig, embed_dim: int
) -> tuple[RecurrentSentenceEncoder | TransformerSentenceEncoder, int, int]:
    # The encoder, its state size, and the number of features of the backward direction.
    if isinstance(config, RecurrentEncoderConfig):
        encoder = RecurrentEncoder(
            config.cell,
            embed_dim,
            config.hidden_size,
            num_layers=config.num_layers,
            bidirectional=config.bidirectional,
            dropout=config.dropout,
        )
        return RecurrentSentenceEncoder(encoder), encoder.output_dim, config.hidden_size if config.bidirectional else 0
    norms = [nn.LayerNorm(embed_dim) for _ in range(2)] if config.norm == "pre" else None
    if isinstance(config, TransformerEncoderConfig):
        encoders = [
            EncoderLayer(_heads(config, embed_dim), _feed_forward(config, embed_dim), pre=config.norm == "pre", dropout=config.dropout)
            for _ in range(config.num_layers)
        ]
        return TransformerSentenceEncoder(Encoder(encoders, norms[0] if norms else None), dropout=config.dropout), embed_dim, 0
    layers = [_crossed_layer(config, embed_dim) for _ in range(config.num_layers)]
    stack = CrossedEncoder(layers, (norms[0], norms[0] if config.shared else norms[1]) if norms else None)
    return TransformerSentenceEncoder(stack, dropout=config.dropout, same_length=config.residual == "own"), embed_dim, 0


def _crossed_layer(config: CrossedEncoderConfig, embed_dim: int) -> CrossedEncoderLayer:
    left, left_feed_forward = _heads(config, embed_dim), _feed_forward(config, embed_dim)
    right = left if config.shared else _heads(config, embed_dim)
    right_feed_forward = left_feed_forward if config.shared else _feed_forward(config, embed_dim)
    layer = CrossedEncoderLayer(
        CrossedAttention(left, right),
        left_feed_forward,
        right_feed_forward,
        pre=config.norm == "pre",
        dropout=config.dropout,
        residual=config.residual,
    )
    if config.shared:
        layer.right_norm, layer.right_last_norm = layer.left_norm, layer.left_last_norm
    return layer


def _heads(config: TransformerEncoderSettings, embed_dim: int) -> MultiHeadAttention:
    return MultiHeadAttention(embed_dim, config.num_heads, normalizer=config.normalizer)


def _feed_forward(config: TransformerEncoderSettings, embed_dim: int) -> FeedForward:
    return FeedForward(embed_dim, config.ff_dim, dropout=config.dropout)
