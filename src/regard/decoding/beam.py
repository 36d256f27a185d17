"""Beam search over a step function."""

from __future__ import annotations

import torch

from regard.decoding.candidates import check_step, propose
from regard.decoding.live import add_coverage, advance, begin, follow
from regard.decoding.options import Rules, SearchOptions
from regard.decoding.protocol import AnyState, Hypothesis, Step
from regard.decoding.selection import Tally, select
from regard.decoding.trail import Trail


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
        candidates = propose(logits, live, rules, options.beam + 1, need=options.beam)
        ends, rows, going, parents, tally = select(candidates, live, coverage, tally, rules)
        trail.attend(attention if options.need_attention else None)
        trail.finish(ends, live.length + 1)
        trail.extend(going.tokens, going.log_probs, parents)
        state = follow(state, rows, going.beams, live)
        live = advance(live, rows, going, coverage)
    return trail.best(options.n_best)
