"""Boolean masks; True means "may be attended". Combine them with `&` and `|`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import ShapeError


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


def causal_mask(target_size: int, source_size: int, device: torch.device | str | None = None) -> Tensor:
    """Let every query see its own position and what stands before it.

    The last query sees the whole source: the mask is aligned bottom-right, so that a step that continues a cached source sees all of its
    past. Query t may attend s iff s <= t + S - T.

    Args:
        target_size: T.
        source_size: S.
        device: where the mask shall lie.

    Returns:
        (T, S) bool; with more queries than positions the first T - S rows have no True.

    Example:
        >>> causal_mask(2, 3).int().tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    queries = torch.arange(target_size, device=device) + (source_size - target_size)
    return torch.arange(source_size, device=device) <= queries.unsqueeze(-1)


def block_mask(target_blocks: Tensor, source_blocks: Tensor) -> Tensor:
    """Let positions of the same block see each other: documents packed into one row, sentences of a document.

    Args:
        target_blocks: (..., T) the block that each query belongs to, any integers.
        source_blocks: (..., S) the block that each key belongs to.

    Returns:
        (..., T, S) bool; a query whose block has no key gives a row without True.

    Example:
        >>> block_mask(torch.tensor([0, 1]), torch.tensor([0, 0, 1])).int().tolist()
        [[1, 1, 0], [0, 0, 1]]
    """
    return target_blocks.unsqueeze(-1) == source_blocks.unsqueeze(-2)


def check_mask(mask: Tensor, shape: Sequence[int], what: str) -> None:
    """Refuse a mask that is not boolean or does not broadcast to the scores it is for.

    Args:
        mask: what the caller was given.
        shape: of the scores, (..., T, S).
        what: the name to begin the message with.

    Raises:
        ShapeError: the message holds both shapes, or the type that was found.

    Example:
        >>> check_mask(torch.ones(3, 1, 7, dtype=torch.bool), (3, 5, 7), "attend")
    """
    if mask.dtype != torch.bool:
        raise ShapeError(f"{what}: the mask must be boolean (True = may be attended), found {mask.dtype}")
    fits = mask.dim() <= len(shape) and all(
        found in (1, wanted) for found, wanted in zip(reversed(mask.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ShapeError(f"{what}: mask {tuple(mask.shape)} does not broadcast to scores {tuple(shape)} (..., T, S)")
