"""One token after another, never revised: what greedy search and sampling share."""

from __future__ import annotations

import torch

from regard.decoding.candidates import Candidates, Pick, check_step, propose
from regard.decoding.live import Extended, Live, add_coverage, advance, begin, follow, nodes, refuse_nan, score
from regard.decoding.options import Rules
from regard.decoding.protocol import AnyState, Hypothesis, Step
from regard.decoding.trail import Trail, ending


def walk(step: Step[AnyState], state: AnyState, pick: int | Pick, *, rules: Rules, width: int = 1) -> list[list[Hypothesis]]:
    """Return `width` hypotheses for each sentence, in order, each token the one that `pick` chooses (B, K, 1), or the best for 1.

    A sentence leaves the batch when all its hypotheses have ended; until then those that have are fed padding.
    """
    options = rules.options
    live, state = begin(state, rules, width)
    trail = Trail(rules.limits, rules.max_length.device)
    done = torch.zeros_like(live.tokens, dtype=torch.bool)
    while len(live.rows):
        logits, attention, state = step(live.tokens, state)
        check_step(logits, attention, live, rules)
        coverage = add_coverage(live, attention, rules)
        longer = append(propose(logits, live, rules, pick), live)
        refuse_nan(longer.totals.masked_fill(done, 0.0), live)
        at_limit = rules.max_length[live.rows] == live.length + 1
        ended = ((longer.tokens == options.eos) | at_limit[:, None]) & ~done
        parents = nodes(longer.beams, live)
        ends = ending(ended, live.rows, score(longer, live, coverage, rules), parents, longer.tokens, longer.log_probs)
        trail.attend(attention if options.need_attention else None)
        trail.finish(ends, live.length + 1)
        done = done | ended
        rows = (~done.all(1)).nonzero().squeeze(1)
        trail.extend(longer.tokens[rows], longer.log_probs[rows], parents[rows])
        going = longer._replace(tokens=longer.tokens.masked_fill(done, options.pad)).take(rows)
        done = done[rows]
        state = follow(state, rows, going.beams, live)
        live = advance(live, rows, going, coverage)
    return trail.by_place()


def append(candidates: Candidates, live: Live) -> Extended:
    """Return each live hypothesis with its one candidate (B, K, 1)."""
    tokens, log_probs = candidates.tokens.squeeze(-1), candidates.log_probs.squeeze(-1)
    beams = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    return Extended(live.totals + log_probs, tokens, log_probs, beams)
