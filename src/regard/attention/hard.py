"""Hard attention: attend to one sampled position, trained with REINFORCE."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Count, Share, Weight, checked
from regard.errors import ConfigError, ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_boolean
from regard.ops.number_checks import check_count
from regard.ops.tensor_checks import check_not_negative, refuse_others

Mode = Literal["sample", "argmax", "expected"]
HalfSoftPer = Literal["example", "batch"]
Reward = Literal["sentence", "step", "return"]
Scaling = Literal["paper", "code"]


class HardChoiceOutput(NamedTuple):
    """Output of `HardChoice`.

    Attributes:
        weights: (..., T, N) one-hot or expected weights; zeros for an empty row.
        log_prob: (..., T) nats, differentiable log-probability of the selected position; 0 where none was selected.
        entropy: (..., T) nats, of the distribution.
        sampled: (..., T) bool, True where the position was sampled.
    """

    weights: Tensor
    log_prob: Tensor
    entropy: Tensor
    sampled: Tensor


class HardChoice(nn.Module):
    """Replace soft weights by one position per row.

        training:  s ~ Multinoulli(weights), the weights become one-hot at s; with probability `half_soft` the expected weights stay
        test:      "sample" draws, "argmax" takes the largest weight, "expected" keeps the (normalized) weights

    Xu et al. 2015 (arXiv:1502.03044), section 4.1. The half-soft coin: the paper tosses it "for a given image", the authors' code once per
    minibatch (`half_soft_per`). A stepwise decoder tosses it once with `soft_rows` and passes it to every step. The first `soft_batches`
    training tosses are True for all (a soft warm-up, in neither paper nor code). The authors' generation script uses expected weights also
    for the hard model; the paper does not say. Rows are normalized first, so they need not sum to 1 (`PredictiveWindow`'s do not). Sampling
    has no gradient: train with `ScoreFunctionEstimator`.

    Uses the call's `generator`, or torch's global one. No parameters; with `soft_batches` a persistent buffer `tossed` (), the number of
    tosses.

    Args:
        mode: at test time: "sample", "argmax" or "expected".
        half_soft: probability of keeping the expected weights in training, 0 to 1.
        half_soft_per: "example" (first axis; weights without a batch axis count as one example) or "batch".
        soft_batches: batches with expected weights at the start of training; 0 or more.

    Raises:
        ConfigError: an argument outside of its range.

    Example:
        >>> choice = HardChoice().eval()
        >>> chosen = choice(torch.tensor([[[0.25, 0.75], [0.0, 0.0]]]))
        >>> chosen.weights.tolist(), chosen.sampled.tolist()
        ([[[0.0, 1.0], [0.0, 0.0]]], [[False, False]])
    """

    tossed: Tensor

    @checked
    def __init__(
        self, mode: Mode = "argmax", *, half_soft: Share = 0.5, half_soft_per: HalfSoftPer = "example", soft_batches: Count = 0
    ) -> None:
        super().__init__()
        self.mode: Mode = mode
        self.half_soft = half_soft
        self.half_soft_per: HalfSoftPer = half_soft_per
        self.soft_batches = soft_batches
        if soft_batches:
            self.register_buffer("tossed", torch.zeros((), dtype=torch.int64))

    def soft_rows(self, size: int, *, device: torch.device | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Toss the half-soft coin for `size` examples: (size,) bool, True = use the expected weights.

        For decoders: toss once per batch, pass the result as `soft` at every step.

        Raises:
            ConfigError: `size` is no whole number of at least 0.
        """
        check_count("soft_rows", "size", size)
        coins = 1 if self.half_soft_per == "batch" else size
        soft = torch.empty(coins, device=device).uniform_(generator=generator) < self.half_soft
        if self.soft_batches:
            # A tensor, to avoid synchronising with the device.
            soft = soft | (self.tossed < self.soft_batches)
            if self.training:
                self.tossed += 1
        return soft.expand(size)

    @takes_tensors
    def forward(
        self, weights: Tensor, generator: torch.Generator | None = None, *, mode: Mode | None = None, soft: Tensor | None = None
    ) -> HardChoiceOutput:
        """Choose from weights (..., T, N), not negative.

        Args:
            weights: (..., T, N); N positions or areas.
            generator: on the device of the weights; None: the global one, the only one that `torch.compile` supports.
            mode: overrides the module's mode, also in training (without a coin toss).
            soft: (B,) bool, examples with expected weights; None: tossed here in training, none at test time.

        Returns:
            `HardChoiceOutput`; log_prob and entropy in float32 for half-precision weights. An empty row: zero weights, log_prob and entropy
            0, not sampled. A row with NaN stays NaN.

        Raises:
            ShapeError: weights without a row axis, or `soft` that is not (B,).
            ConfigError: an unknown mode.
            RangeError: on a CPU, a weight is negative.
        """
        refuse_others("HardChoice", soft=soft)
        if weights.dim() < 2:
            raise ShapeError(f"HardChoice: expected weights (..., T, N), found {tuple(weights.shape)}")
        check_not_negative("HardChoice", "weights", weights)
        size = weights.shape[0] if weights.dim() > 2 else 1
        if mode is not None:
            if mode not in get_args(Mode):
                raise ConfigError(f"HardChoice: mode may be {', '.join(map(repr, get_args(Mode)))}, found {mode!r}")
        elif self.training:
            mode = "sample"
            soft = self.soft_rows(size, device=weights.device, generator=generator) if soft is None else soft
        else:
            mode = self.mode
        probability, entropy = ops.normalized_weights(weights), ops.weights_entropy(weights)
        if mode == "expected":
            return HardChoiceOutput(
                probability.to(weights.dtype), torch.zeros_like(entropy), entropy, torch.zeros_like(entropy, dtype=torch.bool)
            )
        position = ops.sample_positions(weights, generator) if mode == "sample" else ops.greedy_positions(weights)
        kept = None
        if soft is not None:
            if soft.shape != (size,):
                raise ShapeError(f"HardChoice: soft must be (B,) = ({size},) for weights {tuple(weights.shape)}, found {tuple(soft.shape)}")
            check_boolean(soft, "HardChoice: soft")
            kept = soft.view(-1, *[1] * (weights.dim() - 2))  # (B, 1, ...)
            position = position.masked_fill(kept, -1)
        chosen = (position.unsqueeze(-1) == torch.arange(weights.shape[-1], device=weights.device)).to(probability.dtype)
        if kept is not None:
            chosen = torch.where(kept.unsqueeze(-1), probability, chosen)
        # A row with NaN has no position and must not silently become zero.
        broken = probability.isnan().any(-1)
        chosen = chosen.masked_fill(broken.unsqueeze(-1), torch.nan)
        log_prob = ops.position_log_prob(weights, position).masked_fill(broken, torch.nan)
        sampled = position >= 0 if mode == "sample" else torch.zeros_like(position, dtype=torch.bool)
        return HardChoiceOutput(chosen.to(weights.dtype), log_prob, entropy, sampled)

    def extra_repr(self) -> str:
        """Show the settings."""
        more = f", soft_batches={self.soft_batches}" if self.soft_batches else ""
        return f"mode={self.mode!r}, half_soft={self.half_soft}, half_soft_per={self.half_soft_per!r}{more}"


class ScoreFunctionEstimator(nn.Module):
    """REINFORCE loss term with a moving-average baseline and an entropy bonus.

        dL/dW = 1/N sum over n of [ dlog p(y|s_n, a)/dW + lambda_r (log p(y|s_n, a) - b) dlog p(s_n|a)/dW + lambda_e dH[s_n]/dW ]
        b <- 0.9 b + 0.1 log p(y|s_n, a)

    Xu et al. 2015 (arXiv:1502.03044), section 4.1. The paper maximises L. The first term is the usual cross-entropy; this module returns
    the other two with the sign flipped. The reward is detached; the baseline is updated after use, in training only.

    The paper and its authors' code scale differently:

        =========================  ====================================  ===========================================================
        .                          "paper"                               "code"
        =========================  ====================================  ===========================================================
        reward of a sentence       log p(y|s, a), summed over words      the mean over its words
        over the batch             mean                                  sum (beside a cross-entropy that is a mean)
        reward_weight (lambda_r)   1.0 (the paper gives no value)        1/10
        entropy_weight (lambda_e)  0.01 (the paper gives no value)       0.002
        reward="step"              with the baseline                     without
        =========================  ====================================  ===========================================================

    Written as means, "code" is lambda_r = B/10 = 6.4 and lambda_e = 0.002 B = 0.128 at the authors' B = 64, with the mean-per-word reward.
    Their baseline follows the cost, so it is -1 times ours. Their batches hold sentences of one length; with padding, means are over
    real words. "paper" goes with a cross-entropy summed over words and averaged over sentences.

    Rewards: "sentence" uses the whole sentence's reward at every step. "step" uses each word's own: less variance, but unbiased only if a
    choice does not affect later words (in a recurrent decoder it does). "return" sums a word's and all later rewards, unbiased for any
    decoder (in neither paper nor code). Examples with expected weights (`sampled` False) add only their entropy, but update the baseline,
    as in the code. Baselines do not bias the gradient.

    Distributed training does not reduce the baseline: each process keeps its own, unless DistributedDataParallel's default
    `broadcast_buffers` replaces it by rank 0's at each forward pass.

    Buffers: baseline (), nats, initially 0; persistent.

    Args:
        reward: "sentence", "step" or "return".
        scaling: "paper" or "code".
        reward_weight: lambda_r >= 0; None: the table's.
        entropy_weight: lambda_e >= 0; None: the table's.
        decay: share of the baseline kept per update, 0 to 1.

    Raises:
        ConfigError: an argument outside of its range, or "return" with the code's scaling.

    Example:
        >>> estimator = ScoreFunctionEstimator(entropy_weight=0.0)
        >>> log_prob = torch.tensor([[0.5, 0.5]]).log().requires_grad_()
        >>> term = estimator(torch.tensor([[1.0, 2.0]]), log_prob, torch.zeros(1, 2))
        >>> term.backward()
        >>> log_prob.grad.tolist(), round(estimator.baseline.item(), 4)     # an nll of 3: descending makes the choices less likely
        ([[3.0, 3.0]], -0.3)
    """

    baseline: Tensor

    @checked
    def __init__(
        self,
        *,
        reward: Reward = "sentence",
        scaling: Scaling = "paper",
        reward_weight: Weight | None = None,
        entropy_weight: Weight | None = None,
        decay: Share = 0.9,
    ) -> None:
        super().__init__()
        if reward == "return" and scaling == "code":
            raise ConfigError("ScoreFunctionEstimator: reward='return' is not in the authors' code; scaling must be 'paper'")
        self.reward: Reward = reward
        self.scaling: Scaling = scaling
        self.reward_weight = (0.1 if scaling == "code" else 1.0) if reward_weight is None else reward_weight
        self.entropy_weight = (0.002 if scaling == "code" else 0.01) if entropy_weight is None else entropy_weight
        self.decay = decay
        self.register_buffer("baseline", torch.zeros((), dtype=torch.float32))

    @takes_tensors
    def forward(self, nll: Tensor, log_prob: Tensor, entropy: Tensor, sampled: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Compute the term to add to the loss, and update the baseline (in training).

        Args:
            nll: (B, T) negative log-likelihood of each target word given the choices, nats; detached.
            log_prob: (B, T) from `HardChoice`.
            entropy: (B, T) from `HardChoice`.
            sampled: (B, T) bool from `HardChoice`; None: all sampled.
            mask: (B, T) bool, True = a real target step; None: all are. Padded steps are ignored, NaN included.

        Returns:
            A 0-dimensional tensor; 0 for B = 0 or T = 0.

        Raises:
            ShapeError: the arguments do not share (B, T).
        """
        if nll.dim() != 2 or nll.shape != log_prob.shape or (mask is not None and mask.shape != nll.shape):
            found = [tuple(part.shape) for part in (nll, log_prob, *([] if mask is None else [mask]))]
            raise ShapeError(f"ScoreFunctionEstimator: expected nll, log_prob and mask (B, T) alike, found {found}")
        if mask is not None:
            check_boolean(mask, "ScoreFunctionEstimator: mask")
        real = torch.ones_like(nll, dtype=torch.bool) if mask is None else mask
        reward, counts = self._reward(nll, real)
        plain = self.scaling == "code" and self.reward == "step"
        advantage = reward if plain else reward - self.baseline
        term = ops.score_function_loss(
            advantage, log_prob, entropy, sampled, mask, reward_weight=self.reward_weight, entropy_weight=self.entropy_weight
        )
        if self.training:
            self._move(reward, counts)
        return term * nll.shape[0] if self.scaling == "code" else term

    def _reward(self, nll: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        # (B, 1) or (B, T) rewards, and which of them are valid.
        words = nll.detach().to(torch.promote_types(nll.dtype, torch.float32)).neg().masked_fill(~real, 0.0)
        if self.reward == "step":
            return words, real
        if self.reward == "return":
            return words.flip(1).cumsum(1).flip(1), real
        number = real.sum(1, keepdim=True)
        total = words.sum(1, keepdim=True)
        return (total / number.clamp_min(1) if self.scaling == "code" else total), number > 0

    @torch.no_grad()
    def _move(self, reward: Tensor, counts: Tensor) -> None:
        mean = reward.masked_fill(~counts, 0.0).sum() / counts.sum().clamp_min(1)
        moved = self.decay * self.baseline + (1 - self.decay) * mean
        # One non-finite or empty batch must not corrupt the baseline.
        usable = counts.any() & mean.isfinite()
        self.baseline.copy_(torch.where(usable, moved.to(self.baseline.dtype), self.baseline))

    def extra_repr(self) -> str:
        """Show the settings."""
        return (
            f"reward={self.reward!r}, scaling={self.scaling!r}, reward_weight={self.reward_weight}, "
            f"entropy_weight={self.entropy_weight}, decay={self.decay}"
        )
