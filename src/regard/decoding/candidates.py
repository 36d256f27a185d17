"""From logits to the next tokens a search considers: the rules applied, the best picked, ties settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.live import Live
from regard.decoding.options import Rules
from regard.decoding.penalties import block_repeats_
from regard.errors import ConfigError, ShapeError

# Width of the blocks whose maxima are looked at first: the reduction of 64 neighbours is the fastest that torch has here.
BLOCK = 64
# A forced token of probability zero: below any real log-probability, yet a sum over a long hypothesis stays finite.
IMPOSSIBLE = -1e9


class Candidates(NamedTuple):
    """Next tokens considered for each hypothesis, best first, both (B, K, C); log-probability -inf: not allowed."""

    tokens: Tensor
    log_probs: Tensor


Pick = Callable[[Tensor, Live], Tensor]  # log-probabilities (B, K, V), -inf where forbidden -> tokens considered (B, K, C)


def check_step(logits: Tensor, attention: Tensor | None, live: Live, rules: Rules) -> None:
    """Check what a step returned against the tokens it was given and the token ids of the options.

    Raises:
        ShapeError: logits are not (B, K, V) or attention not (B, K, S); the message holds both shapes.
        ConfigError: a token id of the options is outside the vocabulary; the message holds it and V.
    """
    for name, letter, tensor in (("logits", "V", logits), ("attention", "S", attention)):
        if tensor is not None and (tensor.dim() != 3 or tensor.shape[:2] != live.tokens.shape):
            batch, beam = live.tokens.shape
            raise ShapeError(f"step: {name} have shape {tuple(tensor.shape)}, expected ({batch}, {beam}, {letter}) for the tokens given")
    if rules.highest >= logits.size(-1):
        raise ConfigError(f"token {rules.highest} of the search options is outside the vocabulary of {logits.size(-1)}")


def propose(logits: Tensor, live: Live, rules: Rules, pick: Pick) -> Candidates:
    """Return the tokens that `pick` chooses under the rules, with the model's own log-probabilities.

    A forced token, and EOS where nothing at all is allowed, stands first and alone. Logits that are no distribution come
    out as NaN.
    """
    # One fused pass into memory of our own: measured faster than a log-sum-exp (three passes), and free to be masked in place.
    log_probs = logits.log_softmax(-1, dtype=torch.float32)
    only, forced = _only(live, rules)
    only_log_probs = log_probs.gather(-1, only[..., None]).clamp(min=IMPOSSIBLE)
    restrict_(log_probs, live, rules)
    tokens = pick(log_probs, live)
    chosen = log_probs.gather(-1, tokens)
    alone = forced | (chosen[..., :1] == -torch.inf)
    first = torch.arange(tokens.size(-1), device=tokens.device) == 0
    chosen = torch.where(alone, torch.where(first, only_log_probs, -torch.inf), chosen)
    # A log-probability is at most 0: rounding must not break what the early stop relies on.
    return Candidates(torch.where(alone & first, only[..., None], tokens), chosen.clamp(max=0.0))


def restrict_(log_probs: Tensor, live: Live, rules: Rules) -> Tensor:
    """Set to -inf, in place, what the options forbid as the next token: log_probs (B, K, V), which is returned."""
    if rules.options.banned:
        log_probs.index_fill_(-1, rules.banned, -torch.inf)
    if live.length < rules.options.min_length:
        log_probs[..., rules.options.eos] = -torch.inf
    if live.history is not None:
        block_repeats_(log_probs, live.history, size=rules.options.no_repeat_ngram)
    return log_probs


def _only(live: Live, rules: Rules) -> tuple[Tensor, Tensor]:
    """Return the token (B, K) that stands alone if one must (the prefix's, else EOS), and where one must (B, 1, 1)."""
    if live.length >= rules.prefix.size(1):
        return torch.full_like(live.tokens, rules.options.eos), torch.zeros_like(live.rows, dtype=torch.bool)[:, None, None]
    token = rules.prefix[live.rows, live.length]
    forced = token >= 0
    return torch.where(forced, token, rules.options.eos)[:, None].expand_as(live.tokens), forced[:, None, None]


def top_tokens(log_probs: Tensor, count: int) -> Tensor:
    """Return the `count` best tokens of each hypothesis, best first, a tie going to the lower token.

    The best tokens lie in the blocks with the greatest maxima, so one pass reads all values and the rest is small. Ties
    are settled by index because `torch.topk` leaves them open, and a result could then depend on the shape of the batch.

    Args:
        log_probs: (B, K, V) float32, at most 0; -inf is allowed.
        count: at least 1; more than V gives V.

    Returns:
        (B, K, min(count, V)) long.

    Example:
        >>> top_tokens(torch.tensor([[[-3.0, -1.0, -2.0, -1.0]]]), 3)
        tensor([[[1, 3, 2]]])
    """
    size = log_probs.size(-1)
    count = min(count, size)
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


def _top_places(values: Tensor, count: int) -> Tensor:
    """Return what `topk` would for values <= 0, but of equal ones the first: (.., N) -> (.., count)."""
    # The bits of a negative float, magnitude reversed, order as integers do; the place below them makes every key unique.
    keys = (values.view(torch.int32) ^ 0x7FFFFFFF).long() << 32
    return (keys - torch.arange(values.size(-1), device=values.device)).topk(count, -1).indices
