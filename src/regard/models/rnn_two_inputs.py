"""Recurrent encoder-decoder with two inputs, two texts or a text and an image: as one sequence, or with one or two attentions."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Dropout, checked
from regard.models.encoder_decoder import RecurrentEncoderDecoder
from regard.models.image_embedding import ImageEmbedding
from regard.models.input_rows import TwoInputs, join_rows, split_inputs
from regard.models.rnn_attention import TwoAttentions
from regard.models.rnn_decoder import Bridge, RecurrentDecoder
from regard.models.rnn_encoder import EncoderOutput, RecurrentEncoder


class TwoInputRecurrent(RecurrentEncoderDecoder):
    """Translate two inputs into one sequence with recurrent networks.

    A row of the source holds both, see `regard.models.split_inputs`. One encoder reads the row as a sequence, with the first input's EOS in
    between. Two encoders read one input each, and the decoder attends to the states of both as one source (Libovický and Helcl 2017,
    section 3.1, "flat"; with one projection of the states for both encoders), or to each (`regard.models.rnn_attention.TwoAttentions`). It
    starts from the mean of their last states. The cells of an image need no encoder: they are states, as in the doubly-attentive decoder
    of Calixto et al. 2017 (arXiv:1702.01287), which starts from the text's last states.

    Args:
        source_embeddings: embeddings of the first and the second input, (V, E) each; may be the same. The second may embed images, in the
            size of the encoder's states unless joined.
        encoders: one for both inputs as one sequence, or one for each, None for an image.
        bridge: computes the decoder's initial state.
        decoder: generates the target.
        output: readout (R) to vocabulary (V).
        dropout: on source embeddings.
        drop: probability of hiding one of the inputs of an example in training.

    Parameters: those of `RecurrentEncoderDecoder`, `second_embedding.*`, and `second_encoder.*` if there are two.

    Example:
        >>> from regard.config import RNNConfig
        >>> from regard.models import build
        >>> model = build(RNNConfig(second={"kind": "flat"}), source_size=11, target_size=13)
        >>> source, lengths, target = torch.tensor([[4, 5, 3, 7, 3]]), torch.tensor([5]), torch.tensor([[2, 6]])
        >>> model.decode(source, lengths, target).weights.shape
        torch.Size([1, 2, 5])
    """

    @checked
    def __init__(
        self,
        source_embeddings: tuple[nn.Embedding, nn.Embedding | ImageEmbedding],
        encoders: tuple[RecurrentEncoder] | tuple[RecurrentEncoder, RecurrentEncoder | None],
        bridge: Bridge,
        decoder: RecurrentDecoder,
        output: ops.Linear,
        *,
        dropout: Dropout,
        drop: Dropout,
    ) -> None:
        super().__init__(source_embeddings[0], encoders[0], bridge, decoder, output, dropout=dropout)
        self.second_embedding = source_embeddings[1]
        self.second_encoder = encoders[1] if len(encoders) == 2 else None
        self.joined = len(encoders) == 1
        self.drop = drop

    def encode(self, source: Tensor, source_lengths: Tensor) -> EncoderOutput:
        """Encode rows (B, S) with two inputs each."""
        inputs = split_inputs(source, source_lengths)
        if self.training and self.drop:
            inputs = inputs.hidden(self.drop)
        lengths = torch.stack([inputs.first_lengths, inputs.second_lengths], 1)
        first = self.dropout(self.source_embedding(inputs.first))
        if isinstance(self.second_embedding, ImageEmbedding):
            second = self.dropout(self.second_embedding(inputs.second, inputs.second_lengths))
        else:
            second = self.dropout(self.second_embedding(inputs.second))
        if self.joined:
            return self.encoder(join_rows(first, second, lengths), lengths.sum(1))
        both = self._separate(first, second, inputs)
        final = [
            tuple((one + two) / 2 for one, two in zip(*parts, strict=True)) for parts in zip(both[0].final, both[1].final, strict=True)
        ]
        if isinstance(self.decoder.attention, TwoAttentions):
            return both[0]._replace(final=final, second=both[1])
        states = join_rows(both[0].states, both[1].states, lengths)
        real = ops.length_mask(lengths.sum(1), states.shape[1]).unsqueeze(-1)
        return EncoderOutput(states.masked_fill(~real, 0.0), lengths.sum(1), final)

    def _separate(self, first: Tensor, second: Tensor, inputs: TwoInputs) -> tuple[EncoderOutput, EncoderOutput]:
        one = cast(RecurrentEncoder, self.encoder)(first, inputs.first_lengths)
        if self.second_encoder is not None:
            return one, self.second_encoder(second, inputs.second_lengths)
        real = ops.length_mask(inputs.second_lengths.clamp(max=second.shape[1]), second.shape[1]).unsqueeze(-1)
        return one, EncoderOutput(second.masked_fill(~real, 0.0), inputs.second_lengths, one.final)

    def side_lengths(self, source: Tensor, source_lengths: Tensor) -> dict[str, Tensor]:
        """Return the lengths (B,) of the "source", a whole row, and of its "first" and "second" input."""
        inputs = split_inputs(source, source_lengths)
        return {"source": source_lengths, "first": inputs.first_lengths, "second": inputs.second_lengths}
