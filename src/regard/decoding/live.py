"""The hypotheses that are being extended, from the first token on: what beam search and a plain walk share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.options import Rules
from regard.decoding.penalties import coverage_penalty, length_penalty
from regard.decoding.protocol import AnyState
from regard.errors import ConfigError, RegardError


class Live(NamedTuple):
    """The hypotheses being extended, of the sentences still searched."""

    rows: Tensor  # (B,) which sentence of the whole batch
    tokens: Tensor  # (B, K) the last token of each
    totals: Tensor  # (B, K) sum of log-probabilities; -inf: no hypothesis in this place
    length: int  # tokens so far
    history: Tensor | None  # (B, K, length) all tokens so far, kept for n-gram blocking only
    coverage: Tensor | None  # (B, K, S) attention so far, kept for the coverage penalty only


class Extended(NamedTuple):
    """Hypotheses one token longer than the live ones, all (B, C)."""

    totals: Tensor
    tokens: Tensor
    log_probs: Tensor  # of the last token
    beams: Tensor  # which live hypothesis each extends

    def take(self, rows: Tensor) -> Extended:
        """Return those of the sentences at `rows` (B',)."""
        return Extended(*(column[rows] for column in self))


def begin(state: AnyState, rules: Rules, width: int = 1) -> tuple[Live, AnyState]:
    """Return `width` empty hypotheses for each sentence that may have a token at all, and the state that goes with them."""
    device = rules.max_length.device
    rows = torch.tensor([row for row, limit in enumerate(rules.limits) if limit], dtype=torch.long, device=device)
    tokens = torch.full((len(rows), width), rules.options.bos, dtype=torch.long, device=device)
    if len(rows) and (len(rows) < len(rules.limits) or width > 1):
        state = state.select(rows, torch.zeros_like(tokens))
    history = tokens.new_zeros(len(rows), width, 0) if rules.options.no_repeat_ngram else None
    return Live(rows, tokens, torch.zeros(tokens.shape, device=device), 0, history, None), state


def add_coverage(live: Live, attention: Tensor | None, rules: Rules) -> Tensor | None:
    """Return coverage (B, K, S) with this step's attention, or None where no penalty asks for it.

    Raises:
        ConfigError: a coverage penalty is asked of a model without attention.
    """
    if not rules.options.coverage_penalty:
        return None
    if attention is None:
        raise ConfigError("coverage_penalty needs a model with attention, but the step returns none")
    return attention.float() if live.coverage is None else live.coverage[..., : attention.size(-1)] + attention


def score(extended: Extended, live: Live, coverage: Tensor | None, rules: Rules) -> Tensor:
    """Return the ranking score (B, C) of extended hypotheses; `coverage` (B, K, S) is that of the live ones."""
    scores = extended.totals / length_penalty(live.length + 1, rules.options.length_penalty)
    if coverage is None or rules.source_lengths is None:
        return scores
    penalty = coverage_penalty(coverage, rules.source_lengths[live.rows], beta=rules.options.coverage_penalty)
    return scores + penalty.gather(1, extended.beams)


def advance(live: Live, rows: Tensor, going: Extended, coverage: Tensor | None) -> Live:
    """Return the live hypotheses after a step: `going` (B', K') already are those of the kept sentences, `rows` (B',)."""
    beams = going.beams[..., None]
    history = None
    if live.history is not None:
        history = torch.cat([torch.take_along_dim(live.history[rows], beams, 1), going.tokens[..., None]], -1)
    coverage = None if coverage is None else torch.take_along_dim(coverage[rows], beams, 1)
    return Live(live.rows[rows], going.tokens, going.totals, live.length + 1, history, coverage)


def follow(state: AnyState, rows: Tensor, beams: Tensor, live: Live) -> AnyState:
    """Return the state that goes with `rows` (B',) and `beams` (B', K'): as it is if nothing moved, or nothing goes on."""
    same = len(rows) == len(live.rows) and beams.shape == live.tokens.shape
    if not len(rows) or (same and (beams.size(1) == 1 or beams.equal(torch.arange(beams.size(1), device=beams.device).expand_as(beams)))):
        return state
    return state.select(rows, beams)


def nodes(beams: Tensor, live: Live) -> Tensor:
    """Return the flat places among all live hypotheses (B, K) of those that `beams` (B, C) names sentence by sentence."""
    return torch.arange(len(live.rows), device=beams.device)[:, None] * live.tokens.size(1) + beams


def refuse_nan(totals: Tensor, live: Live) -> None:
    """Raise an error if any of the totals (B, C) of a step is NaN.

    Raises:
        RegardError: logits were no distribution; names the step, counted from 1, and the first bad sentence, from 0.
    """
    bad = totals.isnan().any(1)
    if bad.any():
        raise RegardError(f"step {live.length + 1}: the logits of sentence {live.rows[bad][0].item()} hold NaN or +inf, or are all -inf")
