"""Mask out non-finite values: 0 * NaN is NaN, forward and backward."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_axes


class FiniteKeyValue(NamedTuple):
    """Finite keys and values, and the queries that could attend to non-finite ones.

    Attributes:
        key: (..., S, D), zero rows where key or value was not finite or no query may attend.
        value: (..., S, Dv), likewise.
        tainted: (..., T) bool, queries that may attend a non-finite row: their context and weights must become NaN, so that errors stay
            visible. None without a mask.
    """

    key: Tensor
    value: Tensor
    tainted: Tensor | None


def finite_rows(x: Tensor) -> Tensor:
    """Mark rows of finite numbers only.

    Args:
        x: (..., N, D).

    Returns:
        (..., N) bool, without gradient.

    Example:
        >>> finite_rows(torch.tensor([[1.0, 2.0], [1.0, torch.nan]])).tolist()
        [True, False]
    """
    # One reduction: several times faster than isfinite().all(-1). NaN propagates through the maximum and is not below infinity.
    rows = x if x.shape[-1] else F.pad(x, (0, 1))
    return rows.detach().abs().amax(-1) < torch.inf


@takes_tensors
def mask_nonfinite(key: Tensor, value: Tensor, mask: Tensor | None) -> FiniteKeyValue:
    """Zero key and value rows that are not finite or fully masked, and mark queries that may attend a non-finite one.

    0 * NaN is NaN, for weights and for gradients. Without these rows, masked positions reach no context and no gradient. Restore NaN for
    tainted queries: `context.masked_fill(tainted.unsqueeze(-1), nan)`. No branch depends on data, so it traces.

    Args:
        key: (..., S, D).
        value: (..., S, Dv).
        mask: bool, (S,) or (..., T, S) with every axis of the keys; True = may attend. None: keys and values are returned unchanged.

    Returns:
        `FiniteKeyValue`; `tainted` has size 1 in T where the mask has.

    Example:
        >>> key = torch.tensor([[1.0], [torch.nan]])
        >>> masked = mask_nonfinite(key, key, torch.tensor([[True, False], [True, True]]))
        >>> masked.key.tolist(), masked.tainted.tolist()
        ([[1.0], [0.0]], [False, True])
    """
    if mask is None:
        return FiniteKeyValue(key, value, None)
    check_axes(mask, (*key.shape[:-2], mask.shape[-2] if mask.dim() > 1 else 1, key.shape[-2]), "mask of non-finite values")
    mask = mask[(None,) * (2 - mask.dim())]  # (S,) is (1, S)
    same = value is key
    bad = ~finite_rows(key) if same else ~(finite_rows(key) & finite_rows(value))
    tainted = (mask & bad.unsqueeze(-2)).any(-1)
    # Zeroed although finite: a huge number at a padded position could overflow in a score that is then masked.
    gone = (bad | ~mask.any(-2)).unsqueeze(-1)
    key = key.masked_fill(gone, 0.0)
    return FiniteKeyValue(key, key if same else value.masked_fill(gone, 0.0), tainted)
