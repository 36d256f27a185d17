"""Crossed co-attention: two inputs that attend to each other."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from regard.attention.base import AttentionOutput, NeedWeights
from regard.constructor_checks import checked
from regard.errors import ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_key_mask
from regard.ops.tensor_checks import check_states


class CrossedOutput(NamedTuple):
    """Output of both branches.

    Attributes:
        left: context (B, T2, D) for the queries of the second input, over the first.
        right: context (B, T1, D) for the queries of the first input, over the second.
    """

    left: AttentionOutput
    right: AttentionOutput


class CrossedAttention(nn.Module):
    """Let two inputs attend to each other.

        left  = attention_left(query=x2, key=x1, value=x1)
        right = attention_right(query=x1, key=x2, value=x2)

    Li et al. 2019 (arXiv:1911.03897), section 2.2: the left branch takes V = K = x1 (here `first`) and Q = x2 (`second`), the right branch
    the reverse; Eq. 3 and 4 are the same as non-local operations. Each output is made of its own branch's values: without further layers,
    left lies in the row space of x1. With x1 = x2 and equal weights each branch is self-attention. If the lengths differ, left has the
    length of x2: residual connections then go to the querying stream.

    Parameters: left.*, right.*: those of the two mechanisms.

    Args:
        left: attends from the second input to the first; any module called with (query, key, value, *, key_mask, need_weights) that
            takes a key_mask (B, S) and returns an `AttentionOutput`.
        right: attends from the first input to the second.

    Example:
        >>> import torch
        >>> from regard.attention import MultiHeadAttention
        >>> crossed = CrossedAttention(MultiHeadAttention(6, 2), MultiHeadAttention(6, 2))
        >>> left, right = crossed(torch.randn(2, 5, 6), torch.randn(2, 7, 6))
        >>> left.context.shape, right.context.shape
        (torch.Size([2, 7, 6]), torch.Size([2, 5, 6]))
    """

    @checked
    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left = left
        self.right = right

    @takes_tensors
    def forward(
        self,
        first: Tensor,
        second: Tensor,
        *,
        first_key_mask: Tensor | None = None,
        second_key_mask: Tensor | None = None,
        need_weights: NeedWeights = False,
    ) -> CrossedOutput:
        """Attend both ways.

        Args:
            first: (B, T1, D1), x1.
            second: (B, T2, D2), x2; another length and, if the mechanisms take it, another size.
            first_key_mask: (B, T1) bool, True = may attend; None allows everything. Queries of masked positions are zero.
            second_key_mask: (B, T2) bool.
            need_weights: passed on to both.

        Returns:
            `CrossedOutput`.

        Raises:
            ShapeError: inputs that are not (B, T, D) with one B, or a mask that is not (B, T) and boolean; the message holds both shapes.
        """
        check_states("CrossedAttention", "first", first, "T1", "D1")
        check_states("CrossedAttention", "second", second, "T2", "D2")
        if first.shape[0] != second.shape[0]:
            raise ShapeError(
                f"CrossedAttention: inputs must be (B, T1, D1) and (B, T2, D2), found {tuple(first.shape)}, {tuple(second.shape)}"
            )
        for name, states, mask in (("first_key_mask", first, first_key_mask), ("second_key_mask", second, second_key_mask)):
            if mask is not None:
                check_key_mask(mask, states.shape[:2], "CrossedAttention", name)
        first, second = hide_masked(first, first_key_mask), hide_masked(second, second_key_mask)
        return CrossedOutput(
            self.left(second, first, first, key_mask=first_key_mask, need_weights=need_weights),
            self.right(first, second, second, key_mask=second_key_mask, need_weights=need_weights),
        )


def hide_masked(states: Tensor, mask: Tensor | None) -> Tensor:
    """Return states (B, T, D) with zeros where the mask (B, T) bool is False; None hides nothing.

    Masked states are queries, too, and 0 * NaN is NaN in a gradient.

    Example:
        >>> import torch
        >>> hide_masked(torch.ones(1, 2, 1), torch.tensor([[True, False]])).flatten().tolist()
        [1.0, 0.0]
    """
    return states if mask is None else states.masked_fill(~mask.unsqueeze(-1), 0.0)
