"""The readout of an N-gram RNN: the last states without attention, the comparison to key-value attention."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention.base import AttentionOutput
from regard.constructor_checks import Size, checked
from regard.errors import ConfigError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_key_mask
from regard.ops.tensor_checks import check_states


class NGramMemory(NamedTuple):
    """The last N - 2 states of a sequence; a value passed from step to step.

    Attributes:
        states: (B, N - 2, D) oldest first; zeros before the start of the sequence and where masked.
    """

    states: Tensor

    def rows(self, index: Tensor) -> NGramMemory:
        """Keep only the sequences `index` (B',), in that order."""
        return NGramMemory(self.states.index_select(0, index))


class NGramReadout(nn.Module):
    """Read a part of each of the last N - 1 states, the current one among them, at fixed positions.

        h_i  = [h_i^1; ...; h_i^{N-1}]
        h*_i = tanh(W_N [h_i^1; h_{i-1}^2; ...; h_{i-N+2}^{N-1}])

    Daniluk et al. 2017 (arXiv:1702.04521), section 2.4: the N-gram RNN, which they find as good as attention. Nothing is attended to, so
    there are no weights.

    Differs from the paper: torch's default initialisation.

    Parameters: output.weight (d, D), W_N; d = D / (N - 1).

    Args:
        input_dim: D, size of a hidden state.
        order: N >= 2.

    Raises:
        ConfigError: `order` is below 2, or `input_dim` does not split into N - 1 parts.

    Example:
        >>> readout = NGramReadout(9, order=4)
        >>> states = torch.randn(2, 7, 9)
        >>> readout(states).context.shape
        torch.Size([2, 7, 3])
        >>> output, memory = readout.step(states[:, 6:], readout.memory(states[:, :6]))    # one more step after six
        >>> torch.allclose(output.context[:, 0], readout(states).context[:, 6], atol=1e-6)
        True
    """

    @checked
    def __init__(self, input_dim: Size, order: Size) -> None:
        super().__init__()
        if order < 2:
            raise ConfigError(f"NGramReadout: order must be 2 or more, found {order}")
        if input_dim % (order - 1):
            raise ConfigError(f"NGramReadout: input_dim must be a multiple of order - 1 = {order - 1}, found {input_dim}")
        self.input_dim, self.order, self.window = input_dim, order, order - 2
        self.output = ops.Linear(input_dim, input_dim // (order - 1), bias=False)

    def memory(self, states: Tensor, *, key_mask: Tensor | None = None) -> NGramMemory:
        """Return the last N - 2 of states (B, S, D); missing ones are zeros.

        Args:
            states: (B, S, D).
            key_mask: (B, S) bool, False = read as zeros.

        Raises:
            ShapeError: as `forward`.
        """
        states = self._clean(states, key_mask)
        empty = states.new_zeros(states.shape[0], self.window, self.input_dim)
        return NGramMemory(torch.cat([empty, states], 1)[:, states.shape[1] :])

    @takes_tensors
    def forward(self, states: Tensor, *, key_mask: Tensor | None = None) -> AttentionOutput:
        """Read states (B, T, D) from the start of a sequence; see `step`.

        Raises:
            ShapeError: the states are not (B, T, D), or the key_mask is not (B, T) and boolean.
        """
        states = self._clean(states, key_mask)
        return self.step(states, self.memory(states[:, :0]))[0]

    def step(self, states: Tensor, memory: NGramMemory, *, key_mask: Tensor | None = None) -> tuple[AttentionOutput, NGramMemory]:
        """Read new states (B, T, D) that follow those in the memory.

        Returns:
            `AttentionOutput` with context (B, T, d) and no weights; and the memory for the next step.

        Raises:
            ShapeError: as `forward`.
        """
        states = self._clean(states, key_mask)
        joined = ops.ngram_parts(states, memory.states)
        past = torch.cat([memory.states.to(states.dtype), states], 1)[:, states.shape[1] :]
        return AttentionOutput(torch.tanh(self.output(joined)), None), NGramMemory(past)

    def _clean(self, states: Tensor, mask: Tensor | None) -> Tensor:
        check_states("NGramReadout", "states", states, "T", self.input_dim)
        if mask is None:
            return states
        check_key_mask(mask, states.shape[:2], "NGramReadout")
        return states.masked_fill(~mask.unsqueeze(-1), 0.0)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"input_dim={self.input_dim}, order={self.order}"
