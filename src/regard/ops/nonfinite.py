"""Keeping what a mask hides from leaking: zero times NaN is NaN, forward and backward."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.masks import check_axes


class FiniteKeyValue(NamedTuple):
    """Keys and values that hold nothing non-finite, and who would have seen it.

    Attributes:
        key: (..., S, D), rows of zeros where key or value was not finite or no query may look.
        value: (..., S, Dv), likewise.
        tainted: (..., T) bool, the queries that may attend a row that was not finite: their context and weights must become NaN, so that
            bad numbers stay loud. None without a mask.
    """

    key: Tensor
    value: Tensor
    tainted: Tensor | None


def finite_rows(x: Tensor) -> Tensor:
    """Mark the rows that hold finite numbers only.

    Args:
        x: (..., N, D).

    Returns:
        (..., N) bool, without gradient.

    Example:
        >>> finite_rows(torch.tensor([[1.0, 2.0], [1.0, torch.nan]])).tolist()
        [True, False]
    """
    # One reduction: several times faster than isfinite().all(-1). NaN passes through the maximum and is not below infinity.
    rows = x if x.shape[-1] else F.pad(x, (0, 1))
    return rows.detach().abs().amax(-1) < torch.inf


def mask_nonfinite(key: Tensor, value: Tensor, mask: Tensor | None) -> FiniteKeyValue:
    """Zero every key and value row that is not finite, or that no query may attend, and mark the queries that may attend a bad one.

    A weight of exactly 0 does not help against a value of NaN (0 * NaN is NaN), nor does a gradient of 0. With these rows gone, nothing
    that a masked place holds reaches a context or a gradient. Whoever may attend a bad row shall still see it:
    `context.masked_fill(tainted.unsqueeze(-1), nan)`. There is no branch on data: it traces.

    Args:
        key: (..., S, D).
        value: (..., S, Dv).
        mask: bool, (S,) or (..., T, S) with every axis of the keys; True = may be attended. None: keys and values are returned as they are,
            for without a mask everybody sees everything.

    Returns:
        `FiniteKeyValue`; `tainted` has size 1 in T where the mask has.

    Example:
        >>> key = torch.tensor([[1.0], [torch.nan]])
        >>> shielded = mask_nonfinite(key, key, torch.tensor([[True, False], [True, True]]))
        >>> shielded.key.tolist(), shielded.tainted.tolist()
        ([[1.0], [0.0]], [False, True])
    """
    if mask is None:
        return FiniteKeyValue(key, value, None)
    check_axes(mask, (*key.shape[:-2], mask.shape[-2] if mask.dim() > 1 else 1, key.shape[-2]), "shield")
    mask = mask[(None,) * (2 - mask.dim())]  # (S,) is (1, S)
    same = value is key
    bad = ~finite_rows(key) if same else ~(finite_rows(key) & finite_rows(value))
    tainted = (mask & bad.unsqueeze(-2)).any(-1)
    # Zeroed although finite: a huge number in a padded place could overflow on its way to a score that is thrown away.
    gone = (bad | ~mask.any(-2)).unsqueeze(-1)
    key = key.masked_fill(gone, 0.0)
    return FiniteKeyValue(key, key if same else value.masked_fill(gone, 0.0), tainted)
