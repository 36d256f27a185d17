"""Boolean masks; True means "may be attended". Combine them with `&` and `|`."""

from __future__ import annotations

import torch
from torch import Tensor


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """Mark the positions before each length.

    Args:
        lengths: (B,) integers, 0 to `size`.
        size: S, the padded length.

    Returns:
        (B, S) bool; a length of 0 gives a row without True.

    Example:
        >>> length_mask(torch.tensor([1, 3]), 3).tolist()
        [[True, False, False], [True, True, True]]
    """
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


def window_mask(center: Tensor, size: int, radius: int) -> Tensor:
    """Mark the source positions within `radius` of each centre: [p - D, p + D].

    Luong et al. 2015 (arXiv:1508.04025), section 3.2; D is `radius`, p_t is `center`.

    Args:
        center: (...,) positions, real or integer, counted from 0.
        size: S, the number of source positions.
        radius: D >= 0, in positions.

    Returns:
        (..., S) bool; a centre further than D outside the source gives a row without True.

    Example:
        >>> window_mask(torch.tensor([0.0, 2.5]), 5, 1).int().tolist()
        [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0]]
    """
    positions = torch.arange(size, device=center.device)
    return (positions - center.unsqueeze(-1)).abs() <= radius
