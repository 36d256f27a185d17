"""The decoder of Show, Attend and Tell: an LSTM that attends to the image before each word."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import Attention, HardOutput, Memory
from regard.constructor_checks import Dropout, Size, checked
from regard.models.cross_attention import mean_head_weights, queries_per_source
from regard.models.rnn_cells import RecurrentStack
from regard.models.rnn_state import DecoderState


class ImageAttention(NamedTuple):
    """Attention to the image, for whole targets (T) or one step of hypotheses (K).

    Attributes:
        weights: (B, T, L) cell weights, rows sum to 1, or None if not requested.
        log_prob: (B, T) log-probability of the selected cell; None for soft attention.
        entropy: (B, T) nats, of the distribution; None for soft attention.
        sampled: (B, T) bool, whether it was sampled; None for soft attention.
    """

    weights: Tensor | None
    log_prob: Tensor | None
    entropy: Tensor | None
    sampled: Tensor | None


class ShowDecoder(nn.Module):
    """LSTM caption decoder that attends to the grid before each word. Xu et al. 2015 (arXiv:1502.03044), section 3.1.2.

        c_0 = tanh(f_c(mean a)), h_0 = tanh(f_h(mean a));  alpha_t = softmax(f_att(a, h_{t-1}));  z_t = beta_t sum_i alpha_ti a_i
        beta_t = sigmoid(f_beta(h_{t-1}));  h_t = LSTM(E y_{t-1}, z_t, h_{t-1});  readout = tanh(E y_{t-1} + L_h h_t + L_z z_t)

    With `look_last` the querying state includes the previous word: h_t = LSTM(E y_{t-1}, z_{t-1}, h_{t-1}), alpha_t of h_t.

    Differs from the paper: the tanh of the readout is in the authors' code, not in Eq. 7; a caption begins with BOS, not with zeros. f_c
    and f_h are one layer each.

    Args:
        embedding: of words, (V, E).
        stack: one LSTM layer whose second input takes z.
        attention: soft, or hard with a `choice`.
        feature_dim: F, features of a cell.
        look_last: attend with the state after the last word.
        dropout: on embedded words, on h_t before the readout, and on the readout.

    Parameters: `embedding.*`, `stack.*`, `attention.*`; `first_hidden.*`, `first_cell.*` (H, F), `gate.*` (1, H), each with a bias;
    `state.weight` (E, H) and `context.weight` (E, F): L_h and L_z.

    Example:
        >>> from regard.attention import AdditiveScore
        >>> stack = RecurrentStack("lstm", 3, 5, num_layers=1, extra_dim=7, dropout=0.0)
        >>> decoder = ShowDecoder(nn.Embedding(11, 3), stack, Attention(AdditiveScore(5, 7, 2)), 7)
        >>> readout, look = decoder(torch.tensor([[2, 4]]), decoder.start(torch.ones(1, 6, 7)), need_weights=True)
        >>> readout.shape, look.weights.shape
        (torch.Size([1, 2, 3]), torch.Size([1, 2, 6]))
    """

    @checked
    def __init__(
        self,
        embedding: nn.Embedding,
        stack: RecurrentStack,
        attention: Attention,
        feature_dim: Size,
        *,
        look_last: bool = False,
        dropout: Dropout = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.attention = attention
        self.look_last = look_last
        self.first_hidden = ops.Linear(feature_dim, stack.hidden_size)
        self.first_cell = ops.Linear(feature_dim, stack.hidden_size)
        self.gate = ops.Linear(stack.hidden_size, 1)
        self.state = ops.Linear(stack.hidden_size, embedding.embedding_dim, bias=False)
        self.context = ops.Linear(feature_dim, embedding.embedding_dim, bias=False)
        self.dropout = ops.Dropout(dropout)

    def start(self, features: Tensor) -> DecoderState:
        """Return the initial state for features (B, L, F), one hypothesis per image."""
        mean = features.mean(1, keepdim=True)
        layer = torch.tanh(self.first_hidden(mean)), torch.tanh(self.first_cell(mean))
        feed = features.new_zeros(features.shape[0], 1, features.shape[-1]) if self.look_last else None
        return DecoderState((layer,), self.attention.memory(features), None, feed, 0)

    def forward(
        self, target: Tensor, state: DecoderState, *, need_weights: bool = False, soft: Tensor | None = None
    ) -> tuple[Tensor, ImageAttention]:
        """Run over whole targets (B, T), shifted by one: readouts (B, T, E), and the attention.

        The state has B images, or B / G with G consecutive targets each. `soft`, one per image, marks those with expected weights in hard
        attention (`HardChoice.soft_rows`).
        """
        embedded = self.dropout(self.embedding(target))
        images = len(state.top)
        each = queries_per_source(len(target), images)
        # T times (images, G, 4 H): targets of one image are queries on it.
        steps = self.stack.project(embedded).unflatten(0, (images, each)).unbind(2)
        if not steps:
            return embedded, ImageAttention(None, None, None, None)
        state = state.repeat(each)
        tops, contexts, looks = [], [], []
        with ops.recurrent_steps():
            for gates in steps:
                state, context, look = self._move(gates, state, need_weights, soft)
                tops.append(state.top)
                contexts.append(context)
                looks.append(look)
        joined = (None if parts[0] is None else torch.stack(parts, 2).flatten(0, 1) for parts in zip(*looks, strict=True))
        top, context = (torch.stack(parts, 2).flatten(0, 1) for parts in (tops, contexts))
        return self._read(top, embedded, context), ImageAttention(*joined)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, Tensor | None, DecoderState]:
        """Decode one word per hypothesis (B, K): the readout (B, K, E), weights (B, K, L), and the new state."""
        embedded = self.dropout(self.embedding(tokens))
        state, context, look = self._move(self.stack.project(embedded), state, True, None)
        return self._read(state.top, embedded, context), look.weights, state

    def _move(
        self, gates: Tensor, state: DecoderState, need_weights: bool, soft: Tensor | None
    ) -> tuple[DecoderState, Tensor, ImageAttention]:
        if self.look_last:
            state = replace(state, layers=self.stack(gates, state.layers, state.feed))
        query, memory = state.top, state.memory
        assert isinstance(memory, Memory)
        found = self.attention.attend(query, memory, need_weights=need_weights, soft=soft)
        context = torch.sigmoid(self.gate(query)) * found.context
        state = replace(state, feed=context) if self.look_last else replace(state, layers=self.stack(gates, state.layers, context))
        weights = found.weights
        if weights is not None and self.attention.areas is not None:
            weights = mean_head_weights(weights)
        parts = (found.log_prob, found.entropy, found.sampled) if isinstance(found, HardOutput) else (None, None, None)
        return replace(state, position=state.position + 1), context, ImageAttention(weights, *parts)

    def _read(self, top: Tensor, embedded: Tensor, context: Tensor) -> Tensor:
        return self.dropout(torch.tanh(embedded + self.state(self.dropout(top)) + self.context(context)))
