"""Output layer and cross-entropy fused, in chunks of rows: the (tokens, vocabulary) logits are never materialized."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.call_checks import takes_tensors
from regard.ops.kernels import loss_cpu
from regard.ops.kernels.second_order import differentiable_gradients
from regard.ops.linear import compute_dtype, matmul, outer_product
from regard.ops.number_checks import check_number, check_share
from regard.ops.tensor_checks import Argument, Signature, check_range, is_plain

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
MOST_CONSISTENCY = 1000  # of R-Drop; the paper has 1 to 10
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
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        sums = torch.zeros(3, dtype=exact, device=hidden.device)
        hidden_grad = torch.empty_like(hidden) if train else None
        # Summed in float32: a sum of many chunks in half precision loses what the later ones add. In the memory order of `outer_product`.
        turned = weight.shape[0] > weight.shape[1]
        order = weight.t() if turned else weight
        weight_grad = torch.zeros_like(order, dtype=exact, memory_format=torch.contiguous_format) if train else None
        bias_grad = torch.zeros_like(bias, dtype=exact) if train and bias is not None else None
        for start in range(0, hidden.shape[1], size):
            rows, goal = h[:, start : start + size].flatten(0, 1), target[start : start + size]
            logits = matmul(rows, w, None if bias is None else bias.to(dtype))
            if bias is not None or not loss_cpu.supports(logits, goal):
                logits = logits.to(exact)  # the native loss reads bfloat16; the gradient of a bias is summed in float32
            part, grad = _measure(logits, goal, smoothing, train) if passes == 1 else _measure_pair(logits, goal, smoothing, alpha)
            sums += part
            if hidden_grad is None or weight_grad is None:
                continue
            if bias_grad is not None:
                bias_grad += grad.sum(0)
            scale = _half_scale(grad, rows, w) if dtype == torch.float16 else None
            grad = (grad if scale is None else grad * scale).to(dtype)
            found = matmul(grad, w.t()).to(hidden.dtype), outer_product(grad, rows).to(exact)
            of_rows, of_weight = found if scale is None else (part / scale for part in found)
            hidden_grad[:, start : start + size] = of_rows.unflatten(0, (passes, -1))
            weight_grad += of_weight.t() if turned else of_weight
        if turned and weight_grad is not None:
            weight_grad = weight_grad.t().contiguous()
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad, hidden, weight, bias, target)
        ctx.smoothing, ctx.alpha = smoothing, alpha
        ctx.mark_non_differentiable(*(parts := (sums[1].clone(), sums[2].clone())))
        return sums[0].clone(), *parts

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *found, hidden, weight, bias, target = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph

            def loss(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
                return _plain_loss(hidden, weight, bias, target, ctx.smoothing, ctx.alpha).loss

            return *differentiable_gradients(loss, (hidden, weight, bias), ctx.needs_input_grad[:3], grad), None, None
        own = zip(found, (hidden, weight, bias), strict=True)
        return *(None if part is None else (part * grad).to(x.dtype) for part, x in own), None, None


def _half_scale(grad: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    # A power of two, 0-dimensional: no sum in grad.T @ rows, nor in grad @ weight, may reach the largest float16, which is nearly 2**16.
    # What is not finite spoils its own row only.
    sizes, row, column = (part.abs().nan_to_num_(0.0, 0.0, 0.0) for part in (grad, rows, weight))
    largest = torch.maximum(_most(sizes.sum(0)) * _most(row), _most(sizes.sum(1)).clamp(min=2.0) * _most(column))
    return (2.0**15 / largest.float()).log2().floor().exp2().clamp(max=_HALF_SCALE)


def _most(x: Tensor) -> Tensor:
    return x.max() if x.numel() else x.new_zeros(())


class _Rows(NamedTuple):
    # Per row: the unsmoothed loss, the uniform one (0 without smoothing), and hits.
    nll: Tensor
    uniform: Tensor
    correct: Tensor

    def sums(self, smoothing: float, passes: int) -> Tensor:
        # Means over the passes of smoothed loss, unsmoothed loss and hits, summed. Without smoothing a class may have no probability.
        nll, correct = self.nll.sum() / passes, self.correct.sum() / passes
        loss = (1 - smoothing) * nll + smoothing * self.uniform.sum() / passes if smoothing else nll
        return torch.stack([loss, nll, correct])


def _measure(logits: Tensor, goal: Tensor, smoothing: float, train: bool) -> tuple[Tensor, Tensor]:
    # Returns sums (3,) and, in training, the gradient of the smoothed loss; may overwrite the logits.
    if loss_cpu.supports(logits, goal):
        rows = _Rows(*loss_cpu.cross_entropy_(logits, goal, smoothing=smoothing, gradient=train))
        return rows.sums(smoothing, 1), logits
    rows, logs = _look(logits, goal, smoothing)
    if train:
        logs.exp_()
        if smoothing:
            logs -= smoothing / logs.shape[1]
        logs.scatter_add_(1, goal.unsqueeze(1), logs.new_full((len(goal), 1), smoothing - 1.0))
    return rows.sums(smoothing, 1), logs


def _look(logits: Tensor, goal: Tensor, smoothing: float) -> tuple[_Rows, Tensor]:
    # Also the logarithms of the probabilities.
    logs = logits.log_softmax(1)
    nll = -logs.gather(1, goal.unsqueeze(1)).squeeze(1)
    return _Rows(nll, -logs.mean(1) if smoothing else torch.zeros_like(nll), logits.argmax(1) == goal), logs


def _measure_pair(logits: Tensor, goal: Tensor, smoothing: float, alpha: float) -> tuple[Tensor, Tensor]:
    # As `_measure`, for the rows of a first and then of a second pass: means over both, and a quarter of alpha times their divergences.
    if loss_cpu.supports(logits, goal):
        pair = logits.unflatten(0, (2, -1))
        found, apart = loss_cpu.consistent_cross_entropy_(pair, goal, smoothing=smoothing, alpha=alpha)
        rows = _Rows(*found)
    else:
        rows, apart, logits = _disagree(logits, goal, smoothing, alpha)
    sums = rows.sums(smoothing, 2)
    sums[0] += alpha / 4 * apart.sum()
    return sums, logits


def _disagree(logits: Tensor, goal: Tensor, smoothing: float, alpha: float) -> tuple[_Rows, Tensor, Tensor]:
    # Also returns the divergence of each pair, and the gradient of both passes.
    goals, count = goal.repeat(2), goal.shape[0]
    rows, shares = _look(logits, goals, smoothing)
    p, q = shares[:count], shares[count:]
    ratio = (p - q).masked_fill_(p == q, 0.0)  # log p - log q; equal: a class that both exclude has two of minus infinity
    shares.exp_()
    mean = [torch.linalg.vecdot(p, ratio).unsqueeze(1), -torch.linalg.vecdot(q, ratio).unsqueeze(1)]
    change = (p - q).mul_(alpha / 4)
    for part, own, sign in ((p, mean[0], 1), (q, mean[1], -1)):
        part.mul_((ratio - sign * own).mul_(sign * alpha / 4).add_(0.5)).add_(change, alpha=sign)
    shares.sub_(smoothing / shares.shape[1] / 2).scatter_add_(1, goals.unsqueeze(1), shares.new_full((2 * count, 1), (smoothing - 1.0) / 2))
    return rows, (mean[0] + mean[1]).squeeze(1), shares


def _plain_loss(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, alpha: float) -> SequenceLoss:
    # For tracing, transforms, fake tensors and second derivatives: all logits at once, with torch operators only; hidden (P, N, D).
    dtype, passes = compute_dtype(hidden), hidden.shape[0]
    logits = F.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    logits = logits if dtype == torch.float64 else logits.float()
    logs = logits.log_softmax(-1)
    nll = -logs.gather(-1, target.expand(passes, -1).unsqueeze(-1)).sum() / passes
    loss = nll if not smoothing else (1 - smoothing) * nll - smoothing * logs.mean(-1).sum() / passes
    if passes == 2:
        p, q = logs.unbind(0)
        excluded = (p == q) & p.isinf()  # a class without probability in both
        p, q = p.masked_fill(excluded, 0.0), q.masked_fill(excluded, 0.0)
        loss = loss + alpha / 4 * ((p.exp() - q.exp()) * (p - q)).sum()
    correct = (logits.argmax(-1) == target).sum().to(nll.dtype) / passes
    return SequenceLoss(loss, nll.detach(), torch.full((), target.shape[0], device=hidden.device), correct)


def _dispatch(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *, smoothing: float, alpha: float) -> SequenceLoss:
    # hidden: (P, N, D), P passes.
    if not is_plain(hidden, weight, bias, target):
        return _plain_loss(hidden, weight, bias, target, smoothing, alpha)
    train = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (hidden, weight, bias))
    loss, nll, correct = _LinearCrossEntropy.apply(hidden, weight, bias, target, (smoothing, alpha, train))
    return SequenceLoss(loss, nll, torch.tensor(target.shape[0], device=hidden.device), correct)


@takes_tensors
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
        `SequenceLoss`; zeros for N = 0. Differentiable in hidden, weight and bias; second derivatives compute all logits at once.

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
    check_range("linear_cross_entropy", "target", target, 0, weight.shape[0] - 1)
    return _dispatch(hidden.unsqueeze(0), weight, bias, target, smoothing=label_smoothing, alpha=0.0)


@takes_tensors
def consistent_cross_entropy(
    first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *, consistency: float, label_smoothing: float = 0.0
) -> SequenceLoss:
    """Compute the cross-entropy of two passes with different dropout over the same targets, which shall agree (R-Drop), summed.

        loss = (ce(p) + ce(q)) / 2 + alpha / 4 * sum over n of (KL(p[n] || q[n]) + KL(q[n] || p[n]))

    p and q are the softmax of `hidden @ weight.T + bias` of the passes, `ce` is `linear_cross_entropy`, whose loss equal passes have. Liang
    et al. 2021 (arXiv:2106.14448), section 2, whose loss is twice this one.

    Args:
        first: (N, D) rows of the first pass before the output layer.
        second: (N, D) rows of the second pass.
        weight: (V, D).
        bias: (V,) or None.
        target: (N,) class numbers, 0 to V - 1.
        consistency: alpha, a number from 0 to 1000.
        label_smoothing: eps, 0 <= eps < 1.

    Returns:
        `SequenceLoss`; `nll` and `correct`, which may be a half, are means over the passes. Differentiable as `linear_cross_entropy`.

    Raises:
        ShapeError: incompatible shapes, or targets are not int64.
        RangeError: a target outside 0 to V - 1 (not checked on a GPU).
        ConfigError: a consistency outside of 0 to 1000, or a label smoothing outside of 0 <= eps < 1.

    Example:
        >>> passes, weight = torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]]]), torch.eye(2)
        >>> target = torch.tensor([0])
        >>> [round(consistent_cross_entropy(*passes, weight, None, target, consistency=alpha).loss.item(), 4) for alpha in (0, 5)]
        [0.5032, 0.792]
    """
    _PAIR.check(first, second, weight, bias, target)
    check_share("consistent_cross_entropy", "label_smoothing", label_smoothing)
    check_number("consistent_cross_entropy", "consistency", consistency, 0, MOST_CONSISTENCY)
    check_range("consistent_cross_entropy", "target", target, 0, weight.shape[0] - 1)
    return _dispatch(torch.stack((first, second)), weight, bias, target, smoothing=label_smoothing, alpha=consistency)
