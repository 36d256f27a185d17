"""Output layer and cross-entropy fused, in chunks of rows: the (tokens, vocabulary) logits are never materialized."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.errors import ConfigError
from regard.ops.kernels import loss_cpu
from regard.ops.linear import compute_dtype, matmul, outer_product
from regard.ops.tensor_checks import Argument, Signature, check_range, check_share, is_plain

_ARGUMENTS = Signature(
    "linear_cross_entropy",
    Argument("hidden", "N D"),
    Argument("weight", "V D"),
    Argument("bias", "V", optional=True),
    Argument("target", "N", dtype="int64"),
)
_PAIR = Signature(
    "consistent_cross_entropy",
    Argument("first", "N D"),
    Argument("second", "N D"),
    Argument("weight", "V D"),
    Argument("bias", "V", optional=True),
    Argument("target", "N", dtype="int64"),
)
# Rows of logits alive at a time: 512 x 8,000 float32 is 16 MB, about a last-level cache; larger chunks measured slower.
_CHUNK = 512
# float16 gradients of rare words underflow; the chunk's products are taken up to this much larger and scaled back in float32.
_HALF_SCALE = 1024.0


class SequenceLoss(NamedTuple):
    """Sums over the target tokens of a batch, 0-dimensional tensors; `loss` carries the gradient.

    Attributes:
        loss: the (smoothed) cross-entropy, nats.
        nll: the negative log-likelihood without smoothing, nats.
        tokens: the number of tokens.
        correct: how many of them had the highest probability.
    """

    loss: Tensor
    nll: Tensor
    tokens: Tensor
    correct: Tensor


class _LinearCrossEntropy(torch.autograd.Function):
    # The forward pass computes the gradient while a chunk of logits is in memory; the backward pass only scales it.
    # `hidden` is (P, N, D): the rows of P passes over the same N targets; P is 2 with a consistency alpha, else 1.
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, options: tuple[float, float, bool]
    ) -> tuple[Tensor, ...]:
        smoothing, alpha, train = options
        dtype = compute_dtype(hidden)
        w, h = weight.to(dtype), hidden.to(dtype)
        passes, size = hidden.shape[0], _CHUNK // hidden.shape[0]
        sums = torch.zeros(3, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device=hidden.device)
        hidden_grad = torch.empty_like(hidden) if train else None
        weight_grad = torch.zeros_like(weight) if train else None
        bias_grad = torch.zeros_like(bias) if train and bias is not None else None
        for start in range(0, hidden.shape[1], size):
            rows, goal = h[:, start : start + size].flatten(0, 1), target[start : start + size]
            logits = matmul(rows, w, None if bias is None else bias.to(dtype))
            logits = logits if dtype == torch.float64 else logits.float()
            part, grad = _measure(logits, goal, smoothing, train) if passes == 1 else _measure_pair(logits, goal, smoothing, alpha)
            sums += part
            if hidden_grad is None or weight_grad is None:
                continue
            if bias_grad is not None:
                bias_grad += grad.sum(0)
            scale = _half_scale(grad, rows, w) if dtype == torch.float16 else 1.0
            grad = (grad * scale if dtype == torch.float16 else grad).to(dtype)
            hidden_grad[:, start : start + size] = matmul(grad, w.t()).to(hidden.dtype).unflatten(0, (passes, -1)) / scale
            weight_grad += outer_product(grad, rows).to(weight.dtype) / scale
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        ctx.mark_non_differentiable(*(parts := (sums[1].clone(), sums[2].clone())))
        return sums[0].clone(), *parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden_grad, weight_grad, bias_grad = ctx.saved_tensors
        return hidden_grad * grad, weight_grad * grad, None if bias_grad is None else bias_grad * grad, None, None


def _half_scale(grad: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    # A power of two, 0-dimensional: no sum in grad.T @ rows, nor in grad @ weight, may reach the largest float16, which is nearly 2**16.
    sizes = grad.abs()
    largest = torch.maximum(sizes.sum(0).max() * rows.abs().max(), sizes.sum(1).max().clamp(min=2.0) * weight.abs().max())
    return (2.0**15 / largest.float()).log2().floor().exp2().clamp(max=_HALF_SCALE)


def _losses(logits: Tensor, goal: Tensor, smoothing: float, train: bool) -> tuple[Tensor, Tensor, Tensor]:
    # Overwrites the logits, in training with the gradient of the smoothed loss; per row: the unsmoothed loss, the uniform one, and hits.
    if loss_cpu.supports(logits, goal):
        return loss_cpu.cross_entropy_(logits, goal, smoothing=smoothing, gradient=train)
    goal = goal.unsqueeze(1)
    best = logits.argmax(1, keepdim=True)
    norm = torch.logsumexp(logits, 1, keepdim=True)
    nll = norm - logits.gather(1, goal)
    uniform = norm - logits.mean(1, keepdim=True) if smoothing else nll
    if train:
        logits.sub_(norm).exp_()
        if smoothing:
            logits -= smoothing / logits.shape[1]
        logits.scatter_add_(1, goal, torch.full_like(norm, smoothing - 1.0))
    return nll.squeeze(1), uniform.squeeze(1), (best == goal).squeeze(1)


def _measure(logits: Tensor, goal: Tensor, smoothing: float, train: bool) -> tuple[Tensor, Tensor]:
    # Overwrites the logits; returns sums (3,) of smoothed loss, unsmoothed loss and hits, and the gradient of the first.
    rows, uniform, correct = _losses(logits, goal, smoothing, train)
    nll = rows.sum()
    return torch.stack([(1 - smoothing) * nll + smoothing * uniform.sum(), nll, correct.sum().to(nll.dtype)]), logits


def _measure_pair(logits: Tensor, goal: Tensor, smoothing: float, alpha: float) -> tuple[Tensor, Tensor]:
    # As `_measure`, for the rows of a first and then of a second pass: means over both, and a quarter of alpha times their divergences.
    if loss_cpu.supports(logits, goal):
        pair = logits.unflatten(0, (2, -1))
        (rows, uniform, correct), apart = loss_cpu.consistent_cross_entropy_(pair, goal, smoothing=smoothing, alpha=alpha)
    else:
        rows, uniform, correct, apart = _losses_of_pair(logits, goal, smoothing, alpha)
    nll = rows.sum() / 2
    loss = (1 - smoothing) * nll + smoothing * uniform.sum() / 2 + alpha / 4 * apart.sum()
    return torch.stack([loss, nll, correct.sum() / 2]), logits


def _losses_of_pair(logits: Tensor, goal: Tensor, smoothing: float, alpha: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Overwrites the logits with their gradient; per row: the unsmoothed loss, the uniform one, and hits; per pair: the divergence.
    goals, count = goal.repeat(2), goal.shape[0]
    ratio, chosen = logits[:count] - logits[count:], logits.gather(1, goals.unsqueeze(1)).squeeze(1)
    rows, uniform, correct = _losses(logits, goals, smoothing, True)
    norm = rows + chosen
    ratio.sub_((norm[:count] - norm[count:]).unsqueeze(1))  # log p - log q
    # Both softmaxes in place of their gradients, then both gradients in place of the softmaxes.
    goals, spread, full = goals.unsqueeze(1), smoothing / logits.shape[1], torch.full_like(norm.unsqueeze(1), 1.0 - smoothing)
    logits.add_(spread).scatter_add_(1, goals, full)
    p, q = logits[:count], logits[count:]
    shares = [torch.linalg.vecdot(p, ratio).unsqueeze(1), -torch.linalg.vecdot(q, ratio).unsqueeze(1)]
    change = (p - q).mul_(alpha / 4)
    for part, share, sign in ((p, shares[0], 1), (q, shares[1], -1)):
        part.mul_((ratio - sign * share).mul_(sign * alpha / 4).add_(0.5)).add_(change, alpha=sign)
    logits.sub_(spread / 2).scatter_add_(1, goals, full / -2)
    return rows, uniform, correct, (shares[0] + shares[1]).squeeze(1)


def _plain_operations(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float) -> SequenceLoss:
    # For tracing, transforms and fake tensors: all logits at once, with torch operators only.
    dtype = compute_dtype(hidden)
    logits = F.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    logits = logits if dtype == torch.float64 else logits.float()
    norm = logits.logsumexp(1)
    nll = (norm - logits.gather(1, target.unsqueeze(1)).squeeze(1)).sum()
    loss = nll if not smoothing else (1 - smoothing) * nll + smoothing * (norm - logits.mean(1)).sum()
    correct = (logits.argmax(1) == target).sum().to(nll.dtype)
    return SequenceLoss(loss, nll.detach(), torch.full((), target.shape[0], device=hidden.device), correct)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *, label_smoothing: float = 0.0
) -> SequenceLoss:
    """Compute the cross-entropy of `softmax(hidden @ weight.T + bias)` against target classes, summed.

        loss = sum over n of (1 - eps) * -log p[n, target[n]] + eps * mean over v of -log p[n, v]

    Label smoothing as in Szegedy et al. 2016 (arXiv:1512.00567), section 7, uniform over all V classes, as in torch.

    Args:
        hidden: (N, D) rows before the output layer; under autocast products use autocast's dtype, the softmax float32.
        weight: (V, D).
        bias: (V,) or None.
        target: (N,) class numbers, 0 to V - 1.
        label_smoothing: eps, 0 <= eps < 1.

    Returns:
        `SequenceLoss`; zeros for N = 0. Differentiable once, in hidden, weight and bias.

    Raises:
        ShapeError: incompatible shapes, or targets are not int64.
        RangeError: a target outside 0 to V - 1 (not checked on a GPU).
        ConfigError: a label smoothing outside of 0 <= eps < 1.

    Example:
        >>> out = linear_cross_entropy(torch.zeros(3, 2), torch.zeros(5, 2), None, torch.tensor([0, 1, 4]))
        >>> round(out.loss.item() / 3, 4), int(out.tokens)
        (1.6094, 3)
    """
    _ARGUMENTS.check(hidden, weight, bias, target)
    check_share("linear_cross_entropy", "label_smoothing", label_smoothing)
    if not is_plain(hidden, weight, bias, target):
        return _plain_operations(hidden, weight, bias, target, label_smoothing)
    check_range("linear_cross_entropy", "target", target, 0, weight.shape[0] - 1)
    train = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (hidden, weight, bias))
    loss, nll, correct = _LinearCrossEntropy.apply(hidden.unsqueeze(0), weight, bias, target, (label_smoothing, 0.0, train))
    return SequenceLoss(loss, nll, torch.tensor(target.shape[0], device=hidden.device), correct)


def consistent_cross_entropy(
    first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *, consistency: float, label_smoothing: float = 0.0
) -> SequenceLoss:
    """Compute the cross-entropy of two passes with different dropout over the same targets, which shall agree (R-Drop), summed.

        loss = (ce(p) + ce(q)) / 2 + alpha / 4 * sum over n of (KL(p[n] || q[n]) + KL(q[n] || p[n]))

    p and q are the softmax of `hidden @ weight.T + bias` of the passes, `ce` is `linear_cross_entropy`. Liang et al. 2021
    (arXiv:2106.14448), section 2; half of their loss, so that alpha 0 is one loss for each target.

    Args:
        first: (N, D) rows of the first pass before the output layer.
        second: (N, D) rows of the second pass.
        weight: (V, D).
        bias: (V,) or None.
        target: (N,) class numbers, 0 to V - 1.
        consistency: alpha, finite and >= 0.
        label_smoothing: eps, 0 <= eps < 1.

    Returns:
        `SequenceLoss`; `nll` and `correct` are means over the passes. Differentiable once, in both passes, weight and bias.

    Raises:
        ShapeError: incompatible shapes, or targets are not int64.
        RangeError: a target outside 0 to V - 1 (not checked on a GPU).
        ConfigError: a negative or infinite consistency, or a label smoothing outside of 0 <= eps < 1.

    Example:
        >>> passes, weight = torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]]]), torch.eye(2)
        >>> target = torch.tensor([0])
        >>> [round(consistent_cross_entropy(*passes, weight, None, target, consistency=alpha).loss.item(), 4) for alpha in (0, 5)]
        [0.5032, 0.792]
    """
    _PAIR.check(first, second, weight, bias, target)
    check_share("consistent_cross_entropy", "label_smoothing", label_smoothing)
    if not 0 <= consistency < float("inf"):
        raise ConfigError(f"consistent_cross_entropy: consistency must be finite and at least 0, found {consistency}")
    hidden = torch.stack((first, second))
    if not is_plain(first, second, weight, bias, target):
        return _plain_pair(hidden, weight, bias, target, consistency, label_smoothing)
    check_range("consistent_cross_entropy", "target", target, 0, weight.shape[0] - 1)
    train = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (hidden, weight, bias))
    loss, nll, correct = _LinearCrossEntropy.apply(hidden, weight, bias, target, (label_smoothing, consistency, train))
    return SequenceLoss(loss, nll, torch.tensor(target.shape[0], device=hidden.device), correct)


def _plain_pair(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, alpha: float, smoothing: float) -> SequenceLoss:
    dtype = compute_dtype(hidden)
    sums = [_plain_operations(rows, weight, bias, target, smoothing) for rows in hidden]
    logits = F.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    p, q = (logits if dtype == torch.float64 else logits.float()).log_softmax(-1)
    divergence = ((p.exp() - q.exp()) * (p - q)).sum()
    loss, nll, tokens, correct = (torch.stack(parts).sum(0) / 2 for parts in zip(*sums, strict=True))
    return SequenceLoss(loss + alpha / 4 * divergence, nll, tokens, correct)
