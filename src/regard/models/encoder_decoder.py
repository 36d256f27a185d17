"""The encoder-decoder interface, and the recurrent model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import record_weights
from regard.constructor_checks import Dropout, Weight, checked
from regard.errors import ConfigError, shown
from regard.models.attention_maps import LayerAttention, collect_attention
from regard.models.loss_guides import LinkGuide, RDrop, TaughtHead, refuse_guide
from regard.models.rnn_decoder import Bridge, DecoderOutput, RecurrentDecoder
from regard.models.rnn_encoder import EncoderOutput, RecurrentEncoder
from regard.models.rnn_native_step import PackedState
from regard.models.rnn_state import DecoderState
from regard.models.transformer_layers import Encoder
from regard.ops.kernels.greedy_cpu import GreedyRules, GreedyTokens
from regard.ops.lazy_logits import output_plan

AnyState = TypeVar("AnyState")


class EncoderDecoder(nn.Module, ABC, Generic[AnyState]):
    """Interface of sequence-to-sequence models for training, decoding and attention maps.

    Attributes:
        output: readout (R) to vocabulary (V).
        coverage_loss: lambda of `regard.ops.coverage_loss` in training.

    Example:
        >>> from regard.config import TransformerConfig
        >>> from regard.models import build
        >>> isinstance(build(TransformerConfig(), source_size=11, target_size=11), EncoderDecoder)
        True
    """

    output: ops.Linear
    coverage_loss: float = 0.0

    @property
    def attends(self) -> bool:
        """Whether the model has attention over the source."""
        return True

    @abstractmethod
    def start(self, source: Tensor, source_lengths: Tensor) -> AnyState:
        """Encode sources (B, S) and return the initial state, one hypothesis per sentence."""

    @abstractmethod
    def decoder_step(self, tokens: Tensor, state: AnyState) -> tuple[Tensor, Tensor | None, AnyState]:
        """Decode the last token of each hypothesis (B, K): readouts (B, K, R), weights (B, K, S) or None, and the new state."""

    def step(self, tokens: Tensor, state: AnyState) -> tuple[Tensor, Tensor | None, AnyState]:
        """Decode the last token of each hypothesis (B, K): logits (B, K, V), weights (B, K, S) or None, and the new state."""
        readout, weights, state = self.decoder_step(tokens, state)
        return self.logits(readout), weights, state

    def decoding_step(
        self, tokens: Tensor, state: AnyState, shortlist: ops.OutputShortlist | None = None
    ) -> tuple[Tensor | ops.LazyLogits, Tensor | None, AnyState]:
        """Step for decoding that needs the best tokens only: within `regard.ops.packed_weights` logits may be lazy.

        `shortlist`: the only tokens that the batch may generate.
        """
        readout, weights, state = self.decoder_step(tokens, state)
        lazy = ops.lazy_logits(readout, self.output, shortlist)
        if lazy is not None:
            return lazy, weights, state
        return self.logits(readout) if shortlist is None else shortlist.keep(self.logits(readout)), weights, state

    def greedy(self, state: AnyState, rules: GreedyRules, shortlist: ops.OutputShortlist | None = None) -> GreedyTokens | None:
        """Run a greedy search in native code; None if unsupported, or outside `regard.ops.packed_weights`."""
        return None

    @abstractmethod
    def decode(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, need_weights: bool = True) -> DecoderOutput:
        """Run the decoder over given targets (B, T): readouts (B, T, R) and, if requested, attention weights (B, T, S) or None."""

    @torch.no_grad()
    def attention_maps(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, areas: bool = False) -> list[LayerAttention]:
        """Return the weights of all attentions, layers and heads for given targets.

        Args:
            source: (B, S) tokens, EOS included.
            source_lengths: (B,).
            target_input: (B, T), BOS first.
            areas: also return area weights.

        Returns:
            One entry per attention, the encoder's first, from the bottom up. For two inputs, sides of one input are "first" or "second".
        """
        with record_weights(areas=areas) as recorded:
            self.decode(source, source_lengths, target_input, need_weights=False)
        return collect_attention(self, recorded, self.side_lengths(source, source_lengths))

    @torch.no_grad()
    def alignment_and_maps(
        self, source: Tensor, source_lengths: Tensor, target_input: Tensor
    ) -> tuple[Tensor | None, list[LayerAttention]]:
        """Return the weights (B, T, S) of `decode` and `attention_maps` with areas, from one pass."""
        with record_weights(areas=True) as recorded:
            weights = self.decode(source, source_lengths, target_input).weights
        return weights, collect_attention(self, recorded, self.side_lengths(source, source_lengths))

    def side_lengths(self, source: Tensor, source_lengths: Tensor) -> dict[str, Tensor]:
        """Return the lengths (B,) per side: "source" and, for two inputs, "first" and "second"."""
        return {"source": source_lengths}

    def goals(self, target: Tensor, source: Tensor) -> Tensor:
        """Return the entries of the logits (B, T) that targets (B, T) of sources (B, S) are: the tokens themselves."""
        return target

    def logits(self, readout: Tensor) -> Tensor:
        """Map readouts (..., R) to logits (..., V), in float32 at least."""
        logits = self.output(readout)
        return logits if logits.dtype == torch.float64 else logits.float()

    def decode_taught(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, taught: TaughtHead) -> DecoderOutput:
        """Run the decoder as `decode`, with the weights (B, T, S) of the attention that learns links: here the only one."""
        return self.decode(source, source_lengths, target_input)

    def taught_name(self, taught: TaughtHead) -> str:
        """Return the module name of the attention that learns links."""
        return "decoder.attention"

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
        """Return the summed loss of the targets, skipping padding in the output layer; in training with the coverage loss.

        Args:
            source: (B, S) tokens, EOS included.
            source_lengths: (B,).
            target_input: (B, T), BOS first.
            target_output: (B, T), EOS last.
            target_lengths: (B,), EOS included.
            label_smoothing: eps of the smoothed cross-entropy.
            guide: links that an attention learns, whose loss is added; or R-Drop, which makes two passes.

        Raises:
            ConfigError: R-Drop with a coverage loss, or with copying; a guide of another type.
        """
        if isinstance(guide, RDrop):
            if self.coverage_loss:
                refuse_guide(guide, "a model with a coverage loss")
            twice = (torch.cat((part, part)) for part in (source, source_lengths, target_input))
            halves = self.decode(*twice, need_weights=False).readout.chunk(2)
            first, second, goal = unpadded(target_lengths, *halves, self.goals(target_output, source))
            return ops.consistent_cross_entropy(
                first, second, self.output.weight, self.output.bias, goal, consistency=guide.alpha, label_smoothing=label_smoothing
            )
        if guide is None:
            covered = self.training and self.coverage_loss > 0
            readout, weights = self.decode(source, source_lengths, target_input, need_weights=covered)
        elif isinstance(guide, LinkGuide):
            readout, weights = self.decode_taught(source, source_lengths, target_input, guide.taught)
        else:
            raise ConfigError(f"guide: expected a LinkGuide, RDrop or None, found {shown(guide)}")
        sums = self.sums(readout, self.goals(target_output, source), target_lengths, label_smoothing=label_smoothing)
        if guide is not None:
            assert weights is not None
            sums = sums._replace(loss=sums.loss + guide.loss(weights))
        return self.with_coverage(sums, weights, target_lengths)

    def with_coverage(self, sums: ops.SequenceLoss, weights: Tensor | None, lengths: Tensor) -> ops.SequenceLoss:
        """Add the coverage loss of weights (B, T, S), in training and if there is one."""
        if weights is None or not (self.training and self.coverage_loss > 0):
            return sums
        found = ops.coverage_loss(weights, query_mask=ops.length_mask(lengths, weights.shape[1]))
        return sums._replace(loss=sums.loss + self.coverage_loss * found)

    def sums(self, readout: Tensor, goals: Tensor, lengths: Tensor, *, label_smoothing: float) -> ops.SequenceLoss:
        """Return the summed loss of goals (B, T) of these lengths after readouts (B, T, R)."""
        return unpadded_loss(self.output, readout, goals, lengths, label_smoothing=label_smoothing)


def unpadded_loss(output: ops.Linear, readout: Tensor, goals: Tensor, lengths: Tensor, *, label_smoothing: float) -> ops.SequenceLoss:
    """Return the summed loss of the goals, skipping padding in the output layer.

    Args:
        output: output layer.
        readout: (B, T, R).
        goals: (B, T) tokens.
        lengths: (B,) unpadded lengths, 0 to T.
        label_smoothing: eps of the smoothed cross-entropy.
    """
    hidden, goal = unpadded(lengths, readout, goals)
    return ops.linear_cross_entropy(hidden, output.weight, output.bias, goal, label_smoothing=label_smoothing)


def unpadded(lengths: Tensor, *steps: Tensor) -> list[Tensor]:
    """Return of tensors (B, T, ...) the steps (N, ...) within the lengths (B,), row by row."""
    real = ops.length_mask(lengths, steps[0].shape[1]).flatten().nonzero().squeeze(1)
    return [part.flatten(0, 1).index_select(0, real) for part in steps]


class RecurrentEncoderDecoder(EncoderDecoder[DecoderState | PackedState]):
    """Translate one sequence into another with recurrent networks.

    Without attention: Cho et al. 2014. With attention: Bahdanau et al. 2015 or Luong et al. 2015, depending on the modules
    (`regard.models.build`).

    Args:
        source_embedding: (V_source, E).
        encoder: source encoder; a subclass may have another kind.
        bridge: computes the decoder's initial state.
        decoder: target decoder.
        output: readout (R) to vocabulary (V).
        dropout: on source embeddings.
        coverage_loss: lambda of `regard.ops.coverage_loss` in training; 0: none.

    Example:
        >>> import torch
        >>> from regard.config import RNNConfig
        >>> from regard.models import build
        >>> model = build(RNNConfig(decoder_dim=32), source_size=11, target_size=13)
        >>> source, lengths, target = torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[2, 6]])
        >>> loss = model(source, lengths, target, torch.tensor([[6, 3]]), torch.tensor([2]))
        >>> int(loss.tokens), model.decode(source, lengths, target).weights.shape
        (2, torch.Size([1, 2, 3]))
    """

    @checked
    def __init__(
        self,
        source_embedding: nn.Embedding,
        encoder: RecurrentEncoder | Encoder,
        bridge: Bridge,
        decoder: RecurrentDecoder,
        output: ops.Linear,
        *,
        dropout: Dropout,
        coverage_loss: Weight = 0.0,
    ) -> None:
        super().__init__()
        self.coverage_loss = coverage_loss
        self.source_embedding = source_embedding
        self.encoder = encoder
        self.bridge = bridge
        self.decoder = decoder
        self.output = output
        self.dropout = ops.Dropout(dropout)

    def start(self, source: Tensor, source_lengths: Tensor) -> DecoderState:
        """Encode sources (B, S) and return the initial state, one hypothesis per sentence."""
        return self._start(source, source_lengths, for_decoding=True)

    def decoder_step(self, tokens: Tensor, state: DecoderState | PackedState) -> tuple[Tensor, Tensor | None, DecoderState | PackedState]:
        """Decode the last token of each hypothesis (B, K): readouts (B, K, R), weights (B, K, S) or None, and the new state."""
        return self.decoder.step(tokens, state)

    def greedy(
        self, state: DecoderState | PackedState, rules: GreedyRules, shortlist: ops.OutputShortlist | None = None
    ) -> GreedyTokens | None:
        """Run a greedy search in native code; None if unsupported, or outside `regard.ops.packed_weights`."""
        output = output_plan(self.output) if shortlist is None else shortlist.plan
        return None if output is None else self.decoder.greedy(state, output, rules)

    def decode(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, need_weights: bool = True) -> DecoderOutput:
        """Run the decoder over given targets (B, T): readouts (B, T, R) and, if requested, attention weights (B, T, S) or None."""
        state = self._start(source, source_lengths, for_decoding=self.decoder.stepwise)
        return self.decoder(target_input, state, need_weights=need_weights)

    @property
    def attends(self) -> bool:
        """Whether the model has attention over the source."""
        return self.decoder.attention is not None

    def encode(self, source: Tensor, source_lengths: Tensor) -> EncoderOutput:
        """Encode sources (B, S)."""
        return cast(RecurrentEncoder, self.encoder)(self.dropout(self.source_embedding(source)), source_lengths)

    def _start(self, source: Tensor, source_lengths: Tensor, *, for_decoding: bool) -> DecoderState:
        encoded = self.encode(source, source_lengths)
        return self.decoder.start(self.bridge(encoded.final), encoded, for_decoding=for_decoding)
