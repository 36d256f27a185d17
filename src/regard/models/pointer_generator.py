"""Pointer-generator: an encoder-decoder that also copies source words, unknown ones too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Count, checked
from regard.errors import ConfigError
from regard.models.attention_maps import LayerAttention
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.loss_guides import LinkGuide, RDrop, refuse_guide
from regard.models.rnn_decoder import DecoderOutput
from regard.models.state_rows import keeps_all


@dataclass(frozen=True)
class CopyState:
    """Decoding state: that of the model, and the words of the sources.

    Attributes:
        inner: the model's.
        places: (B, S) from `regard.ops.copy_places`.
    """

    inner: Any
    places: Tensor

    def select(self, rows: Tensor, beams: Tensor) -> CopyState:
        """Keep sentences `rows` (B',) and their hypotheses `beams` (B', K')."""
        same = keeps_all(rows, len(self.places))
        return CopyState(self.inner.select(rows, beams), self.places if same else self.places.index_select(0, rows))


class PointerGenerator(EncoderDecoder[CopyState]):
    """Generate each word from the vocabulary, or copy it from the source.

        p(w) = p_gen P_vocab(w) + (1 - p_gen) sum over s with source_s = w of a_s,   p_gen = sigmoid(w . readout + b)

    See et al. 2017 (arXiv:1704.04368), Eq. 8 to 10, with the attention a of the model: a recurrent decoder's own, a Transformer's mean
    over the heads of its `alignment_layer`. Token ids of V and more are names of unknown words; sources and targets use the same ones.
    The results have V + S entries: entry V + s is the word at source position s, see `regard.ops.copy_places`. The model reads unknown
    words as `unknown`.

    Differs from the paper: p_gen reads the readout, which is made of the context, the state and the last word, not these three (as in
    OpenNMT).

    Args:
        model: an encoder-decoder with attention.
        unknown: id of the unknown word.

    Parameters: `model.*`, `gate.weight` (1, R), `gate.bias` (1,).

    Raises:
        ConfigError: the model has no attention.

    Example:
        >>> import torch
        >>> from regard.config import RNNConfig
        >>> from regard.models import build
        >>> model = PointerGenerator(build(RNNConfig(), source_size=11, target_size=11)).eval()
        >>> state = model.start(torch.tensor([[4, 900, 3]]), torch.tensor([3]))
        >>> log_probs, weights, state = model.step(torch.tensor([[2]]), state)
        >>> log_probs.shape, bool(log_probs[0, 0, 12] > -torch.inf), bool(log_probs[0, 0, 11] > -torch.inf)  # 12: the word 900
        (torch.Size([1, 1, 14]), True, False)
    """

    @checked
    def __init__(self, model: EncoderDecoder[Any], *, unknown: Count = 1) -> None:
        super().__init__()
        if not model.attends:
            raise ConfigError("PointerGenerator: copies by attention weights, but the model has no attention")
        self.model = model
        self.unknown = unknown
        self.gate = ops.Linear(model.output.in_features, 1)
        nn.init.zeros_(self.gate.bias)

    @property
    def size(self) -> int:
        """V, entries of the vocabulary."""
        return self.model.output.out_features

    def start(self, source: Tensor, source_lengths: Tensor) -> CopyState:
        """Encode sources (B, S) and return the initial state, one hypothesis per sentence."""
        return CopyState(self.model.start(self._known(source), source_lengths), ops.copy_places(source, self.size))

    def decoder_step(self, tokens: Tensor, state: CopyState) -> tuple[Tensor, Tensor | None, CopyState]:
        """Decode the last token of each hypothesis (B, K): log-probabilities (B, K, V + S), weights (B, K, S), and the new state."""
        readout, weights, inner = self.model.decoder_step(self._known(tokens), state.inner)
        assert weights is not None
        return self._mixed(readout, weights, state.places), weights, CopyState(inner, state.places)

    def decoding_step(
        self, tokens: Tensor, state: CopyState, shortlist: ops.OutputShortlist | None = None
    ) -> tuple[Tensor, Tensor | None, CopyState]:
        """Step; the mixture needs all log-probabilities.

        Raises:
            ConfigError: a shortlist, which would save nothing here.
        """
        if shortlist is not None:
            raise ConfigError("shortlist: not with a pointer-generator, which needs the probabilities of all tokens")
        return self.step(tokens, state)

    def decode(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, need_weights: bool = True) -> DecoderOutput:
        """Run the decoder over given targets (B, T): log-probabilities (B, T, V + S) as readouts, and weights (B, T, S)."""
        readout, weights = self._decode(source, source_lengths, target_input)
        return DecoderOutput(self._mixed(readout, weights, ops.copy_places(source, self.size)), weights if need_weights else None)

    def logits(self, readout: Tensor) -> Tensor:
        """Return the log-probabilities (..., V + S) unchanged."""
        return readout

    def goals(self, target: Tensor, source: Tensor) -> Tensor:
        """Return the entries (B, T) of targets among the V + S of their sources."""
        return ops.copy_goals(target, source, self.size, unknown=self.unknown)

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
        """Return the summed loss of the targets; arguments as in `EncoderDecoder.forward`. See `regard.ops.copy_loss`.

        Raises:
            ConfigError: links to learn, for a model that learns to copy by the same attention.
        """
        refuse_guide(guide, "PointerGenerator")
        readout, weights = self._decode(source, source_lengths, target_input)
        sums = ops.copy_loss(
            self.model.logits(readout),
            self.gate(readout).squeeze(-1),
            weights,
            ops.copy_places(source, self.size),
            self.goals(target_output, source),
            real=ops.length_mask(target_lengths, target_output.shape[1]),
            label_smoothing=label_smoothing,
        )
        return self.model.with_coverage(sums, weights, target_lengths)

    def attention_maps(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, areas: bool = False) -> list[LayerAttention]:
        """Return the weights of the model's attentions; see there."""
        return self.model.attention_maps(self._known(source), source_lengths, self._known(target_input), areas=areas)

    def alignment_and_maps(
        self, source: Tensor, source_lengths: Tensor, target_input: Tensor
    ) -> tuple[Tensor | None, list[LayerAttention]]:
        """Return the weights and maps of the model; see there."""
        return self.model.alignment_and_maps(self._known(source), source_lengths, self._known(target_input))

    def _decode(self, source: Tensor, source_lengths: Tensor, target_input: Tensor) -> tuple[Tensor, Tensor]:
        readout, weights = self.model.decode(self._known(source), source_lengths, self._known(target_input), need_weights=True)
        if weights is None:  # no token
            weights = readout.new_zeros(*target_input.shape, source.shape[1])
        return readout, weights

    def _mixed(self, readout: Tensor, weights: Tensor, places: Tensor) -> Tensor:
        weights = F.pad(weights, (0, places.shape[1] - weights.shape[-1]))  # a step may have cut off padding
        return ops.copy_log_probs(self.model.logits(readout), self.gate(readout).squeeze(-1), weights, places)

    def _known(self, tokens: Tensor) -> Tensor:
        return tokens.masked_fill(tokens >= self.size, self.unknown)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"unknown={self.unknown}"
