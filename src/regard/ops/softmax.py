"""From scores to weights: the masked softmax, and Luong's Gaussian window."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_mask
from regard.ops.number_checks import check_count
from regard.ops.tensor_checks import check_scores


@takes_tensors
def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Normalize the scores over the allowed source positions.

        weights[t, s] = exp(scores[t, s]) / sum over allowed j of exp(scores[t, j])

    A masked position gets weight and gradient exactly 0, even if its score is NaN. A fully masked row is all zeros, with zero gradients.

    Args:
        scores: (..., T, S), in nats; -inf counts as masked.
        mask: bool, (S,) or with every axis of the scores, each of its true size or 1; True = may attend. None allows everything.

    Returns:
        (..., T, S), same dtype; each row sums to 1, or to 0 when empty.

    Raises:
        ShapeError: the scores have no axis or no floating dtype; the mask is not boolean, does not broadcast, or lacks axes.

    Example:
        >>> masked_softmax(torch.zeros(1, 3), torch.tensor([True, True, False])).tolist()
        [[0.5, 0.5, 0.0]]
        >>> masked_softmax(torch.zeros(1, 2), torch.tensor([False, False])).tolist()
        [[0.0, 0.0]]
    """
    check_scores("masked_softmax", scores)
    blocked = torch.isneginf(scores)
    if mask is not None:
        check_mask(mask, scores.shape, "masked_softmax")
        blocked = blocked | ~mask
    # A fully masked row is all zeros, not -inf: it stays finite and is zeroed below.
    empty = blocked.all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(blocked, -torch.inf).masked_fill(empty, 0.0), dim=-1)
    return weights.masked_fill(blocked, 0.0)


@takes_tensors
def gaussian_window(center: Tensor, size: int, radius: int) -> Tensor:
    """Weight source positions by their distance from a predicted centre.

        factor[t, s] = exp(-(s - center[t])^2 / (2 sigma^2)),  sigma = radius / 2

    Luong et al. 2015, Eq. 10. Differentiable in `center`.

    Args:
        center: (..., T) real positions, counted from 0.
        size: S.
        radius: D >= 1, in positions.

    Returns:
        (..., T, S) between 0 and 1, in the centres' dtype; computed in float32 or better.

    Raises:
        ConfigError: `size` is no whole number of at least 0, or the radius none of at least 1.

    Example:
        >>> gaussian_window(torch.tensor([1.0]), 3, 2).round(decimals=3).tolist()
        [[0.6069999933242798, 1.0, 0.6069999933242798]]
    """
    check_count("gaussian_window", "size", size)
    check_count("gaussian_window", "radius", radius, 1)
    sigma = radius / 2
    dtype = torch.promote_types(center.dtype, torch.float32)
    distances = torch.arange(size, device=center.device, dtype=dtype) - center.to(dtype).unsqueeze(-1)
    return torch.exp(-(distances**2) / (2 * sigma * sigma)).to(center.dtype if center.is_floating_point() else dtype)
