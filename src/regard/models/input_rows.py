"""Split and join two inputs in one token row, each ending with EOS.

Batches, caches, decoding and attention maps use one row; the models of `regard.models.two_inputs` split it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import ops
from regard.models.cross_attention import Source
from regard.ops.tensor_checks import check_range

END = 3
"""EOS of `regard.data.vocabulary`, which follows each input."""


class TwoInputs(NamedTuple):
    """Two inputs of B examples, each with EOS: tokens (B, T1) and (B, T2), padded, and their lengths (B,)."""

    first: Tensor
    first_lengths: Tensor
    second: Tensor
    second_lengths: Tensor

    def hidden(self, probability: float) -> TwoInputs:
        """Drop one random input of some examples, leaving only its EOS.

        Examples with one input are unchanged. Uses two numbers per example from torch's global generator.
        """
        chance, which = torch.rand(2, len(self.first), device=self.first.device)
        chosen = (chance < probability) & (self.first_lengths > 1) & (self.second_lengths > 1)
        first = _emptied(self.first, self.first_lengths, chosen & (which < 0.5))
        return TwoInputs(*first, *_emptied(self.second, self.second_lengths, chosen & (which >= 0.5)))


def split_inputs(tokens: Tensor, lengths: Tensor) -> TwoInputs:
    """Split each row at its first EOS into two inputs.

    Args:
        tokens: (B, S).
        lengths: (B,), EOS included. A row with one EOS has a second input of length 0.

    Raises:
        RangeError: on a CPU, a length is not 0 to S.

    Example:
        >>> inputs = split_inputs(torch.tensor([[5, 6, 3, 7, 3], [8, 3, 3, 0, 0]]), torch.tensor([5, 3]))
        >>> inputs.first.tolist(), inputs.second.tolist()
        ([[5, 6, 3], [8, 3, 0]], [[7, 3], [3, 0]])
    """
    check_range("split_inputs", "lengths", lengths, 0, tokens.shape[1])
    inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1) - 1
    ends = (tokens == END) & inside
    first = torch.where(ends.any(1), ends.int().argmax(1) + 1, lengths)
    second = lengths - first
    return TwoInputs(_taken(tokens, torch.zeros_like(first), first), first, _taken(tokens, first, second), second)


def _taken(tokens: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
    # At least one column: attention to padding only is defined, attention to no column is not.
    places = torch.arange(max(1, int(counts.max()) if len(counts) else 0), device=tokens.device)
    taken = tokens.gather(1, (starts.unsqueeze(1) + places).clamp(max=tokens.shape[1] - 1))
    return taken.masked_fill(places >= counts.unsqueeze(1), 0)


def _emptied(tokens: Tensor, lengths: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    first = torch.where(chosen, END, tokens[:, 0]).unsqueeze(1)
    return torch.cat([first, tokens[:, 1:]], 1), torch.where(chosen, 1, lengths)


def join_rows(first: Tensor, second: Tensor, lengths: Tensor) -> Tensor:
    """Concatenate two inputs without padding in between.

    Args:
        first: (B, T1, E).
        second: (B, T2, E).
        lengths: (B, 2) of both; padding is arbitrary.

    Returns:
        (B, S, E), S the maximum row length.

    Example:
        >>> join_rows(torch.tensor([[[5], [0]]]), torch.tensor([[[7], [8]]]), torch.tensor([[1, 2]])).squeeze(-1).tolist()
        [[5, 7, 8]]
    """
    whole = torch.cat([first, second], 1)
    places = torch.arange(int(lengths.sum(1).max()) if len(lengths) else 1, device=whole.device).expand(len(whole), -1)
    own = lengths[:, :1]
    places = torch.where(places < own, places, (places - own + first.shape[1]).clamp(max=whole.shape[1] - 1))
    return whole.gather(1, places.unsqueeze(-1).expand(-1, -1, whole.shape[2]))


def join_weights(first: Tensor, second: Tensor, lengths: Tensor) -> Tensor:
    """Concatenate weights (B, K, T1) and (B, K, T2) of two inputs of lengths (B, 2): (B, K, S), zero-padded.

    The cells of an image may lack the EOS after them, whose weight is then 0.

    Example:
        >>> join_weights(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.25, 0.75]]]), torch.tensor([[1, 2]])).tolist()
        [[[1.0, 0.25, 0.75]]]
    """
    longest = int(lengths[:, 1].max()) if len(lengths) else 1
    second = F.pad(second, (0, max(0, longest - second.shape[2])))
    joined = join_rows(first.transpose(1, 2), second.transpose(1, 2), lengths).transpose(1, 2)
    return joined.masked_fill(~ops.length_mask(lengths.sum(1), joined.shape[2]).unsqueeze(1), 0.0)


def join_sources(first: Source, second: Source) -> Source:
    """Concatenate two masked sources row by row."""
    lengths = source_lengths((first, second))
    states = join_rows(first.states, second.states, lengths)
    return Source(states, ops.length_mask(lengths.sum(1), states.shape[1]))


def source_lengths(sources: Sequence[Source]) -> Tensor:
    """Return the lengths (B, N) of N sources that have masks.

    Example:
        >>> source_lengths([Source(torch.zeros(1, 2, 3), torch.tensor([[True, False]]))]).tolist()
        [[1]]
    """
    assert all(source.mask is not None for source in sources)
    return torch.stack([source.mask.sum(1) for source in sources if source.mask is not None], 1)
