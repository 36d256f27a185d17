"""Structured self-attention: a sentence as several weighted sums of its states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention.base import AttentionOutput
from regard.attention.recorder import is_recording, record_call
from regard.constructor_checks import Size, checked
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_key_mask
from regard.ops.sparsemax import Normalizer
from regard.ops.tensor_checks import check_states


class StructuredAttention(nn.Module):
    """Attend to a sentence with r learned hops; the queries are parameters.

        A = softmax(W_s2 tanh(W_s1 H^T)) over the S positions;  M = A H

    Lin et al. 2017 (arXiv:1703.03130), Eq. 6 and 7: H (S, 2u) are `states`, W_s1 (d_a, 2u) is `first`, W_s2 (r, d_a) is `second`, M (r, 2u)
    is the context. r = 1 gives self-attention pooling. `ops.redundancy_penalty` keeps hops different. Differs from the paper: torch's
    default initialisation. The authors' code has biases in both maps (`bias=True`), the paper none.

    Parameters: first.weight (A, D), second.weight (r, A); with `bias` also first.bias (A,), second.bias (r,). second.bias shifts all scores
    of a hop equally and has no effect; it exists to load weights of the authors' code.

    Args:
        input_dim: D, size of a state.
        attention_dim: A, width of the hidden layer, the paper's d_a.
        hops: r, the number of weighted sums.
        bias: biases in both maps.
        normalizer: how scores become weights: "softmax", "sparsemax" or "entmax15" (`regard.ops.normalize`).

    Example:
        >>> attention = StructuredAttention(5, 7, 3)
        >>> context, weights = attention(torch.ones(2, 11, 5), need_weights=True)
        >>> context.shape, weights.shape
        (torch.Size([2, 3, 5]), torch.Size([2, 3, 11]))
    """

    @checked
    def __init__(self, input_dim: Size, attention_dim: Size, hops: Size, bias: bool = False, *, normalizer: Normalizer = "softmax") -> None:
        super().__init__()
        self.first = ops.Linear(input_dim, attention_dim, bias=bias)
        self.second = ops.Linear(attention_dim, hops, bias=bias)
        self.normalizer: Normalizer = normalizer

    @takes_tensors
    def forward(self, states: Tensor, *, key_mask: Tensor | None = None, need_weights: bool = False) -> AttentionOutput:
        """Attend to states (B, S, D) where key_mask, (B, S) bool, is True; None allows everything.

        Returns:
            `AttentionOutput` with context (B, r, D) and, if requested, weights (B, r, S). A fully masked sentence (also S = 0) gives zeros.
            Masked positions have no influence, NaN included.

        Raises:
            ShapeError: states are not (B, S, D), or the key_mask is not boolean (B, S).
        """
        check_states("StructuredAttention", "states", states, "S", self.first.in_features)
        if is_recording():
            record_call(self, None, lambda _: self.forward(states, key_mask=key_mask, need_weights=True).weights)
        mask = None
        if key_mask is not None:
            check_key_mask(key_mask, states.shape[:2], "StructuredAttention")
            # Zeros, because 0 * NaN is NaN.
            states = states.masked_fill(~key_mask.unsqueeze(-1), 0.0)
            mask = key_mask.unsqueeze(1)
        scores = self.second(torch.tanh(self.first(states))).transpose(1, 2)  # (B, r, S)
        weights = ops.normalize(scores, mask, normalizer=self.normalizer)
        return AttentionOutput(torch.bmm(weights, states.to(weights.dtype)), weights if need_weights else None)
