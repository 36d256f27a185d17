"""Recurrent decoders: without attention, attending before the cell (Bahdanau) or after it (Luong)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention.recorder import is_recording
from regard.constructor_checks import Dropout, Size, checked
from regard.models.readout import Readout
from regard.models.rnn_attention import DecoderAttention, attend_covered, attend_memory, attention_memory, covers
from regard.models.rnn_cells import CellKind, Layers, RecurrentStack
from regard.models.rnn_encoder import EncoderOutput
from regard.models.rnn_native_step import PackedState, native_greedy, native_step, plan_of
from regard.models.rnn_state import DecoderState
from regard.ops.kernels.greedy_cpu import GreedyRules, GreedyTokens
from regard.ops.kernels.recurrent_cpu import RecurrentPlan
from regard.ops.kernels.vocabulary_cpu import OutputPlan


class DecoderOutput(NamedTuple):
    """Output of a decoder for whole targets.

    Attributes:
        readout: (B, T, R), input of the output layer.
        weights: (B, T, S) attention, or None without attention or if not requested.
    """

    readout: Tensor
    weights: Tensor | None


class Bridge(nn.Module):
    """Compute the decoder's initial state from the encoder's last states.

    Bidirectional: `s_0 = tanh(W_s h)` with the backward encoder's last state (Bahdanau et al. 2015, A.2.2). One direction with equal sizes
    and layers: the states themselves (Luong et al. 2015, section 2). Otherwise tanh(W h). An LSTM's cell has its own linear map.

    Args:
        kind: cell of both sides.
        encoder_dim: H of an encoder direction.
        encoder_layers: layers of the encoder.
        directions: 1 or 2.
        decoder_dim: H of the decoder.
        decoder_layers: layers of the decoder.

    Example:
        >>> bridge = Bridge("gru", 3, 1, directions=2, decoder_dim=5, decoder_layers=1)
        >>> bridge([(torch.ones(2, 3),), (torch.ones(2, 3),)])[0][0].shape
        torch.Size([2, 1, 5])
    """

    @checked
    def __init__(
        self, kind: CellKind, encoder_dim: Size, encoder_layers: Size, *, directions: Size, decoder_dim: Size, decoder_layers: Size
    ) -> None:
        super().__init__()
        self.directions = directions
        # Decoder layer i starts from encoder layer i, or from the last one when the decoder is deeper.
        self.sources = [min(i, encoder_layers - 1) * directions + directions - 1 for i in range(decoder_layers)]
        copy = directions == 1 and encoder_dim == decoder_dim and encoder_layers == decoder_layers
        parts = 0 if copy else decoder_layers
        self.hidden = nn.ModuleList(ops.Linear(encoder_dim, decoder_dim) for _ in range(parts))
        self.cell = nn.ModuleList(ops.Linear(encoder_dim, decoder_dim) for _ in range(parts if kind == "lstm" else 0))

    def forward(self, final: list[tuple[Tensor, ...]]) -> Layers:
        """Map the encoder's final states to the decoder's initial ones, (B, 1, H) each."""
        layers = []
        for index, source in enumerate(self.sources):
            parts = final[source]
            if len(self.hidden):
                parts = (torch.tanh(self.hidden[index](parts[0])), *(self.cell[index](part) for part in parts[1:]))
            layers.append(tuple(part.unsqueeze(1) for part in parts))
        return tuple(layers)


class RecurrentDecoder(nn.Module):
    """Recurrent decoder with attention or a fixed context vector.

        attend first (Bahdanau):  c_i = attend(s_{i-1});  s_i = cell([E y_{i-1}; c_i], s_{i-1});  t_i = readout(s_i, E y_{i-1}, c_i)
        attend last (Luong):      h_t = cell([E y_{t-1}; feed], h_{t-1});  c_t = attend(h_t);  h~_t = readout(h_t, E y_{t-1}, c_t)
        no attention:             c = [last forward; last backward state] at every step (Cho et al. 2014)

    Bahdanau et al. 2015, Eq. 4 and A.2.2; Luong et al. 2015, section 3 and 3.3 (input feeding: `feed` is h~_{t-1}). Differs from A.2.2: the
    readout takes s_i, as Eq. 4 says, where A.2.2 writes s_{i-1}.

    Args:
        embedding: the target embedding.
        stack: the recurrent layers; their second input takes Bahdanau's or the fixed context, or Luong's attentional state.
        readout: combines state, word and context.
        attention: with one or several heads, over items or areas (Li et al. 2018, 4.1.2), to one source or two; None for a fixed context.
        attend_first: Bahdanau's order (True) or Luong's.
        input_feeding: feed the attentional state back (Luong's order only).
        dropout: on embeddings and on the readout to the output layer; not on input feeding (Zaremba et al. 2014: only non-recurrent
            connections are dropped).

    Example:
        >>> from regard.models import RecurrentEncoder, RecurrentStack, TanhReadout
        >>> stack = RecurrentStack("gru", 3, 5, num_layers=1, extra_dim=10, dropout=0.0)
        >>> decoder = RecurrentDecoder(nn.Embedding(7, 3), stack, TanhReadout(5, 10, 2), attention=None)
        >>> encoded = RecurrentEncoder("gru", 3, 5, num_layers=1, bidirectional=True, dropout=0.0)(torch.ones(1, 4, 3), torch.tensor([4]))
        >>> state = decoder.start(((torch.zeros(1, 1, 5),),), encoded)
        >>> decoder(torch.tensor([[2, 4, 6]]), state).readout.shape
        torch.Size([1, 3, 2])
    """

    @checked
    def __init__(
        self,
        embedding: nn.Embedding,
        stack: RecurrentStack,
        readout: Readout,
        *,
        attention: DecoderAttention | None,
        attend_first: bool = False,
        input_feeding: bool = False,
        dropout: Dropout = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.readout = readout
        self.attention = attention
        self.attend_first = attend_first and attention is not None
        self.input_feeding = input_feeding
        self.dropout = ops.Dropout(dropout)

    def start(self, layers: Layers, encoded: EncoderOutput, *, for_decoding: bool = True) -> DecoderState:
        """Return the initial state: one hypothesis per sentence, with layers (B, 1, H) from the bridge.

        `for_decoding`: precompute costly parts for many attention steps.
        """
        batch = encoded.states.shape[0]
        feed = layers[0][0].new_zeros(batch, 1, self.readout.output_dim) if self.input_feeding else None
        if self.attention is not None:
            coverage = layers[0][0].new_zeros(batch, 1, encoded.states.shape[1]) if covers(self.attention) else None
            return DecoderState(layers, attention_memory(self.attention, encoded, for_decoding=for_decoding), None, feed, 0, coverage)
        directions = encoded.states.shape[-1] // encoded.final[-1][0].shape[-1]
        context = torch.cat([parts[0] for parts in encoded.final[-directions:]], -1).unsqueeze(1)
        return DecoderState(layers, None, context, feed, 0)

    @property
    def stepwise(self) -> bool:
        """Whether attention depends on the previous step, so that whole targets attend token by token."""
        return self.attend_first or self.input_feeding or covers(self.attention)

    def forward(self, target: Tensor, state: DecoderState, *, need_weights: bool = True) -> DecoderOutput:
        """Run over whole targets (B, T), shifted by one.

        Only the recurrent part runs step by step; the rest runs for all steps at once.
        """
        embedded = self.dropout(self.embedding(target))
        gates = self.stack.project(embedded)
        if not target.shape[1]:
            return DecoderOutput(embedded.new_zeros(*target.shape, self.readout.output_dim), None)
        if self.stepwise:
            steps = gates.unsqueeze(2).unbind(1)  # T times (B, 1, G H)
            with ops.recurrent_steps():
                run = self._forward_first if self.attend_first else self._forward_fed
                return run(steps, embedded, state, need_weights)
        layers = tuple(tuple(part.squeeze(1) for part in layer) for layer in state.layers)
        tops, _ = self.stack.run(gates, layers, state.context)  # (B, T, H)
        context, weight = self._context(tops, state, torch.arange(target.shape[1], device=target.device), need_weights)
        return DecoderOutput(self.dropout(self._read(tops, embedded, context)), weight)

    def step(self, tokens: Tensor, state: DecoderState | PackedState) -> tuple[Tensor, Tensor | None, DecoderState | PackedState]:
        """Decode one token per hypothesis (B, K): return the readout (B, K, R), weights (B, K, S) or None, and the new state.

        Within `regard.ops.packed_weights`, one native call if the library supports the decoder.
        """
        plan = self._plan()
        if plan is not None:
            return native_step(plan, tokens, state if isinstance(state, PackedState) else PackedState.of(state, self))
        state = state.unpacked() if isinstance(state, PackedState) else state
        embedded = self.dropout(self.embedding(tokens))
        gates = self.stack.project(embedded)
        if self.attend_first:
            state, context, weights = self._attend_first(gates, state, True)
            return self.dropout(self._read(state.top, embedded, context)), weights, state
        readout, weights, state = self._attend_last(gates, embedded, state, True)
        return self.dropout(readout), weights, replace(state, position=state.position + 1)

    def greedy(self, state: DecoderState | PackedState, output: OutputPlan, rules: GreedyRules) -> GreedyTokens | None:
        """Run a greedy search in the native library; None if it does not support the decoder."""
        plan = self._plan()
        if plan is None or state.position:
            return None
        return native_greedy(plan, output, state if isinstance(state, PackedState) else PackedState.of(state, self), rules)

    def _plan(self) -> RecurrentPlan | None:
        return None if is_recording() else ops.cached_by_owner(self, lambda dtype: plan_of(self, dtype))

    def _forward_first(self, steps: tuple[Tensor, ...], embedded: Tensor, state: DecoderState, need_weights: bool) -> DecoderOutput:
        hidden, contexts, weights = [], [], []
        for gates in steps:
            state, context, weight = self._attend_first(gates, state, need_weights)
            hidden.append(state.top)
            contexts.append(context)
            weights.append(weight)
        return DecoderOutput(self.dropout(self._read(torch.cat(hidden, 1), embedded, torch.cat(contexts, 1))), _joined(weights))

    def _forward_fed(self, steps: tuple[Tensor, ...], embedded: Tensor, state: DecoderState, need_weights: bool) -> DecoderOutput:
        readouts, weights = [], []
        for gates, word in zip(steps, embedded.unsqueeze(2).unbind(1), strict=True):
            readout, weight, state = self._attend_last(gates, word, state, need_weights)
            state = replace(state, position=state.position + 1)
            readouts.append(readout)
            weights.append(weight)
        return DecoderOutput(self.dropout(torch.cat(readouts, 1)), _joined(weights))

    def _attend_first(self, gates: Tensor, state: DecoderState, need_weights: bool) -> tuple[DecoderState, Tensor, Tensor | None]:
        context, weights = self._context(state.top, state, state.position, need_weights)
        state = replace(state.cover(weights), layers=self.stack(gates, state.layers, context), position=state.position + 1)
        return state, context, weights

    def _attend_last(
        self, gates: Tensor, embedded: Tensor, state: DecoderState, need_weights: bool
    ) -> tuple[Tensor, Tensor | None, DecoderState]:
        layers = self.stack(gates, state.layers, state.feed if self.input_feeding else state.context)
        state = replace(state, layers=layers)
        context, weights = self._context(state.top, state, state.position, need_weights)
        readout = self._read(state.top, embedded, context)
        state = state.cover(weights)
        return readout, weights, replace(state, feed=readout) if self.input_feeding else state

    def _context(self, query: Tensor, state: DecoderState, position: int | Tensor, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        if self.attention is None or state.memory is None:
            assert state.context is not None
            return state.context, None
        if state.coverage is not None:
            return attend_covered(self.attention, query, state.memory, state.coverage, position=position)
        return attend_memory(self.attention, query, state.memory, position=position, need_weights=need_weights)

    def _read(self, top: Tensor, embedded: Tensor, context: Tensor) -> Tensor:
        return self.readout(top, embedded, context.expand(*top.shape[:-1], -1))


def _joined(weights: list[Tensor | None]) -> Tensor | None:
    kept = [weight for weight in weights if weight is not None]
    return torch.cat(kept, 1) if kept else None
