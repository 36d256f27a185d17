"""The parts of an N-gram RNN: each taken from another of the last states."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.call_checks import takes_tensors


@takes_tensors
def ngram_parts(states: Tensor, past: Tensor) -> Tensor:
    """Join part 1 of each state with part 2 of the state before it, part 3 of the one before that, and so on.

        out_i = [h_i^1; h_{i-1}^2; ...; h_{i-N+2}^{N-1}]        h_i = [h_i^1; ...; h_i^{N-1}]

    Daniluk et al. 2017 (arXiv:1702.04521), section 2.4.

    Args:
        states: (B, T, D), D a multiple of N - 1.
        past: (B, N - 2, D) the states before them, oldest first; zeros before the start of a sequence. Its length gives N.

    Returns:
        (B, T, D).

    Raises:
        ShapeError: the tensors do not fit, have no floating dtype in common, or D does not split into N - 1 parts.

    Example:
        >>> states = torch.tensor([[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]])
        >>> ngram_parts(states, torch.zeros(1, 1, 2)).tolist()
        [[[1.0, 0.0], [2.0, 10.0], [3.0, 20.0]]]
    """
    if states.dim() != 3 or past.dim() != 3 or (past.shape[0], past.shape[2]) != (states.shape[0], states.shape[2]):
        raise ShapeError(
            f"ngram_parts: expected states (B, T, D) and past (B, N - 2, D) of one B and D; found {tuple(states.shape)} and "
            f"{tuple(past.shape)}"
        )
    if states.dtype != past.dtype or not states.is_floating_point():
        raise ShapeError(f"ngram_parts: states and past must have one floating dtype, found {states.dtype} and {past.dtype}")
    parts, size = past.shape[1] + 1, states.shape[2]
    if size % parts:
        raise ShapeError(f"ngram_parts: the last axis must split into {parts} parts, one more than the past has states; found {size}")
    whole = torch.cat([past, states], 1)  # (B, N - 2 + T, D)
    count, width = states.shape[1], size // parts
    first = parts - 1
    taken = [whole[:, first - back : first - back + count, back * width : (back + 1) * width] for back in range(parts)]
    return torch.cat(taken, 2)
