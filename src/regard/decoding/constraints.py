"""From logits to candidates: banned and forced tokens, minimum length, n-gram blocking."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard import ops
from regard.decoding.hypotheses import ActiveHypotheses
from regard.decoding.options import BatchedOptions
from regard.decoding.penalties import block_repeats_
from regard.errors import ConfigError, ShapeError

# Log-probability of a forced token of probability 0: below any other, but sums over long hypotheses stay finite.
IMPOSSIBLE = -1e9


class Candidates(NamedTuple):
    """Next tokens considered for each hypothesis, best first, both (B, K, C); log-probability -inf: not allowed."""

    tokens: Tensor
    log_probs: Tensor


Pick = Callable[[Tensor, ActiveHypotheses], Tensor]  # log-probabilities (B, K, V), -inf where forbidden -> tokens (B, K, C)


def check_step(logits: Tensor | ops.LazyLogits, attention: Tensor | None, live: ActiveHypotheses, rules: BatchedOptions) -> None:
    """Check a step's results against its input tokens and the token ids of the options.

    Raises:
        ShapeError: logits are not (B, K, V) or attention not (B, K, S).
        ConfigError: a token id of the options is outside the vocabulary.
    """
    for name, letter, tensor in (("logits", "V", logits), ("attention", "S", attention)):
        if tensor is not None and (len(tensor.shape) != 3 or tensor.shape[:2] != live.tokens.shape):
            batch, beam_size = live.tokens.shape
            raise ShapeError(
                f"step: {name} have shape {tuple(tensor.shape)}, expected ({batch}, {beam_size}, {letter}) for the tokens given"
            )
    if rules.highest >= logits.shape[-1]:
        raise ConfigError(f"token {rules.highest} of the search options is outside the vocabulary of {logits.shape[-1]}")
    follow = None if live.progress is None else live.progress.table.follow
    if follow is not None and len(follow) != logits.shape[-1]:
        raise ShapeError(f"follow has {len(follow)} entries, but the vocabulary has {logits.shape[-1]} tokens")


def next_candidates(
    logits: Tensor | ops.LazyLogits, live: ActiveHypotheses, rules: BatchedOptions, pick: int | Pick, *, need: int = 0
) -> Candidates:
    """Return the next tokens under the rules, with the model's log-probabilities.

    `pick` is the number of best tokens, or a function that selects. A forced token, or EOS if nothing is allowed, is the only candidate.
    Invalid logits give NaN. `need` > 0: only the best `need` continuations of a sentence without EOS, and better ones with EOS, must be
    returned.
    """
    if isinstance(logits, ops.LazyLogits):
        if isinstance(pick, int) and live.history is None and live.length >= rules.prefix.size(1):
            sums = ops.RunningTotals(live.totals, need) if need and live.progress is None else None
            log_probs, tokens = logits.best(pick, rules.forbidden(live.length), instead=rules.options.eos, least=IMPOSSIBLE, sums=sums)
            found = Candidates(tokens, log_probs)
            if live.progress is None:
                return found
            normalizer = logits.at(tokens[..., :1]) - log_probs[..., :1]
            return _with_phrases(found, live, rules, at=lambda tokens: logits.at(tokens) - normalizer, rows=logits.rows)
        logits = logits.read()
    only, forced = _only(live, rules)
    if isinstance(pick, int) and live.history is None and live.progress is None:
        (tokens, chosen), only_log_probs = _best(logits, only, live, rules, count=pick)
    else:
        (tokens, chosen), only_log_probs = _chosen(logits, only, live, rules, pick=pick)
    only_log_probs = only_log_probs.clamp(min=IMPOSSIBLE)
    alone = forced | (chosen == -torch.inf).all(-1, keepdim=True)
    first = torch.arange(tokens.size(-1), device=tokens.device) == 0
    chosen = torch.where(alone, torch.where(first, only_log_probs, -torch.inf), chosen)
    # Clamp to at most 0 after rounding: early stopping relies on it.
    return Candidates(torch.where(alone & first, only[..., None], tokens), chosen.clamp(max=0.0))


def _best(logits: Tensor, only: Tensor, live: ActiveHypotheses, rules: BatchedOptions, *, count: int) -> tuple[Candidates, Tensor]:
    """Return the `count` best allowed tokens, and the log-probability (B, K, 1) of `only` (B, K), on its device.

    Taking `count` plus the number of forbidden tokens leaves `count`, without changing the logits.
    """
    forbidden = rules.forbidden(live.length)
    log_probs, tokens = ops.top_log_probs(logits, count + len(forbidden))
    behind = logits.gather(-1, only[..., None].to(logits.device)).float() - logits.gather(-1, tokens[..., :1]).float()
    tokens, log_probs, behind = (part.to(only.device) for part in (tokens, log_probs, behind))
    only_log_probs = behind + log_probs[..., :1]
    if len(forbidden):
        masked = log_probs.masked_fill(torch.isin(tokens, forbidden), -torch.inf)
        log_probs, order = masked.sort(dim=-1, descending=True, stable=True)
        tokens = tokens.gather(-1, order)
    return Candidates(tokens[..., :count], log_probs[..., :count]), only_log_probs


def _chosen(logits: Tensor, only: Tensor, live: ActiveHypotheses, rules: BatchedOptions, *, pick: int | Pick) -> tuple[Candidates, Tensor]:
    """Apply `pick` to all log-probabilities under the rules; also return the log-probability (B, K, 1) of `only` (B, K)."""
    # One fused pass into new memory, which may be masked in place.
    log_probs = logits.log_softmax(-1, dtype=torch.float32)
    only_log_probs = log_probs.gather(-1, only[..., None])
    whole = log_probs if live.progress is None else log_probs.clone()
    apply_constraints_(log_probs, live, rules)
    tokens = ops.top_tokens(log_probs, pick) if isinstance(pick, int) else pick(log_probs, live)
    found = Candidates(tokens, log_probs.gather(-1, tokens))
    if live.progress is not None:
        found = _with_phrases(found, live, rules, at=lambda tokens: whole.gather(-1, tokens), rows=lambda ends: whole[ends])
    return found, only_log_probs


def _with_phrases(
    best: Candidates, live: ActiveHypotheses, rules: BatchedOptions, *, at: Callable[[Tensor], Tensor], rows: Callable[[Tensor], Tensor]
) -> Candidates:
    """Return the best candidates, without EOS where a phrase is missing, plus phrase continuations, exempt from the other rules.

    If none of the best may follow a phrase just completed, add the best that may; otherwise the phrase would be lost. `at` gives
    log-probabilities of tokens (B, K, E), `rows` the logits (n, V) of selected hypotheses (B, K).
    """
    progress = live.progress
    assert progress is not None
    too_early = (best.tokens == rules.options.eos) & (progress.missing() > 0)[..., None]
    found, more = best.log_probs.masked_fill(too_early, -torch.inf), progress.next_tokens()
    if (after_words := progress.table.follow) is not None:
        ends = progress.word_ends() & ~(after_words[best.tokens] & (found > -torch.inf)).any(-1)
        logits = rows(ends).masked_fill(~after_words, -torch.inf).index_fill(-1, rules.early, -torch.inf)
        most, place = logits.max(-1)
        follow = torch.full_like(live.tokens, -1)
        follow[ends] = place.masked_fill(most == -torch.inf, -1)
        more = torch.cat([more, follow[..., None]], -1)
    places = more.clamp(min=0)
    wanted = at(places).clamp(min=IMPOSSIBLE, max=0.0).masked_fill(more < 0, -torch.inf)
    tokens, log_probs = torch.cat([best.tokens, places], -1), torch.cat([found, wanted], -1)
    same = (tokens[..., :, None] == tokens[..., None, :]) & (log_probs > -torch.inf)[..., None, :]
    return Candidates(tokens, log_probs.masked_fill(same.tril(-1).any(-1), -torch.inf))


def apply_constraints_(log_probs: Tensor, live: ActiveHypotheses, rules: BatchedOptions) -> Tensor:
    """Set forbidden next tokens in log_probs (B, K, V) to -inf, in place, and return it."""
    log_probs.index_fill_(-1, rules.forbidden(live.length), -torch.inf)
    if live.history is not None:
        block_repeats_(log_probs, live.history, size=rules.options.no_repeat_ngram_size)
    return log_probs


def _only(live: ActiveHypotheses, rules: BatchedOptions) -> tuple[Tensor, Tensor]:
    """Return the only allowed token (B, K) (the prefix's, else EOS), and where it applies (B, 1, 1)."""
    if live.length >= rules.prefix.size(1):
        return torch.full_like(live.tokens, rules.options.eos), torch.zeros_like(live.rows, dtype=torch.bool)[:, None, None]
    token = rules.prefix[live.rows, live.length]
    forced = token >= 0
    return torch.where(forced, token, rules.options.eos)[:, None].expand_as(live.tokens), forced[:, None, None]
