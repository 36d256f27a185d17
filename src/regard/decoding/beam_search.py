"""Beam search over a step function: the loop, and which candidates of a step end, continue or are dropped."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.constraints import Candidates, check_step, next_candidates
from regard.decoding.hypotheses import (
    ActiveHypotheses,
    BackPointers,
    ExtendedHypotheses,
    FinishedHypotheses,
    add_coverage,
    advance_hypotheses,
    check_finite,
    finished_hypotheses,
    flat_indices,
    initial_hypotheses,
    ranking_score,
    reorder_state,
)
from regard.decoding.options import BatchedOptions, DecodingOptions
from regard.decoding.penalties import length_penalty
from regard.decoding.protocol import AnyState, Hypothesis, Step
from regard.ops.kernels import beam_cpu


@torch.inference_mode()
def beam_search(
    step: Step[AnyState], state: AnyState, *, batch_size: int, options: DecodingOptions, device: torch.device | str = "cpu"
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each sentence that a beam search finds.

    At each step the `beam_size` best continuations of a sentence's hypotheses, by the sum of log-probabilities, are looked at:
    those with EOS end, and the `beam_size` best others go on. A sentence is done, and leaves the batch, when `patience * beam` of
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
        ShapeError: the step's results or the options do not fit the batch.
        ConfigError: a prefix does not fit, or a token id is outside the vocabulary.

    Example:
        >>> class Nothing:
        ...     def select(self, rows, beams):
        ...         return self
        >>> table = torch.tensor([[0.0, 0.1, 0.5, 0.4], [0.0, 0.0, 0.3, 0.7], [0.0, 0.0, 0.6, 0.4], [0.0, 0.0, 0.0, 1.0]]).log()
        >>> def step(tokens, state):
        ...     return table[tokens], None, state
        >>> options = DecodingOptions(bos=0, eos=3, beam_size=2, n_best=2, max_length=4, length_penalty=0.0)
        >>> [hypothesis.tokens for hypothesis in beam_search(step, Nothing(), batch_size=1, options=options)[0]]
        [[3], [2, 3]]
    """
    rules = BatchedOptions.build(options, batch_size, device)
    live, state = initial_hypotheses(state, rules)
    tally = FinishedScores(live.totals.new_full((len(live.rows), options.n_best), -torch.inf), torch.zeros_like(live.rows))
    trail = BackPointers(rules.limits, device)
    while len(live.rows):
        logits, attention, state = step(live.tokens, state)
        check_step(logits, attention, live, rules)
        coverage = add_coverage(live, attention, rules)
        # Of one hypothesis at most `beam_size` continuations go on, and one ends.
        candidates = next_candidates(logits, live, rules, options.beam_size + 1, need=options.beam_size)
        ends, rows, going, parents, tally = select_candidates(candidates, live, coverage, tally, rules)
        trail.attend(attention if options.need_attention else None)
        trail.finish(ends, live.length + 1)
        trail.extend(going.tokens, going.log_probs, parents)
        state = reorder_state(state, rows, going.beams, live)
        live = advance_hypotheses(live, rows, going, coverage)
    return trail.best(options.n_best)


class FinishedScores(NamedTuple):
    """What has ended so far, for each sentence still searched."""

    scores: Tensor  # (B, n_best) the best, -inf where there are fewer
    ended: Tensor  # (B,)


class StepSelection(NamedTuple):
    """What a step leaves of B sentences."""

    ends: FinishedHypotheses  # the hypotheses that end
    rows: Tensor  # (B',) which of the B sentences are searched on
    going: ExtendedHypotheses  # (B', beam) their hypotheses; -inf where there are fewer
    parents: Tensor  # (B', beam) flat places (B * K) of what those extend
    tally: FinishedScores  # (B')


def select_candidates(
    candidates: Candidates, live: ActiveHypotheses, coverage: Tensor | None, tally: FinishedScores, rules: BatchedOptions
) -> StepSelection:
    """Take the best candidates of each sentence, as `beam_search` says.

    Args:
        candidates: (B, K, C).
        live: the hypotheses (B, K) that they extend.
        coverage: (B, K, S) theirs, where a penalty asks for it.
        tally: what has ended before.
        rules: the options.

    Raises:
        RegardError: see `check_finite`.
    """
    searched = beam_cpu.BeamCandidates(
        live.rows, rules.max_length, rules.ceiling, live.totals, candidates.log_probs, candidates.tokens, *tally
    )
    if coverage is None and live.progress is None and beam_cpu.supports(searched):
        return _native(searched, live, rules)
    ranked = rank_candidates(candidates, live, rules)
    check_finite(ranked.totals, live)
    ended, going = split_candidates(ranked, live, rules)
    scores = ranking_score(ranked, live, coverage, rules)
    tally = add_finished(tally, ended, scores)
    rows = (~is_done(tally, going, live, rules)).nonzero().squeeze(1)
    going = going.take(rows)
    parents = rows[:, None] * live.tokens.size(1) + going.beams
    ends = finished_hypotheses(ended, live.rows, scores, flat_indices(ranked.beams, live), ranked.tokens, ranked.log_probs)
    return StepSelection(ends, rows, going, parents, FinishedScores(tally.scores[rows], tally.ended[rows]))


def _native(searched: beam_cpu.BeamCandidates, live: ActiveHypotheses, rules: BatchedOptions) -> StepSelection:
    options, length = rules.options, live.length + 1
    kept = beam_cpu.keep(
        searched,
        beam=options.beam_size,
        length=length,
        eos=options.eos,
        enough=stop_count(rules),
        penalty=length_penalty(length, options.length_penalty),
    )
    if kept.bad >= 0:
        check_finite((live.totals[..., None] + searched.log_probs).flatten(1), live)
    rows, places, parents, tokens, scores, log_probs = kept.ends
    totals, last, going, beams, on = kept.going
    return StepSelection(
        FinishedHypotheses(rows, places, scores, parents, tokens, log_probs),
        kept.rows,
        ExtendedHypotheses(totals, going, last, beams),
        on,
        FinishedScores(kept.scores, kept.ended),
    )


def rank_candidates(candidates: Candidates, live: ActiveHypotheses, rules: BatchedOptions) -> ExtendedHypotheses:
    """Return the best 2 * `beam_size` of a sentence's candidates, best first; a tie goes to the lower beam, then the better token.

    That many are enough: at most `beam_size` of them are EOS, so `beam_size` others are among them. With phrases, those with as
    many tokens of them still to come are a bank, and the banks take turns (Post and Vilar, 2018).
    """
    width = candidates.tokens.size(-1)
    totals = (live.totals[..., None] + candidates.log_probs).flatten(1)
    if live.progress is None:
        totals, places = totals.sort(dim=-1, descending=True, stable=True)
    else:
        missing = live.progress.after(candidates.tokens).missing()
        late = missing > (rules.max_length[live.rows] - live.length - 1)[:, None]
        # Where there is no room for all phrases in any, none is left out.
        totals = totals.masked_fill(late & ~(late | (totals == -torch.inf)).all(1, keepdim=True), -torch.inf)
        places = _take_turns(totals, missing)
        totals = totals.gather(1, places)
    totals, places = totals[:, : 2 * rules.options.beam_size], places[:, : 2 * rules.options.beam_size]
    tokens, log_probs = candidates.tokens.flatten(1).gather(1, places), candidates.log_probs.flatten(1).gather(1, places)
    return ExtendedHypotheses(totals, tokens, log_probs, places.div(width, rounding_mode="floor"))


def _take_turns(totals: Tensor, missing: Tensor) -> Tensor:
    """Return the order (B, C) of candidates with these totals and so many tokens still to come; NaN is first, -inf last.

    First comes the best of each bank, the one that misses least before the others, then the second of each.
    """
    order = totals.sort(dim=-1, descending=True, stable=True).indices
    sums, bank = totals.gather(1, order), missing.gather(1, order)
    banks = int(bank.max()) + 1
    member = bank[..., None] == torch.arange(banks, device=bank.device)
    turn = (member.cumsum(1) - 1).gather(-1, bank[..., None]).squeeze(-1) * banks + bank
    turn = turn.masked_fill(sums.isnan(), -1).masked_fill(sums == -torch.inf, bank.size(1) * banks)
    return order.gather(1, turn.sort(dim=-1, stable=True).indices)


def split_candidates(ranked: ExtendedHypotheses, live: ActiveHypotheses, rules: BatchedOptions) -> tuple[Tensor, ExtendedHypotheses]:
    """Return which ranked candidates (B, C) end, and those that go on, at most `beam_size` of them.

    EOS ends a hypothesis if it ranks among the first `beam_size`; at `max_length` all that would go on end too. Where fewer than
    `beam_size` can go on, the places left hold -inf.
    """
    beam_size = rules.options.beam_size
    real = ranked.totals > -torch.inf
    eos = ranked.tokens == rules.options.eos
    others = real & ~eos
    others &= others.cumsum(-1) <= beam_size
    at_limit = rules.max_length[live.rows] == live.length + 1
    first = torch.arange(eos.size(1), device=eos.device) < beam_size
    ended = (real & eos & first) | (others & at_limit[:, None])
    places = others.to(torch.uint8).sort(dim=-1, descending=True, stable=True).indices[:, :beam_size]
    masked = ranked._replace(totals=ranked.totals.masked_fill(~others, -torch.inf))
    return ended, ExtendedHypotheses(*(column.gather(1, places) for column in masked))


def add_finished(tally: FinishedScores, ended: Tensor, scores: Tensor) -> FinishedScores:
    """Return the tally with the hypotheses that end in this step, both (B, C)."""
    scores = torch.cat([tally.scores, scores.masked_fill(~ended, -torch.inf)], 1)
    return FinishedScores(scores.topk(tally.scores.size(1)).values, tally.ended + ended.sum(1))


def stop_count(rules: BatchedOptions) -> float:
    """Return how many hypotheses of a sentence must have ended for it to be done."""
    return max(rules.options.n_best, rules.options.patience * rules.options.beam_size)


def is_done(tally: FinishedScores, going: ExtendedHypotheses, live: ActiveHypotheses, rules: BatchedOptions) -> Tensor:
    """Return which sentences (B,) need no further step; `going` is what would go on."""
    at_limit = rules.max_length[live.rows] == live.length + 1
    hopeless = cannot_improve(tally.scores[:, -1], going.totals.amax(1), rules.ceiling[live.rows])
    return at_limit | (tally.ended >= stop_count(rules)) | hopeless


def cannot_improve(worst: Tensor, best_total: Tensor, ceiling: Tensor) -> Tensor:
    """Return for which sentences (B,) no live hypothesis can still beat the worst of the n best ended ones.

    What extends a hypothesis adds log-probabilities <= 0, so its total is at most its parent's, here at most `best_total`
    (<= 0). The length penalty grows with the length, alpha being >= 0, and a total <= 0 divided by it is the greatest where
    it is the greatest: at max_length, `ceiling`. The coverage penalty is at most 0. So every hypothesis yet to end scores at
    most best_total / ceiling; division rounds monotonically, so this holds in floating point too. A tie goes to what ended
    first, so `<=` loses nothing. Fewer than n ended ones: `worst` is -inf, and only a sentence without live ones is stopped.
    """
    return best_total / ceiling <= worst
