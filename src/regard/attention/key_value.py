"""Key-value attention over the recent past, for language models."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Ge, Lt
from torch import Tensor, nn

from regard import ops
from regard.attention.base import AttentionOutput
from regard.attention.recorder import is_recording, record_call
from regard.constructor_checks import Dropout, Size, checked
from regard.errors import ConfigError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_key_mask
from regard.ops.sparsemax import Normalizer
from regard.ops.tensor_checks import check_states

Parts = Annotated[int, Ge(1), Lt(4), "should be 1, 2 or 3"]


class KeyValueMemory(NamedTuple):
    """The last L positions of a sequence, prepared for attention. A value passed from step to step; its length is always L.

    Attributes:
        key: (B, L, d) keys times W_Y, oldest first; zeros before the start of the sequence and where masked.
        value: (B, L, d) values; zeros likewise.
        mask: (B, L) bool, False before the start of the sequence and where masked.
    """

    key: Tensor
    value: Tensor
    mask: Tensor

    def rows(self, index: Tensor) -> KeyValueMemory:
        """Keep only the sequences `index` (B',), in that order."""
        return KeyValueMemory(*(part.index_select(0, index) for part in self))


class KeyValueAttention(nn.Module):
    """Attend to the last L hidden states, each split into a key, a value and (three parts) a prediction.

        [k_i; v_i; p_i] = h_i
        a_i  = softmax(w . tanh(W_Y [k_{i-L} .. k_{i-1}] + (W_h k_i) 1^T))
        r_i  = [v_{i-L} .. v_{i-1}] a_i^T
        h*_i = tanh(W_r r_i + W_x p_i)

    Daniluk et al. 2017 (arXiv:1702.04521), sections 2.1 to 2.3: three parts are their key-value-predict attention; with two, the value
    stands in for the prediction (p_i = v_i, key-value); with one, the whole state is key, value and prediction (their plain attention).
    In the letters of surveys W_Y, W_h, w and r_i are W_1, W_2, v_a and c_i. The window counts positions, masked ones too.
    Memory is O(T L d): no T x T x d tensor exists.

    Differs from the paper: torch's default initialisation of the matrices; w has variance 1 / d.

    Parameters: key.weight (d, d), W_Y; query.weight (d, d), W_h; vector (d,), w; read.weight (d, d), W_r; predict.weight (d, d), W_x.

    Args:
        input_dim: size of a hidden state; d = input_dim / parts.
        window: L >= 1, the number of previous positions to attend to; the current one is excluded.
        parts: 1, 2 or 3.
        dropout: probability of dropping a weight a_i in training, 0 to below 1; the paper uses none.
        normalizer: how scores become weights: "softmax", "sparsemax" or "entmax15" (`regard.ops.normalize`).

    Raises:
        ConfigError: `parts` is not 1, 2 or 3, `input_dim` does not split into them, or `window` is below 1.

    Example:
        >>> attention = KeyValueAttention(10, window=3, parts=2)
        >>> states = torch.randn(2, 7, 10)
        >>> context, weights = attention(states, need_weights=True)
        >>> context.shape, weights.shape
        (torch.Size([2, 7, 5]), torch.Size([2, 7, 7]))
        >>> (weights[0, 6] > 0).int().tolist()               # position 6 sees 3, 4 and 5
        [0, 0, 0, 1, 1, 1, 0]
        >>> memory = attention.memory(states[:, :6])         # one more step after six
        >>> output, memory = attention.step(states[:, 6:], memory)
        >>> torch.allclose(output.context[:, 0], context[:, 6], atol=1e-6)
        True
    """

    @checked
    def __init__(
        self,
        input_dim: Size,
        window: Size,
        *,
        parts: Parts = 2,
        dropout: Dropout = 0.0,
        normalizer: Normalizer = "softmax",
    ) -> None:
        super().__init__()
        if input_dim < parts or input_dim % parts:
            raise ConfigError(f"KeyValueAttention: input_dim must be a multiple of parts = {parts}, found {input_dim}")
        self.input_dim, self.window, self.parts, self.dropout = input_dim, window, parts, dropout
        self.normalizer: Normalizer = normalizer
        dim = input_dim // parts
        self.key = ops.Linear(dim, dim, bias=False)
        self.query = ops.Linear(dim, dim, bias=False)
        self.vector = nn.Parameter(torch.empty(dim))
        self.read = ops.Linear(dim, dim, bias=False)
        self.predict = ops.Linear(dim, dim, bias=False)
        nn.init.normal_(self.vector, std=1 / math.sqrt(dim))

    def memory(self, states: Tensor, *, key_mask: Tensor | None = None) -> KeyValueMemory:
        """Make the memory of the last L states of (B, T, input_dim); T = 0 gives the initial memory.

        Args:
            states: (B, T, input_dim).
            key_mask: (B, T) bool, True = may attend; None allows everything.

        Raises:
            ShapeError: as `forward`.
        """
        states, mask = self._clean(states, key_mask)
        key, value, _ = self._split(states)
        return self._tail(self._extend(self._start(states), self.key(key), value, mask))

    @takes_tensors
    def forward(self, states: Tensor, *, key_mask: Tensor | None = None, need_weights: bool = False) -> AttentionOutput:
        """Attend from every state to the L before it, in parallel.

        Args:
            states: (B, T, input_dim).
            key_mask: (B, T) bool, True = may attend; None allows everything. A masked state counts as zeros, also in its own row.
            need_weights: return the weights before dropout.

        Returns:
            `AttentionOutput` with context = h* (B, T, d) and weights (B, T, T), zero outside the window. The first position, and any
            with nothing to attend to, has r = 0 and zero weights.

        Raises:
            ShapeError: the states are not (B, T, input_dim), or the key_mask is not (B, T) and boolean.
        """
        if is_recording():
            record_call(self, None, lambda _: self.forward(states, key_mask=key_mask, need_weights=True).weights)
        states, mask = self._clean(states, key_mask)
        context, weights, _ = self._attend(states, mask, self._start(states))
        return AttentionOutput(context, self._placed(weights)[..., self.window :] if need_weights else None)

    @takes_tensors
    def step(
        self, states: Tensor, memory: KeyValueMemory, *, key_mask: Tensor | None = None, need_weights: bool = False
    ) -> tuple[AttentionOutput, KeyValueMemory]:
        """Attend from new states (B, T, input_dim), usually T = 1, that follow those in the memory.

        Args:
            states: (B, T, input_dim).
            memory: of the previous positions, from `memory` or the previous `step`.
            key_mask: (B, T) bool, True = may attend later; None allows everything.
            need_weights: return the weights.

        Returns:
            `AttentionOutput` with context (B, T, d) and weights (B, T, L + T), over the memory's L positions and the new ones; and the
            memory for the next step.

        Raises:
            ShapeError: as `forward`.
        """
        if is_recording():
            record_call(self, None, lambda _: self._step_weights(states, memory, key_mask))
        states, mask = self._clean(states, key_mask)
        context, weights, memory = self._attend(states, mask, memory)
        return AttentionOutput(context, self._placed(weights) if need_weights else None), memory

    def _clean(self, states: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        check_states("KeyValueAttention", "states", states, "T", self.input_dim)
        if mask is None:
            return states, torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        check_key_mask(mask, states.shape[:2], "KeyValueAttention")
        # Before any projection: a weight's gradient multiplies by the states, and 0 * NaN is NaN.
        return states.masked_fill(~mask.unsqueeze(-1), 0.0), mask

    def _split(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chunks = states.split(self.input_dim // self.parts, dim=-1)
        return chunks[0], chunks[min(1, self.parts - 1)], chunks[-1]

    def _start(self, states: Tensor) -> KeyValueMemory:
        places = states.new_zeros(states.shape[0], self.window, self.input_dim // self.parts)
        return KeyValueMemory(places, places, torch.zeros(places.shape[:2], dtype=torch.bool, device=states.device))

    def _extend(self, memory: KeyValueMemory, key: Tensor, value: Tensor, mask: Tensor) -> KeyValueMemory:
        # Under autocast the projected keys have its dtype, not that of the states.
        new = (key, value, mask)
        return KeyValueMemory(*(torch.cat([old.to(part.dtype), part], dim=1) for old, part in zip(memory, new, strict=True)))

    def _tail(self, memory: KeyValueMemory) -> KeyValueMemory:
        return KeyValueMemory(*(part[:, part.shape[1] - self.window :] for part in memory))

    def _attend(self, states: Tensor, mask: Tensor, memory: KeyValueMemory) -> tuple[Tensor, Tensor, KeyValueMemory]:
        # Returns h* (B, T, d), weights by window position (B, T, L), oldest first, and the next memory.
        key, value, predict = self._split(states)
        past = self._extend(memory, self.key(key), value, mask)  # (B, L + T, ...)
        # The last window belongs to the next step, hence [:, :T]. Each is a view; only the tanh result takes O(T L d).
        size = states.shape[1]
        keys, values, allowed = (part.unfold(1, self.window, 1)[:, :size] for part in past)  # (B, T, d, L) twice, (B, T, L)
        scores = ops.additive_scores(self.query(key).unsqueeze(2), keys.transpose(2, 3), self.vector)  # (B, T, 1, L)
        weights = ops.normalize(scores, allowed.unsqueeze(2), normalizer=self.normalizer)
        read = (F.dropout(weights, self.dropout, self.training) @ values.transpose(2, 3).to(weights.dtype)).squeeze(2)
        return torch.tanh(self.read(read) + self.predict(predict)), weights.squeeze(2), self._tail(past)

    def _step_weights(self, states: Tensor, memory: KeyValueMemory, key_mask: Tensor | None) -> Tensor:
        # Drop the leading slots not written yet: the last key is always the most recent.
        weights = self.step(states, memory, key_mask=key_mask, need_weights=True)[0].weights
        assert weights is not None
        filled = memory.mask.any(0).cumsum(0) > 0  # (L,)
        return weights[..., int((~filled).sum()) :]

    def _placed(self, weights: Tensor) -> Tensor:
        # (B, T, L) by window position -> (B, T, L + T) by position: row t shifts t columns to the right, by reshaping rows that are one
        # column too long.
        batch, size, window = weights.shape
        return F.pad(weights, (0, size + 1)).flatten(1)[:, : size * (window + size)].reshape(batch, size, window + size)

    def extra_repr(self) -> str:
        """Show the settings."""
        return (
            f"input_dim={self.input_dim}, window={self.window}, parts={self.parts}, dropout={self.dropout}, normalizer={self.normalizer!r}"
        )
