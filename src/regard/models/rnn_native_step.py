"""Recurrent decoder steps by the native library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import AdditiveScore, Attention, ConcatScore, DotScore, GeneralScore, Memory
from regard.models.embedding import ScaledEmbedding
from regard.models.readout import DeepReadout, TanhReadout
from regard.models.rnn_cells import RecurrentCell, RecurrentStack
from regard.models.rnn_state import DecoderState
from regard.ops.kernels import native
from regard.ops.kernels.encoder_cpu import EncoderPlan
from regard.ops.kernels.greedy_cpu import GreedyRules, GreedyTokens, search
from regard.ops.kernels.panels import Affine
from regard.ops.kernels.recurrent_cpu import CellWeights, Hypotheses, RecurrentPlan, RecurrentWeights, Sources
from regard.ops.kernels.vocabulary_cpu import OutputPlan

if TYPE_CHECKING:
    from regard.models.rnn_decoder import RecurrentDecoder

# Modules not listed here, such as a new score, run in PyTorch at every step: equal results, slower.
_KNOWN = ((nn.Embedding, ScaledEmbedding), (AdditiveScore, ConcatScore, DotScore, GeneralScore), (DeepReadout, TanhReadout))


@dataclass(frozen=True)
class PackedState:
    """Decoding state in the native library's layout; the next step looks up the selected hypotheses.

    Attributes:
        first: the state before the first native step.
        sources: all sentences at that time; constant.
        parts: (N, W) concatenated states after the last step: each layer's parts, then the input feeding.
        parents: (B, K) long, row of each hypothesis in `parts`.
        sentences: (B,) long, index of each sentence in the sources.
        position: number of target tokens so far.
    """

    first: DecoderState
    sources: Sources
    parts: Tensor
    parents: Tensor
    sentences: Tensor
    position: int

    @classmethod
    def of(cls, state: DecoderState, decoder: RecurrentDecoder) -> PackedState:
        """Pack the state of a decoder with a plan."""
        assert isinstance(state.memory, Memory)
        values = state.memory.value if decoder.attend_first else ops.linear(state.memory.value, _context_weight(decoder))
        fed = [] if state.feed is None else [state.feed]
        parts = torch.cat([*(part for layer in state.layers for part in layer), *fed], -1)
        batch, beam = parts.shape[:2]
        places = torch.arange(batch * beam).view(batch, beam)
        sources = Sources(state.memory.key.contiguous(), values.contiguous(), state.memory.lengths)
        return cls(state, sources, parts.flatten(0, 1), places, torch.arange(batch), state.position)

    def select(self, rows: Tensor, beams: Tensor) -> PackedState:
        """Keep sentences `rows` (B',) and their hypotheses `beams` (B', K')."""
        return replace(self, parents=self.parents[rows.unsqueeze(1), beams], sentences=self.sentences[rows])

    def unpacked(self) -> DecoderState:
        """Convert to a `DecoderState`."""
        first = self.first
        sizes = [part.shape[-1] for layer in first.layers for part in layer]
        *parts, fed = self.parts[self.parents].split([*sizes, self.parts.shape[1] - sum(sizes)], -1)
        each = iter(parts)
        return DecoderState(
            layers=tuple(tuple(next(each) for _ in layer) for layer in first.layers),
            memory=None if first.memory is None else first.memory.rows(self.sentences),
            context=None,
            feed=None if first.feed is None else fed,
            position=self.position,
        )


def plan_of(decoder: RecurrentDecoder, dtype: torch.dtype = torch.float32) -> RecurrentPlan | None:
    """Pack a decoder's weights for the native library; None if it does not support the decoder.

    Supports GRU and LSTM layers with one attention over the whole source (additive, concat, general or dot score with a softmax, before or
    after them), in float32 on a CPU, in evaluation mode.

    Args:
        decoder: the decoder.
        dtype: dtype of the products, torch.float32 or torch.int8.

    Example:
        >>> from regard.config import RNNConfig
        >>> from regard.models import build
        >>> decoder = build(RNNConfig(), source_size=11, target_size=13).decoder
        >>> plan_of(decoder) is None  # in training
        True
        >>> (plan_of(decoder.eval()) is None) == (native.library() is None)
        True
    """
    attention, stack = decoder.attention, decoder.stack
    if native.library() is None or decoder.training or not isinstance(attention, Attention):
        return None
    if attention.window is not None or attention.areas is not None or attention.choice is not None or attention.normalizer != "softmax":
        return None
    if isinstance(attention.score, AdditiveScore) and attention.score.coverage is not None:
        return None
    parts = (decoder.embedding, attention.score, decoder.readout)
    if any(type(part) not in known for part, known in zip(parts, _KNOWN, strict=True)) or decoder.embedding.max_norm is not None:
        return None
    if any(cell.kind == "tanh" for cell in _cells(stack)) or (decoder.attend_first and decoder.input_feeding):
        return None
    if any(part.dtype != torch.float32 or part.device.type != "cpu" for part in decoder.parameters()):
        return None
    return RecurrentPlan(_weights(decoder, attention), dtype)


def plan_of_cell(cell: RecurrentCell, dtype: torch.dtype = torch.float32) -> EncoderPlan | None:
    """Pack the recurrent weights of an encoder's layer for the native library; None if unsupported.

    Supports GRU and LSTM layers in float32 on a CPU.

    Example:
        >>> (plan_of_cell(RecurrentCell("gru", 5)) is None) == (native.library() is None)
        True
    """
    if native.library() is None or cell.kind == "tanh" or cell.weight.dtype != torch.float32 or cell.weight.device.type != "cpu":
        return None
    return EncoderPlan(cell.weight, cell.bias, dtype)


def native_step(plan: RecurrentPlan, tokens: Tensor, state: PackedState) -> tuple[Tensor, Tensor, PackedState]:
    """Run a step of the plan.

    Args:
        plan: from `plan_of`.
        tokens: (B, K) long, last token of each hypothesis.
        state: state before the step.

    Returns:
        The readouts (B, K, R), weights (B, K, S), and the new state.
    """
    readout, weights, parts = plan.step(Hypotheses(tokens, state.parts, state.parents, state.sentences), state.sources)
    places = torch.arange(tokens.numel()).view(tokens.shape)
    return readout, weights, replace(state, parts=parts, parents=places, position=state.position + 1)


def native_greedy(plan: RecurrentPlan, output: OutputPlan, state: PackedState, rules: GreedyRules) -> GreedyTokens | None:
    """Run a greedy search.

    Args:
        plan: from `plan_of`.
        output: weights of the output layer.
        state: state before the first step, one hypothesis per sentence.
        rules: constraints of the search.

    Returns:
        See `regard.ops.kernels.greedy_cpu.search`.
    """
    tokens = torch.full_like(state.parents, rules.bos)
    call, readout = plan.prepared(Hypotheses(tokens, state.parts, state.parents, state.sentences), state.sources)
    return search(call, readout, output, rules, words=None, kept=state.parents.flatten().clone())


def _cells(stack: RecurrentStack) -> list[RecurrentCell]:
    return [cell for cell in stack.cells if isinstance(cell, RecurrentCell)]


def _affine(part: nn.Module | None) -> Affine | None:
    return Affine(part.weight, part.bias) if isinstance(part, nn.Linear) else None


def _weights(decoder: RecurrentDecoder, attention: Attention) -> RecurrentWeights:
    stack, score = decoder.stack, attention.score
    query, vector, scale = None, None, 1.0
    match score:
        case AdditiveScore():
            query, vector = Affine(score.query.weight, None), score.vector
        case ConcatScore():
            query, vector = Affine(score.weight[:, : score.query_dim], None), score.vector
        case DotScore() if score.scaled:
            scale = stack.hidden_size**-0.5
    below = [layer for layer in stack.inputs if isinstance(layer, nn.Linear)]
    return RecurrentWeights(
        table=decoder.embedding.weight,
        scale=decoder.embedding.scale if isinstance(decoder.embedding, ScaledEmbedding) else 1.0,
        layers=[
            CellWeights(Affine(layer.weight, layer.bias), Affine(cell.weight, None), cell.bias)
            for layer, cell in zip(below, _cells(stack), strict=True)
        ],
        extra=_affine(stack.extra),
        query=query,
        vector=vector,
        score_scale=scale,
        readout=_read(decoder),
        attend_first=decoder.attend_first,
        deep=isinstance(decoder.readout, DeepReadout),
    )


def _read(decoder: RecurrentDecoder) -> tuple[Affine, Affine | None, Affine | None]:
    # The readout's parts for state, word and context; for maxout the first of every pair, then the second.
    weight, bias, hidden = decoder.readout.linear.weight, decoder.readout.linear.bias, decoder.stack.hidden_size
    context = Affine(_context_weight(decoder), None) if decoder.attend_first else None
    if isinstance(decoder.readout, TanhReadout):
        return Affine(weight[:, weight.shape[1] - hidden :], bias), None, context
    state, word = _halves(weight)[:, :hidden], _halves(weight)[:, hidden : hidden + decoder.embedding.embedding_dim]
    return Affine(state, _halves(bias)), Affine(word, None), context


def _context_weight(decoder: RecurrentDecoder) -> Tensor:
    # In Luong's order the context enters the readout only: project each value once, not every weighted sum.
    weight, hidden = decoder.readout.linear.weight, decoder.stack.hidden_size
    if isinstance(decoder.readout, TanhReadout):
        return weight[:, : weight.shape[1] - hidden]
    return _halves(weight)[:, hidden + decoder.embedding.embedding_dim :]


def _halves(part: Tensor) -> Tensor:
    return part.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1)
