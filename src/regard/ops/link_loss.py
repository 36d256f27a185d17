"""Guided alignment: the loss that teaches attention weights to follow word links."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops.call_checks import takes_tensors
from regard.ops.tensor_checks import Argument, Signature, check_range

_ARGUMENTS = Signature("link_loss", Argument("weights", "B T S"), Argument("links", "L 3", dtype="int64"))


@takes_tensors
def link_loss(weights: Tensor, links: Tensor) -> Tensor:
    """Sum the cross-entropy between linked source positions and attention weights over the linked target positions.

        loss = - sum_t sum_s G[t, s] log A[t, s]

    Garg et al. 2019 (arXiv:1909.02074), section 3.2, there divided by the number of target positions. Each row of G spreads 1 over the
    position's links; positions without links do not count. Rows of A are divided by their sum: with areas, an item has the share of the
    areas that contain it. Computed in float32 at least; weights below its smallest number count as that.

    Args:
        weights: (B, T, S) attention weights, >= 0.
        links: (L, 3) long, different rows of (b, t, s).

    Returns:
        The loss in nats, 0-dimensional; 0 without links.

    Raises:
        ShapeError: other shapes or dtypes.
        RangeError: a link is outside the weights.

    Example:
        >>> weights = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]])
        >>> round(link_loss(weights, torch.tensor([[0, 0, 0], [0, 0, 1]])).item(), 4)  # log 0.5 and log 0.25, half each
        1.0397
    """
    _ARGUMENTS.check(weights, links)
    batch, target, _ = weights.shape
    for axis, (name, size) in enumerate(zip("bts", weights.shape, strict=True)):
        check_range("link_loss", f"links of {name}", links[:, axis], 0, size - 1)
    weights = weights if weights.dtype == torch.float64 else weights.float()
    least = torch.finfo(weights.dtype).tiny
    rows, columns = links[:, 0] * target + links[:, 1], links[:, 2]
    found = weights.flatten(0, 1)
    log_shares = found[rows, columns].clamp(min=least).log() - found.sum(-1)[rows].clamp(min=least).log()
    counts = torch.zeros(batch * target, dtype=weights.dtype, device=weights.device).index_add(0, rows, torch.ones_like(log_shares))
    return -(log_shares / counts[rows]).sum()
