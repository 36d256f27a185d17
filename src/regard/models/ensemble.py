"""Ensemble decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import checked
from regard.errors import ConfigError
from regard.models.attention_maps import LayerAttention
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.pointer_generator import PointerGenerator
from regard.models.rnn_decoder import DecoderOutput


@dataclass(frozen=True)
class EnsembleState:
    """Decoding states of all models.

    Attributes:
        states: one per model.
    """

    states: tuple[Any, ...]

    def select(self, rows: Tensor, beams: Tensor) -> EnsembleState:
        """Keep sentences `rows` (B',) and their hypotheses `beams` (B', K')."""
        return EnsembleState(tuple(state.select(rows, beams) for state in self.states))


class Ensemble(EncoderDecoder[EnsembleState]):
    """Decode with the mean probability of several models.

        p(y_t | y_<t, x) = 1/N sum_n p_n(y_t | y_<t, x)

    Models may be of different families but must have the same vocabularies, which the caller ensures. Logits are log-probabilities, and
    there is no output layer. Attention is the mean of the models' attentions if all have one.

    Args:
        models: one or more, possibly repeated.

    Raises:
        ConfigError: there is no model, or only some of them copy.

    Example:
        >>> from regard.config import RNNConfig, TransformerConfig
        >>> from regard.models import build
        >>> models = [build(config, source_size=11, target_size=11) for config in (RNNConfig(), TransformerConfig())]
        >>> both = Ensemble(models).eval()
        >>> logits, _, _ = both.step(torch.tensor([[2]]), both.start(torch.tensor([[4, 5, 3]]), torch.tensor([3])))
        >>> round(logits.exp().sum().item(), 4)
        1.0
    """

    @checked
    def __init__(self, models: Sequence[EncoderDecoder[Any]]) -> None:
        super().__init__()
        if not models:
            raise ConfigError("Ensemble: expected one model or more, found none")
        if len({isinstance(model, PointerGenerator) for model in models}) > 1:
            raise ConfigError("Ensemble: some of the models copy source words and some do not; their probabilities are of different words")
        self.models = nn.ModuleList(models)

    @property
    def attends(self) -> bool:
        """Whether all models have attention."""
        return all(model.attends for model in self._models())

    def start(self, source: Tensor, source_lengths: Tensor) -> EnsembleState:
        """Encode sources (B, S) with every model."""
        return EnsembleState(tuple(model.start(source, source_lengths) for model in self._models()))

    def decoder_step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, Tensor | None, EnsembleState]:
        """Decode the last token of each hypothesis (B, K): log-probabilities (B, K, V), weights (B, K, S) or None, and the new state."""
        steps = [model.step(tokens, own) for model, own in zip(self._models(), state.states, strict=True)]
        logits, weights, states = zip(*steps, strict=True)
        return _mean_log_probs(logits), _mean_weights(weights), EnsembleState(states)

    def decoding_step(
        self, tokens: Tensor, state: EnsembleState, shortlist: ops.OutputShortlist | None = None
    ) -> tuple[Tensor, Tensor | None, EnsembleState]:
        """Step; the mean needs the log-probabilities of all tokens.

        Raises:
            ConfigError: a shortlist, which would save nothing here.
        """
        if shortlist is not None:
            raise ConfigError("shortlist: not in an ensemble, which averages the probabilities of all tokens")
        return self.step(tokens, state)

    def decode(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, need_weights: bool = True) -> DecoderOutput:
        """Run all decoders over given targets (B, T): log-probabilities (B, T, V) as readouts, and weights (B, T, S) or None."""
        outputs = [model.decode(source, source_lengths, target_input, need_weights=need_weights) for model in self._models()]
        log_probs = _mean_log_probs([model.logits(output.readout) for model, output in zip(self._models(), outputs, strict=True)])
        return DecoderOutput(log_probs, _mean_weights([output.weights for output in outputs]))

    def logits(self, readout: Tensor) -> Tensor:
        """Return the log-probabilities (..., V) unchanged."""
        return readout

    def goals(self, target: Tensor, source: Tensor) -> Tensor:
        """Return the entries (B, T) of targets; the same for all models."""
        return self._models()[0].goals(target, source)

    def sums(self, readout: Tensor, goals: Tensor, lengths: Tensor, *, label_smoothing: float) -> ops.SequenceLoss:
        """Return the summed loss of goals (B, T) after log-probabilities (B, T, V)."""
        rows, goal = readout[(real := ops.length_mask(lengths, goals.shape[1]))], goals[real]
        nll = -rows.gather(1, goal.unsqueeze(1)).sum()
        loss = nll
        if label_smoothing:  # over the vocabulary, not the words that only the source has
            first = self._models()[0]
            words = rows[:, : first.size] if isinstance(first, PointerGenerator) else rows
            loss = (1 - label_smoothing) * nll - label_smoothing * words.mean(1).sum()
        correct = (rows.argmax(1) == goal).sum().to(nll.dtype)
        return ops.SequenceLoss(loss, nll.detach(), torch.tensor(goal.shape[0], device=goal.device), correct)

    def attention_maps(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, areas: bool = False) -> list[LayerAttention]:
        """Return the weights of all attentions of all models; names begin with "models.0.", "models.1." and so on."""
        return [
            found._replace(name=f"models.{number}.{found.name}")
            for number, model in enumerate(self._models())
            for found in model.attention_maps(source, source_lengths, target_input, areas=areas)
        ]

    def alignment_and_maps(
        self, source: Tensor, source_lengths: Tensor, target_input: Tensor
    ) -> tuple[Tensor | None, list[LayerAttention]]:
        """Return the mean weights (B, T, S) and the maps of all models; see `attention_maps`."""
        parts = [model.alignment_and_maps(source, source_lengths, target_input) for model in self._models()]
        named = [each._replace(name=f"models.{number}.{each.name}") for number, (_, maps) in enumerate(parts) for each in maps]
        return _mean_weights([weights for weights, _ in parts]), named

    def _models(self) -> list[EncoderDecoder[Any]]:
        return cast(list[EncoderDecoder[Any]], list(self.models))


def _mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    # log of the mean of the softmaxes, in the precision of the logits, which is float32 or more
    total = logits[0].log_softmax(-1)
    for other in logits[1:]:
        total = torch.logaddexp(total, other.log_softmax(-1))
    return total - math.log(len(logits))


def _mean_weights(weights: Sequence[Tensor | None]) -> Tensor | None:
    kept = [each for each in weights if each is not None]
    if len(kept) < len(weights):
        return None
    width = min(each.shape[-1] for each in kept)  # a step may have cut padding off
    return torch.stack([each[..., :width] for each in kept]).mean(0)
