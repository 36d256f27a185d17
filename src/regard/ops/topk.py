"""The best entries of long rows: of log-probabilities, or of logits without ever writing the log-probabilities down."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.ops.kernels import best_cpu
from regard.ops.tensor_checks import Argument, Signature, is_plain

_LOGITS = Signature("top_log_probs", Argument("logits", "* V"))
_LOG_PROBS = Signature("top_tokens", Argument("log_probs", "* V", "float32"))

# Width of the blocks whose maxima are looked at first: the reduction of 64 neighbours is the fastest that torch has here.
BLOCK = 64


class TopLogProbs(NamedTuple):
    """The best entries of a distribution.

    Attributes:
        log_probs: (..., C) float32, best first.
        tokens: (..., C) long, where they stand.

    Any other log-probability is its logit minus the best one's, plus the best log-probability. The log of the sum of all
    exponentials is not given: as one number it is rounded as finely as the logits are, not as the log-probabilities.
    """

    log_probs: Tensor
    tokens: Tensor


def top_log_probs(logits: Tensor, count: int) -> TopLogProbs:
    """Return the `count` most probable entries, best first, a tie going to the lower one.

        log_probs[i] = logits[tokens[i]] - log(sum over j of exp(logits[j]))

    Not differentiable. Logits that hold NaN or +inf, or are all -inf, give NaN.

    Args:
        logits: (..., V) any float dtype; -inf is allowed.
        count: C, at least 1; more than V gives V.

    Raises:
        ShapeError: logits that are no floating-point numbers, or V = 0.
        ConfigError: a count below 1.

    Example:
        >>> top_log_probs(torch.tensor([0.0, 0.0, 50.0]), 2).tokens
        tensor([2, 0])
    """
    _check_count("top_log_probs", count, _LOGITS.check(logits)["V"])
    logits = logits.detach()
    count = min(count, logits.size(-1))
    if best_cpu.supports(logits, count):
        return TopLogProbs(*best_cpu.best(logits, count))
    # One fused pass: measured faster than a log-sum-exp (three passes).
    log_probs = logits.log_softmax(-1, dtype=torch.float32)
    tokens = top_tokens(log_probs, count)
    return TopLogProbs(log_probs.gather(-1, tokens), tokens)


def top_tokens(log_probs: Tensor, count: int) -> Tensor:
    """Return the `count` best tokens of each hypothesis, best first, a tie going to the lower token.

    The best tokens lie in the blocks with the greatest maxima, so one pass reads all values and the rest is small. Ties
    are settled by index because `torch.topk` leaves them open, and a result could then depend on the shape of the batch.

    Args:
        log_probs: (B, K, V) float32, at most 0; -inf is allowed.
        count: at least 1; more than V gives V.

    Returns:
        (B, K, min(count, V)) long.

    Raises:
        ShapeError: log-probabilities that are not float32, or V = 0.
        ConfigError: a count below 1.

    Example:
        >>> top_tokens(torch.tensor([[[-3.0, -1.0, -2.0, -1.0]]]), 3)
        tensor([[[1, 3, 2]]])
    """
    size = _LOG_PROBS.check(log_probs)["V"]
    _check_count("top_tokens", count, size)
    count = min(count, size)
    if not is_plain(log_probs):  # the bits of a number are no operation that everything which traces or transforms knows
        return log_probs.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    if size <= 2 * BLOCK * count:
        return _top_places(log_probs, count)
    whole = size // BLOCK * BLOCK
    heads = log_probs[..., :whole].unflatten(-1, (-1, BLOCK)).amax(-1)
    if whole < size:
        heads = torch.cat([heads, log_probs[..., whole:].amax(-1, keepdim=True)], -1)
    # Blocks in the order of the vocabulary, so that the lower place among the gathered values is the lower token.
    blocks = _top_places(heads, count).sort(-1).values
    tokens = (blocks[..., None] * BLOCK + torch.arange(BLOCK, device=blocks.device)).flatten(-2)
    if whole == size:
        return tokens.gather(-1, _top_places(log_probs.gather(-1, tokens), count))
    # Places beyond the vocabulary, in its last block, lose to all others: the gathered blocks hold enough of those.
    inside = tokens.clamp(max=size - 1)
    values = log_probs.gather(-1, inside).masked_fill_(tokens >= size, -torch.inf)
    return inside.gather(-1, _top_places(values, count))


def _check_count(operation: str, count: int, size: int) -> None:
    if count < 1:
        raise ConfigError(f"{operation}: count must be at least 1, found {count}")
    if size < 1:
        raise ShapeError(f"{operation}: there is nothing to choose from, the last axis has no entries")


def _top_places(values: Tensor, count: int) -> Tensor:
    """Return what `topk` would for values <= 0, but of equal ones the first: (.., N) -> (.., count)."""
    # The bits of a negative float, magnitude reversed, order as integers do; the place below them makes every key unique.
    keys = (values.view(torch.int32) ^ 0x7FFFFFFF).long() << 32
    return (keys - torch.arange(values.size(-1), device=values.device)).topk(count, -1).indices
