"""Beam search over a step function."""

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
from regard.decoding.phrases import PhraseProgress
from regard.decoding.protocol import AnyState, Hypothesis, Step
from regard.ops.kernels import beam_cpu


@torch.inference_mode()
def beam_search(
    step: Step[AnyState], state: AnyState, *, batch_size: int, options: DecodingOptions, device: torch.device | str = "cpu"
) -> list[list[Hypothesis]]:
    """Decode with beam search and return the best hypotheses of each sentence.

    Each step ranks a sentence's continuations by the sum of log-probabilities. EOS among the `beam_size` best ends a hypothesis; the
    `beam_size` best others continue. A sentence leaves the batch when `patience * beam` of its hypotheses have ended, when `max_length` is
    reached (active hypotheses then end without EOS), or when no active hypothesis can beat its n-th best (see `cannot_improve`). Ties go to
    the lower beam, then to the lower token. Results do not depend on other sentences of the batch.

    Args:
        step: the model's step.
        state: initial state, one hypothesis per sentence.
        batch_size: B; 0 returns an empty list.
        options: decoding options.
        device: device of the model.

    Returns:
        Per sentence 1 to `n_best` different hypotheses, best first; fewer than `n_best` only if no more have ended.

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
    back_pointers = BackPointers(rules.limits, rules.max_length.device)
    while len(live.rows):
        logits, attention, state = step(live.tokens.to(rules.device), state)
        check_step(logits, attention, live, rules)
        coverage = add_coverage(live, attention, rules)
        # At most `beam_size` continuations of a hypothesis continue, and one ends.
        candidates = next_candidates(logits, live, rules, options.beam_size + 1, need=options.beam_size)
        ends, rows, going, parents, tally, progress = select_candidates(candidates, live, coverage, tally, rules)
        back_pointers.attend(attention if options.need_attention else None)
        back_pointers.finish(ends, live.length + 1)
        back_pointers.extend(going.tokens, going.log_probs, parents)
        state = reorder_state(state, rows, going.beams, live, rules.device)
        live = advance_hypotheses(live, rows, going, coverage, progress)
    return back_pointers.best(options.n_best)


class FinishedScores(NamedTuple):
    """Scores of the finished hypotheses of each active sentence."""

    scores: Tensor  # (B, n_best) the best, -inf where there are fewer
    ended: Tensor  # (B,)


class StepSelection(NamedTuple):
    """Selection of one step over B sentences."""

    ends: FinishedHypotheses  # the hypotheses that end
    rows: Tensor  # (B',) the sentences that stay active
    going: ExtendedHypotheses  # (B', beam) their hypotheses; -inf where there are fewer
    parents: Tensor  # (B', beam) flat indices (B * K) of their parents
    tally: FinishedScores  # (B')
    progress: PhraseProgress | None  # (B', beam)


def select_candidates(
    candidates: Candidates, live: ActiveHypotheses, coverage: Tensor | None, tally: FinishedScores, rules: BatchedOptions
) -> StepSelection:
    """Select the best candidates of each sentence; see `beam_search`.

    Raises:
        RegardError: see `check_finite`.
    """
    searched = beam_cpu.BeamCandidates(
        live.rows, rules.max_length, rules.ceiling, live.totals, candidates.log_probs, candidates.tokens, *tally
    )
    if coverage is None and beam_cpu.supports(searched):
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
    progress = None if live.progress is None else live.progress.select(rows, going.beams).after(going.tokens[..., None])
    return StepSelection(ends, rows, going, parents, FinishedScores(tally.scores[rows], tally.ended[rows]), progress)


def _native(searched: beam_cpu.BeamCandidates, live: ActiveHypotheses, rules: BatchedOptions) -> StepSelection:
    options, length = rules.options, live.length + 1
    progress = live.progress
    kept = beam_cpu.keep(
        searched,
        None if progress is None else _native_phrases(progress),
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
        None if progress is None else PhraseProgress(kept.states, progress.alphabet[kept.rows], progress.table),
    )


def _native_phrases(progress: PhraseProgress) -> beam_cpu.BeamPhrases:
    table = progress.table
    return beam_cpu.BeamPhrases(progress.states, progress.alphabet, table.following, table.missing, table.follow)


def rank_candidates(candidates: Candidates, live: ActiveHypotheses, rules: BatchedOptions) -> ExtendedHypotheses:
    """Return the best 2 * `beam_size` candidates per sentence, best first; ties go to the lower beam, then the lower token.

    These suffice: at most `beam_size` of them are EOS. With phrases, candidates with the same number of missing phrase tokens form a bank,
    and banks alternate (Post and Vilar, 2018).
    """
    width = candidates.tokens.size(-1)
    totals = (live.totals[..., None] + candidates.log_probs).flatten(1)
    if live.progress is None:
        totals, places = totals.sort(dim=-1, descending=True, stable=True)
    else:
        missing = live.progress.after(candidates.tokens).missing()
        late = missing > (rules.max_length[live.rows] - live.length - 1)[:, None]
        # Keep all if no candidate has room for all phrases.
        totals = totals.masked_fill(late & ~(late | (totals == -torch.inf)).all(1, keepdim=True), -torch.inf)
        places = _take_turns(totals, missing)
        totals = totals.gather(1, places)
    totals, places = totals[:, : 2 * rules.options.beam_size], places[:, : 2 * rules.options.beam_size]
    tokens, log_probs = candidates.tokens.flatten(1).gather(1, places), candidates.log_probs.flatten(1).gather(1, places)
    return ExtendedHypotheses(totals, tokens, log_probs, places.div(width, rounding_mode="floor"))


def _take_turns(totals: Tensor, missing: Tensor) -> Tensor:
    """Return the order (B, C) of candidates by total and number of missing tokens; NaN is first, -inf last.

    First the best of each bank, in order of missing tokens, then the second of each.
    """
    order = totals.sort(dim=-1, descending=True, stable=True).indices
    sums, bank = totals.gather(1, order), missing.gather(1, order)
    banks = int(bank.max()) + 1
    member = bank[..., None] == torch.arange(banks, device=bank.device)
    turn = (member.cumsum(1) - 1).gather(-1, bank[..., None]).squeeze(-1) * banks + bank
    turn = turn.masked_fill(sums.isnan(), -1).masked_fill(sums == -torch.inf, bank.size(1) * banks)
    return order.gather(1, turn.sort(dim=-1, stable=True).indices)


def split_candidates(ranked: ExtendedHypotheses, live: ActiveHypotheses, rules: BatchedOptions) -> tuple[Tensor, ExtendedHypotheses]:
    """Return which ranked candidates (B, C) end, and up to `beam_size` that continue.

    EOS ends a hypothesis if it ranks among the first `beam_size`; at `max_length` all end. Unused beam slots hold -inf.
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
    """Return how many finished hypotheses complete a sentence."""
    return max(rules.options.n_best, rules.options.patience * rules.options.beam_size)


def is_done(tally: FinishedScores, going: ExtendedHypotheses, live: ActiveHypotheses, rules: BatchedOptions) -> Tensor:
    """Return which sentences (B,) need no further step; `going` would continue."""
    at_limit = rules.max_length[live.rows] == live.length + 1
    hopeless = cannot_improve(tally.scores[:, -1], going.totals.amax(1), rules.ceiling[live.rows])
    return at_limit | (tally.ended >= stop_count(rules)) | hopeless


def cannot_improve(worst: Tensor, best_total: Tensor, ceiling: Tensor) -> Tensor:
    """Return for which sentences (B,) no active hypothesis can beat the worst of the n best finished ones.

    Log-probabilities are <= 0, so totals only decrease: at most `best_total` (<= 0). The length penalty is maximal at max_length
    (`ceiling`), and the coverage penalty is at most 0. So future hypotheses score at most best_total / ceiling; division rounds
    monotonically, so this also holds in floating point. `<=` is safe because ties go to the hypothesis that ended first. With fewer than n
    finished ones `worst` is -inf, and only a sentence without active ones stops.
    """
    return best_total / ceiling <= worst
