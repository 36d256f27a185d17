"""Hard attention as pure functions: draw one position a row, its log-probability, the entropy, and the loss that trains it.

The draw has no gradient. What is learned goes through the log-probability of what was drawn, weighed by how well it did (Williams 1992,
"REINFORCE"; Xu et al. 2015, arXiv:1502.03044, section 4.1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.masks import check_boolean


def greedy_positions(weights: Tensor) -> Tensor:
    """Take the position with the largest weight in each row.

    Args:
        weights: (..., N), not negative; rows need not sum to 1.

    Returns:
        (...) int64, 0 to N - 1, the first of equals; -1 for a row without a positive weight, or holding NaN.

    Example:
        >>> greedy_positions(torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.0, 0.0]])).tolist()
        [1, -1]
    """
    if weights.shape[-1] == 0:
        return torch.full(weights.shape[:-1], -1, dtype=torch.long, device=weights.device)
    best, position = weights.detach().max(dim=-1)
    return position.masked_fill(~(best > 0), -1)  # not `best <= 0`: NaN is no position either


def sample_positions(weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one position from each row, with probability proportional to its weight.

        position = argmin over i of E_i / weights[i],  E_i ~ Exponential(1)

    The race of exponential clocks: i rings first with probability weights[i] / sum of weights. It needs no sum, so rows need not be
    normalised, and a weight of exactly 0 never rings. The inverse of the cumulative sum would not promise that: on a GPU the sum is
    taken as a tree, two neighbouring entries of it may differ by rounding though the weight between them is 0, and a masked position
    would then be drawn once in a long while. Nothing waits for the device, and the shape of the result is known, so that it compiles.

    Probabilities below about 1e-7 are not told apart. The draw is in float32 (float64 for float64), also for half-precision weights.

    Args:
        weights: (..., N), not negative, finite; rows need not sum to 1.
        generator: where the randomness comes from, on the device of the weights; None: torch's global state (`torch.manual_seed`).
            `torch.compile` cannot trace a generator; compiled code uses the global state.

    Returns:
        (...) int64, 0 to N - 1; -1 for a row without a positive weight, or holding NaN or inf. No gradient.

    Example:
        >>> sample_positions(torch.tensor([[0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])).tolist()
        [1, -1]
    """
    weights = weights.detach()
    if weights.shape[-1] == 0:
        return greedy_positions(weights)
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    # Relative to the largest, so that no row can overflow, or underflow as a whole.
    weights = weights / weights.amax(-1, keepdim=True)
    clock = torch.empty_like(weights, memory_format=torch.contiguous_format).exponential_(generator=generator)
    return greedy_positions(weights / clock.clamp_min(torch.finfo(weights.dtype).tiny))


def normalized_weights(weights: Tensor) -> Tensor:
    """Divide each row by its sum: weights become the distribution that `sample_positions` draws from.

    Args:
        weights: (..., N), not negative.

    Returns:
        (..., N), float32 for half-precision weights; a row of zeros stays zeros.

    Example:
        >>> normalized_weights(torch.tensor([[1.0, 3.0], [0.0, 0.0]])).tolist()
        [[0.25, 0.75], [0.0, 0.0]]
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)


def position_log_prob(weights: Tensor, position: Tensor) -> Tensor:
    """Take the log-probability of one position in each row: `log(weights[position] / sum of weights)`.

    Args:
        weights: (..., N), not negative; rows need not sum to 1.
        position: (...) int64; negative: none, as for an empty row.

    Returns:
        (...) nats, at most 0, float32 for half-precision weights; 0 with zero gradient where there is no position. Differentiable in
        the weights. The slope 1 / p is capped at 2**14 for float16 weights, which cannot hold more.

    Raises:
        ShapeError: the positions are not one for each row; the message holds both shapes.

    Example:
        >>> position_log_prob(torch.tensor([[0.5, 0.5], [0.0, 0.0]]), torch.tensor([0, -1])).tolist()
        [-0.6931471824645996, 0.0]
    """
    if position.shape != weights.shape[:-1]:
        raise ShapeError(
            f"position_log_prob: expected one position for each row of weights (..., N) {tuple(weights.shape)}, "
            f"found {tuple(position.shape)}"
        )
    chosen = position.unsqueeze(-1) == torch.arange(weights.shape[-1], device=weights.device)
    # A sum over one term, not a gather: its gradient is deterministic, and N = 0 needs no case of its own.
    probability = normalized_weights(weights).masked_fill(~chosen, 0.0).sum(-1).masked_fill(position < 0, 1.0)
    if weights.dtype != torch.float16:
        return probability.log()
    fixed = probability.detach()
    return fixed.log() + (probability - fixed) / fixed.clamp_min(2.0**-14)


def weights_entropy(weights: Tensor) -> Tensor:
    """Measure how spread each row is: `H = -sum over i of p_i log p_i`, with p the normalised weights.

    Args:
        weights: (..., N), not negative; rows need not sum to 1.

    Returns:
        (...) nats, 0 to log N, float32 for half-precision weights; 0 for an empty row. A weight of exactly 0 gets gradient exactly 0,
        where the formula's would be infinite.

    Example:
        >>> weights_entropy(torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])).tolist()
        [1.3862943649291992, 0.0]
    """
    probability = normalized_weights(weights)
    safe = probability.masked_fill(probability == 0, 1.0)
    return (safe * -safe.log()).sum(-1)


def score_function_loss(
    advantage: Tensor,
    log_prob: Tensor,
    entropy: Tensor,
    sampled: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    reward_weight: float = 1.0,
    entropy_weight: float = 0.0,
) -> Tensor:
    """Compute the term whose gradient trains what was drawn, to be added to a loss that is minimised.

        loss = -1/B sum over b, t of [ reward_weight advantage[b, t] log_prob[b, t] + entropy_weight entropy[b, t] ]

    Xu et al. 2015, section 4.1, the second and third term of dL_s/dW with the sign turned: the paper climbs, a loss descends. The value
    means nothing by itself, only its gradient does.

    Args:
        advantage: (B, T), or (B, 1) for one a sentence: reward minus baseline, nats; taken as a constant.
        log_prob: (B, T) log-probabilities of what was drawn.
        entropy: (B, T) entropies of the distributions it was drawn from.
        sampled: (B, T) bool, False where nothing was drawn (expected weights were used): only the entropy counts there. None: all.
        mask: (B, T) bool, False for padded steps: nothing counts there, NaN included. None: no padding.
        reward_weight: the paper's lambda_r.
        entropy_weight: the paper's lambda_e.

    Returns:
        A 0-dimensional tensor; 0 for B = 0 or T = 0.

    Raises:
        ShapeError: the arguments do not share (B, T); the message holds the shapes.

    Example:
        >>> log_prob = torch.tensor([[0.5, 0.25]]).log().requires_grad_()
        >>> loss = score_function_loss(torch.tensor([[2.0]]), log_prob, torch.zeros(1, 2))
        >>> loss.backward()
        >>> log_prob.grad.tolist()                      # descending raises both, for they did better than the baseline
        [[-2.0, -2.0]]
    """
    size = log_prob.shape
    fits = all(part is None or part.shape == size for part in (entropy, sampled, mask))
    if log_prob.dim() != 2 or not fits or advantage.shape not in (size, (size[0], 1)):
        found = [None if part is None else tuple(part.shape) for part in (advantage, log_prob, entropy, sampled, mask)]
        raise ShapeError(
            f"score_function_loss: expected advantage (B, T) or (B, 1), and log_prob, entropy, sampled, mask (B, T); found {found}"
        )
    for name, part in (("sampled", sampled), ("mask", mask)):
        if part is not None:
            check_boolean(part, f"score_function_loss: {name}")
    advantage = advantage.detach().expand(size)
    if mask is not None:
        advantage, log_prob, entropy = (part.masked_fill(~mask, 0.0) for part in (advantage, log_prob, entropy))
    if sampled is not None:
        advantage, log_prob = advantage.masked_fill(~sampled, 0.0), log_prob.masked_fill(~sampled, 0.0)
    return -(reward_weight * advantage * log_prob + entropy_weight * entropy).sum() / max(1, size[0])
