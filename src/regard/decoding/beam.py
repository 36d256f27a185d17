"""Beam search over a step function."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.candidates import Candidates, check_step, propose
from regard.decoding.live import Extended, Live, add_coverage, advance, begin, follow, nodes, refuse_nan, score
from regard.decoding.options import Rules, SearchOptions
from regard.decoding.protocol import AnyState, Hypothesis, Step
from regard.decoding.trail import Ends, Trail


class Tally(NamedTuple):
    """What has ended so far, for each sentence still searched."""

    scores: Tensor  # (B, n_best) the best, -inf where there are fewer
    count: Tensor  # (B,)


@torch.inference_mode()
def beam_search(
    step: Step[AnyState], state: AnyState, *, batch_size: int, options: SearchOptions, device: torch.device | str = "cpu"
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each sentence that a beam search finds.

    At each step the `beam` best continuations of a sentence's hypotheses, by the sum of log-probabilities, are looked at:
    those with EOS end, and the `beam` best others go on. A sentence is done, and leaves the batch, when `patience * beam` of
    its hypotheses have ended, when `max_length` is reached (what still goes on then ends without EOS), or when nothing that
    goes on can beat its n-th best (see `cannot_improve`). Equal scores go to the lower beam, then to the lower token. The
    result for a sentence does not depend on the others.

    Args:
        step: the model's step.
        state: its state before the first token, one hypothesis a sentence.
        batch_size: B; 0 returns an empty list.
        options: how to search.
        device: where the model is.

    Returns:
        For each sentence 1 to `n_best` different hypotheses, best first; fewer than `n_best` only where no more have ended.

    Raises:
        RegardError: logits hold NaN or infinity; the message names the step and the sentence.
        ShapeError: the step's results or the options do not fit the batch; the message holds both sizes.
        ConfigError: a prefix does not fit, or a token id is outside the vocabulary; the message names it.

    Example:
        >>> class Nothing:
        ...     def select(self, rows, beams):
        ...         return self
        >>> table = torch.tensor([[0.0, 0.1, 0.5, 0.4], [0.0, 0.0, 0.3, 0.7], [0.0, 0.0, 0.6, 0.4], [0.0, 0.0, 0.0, 1.0]]).log()
        >>> def step(tokens, state):
        ...     return table[tokens], None, state
        >>> options = SearchOptions(bos=0, eos=3, beam=2, n_best=2, max_length=4, length_penalty=0.0)
        >>> [hypothesis.tokens for hypothesis in beam_search(step, Nothing(), batch_size=1, options=options)[0]]
        [[3], [2, 3]]
    """
    rules = Rules.build(options, batch_size, device)
    live, state = begin(state, rules)
    tally = Tally(live.totals.new_full((len(live.rows), options.n_best), -torch.inf), torch.zeros_like(live.rows))
    trail = Trail(rules.limits, device)
    while len(live.rows):
        logits, attention, state = step(live.tokens, state)
        check_step(logits, attention, live, rules)
        coverage = add_coverage(live, attention, rules)
        # Of one hypothesis at most `beam` continuations go on, and one ends.
        ranked = rank(propose(logits, live, rules, options.beam + 1, need=options.beam), live, options.beam)
        refuse_nan(ranked.totals, live)
        ended, going = split(ranked, live, rules)
        ends = Ends(ended, score(ranked, live, coverage, rules), nodes(ranked.beams, live), ranked.tokens, ranked.log_probs)
        tally = add(tally, ends)
        trail.attend(attention if options.need_attention else None)
        trail.finish(ends, live.rows, live.length + 1)
        rows = (~is_done(tally, going, live, rules)).nonzero().squeeze(1)
        trail.extend(going.tokens[rows], going.log_probs[rows], nodes(going.beams, live)[rows])
        going, tally = going.take(rows), Tally(tally.scores[rows], tally.count[rows])
        state = follow(state, rows, going.beams, live)
        live = advance(live, rows, going, coverage)
    return trail.best(options.n_best)


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


def add(tally: Tally, ends: Ends) -> Tally:
    """Return the tally with the hypotheses that end in this step."""
    scores = torch.cat([tally.scores, ends.scores.masked_fill(~ends.ended, -torch.inf)], 1)
    return Tally(scores.topk(tally.scores.size(1)).values, tally.count + ends.ended.sum(1))


def is_done(tally: Tally, going: Extended, live: Live, rules: Rules) -> Tensor:
    """Return which sentences (B,) need no further step; `going` is what would go on, best first."""
    options = rules.options
    enough = max(options.n_best, options.patience * options.beam)
    at_limit = rules.max_length[live.rows] == live.length + 1
    return at_limit | (tally.count >= enough) | cannot_improve(tally.scores[:, -1], going.totals[:, 0], rules.ceiling[live.rows])


def cannot_improve(worst: Tensor, best_total: Tensor, ceiling: Tensor) -> Tensor:
    """Return for which sentences (B,) no live hypothesis can still beat the worst of the n best ended ones.

    What extends a hypothesis adds log-probabilities <= 0, so its total is at most its parent's, here at most `best_total`
    (<= 0). The length penalty grows with the length, alpha being >= 0, and a total <= 0 divided by it is the greatest where
    it is the greatest: at max_length, `ceiling`. The coverage penalty is at most 0. So every hypothesis yet to end scores at
    most best_total / ceiling; division rounds monotonically, so this holds in floating point too. A tie goes to what ended
    first, so `<=` loses nothing. Fewer than n ended ones: `worst` is -inf, and only a sentence without live ones is stopped.
    """
    return best_total / ceiling <= worst
