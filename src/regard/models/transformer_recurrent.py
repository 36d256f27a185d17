"""A Transformer's encoder with a recurrent decoder: a student that decodes at a constant cost per step."""

from __future__ import annotations

from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Dropout, Weight, checked
from regard.models.embedding import PositionKind, embed_positions
from regard.models.encoder_decoder import RecurrentEncoderDecoder
from regard.models.rnn_decoder import Bridge, RecurrentDecoder
from regard.models.rnn_encoder import EncoderOutput
from regard.models.transformer_layers import Encoder


class TransformerRecurrent(RecurrentEncoderDecoder):
    """Translate with a Transformer's encoder and a recurrent decoder with one attention (Chen et al. 2018, section 4: arXiv:1804.09849).

    The decoder starts from the mean of the encoder's states, through the bridge. Each step costs the same however many tokens precede it,
    and the whole of greedy decoding runs in the native library where it supports the decoder.

    Args:
        source_embedding: (V_source, E), scaled.
        encoder: source encoder.
        bridge: from two states of size E, those of an encoder's both directions, to the decoder's initial state.
        decoder: target decoder, with attention.
        output: readout (E) to vocabulary (V_target).
        dropout: on the sums of embeddings and positions.
        coverage_loss: see `RecurrentEncoderDecoder`.

    Attributes:
        positions: the kind of `sinusoidal_positions`; `regard.models.build` sets it.

    Parameters: `source_embedding.*`, `encoder.*`, `bridge.*`, `decoder.*`, `output.weight`, and `output.bias` if it has one.

    Example:
        >>> import torch
        >>> from regard.config import TransformerConfig
        >>> from regard.models import build
        >>> model = build(TransformerConfig(decoder="recurrent"), source_size=11, target_size=11)
        >>> source, lengths, target = torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[2, 6]])
        >>> model.decode(source, lengths, target).weights.shape
        torch.Size([1, 2, 3])
    """

    @checked
    def __init__(
        self,
        source_embedding: nn.Embedding,
        encoder: Encoder,
        bridge: Bridge,
        decoder: RecurrentDecoder,
        output: ops.Linear,
        *,
        dropout: Dropout,
        coverage_loss: Weight = 0.0,
    ) -> None:
        super().__init__(source_embedding, encoder, bridge, decoder, output, dropout=dropout, coverage_loss=coverage_loss)
        self.positions: PositionKind = "paper"

    def encode(self, source: Tensor, source_lengths: Tensor) -> EncoderOutput:
        """Encode sources (B, S)."""
        mask = ops.length_mask(source_lengths, source.shape[1])
        dropout = self.dropout.p if self.training else 0.0
        states = self.encoder(embed_positions(self.source_embedding, source, dropout=dropout, kind=self.positions), mask)
        states = states.masked_fill(~mask.unsqueeze(-1), 0.0)
        mean = states.sum(1) / source_lengths.unsqueeze(1).to(states.dtype).clamp(min=1)
        # As of a bidirectional layer: each direction ends with the whole sentence; an LSTM's cell starts from the same.
        return EncoderOutput(states, source_lengths, [(mean,) * (2 if len(self.bridge.cell) else 1)] * 2)
