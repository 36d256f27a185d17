"""Transformer encoder-decoder."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Dropout, checked
from regard.models.cross_attention import Source, SourcePairAttention, mean_head_weights
from regard.models.embedding import PositionKind, ScaledEmbedding, embed_positions, sinusoidal_positions
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.input_rows import join_weights
from regard.models.loss_guides import TaughtHead
from regard.models.rnn_decoder import DecoderOutput
from regard.models.transformer_cache import TransformerState
from regard.models.transformer_decoder import Decoder
from regard.ops.kernels.greedy_cpu import GreedyRules, GreedyTokens, Words
from regard.ops.lazy_logits import output_plan


class Transformer(EncoderDecoder[TransformerState]):
    """Transformer encoder-decoder (Vaswani et al. 2017), optionally with areas (Li et al. 2018).

    Args:
        source_embedding: (V_source, E), scaled.
        target_embedding: (V_target, E), scaled; may be the same.
        encoder: source encoder.
        decoder: target decoder.
        output: E to vocabulary (V_target), as published without bias.
        dropout: on the sums of embeddings and positions.

    Attributes:
        positions: the kind of `sinusoidal_positions`; `regard.models.build` sets it.

    Parameters: `source_embedding.*`, `target_embedding.*`, `encoder.*`, `decoder.*`, `output.weight`, and `output.bias` if it has one.

    Example:
        >>> from regard.config import TransformerConfig
        >>> from regard.models import build
        >>> model = build(TransformerConfig(), source_size=11, target_size=11)
        >>> source, lengths, target = torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[2, 6]])
        >>> model.decode(source, lengths, target).weights.shape
        torch.Size([1, 2, 3])
    """

    @checked
    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding,
        encoder: nn.Module,
        decoder: Decoder,
        output: ops.Linear,
        *,
        dropout: Dropout,
    ) -> None:
        super().__init__()
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.encoder = encoder
        self.decoder = decoder
        self.output = output
        self.dropout = dropout
        self.positions: PositionKind = "paper"

    def encode(self, source: Tensor, source_lengths: Tensor) -> tuple[Source, ...]:
        """Encode sources (B, S) for the decoder."""
        mask = ops.length_mask(source_lengths, source.shape[1])
        return (Source(self.encoder(self.embed(self.source_embedding, source), mask), mask),)

    def embed(self, embedding: nn.Embedding, tokens: Tensor, start: int = 0) -> Tensor:
        """Embed tokens (B, T) from position `start`: (B, T, E)."""
        return embed_positions(embedding, tokens, start=start, dropout=self.dropout if self.training else 0.0, kind=self.positions)

    def start(self, source: Tensor, source_lengths: Tensor) -> TransformerState:
        """Encode sources (B, S) and return the initial state, one hypothesis per sentence."""
        sources = self.encode(source, source_lengths)
        return replace(self.decoder.start(sources), input_lengths=self.input_lengths(source, source_lengths))

    def input_lengths(self, source: Tensor, source_lengths: Tensor) -> Tensor | None:
        """Return the lengths (B, 2) of two inputs that the decoder attends to separately; None for one source."""
        return None

    def decoder_step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, Tensor | None, TransformerState]:
        """Decode the last token of each hypothesis (B, K): readouts (B, K, E), weights (B, K, S), and the new state."""
        embedded = self.embed(self.target_embedding, tokens.reshape(-1, 1), state.position).view(*tokens.shape, -1)
        readout, weights, state = self.decoder.step(embedded, state)
        return readout, mean_source_weights(weights, state.input_lengths), state

    def greedy(self, state: TransformerState, rules: GreedyRules, shortlist: ops.OutputShortlist | None = None) -> GreedyTokens | None:
        """Run a greedy search in native code; None if unsupported, or outside `regard.ops.packed_weights`."""
        output = output_plan(self.output) if shortlist is None else shortlist.plan
        words = greedy_words(self.target_embedding, rules, self.positions)
        return None if output is None or words is None else self.decoder.greedy(state, output, words, rules)

    def decode(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, need_weights: bool = True) -> DecoderOutput:
        """Run the decoder over given targets (B, T): readouts (B, T, E) and, if requested, attention weights (B, T, S)."""
        sources = self.encode(source, source_lengths)
        layer = self.decoder.alignment_layer if need_weights else None
        readout, weights = self.decoder(self.embed(self.target_embedding, target_input), sources, weights_of=layer)
        lengths = self.input_lengths(source, source_lengths) if need_weights else None
        return DecoderOutput(readout, mean_source_weights(weights, lengths))

    def decode_taught(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, taught: TaughtHead) -> DecoderOutput:
        """Run the decoder as `decode`, with the weights (B, T, S) of the head that learns links, on the first branch of an encoder."""
        embedded, sources = self.embed(self.target_embedding, target_input), self.encode(source, source_lengths)
        readout, weights = self.decoder(embedded, sources, weights_of=taught.layer)
        assert weights is not None
        return DecoderOutput(readout, weights[0][:, taught.head])

    def taught_name(self, taught: TaughtHead) -> str:
        """Return the module name of the attention that learns links."""
        pair = isinstance(self.decoder.layers[taught.layer].cross_attention, SourcePairAttention)
        return f"decoder.layers.{taught.layer}.cross_attention.{'left' if pair else 'attention'}"


def greedy_words(embedding: nn.Embedding, rules: GreedyRules, kind: PositionKind = "paper") -> Words | None:
    """Return the embedding parameters of a native greedy search; None if unsupported.

    Args:
        embedding: the target embedding.
        rules: constraints of the search.
        kind: kind of positions.

    Example:
        >>> rules = GreedyRules(torch.tensor([7, 5]), 2, torch.tensor([3]), 0, -1e9, 3)
        >>> greedy_words(nn.Embedding(11, 4), rules).positions.shape
        torch.Size([7, 4])
    """
    table = embedding.weight
    if type(embedding) not in (nn.Embedding, ScaledEmbedding) or embedding.max_norm is not None:
        return None
    if table.dtype != torch.float32 or table.device.type != "cpu":
        return None
    positions = sinusoidal_positions(torch.arange(int(rules.limits.max())), table.shape[1], kind=kind)
    return Words(table.detach().contiguous(), embedding.scale if isinstance(embedding, ScaledEmbedding) else 1.0, positions)


def mean_source_weights(weights: tuple[Tensor, ...] | None, input_lengths: Tensor | None = None) -> Tensor | None:
    """Average weights (B, H, T, S) over heads, and over encoder branches of one sentence, and normalize them: (B, T, S).

    Items of an area each have the area's weight, which may sum to more than 1.

    Args:
        weights: weights of each branch.
        input_lengths: (B, 2) if the branches are two inputs, which are then concatenated.

    Example:
        >>> mean_source_weights((torch.tensor([[[[0.5, 0.5]], [[1.0, 2.0]]]]),)).tolist()
        [[[0.375, 0.625]]]
    """
    if weights is None:
        return None
    if input_lengths is not None:
        first, second = weights
        return mean_head_weights(join_weights(first.mean(1), second.mean(1), input_lengths))
    means = [one.mean(1) for one in weights]
    return mean_head_weights(torch.stack(means).mean(0) if len(means) > 1 else means[0])
