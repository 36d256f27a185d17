"""Score functions with learned weights, one class each.

A score projects keys once (`project`), then scores queries against them (`forward`). Leading axes broadcast: queries (B, T, D) with keys
(B, S, D), with heads (B, H, T, D) with (B, H, S, D). Parameter names are part of the file format.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Size, checked
from regard.errors import ConfigError
from regard.ops.call_checks import takes_tensors


class AdditiveScore(nn.Module):
    """Score with a one-layer perceptron: `v . tanh(W q + U k + b)`.

    Bahdanau et al. 2015, A.1.2: q is the decoder's state s_{i-1}, k the annotation h_j, and b, which the paper leaves out, the bias of U.
    The general attention over items y_i given a context c is the same in other letters:

        m_i = tanh(W_c c + W_y y_i);  s_i ~ exp <w, m_i>;  z = sum over i of s_i y_i

    with c the query, y_i keys and values, W_c = W, W_y = U and w = v. Luong's "concat", `v . tanh(W [q; k])`, is also the same function,
    with one matrix [W, U].

    With `coverage` the score of a key also depends on the attention that it got so far (See et al. 2017, arXiv:1704.04368, Eq. 11):

        v . tanh(W q + U k + w_c c + b),   c = sum of the weights of all earlier steps

    Coverage is added to the projected keys, by `covered`, before each step of a decoder.

    Differs from the paper: torch's default initialisation for W and U; v has variance 1 / A (the paper: 0.001 and zeros).

    Parameters: query.weight (A, Dq), key.weight (A, Dk), key.bias (A,), vector (A,): W, U, b, v; with coverage also coverage (A,), w_c.

    Args:
        query_dim: Dq, size of a query.
        key_dim: Dk, size of a key.
        attention_dim: A, width of the hidden layer.
        coverage: score by coverage, too; w_c starts at zero.

    Example:
        >>> score = AdditiveScore(3, 5, 7)
        >>> score(torch.ones(2, 1, 3), score.project(torch.ones(2, 11, 5))).shape
        torch.Size([2, 1, 11])
    """

    @checked
    def __init__(self, query_dim: Size, key_dim: Size, attention_dim: Size, *, coverage: bool = False) -> None:
        super().__init__()
        self.query = ops.Linear(query_dim, attention_dim, bias=False)
        self.key = ops.Linear(key_dim, attention_dim, bias=True)
        self.vector = nn.Parameter(torch.empty(attention_dim))
        self.coverage = nn.Parameter(torch.zeros(attention_dim)) if coverage else None
        nn.init.normal_(self.vector, std=1 / math.sqrt(attention_dim))

    def project(self, key: Tensor) -> Tensor:
        """Map keys (..., S, Dk) to (..., S, A)."""
        return self.key(key)

    def covered(self, key: Tensor, coverage: Tensor) -> Tensor:
        """Add the coverage (..., S) of keys to projected keys (..., S, A).

        Raises:
            ConfigError: the score has no coverage.
        """
        if self.coverage is None:
            raise ConfigError("AdditiveScore.covered: made without coverage=True")
        return key + coverage.unsqueeze(-1).to(key.dtype) * self.coverage.to(key.dtype)

    @takes_tensors
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score (..., T, Dq) against projected keys (..., S, A): (..., T, S)."""
        return ops.additive_scores(self.query(query), key, self.vector)


class ConcatScore(nn.Module):
    """Score with one matrix over the query and key together: `v . tanh(W [q; k])`.

    Luong et al. 2015, section 3.1 ("concat"). W is one parameter, split in use, so keys are projected only once.

    Parameters: weight (A, Dq + Dk), the query's columns first; vector (A,).

    Args:
        query_dim: size of a query.
        key_dim: size of a key.
        attention_dim: A, width of the hidden layer.

    Example:
        >>> score = ConcatScore(3, 5, 7)
        >>> score.weight.shape
        torch.Size([7, 8])
    """

    @checked
    def __init__(self, query_dim: Size, key_dim: Size, attention_dim: Size) -> None:
        super().__init__()
        self.query_dim = query_dim
        self.weight = nn.Parameter(torch.empty(attention_dim, query_dim + key_dim))
        self.vector = nn.Parameter(torch.empty(attention_dim))
        nn.init.xavier_uniform_(self.weight)
        nn.init.normal_(self.vector, std=1 / math.sqrt(attention_dim))

    def project(self, key: Tensor) -> Tensor:
        """Map keys (..., S, Dk) to (..., S, A)."""
        return ops.linear(key, self.weight[:, self.query_dim :])

    @takes_tensors
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score (..., T, Dq) against projected keys (..., S, A): (..., T, S)."""
        return ops.additive_scores(ops.linear(query, self.weight[:, : self.query_dim]), key, self.vector)


class GeneralScore(nn.Module):
    """Score with a bilinear form: `q^T W k`.

    Luong et al. 2015, section 3.1 ("general"). With W the identity it is the dot score.

    Parameters: key.weight (Dq, Dk), W.

    Args:
        query_dim: size of a query.
        key_dim: size of a key.

    Example:
        >>> score = GeneralScore(3, 5)
        >>> score(torch.ones(2, 1, 3), score.project(torch.ones(2, 11, 5))).shape
        torch.Size([2, 1, 11])
    """

    @checked
    def __init__(self, query_dim: Size, key_dim: Size) -> None:
        super().__init__()
        self.key = ops.Linear(key_dim, query_dim, bias=False)

    def project(self, key: Tensor) -> Tensor:
        """Map keys (..., S, Dk) to (..., S, Dq)."""
        return self.key(key)

    @takes_tensors
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score (..., T, Dq) against projected keys (..., S, Dq): (..., T, S)."""
        return ops.dot_scores(query, key)


class DotScore(nn.Module):
    """Score with the inner product, over sqrt(D) if `scaled`; no parameters.

    Luong et al. 2015, section 3.1 ("dot"); Vaswani et al. 2017, Eq. 1 (scaled).

    Args:
        scaled: divide by the root of the query's size.

    Example:
        >>> DotScore()(torch.ones(1, 1, 4), torch.ones(1, 2, 4)).tolist()
        [[[4.0, 4.0]]]
    """

    @checked
    def __init__(self, *, scaled: bool = False) -> None:
        super().__init__()
        self.scaled = scaled

    def project(self, key: Tensor) -> Tensor:
        """Return the keys (..., S, D) unchanged."""
        return key

    @takes_tensors
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score (..., T, D) against keys (..., S, D): (..., T, S)."""
        return ops.scaled_dot_scores(query, key) if self.scaled else ops.dot_scores(query, key)

    def extra_repr(self) -> str:
        """Show whether it is scaled."""
        return f"scaled={self.scaled}"


class CosineScore(nn.Module):
    """Score with the cosine times a sharpness, learned or fixed: `beta cos(q, k)`.

    Graves et al. 2014, Eq. 5 and 6.

    Parameters: sharpness (), if learned: beta is its softplus, 1 at first.

    Args:
        sharpness: beta, fixed; None: learned.

    Example:
        >>> CosineScore()(torch.ones(1, 1, 4), torch.ones(1, 2, 4)).round(decimals=4).tolist()
        [[[1.0, 1.0]]]
        >>> CosineScore(2.5)(torch.ones(1, 1, 4), torch.ones(1, 2, 4)).round(decimals=4).tolist()
        [[[2.5, 2.5]]]
    """

    @checked
    def __init__(self, sharpness: float | None = None) -> None:
        super().__init__()
        self.fixed = sharpness
        self.sharpness = nn.Parameter(torch.tensor(math.log(math.e - 1))) if sharpness is None else None

    def project(self, key: Tensor) -> Tensor:
        """Return the keys (..., S, D) unchanged."""
        return key

    @takes_tensors
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score (..., T, D) against keys (..., S, D): (..., T, S)."""
        if self.fixed is not None:
            return ops.cosine_scores(query, key, self.fixed)
        assert self.sharpness is not None
        return ops.cosine_scores(query, key, nn.functional.softplus(self.sharpness))

    def extra_repr(self) -> str:
        """Show the sharpness, if it is fixed."""
        return "" if self.fixed is None else f"sharpness={self.fixed}"


class LocationScore(nn.Module):
    """Score positions from the query alone: `W q`, one entry per position.

    Luong et al. 2015, Eq. 8 ("location"). Positions past `max_source_length` get no attention.

    Parameters: query.weight (M, Dq), W.

    Args:
        query_dim: size of a query.
        max_source_length: M, the number of positions that can be reached.

    Example:
        >>> LocationScore(3, 2)(torch.ones(1, 1, 3), torch.ones(1, 4, 5)).isinf().tolist()
        [[[False, False, True, True]]]
    """

    @checked
    def __init__(self, query_dim: Size, max_source_length: Size) -> None:
        super().__init__()
        self.query = ops.Linear(query_dim, max_source_length, bias=False)

    def project(self, key: Tensor) -> Tensor:
        """Return the keys (..., S, D) unchanged: only their number matters."""
        return key

    @takes_tensors
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score (..., T, Dq) for keys (..., S, D): (..., T, S)."""
        return ops.location_scores(self.query(query), key.shape[-2])


# Scores accepted by `Attention`; add new ones here.
ScoreModule = AdditiveScore | ConcatScore | CosineScore | DotScore | GeneralScore | LocationScore


def input_dims(score: ScoreModule) -> tuple[int | str, int | str]:
    """Return the sizes of a query and a key that a score takes; "Dq" or "Dk" where any size will do.

    Example:
        >>> input_dims(AdditiveScore(3, 5, 7)), input_dims(DotScore())
        ((3, 5), ('Dq', 'Dk'))
    """
    if isinstance(score, AdditiveScore):
        return score.query.in_features, score.key.in_features
    if isinstance(score, ConcatScore):
        return score.query_dim, score.weight.shape[1] - score.query_dim
    if isinstance(score, GeneralScore):
        return score.key.out_features, score.key.in_features
    return (score.query.in_features if isinstance(score, LocationScore) else "Dq"), "Dk"
