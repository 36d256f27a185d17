"""Of the candidates of a step of beam search: which end, which go on, and which sentences are done."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.candidates import Candidates
from regard.decoding.live import Extended, Live, nodes, refuse_nan, score
from regard.decoding.options import Rules
from regard.decoding.penalties import length_penalty
from regard.decoding.trail import Ends, ending
from regard.ops.kernels import beam_cpu


class Tally(NamedTuple):
    """What has ended so far, for each sentence still searched."""

    scores: Tensor  # (B, n_best) the best, -inf where there are fewer
    count: Tensor  # (B,)


class Selected(NamedTuple):
    """What a step leaves of B sentences."""

    ends: Ends  # the hypotheses that end
    rows: Tensor  # (B',) which of the B sentences are searched on
    going: Extended  # (B', beam) their hypotheses; -inf where there are fewer
    parents: Tensor  # (B', beam) flat places (B * K) of what those extend
    tally: Tally  # (B')


def select(candidates: Candidates, live: Live, coverage: Tensor | None, tally: Tally, rules: Rules) -> Selected:
    """Take the best candidates of each sentence, as `beam_search` says.

    Args:
        candidates: (B, K, C).
        live: the hypotheses (B, K) that they extend.
        coverage: (B, K, S) theirs, where a penalty asks for it.
        tally: what has ended before.
        rules: the options.

    Raises:
        RegardError: see `refuse_nan`.
    """
    if coverage is None and beam_cpu.supports(candidates.log_probs):
        return _native(candidates, live, tally, rules)
    ranked = rank(candidates, live, rules.options.beam)
    refuse_nan(ranked.totals, live)
    ended, going = split(ranked, live, rules)
    scores = score(ranked, live, coverage, rules)
    tally = add(tally, ended, scores)
    rows = (~is_done(tally, going, live, rules)).nonzero().squeeze(1)
    going = going.take(rows)
    parents = rows[:, None] * live.tokens.size(1) + going.beams
    ends = ending(ended, live.rows, scores, nodes(ranked.beams, live), ranked.tokens, ranked.log_probs)
    return Selected(ends, rows, going, parents, Tally(tally.scores[rows], tally.count[rows]))


def _native(candidates: Candidates, live: Live, tally: Tally, rules: Rules) -> Selected:
    options, length = rules.options, live.length + 1
    kept = beam_cpu.keep(
        beam_cpu.Searched(live.rows, rules.max_length, rules.ceiling, live.totals, candidates.log_probs, candidates.tokens, *tally),
        beam=options.beam,
        length=length,
        eos=options.eos,
        enough=enough(rules),
        penalty=length_penalty(length, options.length_penalty),
    )
    if kept.bad >= 0:
        refuse_nan((live.totals[..., None] + candidates.log_probs).flatten(1), live)
    rows, places, parents, tokens, scores, log_probs = kept.ends
    totals, last, going, beams, on = kept.going
    return Selected(
        Ends(rows, places, scores, parents, tokens, log_probs),
        kept.rows,
        Extended(totals, going, last, beams),
        on,
        Tally(kept.scores, kept.count),
    )


def rank(candidates: Candidates, live: Live, beam: int) -> Extended:
    """Return the best 2 * `beam` of a sentence's candidates, best first; a tie goes to the lower beam, then the better token.

    That many are enough: at most `beam` of them are EOS, so `beam` others are among them.
    """
    width = candidates.tokens.size(-1)
    totals = (live.totals[..., None] + candidates.log_probs).flatten(1)
    totals, places = totals.sort(dim=-1, descending=True, stable=True)
    totals, places = totals[:, : 2 * beam], places[:, : 2 * beam]
    tokens, log_probs = candidates.tokens.flatten(1).gather(1, places), candidates.log_probs.flatten(1).gather(1, places)
    return Extended(totals, tokens, log_probs, places.div(width, rounding_mode="floor"))


def split(ranked: Extended, live: Live, rules: Rules) -> tuple[Tensor, Extended]:
    """Return which ranked candidates (B, C) end, and those that go on, at most `beam` of them.

    EOS ends a hypothesis if it ranks among the first `beam`; at `max_length` all that would go on end too. Where fewer than
    `beam` can go on, the places left hold -inf.
    """
    beam = rules.options.beam
    real = ranked.totals > -torch.inf
    eos = ranked.tokens == rules.options.eos
    others = real & ~eos
    others &= others.cumsum(-1) <= beam
    at_limit = rules.max_length[live.rows] == live.length + 1
    first = torch.arange(eos.size(1), device=eos.device) < beam
    ended = (real & eos & first) | (others & at_limit[:, None])
    places = others.to(torch.uint8).sort(dim=-1, descending=True, stable=True).indices[:, :beam]
    masked = ranked._replace(totals=ranked.totals.masked_fill(~others, -torch.inf))
    return ended, Extended(*(column.gather(1, places) for column in masked))


def add(tally: Tally, ended: Tensor, scores: Tensor) -> Tally:
    """Return the tally with the hypotheses that end in this step, both (B, C)."""
    scores = torch.cat([tally.scores, scores.masked_fill(~ended, -torch.inf)], 1)
    return Tally(scores.topk(tally.scores.size(1)).values, tally.count + ended.sum(1))


def enough(rules: Rules) -> float:
    """Return how many hypotheses of a sentence must have ended for it to be done."""
    return max(rules.options.n_best, rules.options.patience * rules.options.beam)


def is_done(tally: Tally, going: Extended, live: Live, rules: Rules) -> Tensor:
    """Return which sentences (B,) need no further step; `going` is what would go on, best first."""
    at_limit = rules.max_length[live.rows] == live.length + 1
    return at_limit | (tally.count >= enough(rules)) | cannot_improve(tally.scores[:, -1], going.totals[:, 0], rules.ceiling[live.rows])


def cannot_improve(worst: Tensor, best_total: Tensor, ceiling: Tensor) -> Tensor:
    """Return for which sentences (B,) no live hypothesis can still beat the worst of the n best ended ones.

    What extends a hypothesis adds log-probabilities <= 0, so its total is at most its parent's, here at most `best_total`
    (<= 0). The length penalty grows with the length, alpha being >= 0, and a total <= 0 divided by it is the greatest where
    it is the greatest: at max_length, `ceiling`. The coverage penalty is at most 0. So every hypothesis yet to end scores at
    most best_total / ceiling; division rounds monotonically, so this holds in floating point too. A tie goes to what ended
    first, so `<=` loses nothing. Fewer than n ended ones: `worst` is -inf, and only a sentence without live ones is stopped.
    """
    return best_total / ceiling <= worst
