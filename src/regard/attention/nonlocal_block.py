"""The non-local block: every position attends to every position of the same or another input."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention.base import AttentionOutput
from regard.attention.recorder import is_recording, record_call
from regard.constructor_checks import Size, checked
from regard.errors import ConfigError, ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_key_mask
from regard.ops.nonlocal_attention import NonLocalForm, check_normalizer
from regard.ops.sparsemax import Normalizer
from regard.ops.tensor_checks import check_states


class NonLocal(nn.Module):
    """Non-local block: `z_i = W_z y_i + x_i`, with y from `ops.nonlocal_attention`.

        y_i = 1 / C(x) sum_j f(x_i, x_j) W_g x_j
        gaussian:           f = exp(x_i . x_j)                         C = sum_j f
        embedded_gaussian:  f = exp((W_theta x_i) . (W_phi x_j))       C = sum_j f
        dot:                f = (W_theta x_i) . (W_phi x_j)            C = N
        concat:             f = relu(w_f . [W_theta x_i; W_phi x_j])   C = N

    Wang et al. 2018 (arXiv:1711.07971), Eq. 1 to 6. With a second input it is the generic co-attention of Li et al. 2019, Eq. 3 and 4:
    f(x2_i, x1_j) g(x1_j); one input twice gives self-attention. N counts the allowed positions. With `residual`, W_z starts at zero as in
    the paper, so that the block initially returns its input; otherwise torch's default. A pooled copy of the input as `other` gives the
    paper's subsampling.

    Parameters: value.weight (C, Ds), W_g; output.weight (D, C), W_z; except for gaussian: query.weight (C, D), W_theta, and
    key.weight (C, Ds), W_phi; for concat: vector (2 C,), w_f.

    Args:
        dim: D, features per position.
        inner_dim: C, size of the projections; None: half of D, as in the paper.
        form: the pairwise function.
        residual: add x_i.
        other_dim: Ds, features per position of the second input; None: D.
        normalizer: replaces the softmax of the Gaussian forms: "sparsemax" or "entmax15" (`regard.ops.normalize`).

    Raises:
        ConfigError: an unknown form, form="gaussian" with an `other_dim` that is not `dim`, a normalizer for dot or concat, or a size
            below 1.

    Example:
        >>> grid = torch.randn(2, 6, 3, 5)                              # feature maps (B, D, height, width)
        >>> block = NonLocal(6, form="dot")
        >>> places = grid.flatten(2).transpose(1, 2)                    # (B, S, D), row by row
        >>> block(places).context.transpose(1, 2).reshape(grid.shape).equal(grid)   # W_z is zero at first
        True
        >>> block(places, torch.randn(2, 7, 6), need_weights=True).weights.shape
        torch.Size([2, 15, 7])
    """

    @checked
    def __init__(
        self,
        dim: Size,
        inner_dim: Size | None = None,
        *,
        form: NonLocalForm = "embedded_gaussian",
        residual: bool = True,
        other_dim: Size | None = None,
        normalizer: Normalizer = "softmax",
    ) -> None:
        super().__init__()
        inner = max(1, dim // 2) if inner_dim is None else inner_dim
        other = dim if other_dim is None else other_dim
        if form == "gaussian" and other != dim:
            raise ConfigError(f"NonLocal: form='gaussian' compares the inputs as they are: other_dim must be dim = {dim}, found {other}")
        self.dim, self.inner_dim, self.other_dim, self.residual = dim, inner, other, residual
        check_normalizer(form, normalizer)
        self.form: NonLocalForm = form
        self.normalizer: Normalizer = normalizer
        self.query = None if form == "gaussian" else ops.Linear(dim, inner, bias=False)
        self.key = None if form == "gaussian" else ops.Linear(other, inner, bias=False)
        self.value = ops.Linear(other, inner, bias=False)
        self.output = ops.Linear(inner, dim, bias=False)
        self.vector = nn.Parameter(torch.empty(2 * inner)) if form == "concat" else None
        if self.vector is not None:
            nn.init.normal_(self.vector, std=1 / math.sqrt(2 * inner))
        if residual:
            nn.init.zeros_(self.output.weight)

    @takes_tensors
    def forward(
        self, states: Tensor, other: Tensor | None = None, *, key_mask: Tensor | None = None, need_weights: bool = False
    ) -> AttentionOutput:
        """Attend from `states` (x2) to `other` (x1), or to `states` itself.

        Args:
            states: (B, T, D).
            other: (B, S, Ds); None: the states, and S = T.
            key_mask: (B, S) bool, True = may attend; None: everything. Without `other` a masked position counts as zeros, also in its own
                row; with `other`, `states` are never masked.
            need_weights: return f / C.

        Returns:
            `AttentionOutput` with context = z (B, T, D) and weights (B, T, S); with nothing to attend to y and the weights are 0.

        Raises:
            ShapeError: sizes that do not fit, or a key_mask that is not (B, S) and boolean.
        """
        if is_recording():
            record_call(self, None, lambda _: self.forward(states, other, key_mask=key_mask, need_weights=True).weights)
        source = states if other is None else other
        self._check(states, source)
        if key_mask is not None:
            check_key_mask(key_mask, source.shape[:2], "NonLocal")
            # Before any projection: a weight's gradient multiplies by the source, and 0 * NaN is NaN.
            source = source.masked_fill(~key_mask.unsqueeze(-1), 0.0)
            states = source if other is None else states
        query = states if self.query is None else self.query(states)
        key = source if self.key is None else self.key(source)
        allowed = None if key_mask is None else key_mask.unsqueeze(1)
        found = ops.nonlocal_attention(
            query,
            key,
            self.value(source),
            self.vector,
            form=self.form,
            mask=allowed,
            normalizer=self.normalizer,
            need_weights=need_weights,
        )
        context = self.output(found.context)
        return AttentionOutput(context + states if self.residual else context, found.weights)

    def _check(self, states: Tensor, source: Tensor) -> None:
        check_states("NonLocal", "states", states, "T", self.dim)
        check_states("NonLocal", "other", source, "S", self.other_dim)
        if source.shape[0] != states.shape[0]:
            raise ShapeError(f"NonLocal: other must be ({states.shape[0]}, S, {self.other_dim}), found {tuple(source.shape)}")

    def extra_repr(self) -> str:
        """Show the settings."""
        sizes = f"dim={self.dim}, inner_dim={self.inner_dim}, other_dim={self.other_dim}"
        return f"{sizes}, form={self.form!r}, residual={self.residual}, normalizer={self.normalizer!r}"
