"""Readouts: from decoder state and context to the input of the output layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Size, checked


class DeepReadout(nn.Module):
    """Combine state, previous word and context by a maxout layer ("deep output").

        t~ = U_o s + V_o E y + C_o c;  t_k = max(t~_2k-1, t~_2k)

    Bahdanau et al. 2015, A.2.2; Pascanu et al. 2014.

    Args:
        state_dim: size of s.
        embed_dim: size of the embedded previous word.
        context_dim: size of c.
        output_dim: R, size of t.

    Example:
        >>> DeepReadout(3, 5, 7, 2)(torch.ones(1, 3), torch.ones(1, 5), torch.ones(1, 7)).shape
        torch.Size([1, 2])
    """

    @checked
    def __init__(self, state_dim: Size, embed_dim: Size, context_dim: Size, output_dim: Size) -> None:
        super().__init__()
        self.output_dim = output_dim
        self.linear = ops.Linear(state_dim + embed_dim + context_dim, 2 * output_dim)

    def forward(self, state: Tensor, embedded: Tensor, context: Tensor) -> Tensor:
        """Combine (..., state_dim), (..., E) and (..., C) into (..., R)."""
        pairs = self.linear(torch.cat([state, embedded.to(state.dtype), context.to(state.dtype)], -1)).unflatten(-1, (-1, 2))
        return torch.maximum(pairs[..., 0], pairs[..., 1])


class TanhReadout(nn.Module):
    """Combine context and state into the attentional state: `h~ = tanh(W_c [c; h])`.

    Luong et al. 2015, Eq. 5. The previous word is not used; it is accepted for a common signature.

    Args:
        state_dim: size of h.
        context_dim: size of c.
        output_dim: R, size of h~.

    Example:
        >>> TanhReadout(3, 7, 2)(torch.ones(1, 3), torch.ones(1, 5), torch.ones(1, 7)).shape
        torch.Size([1, 2])
    """

    @checked
    def __init__(self, state_dim: Size, context_dim: Size, output_dim: Size) -> None:
        super().__init__()
        self.output_dim = output_dim
        self.linear = ops.Linear(state_dim + context_dim, output_dim, bias=False)

    def forward(self, state: Tensor, embedded: Tensor, context: Tensor) -> Tensor:
        """Combine (..., state_dim) and (..., C) into (..., R)."""
        return torch.tanh(self.linear(torch.cat([context.to(state.dtype), state], -1)))


Readout = DeepReadout | TanhReadout
