"""Boolean masks, True = may attend. Combine them with `&` and `|`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.number_checks import check_count
from regard.ops.tensor_checks import check_range


@takes_tensors
def length_mask(lengths: Tensor, size: int) -> Tensor:
    """Mark the positions before each length.

    Args:
        lengths: (B,) integers, 0 to `size`.
        size: S, the padded length.

    Returns:
        (B, S) bool; a length of 0 gives a row without True.

    Raises:
        ConfigError: `size` is no whole number of at least 0.
        ShapeError: `lengths` is no tensor of whole numbers.
        RangeError: on a CPU, a length is not 0 to `size`.

    Example:
        >>> length_mask(torch.tensor([1, 3]), 3).tolist()
        [[True, False, False], [True, True, True]]
    """
    check_count("length_mask", "size", size)
    check_range("length_mask", "lengths", lengths, 0, size)
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


@takes_tensors
def window_mask(center: Tensor, size: int, radius: int) -> Tensor:
    """Mark the source positions within `radius` of each centre: [p - D, p + D].

    Luong et al. 2015 (arXiv:1508.04025), section 3.2; D is `radius`, p_t is `center`.

    Args:
        center: (...,) positions, real or integer, counted from 0.
        size: S, the number of source positions.
        radius: D >= 0, in positions.

    Returns:
        (..., S) bool; a centre further than D outside the source, or NaN, gives a row without True.

    Raises:
        ConfigError: `size` or the radius is no whole number of at least 0.

    Example:
        >>> window_mask(torch.tensor([0.0, 2.5]), 5, 1).int().tolist()
        [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0]]
    """
    check_count("window_mask", "size", size)
    check_count("window_mask", "radius", radius)
    if center.is_complex():
        raise ShapeError(f"window_mask: center must hold real numbers, found {center.dtype}")
    if center.is_floating_point():  # half precision skips whole numbers above 256 or 2,048
        center = center.to(torch.promote_types(center.dtype, torch.float32))
    positions = torch.arange(size, device=center.device)
    return (positions - center.unsqueeze(-1)).abs() <= radius


@takes_tensors
def causal_mask(target_size: int, source_size: int, device: torch.device | str | None = None) -> Tensor:
    """Allow each query its own and earlier positions.

    Aligned bottom-right: query t may attend s iff s <= t + S - T, so that a decoding step attends to its whole cache.

    Args:
        target_size: T.
        source_size: S.
        device: device of the result.

    Returns:
        (T, S) bool; for T > S the first T - S rows have no True.

    Raises:
        ConfigError: a size is no whole number of at least 0.

    Example:
        >>> causal_mask(2, 3).int().tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    check_count("causal_mask", "target_size", target_size)
    check_count("causal_mask", "source_size", source_size)
    queries = torch.arange(target_size, device=device) + (source_size - target_size)
    return torch.arange(source_size, device=device) <= queries.unsqueeze(-1)


@takes_tensors
def block_mask(target_blocks: Tensor, source_blocks: Tensor) -> Tensor:
    """Allow pairs of the same block: documents packed into one row, sentences of a document.

    Args:
        target_blocks: (..., T) block of each query, any integers.
        source_blocks: (..., S) block of each key.

    Returns:
        (..., T, S) bool; a query whose block has no key gives a row without True.

    Raises:
        ShapeError: blocks that are no integers.

    Example:
        >>> block_mask(torch.tensor([0, 1]), torch.tensor([0, 0, 1])).int().tolist()
        [[1, 1, 0], [0, 0, 1]]
    """
    for name, blocks in (("target_blocks", target_blocks), ("source_blocks", source_blocks)):
        check_range("block_mask", name, blocks, -(2**63), 2**63 - 1)
    return target_blocks.unsqueeze(-1) == source_blocks.unsqueeze(-2)


def check_mask(mask: Tensor, shape: Sequence[int], what: str, *, key_mask: bool = False) -> None:
    """Refuse a mask that is not boolean, does not broadcast to the scores, or is ambiguous.

    Broadcasting adds missing axes in front, so a padding mask (B, S) with B = T would be read as (T, S). Hence a mask of more than one axis
    must have every axis of the scores, each of its true size or 1.

    Args:
        mask: the caller's argument.
        shape: shape of the scores, (..., T, S).
        what: name that begins the message.
        key_mask: the caller takes a `key_mask` for padding, and the message suggests it.

    Raises:
        ShapeError: the message shows both shapes and how to write either meaning.

    Example:
        >>> check_mask(torch.ones(3, 1, 7, dtype=torch.bool), (3, 5, 7), "attend")
    """
    check_axes(mask, shape, what, key_mask=key_mask)
    found = tuple(mask.shape)
    if len(found) > len(shape) or any(one not in (1, wanted) for one, wanted in zip(reversed(found), reversed(shape), strict=False)):
        raise ShapeError(f"{what}: mask {found} does not broadcast to scores {tuple(shape)} (..., T, S)")


def check_axes(mask: Tensor, shape: Sequence[int], what: str, *, key_mask: bool = False) -> None:
    """Refuse a mask that is not boolean or is ambiguous; arguments and errors as in `check_mask`.

    Example:
        >>> check_axes(torch.ones(3, 1, 7, dtype=torch.bool), (3, 5, 7), "attend")
    """
    check_boolean(mask, f"{what}: the mask")
    found, axes = tuple(mask.shape), len(shape)
    if not 1 < len(found) < axes:
        return
    new = ", ".join(["None"] * (axes - len(found)))
    if len(found) > 2:
        ways = f"if its first axis is B, write mask[:, {new}]; if it is H, write mask[{new}]"
    else:
        ways = f"if its axes are (T, S), one mask per query, write mask[{new}]; if they are (B, S), padding, "
        ways += "give it as key_mask=" if key_mask else f"write mask[:, {new}]"
    raise ShapeError(f"{what}: a mask {found} of {len(found)} axes is ambiguous for scores {tuple(shape)} (..., T, S): {ways}")


def check_key_mask(key_mask: Tensor, shape: Sequence[int], what: str, name: str = "key_mask") -> None:
    """Refuse a mask of keys that is not boolean or not (B, S).

    Args:
        key_mask: the caller's argument.
        shape: (B, S).
        what: name that begins the message.
        name: name of the argument.

    Raises:
        ShapeError: another type or shape.

    Example:
        >>> check_key_mask(length_mask(torch.tensor([1, 3]), 3), (2, 3), "attend")
    """
    check_boolean(key_mask, f"{what}: {name}")
    if key_mask.shape != tuple(shape):
        more = "; a mask with an axis of queries is given as mask=" if name == "key_mask" and key_mask.dim() > 2 else ""
        raise ShapeError(f"{what}: {name} must be (B, S) = {tuple(shape)}, found {tuple(key_mask.shape)}{more}")


def check_boolean(mask: Tensor, what: str) -> None:
    """Refuse a mask that is not a boolean tensor: libraries disagree on the meaning of numbers.

    Raises:
        ShapeError: another type; the message says how to convert it.

    Example:
        >>> check_boolean([True], "mask")
        Traceback (most recent call last):
            ...
        regard.errors.ShapeError: mask must be a boolean tensor (True = may be attended), found list
    """
    if not isinstance(mask, Tensor):
        raise ShapeError(f"{what} must be a boolean tensor (True = may be attended), found {type(mask).__name__}")
    if mask.dtype != torch.bool:
        way = "if it is added to scores, give mask > -inf" if mask.is_floating_point() else "if 1 is real, give mask.bool()"
        raise ShapeError(f"{what} must be boolean (True = may be attended), found {mask.dtype}; {way}")
