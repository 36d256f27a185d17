"""The non-local operation: a weighted sum over all positions, with pairwise functions besides the softmax."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_mask
from regard.ops.nonfinite import mask_nonfinite
from regard.ops.scores import dot_scores
from regard.ops.sparsemax import Normalizer, normalize

NonLocalForm = Literal["gaussian", "embedded_gaussian", "dot", "concat"]


class NonLocalResult(NamedTuple):
    """Result of `nonlocal_attention`.

    Attributes:
        context: (..., T, Dv), y_i.
        weights: (..., T, S), f(x_i, x_j) / C(x), or None if not requested.
    """

    context: Tensor
    weights: Tensor | None


@takes_tensors
def nonlocal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor | None = None,
    *,
    form: NonLocalForm = "gaussian",
    mask: Tensor | None = None,
    normalizer: Normalizer = "softmax",
    need_weights: bool = False,
) -> NonLocalResult:
    """Sum the values over all positions, weighted by a pairwise function.

        y_i = 1 / C(x) sum_j f(x_i, x_j) g(x_j)
        gaussian, embedded_gaussian:  f = exp(q_i . k_j),                C = sum_j f   (a softmax)
        dot:                          f = q_i . k_j,                     C = N
        concat:                       f = relu(w . [q_i; k_j]),          C = N

    Wang et al. 2018 (arXiv:1711.07971), Eq. 1 to 6; N counts the allowed positions of a row. The inputs q = theta(x), k = phi(x) and v =
    g(x) are already projected; the Gaussian form has q = k = x, its only difference from the embedded one. Queries of one input with keys
    and values of another are the co-attention of Li et al. 2019, Eq. 3 and 4. concat never concatenates pairs: w splits into a part for the
    query and one for the key. Without weights and with one mask for all queries, dot is computed as q (k^T v) / N, without a T x S matrix.

    Args:
        query: (..., T, D).
        key: (..., S, D).
        value: (..., S, Dv).
        vector: (2 D,), the paper's w_f, for concat only.
        form: the pairwise function.
        mask: bool, (S,) or (..., T, S) with every axis of the scores, any of them 1 for all; True = may attend. None: everything.
        normalizer: replaces the softmax of the Gaussian forms: "sparsemax" or "entmax15".
        need_weights: return f / C. For dot they may be negative; for dot and concat they do not sum to 1.

    Returns:
        `NonLocalResult`; a row with nothing allowed is all zeros. Masked keys and values have no influence.

    Raises:
        ShapeError: an unknown form; axes that do not agree; a vector missing, not (2 D,), or given to another form; a mask that is not
            boolean or does not broadcast.
        ConfigError: a normalizer other than "softmax" for dot or concat, which have no softmax, or an unknown one.

    Example:
        >>> place = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> nonlocal_attention(place, place, place, form="dot", need_weights=True).weights.tolist()
        [[0.5, 0.0], [0.0, 2.0]]
    """
    _check(query, key, value, vector, form)
    check_normalizer(form, normalizer)
    if mask is not None:
        shape = (*torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.shape[-2], key.shape[-2])
        check_mask(mask, shape, "nonlocal_attention")
        mask = mask[(None,) * (len(shape) - mask.dim())]
        mask = mask.expand(*mask.shape[:-1], key.shape[-2])  # so that its rows can be counted
    key, value, tainted = mask_nonfinite(key, value, mask)
    if form == "dot" and not need_weights and (mask is None or mask.shape[-2] == 1):
        # Masked rows are zero already. N divides the keys, not the sum over all positions, which may overflow float16.
        context, weights = query @ ((key / _count(mask, key)).transpose(-1, -2) @ value), None
    else:
        weights = _weights(query, key, vector, form, mask, normalizer)
        context = weights @ value.to(weights.dtype)
    if tainted is not None:
        context = context.masked_fill(tainted.unsqueeze(-1), float("nan"))
        weights = None if weights is None else weights.masked_fill(tainted.unsqueeze(-1), float("nan"))
    return NonLocalResult(context, weights if need_weights else None)


def check_normalizer(form: NonLocalForm, normalizer: Normalizer) -> None:
    """Check that a normalizer suits a form: only the Gaussian ones have a softmax to replace.

    Raises:
        ConfigError: it does not; the message names both.

    Example:
        >>> check_normalizer("gaussian", "entmax15")
    """
    if normalizer != "softmax" and form in ("dot", "concat"):
        raise ConfigError(f"normalizer: form={form!r} divides by the number of positions and has no softmax, found {normalizer!r}")


def _weights(query: Tensor, key: Tensor, vector: Tensor | None, form: NonLocalForm, mask: Tensor | None, normalizer: Normalizer) -> Tensor:
    if vector is not None:
        query_part, key_part = vector.to(query.dtype).chunk(2)
        scores = torch.relu((query @ query_part).unsqueeze(-1) + (key @ key_part).unsqueeze(-2))
    else:
        scores = dot_scores(query, key)
    if form in ("gaussian", "embedded_gaussian"):
        return normalize(scores, mask, normalizer=normalizer)
    weights = scores / _count(mask, key)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def _count(mask: Tensor | None, key: Tensor) -> Tensor | int:
    # N >= 1 per query: (..., T, 1), or one number without a mask.
    return max(1, key.shape[-2]) if mask is None else mask.sum(-1, keepdim=True).clamp(min=1).to(key.dtype)


def _check(query: Tensor, key: Tensor, value: Tensor, vector: Tensor | None, form: str) -> None:
    if form not in get_args(NonLocalForm):
        raise ShapeError(f"nonlocal_attention: form must be one of {', '.join(get_args(NonLocalForm))}, found {form!r}")
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(f"nonlocal_attention: query {tuple(query.shape)} and key {tuple(key.shape)} must agree in the last axis")
    try:
        torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    except RuntimeError as error:
        found = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        raise ShapeError(f"nonlocal_attention: the leading axes must broadcast, found {found}") from error
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(f"nonlocal_attention: key {tuple(key.shape)} and value {tuple(value.shape)} must agree in the places (..., S, D)")
    if form != "concat":
        if vector is not None:
            raise ShapeError(f"nonlocal_attention: only form='concat' takes a vector, found one {tuple(vector.shape)} with form={form!r}")
    elif vector is None or vector.shape != (2 * key.shape[-1],):
        found = "none" if vector is None else tuple(vector.shape)
        raise ShapeError(f"nonlocal_attention: form='concat' takes a vector (2 D,) = ({2 * key.shape[-1]},), found {found}")
