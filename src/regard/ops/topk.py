"""Top-k of long rows of log-probabilities, or of logits without materializing the log-probabilities."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.kernels import best_cpu
from regard.ops.number_checks import check_count
from regard.ops.tensor_checks import Argument, Signature, is_plain

_LOGITS = Signature("top_log_probs", Argument("logits", "* V"))
_LOG_PROBS = Signature("top_tokens", Argument("log_probs", "* V", "float32"))

# Width of the blocks whose maxima are compared first: torch reduces 64 neighbours fastest.
BLOCK = 64


class TopLogProbs(NamedTuple):
    """The best entries of a distribution.

    Attributes:
        log_probs: (..., C) float32, best first.
        tokens: (..., C) long, their indices.

    Any other log-probability is its logit minus the best logit, plus the best log-probability. The log-sum-exp is not returned: it would be
    rounded at the precision of the logits, not of the log-probabilities.
    """

    log_probs: Tensor
    tokens: Tensor


@takes_tensors
def top_log_probs(logits: Tensor, count: int) -> TopLogProbs:
    """Return the `count` most probable entries, best first; ties go to the lower index.

        log_probs[i] = logits[tokens[i]] - log(sum over j of exp(logits[j]))

    Not differentiable. Logits that hold NaN or +inf, or are all -inf, give NaN.

    Args:
        logits: (..., V) any float dtype; -inf is allowed.
        count: C, at least 1; more than V gives V.

    Raises:
        ShapeError: logits are not floating point, or V = 0.
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


@takes_tensors
def top_tokens(log_probs: Tensor, count: int) -> Tensor:
    """Return the `count` best tokens of each hypothesis, best first; ties go to the lower token.

    The best tokens lie in the blocks with the greatest maxima, so only one pass reads all values. Ties are broken by index: `torch.topk`
    does not define them, so results could depend on the batch shape.

    Args:
        log_probs: (B, K, V) float32, at most 0; -inf is allowed.
        count: at least 1; more than V gives V.

    Returns:
        (B, K, min(count, V)) long.

    Raises:
        ShapeError: log-probabilities are not float32, or V = 0.
        ConfigError: a count below 1.

    Example:
        >>> top_tokens(torch.tensor([[[-3.0, -1.0, -2.0, -1.0]]]), 3)
        tensor([[[1, 3, 2]]])
    """
    size = _LOG_PROBS.check(log_probs)["V"]
    _check_count("top_tokens", count, size)
    count = min(count, size)
    if not is_plain(log_probs):  # not every tracer or transform supports bit views
        return log_probs.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    if size <= 2 * BLOCK * count:
        return _top_places(log_probs, count)
    whole = size // BLOCK * BLOCK
    heads = log_probs[..., :whole].unflatten(-1, (-1, BLOCK)).amax(-1)
    if whole < size:
        heads = torch.cat([heads, log_probs[..., whole:].amax(-1, keepdim=True)], -1)
    # Blocks in vocabulary order, so that the lower gathered index is the lower token.
    blocks = _top_places(heads, count).sort(-1).values
    tokens = (blocks[..., None] * BLOCK + torch.arange(BLOCK, device=blocks.device)).flatten(-2)
    if whole == size:
        return tokens.gather(-1, _top_places(log_probs.gather(-1, tokens), count))
    # Padding in the last block loses to all others: the gathered blocks have enough of those.
    inside = tokens.clamp(max=size - 1)
    values = log_probs.gather(-1, inside).masked_fill_(tokens >= size, -torch.inf)
    return inside.gather(-1, _top_places(values, count))


def _check_count(operation: str, count: int, size: int) -> None:
    check_count(operation, "count", count, 1)
    if size < 1:
        raise ShapeError(f"{operation}: there is nothing to choose from, the last axis has no entries")


def _top_places(values: Tensor, count: int) -> Tensor:
    """Return `topk` of values <= 0 with ties to the first: (.., N) -> (.., count)."""
    # Bits of a negative float, magnitude reversed, sort as integers; the index below them makes every key unique.
    keys = (values.view(torch.int32) ^ 0x7FFFFFFF).long() << 32
    return (keys - torch.arange(values.size(-1), device=values.device)).topk(count, -1).indices
