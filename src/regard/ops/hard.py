"""Hard attention as pure functions: sample one position per row, its log-probability, entropy and training loss.

Sampling has no gradient; training uses the log-probability of the sample times its advantage (Williams 1992, "REINFORCE"; Xu et al. 2015,
arXiv:1502.03044, section 4.1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_boolean
from regard.ops.number_checks import LARGEST_SCALE, check_number
from regard.ops.tensor_checks import check_floating, check_not_negative, check_range


@takes_tensors
def greedy_positions(weights: Tensor) -> Tensor:
    """Return the position of the maximum weight in each row.

    Args:
        weights: (..., N), not negative; rows need not sum to 1.

    Returns:
        (...) int64, 0 to N - 1, the first of ties; -1 for a row without a positive weight or with NaN.

    Raises:
        RangeError: on a CPU, a weight is negative.

    Example:
        >>> greedy_positions(torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.0, 0.0]])).tolist()
        [1, -1]
    """
    check_not_negative("greedy_positions", "weights", weights)
    if weights.shape[-1] == 0:
        return torch.full(weights.shape[:-1], -1, dtype=torch.long, device=weights.device)
    best, position = weights.detach().max(dim=-1)
    return position.masked_fill(~(best > 0), -1)  # not `best <= 0`: that would miss NaN


@takes_tensors
def sample_positions(weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Sample one position from each row, with probability proportional to its weight.

        position = argmin over i of E_i / weights[i],  E_i ~ Exponential(1)

    Exponential race: i wins with probability weights[i] / sum of weights. Rows need no normalization, and a weight of exactly 0 never wins.
    Inverting the cumulative sum would not ensure that: a GPU sums as a tree, so rounding can make two adjacent entries differ where the
    weight is 0, and a masked position would rarely be sampled. There is no synchronisation with the device and the output shape is static,
    so it compiles.

    Probabilities below about 1e-7 are not told apart. The draw is in float32 (float64 for float64), also for half-precision weights.

    Args:
        weights: (..., N), not negative, finite; rows need not sum to 1.
        generator: on the device of the weights; None: torch's global generator (`torch.manual_seed`). `torch.compile` cannot trace a
            generator; compiled code uses the global one.

    Returns:
        (...) int64, 0 to N - 1; -1 for a row without a positive weight or with NaN or inf. No gradient.

    Raises:
        RangeError: on a CPU, a weight is negative.

    Example:
        >>> sample_positions(torch.tensor([[0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])).tolist()
        [1, -1]
    """
    weights = weights.detach()
    check_not_negative("sample_positions", "weights", weights)
    if weights.shape[-1] == 0:
        return greedy_positions(weights)
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    # Relative to the maximum, so that no row can overflow or underflow entirely.
    weights = weights / weights.amax(-1, keepdim=True)
    clock = torch.empty_like(weights, memory_format=torch.contiguous_format).exponential_(generator=generator)
    return greedy_positions(weights / clock.clamp_min(torch.finfo(weights.dtype).tiny))


@takes_tensors
def normalized_weights(weights: Tensor) -> Tensor:
    """Divide each row by its sum, giving the distribution that `sample_positions` samples from.

    Args:
        weights: (..., N), not negative.

    Returns:
        (..., N), float32 for half-precision weights; a row of zeros stays zeros.

    Raises:
        RangeError: on a CPU, a weight is negative.

    Example:
        >>> normalized_weights(torch.tensor([[1.0, 3.0], [0.0, 0.0]])).tolist()
        [[0.25, 0.75], [0.0, 0.0]]
    """
    check_not_negative("normalized_weights", "weights", weights)
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)


@takes_tensors
def position_log_prob(weights: Tensor, position: Tensor) -> Tensor:
    """Compute the log-probability of one position per row: `log(weights[position] / sum of weights)`.

    Args:
        weights: (..., N), not negative; rows need not sum to 1.
        position: (...) int64; negative: no position, as for an empty row.

    Returns:
        (...) nats <= 0, float32 for half-precision weights; 0 with zero gradient without a position. Differentiable in the weights. The
        slope 1 / p is capped at 2**14 for float16 weights.

    Raises:
        ShapeError: the positions are not one for each row, or no whole numbers.
        RangeError: on a CPU, a weight is negative, or a position N or more.

    Example:
        >>> position_log_prob(torch.tensor([[0.5, 0.5], [0.0, 0.0]]), torch.tensor([0, -1])).tolist()
        [-0.6931471824645996, 0.0]
    """
    if position.shape != weights.shape[:-1]:
        raise ShapeError(
            f"position_log_prob: expected one position for each row of weights (..., N) {tuple(weights.shape)}, "
            f"found {tuple(position.shape)}"
        )
    check_not_negative("position_log_prob", "weights", weights)
    check_range("position_log_prob", "position", position, -(2**63), weights.shape[-1] - 1)
    chosen = position.unsqueeze(-1) == torch.arange(weights.shape[-1], device=weights.device)
    # A sum over one term, not a gather: its gradient is deterministic, and N = 0 is no special case.
    probability = normalized_weights(weights).masked_fill(~chosen, 0.0).sum(-1).masked_fill(position < 0, 1.0)
    if weights.dtype != torch.float16:
        return probability.log()
    fixed = probability.detach()
    return fixed.log() + (probability - fixed) / fixed.clamp_min(2.0**-14)


@takes_tensors
def weights_entropy(weights: Tensor) -> Tensor:
    """Compute the entropy of each row: `H = -sum over i of p_i log p_i`, with p the normalized weights.

    Args:
        weights: (..., N), not negative; rows need not sum to 1.

    Returns:
        (...) nats, 0 to log N, float32 for half-precision weights; 0 for an empty row. A weight of exactly 0 gets gradient 0, not infinity.

    Raises:
        RangeError: on a CPU, a weight is negative.

    Example:
        >>> weights_entropy(torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])).tolist()
        [1.3862943649291992, 0.0]
    """
    check_not_negative("weights_entropy", "weights", weights)
    probability = normalized_weights(weights)
    safe = probability.masked_fill(probability == 0, 1.0)
    return (safe * -safe.log()).sum(-1)


@takes_tensors
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
    """Compute the REINFORCE term to add to a loss.

        loss = -1/B sum over b, t of [ reward_weight advantage[b, t] log_prob[b, t] + entropy_weight entropy[b, t] ]

    Xu et al. 2015, section 4.1, the second and third term of dL_s/dW with the sign flipped (the paper maximises). Only the gradient is
    meaningful, not the value.

    Args:
        advantage: (B, T), or (B, 1) for one per sentence: reward minus baseline, nats; treated as a constant.
        log_prob: (B, T) log-probabilities of the samples.
        entropy: (B, T) entropies of the sampled distributions.
        sampled: (B, T) bool, False where expected weights were used instead of a sample: only the entropy counts. None: all sampled.
        mask: (B, T) bool, False for padded steps, which are ignored, NaN included. None: no padding.
        reward_weight: the paper's lambda_r.
        entropy_weight: the paper's lambda_e.

    Returns:
        A 0-dimensional tensor; 0 for B = 0 or T = 0.

    Raises:
        ShapeError: the arguments do not share (B, T).

    Example:
        >>> log_prob = torch.tensor([[0.5, 0.25]]).log().requires_grad_()
        >>> loss = score_function_loss(torch.tensor([[2.0]]), log_prob, torch.zeros(1, 2))
        >>> loss.backward()
        >>> log_prob.grad.tolist()                      # descending raises both, for they did better than the baseline
        [[-2.0, -2.0]]
    """
    for name, weight in (("reward_weight", reward_weight), ("entropy_weight", entropy_weight)):
        check_number("score_function_loss", name, weight, -LARGEST_SCALE, LARGEST_SCALE)
    check_floating("score_function_loss", advantage=advantage, log_prob=log_prob, entropy=entropy)
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
