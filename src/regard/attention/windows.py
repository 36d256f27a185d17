"""Luong's windows for local attention.

A window takes queries (B, T, D), source lengths (B,), the padded source length S and the target position. It returns a mask (B, T, S) and a
factor on the weights (B, T, S) or None. With areas, `places` (N,) are the areas' centres, and the factor is (B, T, N); the mask is still
per position.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Count, Size, checked
from regard.errors import ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.number_checks import check_count
from regard.ops.tensor_checks import check_not_negative, no_autocast


def check_position(operation: str, position: int | Tensor) -> None:
    """Check target positions: a whole number of at least 0, or a tensor of finite numbers of at least 0.

    Raises:
        ConfigError: no such number, and no tensor.
        ShapeError: a boolean tensor.
        RangeError: on a CPU, a position in a tensor is negative or not finite.

    Example:
        >>> check_position("attend", torch.tensor([0, 1]))
    """
    if isinstance(position, Tensor):
        check_not_negative(operation, "position", position, finite=True)
    else:
        check_count(operation, "position", position)


class MonotonicWindow(nn.Module):
    """Attend within D of the target position: local-m, `p_t = t`.

    Luong et al. 2015, section 3.2 ("monotonic alignment"). Target positions more than D past the source's end attend to nothing.

    Args:
        radius: D, in positions.

    Example:
        >>> mask, _ = MonotonicWindow(1)(torch.zeros(1, 1, 3), torch.tensor([4]), 4, 2)
        >>> mask.int().tolist()
        [[[0, 1, 1, 1]]]
    """

    @checked
    def __init__(self, radius: Count) -> None:
        super().__init__()
        self.radius = radius

    @takes_tensors
    def forward(
        self, query: Tensor, lengths: Tensor, size: int, position: int | Tensor, *, places: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Open [t - D, t + D]; `position` is one target position for all T queries, or (T,).

        Raises:
            ConfigError: it is neither a whole number of at least 0 nor a tensor.
            ShapeError: it has another shape, or is boolean.
            RangeError: on a CPU, a position is negative or not finite.
        """
        check_position("MonotonicWindow", position)
        center = torch.as_tensor(position, device=query.device)
        if center.shape not in ((), query.shape[1:2]):
            raise ShapeError(f"MonotonicWindow: position must be one number or (T,) = ({query.shape[1]},), found {tuple(center.shape)}")
        center = center.expand(query.shape[:2])
        return ops.window_mask(center, size, self.radius), None

    def extra_repr(self) -> str:
        """Show the radius."""
        return f"radius={self.radius}"


class PredictiveWindow(nn.Module):
    """Attend around a predicted position: local-p, `p_t = S sigmoid(v . tanh(W q))`.

    Luong et al. 2015, Eq. 9 and 10: softmax inside [p_t - D, p_t + D], then times a Gaussian around p_t with sigma = D / 2, without
    renormalization. Differentiable in p_t. S is the unpadded sentence length.

    Parameters: hidden.weight (Dq, Dq), W; position.weight (1, Dq), v.

    Args:
        query_dim: size of a query.
        radius: D, in positions.

    Example:
        >>> mask, factor = PredictiveWindow(3, 2)(torch.zeros(1, 1, 3), torch.tensor([4]), 4, 0)
        >>> mask.int().tolist()                         # an untrained sigmoid of 0 points at the middle, 2.0
        [[[1, 1, 1, 1]]]
    """

    @checked
    def __init__(self, query_dim: Size, radius: Size) -> None:
        super().__init__()
        self.radius = radius
        self.hidden = ops.Linear(query_dim, query_dim, bias=False)
        self.position = ops.Linear(query_dim, 1, bias=False)

    @takes_tensors
    def forward(
        self, query: Tensor, lengths: Tensor, size: int, position: int | Tensor, *, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Predict p_t from each query (B, T, D) and open the window around it."""
        # All of it in float32 or better, also under autocast: in bfloat16 positions in a long source would be off by whole tokens.
        with no_autocast(query):
            wide = query.to(torch.promote_types(query.dtype, torch.float32))
            hidden = torch.tanh(ops.linear(wide, self.hidden.weight.to(wide.dtype)))
            share = torch.sigmoid(ops.linear(hidden, self.position.weight.to(wide.dtype)).squeeze(-1))
            center = lengths.unsqueeze(-1) * share  # (B, T)
        mask = ops.window_mask(center, size, self.radius)
        if places is None:
            return mask, ops.gaussian_window(center, size, self.radius)
        # Only the distance matters: p_t relative to each centre, at the origin.
        return mask, ops.gaussian_window(center.unsqueeze(-1) - places.to(center.dtype), 1, self.radius).squeeze(-1)

    def extra_repr(self) -> str:
        """Show the radius."""
        return f"radius={self.radius}"


WindowModule = MonotonicWindow | PredictiveWindow
